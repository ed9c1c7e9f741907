"""`python -m real.gpu` (`make gpu`): what needs a CUDA device, in under ten minutes, into one folder.

    OUT/tests.log             the gpu-marked tests
    OUT/bfloat16/, float32/   a validation in each precision (`real.validate`): calibration, trace, run, results
    OUT/gpu.json              device, versions, status and seconds of every step

Without a CUDA device it says so and does nothing. Owns the order and the time limit of these steps; each is a process
of its own, so that one that fails or hangs does not take the others along.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch

from real import models
from real.calibrate import device_name
from specsim.errors import ConfigError, run_cli
from specsim.paths import replace_file
from specsim.provenance import provenance

TIME_LIMIT_S = 600.0
DTYPES = ("bfloat16", "float32")
CONTROLLERS = ("static:length=4", "static:length=8", "libraspec", "lambda")
DOCUMENT = "gpu.json"


@dataclass(frozen=True)
class Step:
    """A step that was run: its exit status (None: stopped at the time limit) and seconds."""

    name: str
    status: int | None
    seconds: float


def run_step(name: str, command: list[str], log: Path | None, left_s: float) -> Step:
    """Run one command, its output into a log or through."""
    started, status = time.perf_counter(), None
    click.echo(f"{name}: started")
    try:
        if log is None:
            status = subprocess.run(command, timeout=left_s, check=False).returncode
        else:
            with log.open("w", encoding="utf-8") as file:
                status = subprocess.run(command, timeout=left_s, check=False, stdout=file, stderr=file).returncode
    except subprocess.TimeoutExpired:
        pass
    step = Step(name, status, time.perf_counter() - started)
    where = "" if log is None else f", see {log}"
    ended = "stopped at the time limit" if status is None else f"status {status}"
    click.echo(f"{name}: {ended} after {step.seconds:.0f} s{where}")
    return step


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("gpu-run"), show_default=True)
@click.option("--target", default=models.SMOLLM2, show_default=True, help="As for python -m real.validate.")
@click.option("--drafter", default="layer-skip", show_default=True)
@click.option("--requests", default=10, show_default=True)
def main(*, out: Path, target: str, drafter: str, requests: int) -> int:
    """Run the gpu-marked tests and validate the simulator on this machine's GPU; does nothing without one."""
    if not torch.cuda.is_available():
        click.echo("no CUDA device here, nothing to do: make gpu is for machines with one")
        return 0
    if (out / DOCUMENT).exists():
        raise ConfigError(f"--out {out}: holds an earlier run; choose another folder (make gpu OUT=...) or remove it")
    out.mkdir(parents=True, exist_ok=True)
    if target == models.SMOLLM2:
        models.fetch(say=click.echo)
    started = time.perf_counter()
    tests = [sys.executable, "-m", "pytest", "-m", "gpu", "tests"]
    work: list[tuple[str, list[str], Path | None]] = [("gpu tests", tests, out / "tests.log")]
    for dtype in DTYPES:
        command = [sys.executable, "-m", "real.validate", "--device=cuda", f"--dtype={dtype}", f"--out={out / dtype}"]
        command += [f"--target={target}", f"--drafter={drafter}", f"--requests={requests}"]
        command += [f"--controllers={name}" for name in CONTROLLERS]
        work.append((f"validation in {dtype}", command, None))
    steps = []
    for name, command, log in work:
        left_s = max(1.0, TIME_LIMIT_S - (time.perf_counter() - started))
        steps.append(run_step(name, command, log, left_s))
    document = {
        "device": device_name("cuda"),
        "torch": torch.__version__,
        "steps": [asdict(step) for step in steps],
        "provenance": provenance(packages=()),
    }
    with replace_file(out / DOCUMENT) as temporary:
        temporary.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return int(any(step.status != 0 for step in steps))


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.gpu")
