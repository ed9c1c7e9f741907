"""One streamed pass over a round log: sums per request, per depth, per length and per arm. Memory does not grow with
the rounds, only with requests, lengths and arms; rows may stand in any order.

Owns what is summed. Warm-up rounds are left out throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from specsim.errors import ConfigError, TraceError
from specsim.roundlog import stream_round_log

MAX_PENDING = 200_000  # rows of sums that wait to be added up
COUNTS = ("drafted_len", "submitted_len", "accepted_len", "emitted_len", "draft_passes")
SECONDS = ("draft_s", "verify_s", "overhead_s", "round_s")
ALONG = ("run_id", "round", "pos", "ctx_len", "arm", "submitted_len", "accepted_len", "round_s")
_READ = ("run_id", "request", "arm", *COUNTS, *SECONDS, "warmup")
_ONE = "one"  # a column of ones, to count rounds
_SEEN = "seen_len"  # the deepest token of a round whose acceptance it tells: the first rejected, or the last


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What a round log adds up to, warm-up rounds left out. Runs are in the order they first appear in.

    Args:
        requests: run_id, request, rounds, tokens (emitted), drafted, submitted, accepted, draft_passes, draft_s,
            verify_s, overhead_s, round_s; by run and request. Seconds are null where no round has them.
        depths: run_id, depth, submitted (rounds that submitted at least so many tokens), seen (those of them that
            accepted all tokens before), accepted (rounds that accepted at least so many); depths from 1 to the longest
            that was submitted.
        lengths: run_id, length (submitted), rounds, tokens, seconds.
        pulls: run_id, arm, rounds, tokens, seconds; rounds without an arm are left out.
    """

    requests: pa.Table
    depths: pa.Table
    lengths: pa.Table
    pulls: pa.Table


@dataclass
class _Sums:
    """Sums of columns by keys; pieces are added up whenever they become many."""

    keys: Sequence[str]
    values: Sequence[str]
    _pieces: list[pa.Table] = field(default_factory=list)
    _held: int = 0
    _most: int = field(default_factory=lambda: MAX_PENDING)

    def add(self, rows: pa.Table) -> None:
        """Take in rounds."""
        piece = self._summed(rows)
        self._pieces.append(piece)
        self._held += piece.num_rows
        if self._held > self._most:
            whole = self._summed(pa.concat_tables(self._pieces))
            # Where nearly every row has keys of its own, adding up at a fixed number would take quadratic time.
            self._pieces, self._held, self._most = [whole], whole.num_rows, max(MAX_PENDING, 2 * whole.num_rows)

    def table(self) -> pa.Table:
        """Keys and sums, by keys."""
        if not self._pieces:
            types = {name: pa.float64() if name in SECONDS else pa.int64() for name in (*self.keys, *self.values)}
            return pa.table({name: pa.array([], kind) for name, kind in types.items()})
        whole = self._summed(pa.concat_tables(self._pieces))
        return whole.sort_by([(key, "ascending") for key in self.keys])

    def _summed(self, rows: pa.Table) -> pa.Table:
        # Without threads: the order of additions, and so the last digit, is then always the same.
        grouped = rows.group_by(list(self.keys), use_threads=False).aggregate([(name, "sum") for name in self.values])
        return grouped.rename_columns([name.removesuffix("_sum") for name in grouped.column_names])


def scan(rounds: Path, *, on_progress: Callable[[float], None] | None = None) -> Scan:
    """Go over a round log once.

    Args:
        rounds: the file.
        on_progress: is told the share of rows that has been read.

    Raises:
        TraceError: the file is no round log, or holds a value that cannot be.
    """
    runs: dict[str, int] = {}
    requests = _Sums(("run", "request"), (_ONE, "emitted_len", *(n for n in COUNTS if n != "emitted_len"), *SECONDS))
    lengths = _Sums(("run", "submitted_len"), (_ONE, "emitted_len", "round_s"))
    accepted, seen = _Sums(("run", "accepted_len"), (_ONE,)), _Sums(("run", _SEEN), (_ONE,))
    pulls = _Sums(("run", "arm"), (_ONE, "emitted_len", "round_s"))
    for share, batch in stream_round_log(rounds, _READ):
        _check(batch, rounds)
        rows = _numbered(batch, runs)
        seen_len = np.minimum(np.asarray(rows["submitted_len"]), np.asarray(rows["accepted_len"]) + 1)
        rows = rows.append_column(_SEEN, pa.array(seen_len))
        for sums in (requests, lengths, accepted, seen):
            sums.add(rows)
        pulls.add(rows.filter(pc.field("arm") >= 0))
        if on_progress is not None:
            on_progress(share)
    names = list(runs)
    by_length = _named(lengths.table(), names, "run_id", "length", "rounds", "tokens", "seconds")
    return Scan(
        requests=_named(
            requests.table(),
            names,
            *("run_id", "request", "rounds", "tokens", "drafted", "submitted", "accepted", "draft_passes"),
            *SECONDS,
        ),
        depths=_depths(by_length, _counted(seen, names), _counted(accepted, names), names),
        lengths=by_length,
        pulls=_named(pulls.table(), names, "run_id", "arm", "rounds", "tokens", "seconds"),
    )


def along(rounds: Path, request: int) -> pa.Table:
    """The rounds of one request, by run and round: run_id, round, pos, ctx_len, arm, submitted_len, accepted_len,
    round_s.

    Args:
        rounds: the file.
        request: its number.

    Raises:
        ConfigError: no such request in the log.
        TraceError: the file is no round log.
    """
    runs: dict[str, int] = {}
    found: list[pa.Table] = []
    last = -1
    for _, batch in stream_round_log(rounds, (*ALONG, "request", "warmup")):
        last = max(last, int(batch.column("request").to_numpy().max()))
        rows = _numbered(batch, runs)
        found.append(rows.filter(pc.field("request") == request))
    whole = pa.concat_tables(found) if found else None
    if whole is None or not whole.num_rows:
        raise ConfigError(f"{rounds}: no request {request} in it; the last is {last}, name one of them")
    whole = whole.sort_by([("run", "ascending"), ("round", "ascending")])
    return _named(whole.select(["run", *ALONG[1:]]), list(runs), *ALONG)


def _numbered(batch: pa.RecordBatch, runs: dict[str, int]) -> pa.Table:
    """Rounds that count, with a number in place of the run's name, and a column of ones."""
    names = batch.column("run_id").dictionary_encode()
    numbers = np.array([runs.setdefault(name, len(runs)) for name in names.dictionary.to_pylist()], np.int32)
    table = pa.Table.from_batches([batch]).drop_columns(["run_id"])
    table = table.append_column("run", pa.array(numbers[names.indices.to_numpy()]))
    table = table.append_column(_ONE, pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows))
    return table.filter(~pc.field("warmup")).drop_columns(["warmup"])


def _check(batch: pa.RecordBatch, rounds: Path) -> None:
    """Refuse what would spoil every sum: times that are no numbers, counts and times below 0."""
    for name in ("request", *COUNTS, *SECONDS):
        values = batch.column(name).drop_null().to_numpy(zero_copy_only=False)
        wrong = values[~((values >= 0) & (values < np.inf))]  # so that NaN is found, too
        if wrong.size:
            raise TraceError(
                rounds, f"a value is {wrong[0]}", allowed="0 or more", column=name, advice="Make the log again"
            )


def _named(table: pa.Table, runs: Sequence[str], *names: str) -> pa.Table:
    """The table with its first column turned from numbers of runs to their names, and with these column names."""
    numbers = np.asarray(table.column(0)).astype(np.int64)
    ids = pa.array(runs, pa.string()).take(pa.array(numbers))
    return table.set_column(0, "run_id", ids).rename_columns(list(names))


def _counted(sums: _Sums, runs: Sequence[str]) -> pa.Table:
    """Rounds by run and length."""
    return _named(sums.table(), runs, "run_id", "length", "rounds")


def _depths(lengths: pa.Table, seen: pa.Table, accepted: pa.Table, runs: Sequence[str]) -> pa.Table:
    ids: list[str] = []
    columns: list[tuple[npt.NDArray[np.int64], ...]] = []
    for run in runs:
        submitted = _at_least(lengths, run)
        if not submitted.size:
            continue
        found = [np.zeros_like(submitted) for _ in range(2)]
        for one, table in zip(found, (seen, accepted), strict=True):
            reached = _at_least(table, run)[: submitted.size]
            one[: reached.size] = reached
        ids += [run] * submitted.size
        columns.append((np.arange(1, submitted.size + 1), submitted, *found))
    whole = {
        name: np.concatenate([part[place] for part in columns]) if columns else np.empty(0, np.int64)
        for place, name in enumerate(("depth", "submitted", "seen", "accepted"))
    }
    return pa.table({"run_id": pa.array(ids, pa.string()), **whole})


def _at_least(table: pa.Table, run: str) -> npt.NDArray[np.int64]:
    """int64[longest]: rounds of a run that had at least 1, 2, ... tokens."""
    mine = table.filter(pc.field("run_id") == run)
    counts = np.bincount(np.asarray(mine["length"]), weights=np.asarray(mine["rounds"]), minlength=1)
    return counts[::-1].cumsum()[::-1][1:].astype(np.int64)
