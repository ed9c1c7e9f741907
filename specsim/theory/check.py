"""The theorems' assumptions and conclusions on a trace, with what noise explains taken off (docs/checks.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specsim.errors import ConfigError
from specsim.latency import LatencyModel
from specsim.reader import TraceReader, open_trace
from specsim.theory.check_acceptance import calibration, hazard
from specsim.theory.check_data import Facts, gather
from specsim.theory.check_noise import Noise
from specsim.theory.check_record import Verdict
from specsim.theory.check_replay import replay_validity
from specsim.theory.check_rules import convergence
from specsim.theory.check_shapes import arm_shapes, tau_concave, throughput_peak, tokens_concave
from specsim.trace_info import trace_info

SCHEMA_NAME: Final = "specsim.theory_check/1"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found on one trace."""

    path: str
    rows: int
    requests: int
    coverage: str
    latency: LatencyModel
    verdicts: list[Verdict]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "path": self.path,
            "rows": self.rows,
            "requests": self.requests,
            "coverage": self.coverage,
            "latency": self.latency.to_dict(),
            "properties": [verdict.to_json() for verdict in self.verdicts],
        }


def check_trace(
    path: str | Path, latency: LatencyModel | None = None, *, seed: int = 0, resamples: int = 1000, level: float = 0.95
) -> Checked:
    """Check one trace file.

    Args:
        path: trace.
        latency: latency model; default: the one the trace holds.
        seed: of resampling and of the sample of rows.
        resamples: bootstrap resamples of requests.
        level: of every band; per property the chance of a false violation is at most 1 - level.

    Raises:
        TraceError: the file breaks a rule of the format.
        ConfigError: no latency model, or one that the trace cannot serve.
    """
    info = trace_info(path)
    with open_trace(path) as reader:
        model = latency or _embedded(reader)
        if model.ctx_s > 0 and "ctx_len" in info["null_columns"]:
            raise ConfigError(
                f"{path}: the latency model has ctx_s > 0 but the trace has no ctx_len; record it or use another model"
            )
        facts = gather(reader.meta, reader.chunks(), model, rows=reader.rows, seed=seed)
    noise = Noise(requests=facts.units, resamples=resamples, level=level, seed=seed)
    return Checked(
        path=str(path),
        rows=int(info["rows"]),
        requests=facts.requests,
        coverage=facts.meta.coverage,
        latency=model,
        verdicts=check_facts(facts, noise, info),
    )


def check_facts(facts: Facts, noise: Noise, info: dict[str, Any]) -> list[Verdict]:
    """All verdicts that this kind of trace has."""
    if facts.meta.kind == "arm":
        return [replay_validity(facts, info), *arm_shapes(facts, noise)]
    return [
        replay_validity(facts, info),
        hazard(facts, noise),
        *calibration(facts, noise),
        tokens_concave(facts),
        tau_concave(facts, noise),
        throughput_peak(facts, noise),
        *convergence(facts, noise),
    ]


def document(checked: list[Checked], *, seed: int, resamples: int, level: float) -> dict[str, Any]:
    """The JSON document of the command."""
    return {
        "schema": SCHEMA_NAME,
        "seed": seed,
        "bootstrap": resamples,
        "level": level,
        "traces": [trace.to_json() for trace in checked],
    }


def _embedded(reader: TraceReader) -> LatencyModel:
    if reader.meta.latency is None:
        raise ConfigError(
            f"{reader.path}: the trace holds no latency model and none was given; pass --latency FILE or preset:NAME"
        )
    return LatencyModel.from_dict(reader.meta.latency, where=f"{reader.path}: metadata latency")
