"""The panels of a dashboard, described once: what is shown, of which kind of run, and how.

Owns titles, keys and order. `analysis.boards` makes a workspace and a report of Weights & Biases of them,
`analysis.view` a local page; both show live runs and run folders alike, since both have the keys of `analysis.keys`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analysis import keys

DEFAULT_JOB = keys.CONTROLLER


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel.

    Args:
        title: what is shown, with its unit.
        kind: `curve` over `keys.ROUND`, `bars` of the summaries of runs, one `value` of a summary, a `table` or a
            `picture`.
        keys: what it shows; of a table or picture the one key it was logged under.
        of: job type of the runs that have them.
    """

    title: str
    kind: Literal["curve", "bars", "value", "table", "picture"]
    keys: tuple[str, ...]
    of: str = DEFAULT_JOB


@dataclass(frozen=True, kw_only=True)
class Section:
    """Panels under one heading, with what a reader has to know."""

    title: str
    text: str
    panels: tuple[Panel, ...]


SECTIONS = (
    Section(
        title="Results",
        text="Speedup is plain decoding's seconds over the controller's for as many tokens, sums over sums; its 95 % "
        "interval is by bootstrap over requests. tau counts the target's own token of every round.",
        panels=(
            Panel(
                title="Speedup over plain decoding, with its 95 % interval",
                kind="bars",
                keys=("speedup", "speedup_low", "speedup_high"),
            ),
            Panel(title="Throughput, tokens/s", kind="bars", keys=("tokens_per_s",)),
            Panel(title="tau, tokens per round", kind="bars", keys=("tau",)),
            Panel(title="Mean draft length verified", kind="bars", keys=("submitted_len",)),
            Panel(title="Accepted share of submitted tokens", kind="bars", keys=("acceptance_rate",)),
            Panel(
                title="Speedup of the fastest controller",
                kind="value",
                keys=(keys.BEST_SPEEDUP,),
                of=keys.COMPARISON,
            ),
            Panel(title="Controllers", kind="table", keys=(keys.CONTROLLERS,), of=keys.COMPARISON),
        ),
    ),
    Section(
        title="Along the rounds",
        text="A controller's own count of rounds, over all requests. Of long logs a point stands for a block of "
        "rounds: its mean, and what holds for all rounds so far.",
        panels=(
            Panel(title="tau so far, tokens per round", kind="curve", keys=(keys.TAU,)),
            Panel(title="Throughput so far, tokens/s", kind="curve", keys=(keys.TOKENS_PER_S,)),
            Panel(title="Draft length submitted", kind="curve", keys=("submitted_len",)),
            Panel(title="Draft tokens accepted", kind="curve", keys=("accepted_len",)),
            Panel(title="Draft tokens drafted", kind="curve", keys=("drafted_len",)),
            Panel(title="Tokens emitted", kind="curve", keys=("emitted_len",)),
        ),
    ),
    Section(
        title="Where the time goes",
        text="Seconds of a round and their shares of all rounds; what is left is the loop's own work. Times of a "
        "replay are its latency model's.",
        panels=(
            Panel(
                title="Shares of all seconds",
                kind="bars",
                keys=("draft_share", "verify_share", "controller_share", "build_share"),
            ),
            Panel(title="Round, s", kind="curve", keys=("round_s",)),
            Panel(title="Drafting, s", kind="curve", keys=("draft_s",)),
            Panel(title="Verifying, s", kind="curve", keys=("verify_s",)),
            Panel(title="Overhead, s", kind="curve", keys=("overhead_s",)),
            Panel(title="Deciding and building, s", kind="curve", keys=keys.LIVE_COLUMNS),
            Panel(
                title="Seconds of verification, by token positions",
                kind="table",
                keys=(keys.LATENCY,),
                of=keys.COMPARISON,
            ),
        ),
    ),
    Section(
        title="Sweeps",
        text="Speedup over alpha and maximum length, from `python -m analysis.sweep`.",
        panels=(
            Panel(title="Speedup of the best cell", kind="value", keys=(keys.BEST_SPEEDUP,), of=keys.SWEEP),
            Panel(title="Heat map", kind="picture", keys=(keys.HEAT_MAP,), of=keys.SWEEP),
            Panel(title="Cells of the sweep", kind="table", keys=(keys.CELLS,), of=keys.SWEEP),
        ),
    ),
)
