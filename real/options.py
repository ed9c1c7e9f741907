"""Options that several commands take, with their ranges."""

from __future__ import annotations

import click

from real.loop import MAX_SEED

SEED = click.IntRange(0, MAX_SEED)  # what `real.draws` takes
