"""What an experiment decodes, as the YAML files of real/configs/paper/ say it (`real.paper.reading` reads them).

Owns the cells of an experiment and their names. Loads nothing.

experiment: table1                    # one of EXPERIMENTS
temperatures: [0, 1]
max_new_tokens: 96
datasets:
  HumanEval: {data: humaneval, requests: 20}
pairs:
  - target: smollm2-135m
    methods:
      - name: FastdLLM
        drafter: "fastdllm:path=..."
        max_draft_len: 40
        static: 3..20                 # the swept baseline; or a list of lengths
        controllers: {LibraSpec: "libraspec:block=10", lambda: lambda}
        draft_sampling: greedy        # or sample: drawn drafts, at temperature 1 only
      - name: SWIFT
        drafter: "self:arms=FILE,length=4"
        max_draft_len: 4
        arms: 0..7                    # the swept baseline of a drafter of several arms, each played throughout
        controllers: {SP2ec: sp2ec, UCBSpec: ucbspec}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from real.drafters.model import DRAFT_SAMPLING

EXPERIMENTS = (
    *("table1", "table2", "table3", "table4"),
    *("figure1", "figure2", "figure3", "figure4", "figure5"),
    *("sp2ec-main", "sp2ec-mat", "sp2ec-pulls", "sp2ec-regret"),
    *("sp2ec-reset", "sp2ec-build", "sp2ec-context", "sp2ec-lengths"),
)
STATIC, LIBRASPEC, LAMBDA = "static", "LibraSpec", "lambda"
SP2EC, UCBSPEC = "SP2ec", "UCBSpec"
FIXED = "fixed block"  # a block drafter as published: one pass, all of it verified
TEMPERATURES = (0, 1)
GREEDY, SAMPLE = DRAFT_SAMPLING


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Prompts.

    Args:
        data: as for `real.data.load_prompts`.
        requests: how many, drawn by seed.
        context: lengthen every prompt by others' texts before it to about so many tokens, without a thinking switch;
            None: as they are.
        visual_tokens: most that the pictures of a prompt take together (`real.vision.pictures`); None: as they come.
    """

    data: str
    requests: int
    context: int | None = None
    visual_tokens: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What names a cell; a bound on visual tokens only where there is one, as it came later."""
        return {key: value for key, value in asdict(self).items() if key != "visual_tokens" or value is not None}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A drafter and the controllers that decide its lengths.

    Args:
        name: row of a table. Methods of one name are variants of each other, of which the fastest is reported.
        drafter: as for `real.drafters.choose.parse_drafter`.
        max_draft_len: most tokens drafted in a round.
        static: lengths of the swept baseline.
        arms: numbers of arms that are swept in their place.
        controllers: label of a row to spelling; one of the swept ones may have a label of its own as well.
        draft_sampling: `greedy`, or `sample`: tokens are drawn from the drafter's law. At temperature 0 nothing is
            drawn, so that such a method has cells at temperature 1 only.
        predict: record a trace and predict from it; of arms that takes about as long as decoding with each of them.
    """

    name: str
    drafter: str
    max_draft_len: int
    static: tuple[int, ...] = ()
    arms: tuple[int, ...] = ()
    controllers: Mapping[str, str]
    draft_sampling: str = GREEDY
    predict: bool = True

    def at(self, temperature: int) -> bool:
        """Whether it is measured at a temperature."""
        return self.draft_sampling == GREEDY or temperature > 0

    def labels(self) -> list[tuple[str, str]]:
        """(label, spelling) of every row, the swept lengths and arms first."""
        swept = [*(f"static:length={length}" for length in self.static), *(f"arm:index={arm}" for arm in self.arms)]
        return [*((STATIC, spelling) for spelling in swept), *self.controllers.items()]

    def spellings(self) -> list[str]:
        """What is decoded, each once."""
        return list(dict.fromkeys(spelling for _, spelling in self.labels()))


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target with its methods.

    Args:
        target: as for `real.models.load_target`.
        datasets: names of the datasets it is measured on.
        methods: in the order of the table.
        thinking: switch of its chat template (`real.data`); None: the template decides.
    """

    target: str
    datasets: tuple[str, ...]
    methods: tuple[Method, ...]
    thinking: bool | None = None


@dataclass(frozen=True, kw_only=True)
class PaperConfig:
    """One experiment. `repeats` are the calibration's; `threads` 0 leaves torch's own choice."""

    experiment: str
    datasets: Mapping[str, Dataset]
    pairs: tuple[Pair, ...]
    temperatures: tuple[int, ...] = (0,)
    max_new_tokens: int = 128
    dtype: str = "float32"
    device: str = "auto"
    threads: int = 0
    seed: int = 0
    repeats: int = 15

    def cells(self) -> list[Cell]:
        """Every cell, in the order they are measured."""
        return [
            Cell(pair=pair, dataset=name, temperature=temperature, method=method, config=self)
            for pair in self.pairs
            for name in pair.datasets
            for temperature in self.temperatures
            for method in pair.methods
            if method.at(temperature)
        ]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured and kept as one: a method of a pair on a dataset at a temperature."""

    pair: Pair
    dataset: str
    temperature: int
    method: Method
    config: PaperConfig

    @property
    def target(self) -> str:
        """The pair's."""
        return self.pair.target

    @property
    def visual_tokens(self) -> int | None:
        """The dataset's bound."""
        return self.config.datasets[self.dataset].visual_tokens

    def prompts(self) -> Dataset:
        """The dataset, with the pair's thinking mode."""
        found, thinking = self.config.datasets[self.dataset], self.pair.thinking
        return (
            found if thinking is None else replace(found, data=f"{found.data}:thinking={'on' if thinking else 'off'}")
        )

    def settings(self) -> dict[str, Any]:
        """JSON values that decide what is measured."""
        config = self.config
        # Defaults go unsaid: cells measured before there was a choice keep their names.
        drawn = {} if self.method.draft_sampling == GREEDY else {"draft_sampling": self.method.draft_sampling}
        drawn |= {} if self.method.predict else {"predict": False}
        return {
            "target": self.target,
            "dataset": self.prompts().to_json(),
            "temperature": self.temperature,
            "drafter": self.method.drafter,
            "max_draft_len": self.method.max_draft_len,
            "spellings": self.method.spellings(),
            **drawn,
            **{
                key: getattr(config, key) for key in ("max_new_tokens", "dtype", "device", "threads", "seed", "repeats")
            },
        }

    def folder(self) -> str:
        """Its name on disk: readable, and another one for other settings."""
        digest = hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()[:8]
        words = (Path(self.target).name, self.dataset, f"T{self.temperature}", self.method.name, digest)
        return "-".join(re.sub(r"[^\w.]+", "-", word) for word in words)
