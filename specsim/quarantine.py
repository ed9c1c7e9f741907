"""Setting aside the requests that break the format, so that the rest of a file can be used.

Owns which requests offend and the two files that record them. The rules are those of `validate`; the original file is
never changed, the caller replays it with `skip_requests=report.requests`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specsim.decode import Block, decode_block
from specsim.errors import ConfigError, TraceError
from specsim.paths import replace_file
from specsim.reader import TraceReader, open_parquet, open_trace, read_batches, request_ids
from specsim.validate import Carry, advance, ctx_mix_fault, error_of, request_faults, row_faults
from specsim.writer import parquet_writer

REPORT_SCHEMA_NAME: Final = "specsim.quarantine/1"
_REASON: Final = "quarantine_reason"


@dataclass(frozen=True, kw_only=True)
class QuarantineReport:
    """What was set aside.

    Args:
        path: the examined file.
        rows, requests_seen: totals of that file (requests by distinct id).
        reasons: offending request id -> sentences that say what is wrong with it, ascending ids.
        rows_moved: rows of the offending requests.
        side_file, report_file: where they and their reasons went; None when nothing offends.
    """

    path: Path
    rows: int
    requests_seen: int
    reasons: dict[int, list[str]]
    rows_moved: int
    side_file: Path | None = None
    report_file: Path | None = None

    @property
    def requests(self) -> frozenset[int]:
        """Ids to pass to `skip_requests`."""
        return frozenset(self.reasons)

    def to_json(self) -> dict[str, Any]:
        """The report as it is stored beside the rows."""
        return {
            "schema": REPORT_SCHEMA_NAME,
            "source": str(self.path.resolve()),
            "rows": self.rows,
            "requests": self.requests_seen,
            "quarantined_requests": len(self.reasons),
            "quarantined_rows": self.rows_moved,
            "rows_file": None if self.side_file is None else self.side_file.name,
            "reasons": {str(request): reasons for request, reasons in self.reasons.items()},
        }


def quarantine_requests(path: str | Path, out_dir: str | Path) -> QuarantineReport:
    """Find the offending requests of a trace file and copy their rows to a side file with the reason.

    Writes `<stem>.quarantined.parquet` (the offending rows with all original columns and `quarantine_reason`) and
    `<stem>.quarantine.json` into `out_dir`, which is created; writes nothing when no request offends. Streamed: memory
    grows with the number of requests, not with the number of rows.

    Args:
        path: trace file, not changed.
        out_dir: folder of the side files.

    Returns:
        The report; its `requests` are the ids to skip.

    Raises:
        TraceError: a fault of the file itself, a row whose request id is null or fractional, or no request survives.
        ConfigError: `out_dir` cannot be used, or holds the quarantine of another file of the same name.
    """
    with open_trace(path) as reader:
        findings = _examine(reader)
        reasons = {request: findings.reasons_of(request) for request in sorted(findings.offenders())}
        seen = len(findings.rows)
        moved = sum(findings.rows[request] for request in reasons)
        report = QuarantineReport(
            path=Path(path), rows=reader.rows, requests_seen=seen, reasons=reasons, rows_moved=moved
        )
    if not reasons:
        return report
    if len(reasons) == seen:
        first, why = next(iter(reasons.items()))
        raise TraceError(
            path,
            f"none of the {seen} requests is usable; for instance {why[0]}",
            allowed="at least one valid request",
            advice="Record the trace again",
            request=first,
        )
    return _set_aside(report, Path(out_dir))


@contextmanager
def taken_back_on_failure() -> Iterator[list[Path]]:
    """A list for side files: those in it are removed again, with folders left empty, when the block fails."""
    written: list[Path] = []
    try:
        yield written
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in written}:
            with suppress(OSError):
                folder.rmdir()
        raise


@dataclass(slots=True)
class _Findings:
    """What the first pass collects, all of it per request."""

    rows: Counter[int] = field(default_factory=Counter)
    groups: list[int] = field(default_factory=list)  # request id of each run of equal ids, in file order
    messages: dict[int, dict[tuple[str, str], tuple[str, int]]] = field(default_factory=dict)
    with_ctx: set[int] = field(default_factory=set)
    without_ctx: set[int] = field(default_factory=set)
    ctx_message: str = ""

    def note(self, request: int, column: str, allowed: str, text: str, count: int) -> None:
        """Record `count` rows that break one rule, keeping the first text."""
        rules = self.messages.setdefault(request, {})
        first, known = rules.get((column, allowed), (text, 0))
        rules[column, allowed] = (first, known + count)

    def offenders(self) -> set[int]:
        """Ids of all offending requests; faults between requests are settled here."""
        # Ids are ascending or not among the usable requests; being in two places condemns an id in any case.
        repeated = {request for request, count in Counter(self.groups).items() if count > 1}
        single = [r for r in self.groups if r not in self.messages and r not in repeated]
        for request in repeated | (set(single) - _longest_ascending(single)):
            self.note(request, "request", "order", "column 'request': its rows lie out of order in the file", 1)
        with_ctx, without_ctx = self.with_ctx - set(self.messages), self.without_ctx - set(self.messages)
        if with_ctx and without_ctx:
            # The rarer kind offends, so that one odd request does not condemn the file.
            few, text = (without_ctx, "null") if len(without_ctx) <= len(with_ctx) else (with_ctx, "recorded")
            for request in few:
                self.note(request, "ctx_len", "mix", f"column 'ctx_len': {text}, unlike most of the file", 1)
        return set(self.messages)

    def reasons_of(self, request: int) -> list[str]:
        """One sentence per broken rule."""
        return [
            text if count == 1 else f"{text} [and {count - 1} more rows of this request]"
            for text, count in self.messages[request].values()
        ]


def _examine(reader: TraceReader) -> _Findings:
    findings, carry = _Findings(), Carry()
    for first_row, batch in reader.batches():
        block = decode_block(batch, first_row)
        ids = block.ints["request"].values
        for found in [
            *request_faults(block),
            *row_faults(block, reader.meta, carry),
            *_ctx_faults_inside(block, carry),
        ]:
            if found.fatal:
                raise error_of(found, block, reader.path)
            requests, first, counts = np.unique(ids[found.rows], return_index=True, return_counts=True)
            for request, at, count in zip(requests.tolist(), first.tolist(), counts.tolist(), strict=True):
                row = int(found.rows[at])
                text = f"column {found.column!r}, row {first_row + row}: {found.found(row)}; allowed: {found.allowed}"
                findings.note(request, found.column, found.allowed, text, count)
        _count(findings, block)
        advance(block, carry)
    return findings


def _ctx_faults_inside(block: Block, carry: Carry):
    """`ctx_len` null in some rows of one request; between requests `_Findings.offenders` decides."""
    ids, valid = block.ints["request"].values, block.ints["ctx_len"].valid
    before_id = np.concatenate(([ids[0] - 1 if carry.request is None else carry.request], ids[:-1]))
    before = np.concatenate(([bool(carry.ctx_recorded)], valid[:-1]))
    yield from ctx_mix_fault(np.flatnonzero((ids == before_id) & ~valid & before), recorded=True)
    yield from ctx_mix_fault(np.flatnonzero((ids == before_id) & valid & ~before), recorded=False)


def _count(findings: _Findings, block: Block) -> None:
    ids, valid = block.ints["request"].values, block.ints["ctx_len"].valid
    requests, counts = np.unique(ids, return_counts=True)
    findings.rows.update(dict(zip(requests.tolist(), counts.tolist(), strict=True)))
    runs = ids[np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))].tolist()
    continues = bool(findings.groups) and findings.groups[-1] == runs[0]
    findings.groups.extend(runs[1:] if continues else runs)
    findings.with_ctx.update(np.unique(ids[valid]).tolist())
    findings.without_ctx.update(np.unique(ids[~valid]).tolist())


def _longest_ascending(ids: list[int]) -> set[int]:
    """Ids of a longest strictly ascending subsequence: leaving out the others removes the fewest requests."""
    if all(a < b for a, b in pairwise(ids)):  # the usual case, without the work below
        return set(ids)
    tails: NDArray[np.int64] = np.empty(len(ids), dtype=np.int64)  # smallest last id of a chain of each length
    last: list[int] = []  # index into ids of that last id
    previous = [-1] * len(ids)
    for i, request in enumerate(ids):
        length = int(np.searchsorted(tails[: len(last)], request))
        previous[i] = last[length - 1] if length else -1
        tails[length] = request
        last[length : length + 1] = [i]
    chain, i = set(), last[-1]
    while i >= 0:
        chain.add(ids[i])
        i = previous[i]
    return chain


def _set_aside(report: QuarantineReport, out_dir: Path) -> QuarantineReport:
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out_dir}: cannot be used as quarantine folder ({error.strerror}); name another") from error
    side_file = out_dir / f"{report.path.stem}.quarantined.parquet"
    report_file = out_dir / f"{report.path.stem}.quarantine.json"
    _refuse_foreign(report_file, report.path)
    done = QuarantineReport(
        path=report.path,
        rows=report.rows,
        requests_seen=report.requests_seen,
        reasons=report.reasons,
        rows_moved=report.rows_moved,
        side_file=side_file,
        report_file=report_file,
    )
    with replace_file(report_file) as temporary:
        temporary.write_text(json.dumps(done.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        _copy_rows(done, side_file)
    return done


def _refuse_foreign(report_file: Path, path: Path) -> None:
    """Two files of the same name from different folders must not overwrite each other's quarantine."""
    if not report_file.exists():
        return
    try:
        source = json.loads(report_file.read_text(encoding="utf-8"))["source"]
    except (ValueError, KeyError, TypeError, OSError):
        source = None
    if source != str(path.resolve()):
        raise ConfigError(f"{report_file}: already holds the quarantine of {source}; name another folder for {path}")


def _copy_rows(report: QuarantineReport, side_file: Path) -> None:
    file = open_parquet(report.path)
    try:
        stored: pa.Schema = file.schema_arrow
        columns = [name for name in stored.names if name != _REASON]  # a side file may itself be examined again
        stored = pa.schema([stored.field(name) for name in columns], metadata=stored.metadata)
        schema = stored.append(pa.field(_REASON, pa.string(), nullable=False))
        texts = {request: " | ".join(reasons) for request, reasons in report.reasons.items()}
        with replace_file(side_file) as temporary, parquet_writer(temporary, schema) as writer:
            for _, batch in read_batches(file, report.path, columns):
                ids = request_ids(batch)
                wanted = np.isin(ids, list(texts))
                if wanted.any():
                    part = batch.filter(pa.array(wanted))
                    reasons = pa.array([texts[request] for request in ids[wanted].tolist()], pa.string())
                    writer.write_batch(pa.record_batch([*part.columns, reasons], schema=schema))
    finally:
        file.close()
