"""The DFlash network: context cached or not, many blocks in one pass or each alone, windows, options, vocabularies."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.cache import KVCache  # noqa: E402
from real.drafters.dflash import first_choice, full_width  # noqa: E402
from real.drafters.dflash_net import DFlashNetwork, default_target_layers, embedding_of, head_of  # noqa: E402
from tests.dflash_tiny import features_of, tiny_config, tiny_dflash  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402

CLOSE = {"atol": 1e-5, "rtol": 1e-4}
SLIDING = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 3}
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": SLIDING,
    "sliding, not causal": SLIDING | {"is_causal": False},
    "causal": {"is_causal": True},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def at(network: DFlashNetwork, model: Any, text: torch.Tensor, place: int, masks: int) -> torch.Tensor:
    """float[1 + masks, H] of a block after `place` tokens, alone and without a cache."""
    features = features_of(model, text, network.config.target_layer_ids)[:, : place - 1]
    return network(
        network.noise(text[place - 1 : place], 1 + masks, embedding_of(network, model)),
        network.context(features),
        context_positions=torch.arange(place - 1),
        block_positions=torch.arange(place - 1, place + masks),
    )[0]


@pytest.mark.parametrize("kind", KINDS)
def test_context_in_a_cache_is_context_given_again(kind: str) -> None:
    """Whatever the pieces it arrives in, blocks in between included."""
    model, text = tiny_llama(), prompt_ids(3, 20)
    network = tiny_dflash(model, **KINDS[kind])
    context = network.context(features_of(model, text, network.config.target_layer_ids))
    cache = KVCache(64)
    network.absorb(context[:, :4], cache)
    for held, place in ((4, 8), (7, 9), (8, 9), (8, 17)):
        hidden = network(
            network.noise(text[place - 1 : place], 5, embedding_of(network, model)),
            context[:, held : place - 1],
            context_positions=torch.arange(held, place - 1),
            block_positions=torch.arange(place - 1, place + 4),
            cache=cache,
        )[0]
        assert cache.length == place - 1
        torch.testing.assert_close(hidden, at(network, model, text, place, 4), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_many_blocks_in_one_pass_are_each_alone(kind: str) -> None:
    """As training runs them: [context of the whole text; block; block; ...] and a mask."""
    model, text, masks = tiny_llama(), prompt_ids(4, 18), 3
    network, places = tiny_dflash(model, **KINDS[kind]), torch.tensor([2, 5, 5, 9, 18])
    anchors, own = places - 1, torch.arange(5).repeat_interleave(1 + masks)
    blocks = network.noise(text[anchors], 1 + masks, embedding_of(network, model))
    before = torch.arange(18)[None] < anchors[own][:, None]
    visible = torch.cat([before, own[:, None] == own[None, :]], dim=1)
    hidden = network(
        blocks.flatten(0, 1)[None],
        network.context(features_of(model, text, network.config.target_layer_ids)),
        context_positions=torch.arange(18),
        block_positions=(anchors[:, None] + torch.arange(1 + masks)).flatten(),
        visible=visible,
    )[0]
    for number, place in enumerate(places.tolist()):
        found = hidden[number * (1 + masks) : (number + 1) * (1 + masks)]
        torch.testing.assert_close(found, at(network, model, text, place, masks), **CLOSE)


def test_two_texts_in_one_batch_are_each_alone() -> None:
    model, texts = tiny_llama(), torch.stack([prompt_ids(5, 9), prompt_ids(6, 9)])
    network = tiny_dflash(model, **SLIDING)
    features = torch.cat([features_of(model, text, (0, 2)) for text in texts])
    hidden = network(
        network.noise(texts[:, -1], 4, embedding_of(network, model)),
        network.context(features[:, :-1]),
        context_positions=torch.arange(8),
        block_positions=torch.arange(8, 12),
    )
    for row, text in zip(hidden, texts, strict=True):
        torch.testing.assert_close(row, at(network, model, text, 9, 3), **CLOSE)


@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_what_a_block_sees(kind: str) -> None:
    """A full layer sees all of the text; a window of 3 does not see what lies 3 or more behind the block's first slot.

    Two layers, the second one full, so the sliding network is asked for with both layers sliding."""
    model, text = tiny_llama(), prompt_ids(7, 12)
    more = {} if kind == "full" else {"layer_types": ("sliding_attention",) * 2, "sliding_window": 3}
    network = tiny_dflash(model, **more)
    features = features_of(model, text, (0, 2))[:, :-1]

    def hidden(features: torch.Tensor) -> torch.Tensor:
        return network(
            network.noise(text[-1:], 4, embedding_of(network, model)),
            network.context(features),
            context_positions=torch.arange(11),
            block_positions=torch.arange(11, 15),
        )

    before = hidden(features)
    changed = features.clone()
    changed[:, :9] += 1.0  # positions 0..8; the anchor is at 11 and sees 9, 10, 11 in its window
    assert torch.equal(hidden(changed), before) == (kind == "sliding")
    changed = features.clone()
    changed[:, 9] += 1.0
    assert not torch.equal(hidden(changed), before)


def test_output_options() -> None:
    model, weight = tiny_llama(), torch.eye(32)
    network = tiny_dflash(model, input_embedding_scale=3.0, output_multiplier=0.5, final_logit_softcapping=2.0)
    hidden = torch.tensor([[8.0] * 32])
    torch.testing.assert_close(network.logits(hidden, weight), 2 * torch.tanh(torch.full((1, 32), 2.0)))
    embedding = embedding_of(network, model)
    noise = network.noise(torch.tensor([[5], [6]]), 3, embedding)
    assert noise.shape == (2, 1, 3, 32)
    torch.testing.assert_close(noise[1, 0], 3.0 * embedding[[6, 0, 0]])


def test_a_reduced_vocabulary_drafts_kept_ids_only() -> None:
    model = tiny_llama()
    network = tiny_dflash(model, kept_vocab=3)
    network.kept_ids = torch.tensor([60, 7, 9])
    weight, bias = head_of(network, model)
    assert bias is None
    assert torch.equal(weight, model.lm_head.weight[[60, 7, 9]])
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    tokens, q = first_choice(network, logits)
    assert tokens.tolist() == [7, 60]
    torch.testing.assert_close(q, logits.softmax(-1).max(-1).values)
    wide = full_width(network, logits)
    assert wide.shape == (2, 64)
    torch.testing.assert_close(wide.softmax(-1)[:, [60, 7, 9]], logits.softmax(-1))


def test_own_parts() -> None:
    """A narrower network with embedding, head and mask vector of its own reads the target's hidden states only."""
    model, text = tiny_llama(), prompt_ids(8, 6)
    own = {"own_embedding": True, "own_head": True, "own_mask": True, "mask_token_id": None, "kept_vocab": 10}
    network = tiny_dflash(model, hidden_size=16, target_hidden_size=32, **own)
    assert embedding_of(network, model).shape == (64, 16)
    assert head_of(network, model)[0].shape == (10, 16)
    noise = network.noise(text[-1:], 3, embedding_of(network, model))
    assert network.mask_embedding is not None
    assert torch.equal(noise[0, 2], network.mask_embedding)
    assert at(network, model, text, 6, 2).shape == (3, 16)


def test_weights_are_drawn_from_the_global_generator() -> None:
    model = tiny_llama()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one = DFlashNetwork(tiny_config(model))
        torch.manual_seed(0)
        two = DFlashNetwork(tiny_config(model))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert float(one.fc.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_layers_to_read() -> None:
    assert default_target_layers(36, 5) == (1, 9, 17, 25, 33)
    assert default_target_layers(30, 1) == (15,)
    assert default_target_layers(6, 3) == (1, 2, 3)
    assert default_target_layers(3, 2) == (1, 0)


def test_below_float32_rotary_angles_stay_exact() -> None:
    """Frequencies are no buffer that `to(bfloat16)` would round: at position 5,000 that would be another angle."""
    network = tiny_dflash(tiny_llama()).to(torch.bfloat16)
    cos, _ = network._rotary(torch.tensor([[5000]]), torch.float32)
    assert float(cos[0, 0, 0]) == pytest.approx(float(torch.cos(torch.tensor(5000.0))), abs=1e-6)
