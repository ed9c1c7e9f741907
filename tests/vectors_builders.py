"""Golden-vector handlers of the builders of draft configurations (`real.builders`): sp2ec.json's arms and trees,
swift.json.

Those of knapspec.json are in `tests/vectors_knapspec.py`, of specvlm.json in `tests/vectors_specvlm.py`. torch is
imported when a handler runs that needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from real.builders import cossim, spine, swift
from real.builders.arm import Arm
from specsim.online import OnlineController
from tests.vectors_bandits import sp2ec_loop
from tests.vectors_tools import Case, Checks, controller, draft


def near(what: str, got: Any, want: Any, tolerance: float) -> tuple[str, Any, Any]:
    """Equal up to an absolute tolerance."""
    fine = np.shape(got) == np.shape(want) and np.allclose(got, want, rtol=0, atol=tolerance)
    return what, "agrees" if fine else np.asarray(got).tolist(), "agrees" if fine else want


def row(values: Sequence[float]) -> cossim.Rows:
    return np.array(values, np.float32)


# --- sp2ec.json: cosSim -----------------------------------------------------------------------------------------------


def construction_of(parameters: Case) -> cossim.Construction:
    span = parameters.get("min_skipped_blocks"), parameters.get("max_skipped_blocks")
    return cossim.Construction(
        parameters["number_of_blocks"],
        fraction=parameters.get("max_skip_fraction"),
        span=None if span[0] is None else span,
        zero_skip=parameters.get("include_zero_skip_arm", False),
    )


def build(parameters: Case, warmup: Sequence[float], after: dict[str, Sequence[float]]) -> cossim.Construction:
    """A whole construction, each round's importances read from the table by the number of blocks it left out."""
    construction = construction_of(parameters)
    arm = construction.begin(row(warmup))
    while arm is not None:
        gone = str(len(arm.attention))
        arm = construction.observe(row(after[gone])[None] if gone in after else np.zeros((0, len(warmup)), np.float32))
    return construction


def elimination(case: Case) -> Checks:
    inputs, expected = case["inputs"], case["expected"]
    made = build(
        case["parameters"], inputs["importance_from_warmup"], inputs["importance_after_round_with_n_blocks_removed"]
    )
    rounds = range(made.rounds)
    yield "complete", made.complete, True
    yield "removal_order", made.removed, expected["removal_order"]
    offered = [len(arm.attention) for arm in made.family]
    yield "budgets", offered, [arm["budget"] for arm in expected["arms"]]
    yield "removed", [made.removed[:n] for n in offered], [arm["removed_blocks_in_order"] for arm in expected["arms"]]
    yield "arms", list(made.family), [Arm.blocks(arm["removed_blocks_in_order"]) for arm in expected["arms"]]
    wanted = [arm["importance_of_last_removed"] for arm in expected["arms"] if arm["budget"]]
    scores = [made.importances[n - 1] for n in offered if n]
    yield near("importance_of_last_removed", scores, wanted, case["tolerance"]["importance"])
    yield "measured", [made.collects(k) for k in rounds], expected["importance_requested_in_round"]
    sizes = [len(made.arm(k).attention) for k in rounds]
    yield "blocks removed per round", sizes, expected["blocks_removed_in_each_construction_round"]


def arm_count(case: Case) -> Checks:
    most, arms = [], []
    for setting in case["inputs"]["rows"]:
        made = construction_of(setting)
        most.append(cossim.max_removed(setting["number_of_blocks"], setting["max_skip_fraction"]))
        arms.append(sum(made.offered(k) for k in range(made.rounds)))
    yield "maximum_removed", most, case["expected"]["maximum_removed"]
    yield "number_of_arms", arms, case["expected"]["number_of_arms"]


def loop_with_arms(case: Case) -> Checks:
    """The selections (`tests.vectors_bandits`), and the arms that every epoch builds."""
    yield from sp2ec_loop(case)
    parameters, inputs = case["parameters"], case["inputs"]
    tokens = dict.fromkeys(inputs["committed_tokens_cycled_by_blocks_removed"], 0)
    written = 0
    for number, epoch in enumerate(case["expected"]["epochs"]):
        yield f"epoch {number} tokens before", written, epoch["output_tokens_before_warmup"]
        made = build(
            parameters,
            inputs["importance_from_warmup_per_epoch"][number],
            inputs["importance_after_round_with_n_blocks_removed_per_epoch"][number],
        )
        order = [made.removed[: len(arm.attention)] for arm in made.family]
        yield f"epoch {number} arms", order, epoch["arms_removed_blocks"]
        sizes = [len(made.arm(k).attention) for k in range(made.rounds)]
        yield f"epoch {number} construction", sizes, epoch["construction_blocks_removed_per_round"]
        written += parameters["warmup_tokens"]
        for removed in (*sizes, *epoch["selection_blocks_removed_per_round"]):
            table = inputs["committed_tokens_cycled_by_blocks_removed"][str(removed)]
            written += table[tokens[str(removed)] % len(table)]
            tokens[str(removed)] += 1


def warmup(case: Case) -> Checks:
    expected, tolerance = case["expected"], case["tolerance"]["importance"]
    passes = [
        None if values is None else row(values) for values in case["inputs"]["importance_of_each_full_model_pass"]
    ]
    got = cossim.warmup_importance(passes)
    yield near("initial_importance", got, expected["initial_importance"], tolerance)
    used = []
    for number in range(len(passes)):
        other = cossim.warmup_importance([np.ones_like(passes[-1]) if k == number else p for k, p in enumerate(passes)])
        used += [number] if not np.array_equal(got, other) else []
    yield "passes_averaged", used, expected["passes_averaged"]
    yield "tokens_generated", case["parameters"]["full_model_tokens"], expected["tokens_generated"]
    yield "too few passes", cossim.warmup_importance(passes[:3]), None


def round_importance(case: Case) -> Checks:
    """One round: how much is drafted, the tree, what is kept, which token the probe reads, which rows count."""
    from real.tree import depths, walk

    parameters, inputs, expected = case["parameters"], case["inputs"], case["expected"]
    most, past = parameters["max_draft_length"], parameters["cache_length_before"]
    q = np.array(inputs["draft_top1_probability_per_pass"], np.float32)
    tau = parameters["confidence_limit"]
    drafted, _ = draft(OnlineController(controller("threshold", max_draft_len=most, tau=tau)), q)
    yield "drafted_count", drafted, expected["drafted_count"]
    chain = inputs["draft_top1_token_per_pass"][:drafted]
    ranked = [[token] for token in chain]
    if parameters["tree"]:
        for depth, more in enumerate(inputs["further_ranked_candidates_per_pass"][:drafted]):
            ranked[depth] += more[: spine.SP2EC.of(inputs["draft_top1_probability_per_pass"][depth]) - 1]
    tokens, parents = spine.spine_tree(ranked)
    deep = [0, *depths(parents)]
    path, last = walk(tokens, parents, lambda node: inputs["target_next_token_along_its_own_greedy_path"][deep[node]])
    committed = [*(tokens[node] for node in path), last]
    yield "committed_tokens", committed, expected["committed_tokens"]
    kept = sum(token == expect for token, expect in zip(chain, committed[:-1], strict=False))
    side = committed[kept] if kept < len(path) else None
    yield "kept_drafted_tokens", len(path), expected["kept_drafted_tokens"]
    yield "kept_along_most_probable_chain", kept, expected["kept_along_most_probable_chain"]
    yield "cache_length_after", past + len(committed), expected["cache_length_after"]
    read = [parameters["last_committed_token"], *chain[:-1]]
    passes = [{"token": token, "cache_length": past + number} for number, token in enumerate(read)]
    yield "draft_passes", passes, expected["draft_passes"]
    probe = cossim.boundary(chain, kept, side)
    assert probe is not None
    place = {"token": probe.token, "cache_length": past + 1 + probe.before}
    yield "probe_pass", place, expected["probe_pass"]
    *drafts, of_probe = (row(values) for values in inputs["importance_of_each_draft_pass_then_probe"])
    rows = cossim.usable_rows(np.stack(drafts[:drafted]), kept, of_probe)
    named = [*(k for k in range(1, 1 + kept) if k < drafted), "probe"]
    yield "passes_averaged", named, expected["passes_averaged"]
    yield "number of rows", len(rows), len(expected["passes_averaged"])
    importance = cossim.mean_importance(rows)
    yield near(
        "importance_after_round", importance, expected["importance_after_round"], case["tolerance"]["importance"]
    )
    yield "candidates_in_tree", len(tokens) if parameters["tree"] else None, expected["candidates_in_tree"]
    if parameters["tree"]:
        yield from tree_checks(parameters["last_committed_token"], tokens, parents, expected["tree"])


def tree_checks(root: int, tokens: list[int], parents: list[int], expected: Case) -> Checks:
    """A tree whose vectors count the root as node 0."""
    from real.tree import depths

    yield "tokens", [root, *tokens], expected["tokens"]
    yield "parents", [-1, *(parent + 1 for parent in parents)], expected["parents"]
    yield "depths", [0, *depths(parents)], expected["depths"]


def block_importance(case: Case) -> Checks:
    import torch

    from real.builders.similarity import importance_rows

    parameters, inputs = case["parameters"], case["inputs"]
    state = torch.tensor(inputs["initial_states"], dtype=torch.float32)
    measured = cossim.removable(parameters["number_of_blocks"])
    found = []
    for block in range(parameters["number_of_blocks"]):
        before = state
        if block not in parameters["removed_blocks"]:
            for matrices in ("attention_matrices", "mlp_matrices"):
                state = state + state @ torch.tensor(inputs[matrices][block], dtype=torch.float32).T
        counts = block in measured and block not in parameters["removed_blocks"]
        found.append(float(importance_rows(torch.stack([before, state], dim=1)).mean()) if counts else 0.0)
    yield near("importance", found, case["expected"]["importance"], case["tolerance"]["importance"])


def sp2ec_width(case: Case) -> Checks:
    got = [spine.SP2EC.of(p) for p in case["inputs"]["top1_probability"]]
    yield "candidates", got, case["expected"]["candidates"]


def sp2ec_tree(case: Case) -> Checks:
    from real.tree import depths, walk

    inputs, expected = case["inputs"], case["expected"]
    ranked = inputs["ranked_candidates_per_level"]
    tokens, parents = spine.spine_tree(ranked)
    yield from tree_checks(inputs["root_token"], tokens, parents, expected)
    text, deep = inputs["reference_continuation"], [0, *depths(parents)]
    path, last = walk(
        tokens, parents, lambda node: text[deep[node]] if text else inputs["target_prediction_after_each_node"][node]
    )
    committed = [*(tokens[node] for node in path), last]
    yield "committed_tokens", committed, expected["committed_tokens"]
    yield "selected_nodes", [0, *(node + 1 for node in path)], expected["selected_nodes"]
    chain = [candidates[0] for candidates in ranked]
    kept = sum(token == other for token, other in zip(chain, committed[:-1], strict=False))
    yield "kept_along_most_probable_chain", kept, expected["kept_along_most_probable_chain"]
    yield "kept_drafted_tokens", len(path), expected["kept_drafted_tokens"]
    spine_nodes = [0]
    for depth in range(len(chain)):
        spine_nodes.append(1 + sum(len(candidates) for candidates in ranked[:depth]))
    yield "chain_nodes", spine_nodes, expected["chain_nodes"]
    probe = cossim.boundary(chain, kept, committed[kept] if kept < len(path) else None)
    assert probe is not None
    # The reference's tree code leaves the case of a fully kept chain to its caller, ours names the token there too.
    yield "probe_token", None if kept == len(chain) else probe.token, expected["probe_token"]


# --- swift.json -------------------------------------------------------------------------------------------------------


class Script:
    """Random sets and suggestions as a case lists them; remembers what the optimiser is told."""

    def __init__(self, drawn: Sequence[Sequence[int]] = (), suggested: Sequence[Sequence[float]] = ()) -> None:
        self.drawn, self.suggested = iter(drawn), iter(suggested)
        self.told: list[list[float]] = []

    def choice(self, a: int, size: int, replace: bool) -> Sequence[int]:
        assert not replace
        drawn = next(self.drawn)
        assert len(drawn) == size
        assert max(drawn) < a
        return drawn

    def suggest(self) -> Sequence[float]:
        return next(self.suggested)

    def register(self, point: Sequence[float], score: float) -> None:
        self.told.append(list(point))


def layers_of(arm: Arm) -> list[list[int]]:
    return [sorted(arm.attention), sorted(arm.mlp)]


def swift_of(case: Case, rng: swift.Draws, optimiser: Script | None, **settings: Any) -> swift.Swift:
    layers = case["parameters"]["number_of_layers"]
    count = case["parameters"]["sublayers_to_skip"]
    settings = {"ratio": (count + 0.5) / (2 * (layers - 2))} | settings
    search = swift.Swift(
        layers, swift.SwiftSettings(**settings), rng, optimiser=(lambda _: optimiser) if optimiser else None
    )
    assert search.count == count
    return search


def random_search(case: Case) -> Checks:
    """Drawn coordinates fed in, and the same from the generator the reference used."""
    drawn, wanted = case["inputs"]["drawn_coordinates"], case["expected"]["trials"]
    legacy = np.random.RandomState(case["parameters"]["legacy_numpy_global_seed"])
    for name, rng in (("fed", Script(drawn)), ("seeded", legacy)):
        script = Script()
        search = swift_of(case, rng, script, bayes_every=0)
        arms = []
        for _ in drawn:
            arms.append(layers_of(search.propose()))
            search.judge(0.0)
        want = [[trial["attention_layers_skipped"], trial["mlp_layers_skipped"]] for trial in wanted]
        yield f"{name} layers", arms, want
        yield f"{name} points", script.told, [trial["probe_point"] for trial in wanted]


def suggested_point(case: Case) -> Checks:
    script = Script(suggested=[case["inputs"]["suggested_coordinates"]])
    search = swift_of(case, script, script, bayes_every=1)
    expected = case["expected"]
    want = [expected["attention_layers_skipped"], expected["mlp_layers_skipped"]]
    yield "layers", layers_of(search.propose()), want
    search.judge(0.5)
    yield "point", script.told, [expected["point_registered_with_optimiser"]]


def optimisation_loop(case: Case) -> Checks:
    parameters, inputs, expected = case["parameters"], case["inputs"], case["expected"]
    script = Script(suggested=inputs["suggested_points"])
    search = swift_of(
        case,
        np.random.RandomState(parameters["legacy_numpy_global_seed"]),
        script if parameters["use_suggestions"] else None,
        ratio=parameters["skip_ratio"],
        max_score=parameters["stop_when_score_exceeds"],
        tolerance=parameters["stop_when_trials_without_improvement_exceed"],
        trials=parameters["stop_when_trials_exceed"],
        bayes_every=parameters["suggestion_every"] or 0,
        window=parameters["context_window"],
    )
    start = [inputs["initial_attention_layers"], inputs["initial_mlp_layers"]]
    yield "initial", layers_of(search.arm), start
    window, run = parameters["context_window"], 0
    for number, hits in enumerate(inputs["matching_window_positions_per_trial"]):
        if not search.due(window + 2, number):
            break
        run += 1
        want = expected["rounds"][number]
        score = swift.matchness([1] * hits + [0] * (window - hits), [1] * window)
        yield f"trial {number} score", math.isclose(score, want["match_score"], abs_tol=1e-12), True
        trial = search.propose()
        yield f"trial {number}", layers_of(trial), [want["trial_attention_layers"], want["trial_mlp_layers"]]
        search.judge(score)
        after = [want["attention_layers_after"], want["mlp_layers_after"]]
        yield f"trial {number} after", layers_of(search.arm), after
        state = [search.best, search.trials, search.misses, search.searching]
        keys = ("best_score", "trials_done", "trials_without_improvement", "still_optimising")
        yield f"trial {number} state", state, [want[key] for key in keys]
    yield "number_of_trials_run", run, expected["number_of_trials_run"]


def initial_set(case: Case) -> Checks:
    layers, ratio = case["inputs"]["number_of_layers"], case["parameters"]["skip_ratio"]
    arms = [swift.initial_arm(n) for n in layers]
    yield "initial_layers", [sorted(arm.attention) for arm in arms], case["expected"]["initial_layers"]
    yield "both kinds", [arm.attention == arm.mlp for arm in arms], [True] * len(layers)
    counts = [swift.sublayers_skipped(n, ratio) for n in layers]
    yield "sublayers_to_skip", counts, case["expected"]["sublayers_to_skip"]


# By the probability of the most probable token, greedy and sampled.
SWIFT = spine.Widths(((0.95, 3), (0.8, 5), (0.5, 8)), 10)
SWIFT_SAMPLING = spine.Widths(((0.95, 1), (0.8, 3), (0.5, 5)), 10)


def swift_width(case: Case) -> Checks:
    tops, expected = case["inputs"]["top1_probability_per_draft_step"], case["expected"]
    widths = [SWIFT.of(p) for p in tops]
    yield "widths_greedy", widths, expected["widths_greedy"]
    yield "widths_sampling", [SWIFT_SAMPLING.of(p) for p in tops], expected["widths_sampling"]
    tokens, _ = spine.spine_tree([list(range(width)) for width in widths])
    yield "number_of_drafted_nodes_greedy", len(tokens), expected["number_of_drafted_nodes_greedy"]


def swift_tree(case: Case) -> Checks:
    from real.tree import depths, paths, walk

    inputs, expected = case["inputs"], case["expected"]
    ranked = [
        tokens[: SWIFT.of(p)]
        for tokens, p in zip(
            inputs["ranked_draft_tokens_per_step"], inputs["top1_probability_per_draft_step"], strict=True
        )
    ]
    tokens, parents = spine.spine_tree(ranked)
    yield "tree_tokens", [inputs["root_token"], *tokens], expected["tree_tokens"]
    yield "position_offset_of_each_node", [0, *depths(parents)], expected["position_offset_of_each_node"]
    lines = [[0, *(node + 1 for node in path)] for path in paths(parents)]
    yield "ancestors_visible_to_each_node", lines, expected["ancestors_visible_to_each_node"]
    leaves = sorted(line for line in lines[1:] if line[-1] - 1 not in parents)
    yield "paths_by_node_index", leaves, expected["paths_by_node_index"]
    path, last = walk(tokens, parents, inputs["target_next_token_at_each_tree_node"].__getitem__)
    accepted = [0, *(node + 1 for node in path)]
    rows = [k for k, leaf in enumerate(leaves) if leaf[: len(accepted)] == accepted]
    yield "best_path_row", rows[0], expected["best_path_row"]
    yield "accepted_length", len(path), expected["accepted_length"]
    yield "accepted_tokens", [tokens[node] for node in path], expected["accepted_tokens"]
    yield "next_token", last, expected["next_token"]
    yield "tokens_committed_including_root", len(path) + 1, expected["tokens_committed_including_root"]


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {
    ("sp2ec", "recursive_elimination"): elimination,
    ("sp2ec", "arm_count"): arm_count,
    ("sp2ec", "loop_with_periodic_rebuild"): loop_with_arms,
    ("sp2ec", "warmup_importance"): warmup,
    ("sp2ec", "round_importance"): round_importance,
    ("sp2ec", "block_importance"): block_importance,
    ("sp2ec", "tree_width"): sp2ec_width,
    ("sp2ec", "tree_verification"): sp2ec_tree,
    ("swift", "random_search"): random_search,
    ("swift", "suggested_point"): suggested_point,
    ("swift", "optimisation_loop"): optimisation_loop,
    ("swift", "initial_set"): initial_set,
    ("swift", "tree_width"): swift_width,
    ("swift", "tree_verification"): swift_tree,
}
