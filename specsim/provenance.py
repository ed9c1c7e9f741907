"""Where a result came from: versions, machine, command, git revision of the source tree if there is one."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import specsim

PACKAGES = ("numpy", "numba", "pyarrow", "scipy")


def git_revision() -> str | None:
    """Commit of the source tree in use, with "+changes" when it is modified; None outside a repository."""
    try:
        root = Path(specsim.__file__).resolve().parent.parent
        run = [
            subprocess.run(
                ["git", "-C", str(root), *args], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for args in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return run[0] + ("+changes" if run[1] else "")


def provenance(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """JSON values describing this run: UTC time, argv, versions, machine, git revision."""
    return {
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "argv": sys.argv,
        "specsim": specsim.__version__,
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "git": git_revision(),
    }
