"""Training of a DFlash drafter (`real.drafters.dflash_net`): blocks of masks denoised at random places.

A block is its anchor's embedding and masks; it sees the context strictly before the anchor and all of itself, so all
blocks of a text are one pass with a mask. Source of the recipe: vllm-project/speculators @c05b95b (random anchors,
path-aware weights, cross-entropy); z-lab has published none.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.nn.functional as F

from real.compat import logits_width
from real.drafters.dflash import first_choice
from real.drafters.dflash_load import save_dflash
from real.drafters.dflash_net import DFlashConfig, DFlashNetwork, embedding_of, head_of
from real.target import decoder_layers
from real.training.blocks import Slots, decayed_weights, draw_anchors, path_weights, slots_at
from real.training.drafter_data import TextBatch
from real.training.drafter_module import DrafterModule
from real.training.target_states import Known


class DFlashModule(DrafterModule):
    """A DFlash network with a mask vector of its own and, if wished, a reduced head of its own.

    Args:
        target: as for `real.models.load_target`.
        layers: 0-based layers of the target whose output is read.
        block_size: slots of a block, the anchor's included.
        depth: layers of the network.
        heads, kv_heads, feed_forward: of a layer; a head has hidden size / heads entries.
        vocabulary: ids that are drafted, the most frequent ones in the texts; None: all.
        own_head: a head of its own, begun as a copy of the target's, instead of the target's.
        anchors: blocks in a text.
        weights: of slots: `path` or `exp`.
        lam: of path weights.
        gamma: of exponential ones.
        soft: share of the loss that is the divergence from the target's law instead of cross-entropy with its choice.
        memory_gb: see TargetStates.
        seed: of the initial weights.
        muon_lr, adam_lr, warmup_steps: see TrainModule.
    """

    def __init__(
        self,
        target: str = "lab",
        layers: list[int] = [3, 7, 11, 15],  # noqa: B006 - shown as the default
        block_size: int = 8,
        depth: int = 1,
        heads: int = 4,
        kv_heads: int = 4,
        feed_forward: int = 640,
        vocabulary: int | None = 1024,
        own_head: bool = True,
        anchors: int = 32,
        weights: str = "path",
        lam: float = 0.5,
        gamma: float = 4.0,
        soft: float = 0.0,
        memory_gb: float = 4.0,
        seed: int = 0,
        muon_lr: float = 0.02,
        adam_lr: float = 0.003,
        warmup_steps: int = 100,
    ) -> None:
        super().__init__(target, layers, block_size - 1, vocabulary, memory_gb, muon_lr, adam_lr, warmup_steps)
        self.anchors, self.weights, self.lam, self.gamma, self.soft = anchors, weights, lam, gamma, soft
        model = self.target
        hidden = model.get_input_embeddings().weight.shape[1]
        config = DFlashConfig(
            vocab_size=logits_width(model),
            hidden_size=hidden,
            intermediate_size=feed_forward,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=hidden // heads,
            target_layer_ids=tuple(layers),
            num_target_layers=len(decoder_layers(model)),
            block_size=block_size,
            max_position_embeddings=model.config.max_position_embeddings,
            own_mask=True,
            own_head=own_head,
            kept_vocab=vocabulary,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = DFlashNetwork(config)
        if self.net.lm_head is not None and vocabulary is None:
            self.net.lm_head.weight.data.copy_(model.get_output_embeddings().weight)

    def keep(self, ids: torch.Tensor) -> None:
        assert self.net.kept_ids is not None
        self.net.kept_ids.copy_(ids)
        if self.net.lm_head is not None:
            self.net.lm_head.weight.data.copy_(self.target.get_output_embeddings().weight[ids])

    def logits(self, known: Known, slots: Slots) -> torch.Tensor:
        """float[B, A, S, R] logits of the slots of every anchor."""
        batch, anchors = slots.anchors.shape
        size, length = slots.labels.shape[2] + 1, known.ids.shape[1]
        device = known.ids.device
        context = self.net.context(known.features.to(self.net.fc.weight.dtype))
        block = self.net.noise(known.ids.gather(1, slots.anchors), size, embedding_of(self.net, self.target))
        own = torch.arange(anchors, device=device).repeat_interleave(size)
        before = torch.arange(length, device=device) < slots.anchors[:, own, None]
        visible = torch.cat([before, (own[:, None] == own).expand(batch, -1, -1)], dim=2)
        hidden = self.net(
            block.flatten(1, 2),
            context,
            context_positions=torch.arange(length, device=device),
            block_positions=(slots.anchors[:, :, None] + torch.arange(size, device=device)).flatten(1),
            visible=visible,
        )
        return self.net.logits(hidden.unflatten(1, (anchors, size))[:, :, 1:], *head_of(self.net, self.target))

    def training_step(self, batch: TextBatch, batch_idx: int) -> torch.Tensor:
        known = self.known(batch)
        slots = slots_at(known, draw_anchors(known, self.anchors, self.draws(batch)), self.block)
        logits = self.logits(known, slots).float()
        labels, inside = drafted_ids(slots.labels, self.net.kept_ids)
        loss = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(labels.shape)
        right = torch.where(inside, (-loss.detach()).exp(), 0.0)
        path = self.weights == "path"
        weights = path_weights(right, slots.valid, self.lam) if path else decayed_weights(slots.valid, self.gamma)
        loss = loss * inside
        if self.soft:
            loss = (1 - self.soft) * loss + self.soft * self._divergence(known, slots, logits)
        total = (weights * loss).sum() / weights.sum().clamp(min=1e-6)
        self.log("train/loss", total.detach())
        self.log("train/right", (right * slots.valid).sum() / slots.valid.sum())
        return total

    def drafts(self, known: Known, slots: Slots) -> torch.Tensor:
        return first_choice(self.net, self.logits(known, slots))[0]

    def export(self, folder: Path) -> None:
        save_dflash(folder, copy.deepcopy(self.net).to(torch.bfloat16))

    def _divergence(self, known: Known, slots: Slots, logits: torch.Tensor) -> torch.Tensor:
        """float[B, A, S]: cross-entropy of the drafter under the target's law, over the ids that are drafted."""
        rows = torch.arange(len(known.ids), device=known.ids.device)[:, None, None]
        with torch.no_grad():
            law = self.target.get_output_embeddings()(known.last[rows, slots.places].float()).softmax(dim=-1)
            law = law if self.net.kept_ids is None else law[..., self.net.kept_ids]
        return -(law * logits.log_softmax(dim=-1)).sum(dim=-1)


def drafted_ids(labels: torch.Tensor, kept: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Target ids as places among the kept ones, which ascend; and which of them are kept (others get any place)."""
    if kept is None:
        return labels, torch.ones_like(labels, dtype=torch.bool)
    places = torch.searchsorted(kept, labels).clamp(max=len(kept) - 1)
    return places, kept[places] == labels
