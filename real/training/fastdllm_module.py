"""Training of a small block-diffusion drafter of the Fast-dLLM v2 kind (`real.drafters.fastdllm`).

It starts as some layers of the target itself, with its embedding and head, and learns to fill masks of a block from
both sides (`real.training.block_diffusion`). Labels are the texts' own tokens.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM
from transformers import logging as transformers_logging

from real.target import decoder_layers
from real.training.block_diffusion import block_logits, draw_masks
from real.training.blocks import Slots
from real.training.drafter_data import TextBatch
from real.training.drafter_module import DrafterModule, SlotLoss
from real.training.ranges import COUNT, check_layers
from real.training.target_states import Known
from specsim.controllers.base import Param

CHUNK = 32  # noisy copies of a text in one pass when checking


class FastDLLMModule(DrafterModule):
    """A causal language model of the target's class with fewer layers and one more token, the mask.

    Metrics are those of a single pass that fills all masks of the anchor's block at once, and of nothing beyond that
    block: a decode, which runs more passes, accepts more.

    Args:
        target: as for `real.models.load_target`; its class must be one that `real.drafters.fastdllm_load` reads.
        start_layers: layers of the target it is made of, in order.
        block_size: tokens of a block.
        slots: tokens after an anchor that are checked.
        copies: noisy blocks of a text in a step.
        memory_gb: see TargetStates.
        muon_lr, adam_lr, warmup_steps: see TrainModule.
    """

    ALLOWED: ClassVar = {
        **DrafterModule.ALLOWED,
        **{"block_size": Param(kind=int, low=2), "slots": COUNT, "copies": COUNT},
    }

    def __init__(
        self,
        target: str = "lab",
        start_layers: list[int] = [0, 1, 15],  # noqa: B006 - shown as the default
        block_size: int = 32,
        slots: int = 8,
        copies: int = 16,
        memory_gb: float = 4.0,
        muon_lr: float = 0.005,
        adam_lr: float = 0.001,
        warmup_steps: int = 100,
    ) -> None:
        super().__init__(
            target=target,
            layers=None,
            block=slots,
            vocabulary=None,
            loss=SlotLoss(),
            memory_gb=memory_gb,
            muon_lr=muon_lr,
            adam_lr=adam_lr,
            warmup_steps=warmup_steps,
        )
        self.block_size, self.copies = block_size, copies
        self.net, self.mask_id = shortened(self.target, start_layers, block_size)

    def default_layers(self) -> tuple[int, ...]:
        return ()  # it reads tokens only

    def _whole(self, known: Known) -> torch.Tensor:
        """int64[B, T] texts, filled up to whole blocks with tokens nothing looks at."""
        return F.pad(known.ids, (0, -known.ids.shape[1] % self.block_size))

    def training_step(self, batch: TextBatch, batch_idx: int) -> torch.Tensor:
        known, rng, size = self.known(batch), self.draws(batch), self.block_size
        ids, device = self._whole(known), known.ids.device
        first = (known.prompt_lens // size).cpu().numpy()[:, None]
        last = ((known.lengths - 1) // size).cpu().numpy()[:, None]
        blocks = first + (rng.random((len(ids), self.copies)) * (last - first + 1)).astype(np.int64)
        masks = np.stack([draw_masks(self.copies, size, rng) for _ in range(len(ids))])
        chosen, masked = torch.from_numpy(blocks).to(device), torch.from_numpy(masks).to(device)
        places = chosen[:, :, None] * size + torch.arange(size, device=device)
        labels = ids.gather(1, places.flatten(1)).view(places.shape)
        clean, noisy = block_logits(self.net, ids, chosen, labels.masked_fill(masked, self.mask_id), size)
        masked = masked & (places < known.lengths[:, None, None])
        filled = self._loss(noisy[:, :, :-1], labels[:, :, 1:], masked[:, :, 1:])
        # The first token of a block, from the last output of the clean block before.
        ends = torch.arange(size - 1, ids.shape[1] - 1, size, device=device)
        counted = (ends + 1 < known.lengths[:, None]) & (ends + 1 >= known.prompt_lens[:, None])
        total = filled + self._loss(clean[:, ends], ids[:, ends + 1], counted) / size
        self.log("train/loss", total.detach())
        return total

    def _loss(self, states: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy where it counts; 0 where nothing does."""
        logits = self.net.get_output_embeddings()(states[counted]).float()
        return F.cross_entropy(logits, labels[counted], reduction="sum") / counted.sum().clamp(min=1)

    def drafts(self, known: Known, slots: Slots) -> torch.Tensor:
        chosen = [
            self._drafts(known, slots.anchors[:, at : at + CHUNK]) for at in range(0, slots.anchors.shape[1], CHUNK)
        ]
        return torch.cat(chosen, dim=1)

    def _drafts(self, known: Known, anchors: torch.Tensor) -> torch.Tensor:
        """int64[B, A, slots]; -1 beyond the anchor's block, or the next one for an anchor that ends its block."""
        ids, size, device = self._whole(known), self.block_size, known.ids.device
        ids = F.pad(ids, (0, size))  # an anchor may end the last block
        blocks = (anchors + 1) // size
        places = blocks[:, :, None] * size + torch.arange(size, device=device)
        text = ids.gather(1, places.flatten(1)).view(places.shape)
        # Where the first token of a block is drafted, it is the text's own: what follows a wrong one is not accepted.
        known_here = (places <= anchors[:, :, None]) | (places % size == 0)
        clean, noisy = block_logits(self.net, ids, blocks, torch.where(known_here, text, self.mask_id), size)
        head = self.net.get_output_embeddings()
        filled = F.pad(_best(head(noisy), self.mask_id), (1, 0))[
            :, :, :size
        ]  # shifted: place p from the output at p - 1
        opened = _best(head(clean.gather(1, anchors[:, :, None].expand(-1, -1, clean.shape[2]))), self.mask_id)
        filled[:, :, 0] = opened
        wanted = anchors[:, :, None] + 1 + torch.arange(self.block, device=device)
        inside = wanted // size == blocks[:, :, None]
        return torch.where(inside, filled.gather(2, wanted % size), -1)

    def export(self, folder: Path) -> None:
        transformers_logging.disable_progress_bar()
        copy.deepcopy(self.net).bfloat16().save_pretrained(folder)


def shortened(target: Any, layers: list[int], block_size: int) -> tuple[Any, int]:
    """A model of the target's class made of some of its layers, with a mask token added; and the mask's id.

    Raises:
        ConfigError: layers the target does not have.
    """
    count = len(decoder_layers(target))
    check_layers("model.start_layers", layers, count)
    mask_id = target.get_output_embeddings().weight.shape[0]
    config = copy.deepcopy(target.config)
    config.num_hidden_layers, config.vocab_size = len(layers), mask_id + 1
    config.bd_size, config.mask_token_id = block_size, mask_id
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    prefix = next(name for name, module in target.named_modules() if module is decoder_layers(target)) + "."
    state = model.state_dict()
    for name, weights in target.state_dict().items():
        if not name.startswith(prefix):
            if name in state and state[name].shape[1:] == weights.shape[1:]:
                state[name][: len(weights)] = weights
            continue
        layer, _, rest = name.removeprefix(prefix).partition(".")
        for place in [at for at, wanted in enumerate(layers) if wanted == int(layer)]:
            state[f"{prefix}{place}.{rest}"] = weights
    for name in [name for name in state if state[name].shape[:1] == (mask_id + 1,)]:
        state[name][mask_id] = state[name][:mask_id].mean(dim=0)
    model.load_state_dict(state)
    return model.train(), mask_id


def _best(logits: torch.Tensor, mask_id: int) -> torch.Tensor:
    """int64[...]: the likeliest token that is not the mask."""
    return logits[..., :mask_id].argmax(dim=-1)
