"""Decoding as a Lightning module for `Trainer.test` and `Trainer.predict`: every prompt by every controller in turn.

Owns the way from settings to a comparison, the sums over prompts and processes, and the test metrics. The decode loop
is `real.loop`, which knows nothing of Lightning. There is nothing to train here, so there is no optimizer.

Several processes (a Trainer's devices and strategies) decode different prompts with a model and controllers of their
own. Decisions of a controller that begins every prompt anew do not depend on how prompts are shared out; one that
learns over prompts learns from its own process's share, and its rounds carry the process's number as their lane.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from string import Formatter
from typing import Any

import torch
from lightning.pytorch import LightningModule
from rich.console import Console

from real.calibrate_cli import calibration_texts
from real.data import Prompt, prompt_format
from real.drafters.subblock_times import CONTEXTS
from real.folder import Request
from real.interleave import PLAIN, Comparison
from real.lightning.data import Batch, PromptData
from real.lightning.zero import from_zero
from real.loop import Settings
from real.measure import arms_to_measure
from real.models import SMOLLM2
from real.recall import recall
from real.reference import ASSISTED, LIVE, VERIFICATIONS
from real.results import FIELDS, Result, results_of, sums_of
from real.session import Session, open_session
from real.trace_latency import measure_latency
from real.verify import sampling_processors
from real.vision.load import prompt_for
from specsim.controllers import parse_spec
from specsim.errors import ConfigError
from specsim.latency import LatencyModel, load_latency
from specsim.replay import load_plugin

REPEATS = 7  # half of what the command measures: a start should not take long
METRICS = (
    *("speedup", "speedup_mean_of_ratios", "tau", "tokens_per_s", "submitted_len", "acceptance_rate", "different"),
    *("controller_share", "build_share", "mismatches"),
)


class DecodeModule(LightningModule):
    """Controllers over prompts with one target and one drafter.

    Args:
        target: smollm2-135m, a local folder or a hub id; vision-language models too.
        drafter: prompt-lookup[:ngram=2], layer-skip[:skip=..|keep=..], early-exit:layers=8, model:path=.. or none.
        controllers: spellings as in `python -m specsim.controllers`; plain decoding is added when it is missing.
        values: numbers for names in braces in `controllers`, as sweeps set them: alpha for libraspec:alpha={alpha}.
        latency: latency model that cost-aware controllers decide by: a JSON file (`python -m real.calibrate`) or
            preset:NAME; when not given, it is measured before the first prompt.
        max_new_tokens: longest output.
        max_draft_len: most tokens drafted in a round.
        temperature: 0 decodes greedily.
        top_k: most likely tokens kept when sampling; 0 keeps all.
        top_p: share of probability kept when sampling.
        draft_sampling: greedy or sample, for drafters that are models.
        dtype: float32, bfloat16 or float16.
        cache: dynamic or static.
        visual_tokens: most visual tokens of a prompt's pictures, for vision-language targets; as many as they have when
            not given.
        seed: of all randomness of decoding.
        verification: live, or reference-assisted, where plain decoding's output decides what is accepted and the
            target's passes only take their time (`real.reference`); temperature 0 only.
        plugins: Python files that register further controllers.

    Attributes:
        results: per controller, over all prompts and processes; set when the last prompt is done.

    Raises:
        ConfigError: a setting out of range, an unknown controller, or a latency model that cannot be read.
    """

    def __init__(
        self,
        target: str = SMOLLM2,
        drafter: str = "prompt-lookup",
        controllers: list[str] = ["static:length=4", "libraspec", "lambda"],  # noqa: B006 - shown as the default
        values: dict[str, int | float] = {},  # noqa: B006
        latency: str | None = None,
        max_new_tokens: int = 128,
        max_draft_len: int = 24,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        draft_sampling: str = "greedy",
        dtype: str = "float32",
        cache: str = "dynamic",
        visual_tokens: int | None = None,
        seed: int = 0,
        verification: str = LIVE,
        plugins: list[str] = [],  # noqa: B006
    ) -> None:
        super().__init__()
        for plugin in plugins:
            load_plugin(plugin)
        self.controllers = _with_plain(_filled(controllers, values))
        self.latency: LatencyModel | None = None if latency is None else load_latency(latency)
        self.processors = _processors(temperature, top_k, top_p)
        self.greedy = temperature == 0.0
        self.choices: dict[str, Any] = {
            "target": target,
            "drafter": drafter,
            "controllers": self.controllers,
            "max_new_tokens": max_new_tokens,
            "max_draft_len": max_draft_len,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "draft_sampling": draft_sampling,
            "dtype": dtype,
            "cache": cache,
            "seed": seed,
            "latency": "measured at the start" if self.latency is None else _digest(self.latency),
        }
        if visual_tokens is not None:
            self.choices["visual_tokens"] = visual_tokens
        if _checked(verification, temperature) != LIVE:  # no key elsewhere: folders of earlier versions go on
            self.choices["verification"] = verification
        # Made here so that a wrong number is refused before anything is loaded.
        self.settings = Settings(
            max_new_tokens=max_new_tokens, sample=not self.greedy, processors=self.processors, seed=seed
        )
        self.session: Session | None = None
        self.comparison: Comparison | None = None
        self.results: list[Result] = []
        self._sums = torch.zeros(len(self.controllers), len(FIELDS), dtype=torch.float64)
        self._warm = False

    def setup(self, stage: str) -> None:
        """Load target and drafter onto this process's device and build the controllers.

        Raises:
            ConfigError: anything missing or incompatible, or a prompt that does not fit the target's window.
        """
        chosen = self.choices
        precision = self.trainer.precision
        if precision != "32-true":  # Lightning would run the passes in another precision than model.dtype says
            raise ConfigError(f"trainer.precision {precision}: leave it out; model.dtype is the precision")
        if self.session is None:
            self.session = open_session(
                chosen["target"],
                chosen["drafter"],
                dtype=chosen["dtype"],
                device=self.device.type,
                max_draft_len=chosen["max_draft_len"],
                draft_sampling=chosen["draft_sampling"],
                cache=chosen["cache"],
                visual_tokens=chosen.get("visual_tokens"),
            )
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(data, PromptData):
            self._check_prompts(data.prompts)
        if self.latency is None:
            session, seed = self.session, chosen["seed"]
            self.latency = from_zero(
                self.trainer, lambda: _measured(session, chosen["max_draft_len"], chosen["cache"], seed)
            )
        built = self.session.controllers(self.controllers, self.latency)
        settings = replace(self.settings, stop_ids=self.session.loaded.stop_ids)
        self.comparison = Comparison(
            self.session,
            list(zip(self.controllers, built, strict=True)),
            settings,
            verification=chosen.get("verification", LIVE),
        )
        self.results, self._warm = [], False
        self._sums = torch.zeros_like(self._sums)

    def recall(self, request: Request) -> None:
        """Count a prompt that an earlier run decoded, and let controllers that learn over prompts learn from it."""
        assert self.comparison is not None
        recall(self.comparison, request)
        self._count(request)

    def test_step(self, batch: Batch, batch_idx: int) -> list[Request]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Decode the prompts of a batch (one or none) with every controller."""
        return self._decode(batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> list[Request]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same as `test_step`."""
        return self._decode(batch)

    def on_test_epoch_end(self) -> None:
        """Log the metrics over all prompts and processes, as `controller/metric`."""
        self._close()
        for result in self.results:
            values = result.to_json()
            for name in METRICS:
                if values[name] is not None:
                    # Equal in every process already; said so that Lightning does not warn.
                    self.log(f"{result.label}/{name}", float(values[name]), sync_dist=True)

    def on_predict_epoch_end(self) -> None:
        self._close()

    def description(self) -> dict[str, Any]:
        """What was effectively used, once `setup` has run: JSON values for records."""
        assert self.session is not None
        loaded = self.session.loaded
        return {
            "target": loaded.name,
            "drafter": self.session.drafter.name,
            "device": loaded.device,
            "dtype": loaded.dtype,
            "prompt_format": prompt_format(loaded.tokenizer),
            "stop_ids": list(loaded.stop_ids),
            "threads": torch.get_num_threads(),
            "processors": [type(processor).__name__ for processor in self.processors],
        }

    def _decode(self, batch: Batch) -> list[Request]:
        assert self.session is not None
        assert self.comparison is not None
        done = []
        for task in batch:
            prompt = prompt_for(self.session.loaded, task.prompt)
            warmups = () if self._warm else self.comparison.warm_up(prompt)
            self._warm = True
            request = self.comparison.run(task.number, task.prompt.id, prompt)
            done.append(replace(request, runs=warmups + request.runs, lane=self.trainer.global_rank))
            self._count(done[-1])
        return done

    def _count(self, request: Request) -> None:
        self._sums += torch.from_numpy(sums_of(request, self.controllers))

    def _close(self) -> None:
        total = self.trainer.strategy.reduce(self._sums.clone().to(self.device), reduce_op="sum")
        assert isinstance(total, torch.Tensor)
        self.results = results_of(total.cpu().numpy(), self.controllers)

    def _check_prompts(self, prompts: list[Prompt]) -> None:
        assert self.session is not None
        window = self.session.target.window
        for prompt in prompts:
            length = len(prompt_for(self.session.loaded, prompt))
            if window is not None and length >= window:
                raise ConfigError(
                    f"prompt {prompt.id!r} has {length} tokens, the target's context window is {window}; leave it out "
                    "or use a target with a longer window"
                )


def _filled(controllers: list[str], values: dict[str, int | float]) -> list[str]:
    try:
        names = {name for spelling in controllers for _, name, _, _ in Formatter().parse(spelling) if name is not None}
    except ValueError as error:
        raise ConfigError(f"model.controllers {controllers}: {error}; write braces in pairs, {{alpha}}") from error
    if names != set(values):
        raise ConfigError(
            f"model.controllers name {sorted(names)} in braces, model.values has {sorted(values)}; give each a number"
        )
    return [spelling.format(**values) for spelling in controllers]


def _with_plain(controllers: list[str]) -> list[str]:
    for spelling in controllers:
        parse_spec(spelling)
    twice = [spelling for spelling in controllers if controllers.count(spelling) > 1]
    if twice:
        raise ConfigError(f"model.controllers: {twice[0]!r} is listed twice; list it once")
    return list(controllers) if PLAIN in controllers else [PLAIN, *controllers]


def _processors(temperature: float, top_k: int, top_p: float) -> list[Any]:
    if temperature < 0:
        raise ConfigError(f"model.temperature {temperature}: allowed: 0 (greedy) or more")
    if top_k < 0 or not 0 < top_p <= 1:
        raise ConfigError(f"model.top_k {top_k}, model.top_p {top_p}: allowed: top_k >= 0, 0 < top_p <= 1")
    if temperature == 0:
        if top_k or top_p < 1:
            raise ConfigError("model.top_k and model.top_p need sampling; set model.temperature above 0 or leave them")
        return []
    return sampling_processors(temperature=temperature, top_k=top_k, top_p=top_p)


def _checked(verification: str, temperature: float) -> str:
    if verification not in VERIFICATIONS:
        raise ConfigError(f"model.verification {verification!r}: allowed: {', '.join(VERIFICATIONS)}")
    if verification == ASSISTED and temperature > 0:
        raise ConfigError(
            f"model.verification {ASSISTED} at model.temperature {temperature}: sampled, there is no one text to "
            f"expect; set model.temperature 0, or model.verification {LIVE}"
        )
    return verification


def _measured(session: Session, max_draft_len: int, cache: str, seed: int) -> LatencyModel:
    longest = session.drafter.max_draft_len or max_draft_len  # of a tree its nodes
    texts = calibration_texts(
        session.loaded,
        "open-ended",
        CONTEXTS,
        seed=seed,
        max_draft_len=longest,
        depth=session.drafter.depth,
        arms=arms_to_measure(session.drafter),
    )
    return measure_latency(
        session.loaded,
        session.drafter,
        texts,
        max_draft_len=longest,
        repeats=REPEATS,
        console=Console(stderr=True),
        seed=seed,
        cache=cache,
    ).model


def _digest(latency: LatencyModel) -> str:
    return hashlib.sha256(json.dumps(latency.to_dict(), sort_keys=True).encode()).hexdigest()[:16]
