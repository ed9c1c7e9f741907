"""The decode loop against transformers' own generate on SmolLM2, interleaved: `make bench`."""

from __future__ import annotations

import pytest
import torch

from real.benchmark import PAIRS, compare
from real.data import choose, encode, load_prompts
from real.models import SMOLLM2, load_target
from tests.bench.test_speed import ATTEMPTS

pytestmark = [pytest.mark.bench, pytest.mark.slow, pytest.mark.models]
PROMPTS, TOKENS, NOISE = 3, 48, 0.03


@pytest.mark.filterwarnings("ignore:.*generation_config.*:UserWarning")
def test_the_loop_is_as_fast_as_the_library_and_nearly_all_of_it_is_the_models() -> None:
    loaded = load_target(SMOLLM2)
    prompts = [encode(loaded.tokenizer, prompt) for prompt in choose(load_prompts("humaneval"), PROMPTS, 0)]
    sums: dict[str, tuple[int, float]] = {}
    for _ in range(ATTEMPTS):
        tallies = compare(loaded, prompts, TOKENS, say=print)
        for name, tally in tallies.items():
            tokens, time_s = sums.get(name, (0, 0.0))
            sums[name] = tokens + tally.tokens, time_s + tally.time_s
        for ours, theirs in PAIRS:
            assert tallies[ours].outputs == tallies[theirs].outputs, "float32: every output is the plain one"
            assert tallies[ours].overhead_share <= 0.05
        speed = {name: tokens / time_s for name, (tokens, time_s) in sums.items()}
        ratios = {f"{ours} / {theirs}": speed[ours] / speed[theirs] for ours, theirs in (*PAIRS, ("lookup", "plain"))}
        print(f"{torch.get_num_threads()} threads:", {name: f"{ratio:.3f}" for name, ratio in ratios.items()})
        if min(ratios.values()) >= 1.0:
            return
    # What two runs of the same code differ by on a shared machine, even interleaved.
    assert min(ratios.values()) >= 1.0 - NOISE, ratios
