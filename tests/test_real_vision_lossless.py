"""Vision-language models in the decode loop: output, positions and cache are the library's own, whoever drafts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch

from real.builders.arm import Arm
from real.cache import KVCache, forward
from real.drafters.base import Drafter, NoDrafter
from real.drafters.layer_skip import skip_layers
from real.drafters.model import ModelDrafter
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.drafters.subblocks import SubBlocks
from real.loop import Decoded, Settings, decode
from real.target import Target
from real.vision.prompt import VisionPrompt
from specsim.online import OnlineController
from tests.real_law import FixedClock
from tests.real_lossless import random_lengths
from tests.real_selfspec import controller_for, self_drafter
from tests.real_vision import CASES, TOKENS, case, library_generate, library_plain


@functools.cache
def target(name: str, cache: str = "dynamic") -> Target:
    return Target(case(name).model.text, cache=cache)


@functools.cache
def blocks(name: str) -> SubBlocks:
    return SubBlocks(case(name).model.text)


def run(name: str, drafter: Drafter, spelling: str | None = None, at: Target | None = None, **more) -> Decoded:
    controller = random_lengths() if spelling is None else controller_for(spelling, drafter)
    online = OnlineController(controller, seed=5, compiled=not controller.compiled)
    settings = Settings(max_new_tokens=TOKENS, **more)
    return decode(at or target(name), drafter, online, case(name).prompt, settings, clock=FixedClock())


@functools.cache
def plain(name: str) -> list[int]:
    return run(name, NoDrafter()).output


@pytest.mark.parametrize("name", CASES)
def test_plain_decoding_is_the_librarys(name: str) -> None:
    """Its generate with a cache, and its passes over everything without one; with outputs that depend on pictures."""
    assert plain(name) == library_generate(name)
    assert plain(name) == library_plain(name)
    assert len(set(plain(name))) > 3


@pytest.mark.parametrize("name", CASES)
def test_output_is_plain_decodings_with_drafters_made_for_text(name: str) -> None:
    """A chain of the text, the target's own layers on its cache (chain and tree), a model with a cache of its own."""
    shallow = ModelDrafter(skip_layers(case(name).model.text, (1,)), name="layer-skip", max_draft_len=4)
    tried = [(PromptLookupDrafter(max_draft_len=5), None, "dynamic"), (shallow, None, "static")]
    tried += [
        (self_drafter(blocks(name)), "exp3spec", "dynamic"),
        (self_drafter(blocks(name), tree=True), "ucb1", "static"),
    ]
    kinds = set()
    for drafter, spelling, cache in tried:
        found = run(name, drafter, spelling, target(name, cache))
        assert found.output == plain(name), drafter.name
        kinds |= {(row.accepted_len > 0) + (row.accepted_len == row.submitted_len > 0) for row in found.rounds}
    assert kinds == {0, 1, 2}  # rejections at once, on the way, and none


@pytest.mark.parametrize("name", CASES)
def test_a_draft_with_nothing_left_out_is_always_accepted(name: str) -> None:
    """Draft passes are at the target's own rotary positions: at others they would be another model."""
    found = run(name, self_drafter(blocks(name), (Arm(),), max_draft_len=5, arm_draft_len=5), "arm:index=0")
    assert found.output == plain(name)
    assert all(row.accepted_len == row.submitted_len or row.round == len(found.rounds) - 1 for row in found.rounds)
    assert len(found.rounds) <= TOKENS // 5


class LooksAtCache(Target):
    """Compares the cache, once a round's tokens are committed, with that of one fresh pass over pictures and text."""

    def start(self, prompt: VisionPrompt, *rest) -> None:  # type: ignore[override]
        super().start(prompt, *rest)
        self.prompt, self.text, self.rejections = prompt, prompt.ids[:-1].tolist(), 0

    def score(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
        self.scored = tokens.tolist()
        return super().score(tokens, parents)

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        super().commit(length, path)
        kept = range(length - len(self.text) - 1) if path is None else path
        self.text += [self.scored[0], *(self.scored[1 + node] for node in kept)]
        self.rejections += len(list(kept)) < len(self.scored) - 1
        fresh, more = KVCache(length), length - len(self.prompt.ids)
        grown = self.prompt
        if grown.positions is not None:
            after = grown.positions[:, -1:] + 1 + torch.arange(more)
            grown = VisionPrompt(
                ids=torch.tensor(self.text),
                inputs=grown.inputs,
                visual=torch.cat([grown.visual, torch.zeros(more, dtype=torch.bool)]),
                positions=torch.cat([grown.positions, after], dim=1),
            )
        forward(self.model, torch.tensor(self.text), fresh, prompt=grown)
        assert self._cache._lengths == fresh._lengths
        for ours, theirs in ((self._cache._keys, fresh._keys), (self._cache._values, fresh._values)):
            for layer, there in theirs.items():
                gap = (ours[layer][:, :, :length] - there[:, :, :length]).abs().max()
                assert float(gap) <= 1e-5 * float(there.abs().max())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tree", [False, True])
def test_after_every_rejection_the_cache_is_that_of_a_fresh_prefill(name: str, tree: bool) -> None:
    watched = LooksAtCache(case(name).model.text)
    found = run(name, self_drafter(blocks(name), tree=tree), "exp3spec", watched)
    assert found.output == plain(name)
    assert watched.rejections >= 2


@pytest.mark.parametrize("name", ["qwen2_5_vl-both", "qwen3_vl", "llava"])
def test_sampled_output_is_plain_samplings(name: str) -> None:
    want = run(name, NoDrafter(), sample=True, seed=3).output
    drafter = self_drafter(blocks(name), tree=True)
    assert run(name, drafter, "ucb1", sample=True, seed=3).output == want


def test_text_prompts_are_as_before_and_pictures_change_the_output() -> None:
    """A request without pictures after one with them counts positions from 0 again."""
    tried, text = case("qwen2_5_vl"), case("qwen2_5_vl").prompt.ids[-18:]
    settings, controller = Settings(max_new_tokens=TOKENS), OnlineController(random_lengths(), seed=1)
    found = decode(target("qwen2_5_vl"), PromptLookupDrafter(max_draft_len=4), controller, text, settings)
    out = tried.model.whole.generate(
        input_ids=text[None], max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False
    )
    assert found.output == out[0, len(text) :].tolist()
    assert tried.model.prompt(text).shift == 0
    assert found.output != plain("qwen2_5_vl")
