"""What a comparison of controllers comes to: sums over prompts that can be added over processes, and ratios of them.

Owns the formulas, for every command. Warm-up runs never count. Time is that of the rounds; the prompt's own pass is not
in it. Tokens are ids that the same loop counted, for plain decoding too.

    tau      = tokens / rounds, the target's own token of every round included (plain decoding: 1)
    tokens/s = tokens / seconds of all rounds
    speedup  = sum of plain decoding's seconds / sum of the controller's seconds, over prompts, for as many tokens
               (plain decoding's seconds on a prompt are scaled to the controller's tokens where lengths differ)
    mean of ratios = mean over prompts of each prompt's own speedup
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from real.folder import Request, Run
from real.interleave import PLAIN

FIELDS = (
    *("prompts", "tokens", "rounds", "drafted", "submitted", "accepted", "decode_s", "draft_s", "verify_s"),
    *("plain_s", "ratios", "different"),
)
Sums = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One controller over all prompts.

    Args:
        controller: its spelling.
        prompts, tokens, rounds: counts.
        tau, tokens_per_s, speedup, speedup_mean_of_ratios: see the module's text; the last two are None without plain
            decoding.
        submitted_len: mean draft tokens verified per round.
        acceptance_rate: accepted of submitted draft tokens; None when none was submitted.
        decode_s: seconds of all rounds.
        draft_share, verify_share: of these seconds; the rest is the loop's own work and the controller's.
        different: prompts whose output is not plain decoding's, token for token; None without plain decoding. Sampled
            outputs differ by chance.
    """

    controller: str
    prompts: int
    tokens: int
    rounds: int
    tau: float
    tokens_per_s: float
    speedup: float | None
    speedup_mean_of_ratios: float | None
    submitted_len: float
    acceptance_rate: float | None
    decode_s: float
    draft_share: float
    verify_share: float
    different: int | None

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def warmup_rounds(requests: Sequence[Request]) -> int:
    """Rounds that are in the log and in no result."""
    return sum(len(run.decoded.rounds) for request in requests for run in request.runs if run.warmup)


def sums_of(request: Request, controllers: Sequence[str]) -> Sums:
    """Sums of one prompt: float64[controllers, FIELDS], which may be added over prompts and processes."""
    runs = {run.controller: run for run in request.runs if not run.warmup}
    return np.array([_row(runs[name], runs.get(PLAIN)) for name in controllers], dtype=np.float64)


def _row(run: Run, plain: Run | None) -> list[float]:
    decoded, rounds = run.decoded, run.decoded.rounds
    plain_s = different = 0.0
    if plain is not None:
        other = plain.decoded
        plain_s = other.decode_s * len(decoded.output) / len(other.output)
        different = float(decoded.output != other.output)
    return [
        1.0,
        len(decoded.output),
        len(rounds),
        sum(row.drafted_len for row in rounds),
        sum(row.submitted_len for row in rounds),
        sum(row.accepted_len for row in rounds),
        decoded.decode_s,
        sum(row.draft_s for row in rounds),
        sum(row.verify_s for row in rounds),
        plain_s,
        plain_s / decoded.decode_s,
        different,
    ]


def results_of(sums: Sums, controllers: Sequence[str]) -> list[Result]:
    """Ratios of sums; empty when no prompt was decoded.

    Args:
        sums: float64[controllers, FIELDS], of all prompts and processes.
        controllers: in the order of the rows.
    """
    rows = {name: dict(zip(FIELDS, row.tolist(), strict=True)) for name, row in zip(controllers, sums, strict=True)}
    if not all(row["prompts"] for row in rows.values()):
        return []
    return [_result(name, row) for name, row in rows.items()]


def _result(name: str, row: dict[str, float]) -> Result:
    compared = row["plain_s"] > 0
    return Result(
        controller=name,
        prompts=int(row["prompts"]),
        tokens=int(row["tokens"]),
        rounds=int(row["rounds"]),
        tau=row["tokens"] / row["rounds"],
        tokens_per_s=row["tokens"] / row["decode_s"],
        speedup=row["plain_s"] / row["decode_s"] if compared else None,
        speedup_mean_of_ratios=row["ratios"] / row["prompts"] if compared else None,
        submitted_len=row["submitted"] / row["rounds"],
        acceptance_rate=row["accepted"] / row["submitted"] if row["submitted"] else None,
        decode_s=row["decode_s"],
        draft_share=row["draft_s"] / row["decode_s"],
        verify_share=row["verify_s"] / row["decode_s"],
        different=int(row["different"]) if compared else None,
    )


def best_of(results: Sequence[Result]) -> Result | None:
    """The fastest controller other than plain decoding; None when there is no other."""
    return max((result for result in results if result.controller != PLAIN), key=lambda r: r.tokens_per_s, default=None)


def results_table(results: Sequence[Result], *, greedy: bool) -> Table:
    """A table for people. `greedy`: say how many outputs differ from plain decoding's."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("controller", overflow="fold", min_width=24)
    columns = ["speedup", "per prompt", "tau", "length", "tokens/s"]
    for name in columns + (["different"] if greedy else []):
        table.add_column(name, justify="right")
    for r in results:
        cells = [
            "" if r.speedup is None else f"{r.speedup:.3f}",
            "" if r.speedup_mean_of_ratios is None else f"{r.speedup_mean_of_ratios:.3f}",
            f"{r.tau:.2f}",
            f"{r.submitted_len:.2f}",
            f"{r.tokens_per_s:.1f}",
        ]
        table.add_row(r.controller, *cells, *(["" if r.different is None else str(r.different)] if greedy else []))
    return table
