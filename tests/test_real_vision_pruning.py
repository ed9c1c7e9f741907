"""Draft passes that see some of the visual tokens: lossless, and what a mask over the target's own cache would give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from real.builders.arm import Arm
from real.builders.specvlm import attention_only, kept_count, similar_text, two_stage, uniform, window
from real.cache import causal_mask, forward
from real.drafters.selfspec import SelfDrafter
from real.target import Loan, Tap, Target
from real.vision.pruning import PrunedFamily, pruned_arms, visual_attention
from specsim.errors import ConfigError
from tests.real_vision import case
from tests.test_real_vision_lossless import blocks, plain, run

RATES = (0.0, 0.4, 0.8, 1.0)
CASES = ("qwen2_5_vl", "qwen2_5_vl-video", "qwen3_vl", "llava_next", "llava")


def started(name: str, tap: Tap | None = None) -> tuple[Target, Loan]:
    target, loan = Target(case(name).model.text), Loan()
    with torch.inference_mode():
        target.start(case(name).prompt, 256, tap, loan)
    return target, loan


@pytest.mark.parametrize("name", CASES)
def test_scores_are_the_attention_of_the_librarys_own_pass(name: str) -> None:
    """Over pictures and the whole prompt; and the target's cache stays as it was, bit for bit."""
    tried, (_, loan) = case(name), started(name)
    before = [buffer.clone() for buffer in (*loan.cache._keys.values(), *loan.cache._values.values())]
    places = np.flatnonzero(tried.prompt.visual.numpy()).tolist()
    found = visual_attention(tried.model.text, tried.prompt.ids, places, loan.cache)
    after = [*loan.cache._keys.values(), *loan.cache._values.values()]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    whole = tried.model.whole
    whole.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            layers = whole(**tried.given, use_cache=False, output_attentions=True).attentions
    finally:
        whole.set_attn_implementation("sdpa")
    want = torch.stack([layer[0][:, places[-1] + 1 :][..., places].mean((0, 1)) for layer in layers]).mean(0)
    assert np.allclose(found, want.numpy(), rtol=1e-3, atol=1e-6)
    assert found.min() >= 0
    assert 0 < found.sum() < 1


@pytest.mark.parametrize("name", CASES)
def test_draft_passes_see_what_a_mask_would_leave_at_the_targets_positions(name: str) -> None:
    tried, (_, loan) = case(name), started(name)
    family, ids = PrunedFamily(tried.model, RATES), tried.prompt.ids
    with torch.inference_mode():
        family.start(ids)
        family.look(ids, loan.cache)
        places = np.flatnonzero(tried.prompt.visual.numpy())
        assert [len(kept) for kept in family.kept] == [kept_count(len(places), rate) for rate in RATES]
        assert family.view(0, loan.cache) is loan.cache
        length = loan.cache.length
        for number in (1, 2, 3):
            view = family.view(number, loan.cache)
            assert view.length == length - len(places) + len(family.kept[number])
            hidden = np.setdiff1d(places, places[family.kept[number]])
            visible = causal_mask(2, length)
            visible[:, torch.from_numpy(hidden)] = False
            want = forward(tried.model.text, ids[-2:], loan.cache, visible=visible)
            loan.cache.crop_to(length)
            found = forward(tried.model.text, ids[-2:], view)
            assert torch.allclose(found, want, atol=1e-4)
            assert family.view(number, loan.cache).length == view.length  # what a draft appended is gone
        # Text that was committed since is there in every view, those used before included.
        forward(tried.model.text, ids[:3], loan.cache)
        again = family.view(1, loan.cache)
        assert again.length == loan.cache.length - len(places) + len(family.kept[1])
        for layer, keys in loan.cache._keys.items():
            assert torch.equal(
                again._keys[layer][:, :, again.length - 3 : again.length], keys[:, :, length : length + 3]
            )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("spelling", "tree", "arm"), [("exp3spec", False, ""), ("sp2ec", True, ""), ("ucb1", False, "m1")]
)
def test_output_is_plain_decodings(name: str, spelling: str, tree: bool, arm: str) -> None:
    family = PrunedFamily(case(name).model, RATES, arm=Arm.parse(arm))
    drafter = SelfDrafter(blocks(name), family, name="pruned", max_draft_len=4, tree=tree)
    found = run(name, drafter, spelling)
    assert found.output == plain(name)
    assert len({row.arm for row in found.rounds}) >= 2
    assert family.built.build_s > 0
    if not arm and not tree:
        whole = [row for row in found.rounds if row.arm == 0]
        assert all(row.accepted_len == row.submitted_len for row in whole if row is not found.rounds[-1])


def test_text_prompts_are_drafted_on_the_targets_cache_and_bad_rates_refused() -> None:
    model = case("llava").model
    family, (_, loan) = PrunedFamily(model, (0.5, 0.9)), started("llava")
    family.start(case("llava").prompt.ids[-5:])
    family.look(case("llava").prompt.ids[-5:], loan.cache)
    assert family.view(1, loan.cache) is loan.cache
    for rates in ((), (0.5, 0.5), (0.9, 0.5), (-0.1,), (1.5,)):
        with pytest.raises(ConfigError, match=r"allowed: ascending, each 0\.\.1"):
            PrunedFamily(model, rates)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, lambda scores, keep: two_stage(scores, keep)),
        ({"share": "0.1", "lowest": "1"}, lambda scores, keep: two_stage(scores, keep, share=0.1, lowest_first=True)),
        ({"attended": "0.25"}, lambda scores, keep: two_stage(scores, keep, fraction=0.25)),
        ({"choice": "attention"}, attention_only),
        ({"choice": "attention", "lowest": "1"}, lambda scores, keep: attention_only(-scores, keep)),
        ({"choice": "uniform"}, lambda scores, keep: uniform(len(scores), keep)),
        ({"choice": "middle"}, lambda scores, keep: window(len(scores), keep, "middle")),
    ],
)
def test_options_name_the_published_rules(options, rule) -> None:
    tried, (_, loan) = case("llava"), started("llava")
    family, ids = pruned_arms({"prune": "0.2,0.7", **options}, tried.model, None), tried.prompt.ids
    places = np.flatnonzero(tried.prompt.visual.numpy()).tolist()
    with torch.inference_mode():
        family.start(ids)
        family.look(ids, loan.cache)
        scores = visual_attention(tried.model.text, ids, places, loan.cache)
    assert [kept.tolist() for kept in family.kept] == [
        rule(scores, kept_count(len(places), rate)).tolist() for rate in (0.2, 0.7)
    ]


@pytest.mark.parametrize("name", ["llava", "qwen3_vl"])
def test_similar_queries_are_chosen_by_the_librarys_own_features(name: str) -> None:
    tried = case(name)
    family, ids = (
        pruned_arms({"prune": "0.5", "choice": "attention", "queries": "similar"}, tried.model, None),
        (tried.prompt.ids),
    )
    _, loan = started(name, family.tap)
    places, body = np.flatnonzero(tried.prompt.visual.numpy()).tolist(), tried.model.whole.model
    with torch.inference_mode():
        family.start(ids)
        family.look(ids, loan.cache)
        features = torch.cat(list(body.get_image_features(**tried.prompt.inputs, return_dict=True).pooler_output))
        text = tried.model.text.get_input_embeddings()(ids[places[-1] + 1 :])
        rows = similar_text(features.reshape(len(places), -1).numpy(), text.numpy()).tolist()
        scores = visual_attention(tried.model.text, ids, places, loan.cache, rows)
    assert 0 < len(rows) < len(text)
    assert family.kept[0].tolist() == attention_only(scores, kept_count(len(places), 0.5)).tolist()
