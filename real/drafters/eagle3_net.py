"""The EAGLE-3 head: one decoder layer on the target's own features (Li et al. 2025, arXiv 2503.01840, section 3).

Owns the network, its sizes and the reduced vocabulary; nothing here knows files, decoding or training losses.

Entry i of the head's sequence holds the target's features of token i, fused to one hidden state, and the embedding of
token i + 1; its output predicts token i + 2 and is, before the final norm, the hidden state of the next entry where the
target's features are not known yet. Checked against SafeAILab/EAGLE eagle/model/cnets.py @148042c (inference: classes
LlamaDecoderLayeremb and Model), sgl-project/SpecForge specforge/modeling/draft/llama3_eagle.py @01dd714 (training, with
the same key names) and vllm-project/speculators src/speculators/models/eagle3/model_definitions.py @08af5f4
(`norm_before_residual`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, rotate_half

from real.drafters.config_values import ROPE_TYPES, check_heads
from specsim.errors import ConfigError


def default_layers(n_layers: int) -> tuple[int, ...]:
    """Decoder layers (0-based) of the target whose outputs the head reads: low, middle, high.

    The reference takes the states that enter layers 2, L // 2 and L - 3 (SafeAILab/EAGLE
    eagle/model/modeling_qwen3_kv.py @2bae8c9, Qwen3Model.forward): the outputs of layers 1, L // 2 - 1 and L - 4.

    Raises:
        ConfigError: a target of fewer than 7 layers, where these are not three different ones.
    """
    if n_layers < 7:
        raise ConfigError(
            f"a target of {n_layers} layers: the three layers EAGLE-3 reads coincide; allowed: 7 or more, or name them "
            "in the head's config.json (eagle_config.eagle_aux_hidden_state_layer_ids)"
        )
    return 1, n_layers // 2 - 1, n_layers - 4


@dataclass(frozen=True, kw_only=True)
class Eagle3Config:
    """Sizes of a head.

    Args:
        layer: sizes, norm epsilon, activation and rotary settings of the decoder layer; `vocab_size` is the target's.
        draft_vocab_size: token ids the head can propose.
        target_hidden_size: width of the target's hidden states.
        target_layers: 0-based decoder layers of the target whose outputs are read, in the order of concatenation.
        norm_before_residual: the residual is the normed hidden state (speculators), not the hidden state itself.
        own_embedding: the head has token embeddings of its own instead of the target's.

    Raises:
        ConfigError: a head this network is not: more than one layer, biases, another rotary embedding or activation,
            sizes that do not fit each other.
    """

    layer: LlamaConfig
    draft_vocab_size: int
    target_hidden_size: int
    target_layers: tuple[int, ...]
    norm_before_residual: bool = False
    own_embedding: bool = False

    def __post_init__(self) -> None:
        layer: Any = self.layer
        if layer.num_hidden_layers != 1:
            raise ConfigError(f"an EAGLE-3 head of {layer.num_hidden_layers} layers: allowed: 1")
        if layer.attention_bias or layer.mlp_bias:
            raise ConfigError("an EAGLE-3 head with biases (attention_bias or mlp_bias): allowed: without")
        kind = (layer.rope_parameters or {}).get("rope_type", "default")
        if kind not in ROPE_TYPES:
            raise ConfigError(f"an EAGLE-3 head with rotary embedding {kind!r}: allowed: {', '.join(ROPE_TYPES)}")
        if layer.hidden_act not in ACT2FN:
            raise ConfigError(f"an EAGLE-3 head with hidden_act {layer.hidden_act!r}: allowed: those of transformers")
        if not 1 <= self.draft_vocab_size <= layer.vocab_size:
            raise ConfigError(
                f"draft_vocab_size {self.draft_vocab_size}: allowed: 1..{layer.vocab_size} (the target's vocab_size)"
            )
        check_heads(
            hidden_size=layer.hidden_size,
            heads=layer.num_attention_heads,
            shared=layer.num_key_value_heads,
            head_dim=layer.head_dim,
            where="an EAGLE-3 head",
        )
        if self.target_hidden_size != layer.hidden_size and not self.own_embedding:
            raise ConfigError(
                f"a head of width {layer.hidden_size} for a target of width {self.target_hidden_size} cannot use the "
                "target's embeddings; it needs embed_tokens.weight of its own"
            )


class Keys(Protocol):
    """Where keys and values go: `real.cache.KVCache` when decoding, `GrowingKeys` when training."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Append float[B, heads, new, head_dim]; all that is held now, float[B, heads, past + new, head_dim]."""
        ...


class GrowingKeys:
    """Keys and values that gradients flow through."""

    def __init__(self) -> None:
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._held is not None:
            keys, values = torch.cat([self._held[0], keys], dim=2), torch.cat([self._held[1], values], dim=2)
        self._held = keys, values
        return self._held


class Eagle3Attention(nn.Module):
    """Attention whose queries, keys and values are made from an embedding and a hidden state side by side."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.head_dim = layer.head_dim or layer.hidden_size // layer.num_attention_heads
        wide, narrow = layer.num_attention_heads * self.head_dim, layer.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(2 * layer.hidden_size, wide, bias=False)
        self.k_proj = nn.Linear(2 * layer.hidden_size, narrow, bias=False)
        self.v_proj = nn.Linear(2 * layer.hidden_size, narrow, bias=False)
        self.o_proj = nn.Linear(wide, layer.hidden_size, bias=False)

    def forward(
        self,
        inputs: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor | None,
        keys: Keys,
        keep: int,
    ) -> torch.Tensor:
        """float[B, keep, H] from float[B, n, 2H]; `rotary`, `visible` and `keep` as `Eagle3Net.forward` makes them."""
        query, key, value = (
            projection(rows).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection, rows in ((self.q_proj, inputs[:, -keep:]), (self.k_proj, inputs), (self.v_proj, inputs))
        )
        key, value = keys.update(_turned(key, rotary), value, 0)
        mixed = nn.functional.scaled_dot_product_attention(
            _turned(query, rotary), key, value, attn_mask=visible, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def _turned(states: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary embedding of float[B, heads, m, head_dim], at the last m of the places the angles are for."""
    cosines, sines = (part[:, None, -states.shape[2] :] for part in rotary)
    return states * cosines + rotate_half(states) * sines


class Eagle3Layer(nn.Module):
    """The decoder layer."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        layer: Any = config.layer
        self.self_attn = Eagle3Attention(layer)
        self.mlp = LlamaMLP(layer)
        self.hidden_norm, self.input_layernorm, self.post_attention_layernorm = (
            LlamaRMSNorm(layer.hidden_size, eps=layer.rms_norm_eps) for _ in range(3)
        )
        self._norm_before_residual = config.norm_before_residual

    def forward(
        self,
        hidden: torch.Tensor,
        embedded: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor | None,
        keys: Keys,
        keep: int,
    ) -> torch.Tensor:
        normed = self.hidden_norm(hidden)
        inputs = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        residual = normed if self._norm_before_residual else hidden
        hidden = residual[:, -keep:] + self.self_attn(inputs, rotary, visible, keys, keep)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Net(nn.Module):
    """The head. Parameters and buffers have the names of published checkpoints.

    Args:
        config: its sizes.

    Attributes:
        d2t: int64[draft_vocab_size]; draft id d is the target's id d + d2t[d].
        t2d: bool[vocab_size]; the target's ids that the head can propose.
        embed_tokens: own embeddings, or None: the target's are used.
    """

    d2t: torch.Tensor
    t2d: torch.Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        layer: Any = config.layer
        self.config = config
        self.fc = nn.Linear(len(config.target_layers) * config.target_hidden_size, layer.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = LlamaRMSNorm(layer.hidden_size, eps=layer.rms_norm_eps)
        self.lm_head = nn.Linear(layer.hidden_size, config.draft_vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(layer.vocab_size, layer.hidden_size) if config.own_embedding else None
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(layer.vocab_size, dtype=torch.bool))
        with torch.device("cpu"):  # also where an outline of the network is made without values
            rotary: Any = LlamaRotaryEmbedding(layer)
        # Not a buffer: a cast to bfloat16 would round the frequencies, and positions far out would blur.
        self._frequencies, self._rotary_scale = rotary.inv_freq.float(), float(rotary.attention_scaling)

    def set_vocabulary(self, target_ids: torch.Tensor) -> None:
        """Let draft id d stand for `target_ids[d]` (int64[draft_vocab_size], different ids of the target)."""
        self.d2t.copy_(target_ids.to(self.d2t.device) - torch.arange(len(self.d2t), device=self.d2t.device))
        self.t2d.zero_()[target_ids.to(self.t2d.device)] = True

    @property
    def target_ids(self) -> torch.Tensor:
        """int64[draft_vocab_size]: the target's id of every draft id."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Hidden states float[..., H] from the target's features float[..., layers * target_hidden_size]."""
        return self.fc(features.to(self.fc.weight.dtype))

    def forward(
        self,
        hidden: torch.Tensor,
        embedded: torch.Tensor,
        positions: torch.Tensor,
        keys: Keys,
        visible: torch.Tensor | None = None,
        keep: int = 0,
    ) -> torch.Tensor:
        """Run new entries and append their keys and values.

        Keys and values are made of an entry's input alone, so entries of which only later ones' outputs are wanted need
        no attention of their own.

        Args:
            hidden: float[B, n, H], fused features or the head's own output one entry earlier.
            embedded: float[B, n, H], embeddings of the tokens that follow.
            positions: int64[n], places in the text.
            keys: what they may look back on; longer by n afterwards.
            visible: bool[n or keep, past + n], True where a new entry sees a held or new one; None: everything.
            keep: outputs of only the last `keep` entries (0: all).

        Returns:
            float[B, n or keep, H]; `logits` of it predict the tokens after the embedded ones, and it is itself the
            hidden state of an entry for such a token.
        """
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        angles = positions[None, :, None].float() * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)
        rotary = tuple((turn * self._rotary_scale).to(hidden.dtype) for turn in (angles.cos(), angles.sin()))
        return self.midlayer(hidden, embedded.to(hidden.dtype), rotary, visible, keys, keep or hidden.shape[1])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float[..., draft_vocab_size] from outputs of `forward`."""
        return self.lm_head(self.norm(hidden))

    def unroll(
        self, features: torch.Tensor, tokens: torch.Tensor, embed: Callable[[torch.Tensor], torch.Tensor], steps: int
    ) -> Iterator[torch.Tensor]:
        """Training-time test: what the head says when it drafts from every place, for `steps` tokens in a row.

        Step j starts from its own hidden states of step j - 1; an entry sees the target's features up to where its
        draft began, and its own draft since. Reference: SpecForge, Eagle3DraftModel.backbone with `cache_hidden`.

        Args:
            features: float[B, T, layers * target_hidden_size] of T tokens.
            tokens: int64[B, T], those tokens; the drafts are the text's own tokens.
            embed: token embeddings, int64[...] -> float[..., H].
            steps: 1..T - 1.

        Yields:
            Step j = 0, 1, ...: logits float[B, T - 1 - j, draft_vocab_size]; row t is the draft begun with the
            features of token t and predicts token t + 2 + j (the last row of each step a token beyond T).
        """
        hidden, embedded = self.fuse(features[:, :-1]), embed(tokens)
        total, device = tokens.shape[1] - 1, tokens.device
        places, keys = torch.arange(total, device=device), GrowingKeys()
        visible = torch.zeros(total, 0, dtype=torch.bool, device=device)
        for step in range(steps):
            count = total - step
            rows = places[:count, None]
            seen = places <= rows if step == 0 else places[:count] == rows
            visible = torch.cat([visible[:count], seen], dim=1)
            hidden = self(hidden[:, :count], embedded[:, 1 + step :], places[:count] + step, keys, visible)
            yield self.logits(hidden)
