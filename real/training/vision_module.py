"""A small vision-language model, trained from scratch to read tables of digits, so that leaving things out tells.

A step is one pass of the whole model over pictures and texts, through the library's own forward pass and with prompts
made as in decoding, and arms (`real.training.skip_arms`), which go on from what that pass left.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from transformers import logging as transformers_logging

from real.data import Prompt
from real.drafters.subblocks import SubBlocks
from real.target import hidden_states
from real.training.digits_data import Asked, DigitTables
from real.training.module import TrainModule
from real.training.ranges import COUNT, NOT_NEGATIVE, SEED
from real.training.skip_arms import ArmOptions, StepArms, first_out, read_arms
from real.training.vision_net import MERGE, PATCH, image_processor, vision_net, word_tokenizer
from real.vision.digits import CELL, MOST, cell_name, shown_as, words
from real.vision.encode import Encoder
from real.vision.model import VisionModel
from real.vision.pictures import Pictures
from specsim.errors import ConfigError

NO_LABEL = -100


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Prompts with their answers, side by side.

    Args:
        ids: int64[B, T], filled up at the end.
        labels: int64[B, T], what follows each token of the answer and of the prompt's end; NO_LABEL elsewhere.
        shown: int64[B, T, 2], words for the cell around each visual token: what it shows, and its name; NO_LABEL
            elsewhere.
        positions: int64[3, B, T] rotary positions.
        pictures: what the model takes besides.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    shown: torch.Tensor
    positions: torch.Tensor
    pictures: dict[str, torch.Tensor]


class VisionLanguageModel(TrainModule):
    """Cross-entropy in nats of the answers' tokens, of what visual tokens show, and of arms.

    Deep and narrow as the lab pair's target is, and for the same reason. That every visual token has to tell of its
    cell, which no decode asks, spares the answers' loss from finding out alone where in a picture to look.

    Args:
        layers, hidden, heads, kv_heads, feed_forward: of the language model.
        tower_layers, tower_hidden, tower_heads: of the vision tower.
        window: longest text in tokens, visual ones included.
        shown_weight: of the visual tokens' loss beside the answers'.
        arms: see ArmOptions.
        check_arms: arms checked, by their spelling.
        seed: of the initial weights.
        muon_lr, adam_lr, warmup_steps: see TrainModule.

    Raises:
        ConfigError: sizes or arms that do not fit each other.
    """

    ALLOWED: ClassVar = {
        **TrainModule.ALLOWED,
        **dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "feed_forward", "window"), COUNT),
        **dict.fromkeys(("tower_layers", "tower_hidden", "tower_heads"), COUNT),
        "shown_weight": NOT_NEGATIVE,
        "seed": SEED,
    }

    def __init__(
        self,
        layers: int = 12,
        hidden: int = 96,
        heads: int = 4,
        kv_heads: int = 2,
        feed_forward: int = 256,
        tower_layers: int = 2,
        tower_hidden: int = 64,
        tower_heads: int = 4,
        window: int = 320,
        shown_weight: float = 1.0,
        arms: ArmOptions = ArmOptions(),  # noqa: B008 - frozen, and shown as the default
        check_arms: list[str] = [],  # noqa: B006 - shown as the default
        seed: int = 0,
        muon_lr: float = 0.02,
        adam_lr: float = 0.003,
        warmup_steps: int = 100,
    ) -> None:
        super().__init__(muon_lr, adam_lr, warmup_steps)
        if tower_hidden % (4 * tower_heads):
            raise ConfigError(
                f"model.tower_heads={tower_heads}: allowed is a divisor of a quarter of model.tower_hidden, "
                f"{tower_hidden}: a head's rotary positions take its entries by fours"
            )
        self._tokenizer = word_tokenizer(words(), window)
        self.net: Any = vision_net(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            feed_forward=feed_forward,
            tower_layers=tower_layers,
            tower_hidden=tower_hidden,
            tower_heads=tower_heads,
            window_pixels=CELL,
            vocabulary=len(self._tokenizer),
            window=window,
            seed=seed,
        )
        self._processor = image_processor((MOST * CELL) ** 2)
        vision = VisionModel(self.net)
        self._text = (vision.text,)  # in a tuple, so that its weights are not listed twice
        self._encode = Encoder(vision, self._tokenizer, Pictures(self.net.config, self._processor, frame_size={}))
        self._blocks = SubBlocks(vision.text)
        self.arms, self.check_arms = StepArms(self._blocks, arms), read_arms(check_arms, layers)
        self.shown_weight = shown_weight
        self.net.train()

    def setup(self, stage: str) -> None:
        self._data()

    def rows(self, batch: list[Asked]) -> Rows:
        """A batch as the model takes it.

        Raises:
            ConfigError: a text longer than the window.
        """
        prompts = [self._encode(Prompt("", asked.question), [asked.table.picture]) for asked in batch]
        end = torch.tensor([self._tokenizer.eos_token_id])
        texts, labels = [], []
        for prompt, asked in zip(prompts, batch, strict=True):
            answer = torch.tensor(self._tokenizer(asked.answer)["input_ids"])
            texts.append(torch.cat([prompt.ids, answer]))
            unlabelled = torch.full((len(prompt.ids) - 1,), NO_LABEL)
            labels.append(torch.cat([unlabelled, answer, end]))
        longest = max(map(len, texts))
        if longest > self.net.config.text_config.max_position_embeddings:
            raise ConfigError(f"model.window: a table and its answer take {longest} tokens; allowed is as many or more")
        ids = torch.stack([F.pad(text, (0, longest - len(text)), value=int(end)) for text in texts])
        pictures = {name: torch.cat([prompt.inputs[name] for prompt in prompts]) for name in prompts[0].inputs}
        marks = (ids == self.net.config.image_token_id).long()
        positions, _ = self.net.model.get_rope_index(
            ids, mm_token_type_ids=marks, image_grid_thw=pictures["image_grid_thw"]
        )
        shown = torch.full((*ids.shape, 2), NO_LABEL)
        shown[marks > 0] = torch.cat([self._shown(asked) for asked in batch])
        where = self.device
        return Rows(
            ids=ids.to(where),
            labels=torch.stack([F.pad(each, (0, longest - len(each)), value=NO_LABEL) for each in labels]).to(where),
            shown=shown.to(where),
            positions=positions.to(where),
            pictures={name: value.to(where) for name, value in pictures.items()},
        )

    def _shown(self, asked: Asked) -> torch.Tensor:
        """int64[n, 2] labels of a picture's visual tokens (`Rows.shown`), in the order of the text."""
        told = [
            self._tokenizer.convert_tokens_to_ids([shown_as(digit), cell_name(row, column)])
            for row, cells in enumerate(asked.table.grid)
            for column, digit in enumerate(cells)
        ]
        side, cells = CELL // (PATCH * MERGE), torch.tensor(told).view(len(asked.table.grid), -1, 2)
        return cells.repeat_interleave(side, dim=0).repeat_interleave(side, dim=1).flatten(0, 1)

    def training_step(self, batch: list[Asked], batch_idx: int) -> torch.Tensor:
        rows, parts = self.rows(batch), self.arms.of(self.global_step)
        with hidden_states(self._text[0], [first_out(arm) - 1 for _, arm, _, _ in parts]) as states:
            logits = self._logits(rows)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), rows.labels.flatten(), ignore_index=NO_LABEL)
        self.log("train/loss", loss.detach())
        if self.shown_weight:
            told = rows.shown[..., 0] != NO_LABEL
            part = F.cross_entropy(logits[told].float().repeat_interleave(2, dim=0), rows.shown[told].flatten())
            self.log("train/shown", part.detach())
            loss = loss + self.shown_weight * part
        for name, arm, weight, some in parts:
            asked = rows.labels[some] != NO_LABEL
            left = self.arms.logits(arm, states[first_out(arm) - 1][some], position_ids=rows.positions[:, some])
            part = self.arms.like(left[asked], logits[some].detach()[asked])
            self.log(f"train/{name}", part.detach())
            loss = loss + weight * part
        return loss

    def _logits(self, rows: Rows) -> torch.Tensor:
        """float[B, T, V] of the whole model."""
        return self._text[0](input_ids=rows.ids, position_ids=rows.positions, **rows.pictures).logits

    def validation_step(self, batch: list[Asked], batch_idx: int) -> None:
        rows, first = self.rows(batch), [first_out(arm) - 1 for arm in self.check_arms.values()]
        with hidden_states(self._text[0], first) as states:
            logits = self._logits(rows)
        asked, chosen = rows.labels != NO_LABEL, logits.argmax(dim=-1)
        wrong = asked & (chosen != rows.labels)
        metrics = {
            "loss": F.cross_entropy(logits[asked].float(), rows.labels[asked]),
            # What is right after every right beginning is what a greedy decode writes.
            "exact": 1 - wrong.any(dim=1).float().mean(),
        }
        for (name, arm), layer in zip(self.check_arms.items(), first, strict=True):
            left = self.arms.logits(arm, states[layer], position_ids=rows.positions).argmax(dim=-1)
            metrics[f"agree_{name}"] = (left == chosen)[asked].float().mean()
        self.log_dict({f"val/{name}": value for name, value in metrics.items()}, batch_size=len(batch))

    def about(self) -> dict[str, str]:
        size, config = sum(parameter.numel() for parameter in self.net.parameters()), self.net.config
        text, tower = config.text_config, config.vision_config
        return {
            "title": "Small vision-language model that reads tables of digits",
            "data": self._data().about,
            "model": (
                f"Qwen2.5-VL class, {text.num_hidden_layers} layers x {text.hidden_size} behind a vision tower of "
                f"{tower.depth} x {tower.hidden_size}, {size} parameters"
            ),
        }

    def export(self, folder: Path) -> None:
        """The model in bfloat16 with tokenizer and image processor, as `real.vision.load` loads them."""
        transformers_logging.disable_progress_bar()
        copy.deepcopy(self.net).bfloat16().save_pretrained(folder)
        self._tokenizer.save_pretrained(folder, save_jinja_files=False)
        self._processor.save_pretrained(folder)

    def _data(self) -> DigitTables:
        data = cast(Any, self.trainer).datamodule
        if not isinstance(data, DigitTables):
            raise ConfigError("a vision-language model is trained on real.training.digits_data.DigitTables")
        return data
