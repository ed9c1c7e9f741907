"""The commands `python -m specsim.trace info` and `check`. Owns their output, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specsim.errors import TraceError
from specsim.paths import expand_paths
from specsim.quarantine import quarantine_requests
from specsim.reader import open_trace
from specsim.trace_info import INFO_SCHEMA_NAME, trace_info

_SHOWN_DEPTHS = 12


@click.group()
def main() -> None:
    """Look at trace files."""


@main.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def info(files: tuple[str, ...], as_json: bool) -> None:
    """Describe trace FILES: sizes, acceptance, what was recorded."""
    documents = [trace_info(path) for path in expand_paths(files)]
    if as_json:
        click.echo(json.dumps({"schema": INFO_SCHEMA_NAME, "traces": documents}, allow_nan=False))
        return
    console = Console()
    for document in documents:
        click.echo(document["path"])  # not as the table's title, which would be wrapped
        console.print(_info_table(document))


@main.command()
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--quarantine",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Copy requests that break the format to DIR with the reason, instead of failing.",
)
def check(files: tuple[str, ...], quarantine: Path | None) -> int:
    """Check every row of trace FILES; exit status 2 when one of them cannot be used."""
    failed = 0
    for path in expand_paths(files):
        try:
            click.echo(_checked(path, quarantine))
        except TraceError as error:
            failed += 1
            click.echo(f"error: {error}", err=True)
    return 2 if failed else 0


def _checked(path: Path, quarantine: Path | None) -> str:
    if quarantine is None:
        requests = rows = 0
        with open_trace(path) as reader:
            for chunk in reader.chunks(columns=()):
                rows += chunk.rows
                requests += 1 + int((chunk.request[1:] != chunk.request[:-1]).sum())
        return f"{path}: ok, {requests} requests, {rows} rows"
    report = quarantine_requests(path, quarantine)
    if not report.reasons:
        return f"{path}: ok, {report.requests_seen} requests, {report.rows} rows"
    lines = [
        f"{path}: quarantined {len(report.reasons)} of {report.requests_seen} requests "
        f"({report.rows_moved} of {report.rows} rows), see {report.report_file}"
    ]
    lines += [f"  request {request}: {reasons[0]}" for request, reasons in list(report.reasons.items())[:5]]
    return "\n".join(lines)


def _info_table(document: dict[str, Any]) -> Table:
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _info_rows(document):
        table.add_row(name, Text(value))  # not str: rich would read the brackets of "accept_len[i+1]" as markup
    return table


def _info_rows(d: dict[str, Any]) -> Iterable[tuple[str, str]]:
    meta = d["metadata"]
    yield "kind, coverage", f"{meta['kind']}, {meta['coverage']}"
    yield "target / drafter", f"{meta['target'] or '?'} / {meta['drafter'] or '?'}, block_len {meta['block_len']}"
    yield "dataset, temperature", f"{meta['dataset'] or '?'}, {meta['temperature']:g}"
    yield "exact", f"{str(meta['exact']).lower()}, mismatches {_text(meta['mismatches'])}"
    yield "rows, requests", f"{d['rows']:,} rows, {d['requests']:,} requests" + _missing_requests(d)
    yield "positions per request", _spread(d["positions_per_request"])
    yield "draft length m", f"{_spread(d['draft_len'])}; max_draft_len {meta['max_draft_len']}"
    if "tree" in d:
        yield "tree replay", f"up to {d['tree']['max_nodes']} nodes"
        yield "tokens listed", "n/a" if d["tree"]["listed"] is None else _spread(d["tree"]["listed"])
        yield "target's token", ", ".join(f"{name} {_percent(v)}" for name, v in d["tree"]["target_ranks"].items())
    yield "mean accept_len", f"{d['mean_accept_len']:.3f}"
    yield "tau at full length", f"{d['tau_full_len']:.3f}"
    yield "survival by depth", _survival(d["survival"])
    yield "censored rows", f"{_percent(d['censored_share'])} (accept_len = m < longest draft)"
    yield "staircase rate", f"{_percent(d['staircase_rate'])} (accept_len[i+1] >= accept_len[i] - 1)"
    yield "accept_prob is 0/1", f"{_percent(d['accept_prob_binary_share'])} of rows"
    yield "... and agrees", f"{_percent(d['accept_prob_agrees_share'])} of rows (leading ones = accept_len)"
    yield "null columns", ", ".join(d["null_columns"]) or "none"
    if d["partly_null_columns"]:
        yield "partly null columns", ", ".join(d["partly_null_columns"])
    yield "latency model", "embedded" if d["has_latency"] else "none"


def _missing_requests(d: dict[str, Any]) -> str:
    declared = d["metadata"]["requests"]
    return "" if declared in (None, d["requests"]) else f" (metadata says {declared:,} requests)"


def _spread(values: dict[str, Any]) -> str:
    return f"min {values['min']:,}, median {values['median']:,}, max {values['max']:,}"


def _survival(values: list[float]) -> str:
    shown = " ".join(f"{value:.3f}" for value in values[:_SHOWN_DEPTHS])
    return shown + (f" ... {values[-1]:.3f} (depth {len(values)})" if len(values) > _SHOWN_DEPTHS else "")


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f} %"


def _text(value: object) -> str:
    return "?" if value is None else str(value)
