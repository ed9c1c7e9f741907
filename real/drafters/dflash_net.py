"""The DFlash drafter network: a block of masked tokens denoised in one pass, given hidden states of the target.

    features = hidden states of the target after `target_layer_ids`, concatenated, one row per verified token
    context  = network.context(features)
    block    = network.noise(anchor, 1 + masks, embedding)        slot 0 is the last committed token
    hidden   = network(block, context, context_positions=..., block_positions=...)
    logits   = network.logits(hidden[:, 1:], *head)               slot k predicts its own token, nothing is shifted

Every layer's keys and values are those of the context followed by those of the block ("KV injection"); queries are the
block's alone, and a block token sees all of the context and all of the block, unless told otherwise. So a pass over
many blocks of one text (training, recording) is a pass over one long block with a mask (`visible`).

Source: DFlash (arXiv 2602.06036); z-lab/dflash, dflash/model.py at commit 1012959 (options `input_embedding_scale`,
`output_multiplier`, `final_logit_softcapping` and the sliding-window layers included). Parameter names are those of
the published checkpoints (z-lab/Qwen3-4B-DFlash-b16 and its like): `fc`, `hidden_norm`, `layers.N.*`, `norm`, and
neither embedding nor head, which are the target's. Own embedding, head, mask vector and reduced vocabulary exist in no
published checkpoint; they are ours, for drafters trained here, and off by default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from real.cache import SLIDING, KVCache

INITIAL_SPREAD = 0.02
Rotary = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class DFlashConfig:
    """Shape and options of a network; `real.drafters.dflash_load` reads them from a checkpoint's config.json.

    Args:
        vocab_size: ids of the target's logits.
        hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
            rms_norm_eps, attention_bias, hidden_act, max_position_embeddings: as in transformers' Qwen3.
        rope_parameters: `rope_type`, `rope_theta` and what the type needs besides (transformers).
        layer_types: `full_attention` or `sliding_attention` of each layer; empty: all full.
        sliding_window: tokens a sliding layer looks back, itself included.
        is_causal: whether block tokens are hidden from earlier ones; None: in sliding layers only.
        block_size: slots of a block as trained, the anchor included: `block_size` - 1 tokens are drafted.
        mask_token_id: the token of the other slots; None with `own_mask`.
        target_layer_ids: 0-based layers of the target whose output is read, in the order of concatenation.
        num_target_layers: layers of the target it was trained for.
        target_hidden_size: width of the target's hidden states; None: `hidden_size`.
        input_embedding_scale: factor of the block's embeddings.
        output_multiplier, final_logit_softcapping: of the logits; 0: no cap.
        own_embedding, own_head: `embed_tokens` and `lm_head` of its own instead of the target's.
        own_mask: a learned vector, `mask_embedding`, in the masked slots.
        kept_vocab: ids it drafts, listed in the buffer `kept_ids`; None: all.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    block_size: int = 16
    mask_token_id: int | None = None
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    hidden_act: str = "silu"
    max_position_embeddings: int = 32_768
    rope_parameters: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10_000.0})
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    is_causal: bool | None = None
    target_hidden_size: int | None = None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float = 0.0
    own_embedding: bool = False
    own_head: bool = False
    own_mask: bool = False
    kept_vocab: int | None = None

    @property
    def feature_size(self) -> int:
        """Width of a feature row."""
        return len(self.target_layer_ids) * (self.target_hidden_size or self.hidden_size)

    def window(self, layer: int) -> int | None:
        """Tokens layer `layer` looks back; None: all."""
        sliding = bool(self.layer_types) and self.layer_types[layer] == SLIDING
        return self.sliding_window if sliding else None

    def causal(self, layer: int) -> bool:
        """Whether block tokens of layer `layer` see no later ones."""
        if self.is_causal is not None:
            return self.is_causal
        return bool(self.layer_types) and self.layer_types[layer] == SLIDING

    def as_qwen3(self) -> Qwen3Config:
        """What transformers' layers are built from."""
        return Qwen3Config(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps,
            hidden_act=self.hidden_act,
            max_position_embeddings=self.max_position_embeddings,
            rope_parameters=dict(self.rope_parameters),
        )


def default_target_layers(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """Layers to read when a checkpoint does not say: spread evenly from 1 to layers - 3, or the middle one for one.

    Ids repeat when the target has fewer layers than that takes. Source: z-lab/dflash, model/utils.py at commit
    44947fb (`build_target_layer_ids`); halves are rounded to even.
    """
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_draft_layers - 1)
    return tuple(round(1 + i * step) for i in range(num_draft_layers))


class DFlashAttention(nn.Module):
    """Attention of block queries over context and block, with a norm of each head's queries and keys."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.grouped = config.num_attention_heads != config.num_key_value_heads
        inner, outer = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, outer, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, outer, bias=config.attention_bias)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=config.attention_bias)
        self.q_norm = Qwen3RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def keys_values(self, states: torch.Tensor, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor]:
        """float[B, kv_heads, N, head_dim] keys and values of float[B, N, H] states."""
        keys = self.k_norm(self._heads(self.k_proj(states))).transpose(1, 2)
        return _rotate(keys, rotary), self._heads(self.v_proj(states)).transpose(1, 2)

    def forward(
        self,
        block: torch.Tensor,
        rotary: Rotary,
        keys: torch.Tensor,
        values: torch.Tensor,
        visible: torch.Tensor | None,
    ) -> torch.Tensor:
        """float[B, S, H] from float[B, S, H] block states; `visible` bool[B or 1, 1, S, K], None: everything."""
        queries = self.q_norm(self._heads(self.q_proj(block))).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            _rotate(queries, rotary), keys, values, attn_mask=visible, enable_gqa=self.grouped
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (-1, self.head_dim))


class DFlashLayer(nn.Module):
    """One decoder layer; the context goes into its keys and values as it is, the block through the layer's norm."""

    def __init__(self, config: DFlashConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.self_attn = DFlashAttention(config)
        self.mlp = Qwen3MLP(config.as_qwen3())
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        block: torch.Tensor,
        context: torch.Tensor,
        rotary: Rotary,
        visible: torch.Tensor | None,
        cache: KVCache | None,
    ) -> torch.Tensor:
        """float[B, S, H]; `rotary` is of context and block together, the rest as for `DFlashNetwork.forward`."""
        new, attention = context.shape[1], self.self_attn
        normed = self.input_layernorm(block)
        keys, values = attention.keys_values(torch.cat([context, normed], dim=1), rotary)
        if cache is not None:
            keys, values = cache.update(keys, values, self.index)
        own = (rotary[0][:, new:], rotary[1][:, new:])
        block = block + attention(normed, own, keys, values, visible)
        return block + self.mlp(self.post_attention_layernorm(block))


class DFlashNetwork(nn.Module):
    """The network; see the module's text for its use.

    Args:
        config: shape and options. Weights are drawn from torch's generator (normal, 0.02).
    """

    kept_ids: torch.Tensor | None

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList([DFlashLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        kept = config.kept_vocab
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if config.own_embedding else None
        self.lm_head = nn.Linear(config.hidden_size, kept or config.vocab_size, bias=False) if config.own_head else None
        self.mask_embedding = nn.Parameter(torch.empty(config.hidden_size)) if config.own_mask else None
        self.register_buffer("kept_ids", None if kept is None else torch.arange(kept))
        self._frequencies, self._rope_scale = _rope(config)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=INITIAL_SPREAD)
        if self.mask_embedding is not None:
            nn.init.normal_(self.mask_embedding, std=INITIAL_SPREAD)

    def context(self, features: torch.Tensor) -> torch.Tensor:
        """float[..., H] context vectors of float[..., feature_size] target features."""
        return self.hidden_norm(self.fc(features))

    def noise(self, anchors: torch.Tensor, size: int, embedding: torch.Tensor) -> torch.Tensor:
        """Blocks to denoise: the anchor's embedding, then the mask's.

        Args:
            anchors: int64[...], the last committed token of each block.
            size: slots, the anchor's included.
            embedding: float[V, H], from `embedding_of`.

        Returns:
            float[..., size, H].
        """
        if self.mask_embedding is None:
            assert self.config.mask_token_id is not None
            mask = embedding[self.config.mask_token_id]
        else:
            mask = self.mask_embedding
        first = F.embedding(anchors, embedding)[..., None, :]
        masks = mask.expand(*anchors.shape, size - 1, -1)
        return torch.cat([first, masks], dim=-2) * self.config.input_embedding_scale

    def absorb(self, context: torch.Tensor, cache: KVCache) -> None:
        """Append the keys and values of float[1, C, H] context vectors to a cache, without a block."""
        if not context.shape[1]:
            return
        positions = torch.arange(cache.length, cache.length + context.shape[1], device=context.device)
        rotary = self._rotary(positions[None], context.dtype)
        for layer in self.layers:
            assert isinstance(layer, DFlashLayer)
            cache.update(*layer.self_attn.keys_values(context, rotary), layer.index)

    def forward(
        self,
        noise_embeddings: torch.Tensor,
        context: torch.Tensor,
        *,
        context_positions: torch.Tensor,
        block_positions: torch.Tensor,
        visible: torch.Tensor | None = None,
        cache: KVCache | None = None,
    ) -> torch.Tensor:
        """Denoise blocks.

        Args:
            noise_embeddings: float[B, S, H], one block or several behind each other, from `noise`.
            context: float[B, C, H] context vectors that are not in the cache yet; C may be 0.
            context_positions: int64[C] or [B, C] places of those in the text.
            block_positions: int64[S] or [B, S].
            visible: bool[S, K] or [B, S, K], K = cached + C + S, whom each block token sees: cached context, new
                context, block tokens. Default: all. Sliding and causal layers see less of it.
            cache: context of earlier passes (B = 1), its entry i being position i of the text. Longer by C afterwards:
                the block leaves nothing behind.

        Returns:
            float[B, S, H], after the final norm.
        """
        batch, new = context.shape[:2]
        past = 0 if cache is None else cache.length
        before = context_positions.expand(batch, -1), block_positions.expand(batch, -1)
        positions = torch.cat(before, dim=1)
        rotary = self._rotary(positions, noise_embeddings.dtype)
        slots = torch.cat([torch.arange(past, device=positions.device).expand(batch, -1), positions], dim=1)
        if visible is not None and visible.dim() == 2:
            visible = visible[None]
        masks: dict[tuple[int | None, bool], torch.Tensor | None] = {}
        hidden = noise_embeddings
        for index, layer in enumerate(self.layers):
            kind = (self.config.window(index), self.config.causal(index))
            if kind not in masks:
                masks[kind] = _narrowed(visible, before[1], slots, *kind)
            hidden = layer(hidden, context, rotary, masks[kind], cache)
        if cache is not None:
            cache.crop_to(past + new)
        return self.norm(hidden)

    def logits(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """float[..., R] logits of the R ids the network drafts, from its hidden states and `head_of`."""
        scores = F.linear(hidden, weight, bias)
        if self.config.output_multiplier != 1.0:
            scores = scores * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return torch.tanh(scores / cap) * cap if cap > 0 else scores

    def ids_of(self, places: torch.Tensor) -> torch.Tensor:
        """int64[...] the target's ids of int64[...] places among the R ids the network drafts."""
        return places if self.kept_ids is None else self.kept_ids[places]

    def _rotary(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotary:
        """Cosines and sines, [B, N, head_dim] each, computed in float32 whatever the network's dtype."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        angles = positions[..., None].float() * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return (angles.cos() * self._rope_scale).to(dtype), (angles.sin() * self._rope_scale).to(dtype)


def embedding_of(network: DFlashNetwork, target: Any) -> torch.Tensor:
    """float[V, H] embeddings of the block's tokens: the network's own, else the target model's, unscaled."""
    owner = target.get_input_embeddings() if network.embed_tokens is None else network.embed_tokens
    return owner.weight


def head_of(network: DFlashNetwork, target: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """float[R, H] rows and float[R] bias or None of the head: the network's own, else the target model's kept rows."""
    if network.lm_head is not None:
        return network.lm_head.weight, None
    head = target.get_output_embeddings()
    weight, bias = head.weight, getattr(head, "bias", None)
    kept = network.kept_ids
    if kept is None:
        return weight, bias
    return weight[kept], None if bias is None else bias[kept]


def _rope(config: DFlashConfig) -> tuple[torch.Tensor, float]:
    """float32[head_dim / 2] rotary frequencies, and the factor of cosines and sines."""
    kind = config.rope_parameters.get("rope_type", "default")
    if kind == "default":
        halves = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / config.rope_parameters["rope_theta"] ** halves, 1.0
    with torch.device("cpu"):  # also where an outline of the network is made without values
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config.as_qwen3(), torch.device("cpu"))
    return frequencies, float(scale)


def _rotate(states: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotary position embedding of float[B, heads, N, head_dim]."""
    cos, sin = rotary[0][:, None], rotary[1][:, None]
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-second, first], dim=-1) * sin


def _narrowed(
    visible: torch.Tensor | None, block: torch.Tensor, slots: torch.Tensor, window: int | None, causal: bool
) -> torch.Tensor | None:
    """bool[B or 1, 1, S, K]: `visible` less what a layer's window and causality hide; None: everything is seen."""
    if window is not None or causal:
        behind = block[:, :, None] - slots[:, None, :]  # how far behind the query each slot lies
        seen = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
        if window is not None:
            seen = seen & (behind.abs() < window)
        visible = seen if visible is None else visible & seen
    return None if visible is None else visible[:, None]
