"""What a comparison of controllers comes to: sums over prompts that can be added over processes, and ratios of them.

Owns the formulas, for every command. Warm-up runs never count. Time is that of the rounds, and of what was built before
the first; the prompt's own pass is not in it. Tokens are ids that the same loop counted, for plain decoding too.

    tau      = tokens / rounds, the target's own token of every round included (plain decoding: 1)
    tokens/s = tokens / seconds of all rounds
    speedup  = sum of plain decoding's seconds / sum of the controller's seconds, over prompts, for as many tokens
               (plain decoding's seconds on a prompt are scaled to the controller's tokens where lengths differ)
    controller_share, build_share = seconds in the controller's functions, in making arms / seconds of all rounds
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
from real.reference import ASSISTED, LIVE, labelled

FIELDS = (
    *("prompts", "tokens", "rounds", "drafted", "submitted", "accepted", "decode_s", "draft_s", "verify_s"),
    *("plain_s", "ratios", "different", "prefill_s", "controller_s", "build_s"),
    *("assisted", "mismatches"),
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
        prefill_s: seconds of the prompts' own passes.
        decode_s: seconds of all rounds, and of what was built before the first.
        draft_share, verify_share: of these seconds; the rest is the loop's own work, and the two that follow.
        controller_share: of these seconds, in the controller's functions.
        build_s, build_share: of these seconds, spent on making draft configurations.
        different: prompts whose output is not plain decoding's, token for token; None without plain decoding, or where
            that output was the reference. Sampled outputs differ by chance.
        verification: `live` or `reference-assisted` (`real.reference`).
        mismatches: tokens in whose place the target would have chosen another than the reference; None: verified live.
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
    prefill_s: float
    decode_s: float
    draft_share: float
    verify_share: float
    controller_share: float
    build_s: float
    build_share: float
    different: int | None
    verification: str
    mismatches: int | None

    @property
    def label(self) -> str:
        """Its name in tables and logs, which says how drafts were verified if that was not live."""
        return labelled(self.controller, self.verification)

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
        decoded.prefill_s,
        decoded.controller_s,
        decoded.build_s,
        float(decoded.verification == ASSISTED),
        float(decoded.mismatches or 0),
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
    compared, assisted = row["plain_s"] > 0, row["assisted"] > 0
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
        prefill_s=row["prefill_s"],
        decode_s=row["decode_s"],
        draft_share=row["draft_s"] / row["decode_s"],
        verify_share=row["verify_s"] / row["decode_s"],
        controller_share=row["controller_s"] / row["decode_s"],
        build_s=row["build_s"],
        build_share=row["build_s"] / row["decode_s"],
        different=int(row["different"]) if compared and not assisted else None,
        verification=ASSISTED if assisted else LIVE,
        mismatches=int(row["mismatches"]) if assisted else None,
    )


def best_of(results: Sequence[Result]) -> Result | None:
    """The fastest controller other than plain decoding; None when there is no other."""
    return max((result for result in results if result.controller != PLAIN), key=lambda r: r.tokens_per_s, default=None)


def results_table(results: Sequence[Result], *, greedy: bool) -> Table:
    """A table for people. `greedy`: say how many outputs differ from plain decoding's, or tokens from the target's."""
    assisted = any(r.mismatches is not None for r in results)
    columns = ["speedup", "per prompt", "tau", "length", "tokens/s"]
    table = _table(columns + ["mismatch" if assisted else "different"] * greedy)
    for r in results:
        counted = r.mismatches if assisted else r.different
        cells = [
            "" if r.speedup is None else f"{r.speedup:.3f}",
            "" if r.speedup_mean_of_ratios is None else f"{r.speedup_mean_of_ratios:.3f}",
            f"{r.tau:.2f}",
            f"{r.submitted_len:.2f}",
            f"{r.tokens_per_s:.1f}",
        ]
        table.add_row(r.label, *cells, *["" if counted is None else str(counted)] * greedy)
    return table


def times_table(results: Sequence[Result]) -> Table:
    """What the seconds of all rounds were spent on, as shares; the rest is the loop's own work."""
    table = _table(["drafting", "verifying", "deciding", "building"])
    for r in results:
        shares = (r.draft_share, r.verify_share, r.controller_share, r.build_share)
        table.add_row(r.label, *(f"{share:.2%}" for share in shares))
    return table


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("controller", overflow="fold", min_width=24)
    for name in columns:
        table.add_column(name, justify="right")
    return table
