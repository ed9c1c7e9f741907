"""What the training of every drafter has in common: the frozen target, the reduced vocabulary, and the metrics.

Metrics of a check, on greedy texts the drafter never saw, begun with held-out files:

    val/expected    sum over k of prod over s <= k of slot s's accuracy, the usual training metric, one more than that
                    being tokens per round if slots were independent; averages over all places
    val/slot_k      accuracy of slot k
    val/tau         tokens per round of the decode itself, which is followed round by round: what a run will see
    val/tau_fresh   the same over rounds whose next token is not in a loop (`real.loops.repeated`)

The first is higher than val/tau - 1: a decode's rounds begin where the last one failed, not anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F

from real.compat import logits_width
from real.loops import repeated
from real.models import Loaded, load_text_target
from real.target import decoder_layers
from real.training.blocks import Slots, accepted, decayed_weights, path_weights, slots_at, walk
from real.training.drafter_data import TextBatch, WrittenTexts
from real.training.module import TrainModule
from real.training.ranges import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, check_layers, check_ranges, only
from real.training.target_states import Known, TargetStates
from specsim.controllers.base import Param
from specsim.errors import ConfigError


@dataclass(frozen=True)
class SlotLoss:
    """How the slots of a draft weigh.

    Args:
        weights: `path`: by what is reached through a slot, see `real.training.blocks.path_weights`; `exp`:
            exp(-(k - 1) / gamma).
        lam: of path weights.
        gamma: of exponential ones.
        soft: share of the loss that is cross-entropy under the target's law instead of with its choice.

    Raises:
        ConfigError: a value that is not allowed.
    """

    weights: str = "path"
    lam: float = 0.5
    gamma: float = 4.0
    soft: float = 0.0

    ALLOWED: ClassVar[Mapping[str, Param]] = {
        "weights": only("path", "exp"),
        "lam": SHARE,
        "gamma": POSITIVE,
        "soft": SHARE,
    }

    def __post_init__(self) -> None:
        check_ranges("model.loss.", self.ALLOWED, asdict(self))


class DrafterModule(TrainModule):
    """A drafter for a target. Subclasses say what a draft is (`drafts`) and how it is trained (`training_step`).

    Args:
        target: as for `real.models.load_text_target`.
        layers: 0-based layers of the target whose output is read; None: `default_layers`.
        block: tokens drafted at an anchor.
        vocabulary: the most frequent ids of the target's texts that are drafted; None: all.
        loss: how slots weigh in `slot_loss`.
        memory_gb: see TargetStates.
        muon_lr, adam_lr, warmup_steps: see TrainModule.
    """

    ALLOWED: ClassVar = {**TrainModule.ALLOWED, "vocabulary": COUNT, "memory_gb": NOT_NEGATIVE}

    def __init__(
        self,
        *,
        target: str,
        layers: list[int] | None,
        block: int,
        vocabulary: int | None,
        loss: SlotLoss,
        memory_gb: float,
        muon_lr: float,
        adam_lr: float,
        warmup_steps: int,
    ) -> None:
        super().__init__(muon_lr, adam_lr, warmup_steps)
        # In a tuple, so that it is neither trained nor in the checkpoints.
        self._frozen: tuple[Loaded, ...] = (load_text_target(target, device="cpu"),)
        if layers is not None:
            check_layers("model.layers", layers, len(decoder_layers(self.target)))
        self.layers = self.default_layers() if layers is None else tuple(layers)
        self._states = TargetStates(self.target, self.layers, memory_gb)
        self.block, self.vocabulary, self.loss = block, vocabulary, loss
        self._rounds: list[tuple[int, int, bool]] = []
        self._slots = np.zeros((2, block))

    @property
    def loaded(self) -> Loaded:
        return self._frozen[0]

    @property
    def target(self) -> Any:
        return self.loaded.model

    def default_layers(self) -> tuple[int, ...]:
        """Layers of the target to read when none are named."""
        raise NotImplementedError

    def drafts(self, known: Known, slots: Slots) -> torch.Tensor:
        """int64[B, A, block] target ids drafted at the anchors, as at greedy decoding."""
        raise NotImplementedError

    def keep(self, ids: torch.Tensor) -> None:
        """Draft only these ids (int64[vocabulary], ascending); called once, before training."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        data, size = self._data(), logits_width(self.target)
        highest = max(int(text.tokens.max()) for text in (*data.training, *data.checking))
        if highest >= size:
            raise ConfigError(
                f"{data.folder}: token {highest}; {self.loaded.name} has {size}: another target wrote these texts"
            )
        if self.vocabulary is not None:
            self.keep(self._frequent(self.vocabulary))

    def on_fit_start(self) -> None:
        self.target.to(self.device)

    def known(self, batch: TextBatch) -> Known:
        """What the target says about a batch."""
        return self._states.of(batch.numbers, batch.texts)

    def draws(self, batch: TextBatch) -> np.random.Generator:
        """The numbers of a step."""
        return np.random.default_rng((self._data().seed, 1, batch.step))

    def slot_loss(self, logits: torch.Tensor, slots: Slots, known: Known, kept: torch.Tensor | None) -> torch.Tensor:
        """Weighted mean loss of drafts.

        Args:
            logits: float[B, A, S, R] of the ids that can be drafted.
            slots: what they should have been.
            known: the texts.
            kept: int64[R], those ids, ascending; None: all.
        """
        logits = logits.float()
        labels, inside = drafted_ids(slots.labels, kept)
        loss = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(labels.shape)
        right = torch.where(inside, (-loss.detach()).exp(), 0.0)
        if self.loss.weights == "path":
            weights = path_weights(right, slots.valid, self.loss.lam)
        else:
            weights = decayed_weights(slots.valid, self.loss.gamma)
        loss = loss * inside
        if self.loss.soft:
            loss = (1 - self.loss.soft) * loss + self.loss.soft * self._under_law(logits, slots, known, kept)
        total = (weights * loss).sum() / weights.sum().clamp(min=1e-6)
        self.log("train/loss", total.detach())
        self.log("train/right", (right * slots.valid).sum() / slots.valid.sum().clamp(min=1))
        return total

    def _under_law(self, logits: torch.Tensor, slots: Slots, known: Known, kept: torch.Tensor | None) -> torch.Tensor:
        """float[B, A, S]: cross-entropy under the target's law, over the ids that can be drafted."""
        rows = torch.arange(len(known.ids), device=known.ids.device)[:, None, None]
        with torch.no_grad():
            law = self.target.get_output_embeddings()(known.last[rows, slots.places].float()).softmax(dim=-1)
            law = law if kept is None else law[..., kept]
        return -(law * logits.log_softmax(dim=-1)).sum(dim=-1)

    def on_validation_epoch_start(self) -> None:
        self._rounds, self._slots = [], np.zeros((2, self.block))

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        known = self.known(batch)
        every = torch.arange(1, known.ids.shape[1], device=known.ids.device).expand(len(known.ids), -1)
        slots = slots_at(known, every, self.block)
        chosen = self.drafts(known, slots)
        # Only places a decode can begin a round at.
        here = (every >= known.prompt_lens[:, None] - 1) & (every < known.lengths[:, None] - 1)
        counted = slots.valid & here[:, :, None]
        right = counted & (chosen == slots.labels)
        self._slots += np.stack([part.sum(dim=(0, 1)).cpu().numpy() for part in (right, counted)])
        lengths = torch.nn.functional.pad(accepted(chosen, slots), (1, 0)).cpu().numpy()
        for row, text in enumerate(batch.texts):
            loops = repeated(text.tokens)
            rounds = walk(lengths[row], text.prompt_len, len(text.tokens))
            self._rounds += [(anchor, emitted, bool(loops[anchor + 1])) for anchor, emitted in rounds]

    def on_validation_epoch_end(self) -> None:
        accuracy = self._slots[0] / np.maximum(self._slots[1], 1)
        metrics = {f"val/slot_{k + 1}": float(share) for k, share in enumerate(accuracy)}
        metrics["val/expected"] = float(np.cumprod(accuracy).sum())
        metrics["val/tau"] = _mean([emitted for _, emitted, _ in self._rounds])
        metrics["val/tau_fresh"] = _mean([emitted for _, emitted, loop in self._rounds if not loop])
        self.log_dict(metrics)

    def about(self) -> dict[str, str]:
        size = sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)
        return {
            "title": f"Drafter for {self.loaded.name}",
            "data": self._data().about,
            "model": f"{type(self).__name__}, {size} parameters",
        }

    def _frequent(self, count: int) -> torch.Tensor:
        """int64[count], ascending: the ids the target writes most often; the lower id of equally frequent ones."""
        found: Counter[int] = Counter()
        for text in self._data().training:
            found.update(text.tokens[text.prompt_len :].tolist())
        size = int(self.target.config.vocab_size)
        if not 1 <= count <= size:
            raise ConfigError(f"model.vocabulary {count}: allowed: 1 to the target's {size}")
        order = sorted(range(size), key=lambda token: (-found[token], token))
        return torch.tensor(sorted(order[:count]))

    def _data(self) -> WrittenTexts:
        data = cast(Any, self.trainer).datamodule
        if not isinstance(data, WrittenTexts):
            raise ConfigError("a drafter is trained on real.training.drafter_data.WrittenTexts")
        return data


def drafted_ids(labels: torch.Tensor, kept: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Target ids as places among the kept ones, which ascend; and which of them are kept (others get any place)."""
    if kept is None:
        return labels, torch.ones_like(labels, dtype=torch.bool)
    places = torch.searchsorted(kept, labels).clamp(max=len(kept) - 1)
    return places, kept[places] == labels


def _mean(values: list[int]) -> float:
    return float(np.mean(values)) if values else 0.0
