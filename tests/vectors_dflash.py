"""Golden vectors of DFlash, answered by the drafter network, the drafter, `real.verify` and the decode loop.

Two differences from the reference are bridged here. It starts a run from a token of the prompt's pass, where the first
round here drafts after the prompt's last token: so that token is moved into the prompt, or, where it may end the run,
the first round drafts nothing. And it shortens the last block to what still fits: that draft is asked for again, of a
drafter of just that block size.

torch is imported by the handlers, so that all other vectors run without it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.controllers import Setting, build
from specsim.online import OnlineController
from tests.vectors_sampling import FLOAT32, deviations, law_of_round, near, outside
from tests.vectors_tools import Case, Checks, affine

if TYPE_CHECKING:
    import torch

    from real.drafters.dflash_net import DFlashNetwork
    from real.loop import Decoded

# Where the weights lie that the cases name; `python -m tests.vectors` is given the JSON file only.
FOLDER = Path(__file__).parents[2] / "shared" / "vectors"
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
)


@functools.cache
def weights(kind: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(entry of `weight_files`, tensors by name) of the random or the trained weights."""
    from safetensors.torch import load_file

    entry = json.loads((FOLDER / "dflash.json").read_text(encoding="utf-8"))["weight_files"][kind]
    return entry, load_file(FOLDER / entry["file"])


def network_of(kind: str, block_size: int, **options: Any) -> DFlashNetwork:
    """The drafter, loaded as a checkpoint of the published layout would be."""
    from real.drafters.checkpoint import Checkpoint, load_weights
    from real.drafters.dflash_load import ARCHITECTURE, read_config
    from real.drafters.dflash_net import DFlashNetwork

    entry, tensors = weights(kind)
    given = entry["drafter_config"]
    document = {key: given[key] for key in (*SIZES, "hidden_act", "attention_bias", "num_target_layers")}
    document |= {"architectures": [ARCHITECTURE], "block_size": block_size, "rope_theta": given["rope_theta"]}
    inner = {key: given[key] for key in ("mask_token_id", "target_layer_ids")}
    layer_options = {key: value for key, value in options.items() if key in ("layer_types", "sliding_window")}
    document |= layer_options | ({"use_sliding_window": True} if layer_options else {})
    inner |= {key: value for key, value in options.items() if key not in layer_options}
    network = DFlashNetwork(read_config(document | {"dflash_config": inner}, where="dflash.json"))
    own = {name.removeprefix("drafter."): found for name, found in tensors.items() if name.startswith("drafter.")}
    load_weights(network, Checkpoint(where="dflash.json", config=document, weights=own))
    return network.eval().requires_grad_(False)


def close(got: torch.Tensor, want: Any, tolerance: float) -> Any:
    """`want` where `got` is as near as that, else `got`; lists of any depth."""
    import torch

    expected = torch.tensor(want)
    return want if got.shape == expected.shape and bool((got - expected).abs().max() <= tolerance) else got.tolist()


# --- the network ------------------------------------------------------------------------------------------------------


def denoised(network: DFlashNetwork, ids: Sequence[int], features: Any, start: int, cache: Any = None) -> Any:
    """(float[S, H] hidden states, float[S - 1, V] logits) of a block at `start`, its context right before it."""
    import torch

    _, tensors = weights("random")
    context = network.context(torch.tensor(features)[None])
    with torch.inference_mode():
        hidden = network(
            network.noise(torch.tensor(ids[:1]), len(ids), tensors["target.embed_tokens.weight"]),
            context,
            context_positions=torch.arange(start - context.shape[1], start),
            block_positions=torch.arange(start, start + len(ids)),
            cache=cache,
        )[0]
        return hidden, network.logits(hidden[1:], tensors["target.lm_head.weight"])


def drafted(network: DFlashNetwork, logits: torch.Tensor, want: dict[str, Any], tolerance: dict[str, Any]) -> Checks:
    from real.drafters.dflash import first_choice

    tokens, q = first_choice(network, logits)
    yield "logits", close(logits, want["logits"], tolerance["logits"]), want["logits"]
    yield "draft tokens", tokens.tolist(), want["draft_tokens"]
    yield "confidences", close(q, want["confidences"], tolerance["confidences"]), want["confidences"]


def forward_pass(case: Case) -> Checks:
    inputs, want, tolerance = case["inputs"], case["expected"], case["tolerance"]
    ids, start = inputs["block_token_ids"], inputs["block_positions"][0]
    network = network_of("random", case["parameters"]["block_size"], **case["parameters"]["options"])
    yield "masked slots", ids[1:], [network.config.mask_token_id] * (len(ids) - 1)
    yield "context ends at the block", inputs["context_positions"][1], start - 1
    hidden, logits = denoised(network, ids, inputs["context_features"], start)
    expected = want["drafter_output_block"]
    yield "hidden states", close(hidden, expected, tolerance["drafter_output_block"]), expected
    yield from drafted(network, logits, want, tolerance)


def cached_passes(case: Case) -> Checks:
    from real.cache import KVCache

    network = network_of("random", case["parameters"]["block_size"])
    cache = KVCache(64)
    for row, want in zip(case["inputs"]["rounds"], case["expected"]["rounds"], strict=True):
        start = row["block_start_position"]
        _, logits = denoised(network, row["block_token_ids"], row["new_context_features"], start, cache)
        yield "cache length", cache.length, want["cache_length_after_crop"]
        yield from drafted(network, logits, want, case["tolerance"])


def layer_choice(case: Case) -> Checks:
    from real.drafters.dflash_net import default_target_layers

    found = [list(default_target_layers(*pair)) for pair in case["inputs"]["target_and_drafter_layers"]]
    yield "target_layer_ids", found, case["expected"]["target_layer_ids"]


def context_feature(case: Case) -> Checks:
    """A model whose hidden state after layer i is i + 1: no layer does anything but add the bias of its attention."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from real.target import Target

    config = LlamaConfig(
        vocab_size=3,
        hidden_size=2,
        intermediate_size=2,
        num_hidden_layers=5,
        num_attention_heads=1,
        num_key_value_heads=1,
        attention_bias=True,
    )
    model = LlamaForCausalLM(config).eval()
    for name, values in model.named_parameters():
        torch.nn.init.constant_(values, 1.0 if name.endswith("o_proj.bias") else 0.0)
    target = Target(model)
    tap = target.tap(case["parameters"]["layer_ids"])
    with torch.inference_mode():
        target.start(torch.tensor([1, 2, 0]), 8, tap)  # two tokens, and the one that the first round scores
        yield "feature", tap.take().tolist(), case["expected"]["feature"]


# --- the loop ---------------------------------------------------------------------------------------------------------


def run(target: Any, drafter: Any, prompt: Sequence[int], tokens: int, stop_ids: Sequence[int] = ()) -> Decoded:
    """A greedy decode that drafts as much as there is room for, a block at most."""
    import torch

    from real.loop import Settings, decode

    setting = Setting(block_len=drafter.block_len, max_draft_len=drafter.max_draft_len, latency=affine())
    online = OnlineController(build(f"static:length={drafter.block_len}", setting))
    return decode(
        target, drafter, online, torch.tensor(prompt), Settings(max_new_tokens=tokens, stop_ids=tuple(stop_ids))
    )


def scripted(case: Case) -> tuple[Any, Any]:
    """A target that produces given tokens, and a drafter that is right where the case says."""
    import torch

    from real.drafters.base import Drafter
    from real.verify import Draft

    tokens, right = case["inputs"]["target_tokens"], case["inputs"]["drafted_token_is_correct_at_position"]
    width = max(tokens) + 2
    wrong = width - 1

    class Fixed:
        """Its logits follow the script at the position of the output, whatever it is shown."""

        device, window = torch.device("cpu"), None

        def start(self, prompt: torch.Tensor, capacity: int, *shared: Any) -> None:
            self._prompt_len, self._length = len(prompt), len(prompt) - 1

        def score(self, ids: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
            pos = self._length - self._prompt_len + 1
            return torch.nn.functional.one_hot(torch.tensor(tokens[pos : pos + len(ids)]), width).float()

        def commit(self, length: int, path: Sequence[int] | None = None) -> None:
            self._length = length

    class Script(Drafter):
        """Nothing in the first round, since the reference's first token comes from the prompt's pass."""

        name = "script"
        block_len = max_draft_len = case["parameters"]["block_size"] - 1

        def start(self, *args: Any) -> None:
            self._pos = 0

        def propose(self, count: int, arm: int) -> Draft:
            places = range(self._pos, self._pos + count) if self._pos else ()
            ids = [tokens[place] if right[place] else wrong for place in places]
            return Draft(torch.tensor(ids, dtype=torch.int64), torch.ones(len(ids)))

        def commit(self, new: Sequence[int]) -> None:
            self._pos += len(new)

    return Fixed(), Script()


def greedy_verification(case: Case) -> Checks:
    parameters, want = case["parameters"], case["expected"]
    target, drafter = scripted(case)
    found = run(
        target,
        drafter,
        [0] * parameters["prompt_length"],
        parameters["max_new_tokens"],
        parameters["stop_tokens"] or (),
    )
    yield "output_tokens", found.output, want["output_tokens"]
    yield "first token alone", found.rounds[0].emitted_len, 1
    yield "produced_per_round", [row.emitted_len for row in found.rounds[1:]], want["produced_per_round"]
    yield "rounds", len(found.rounds) - 1, want["rounds"]


@functools.cache
def trained_target() -> Any:
    """The tiny target of the weights file, as a transformers Qwen3."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    entry, tensors = weights("trained")
    given = entry["target_config"]
    config = Qwen3Config(
        **{key: given[key] for key in SIZES},
        rope_parameters={"rope_type": "default", "rope_theta": given["rope_theta"]},
        max_position_embeddings=256,
        tie_word_embeddings=given["tie_word_embeddings"],
    )
    model = Qwen3ForCausalLM(config)
    model.load_state_dict(
        {name.removeprefix("target."): found for name, found in tensors.items() if name.startswith("target.")}
    )
    return model.eval().requires_grad_(False)


def complete_run(case: Case) -> Checks:
    from real.drafters.base import NoDrafter
    from real.drafters.dflash import DFlashDrafter
    from real.target import Target
    from real.verify import Draft

    class Noted(DFlashDrafter):
        """Keeps what it proposed."""

        def propose(self, count: int, arm: int) -> Draft:
            draft = super().propose(count, arm)
            notes.append({"draft_tokens": draft.tokens.tolist(), "confidences": draft.q.tolist()})
            return draft

    parameters, want = case["parameters"], case["expected"]
    size, output = parameters["block_size"], want["output_tokens"]
    target = Target(trained_target())
    notes: list[dict[str, Any]] = []

    def decoded(prompt: Sequence[int], tokens: int, block_size: int) -> Decoded:
        network = network_of("trained", block_size)
        drafter = Noted(network, target.model, name="dflash", max_draft_len=block_size - 1)
        return run(target, drafter, prompt, tokens, parameters["stop_tokens"] or ())

    prompt, new = case["inputs"]["prompt_tokens"], parameters["max_new_tokens"]
    first = run(target, NoDrafter(), prompt, new)
    yield "plain decoding", first.output, output
    found = decoded([*prompt, output[0]], new - 1, size)
    yield "output_tokens", [output[0], *found.output], output
    yield "produced_per_round", [row.emitted_len for row in found.rounds], want["produced_per_round"]
    expected = want["draft_per_round"]
    whole = [row for row in expected if len(row["draft_tokens"]) == size - 1]
    tolerance = case["tolerance"]["confidences"]
    yield from _drafts(notes[: len(whole)], whole, tolerance)
    for short in expected[len(whole) :]:
        left = len(short["draft_tokens"])
        notes.clear()
        # Room for one token more than is left: the reference also drafts the one that its limit then cuts.
        decoded([*prompt, *output[: len(output) - left]], left + 1, left + 1)
        yield from _drafts(notes[:1], [short], tolerance)


def _drafts(found: list[dict[str, Any]], wanted: list[dict[str, Any]], tolerance: float) -> Checks:
    yield "drafts", [row["draft_tokens"] for row in found], [row["draft_tokens"] for row in wanted]
    for row, want in zip(found, wanted, strict=True):
        yield "confidences", near(row["confidences"], want["confidences"], tolerance), want["confidences"]


# --- sampling ---------------------------------------------------------------------------------------------------------


def distribution(case: Case) -> Checks:
    import torch

    from real.verify import process, sampling_processors

    nothing = torch.zeros(0, dtype=torch.int64)
    scores = process(
        sampling_processors(**case["parameters"]), nothing, nothing, torch.tensor([case["inputs"]["logits"]])
    )
    want = case["expected"]["probabilities"]
    found = torch.softmax(scores.float(), dim=-1)[0].tolist()
    yield "probabilities", near(found, want, case["tolerance"]["probabilities"]), want


def rejection(case: Case) -> Checks:
    """The law over every branch of its luck; the reference's histograms against it."""
    inputs, want = case["inputs"], case["expected"]
    p, candidates = inputs["target_probabilities"], inputs["candidate_tokens"]
    q, width = inputs["draft_probabilities"], len(inputs["target_probabilities"][0])
    if candidates is not None:  # a reduced vocabulary: no probability anywhere else
        q = [
            [dict(zip(ids, law, strict=True)).get(x, 0.0) for x in range(width)]
            for ids, law in zip(candidates, q, strict=True)
        ]
    joint = [[0.0] * width for _ in range(len(q) + 1)]
    for (_, accepted, token), chance in law_of_round(q, p, inputs["drafted_tokens"]).items():
        joint[accepted][token] += chance
    counts = [sum(row) for row in joint]
    expected = want["analytic_probability_of_kept_count"]
    yield "kept", near(counts, expected, case["tolerance"]["analytic"]), expected
    rows = [*want["analytic_next_token_after_rejection_at"], want["analytic_next_token_after_full_acceptance"]]
    for count, row in enumerate(rows):
        if row is not None and counts[count] > FLOAT32:
            found = [chance / counts[count] for chance in joint[count]]
            yield f"next token after {count}", near(found, row, case["tolerance"]["analytic"]), row
    limit, trials = deviations(case["tolerance"]["histograms"]), case["parameters"]["trials"]
    yield "reference kept", outside(want["reference_kept_count_histogram"], counts, trials, limit), []
    flat = [number for row in want["reference_next_token_histogram_by_kept_count"] for number in row]
    yield "reference next", outside(flat, [chance for row in joint for chance in row], trials, limit), []


HANDLERS: dict[tuple[str, str], Callable[[Case], Checks]] = {
    ("dflash", "draft_forward"): forward_pass,
    ("dflash", "draft_forward_with_cache"): cached_passes,
    ("dflash", "target_layer_choice"): layer_choice,
    ("dflash", "context_feature"): context_feature,
    ("dflash", "greedy_verification"): greedy_verification,
    ("dflash", "complete_run"): complete_run,
    ("dflash", "sampling_distribution"): distribution,
    ("dflash", "rejection_sampling"): rejection,
}
