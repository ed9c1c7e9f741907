"""`python -m specsim.theory`: run every checker and print the verdicts; `eval` and `check` are subcommands."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from importlib.util import find_spec

import click
from rich.console import Console

from specsim.errors import ConfigError, run_cli
from specsim.theory.evaluate import evaluate
from specsim.theory.report import document, verdict_table
from specsim.theory.statements import STATEMENTS, check_all


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.pass_context
def main(context: click.Context, as_json: bool) -> int:
    """Which statements of LibraSpec and SP2ec hold, checked now, with the smallest counterexample of those that do not.

    Exit status 1 when a checker contradicts the recorded verdict.
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"--json comes after the name of a subcommand: {context.invoked_subcommand} --json")
        return 0
    started = time.perf_counter()
    results = check_all(STATEMENTS)
    seconds = time.perf_counter() - started
    if as_json:
        click.echo(json.dumps(document(results, seconds), indent=1, allow_nan=False))
    else:
        Console().print(verdict_table(results))
        cases = sum(finding.instances for _, finding, _ in results)
        click.echo(f"{len(results)} statements checked on {cases} exact instances in {seconds:.1f} s.")
    wrong = [(statement, fault) for statement, _, fault in results if fault]
    for statement, fault in wrong:
        click.echo(f"error: {statement.id}: recorded as {statement.verdict!r}, but {fault}", err=True)
    return 1 if wrong else 0


@main.command("eval")
def evaluate_lines() -> int:
    """Answer requests: one JSON object per line on stdin, one per line on stdout, in the same order.

    A line that cannot be answered gives {"error": ...}; the others still are, and the exit status is 2. Empty lines
    are passed over. The kinds and their keys are in docs/theory.md.
    """
    failed = 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        if not line.strip():
            continue
        try:
            answer = evaluate(_text(line))
        except ConfigError as error:
            failed += 1
            answer = {"error": f"line {number}: {error}"}
        click.echo(json.dumps(answer, allow_nan=False))
    return 2 if failed else 0


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"not UTF-8 ({error.reason} at byte {error.start}); allowed: one JSON object per line"
        ) from None


if find_spec("specsim.theory.check_cli") is not None:
    main.add_command(import_module("specsim.theory.check_cli").check)

if __name__ == "__main__":
    run_cli(main, prog_name="python -m specsim.theory")
