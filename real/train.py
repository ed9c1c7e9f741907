"""`python -m real.train fit --config FILE`: train a small target, or drafters for a target, under Lightning.

Owns the exit statuses of that command. What can be configured is in `real.training.cli` and `--help`.
"""

from __future__ import annotations

import sys
import warnings

import click

from specsim.errors import run_cli


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def main(args: tuple[str, ...]) -> None:
    """Train, keep checkpoints and curves, and write the result.

    An interrupted run (exit status 130) goes on when the same command is given again.
    """
    # Between Lightning 2.6 and torch 2.13; nothing a user can do about.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    from real.training.cli import TrainCLI

    sys.argv = [sys.argv[0], *args]  # what Lightning's parser reads
    try:
        TrainCLI()
    except SystemExit as leaving:
        # Lightning turns an interruption into status 1.
        if isinstance(leaving.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.train")
