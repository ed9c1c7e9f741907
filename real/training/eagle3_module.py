"""Training of an EAGLE-3 head (`real.drafters.eagle3_net`) by training-time test: it drafts from every place of a text.

The head runs on its own hidden states for as many steps as it will draft, over the text's own tokens; a slot counts as
long as those are the target's choices. Source: EAGLE-3 (arXiv 2503.01840), section 3.2; the weights of slots are those
of `SlotLoss` (the paper's reference weighs step j by 0.8^j).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from transformers import LlamaConfig

from real.compat import logits_width
from real.drafters.eagle3_load import save_eagle3
from real.drafters.eagle3_net import Eagle3Config, Eagle3Net, default_layers
from real.target import decoder_layers
from real.training.blocks import Slots, slots_at
from real.training.drafter_data import TextBatch
from real.training.drafter_module import DrafterModule, SlotLoss
from real.training.ranges import COUNT, SEED, head_size
from real.training.target_states import Known


class Eagle3Module(DrafterModule):
    """An EAGLE-3 head on the target's embeddings.

    Args:
        target: as for `real.models.load_target`.
        layers: 0-based layers of the target whose output is read; default: low, middle and high as in the paper.
        steps: tokens it drafts while training.
        heads, kv_heads, feed_forward: of its layer.
        vocabulary: ids that are drafted, the most frequent ones in the texts; None: all.
        loss: how slots weigh.
        memory_gb: see TargetStates.
        seed: of the initial weights.
        muon_lr, adam_lr, warmup_steps: see TrainModule.
    """

    ALLOWED: ClassVar = {
        **DrafterModule.ALLOWED,
        **dict.fromkeys(("steps", "heads", "kv_heads", "feed_forward"), COUNT),
        "seed": SEED,
    }

    def __init__(
        self,
        target: str = "lab",
        layers: list[int] | None = None,
        steps: int = 5,
        heads: int = 4,
        kv_heads: int = 4,
        feed_forward: int = 640,
        vocabulary: int | None = 1024,
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
            block=steps,
            vocabulary=vocabulary,
            loss=loss,
            memory_gb=memory_gb,
            muon_lr=muon_lr,
            adam_lr=adam_lr,
            warmup_steps=warmup_steps,
        )
        model = self.target
        hidden, size = model.get_input_embeddings().weight.shape[1], logits_width(model)
        head_size(hidden, heads)
        layer = LlamaConfig(
            vocab_size=size,
            hidden_size=hidden,
            intermediate_size=feed_forward,
            num_hidden_layers=1,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=model.config.max_position_embeddings,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = Eagle3Net(
                Eagle3Config(
                    layer=layer,
                    draft_vocab_size=vocabulary or size,
                    target_hidden_size=hidden,
                    target_layers=self.layers,
                )
            )
        if vocabulary is None:
            self.keep(torch.arange(size))

    def default_layers(self) -> tuple[int, ...]:
        return default_layers(len(decoder_layers(self.target)))

    def keep(self, ids: torch.Tensor) -> None:
        self.net.set_vocabulary(ids)
        self.net.lm_head.weight.data.copy_(self.target.get_output_embeddings().weight[ids])

    def logits(self, known: Known) -> torch.Tensor:
        """float[B, T - 1, S, R]: slots of every anchor 1..T - 1; those beyond the text are zeros."""
        features = known.features.to(self.net.fc.weight.dtype)
        found = self.net.unroll(features, known.ids, self.target.get_input_embeddings(), self.block)
        anchors = known.ids.shape[1] - 1
        # Row t of a step was begun with the features of token t, after which token t + 1 is the anchor.
        rows = [torch.nn.functional.pad(one, (0, 0, 0, anchors - one.shape[1])) for one in found]
        return torch.stack(rows, dim=2)

    def training_step(self, batch: TextBatch, batch_idx: int) -> torch.Tensor:
        known = self.known(batch)
        every = torch.arange(1, known.ids.shape[1], device=known.ids.device).expand(len(known.ids), -1)
        slots = slots_at(known, every, self.block)
        written = (every >= known.prompt_lens[:, None] - 1)[:, :, None]
        slots = Slots(slots.anchors, slots.labels, slots.valid & written, slots.places)
        return self.slot_loss(self.logits(known), slots, known, self.net.target_ids)

    def drafts(self, known: Known, slots: Slots) -> torch.Tensor:
        chosen = self.net.target_ids[self.logits(known).argmax(dim=-1)]
        return chosen.gather(1, (slots.anchors - 1)[:, :, None].expand(-1, -1, self.block))

    def export(self, folder: Path) -> None:
        save_eagle3(self.net, folder)
