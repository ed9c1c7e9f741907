"""Logs of rounds: what their replay can and cannot say, and the segment-stratified estimate that says more.

A log of rounds holds rows only where the logging controller started rounds. Where difficulty persists that is a biased
sample of starts for any other controller: short rounds start often in easy stretches, long ones seldom. Within a short
segment of text the two see the same difficulty, so time per token is estimated segment by segment and weighted with
the tokens of the text instead of with rounds (docs/validity.md):

    time = sum over segments of tokens(segment) * (sum of round times / sum of tokens emitted)_segment

Knows rows and rounds, no controllers and no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import RAGGED_FIELDS, ROW_FIELDS, TOKEN_FIELDS, TraceChunk, offsets_of
from specsim.jit import jit
from specsim.kernel import ChunkRun
from specsim.rows import SUM_NAMES, Costs, Rows
from specsim.schema import TraceMeta

SEGMENT_ROUNDS = 5
"""Rounds per segment. One is biased (a ratio of two random numbers), a hundred no longer local."""


SHORT_ENDS = 0.05
"""Share of rounds that may ask for more than was logged without a word: the ends of texts."""


class Stratified(NamedTuple):
    """Sums of the estimate: seconds, tokens of the text, seconds of plain decoding for them. Add them over chunks."""

    time_s: float
    tokens: float
    plain_s: float


def stratified_sums(
    rows: Rows,
    costs: Costs,
    emitted_len: NDArray[Any],
    round_s: NDArray[np.float64],
    segment: int = SEGMENT_ROUNDS,
) -> Stratified:
    """The estimate for one chunk of a log of rounds replayed row by row.

    Tokens of the text are steps of `pos`; the last round of a request, whose step is not in the log, counts what it
    accepted plus one, at most the longest step seen in the chunk.

    Args:
        rows: rows of the chunk (whole requests), one per round.
        costs: costs of the replay.
        emitted_len, round_s: of the replayed rounds, one per row in row order.
        segment: rounds per segment.
    """
    assert len(emitted_len) == len(round_s) == rows.pos.size, "a log of rounds is replayed one round per row"
    return Stratified(*_stratified(rows, costs, emitted_len, round_s, logged_steps(rows), segment))


def logged_steps(rows: Rows) -> NDArray[np.int64]:
    """int64[R]: tokens by which the log moved on after each row; see `stratified_sums` for the last of a request."""
    last = rows.starts[1:] - 1
    steps = np.zeros(rows.pos.size, np.int64)
    steps[:-1] = np.diff(rows.pos)
    steps[last] = 0
    guess = rows.accept_len[last].astype(np.int64) + 1
    longest = int(steps.max(initial=0))
    steps[last] = np.minimum(guess, longest) if longest else guess
    return steps


@jit
def _stratified(rows, costs, emitted_len, round_s, steps, segment):
    time_s, tokens, plain_s = 0.0, 0.0, 0.0
    for b in range(rows.starts.size - 1):
        first = rows.starts[b]
        while first < rows.starts[b + 1]:
            stop = min(first + segment, rows.starts[b + 1])
            seconds, emitted, text = 0.0, 0.0, 0.0
            for row in range(first, stop):
                seconds += round_s[row]
                emitted += emitted_len[row]
                n = float(steps[row])
                text += n
                plain_s += n * costs.verify_s[1] + costs.ctx_s * (n * rows.ctx_len[row] + n * (n - 1) * 0.5)
            time_s += text * seconds / emitted
            tokens += text
            first = stop
    return time_s, tokens, plain_s


def stratified(parts: Iterable[Stratified]) -> dict[str, float]:
    """Results of all chunks: `stratified_time_s`, `stratified_tokens`, `stratified_speedup`."""
    listed = list(parts)
    time_s, tokens, plain_s = (float(sum(column)) for column in zip(*listed, strict=True)) if listed else (0.0,) * 3
    return {
        "stratified_time_s": time_s,
        "stratified_tokens": tokens,
        "stratified_speedup": plain_s / time_s if time_s > 0 else 1.0,
    }


class OffPolicy(NamedTuple):
    """How a replay of a log of rounds departs from the log; sums over chunks.

    Attributes:
        rounds: replayed.
        other_length: that submitted another number of tokens than the log, None where the log's is unknown (it recorded
            drafts longer than what it submitted, or trees).
        other_step: that would have moved on by another number of tokens than the log, so that the next row is no start
            of theirs; of `steps` rounds whose step is in the log.
        clamped: that asked for more tokens than were recorded.
        submitted, logged: sums of submitted and of logged lengths.
    """

    rounds: int
    other_length: int | None
    other_step: int
    steps: int
    clamped: int
    submitted: int
    logged: int

    def plus(self, other: OffPolicy) -> OffPolicy:
        """The sums of two chunks."""
        lengths = (self.other_length, other.other_length)
        total = None if lengths[0] is None or lengths[1] is None else lengths[0] + lengths[1]
        pairs = zip(self._replace(other_length=0), other._replace(other_length=0), strict=True)
        return OffPolicy(*[(a or 0) + (b or 0) for a, b in pairs])._replace(other_length=total)


def off_policy(
    rows: Rows, submitted_len: NDArray[Any], emitted_len: NDArray[Any], clamped_rounds: int = 0
) -> OffPolicy:
    """Compare the rounds of a replay, one per row, with the log they come from.

    Args:
        rows: rows of the chunk.
        submitted_len, emitted_len: of the replayed rounds.
        clamped_rounds: as the replay counted them.
    """
    within = np.ones(rows.pos.size, np.bool_)
    within[rows.starts[1:] - 1] = False
    steps = logged_steps(rows)
    m = np.diff(rows.offsets)
    whole = rows.gained.size > 0 or bool((rows.accept_len[within] + 1 > steps[within]).any())
    return OffPolicy(
        rounds=rows.pos.size,
        other_length=None if whole else int((submitted_len != m).sum()),
        other_step=int((emitted_len != steps)[within].sum()),
        steps=int(within.sum()),
        clamped=int(clamped_rounds),
        submitted=int(submitted_len.sum()),
        logged=int(m.sum()),
    )


def off_policy_note(found: OffPolicy) -> str | None:
    """A warning in words when a log of rounds was replayed at lengths it was not logged with, else None."""
    # A few drafts are short because their text ends, which a log cannot tell from a draft that was cut.
    cut = found.clamped > SHORT_ENDS * found.rounds
    if not found.rounds or not (found.other_length or found.other_step or cut):
        return None
    parts = []
    if found.other_length:
        logged, submitted = found.logged / found.rounds, found.submitted / found.rounds
        share = 100 * found.other_length / found.rounds
        parts.append(f"{share:.1f} % of its rounds submit another length than the log ({submitted:.2f} tokens against")
        parts[-1] += f" {logged:.2f} on average)"
    if found.other_step:
        share = 100 * found.other_step / found.steps
        parts.append(f"{share:.1f} % move on by another number of tokens, so that the next row is no start of theirs")
    if cut:
        parts.append(f"{100 * found.clamped / found.rounds:.1f} % ask for more than was recorded")
    return f"off-policy: {'; '.join(parts)}; where difficulty persists speedup is biased, see stratified_speedup"


class LogValidity:
    """What one controller's replay of a log of rounds is worth, gathered chunk by chunk."""

    def __init__(self) -> None:
        self._parts: list[Stratified] = []
        self._steps: OffPolicy | None = None

    def add(self, rows: Rows, costs: Costs, run: ChunkRun) -> None:
        """Add the rounds of a chunk."""
        self._parts.append(stratified_sums(rows, costs, run.rounds.emitted_len, run.rounds.round_s))
        clamped = int(run.sums[SUM_NAMES.index("clamped")])
        part = off_policy(rows, run.rounds.submitted_len, run.rounds.emitted_len, clamped)
        self._steps = part if self._steps is None else self._steps.plus(part)

    def summary(self) -> dict[str, Any]:
        """Result keys: the stratified estimate, and `off_policy`, a text when other lengths than logged were used.

        All None when nothing was added (plain decoding, arms).
        """
        if self._steps is None:
            keys = ("stratified_time_s", "stratified_tokens", "stratified_speedup", "off_policy")
            return dict.fromkeys(keys)
        return {**stratified(self._parts), "off_policy": off_policy_note(self._steps)}


def rounds_to_trace(
    meta: TraceMeta, chunk: TraceChunk, columns: Mapping[str, NDArray[Any]], *, whole_drafts: bool = False
) -> tuple[TraceMeta, TraceChunk]:
    """The every-round trace that a controller would have logged on an every-position trace.

    Args:
        meta, chunk: every-position trace, the whole of it.
        columns: RoundLog columns of the run (`request`, `pos`, `submitted_len`), in order.
        whole_drafts: keep all m draft tokens of a row, as a logger does that has acceptance scored beyond what it
            submitted; default: only the submitted ones, all that an engine knows.
    """
    key = chunk.request.astype(np.int64) << 32 | chunk.pos
    row = np.searchsorted(key, columns["request"].astype(np.int64) << 32 | columns["pos"])
    m = chunk.lengths[row] if whole_drafts else columns["submitted_len"].astype(np.int64)
    offsets = offsets_of(m)
    tokens = np.repeat(chunk.offsets[:-1][row] - offsets[:-1], m) + np.arange(int(offsets[-1]))
    values: dict[str, Any] = {name: None for pair in RAGGED_FIELDS for name in pair}
    values |= {name: _taken(getattr(chunk, name), row) for name in ROW_FIELDS}
    values |= {name: _taken(getattr(chunk, name), tokens) for name in TOKEN_FIELDS}
    log = TraceChunk(
        request=chunk.request[row],
        pos=chunk.pos[row],
        offsets=offsets,
        accept_len=np.minimum(chunk.accept_len[row], m).astype(np.int16),
        **values,
    )
    longest = meta.max_draft_len if whole_drafts else int(m.max(initial=0))
    return replace(meta, coverage="every-round", max_draft_len=longest, exact=False), log


def _taken(values: NDArray[Any] | None, where: NDArray[np.int64]) -> NDArray[Any] | None:
    return None if values is None else values[where]
