"""Drafters: prompt lookup against hand-made vectors, layer skipping shares weights, names on the command line."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.cache import KVCache, forward  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.drafters.layer_skip import parse_layers, skip_layers  # noqa: E402
from real.drafters.prompt_lookup import lookup  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402


@pytest.mark.parametrize(
    ("context", "max_len", "options", "expected"),
    [
        ([], 5, {}, []),
        ([1], 5, {}, []),
        ([1, 2, 3], 5, {}, []),  # nothing occurs twice
        ([1, 2, 3, 1, 2], 5, {}, [3, 1, 2]),  # bigram, copied up to the end of the context
        ([1, 2, 3, 1, 2], 2, {}, [3, 1]),  # at most max_len tokens
        ([1, 2, 3, 1, 2], 0, {}, []),
        ([7, 2, 9, 1, 2, 8, 1, 2], 3, {}, [8, 1, 2]),  # the bigram wins over the earlier unigram
        ([7, 2, 9, 5, 2], 3, {}, [9, 5, 2]),  # no bigram: the unigram
        ([1, 2, 3, 1, 2, 4, 1, 2], 2, {}, [3, 1]),  # leftmost occurrence, not the latest
        ([4, 4], 3, {}, [4]),  # overlap with the n-gram itself: one token follows
        ([4, 4, 4], 3, {}, [4]),  # bigram at 0 is followed by one token
        ([7, 2, 9, 1, 2, 8, 1, 2], 3, {"max_ngram_len": 1}, [9, 1, 2]),
        ([5, 1, 2, 3, 6, 1, 2, 9, 5, 1, 2], 2, {"max_ngram_len": 3}, [3, 6]),
        ([1, 2, 3, 0, 4, 1, 2], 5, {"stop_ids": {0}}, [3]),  # cut before the end token
        ([1, 2, 0, 4, 1, 2], 5, {"stop_ids": {0}}, []),  # an end token right away: nothing, and no second try
    ],
)
def test_prompt_lookup(context, max_len, options, expected):
    assert lookup(context, max_len, **options) == expected


def test_layers_are_shared_and_keep_their_numbers():
    target = tiny_llama(layers=4)
    shallow = skip_layers(target, (0, 2))
    assert [layer.self_attn.layer_idx for layer in shallow.model.layers] == [1, 3]
    assert shallow.model.layers[0] is target.model.layers[1]
    assert shallow.lm_head.weight is target.lm_head.weight
    assert len(target.model.layers) == 4
    cache = KVCache(20)
    forward(shallow, prompt_ids(1), cache)
    assert sorted(cache._keys) == [1, 3]
    assert cache.length == 12


def test_cached_forward_equals_the_librarys():
    target, ids = tiny_llama(), prompt_ids(1)
    with torch.inference_mode():
        expected = target(input_ids=ids[None], use_cache=False).logits[0]
        cache = KVCache(len(ids))
        parts = [forward(target, ids[:5], cache), forward(target, ids[5:6], cache), forward(target, ids[6:], cache)]
        torch.testing.assert_close(torch.cat(parts), expected)
        cache.crop_to(6)
        torch.testing.assert_close(forward(target, ids[6:], cache, keep=1), expected[-1:])


def test_other_decoders_are_refused():
    with pytest.raises(ConfigError, match=r"model\.model\.layers"):
        skip_layers(torch.nn.Linear(2, 2), (0,))


def test_kept_layers_keep_their_attention_type():
    mixed = tiny_llama()
    mixed.config.layer_types = ["full_attention", "sliding_attention", "full_attention"]
    shallow = skip_layers(mixed, (0,))
    assert shallow.model.config.layer_types == ["sliding_attention", "full_attention"]
    assert len(mixed.config.layer_types) == 3


def test_parse_layers():
    assert parse_layers("3, 5,10-12,11") == (3, 5, 10, 11, 12)
    for text in ("a", "3-", "5-3", "-1", "1.5"):
        with pytest.raises(ConfigError, match="numbers and ranges"):
            parse_layers(text)
    with pytest.raises(ConfigError, match="'2-20000' goes beyond 9999"):
        parse_layers("1,2-20000")


def test_layers_the_target_lacks_are_told_in_one_line():
    with pytest.raises(ConfigError, match=r"^keep layer 900: the target has layers 0..29$"):
        parse_drafter("layer-skip:keep=0-900", target="t", n_layers=30)
    with pytest.raises(ConfigError, match=r"name layers, e.g. layer-skip:skip=9-14"):
        parse_drafter("layer-skip", target="t", n_layers=30)


def test_parse_drafter():
    options = {"target": "tiny", "n_layers": 6}
    assert parse_drafter("layer-skip:skip=2-3", **options).skip_layers == (2, 3)
    assert parse_drafter("layer-skip:keep=0-2,5", **options).skip_layers == (3, 4)
    assert parse_drafter("layer-skip", skip_layers="1", **options).skip_layers == (1,)
    assert parse_drafter("prompt-lookup", **options).max_ngram_len == 2
    lookup_drafter = parse_drafter("prompt-lookup:ngram=3", **options)
    assert lookup_drafter.max_ngram_len == 3


@pytest.mark.parametrize(
    ("text", "skip", "message"),
    [
        ("layer-skp", None, "did you mean 'layer-skip'"),
        ("medusa", None, "allowed: none, layer-skip"),
        ("layer-skip", None, "no default skip set"),
        ("layer-skip:skip=6", None, r"layers \[6\].*0\.\.5"),
        ("layer-skip:keep=9", None, r"keep layer 9: .*0\.\.5"),
        ("layer-skip:skip=0-5", None, "at least one"),
        ("layer-skip:keep=0-5", None, "is empty"),
        ("layer-skip", "", "is empty"),
        ("layer-skip:skip=1", "2", "not both"),
        ("layer-skip:ngram=2", None, "cannot read"),
        ("layer-skip:skip", None, "cannot read"),
        ("prompt-lookup:ngram=0", None, r"ngram is '0'; allowed: a whole number, 1\.\."),
        ("prompt-lookup", "1", "not to prompt-lookup"),
    ],
)
def test_bad_drafters(text, skip, message):
    with pytest.raises(ConfigError, match=message):
        parse_drafter(text, target="tiny", n_layers=6, skip_layers=skip)
