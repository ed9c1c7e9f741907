"""Trace files: `open_trace`, `read_trace`, `write_trace`, and the `info` and `check` commands.

    python -m specsim.trace info FILE... [--json]
    python -m specsim.trace check FILE... [--quarantine DIR]

This module only gathers the names; see `reader`, `writer`, `chunk`, `validate`. The format is described in docs.
"""

from __future__ import annotations

from specsim.chunk import TraceChunk, concat_chunks
from specsim.paths import expand_paths
from specsim.reader import TraceReader, open_trace, read_trace
from specsim.schema import TraceMeta
from specsim.writer import write_trace

__all__ = [
    "TraceChunk",
    "TraceMeta",
    "TraceReader",
    "concat_chunks",
    "expand_paths",
    "open_trace",
    "read_trace",
    "write_trace",
]

if __name__ == "__main__":
    # Imported here and not above: the commands import this module, and a library user needs neither click nor rich.
    from specsim.errors import run_cli
    from specsim.trace_cli import main

    run_cli(main, prog_name="python -m specsim.trace")
