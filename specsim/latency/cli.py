"""Command line of the latency models: fit, points, presets. Owns texts and tables only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specsim import __version__
from specsim.errors import ConfigError
from specsim.latency.model import LatencyModel, save_latency
from specsim.latency.presets import load_presets
from specsim.paths import replace_file

if TYPE_CHECKING:
    from specsim.latency.fit import FitReport


# wide enough that no cell is cut; the table itself is narrower
_TABLE_WIDTH = 240


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """What drafting and verification cost: fit a latency model, or choose a preset (docs/latency.md)."""


@main.command()
@click.argument("points", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write the model here (JSON), for --latency.")
@click.option(
    "--form", type=click.Choice(["auto", "affine", "hinge", "step", "table"]), default="auto", show_default=True
)
@click.option("--max-s", type=click.IntRange(min=1), help="Use only rows with s up to this.")
@click.option("--draft-pass-s", type=float, default=0.0, help="Seconds per drafter pass.")
@click.option("--draft-token-s", type=float, default=0.0, help="Seconds per drafted token.")
@click.option("--overhead-s", type=float, default=0.0, help="Seconds per speculative round.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--device", help="Provenance: where the points were measured.")
@click.option("--dtype", help="Provenance: number format of the target.")
@click.option("--target", help="Provenance: target model.")
@click.option("--notes", help="Provenance: anything else.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON and nothing else.")
def fit(
    points: Path,
    out: Path | None,
    form: str,
    max_s: int | None,
    draft_pass_s: float,
    draft_token_s: float,
    overhead_s: float,
    seed: int,
    as_json: bool,
    **provenance: str | None,
) -> None:
    """Fit verification time to POINTS, a CSV file with columns s and time_s (or time_ms, time_us), optionally ctx_len.

    s is the number of token positions in the target's forward pass. Repeat each length and interleave the lengths.
    The form is chosen on held-out lengths; the simplest within one standard error wins.
    """
    from specsim.latency.fit import fit_latency  # loads scipy
    from specsim.latency.measurements import read_measurements

    details = {key: value for key, value in provenance.items() if value is not None}
    report = fit_latency(
        read_measurements(points),
        form=form,
        max_s=max_s,
        draft_pass_s=draft_pass_s,
        draft_token_s=draft_token_s,
        overhead_s=overhead_s,
        provenance={
            **details,
            "created": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "software": {"specsim": __version__},
        },
        seed=seed,
    )
    if out is not None:
        save_latency(out, report.model)
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2, allow_nan=False))
        return
    _print_report(points, report)
    click.echo(f"written: {out}" if out is not None else "not written: give --out FILE to keep it")


def _print_report(points: Path, report: FitReport) -> None:
    provenance = report.model.provenance
    first, last = provenance["valid_s"]
    click.echo(f"{points}: {provenance['measurements']} measurements, s = {first} to {last}")
    click.echo("form     held-out error (+- standard error)   largest")
    for form, entry in report.scores.items():
        mark = "  <- chosen" if form == report.form else ""
        error = f"{entry.rel_err:8.2%} +- {entry.standard_err:.2%}"
        click.echo(f"{form:8} {error:36} {entry.max_rel_err:8.2%}{mark}")
    c_us, c_low, c_high = (1e6 * value for value in (report.line_c_s, *report.c_ci95_s))
    b_ms, b_low, b_high = (1e3 * value for value in (report.line_b_s, *report.b_ci95_s))
    click.echo(f"straight line: c = {c_us:.4g} us per token position, 95 % interval {c_low:.4g} to {c_high:.4g}")
    click.echo(f"               b = {b_ms:.4g} ms, 95 % interval {b_low:.4g} to {b_high:.4g}")
    r2 = "undefined" if report.r2 is None else f"{report.r2:.4f}"
    click.echo(f"{report.form}: largest error at a measured length {report.max_rel_err:.2%}, R2 {r2}")
    if report.model.ctx_s > 0.0:
        click.echo(f"context: {1e9 * report.model.ctx_s:.4g} ns per context token")
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)


@main.command()
@click.argument("source", type=click.Choice(["vidur", "llmservingsim"]))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--layers", type=click.IntRange(min=1), default=32, show_default=True, help="Decoder layers of the model."
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="vidur: tensor-parallel size."
)
@click.option("--like", help="vidur: scale the matrix products to this model (llama-2-7b, llama-3.1-8b).")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Write the points here (CSV).")
def points(source: str, files: tuple[Path, ...], layers: int, workers: int, like: str | None, out: Path) -> None:
    """Sum a public per-layer timing table into POINTS.csv for `fit`.

    vidur takes one mlp.csv; llmservingsim takes dense.csv and, for the output head, per_sequence.csv.
    """
    from specsim.latency.points import llmservingsim_points, to_csv, vidur_points

    if source == "llmservingsim":
        if like is not None or workers != 1:
            raise ConfigError("--like and --workers are for vidur tables; allowed: neither. Leave them out.")
        measurements = llmservingsim_points(files, layers=layers)
    elif len(files) != 1:
        raise ConfigError(f"vidur got {len(files)} files; allowed: one mlp.csv. Convert them one by one.")
    else:
        measurements = vidur_points(files[0], layers=layers, workers=workers, like=like)
    with replace_file(out) as temporary:
        temporary.write_text(to_csv(measurements), encoding="utf-8")
    click.echo(f"written: {out}, {len(measurements.s)} points")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the presets as JSON and nothing else.")
@click.option("--rebuild", type=click.Path(path_type=Path), help="Fit all again from the tables in this folder.")
@click.option("--out", type=click.Path(path_type=Path), help="With --rebuild: write presets.json here.")
def presets(as_json: bool, rebuild: Path | None, out: Path | None) -> None:
    """List the latency models that come with the package; use one as `--latency preset:NAME`."""
    models: Mapping[str, LatencyModel] = load_presets()
    if (rebuild is None) != (out is None):
        raise ConfigError("--rebuild and --out belong together; allowed: both or neither. Add the other one.")
    if rebuild is not None and out is not None:
        models = _rebuilt(rebuild, models)
        from specsim.latency.recipes import to_json

        with replace_file(out) as temporary:
            temporary.write_text(to_json(models), encoding="utf-8")
    if as_json:
        document = {"schema": "specsim.latency_preset_list/1", "presets": [_entry(*item) for item in models.items()]}
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    _print_presets(models)


def _rebuilt(data: Path, models: Mapping[str, LatencyModel]) -> dict[str, LatencyModel]:
    from specsim.latency.recipes import RECIPES, build

    result: dict[str, LatencyModel] = {}
    for name, recipe in RECIPES.items():
        missing = [file for file in recipe.files if not (data / file).exists()]
        if missing and name in models:
            click.echo(f"warning: {name} kept as it is: {data / missing[0]} is not there", err=True)
            result[name] = models[name]
        else:
            result[name] = build(name, data)
    return result


def _entry(name: str, model: LatencyModel) -> dict[str, Any]:
    found = model.provenance
    line = found["line"]
    keys = (
        "device",
        "target",
        "dtype",
        "valid_s",
        "heldout_rel_err",
        "max_rel_err",
        "slope_significant",
        "derived",
        "scaling_rel_err",
        "source",
        "license",
        "includes",
        "excludes",
        "notes",
        "commands",
    )
    summary = {"name": name, "form": model.verify.form, **line, "c_over_b": line["c_s"] / line["b_s"]}
    return summary | {key: found[key] for key in keys} | {"model": model.to_dict()}


def _print_presets(models: Mapping[str, LatencyModel]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for column in (
        "preset",
        "device",
        "model",
        "form",
        "c us",
        "b ms",
        "c/b",
        "s",
        "held-out",
        "slope",
        "source, licence",
    ):
        table.add_column(column, no_wrap=True)
    for name, model in models.items():
        entry = _entry(name, model)
        first, last = entry["valid_s"]
        table.add_row(
            name,
            entry["device"].removeprefix("NVIDIA ").removeprefix("GeForce "),
            entry["target"] + (" (derived)" if entry["derived"] else ""),
            entry["form"],
            f"{1e6 * entry['c_s']:.3g}",
            f"{1e3 * entry['b_s']:.4g}",
            f"{entry['c_over_b']:.4f}",
            f"{first}-{last}",
            f"{entry['heldout_rel_err']:.1%}" + (f" + {entry['scaling_rel_err']:.0%}" if entry["derived"] else ""),
            "significant" if entry["slope_significant"] else "not signif.",
            f"{entry['source'].split(' (')[0]}, {entry['license']}",
        )
    console = Console(width=_TABLE_WIDTH)
    with console.capture() as captured:
        console.print(table)
    lines = (line.rstrip() for line in captured.get().strip("\n").splitlines())
    click.echo("\n".join(line for line in lines if line.strip()))
    click.echo("c, b: straight line verify(s) = c*s + b, c per token position; the form in use may be finer.")
    click.echo("held-out: mean relative error at lengths left out of the fit; derived: scaled, + its error.")
    click.echo("Not in any preset: attention over the context, launch gaps, host time, drafting. Set your own costs:")
    click.echo("  --latency preset:NAME:draft_pass_s=0.001,draft_token_s=0,overhead_s=0.0002   (see docs/latency.md)")
