"""Golden-vector handlers of specvlm.json: which visual tokens a draft pass sees (`real.builders.specvlm`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from real.builders import specvlm
from tests.vectors_builders import near
from tests.vectors_tools import Case, Checks


def attention_score(case: Case) -> Checks:
    inputs, used = case["inputs"], case["parameters"]["query_rows_used"]
    layers = [np.array(layer, np.float32) for layer in inputs["attention_by_layer"]]
    visual = [place for place, token in enumerate(inputs["input_ids"]) if token == inputs["visual_token_id"]]
    got = specvlm.attention_scores(layers, visual, None if used == "all" else used)
    yield near("score_of_each_visual_token", got, case["expected"]["score_of_each_visual_token"], 1e-6)


def two_stage(case: Case) -> Checks:
    parameters, inputs, expected = case["parameters"], case["inputs"], case["expected"]
    tokens, visual = inputs["input_ids"], inputs["visual_token_id"]
    scores = np.array(inputs["score_of_each_visual_token"], np.float32)
    keep = specvlm.kept_count(len(scores), parameters["drop_rate"])
    share, fraction = parameters["attention_share"], parameters["attention_fraction_of_all_tokens"]
    given: dict[str, Any] = {"fraction": fraction} if share is None else {"share": share}
    kept = specvlm.two_stage(scores, keep, lowest_first=parameters["lowest_scores_first"], **given)
    if "exception_type" in expected:
        # The reference fails when no token is left for the even spread and none is needed; there is an answer.
        yield "kept where the reference fails", kept.tolist(), list(range(keep))
        return
    yield "number_of_visual_tokens", tokens.count(visual), expected["number_of_visual_tokens"]
    yield "number_kept", keep, expected["number_kept"]
    yield "kept_visual_indices", kept.tolist(), expected["kept_visual_indices"]
    places = specvlm.sequence_positions(tokens, visual, kept).tolist()
    yield "kept_sequence_positions", places, expected["kept_sequence_positions"]
    if "attention_tokens_needed_for_share" in expected:
        needed = specvlm.tokens_for_share(scores, share)
        yield "attention_tokens_needed_for_share", needed, expected["attention_tokens_needed_for_share"]
    first = expected["visual_indices_from_attention"]
    yield "attention_tokens", len(first), expected["attention_tokens"]
    best = specvlm.attention_only(-scores if parameters["lowest_scores_first"] else scores, len(first))
    yield "visual_indices_from_attention", best.tolist(), first
    rest = sorted(set(kept.tolist()) - set(first))
    yield "visual_indices_from_uniform", rest, expected["visual_indices_from_uniform"]
    yield "uniform_tokens", len(rest), expected["uniform_tokens"]


def other_selections(case: Case) -> Checks:
    parameters, inputs, expected = case["parameters"], case["inputs"], case["expected"]
    if "pairs" in inputs:
        yield "number_kept", [specvlm.kept_count(n, rate) for n, rate in inputs["pairs"]], expected["number_kept"]
        return
    if "available_and_count" in inputs:
        ranks = [specvlm.spread(*pair).tolist() for pair in inputs["available_and_count"]]
        yield "ranks", ranks, expected["ranks"]
        return
    n = inputs["number_of_visual_tokens"]
    keep = specvlm.kept_count(n, parameters["drop_rate"])
    yield "number_kept", keep, expected["number_kept"]
    kind = parameters["selection"]
    if kind == "uniform":
        kept = specvlm.uniform(n, keep)
    elif kind == "window":
        kept = specvlm.window(n, keep, parameters["window"])
    elif kind == "attention":
        kept = specvlm.attention_only(inputs["score_of_each_visual_token"], keep)
    else:
        import torch

        order = torch.randperm(n, generator=torch.Generator().manual_seed(parameters["torch_seed"]))
        kept = specvlm.at_random(order.tolist(), keep)
    yield "kept_visual_indices", kept.tolist(), expected["kept_visual_indices"]


def attention_share(case: Case) -> Checks:
    expected = case["expected"]
    for number, scores in enumerate(case["inputs"]["score_lists"]):
        want = expected["tokens_needed_for_share"][number]
        got = {share: specvlm.tokens_for_share(scores, float(share)) for share in want}
        yield f"list {number} tokens", got, want
        held = expected["percent_of_score_held_by_top_fraction"][number]
        shares = [100 * specvlm.share_of_top(scores, float(fraction)) for fraction in held]
        yield near(f"list {number} percent", shares, list(held.values()), case["tolerance"]["percent"])


def text_query_selection(case: Case) -> Checks:
    visual, text = (np.array(case["inputs"][key], np.float32) for key in ("visual_embeddings", "text_embeddings"))
    got = specvlm.similar_text(visual, text).tolist()
    yield "selected_text_rows", got, case["expected"]["selected_text_rows"]


def last_visual_index(case: Case) -> Checks:
    visual = case["parameters"]["visual_token_id"]
    got = [specvlm.last_visual(tokens, visual) for tokens in case["inputs"]["sequences"]]
    yield "last_index", got, case["expected"]["last_index"]


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {
    ("specvlm", "attention_score"): attention_score,
    ("specvlm", "two_stage_pruning"): two_stage,
    ("specvlm", "other_selections"): other_selections,
    ("specvlm", "attention_share"): attention_share,
    ("specvlm", "text_query_selection"): text_query_selection,
    ("specvlm", "last_visual_index"): last_visual_index,
}
