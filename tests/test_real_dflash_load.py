"""DFlash checkpoints: the published layout is read, and everything that does not fit is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from safetensors.torch import load_file, save_file  # noqa: E402

from real.drafters.dflash_load import load_dflash, read_config, save_dflash, to_json  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.dflash_tiny import tiny_config, tiny_dflash  # noqa: E402
from tests.real_tiny import tiny_llama  # noqa: E402

MODEL = tiny_llama()
# What config.json of z-lab/Qwen3-4B-DFlash-b16 holds, with the sizes of a tiny target, and keys that older and newer
# versions of transformers write besides.
PUBLISHED: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 16,
    "bos_token_id": 1,
    "dflash_config": {"mask_token_id": 63, "target_layer_ids": [0, 2]},
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 48,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 40960,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_target_layers": 3,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 64,
}
OF_A_LAYER = (
    "input_layernorm",
    "mlp.down_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "post_attention_layernorm",
    "self_attn.k_norm",
    "self_attn.k_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.q_proj",
    "self_attn.v_proj",
)
PUBLISHED_KEYS = {"fc.weight", "hidden_norm.weight", "norm.weight"} | {
    f"layers.{layer}.{part}.weight" for layer in range(2) for part in OF_A_LAYER
}


def changed(document: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A copy with some keys replaced, None: removed; those of `dflash_config` are spelled `inner.key`."""
    result = {**document, "dflash_config": dict(document["dflash_config"])}
    for key, value in change.items():
        owner, name = (result["dflash_config"], key[6:]) if key.startswith("inner.") else (result, key)
        owner.pop(name, None)
        if value is not None:
            owner[name] = value
    return result


def written(folder: Path, **change: Any) -> Path:
    """A checkpoint of the published layout, its config changed."""
    save_dflash(folder, tiny_dflash(MODEL))
    (folder / "config.json").write_text(json.dumps(changed(PUBLISHED, change)))
    return folder


def load(folder: Path, model: Any = MODEL, dtype: str = "float32") -> Any:
    return load_dflash(str(folder), model, device="cpu", dtype=dtype)


def test_the_published_layout(tmp_path: Path) -> None:
    network = load(written(tmp_path / "p"))
    assert set(load_file(tmp_path / "p" / "model.safetensors")) == set(network.state_dict()) == PUBLISHED_KEYS
    config = network.config
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (16, 63, (0, 2))
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1000000}
    assert not any(weights.requires_grad for weights in network.parameters())
    assert not network.training
    for one, other in zip(network.parameters(), tiny_dflash(MODEL).parameters(), strict=True):
        assert torch.equal(one, other)
    assert load(tmp_path / "p", dtype="bfloat16").fc.weight.dtype == torch.bfloat16


def test_weights_in_several_files(tmp_path: Path) -> None:
    folder = written(tmp_path / "p")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {name: f"model-0000{1 + (number % 2)}-of-00002.safetensors" for number, name in enumerate(weights)}
    for file in set(names.values()):
        save_file({name: weights[name] for name, where in names.items() if where == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert set(load(folder).state_dict()) == PUBLISHED_KEYS


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"inner.target_layer_ids": None, "target_layer_ids": [1, 2]}, "target_layer_ids", (1, 2)),
        ({"inner.target_layer_ids": None}, "target_layer_ids", (1, 0)),
        ({"inner.block_size": 8}, "block_size", 8),
        ({"block_size": None}, "block_size", 16),
        ({"inner.mask_token_id": None, "mask_token_id": 5}, "mask_token_id", 5),
        ({"num_target_layers": None}, "num_target_layers", 3),
        ({"inner.causal": True}, "is_causal", True),
        ({"is_causal": False}, "is_causal", False),
        ({"inner.output_multiplier": 0.2}, "output_multiplier", 0.2),
        ({"final_logit_softcapping": 20.0}, "final_logit_softcapping", 20.0),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, "window", None),
        (
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9, "use_sliding_window": True},
            "layer_types",
            ("sliding_attention",) * 2,
        ),
        # Without layer_types, transformers makes layers from max_window_layers on sliding ones.
        (
            {"layer_types": None, "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1},
            "layer_types",
            ("full_attention", "sliding_attention"),
        ),
    ],
)
def test_spellings_of_the_config(change: dict[str, Any], field: str, value: Any) -> None:
    config = read_config(changed(PUBLISHED, change), where="c", num_target_layers=3)
    if field == "window":
        assert config.rope_parameters["rope_theta"] == 7.0
    else:
        assert getattr(config, field) == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fresh_key": 1}, "c: config.json: 'fresh_key' is not known here"),
        ({"inner.selector_rank": 256}, "c: dflash_config: 'selector_rank' is not known here"),
        ({"architectures": ["DFlash2DraftModel"]}, r"architectures \['DFlash2DraftModel'\]: allowed: \[DFlashDraft"),
        ({"model_type": "laguna"}, "model_type 'laguna': allowed: qwen3"),
        ({"hidden_size": None}, "c: config.json lacks 'hidden_size'"),
        ({"vocab_size": None}, "c: config.json lacks 'vocab_size'"),
        ({"inner.mask_token_id": None}, "lacks 'mask_token_id'"),
        ({"dflash_config": 3}, "dflash_config is 3"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic': allowed: default, linear"),
        ({"hidden_act": "swoosh"}, "hidden_act 'swoosh'"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window None"),
        ({"block_size": 1}, r"config.json: block_size 1: allowed: a whole number, 2\.\.4096"),
        ({"inner.target_layer_ids": [0, 3]}, r"target_layer_ids \[3\]: allowed: 0..2"),
        ({"inner.kept_vocab": 65}, "kept_vocab 65: allowed: 1..64"),
        ({"num_attention_heads": "four"}, "num_attention_heads 'four': allowed: a whole number"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "cannot be read as a Qwen3 config .*factor"),
        ({"num_target_layers": "many"}, "num_target_layers 'many': allowed: a whole number"),
        ({"inner.mask_token_id": "<|MASK|>"}, r"mask_token_id '<\|MASK\|>': allowed: a whole number, 0"),
        ({"inner.target_layer_ids": ["a"]}, r"target_layer_ids \['a'\]: allowed: a list of layers"),
        ({"inner.target_layer_ids": 3}, "target_layer_ids 3: allowed: a list"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3: allowed: a divisor of"),
        ({"inner.kept_vocab": "x"}, "kept_vocab 'x': allowed: a whole number"),
        ({"inner.output_multiplier": "x"}, "output_multiplier 'x': allowed: a number above 0"),
    ],
)
def test_configs_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(changed(PUBLISHED, change), where="c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_target_layers": 4}, "made for a target with 4 layers; this one has 3"),
        ({"vocab_size": 60}, "made for a target with 60 token ids; this one has 64"),
        ({"hidden_size": 16}, "made for a target with 16 numbers per hidden state; this one has 32"),
        ({"inner.target_hidden_size": 16}, "made for a target with 16 numbers per hidden state; this one has 32"),
        (
            {"hidden_size": 16, "inner.target_hidden_size": 32},
            "made for a target with 16 numbers per embedding; this one has 32",
        ),
        ({"inner.mask_token_id": 64}, "mask_token_id 64: the target has embeddings of 0..63"),
    ],
)
def test_drafters_of_other_targets_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(written(tmp_path, **change))


@pytest.mark.parametrize("key", sorted(PUBLISHED_KEYS))
def test_a_missing_tensor_is_named(tmp_path: Path, key: str) -> None:
    folder = written(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights[key]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=f"lacks {key}"):
        load(folder)


@pytest.mark.parametrize("key", ["lm_head.weight", "embed_tokens.weight", "layers.2.mlp.up_proj.weight", "kept_ids"])
def test_a_tensor_too_many_is_named(tmp_path: Path, key: str) -> None:
    folder = written(tmp_path)
    save_file(load_file(folder / "model.safetensors") | {key: torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=f"besides .* {key}"):
        load(folder)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path)
    save_file(
        load_file(folder / "model.safetensors") | {"fc.weight": torch.zeros(32, 65)}, folder / "model.safetensors"
    )
    with pytest.raises(ConfigError, match=r"fc.weight has shape \[32, 65\], .* \[32, 64\]"):
        load(folder)


def test_places_without_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"its config\.json cannot be read"):
        load(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text(json.dumps(PUBLISHED))
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load(tmp_path / "empty")
    (tmp_path / "empty" / "model.safetensors").write_text("no tensors")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "empty")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("z-lab/no-such-drafter-at-all", "no such place at all"):
        with pytest.raises(ConfigError, match="no such folder, and the hub"):
            load(Path(name))


def test_own_parts_are_saved_and_found_again(tmp_path: Path) -> None:
    own = {"own_embedding": True, "own_head": True, "own_mask": True, "mask_token_id": None, "kept_vocab": 10}
    more = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6, "is_causal": False}
    network = tiny_dflash(MODEL, hidden_size=16, target_hidden_size=32, input_embedding_scale=2.0, **own, **more)
    network.kept_ids = torch.arange(20, 30)
    save_dflash(tmp_path / "own", network.to(torch.bfloat16))
    found = load(tmp_path / "own", dtype="bfloat16")
    assert found.config == network.config
    assert all(torch.equal(found.state_dict()[name], value) for name, value in network.state_dict().items())
    assert json.loads((tmp_path / "own" / "config.json").read_text())["dtype"] == "bfloat16"


def test_kept_ids_that_are_no_ids_are_refused(tmp_path: Path) -> None:
    for ids in ([1, 1, 2], [1, 2, 64]):
        network = tiny_dflash(MODEL, kept_vocab=3)
        network.kept_ids = torch.tensor(ids)
        save_dflash(tmp_path, network)
        with pytest.raises(ConfigError, match="kept_ids: allowed: different ids"):
            load(tmp_path)


def test_the_plain_config_writes_only_published_keys() -> None:
    document = to_json(tiny_config(MODEL))
    assert set(document) <= set(PUBLISHED) | {"rope_parameters"}
    assert set(document["dflash_config"]) == {"mask_token_id", "target_layer_ids"}
    assert read_config(document, where="c") == tiny_config(MODEL, layer_types=("full_attention",) * 2)
