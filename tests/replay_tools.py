"""What the tests of `python -m specsim.replay` share: running it here or in a fresh process, and small traces."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim import errors
from specsim.replay import main
from specsim.synth import synthesize
from specsim.trace import write_trace

LATENCY: dict[str, Any] = {
    "schema": "specsim.latency/1",
    "verify": {"form": "affine", "c_s": 0.0005, "b_s": 0.03},
    "draft": {"pass_s": 0.002, "token_s": 0.0},
    "overhead_s": 0.0001,
}


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    status: int
    out: str
    err: str

    def document(self) -> dict[str, Any]:
        """The JSON on stdout, read strictly."""
        assert self.status == 0, self.err
        return strict_json(self.out)


def replay_here(*args: object) -> Run:
    """Run the command in this process, with the same turning of errors into exit statuses as `python -m`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        texts = [str(arg) for arg in args]
        status = errors._status_of(lambda: main.main(args=texts, prog_name="replay", standalone_mode=False))
    return Run(status, out.getvalue(), err.getvalue())


def replay_process(*args: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> Run:
    """Run the command as users do, warnings as errors."""
    command = [sys.executable, "-W", "error", "-m", "specsim.replay", *(str(arg) for arg in args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **(env or {})})
    return Run(done.returncode, done.stdout, done.stderr)


def strict_json(text: str) -> Any:
    """Parsed JSON that holds neither NaN nor Infinity."""

    def refuse(literal: str) -> float:
        raise AssertionError(f"{literal} in JSON")

    return json.loads(text, parse_constant=refuse)


def make_trace(
    path: Path,
    kind: str = "iid",
    *,
    latency: dict[str, Any] | None = LATENCY,
    drop: tuple[str, ...] = (),
    **settings: Any,
) -> Path:
    """A small synthetic trace file; `drop` names columns left null."""
    meta, chunk = synthesize(kind, latency=latency, **{"requests": 4, "positions": 30, "max_draft_len": 8} | settings)
    if drop:
        chunk = chunk.keep({"ctx_len", "q", "accept_prob"} - set(drop))
    write_trace(path, meta, chunk)
    return path


def listing(folder: Path) -> list[str]:
    """Every entry below a folder, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_refused(run: Run, folder: Path, before: list[str], *fragments: str) -> None:
    """Exit status 2, one message that holds the fragments, nothing on stdout, nothing written below `folder`."""
    assert run.status == 2, (run.status, run.out, run.err)
    assert run.out == ""
    assert "Traceback" not in run.err
    for fragment in fragments:
        assert fragment in run.err, (fragment, run.err)
    assert listing(folder) == before
