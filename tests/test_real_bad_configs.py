"""config.json of a drafter with one value replaced: a ConfigError that names file and key, or a drafter that drafts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from real.drafters.config_values import RULES  # noqa: E402
from real.drafters.dflash import DFlashDrafter  # noqa: E402
from real.drafters.dflash_load import load_dflash, save_dflash  # noqa: E402
from real.drafters.eagle3 import Eagle3Chain  # noqa: E402
from real.drafters.eagle3_load import load_eagle3  # noqa: E402
from real.drafters.fastdllm import FastDLLMDrafter  # noqa: E402
from real.drafters.fastdllm_load import check_block_model, load_block_model  # noqa: E402
from real.draws import KeyedDraws  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.dflash_tiny import tiny_dflash  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_tiny import VOCABULARY, prompt_ids, tiny_llama, tiny_loaded  # noqa: E402
from tests.test_real_dflash_load import PUBLISHED as DFLASH  # noqa: E402
from tests.test_real_eagle3_load import CONFIG as EAGLE3  # noqa: E402
from tests.test_real_eagle3_load import write as write_eagle3  # noqa: E402
from tests.test_real_fastdllm_load import PUBLISHED as FASTDLLM  # noqa: E402

MODEL, DEEP, LOADED = tiny_llama(), tiny_llama(layers=8), tiny_loaded()
BAD = [None, True, -1, 0, 1, 1.5, 10**9, 10**30, math.nan, "x", [], ["x"], [[]], {}, {"x": 1}]
TURNED = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
TURNED |= {"attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "truncate": True}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


class Kind(NamedTuple):
    """A drafter of which a valid checkpoint lies in a folder: its config.json, and how to load and draft with it."""

    folder: Path
    config: dict[str, Any]
    load: Callable[[str], Any]
    model: Any


def dflash(path: str) -> Any:
    network = load_dflash(path, MODEL, device="cpu", dtype="float32")
    return DFlashDrafter(network, MODEL, name="d", max_draft_len=5)


def eagle3(path: str) -> Any:
    return Eagle3Chain(load_eagle3(path, DEEP), DEEP, name="e", max_draft_len=5)


def fastdllm(path: str) -> Any:
    found = load_block_model(path)
    check_block_model(found, LOADED)
    sizes: dict[str, Any] = {"mask_id": found.mask_id, "bd_size": found.bd_size, "small": 1}
    return FastDLLMDrafter(found.model, name="f", max_draft_len=5, width=VOCABULARY, **sizes)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    folder = tmp_path_factory.mktemp("bad")
    save_dflash(folder / "dflash", tiny_dflash(MODEL))
    write_eagle3(folder / "eagle3")
    block = FASTDLLM | {"model_type": "qwen2", "vocab_size": VOCABULARY + 1, "mask_token_id": VOCABULARY}
    block |= {"tie_word_embeddings": False, "bd_size": 8}
    sizes = {key: value for key, value in block.items() if key not in ("architectures", "auto_map", "torch_dtype")}
    Qwen2ForCausalLM(Qwen2Config(**{k: v for k, v in sizes.items() if k != "model_type"})).save_pretrained(
        folder / "fastdllm"
    )
    own = {"head_dim": 8, "norm_before_residual": False, "target_hidden_size": 32, "rope_scaling": None}
    own |= {"attention_bias": False, "mlp_bias": False, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    own |= {"eagle_config": {"use_aux_hidden_state": True}, "sliding_window": None}
    return {
        "dflash": Kind(folder / "dflash", DFLASH, dflash, MODEL),
        "eagle3": Kind(folder / "eagle3", EAGLE3 | own, eagle3, DEEP),
        "fastdllm": Kind(folder / "fastdllm", block, fastdllm, MODEL),
    }


def verdict(kind: Kind, config: dict[str, Any]) -> str:
    """What a loader says against a config; empty where it drafts."""
    (kind.folder / "config.json").write_text(json.dumps(config))
    try:
        drafter = kind.load(str(kind.folder))
    except ConfigError as error:
        return str(error)
    text = prompt_ids(3, 9)
    target = Target(kind.model)
    target.start(text, 99, drafter.tap)
    drafter.start(text, 99, KeyedDraws(0, 0), ())
    draft = drafter.propose(4, -1)
    if len(draft.tokens) == 0:  # nothing fits a window as short as that
        assert config["max_position_embeddings"] < len(text) + 4
        return ""
    assert bool(((draft.q > 0) & (draft.q <= 1)).all()), draft.q
    assert 0 <= int(draft.tokens.min()) <= int(draft.tokens.max()) < VOCABULARY
    return ""


def check(kind: Kind, key: str, value: Any, config: dict[str, Any]) -> bool:
    """Whether it drafts; fails where a refusal does not say what is wrong."""
    found = verdict(kind, config)
    if found:
        assert str(kind.folder) in found, (key, value, found)
        assert found.isprintable(), (key, value, found)
        # A number of the right kind, or none, may first contradict something else: the target, the weights.
        assert key in found or value is None or isinstance(value, int), (key, value, found)
    return not found


@pytest.mark.parametrize("name", ["dflash", "eagle3", "fastdllm"])
def test_every_value_of_every_key_replaced_by_a_bad_one(kinds: dict[str, Kind], name: str) -> None:
    kind = kinds[name]
    assert verdict(kind, kind.config) == ""
    drafts = {
        (key, repr(value)): check(kind, key, value, {**kind.config, key: value})
        for key in kind.config
        for value in (BAD if key in RULES else BAD[::7])
        if value != kind.config[key]
    }
    # Both happen: keys that say nothing about the network may hold anything, sizes may not.
    assert drafts["transformers_version", "{'x': 1}"]
    for key in ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        assert not any(drafted for (changed, value), drafted in drafts.items() if changed == key and value != "None"), (
            key
        )


@pytest.mark.parametrize("name", ["dflash", "eagle3", "fastdllm"])
@pytest.mark.parametrize("whole", [TURNED, LLAMA3], ids=["yarn", "llama3"])
def test_every_setting_of_the_rotary_embedding(kinds: dict[str, Kind], name: str, whole: dict[str, Any]) -> None:
    kind = kinds[name]
    assert verdict(kind, {**kind.config, "rope_scaling": dict(whole)}) == ""
    for key in (*whole, "rope_theta"):
        for value in BAD:
            check(kind, key, value, {**kind.config, "rope_scaling": {**whole, key: value}})


@pytest.mark.parametrize(
    ("name", "part", "keys"),
    [
        ("dflash", "dflash_config", ("mask_token_id", "target_layer_ids", "block_size", "num_target_layers")),
        ("dflash", "dflash_config", ("own_embedding", "own_head", "own_mask", "kept_vocab", "target_hidden_size")),
        ("dflash", "dflash_config", ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")),
        ("dflash", "dflash_config", ("is_causal", "causal")),
        ("eagle3", "eagle_config", ("eagle_aux_hidden_state_layer_ids", "use_last_layernorm")),
    ],
)
def test_every_value_of_the_inner_keys(kinds: dict[str, Kind], name: str, part: str, keys: tuple[str, ...]) -> None:
    kind = kinds[name]
    for key in keys:
        for value in BAD:
            found = check(kind, key, value, {**kind.config, part: {**kind.config[part], key: value}})
            assert not (found and isinstance(value, str)), (key, value)


@settings(max_examples=max(20, settings.default.max_examples // 3))
@given(st.sampled_from(["dflash", "eagle3", "fastdllm"]), st.data())
def test_any_keys_replaced_by_any_json(kinds: dict[str, Kind], name: str, data: st.DataObject) -> None:
    kind = kinds[name]
    values = st.recursive(
        st.none() | st.booleans() | st.integers(-3, 70) | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    )
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(kind.config)), values, min_size=1, max_size=3))
    found = verdict(kind, {**kind.config, **changes})
    assert not found or (str(kind.folder) in found and found.isprintable())
