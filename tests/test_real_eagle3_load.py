"""Loading EAGLE-3 heads: folders with the published key names, shapes and configurations, and everything refused.

Key names and shapes: see `real.drafters.eagle3_load`. They are written out here, not asked of the network.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from safetensors.torch import save_file  # noqa: E402

from real.drafters.eagle3 import Eagle3Chain  # noqa: E402
from real.drafters.eagle3_load import load_eagle3, save_eagle3  # noqa: E402
from real.draws import KeyedDraws  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_eagle3 import SlowHead, features_of, random_head, slow_chain, tiny_config  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402

V, DRAFT, H, MLP, WIDE, NARROW = 64, 24, 32, 48, 32, 16
SHAPES = {
    "midlayer.self_attn.q_proj.weight": (WIDE, 2 * H),
    "midlayer.self_attn.k_proj.weight": (NARROW, 2 * H),
    "midlayer.self_attn.v_proj.weight": (NARROW, 2 * H),
    "midlayer.self_attn.o_proj.weight": (H, WIDE),
    "midlayer.mlp.gate_proj.weight": (MLP, H),
    "midlayer.mlp.up_proj.weight": (MLP, H),
    "midlayer.mlp.down_proj.weight": (H, MLP),
    "midlayer.hidden_norm.weight": (H,),
    "midlayer.input_layernorm.weight": (H,),
    "midlayer.post_attention_layernorm.weight": (H,),
    "norm.weight": (H,),
    "fc.weight": (H, 3 * H),
    "lm_head.weight": (DRAFT, H),
}
# The keys of SafeAILab/EAGLE eagle/traineagle3/config.json @9666a81, in small.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": H,
    "initializer_range": 0.02,
    "intermediate_size": MLP,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": V,
    "draft_vocab_size": DRAFT,
}
TARGET = tiny_llama(layers=8)
IDS = torch.arange(3, 3 + 2 * DRAFT, 2)  # draft id d is the target's 3 + 2 d


def published() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {key: torch.randn(shape, generator=generator) * 0.3 for key, shape in SHAPES.items()}
    marked = torch.zeros(V, dtype=torch.bool)
    marked[IDS] = True
    return {**found, "d2t": IDS - torch.arange(DRAFT), "t2d": marked}


def write(folder: Path, weights: dict[str, torch.Tensor] | None = None, *, bin: bool = False, **config: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    weights = published() if weights is None else weights
    if bin:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return str(folder)


def chain(net: Any, count: int = 4) -> tuple[list[int], list[float]]:
    drafter, text = Eagle3Chain(net, TARGET, name="chain"), prompt_ids(3, 9)
    Target(TARGET).start(text, 99, drafter.tap)
    drafter.start(text, 99, KeyedDraws(0, 0), ())
    draft = drafter.propose(count, -1)
    return draft.tokens.tolist(), draft.q.tolist()


@pytest.mark.parametrize("bin", [False, True])
def test_the_references_files(tmp_path: Path, bin: bool) -> None:
    net = load_eagle3(write(tmp_path, bin=bin), TARGET)
    assert net.config.target_layers == (1, 3, 4)
    tokens, q = chain(net)
    slow = SlowHead(net, TARGET.get_input_embeddings().weight)
    wanted = slow_chain(slow, prompt_ids(3, 9).tolist(), features_of(TARGET, prompt_ids(3, 9)), 4)
    assert tokens == [token for token, _ in wanted]
    assert q == pytest.approx([p for _, p in wanted], rel=1e-4)
    assert set(tokens) <= set(IDS.tolist())
    assert not any(weights.requires_grad for weights in net.parameters())


def test_speculators_files_are_the_same_head(tmp_path: Path) -> None:
    renamed = {key.replace("midlayer.", "layers.0."): value for key, value in published().items()}
    sizes = {key: CONFIG[key] for key in CONFIG if key not in ("draft_vocab_size", "architectures")}
    folder = tmp_path / "speculators"
    write(folder, renamed)
    described = {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": sizes,
        "draft_vocab_size": DRAFT,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    }
    (folder / "config.json").write_text(json.dumps(described))
    ours, theirs = load_eagle3(write(tmp_path / "reference"), TARGET), load_eagle3(str(folder), TARGET)
    assert theirs.config.target_layers == (1, 3, 4)
    assert chain(theirs) == chain(ours)


def test_layers_named_by_sglang_are_outputs(tmp_path: Path) -> None:
    named = {"eagle_aux_hidden_state_layer_ids": [0, 2, 7], "use_aux_hidden_state": True}
    assert load_eagle3(write(tmp_path, eagle_config=named), TARGET).config.target_layers == (0, 2, 7)


def test_own_embeddings_are_used(tmp_path: Path) -> None:
    weights = published()
    weights["embed_tokens.weight"] = torch.randn(V, H, generator=torch.Generator().manual_seed(1))
    own = load_eagle3(write(tmp_path / "own", weights), TARGET)
    assert chain(own) != chain(load_eagle3(write(tmp_path / "target"), TARGET))


def test_a_head_over_the_whole_vocabulary_needs_no_mapping(tmp_path: Path) -> None:
    weights = {key: value for key, value in published().items() if key not in ("d2t", "t2d")}
    weights["lm_head.weight"] = torch.randn(V, H)
    net = load_eagle3(write(tmp_path, weights, draft_vocab_size=V), TARGET)
    assert net.target_ids.tolist() == list(range(V))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    net = random_head(tiny_config(norm_before_residual=True, target_layers=(0, 3, 6)), seed=2)
    save_eagle3(net, tmp_path / "exact", dtype=torch.float32)
    again = load_eagle3(str(tmp_path / "exact"), TARGET)
    assert again.config.target_layers == (0, 3, 6)
    assert chain(again) == chain(net)
    save_eagle3(net, tmp_path / "short")
    short = load_eagle3(str(tmp_path / "short"), TARGET)
    assert chain(short)[1] == pytest.approx(chain(net)[1], rel=0.1)
    assert load_eagle3(str(tmp_path / "short"), TARGET, dtype=torch.bfloat16).fc.weight.dtype == torch.bfloat16


def without(key: str) -> dict[str, torch.Tensor]:
    return {name: value for name, value in published().items() if name != key}


def changed(key: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**published(), key: value}


def repeated() -> torch.Tensor:
    shifts = published()["d2t"].clone()
    shifts[1] = shifts[0] - 1
    return shifts


@pytest.mark.parametrize(
    ("weights", "config", "message"),
    [
        *((without(key), {}, f"lacks {key};") for key in (*SHAPES, "d2t", "t2d")),
        (
            changed("midlayer.self_attn.q_proj.bias", torch.zeros(32)),
            {},
            "has besides what .* midlayer.self_attn.q_proj.bias;",
        ),
        (
            changed("fc.weight", torch.zeros(H, H)),
            {},
            r"fc.weight has shape \[32, 32\], its config.json makes it \[32, 96\]",
        ),
        (changed("d2t", IDS.clone()), {}, r"d2t sends draft id 21 to 66; allowed: 0\.\.63"),
        (changed("d2t", repeated()), {}, "d2t sends 24 draft ids to 23 tokens"),
        (changed("t2d", torch.zeros(V, dtype=torch.bool)), {}, "t2d does not mark"),
        (None, {"intermediate_size": 40}, r"has shape \[.*48.*\], its config.json makes it \[.*40.*\]"),
        (None, {"vocab_size": 65}, "vocab_size 65, this one has 64"),
        (None, {"target_hidden_size": 48}, "needs embed_tokens.weight of its own"),
        (changed("embed_tokens.weight", torch.zeros(V, H)), {"target_hidden_size": 48}, "target 48, this one has 32"),
        (None, {"num_hidden_layers": 2}, "2 layers: allowed: 1"),
        (None, {"attention_bias": True}, "biases"),
        (None, {"fc_norm": True}, "fc_norm True: allowed: False"),
        (None, {"use_sliding_window": True}, "use_sliding_window True: allowed: False"),
        (None, {"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm False: allowed: True"),
        (None, {"eagle_config": {"parallel_draft_step": 2}}, "eagle_config: 'parallel_draft_step' is not known"),
        (None, {"num_anchors": 3}, "config.json: 'num_anchors' is not known"),
        (None, {"hidden_size": None}, "lacks hidden_size"),
        (None, {"draft_vocab_size": None}, "lacks draft_vocab_size"),
        (None, {"rope_scaling": {"rope_type": "spiral"}}, "rope_type 'spiral': allowed: default, linear"),
        (None, {"model_type": "qwen3"}, "model_type 'qwen3': allowed: llama"),
        (
            None,
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type 'dynamic': allowed: default, linear",
        ),
        (None, {"draft_vocab_size": 0}, r"config.json: draft_vocab_size 0: allowed: a whole number, 1\.\."),
        (None, {"draft_vocab_size": 65}, r"draft_vocab_size 65: allowed: 1\.\.64"),
        (None, {"num_key_value_heads": 3}, "num_key_value_heads 3: allowed: a divisor of 4 attention heads"),
        (None, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 8]}}, r"the target has layers 0\.\.7"),
        (None, {"eagle_aux_hidden_state_layer_ids": [0, 4, 5]}, r"outputs of layers \[-1, 3, 4\]"),
        (None, {"eagle_aux_hidden_state_layer_ids": 3}, "layer_ids 3: allowed: a list"),
        (None, {"eagle_aux_hidden_state_layer_ids": ["a"]}, r"layer_ids \['a'\]: allowed: a list"),
        (None, {"eagle_config": ["x"]}, r"eagle_config is \['x'\]; allowed: an object"),
        (None, {"hidden_act": "swoosh"}, "hidden_act 'swoosh': allowed"),
        (None, {"hidden_size": "x"}, "hidden_size 'x': allowed: a whole number"),
        (None, {"num_attention_heads": 5}, "cannot be read as a Llama config .*attention heads"),
        (None, {"draft_vocab_size": "x"}, "draft_vocab_size 'x': allowed: a whole number"),
    ],
)
def test_refused(tmp_path: Path, weights: Any, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_eagle3(write(tmp_path, weights, **config), TARGET)


def test_files_that_are_not_weights(tmp_path: Path) -> None:
    folder = Path(write(tmp_path))
    (folder / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_eagle3(str(folder), TARGET)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor .* nor pytorch_model\.bin"):
        load_eagle3(str(folder), TARGET)

    class Code:
        def __reduce__(self) -> tuple[Any, Any]:
            return print, ("the file's own code ran",)

    torch.save({"fc.weight": Code()}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_eagle3(str(folder), TARGET)
    torch.save([torch.zeros(1)], folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="holds a list, not tensors by name"):
        load_eagle3(str(folder), TARGET)
