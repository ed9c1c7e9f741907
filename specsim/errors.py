"""Errors a user can fix, and the one wrapper that turns them into exit statuses.

Owns the exception types and the exit-status contract of every command line here (0 done, 2 bad input or arguments,
130 interrupted). Knows nothing about traces or controllers.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import click


class SpecsimError(Exception):
    """Bad input or arguments: the message says where, what was found, what is allowed and what to do. Exit status 2."""


class ConfigError(SpecsimError):
    """A parameter, controller name, latency model or output folder that cannot be used."""


class TraceError(SpecsimError):
    """A trace or round-log file that cannot be used, with the place of the fault.

    Args:
        path: the file.
        problem: what was found, in words, with the offending value.
        allowed: what the format allows there.
        advice: what to do about it.
        column: column name, when the fault lies in one.
        row: 0-based row number in the whole file, when the fault lies in one.
        request: value of the row's `request` column, when known.
    """

    def __init__(
        self,
        path: str | Path,
        problem: str,
        *,
        allowed: str = "",
        advice: str = "",
        column: str | None = None,
        row: int | None = None,
        request: int | None = None,
    ) -> None:
        self.path, self.problem, self.allowed, self.advice = str(path), problem, allowed, advice
        self.column, self.row, self.request = column, row, request
        place = str(path)
        if column is not None:
            place += f", column {column!r}"
        if row is not None:
            place += f", row {row}"
        if request is not None:
            place += f" (request {request})"
        text = f"{place}: {problem}"
        if allowed:
            text += f"; allowed: {allowed}"
        if advice:
            text += f". {advice}"
        super().__init__(text)


def run_cli(command: click.Command, args: Sequence[str] | None = None, prog_name: str | None = None) -> None:
    """Run a click command and leave the process with the status the file formats promise.

    Args:
        command: the command; it returns None or an int exit status.
        args: arguments, default `sys.argv[1:]`.
        prog_name: name shown in usage texts.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    status = _status_of(lambda: command.main(args=args, prog_name=prog_name, standalone_mode=False))
    sys.exit(status)


def _terminate(number: int, frame: object) -> None:
    """Leave through every `finally`, so that half-written files are removed; the usual status of a termination."""
    sys.exit(128 + number)


def _status_of(call: Callable[[], object]) -> int:
    try:
        result = call()
    except SpecsimError as error:
        click.echo(f"error: {error}", err=True)
        return 2
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except OSError as error:
        # What no command foresaw: a full disk, a closed pipe.
        with suppress(OSError):
            click.echo(f"error: {error}; check the disk and the place that output goes to", err=True)
        return 2
    return result if isinstance(result, int) else 0
