"""`python -m real.run test|predict --config FILE`: compare controllers on prompts with a real model, under Lightning.

Owns the exit statuses of that command. What can be configured is in `real.lightning.cli` and `--help`.
"""

from __future__ import annotations

import sys
import warnings

import click

from specsim.errors import run_cli


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def main(args: tuple[str, ...]) -> None:
    """Decode prompts with every controller, record the rounds, and show the speedups.

    An interrupted run (exit status 130) continues when the same command is given again.
    """
    # Between Lightning 2.6 and torch 2.13; nothing a user can do about.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    from real.lightning.cli import RunCLI

    # Both Lightning's parser and its launcher of further processes read sys.argv.
    sys.argv = [sys.argv[0], *args]
    try:
        RunCLI()
    except SystemExit as leaving:
        # Lightning turns an interruption into status 1.
        if isinstance(leaving.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.run")
