"""Checkpoints of the Fast-dLLM v2 kind: published keys and names, without a line of their code; refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

from real.drafters.fastdllm_load import PUBLISHED_MASK, BlockModel, check_block_model, load_block_model  # noqa: E402
from real.models import load_target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_tiny import VOCABULARY, save_tiny, tiny_family, tiny_loaded  # noqa: E402

# Every key of the published config.json (see fastdllm_load), sizes made small.
PUBLISHED: dict[str, Any] = {
    "architectures": ["Fast_dLLM_QwenForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration.Fast_dLLM_QwenConfig",
        "AutoModel": "modeling.Fast_dLLM_QwenModel",
        "AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM",
    },
    "bd_size": 32,
    "bos_token_id": 3,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 48,
    "layer_types": ["full_attention"] * 2,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "Fast_dLLM_Qwen",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.53.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": PUBLISHED_MASK + 7,
}
LAYER = {
    "input_layernorm.weight": (32,),
    "mlp.down_proj.weight": (32, 48),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "post_attention_layernorm.weight": (32,),
    "self_attn.k_proj.bias": (16,),
    "self_attn.k_proj.weight": (16, 32),
    "self_attn.o_proj.weight": (32, 32),
    "self_attn.q_proj.bias": (32,),
    "self_attn.q_proj.weight": (32, 32),
    "self_attn.v_proj.bias": (16,),
    "self_attn.v_proj.weight": (16, 32),
}


def publish(folder: Path, **changes: Any) -> Path:
    """A folder with the published files: config and weights, `lm_head` only where it is not tied."""
    config = PUBLISHED | changes
    generator = torch.Generator().manual_seed(0)
    shapes = {f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()}
    shapes |= {"model.embed_tokens.weight": (config["vocab_size"], 32), "model.norm.weight": (32,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], 32)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def edit(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_published_checkpoint_loads_without_its_code(tmp_path: Path) -> None:
    loaded = load_block_model(str(publish(tmp_path)))
    assert (loaded.bd_size, loaded.mask_id, loaded.tokenizer) == (32, PUBLISHED_MASK, None)
    config = loaded.model.config
    assert type(loaded.model).__name__ == "Qwen2ForCausalLM"
    assert config.rope_parameters["rope_theta"] == 1000000.0
    assert next(loaded.model.parameters()).dtype == torch.float32
    held = load_file(tmp_path / "model.safetensors")
    for name, weights in loaded.model.state_dict().items():
        source = "model.embed_tokens.weight" if name == "lm_head.weight" else name
        assert torch.equal(weights, held[source].float()), name
    assert load_block_model(str(tmp_path), dtype="bfloat16").model.lm_head.weight.dtype == torch.bfloat16


def test_the_larger_one_has_a_head_of_its_own(tmp_path: Path) -> None:
    loaded = load_block_model(str(publish(tmp_path, tie_word_embeddings=False)))
    assert torch.equal(loaded.model.lm_head.weight, load_file(tmp_path / "model.safetensors")["lm_head.weight"].float())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("model.norm.weight"), r"lacks model\.norm\.weight"),
        (lambda w: w.update({"relay_layer_norm.weight": torch.zeros(32)}), r"has besides .* relay_layer_norm\.weight"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(31)}), r"model\.norm\.weight has shape \[31\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, change: Any, words: str) -> None:
    edit(publish(tmp_path), change)
    with pytest.raises(ConfigError, match=words):
        load_block_model(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_relay": True}, "'use_relay' is not known"),
        ({"model_type": "gpt2"}, "'gpt2'.*Fast_dLLM_Qwen, qwen2"),
        ({"bd_size": 1}, "bd_size 1: allowed"),
        ({"bd_size": None}, "lacks 'bd_size'"),
        ({"model_type": "qwen2"}, "lacks 'mask_token_id'"),
        ({"mask_token_id": PUBLISHED_MASK + 7}, f"mask_token_id {PUBLISHED_MASK + 7}: .*below vocab_size"),
        (
            {"use_sliding_window": True, "sliding_window": 16, "layer_types": ["sliding_attention"] * 2},
            "look back 16 tokens",
        ),
    ],
)
def test_configs_of_other_models_are_refused(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_block_model(str(publish(tmp_path, **changes)))


def test_nothing_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing: no such folder.*or a hub id"):
        load_block_model(str(tmp_path / "missing"))
    publish(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has neither model\.safetensors nor"):
        load_block_model(str(tmp_path))


def save_own(folder: Path, vocabulary: int = VOCABULARY + 1) -> Path:
    """A drafter as the training here writes it."""
    sizes = tiny_family("llama").config.to_diff_dict() | {"vocab_size": vocabulary, "initializer_range": 0.1}
    extra: dict[str, Any] = {"bd_size": 16, "mask_token_id": VOCABULARY}
    config = LlamaConfig(**{k: v for k, v in sizes.items() if k != "architectures"}, **extra)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_drafter_trained_here_loads(tmp_path: Path) -> None:
    loaded = load_block_model(str(save_own(tmp_path)))
    assert (loaded.bd_size, loaded.mask_id, type(loaded.model).__name__) == (16, VOCABULARY, "LlamaForCausalLM")
    check_block_model(loaded, tiny_loaded())
    other = load_block_model(str(save_own(tmp_path, VOCABULARY + 9)))
    with pytest.raises(ConfigError, match=r"73 ids.*the target 64"):
        check_block_model(other, tiny_loaded())


def test_tokenizers_may_differ_in_the_mask_only(tmp_path: Path) -> None:
    target = load_target(str(save_tiny(tmp_path / "target")))
    folder = save_own(tmp_path / "drafter")

    def with_tokens(*tokens: str) -> BlockModel:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "target")
        tokenizer.add_tokens(list(tokens))
        tokenizer.save_pretrained(folder)
        loaded = load_block_model(str(folder))
        return BlockModel(**{**vars(loaded), "mask_id": len(tokenizer) - 1})

    check_block_model(with_tokens("|<MASK>|"), target)
    with pytest.raises(ConfigError, match=r"tokenizer is not the target's.*other"):
        check_block_model(with_tokens("other", "|<MASK>|"), target)
