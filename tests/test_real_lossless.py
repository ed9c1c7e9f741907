"""Greedy output is plain greedy output, token for token: every drafter, controller, cache and model class in float32.

Plain decoding here is a pass over the whole text for every token, without any cache or code of `real`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import transformers  # noqa: E402

from real.cache import check_model  # noqa: E402
from real.drafters.model import ModelDrafter  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.neartie import exact_twin, explain, first_difference  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import Draft  # noqa: E402
from specsim.controllers import REGISTRY  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import controller_of, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import (  # noqa: E402
    CLASSES,
    DRAFTERS,
    RANDOM,
    Checked,
    drafters_of,
    noisy,
    random_lengths,
    run,
    subject,
    tiny_class,
)
from tests.real_tiny import tiny_llama  # noqa: E402
from tests.worlds import ALL, SPELLINGS  # noqa: E402

CACHES = ("dynamic", "static")


def runs_live(spelling: str) -> bool:
    controller = controller_of(spelling, subject("llama").drafters["none"])
    return controller.privilege == "none" and controller.plan is None


LIVE = [RANDOM, *(spelling for spelling in ALL if runs_live(spelling))]
# One of each controller; the others are in the slow product.
ONE_EACH = [RANDOM, "static:length=3", *(SPELLINGS[name][0] for name in REGISTRY if name != "static")]
ONE_EACH = [spelling for spelling in ONE_EACH if spelling in LIVE]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("spelling", ONE_EACH)
def test_every_drafter_with_every_controller(drafter: str, spelling: str) -> None:
    for cache in CACHES:
        assert run("llama", drafter, spelling, cache).output == subject("llama").plain, cache


PAIRS = ((RANDOM, "dynamic"), ("static:length=4", "static"))


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_with_every_drafter(name: str) -> None:
    for drafter in drafters_of(name):
        for spelling, cache in PAIRS:
            assert run(name, drafter, spelling, cache).output == subject(name).plain, (drafter, spelling)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "drafter"), [(name, drafter) for name in CLASSES for drafter in drafters_of(name)])
def test_the_full_product(name: str, drafter: str) -> None:
    wrong = [
        (spelling, cache)
        for spelling in LIVE
        for cache in CACHES
        if run(name, drafter, spelling, cache).output != subject(name).plain
    ]
    assert wrong == []


@pytest.mark.parametrize("drafter", DRAFTERS[1:])
def test_the_drafters_above_agree_sometimes(drafter: str) -> None:
    """Over the classes: drafts rejected at once, accepted in part, accepted whole; and rounds that submit nothing."""
    kinds = set()
    for name in CLASSES:
        if drafter in drafters_of(name):
            for spelling, cache in PAIRS:
                for row in run(name, drafter, spelling, cache).rounds:
                    part = row.accepted_len / row.submitted_len if row.submitted_len else -1.0
                    kinds.add("plain" if part < 0 else "none" if part == 0 else "all" if part == 1 else "some")
    assert kinds == {"plain", "none", "some", "all"}


# --- P11, P12: tokens taken back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", CLASSES)
def test_p11_p12_after_every_rejection_logits_are_those_of_a_fresh_pass(name: str, cache: str) -> None:
    """Also where a sliding window of 8 tokens has left the prompt of 18 behind, and where the first round of target and
    drafter takes the prompt in (here: with the static cache)."""
    tried, merge = subject(name), cache == "static"
    target = Checked(tried.model, cache=cache, merge_prompt=merge)
    drafter = ModelDrafter(noisy(tried.model, name), name="second", max_draft_len=5, merge_prompt=merge)
    online = OnlineController(random_lengths(), seed=1)
    found = decode(target, drafter, online, tried.prompt, Settings(max_new_tokens=16))
    assert found.output[: len(tried.plain)] == tried.plain
    assert target.rejections >= 2


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_p11_the_drafters_cache_too(name: str) -> None:
    """What is drafted after a rejection is what a drafter without any cache would draft."""

    class Fresh(ModelDrafter):
        compared = 0

        def propose(self, count: int, arm: int) -> Draft:
            draft, text = super().propose(count, arm), list(self._text)
            for token in self._draft.tokens.tolist():
                logits = self.model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
                assert token == int(logits.argmax())
                text.append(token)
                Fresh.compared += 1
            return draft

    tried = subject(name)
    drafter = Fresh(noisy(tried.model, name), name="fresh", max_draft_len=6)
    found = decode(
        tried.targets["dynamic"],
        drafter,
        OnlineController(random_lengths(), seed=2),
        tried.prompt,
        Settings(max_new_tokens=16),
    )
    assert sum(row.accepted_len < row.submitted_len for row in found.rounds) >= 2
    assert Fresh.compared > 16


def test_p11_the_check_above_sees_a_cache_that_keeps_a_rejected_token() -> None:
    class Forgetful(Checked):
        def commit(self, length: int, path: Sequence[int] | None = None) -> None:
            super().commit(length, path)
            if self._taken_back:
                self._cache._lengths = {layer: held + 1 for layer, held in self._cache._lengths.items()}

    tried = subject("llama")
    with pytest.raises(AssertionError):
        decode(
            Forgetful(tried.model),
            tried.drafters["second model"],
            OnlineController(random_lengths(), seed=1),
            tried.prompt,
            Settings(max_new_tokens=16),
        )


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def qwen3_next() -> transformers.PreTrainedModel:
    linear = {f"linear_num_{kind}_heads": 2 for kind in ("value", "key")}
    linear |= {f"linear_{kind}_head_dim": 8 for kind in ("value", "key")}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = transformers.Qwen3NextConfig(**SMALL, **linear, **experts, shared_expert_intermediate_size=16)
    return transformers.Qwen3NextForCausalLM(config)


def llama4() -> transformers.PreTrainedModel:
    config = transformers.Llama4TextConfig(
        **SMALL, intermediate_size_mlp=48, num_local_experts=2, attention_chunk_size=8, pad_token_id=0
    )
    return transformers.Llama4ForCausalLM(config)


def bloom() -> transformers.PreTrainedModel:
    return transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4))


def t5() -> transformers.PreTrainedModel:
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    return transformers.T5ForConditionalGeneration(config)


def flash() -> transformers.PreTrainedModel:
    model = tiny_llama()
    model.config._attn_implementation = "flash_attention_2"
    return model


def shifted() -> transformers.PreTrainedModel:
    """A model whose logits depend on more than the text."""
    model = tiny_llama()
    model.lm_head.register_forward_hook(lambda module, args, logits: logits + torch.rand(64))
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (qwen3_next, "layers of type linear_attention"),
        (llama4, "layers of type chunked_attention"),
        (bloom, "cannot be called with a cache and a ready-made mask"),
        (t5, "is an encoder-decoder"),
        (flash, "attn_implementation='sdpa'"),
        (shifted, "its cache cannot be cropped"),
    ],
)
def test_p11_models_that_cannot_take_tokens_back_are_refused(make, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Target(make().eval())


@pytest.mark.parametrize(("dtype", "refused"), [("float64", True), ("float32", True), ("bfloat16", False)])
def test_p11_how_far_logits_may_be_off_depends_on_the_precision(dtype: str, refused: bool) -> None:
    model = tiny_llama().to(getattr(torch, dtype))
    model.lm_head.register_forward_hook(lambda module, args, logits: logits * (1 + 0.02 * torch.rand_like(logits)))
    if refused:
        with pytest.raises(ConfigError, match="its cache cannot be cropped"):
            Target(model)
    else:
        Target(model)


def test_p12_a_model_that_misreads_static_buffers_is_refused_only_there() -> None:
    """GPT-Neo cuts its local windows by the length of the buffer."""
    config = transformers.GPTNeoConfig(
        vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=4, initializer_range=0.25,
    )  # fmt: skip
    model = transformers.GPTNeoForCausalLM(config).eval()
    Target(model)
    with pytest.raises(ConfigError, match="load it with the dynamic cache"):
        Target(model, cache="static")


def test_a_model_is_checked_once_for_each_kind_of_cache() -> None:
    model, calls = tiny_llama(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    check_model(model)
    check_model(model)
    assert len(calls) == 4
    check_model(model, static=True)
    assert len(calls) == 8


# --- bfloat16 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_bfloat16_differs_at_near_ties_only(name: str) -> None:
    model = tiny_class(name).to(torch.bfloat16)
    target, exact, prompt = Target(model), exact_twin(model), subject(name).prompt
    settings = Settings(max_new_tokens=16)
    plain = decode(target, subject(name).drafters["none"], OnlineController(random_lengths()), prompt, settings).output
    drafter = ModelDrafter(noisy(model, name), name="second", max_draft_len=6)
    found = decode(target, drafter, OnlineController(random_lengths()), prompt, settings).output
    difference = explain(model, exact, prompt, plain, found)
    assert difference is None or difference.near_tie, str(difference)


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2
    assert first_difference([], [4]) == 0


def test_a_difference_is_explained_by_a_near_tie_or_not_at_all() -> None:
    model, prompt = tiny_llama().to(torch.bfloat16), subject("llama").prompt
    exact = exact_twin(model)
    assert next(exact.parameters()).dtype == torch.float32
    with torch.inference_mode():
        logits = exact(input_ids=prompt[None]).logits[0, -1]
    best, second, *_, worst = logits.argsort(descending=True).tolist()

    gap = explain(model, exact, prompt, [best, 1], [worst, 1])
    assert gap is not None
    assert (gap.place, gap.expected, gap.found, gap.near_tie) == (0, best, worst, False)
    assert gap.exact_gap == pytest.approx(float(logits[best] - logits[worst]), abs=1e-4)
    assert gap.gap == pytest.approx(gap.exact_gap, abs=2 * gap.noise)
    assert "NOT a near tie" in str(gap)

    model.lm_head.weight.data[second] = model.lm_head.weight.data[best]
    model.lm_head.weight.data[second, 0] *= 1 + 2**-7  # one step of bfloat16 in one number
    tie = explain(model, exact_twin(model), prompt, [best], [second])
    assert tie is not None
    assert 0 < abs(tie.exact_gap) < 0.05
    assert tie.near_tie
    assert "token 0" in str(tie)

    ended = explain(model, exact, prompt, [best], [])
    assert ended is not None
    assert (ended.place, ended.found, ended.near_tie) == (0, None, False)
    assert explain(model, exact, prompt, [best, 1], [best, 1]) is None


def test_the_wider_twin_is_a_copy() -> None:
    model = tiny_llama()
    twin = exact_twin(model)
    assert next(twin.parameters()).dtype == torch.float64
    assert next(model.parameters()).dtype == torch.float32
    assert copy.deepcopy(model.state_dict()).keys() == twin.state_dict().keys()
