"""Training of a DFlash drafter (`real.drafters.dflash_net`): blocks of masks denoised at random places.

A block is its anchor's embedding and masks; it sees the context strictly before the anchor and all of itself, so all
blocks of a text are one pass with a mask. Source of the recipe: vllm-project/speculators @c05b95b (random anchors,
path-aware weights, cross-entropy); z-lab has published none.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import ClassVar

import torch

from real.compat import logits_width
from real.drafters.dflash import first_choice
from real.drafters.dflash_load import save_dflash
from real.drafters.dflash_net import DFlashConfig, DFlashNetwork, embedding_of, head_of
from real.target import decoder_layers
from real.training.blocks import Slots, draw_anchors, slots_at
from real.training.drafter_data import TextBatch
from real.training.drafter_module import DrafterModule, SlotLoss
from real.training.ranges import COUNT, NOT_NEGATIVE, SEED, head_size
from real.training.target_states import Known
from specsim.controllers.base import Param


class DFlashModule(DrafterModule):
    """A DFlash network with a mask vector of its own and, if wished, a reduced head of its own.

    Args:
        target: as for `real.models.load_target`.
        layers: 0-based layers of the target whose output is read; default: four, spread evenly, the last included.
        block_size: slots of a block, the anchor's included.
        depth: layers of the network.
        heads, kv_heads, feed_forward: of a layer; a head has hidden size / heads entries.
        vocabulary: ids that are drafted, the most frequent ones in the texts; None: all.
        own_head: a head of its own, begun as a copy of the target's, instead of the target's.
        anchors: blocks in a text.
        loops: chance of a block in a loop, see `real.training.blocks.draw_anchors`.
        loss: how slots weigh.
        memory_gb: see TargetStates.
        seed: of the initial weights.
        muon_lr, adam_lr, warmup_steps: see TrainModule.
    """

    ALLOWED: ClassVar = {
        **DrafterModule.ALLOWED,
        **dict.fromkeys(("depth", "heads", "kv_heads", "feed_forward", "anchors"), COUNT),
        **{"block_size": Param(kind=int, low=2), "loops": NOT_NEGATIVE, "seed": SEED},
    }

    def __init__(
        self,
        target: str = "lab",
        layers: list[int] | None = None,
        block_size: int = 8,
        depth: int = 1,
        heads: int = 4,
        kv_heads: int = 4,
        feed_forward: int = 640,
        vocabulary: int | None = 1024,
        own_head: bool = True,
        anchors: int = 32,
        loops: float = 1.0,
        loss: SlotLoss = SlotLoss(),  # noqa: B008 - frozen, and shown as the default
        memory_gb: float = 4.0,
        seed: int = 0,
        muon_lr: float = 0.02,
        adam_lr: float = 0.003,
        warmup_steps: int = 100,
    ) -> None:
        super().__init__(
            target=target,
            layers=layers,
            block=block_size - 1,
            vocabulary=vocabulary,
            loss=loss,
            memory_gb=memory_gb,
            muon_lr=muon_lr,
            adam_lr=adam_lr,
            warmup_steps=warmup_steps,
        )
        self.anchors, self.loops = anchors, loops
        model = self.target
        hidden = model.get_input_embeddings().weight.shape[1]
        config = DFlashConfig(
            vocab_size=logits_width(model),
            hidden_size=hidden,
            intermediate_size=feed_forward,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_size(hidden, heads),
            target_layer_ids=self.layers,
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

    def default_layers(self) -> tuple[int, ...]:
        count = len(decoder_layers(self.target))
        return tuple(sorted({max(0, count * part // 4 - 1) for part in (1, 2, 3, 4)}))

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
        slots = slots_at(known, draw_anchors(known, self.anchors, self.draws(batch), self.loops), self.block)
        return self.slot_loss(self.logits(known, slots), slots, known, self.net.kept_ids)

    def drafts(self, known: Known, slots: Slots) -> torch.Tensor:
        return first_choice(self.net, self.logits(known, slots))[0]

    def export(self, folder: Path) -> None:
        save_dflash(folder, copy.deepcopy(self.net).to(torch.bfloat16))
