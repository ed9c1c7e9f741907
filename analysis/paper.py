"""The figures of the papers' experiments, from their data files alone: `python -m analysis.paper FOLDER`.

Owns how they look; those of arms are in `analysis.arm_figures`. Every figure is a function of a table and axes; the
tables' columns are described by `real.paper.figures` and `real.paper.arms`, which this package does not import. A
figure shows what its table holds: tables of several targets give one picture each.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import arm_figures
from specsim.errors import ConfigError, run_cli
from specsim.paths import replace_file

SERIES = {"static": "tab:gray", "oracle": "tab:orange", "LibraSpec": "tab:blue"}  # in the order they are drawn
WIDTHS = {"static": 1.5, "oracle": 4.0, "LibraSpec": 1.5}
TITLE_WIDTH = 80  # characters of a line over a figure
PLACES = ("target", "dataset", "temperature", "method")
Draw = Callable[[pa.Table, Axes], Axes]
TEXTS = ("target", "dataset", "method", "drafter", "controller", "series", "label", "against")
WITH_GAPS = ("request", "static", "best_static", "rank")
COLUMNS = {  # that are drawn, by file
    "gains.parquet": ("target", "temperature", "dataset", "method", "without", "libraspec", "gain"),
    "lengths.parquet": ("target", "dataset", "method", "drafter", "request", "series", "pos", "length"),
    "deviations.parquet": ("target", "dataset", "method", "drafter", "request", "series", "mad"),
    "breakdown.parquet": (
        *("target", "dataset", "temperature", "method", "controller", "draft_ms", "verify_ms", "rest_ms"),
    ),
    "max_lengths.parquet": (*PLACES, "drafter", "max_len", "libraspec", "static", "best_static"),
    "calibration.parquet": (*PLACES, "depth", "bin", "n", "mean_q", "accepted", "ece"),
    "acceptance.parquet": ("target", "dataset", "temperature", "method", "label", "tau", "eta"),
    "contexts.parquet": ("target", "temperature", "method", "label", "prompt_len", "eta"),
    "pulls.parquet": (*PLACES, "drafter", "label", "arm", "rank", "share"),
    "regret.parquet": (*PLACES, "drafter", "label", "against", "prompt", "cumulative_s"),
}


def speedup_gains(data: pa.Table, ax: Axes) -> Axes:
    """Figure 1: bars of the speedup without and with LibraSpec, and what it adds or takes.

    Args:
        data: columns dataset, method, without, libraspec, gain.
        ax: where.
    """
    rows = data.to_pylist()
    at = np.arange(len(rows))
    ax.bar(at - 0.2, [row["without"] for row in rows], 0.4, label="without LibraSpec", color=SERIES["static"])
    ax.bar(at + 0.2, [row["libraspec"] for row in rows], 0.4, label="LibraSpec", color=SERIES["LibraSpec"])
    for x, row in zip(at, rows, strict=True):
        ax.annotate(f"{row['gain']:+.2f}", (x + 0.2, row["libraspec"]), ha="center", va="bottom")
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_xticks(at, [f"{row['method']}\n{row['dataset']}" for row in rows])
    ax.set_ylabel("speedup over plain decoding")
    ax.legend()
    return ax


def lengths_along(data: pa.Table, ax: Axes) -> Axes:
    """Figures 2 and 5: speculative length along one decode, by series.

    Args:
        data: columns series, pos, length of one prompt.
        ax: where.
    """
    for series, color in SERIES.items():
        mine = data.filter(pc.field("series") == series).sort_by("pos")
        ax.step(
            mine["pos"].to_numpy(),
            mine["length"].to_numpy(),
            where="post",
            label=series,
            color=color,
            linewidth=WIDTHS[series],
        )
    ax.set_xlabel("output token")
    ax.set_ylabel("submitted tokens")
    ax.legend()
    return ax


def latency_breakdown(data: pa.Table, ax: Axes) -> Axes:
    """Figure 3: milliseconds of a round at a static length, by part, one bar a method.

    Args:
        data: columns method, controller, draft_ms, verify_ms, rest_ms.
        ax: where.
    """
    rows = data.to_pylist()
    names = [f"{row['method']}\n{row['controller']}" for row in rows]
    left = np.zeros(len(rows))
    for part, color in (("draft", "tab:orange"), ("verify", "tab:blue"), ("rest", "tab:gray")):
        widths = np.array([row[f"{part}_ms"] for row in rows])
        ax.barh(names, widths, left=left, label=part, color=color)
        left += widths
    ax.set_xlabel("ms per round")
    ax.legend()
    return ax


def speedup_by_max(data: pa.Table, ax: Axes) -> Axes:
    """Figure 4: speedup of LibraSpec by its maximum length, beside static lengths.

    Args:
        data: columns max_len, libraspec, static (nulls allowed), best_static (nulls allowed).
        ax: where.
    """
    data = data.sort_by("max_len")
    at = data["max_len"].to_numpy()
    ax.plot(at, data["libraspec"].to_numpy(), "o-", label="LibraSpec", color=SERIES["LibraSpec"])
    for column, style in (("static", "s--"), ("best_static", ":")):
        values = np.array(data[column].to_pylist(), np.float64)
        if np.isfinite(values).any():
            ax.plot(at, values, style, label=column.replace("_", " "), color=SERIES["static"])
    ax.set_xlabel("maximum length")
    ax.set_ylabel("speedup over plain decoding")
    ax.legend()
    return ax


def error_by_depth(data: pa.Table, ax: Axes) -> Axes:
    """Figure 4's explanation: mean confidence, accepted share and calibration error per draft position.

    Args:
        data: columns depth, bin, n, mean_q, accepted, ece.
        ax: where.
    """
    depths = np.unique(data["depth"].to_numpy())
    found = [data.filter(pc.field("depth") == int(depth)) for depth in depths]
    for column, color in (("mean_q", "tab:orange"), ("accepted", "tab:blue")):
        means = [np.average(part[column].to_numpy(), weights=part["n"].to_numpy()) for part in found]
        ax.plot(depths, means, "o-", label=column.replace("_", " "), color=color)
    ax.plot(depths, [part["ece"][0].as_py() for part in found], "s--", label="calibration error", color="tab:red")
    ax.set_xlabel("draft position")
    ax.set_ylim(0, 1)
    ax.legend()
    return ax


def reliability(data: pa.Table, ax: Axes) -> Axes:
    """Accepted share by confidence, all draft positions together; the diagonal is perfect calibration.

    Args:
        data: as for `error_by_depth`.
        ax: where.
    """
    bins = np.unique(data["bin"].to_numpy())
    parts = [data.filter(pc.field("bin") == int(one)) for one in bins]
    points = [
        [np.average(part[column].to_numpy(), weights=part["n"].to_numpy()) for column in ("mean_q", "accepted")]
        for part in parts
    ]
    q, accepted = np.array(points).T
    ax.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    ax.plot(q, accepted, "o-", color="tab:blue")
    ax.set_xlabel("confidence q")
    ax.set_ylabel("accepted share")
    return ax


FIGURES: dict[str, tuple[str, tuple[str, ...], Draw]] = {
    "gains": ("gains.parquet", ("target", "temperature"), speedup_gains),
    "lengths": ("lengths.parquet", ("target", "dataset", "method", "drafter"), lengths_along),
    "breakdown": ("breakdown.parquet", ("target", "dataset", "temperature"), latency_breakdown),
    "max-lengths": ("max_lengths.parquet", (*PLACES, "drafter"), speedup_by_max),
    "depths": ("calibration.parquet", PLACES, error_by_depth),
    "reliability": ("calibration.parquet", PLACES, reliability),
    "acceptance": ("acceptance.parquet", ("target", "dataset", "temperature"), arm_figures.speed_by_acceptance),
    "contexts": ("contexts.parquet", ("target", "temperature"), arm_figures.speed_by_context),
    "pulls": ("pulls.parquet", (*PLACES, "drafter"), arm_figures.pull_shares),
    "regret": ("regret.parquet", (*PLACES, "drafter", "against"), arm_figures.regret_along),
}


def shown_prompt(lengths: pa.Table, deviations: pa.Table) -> pa.Table:
    """The rows of the prompt whose LibraSpec deviation is the median of all prompts', the lower of two.

    Args:
        lengths: of one cell.
        deviations: columns request (null: all), series, mad, of the same cell.
    """
    mine = [row for row in deviations.to_pylist() if row["series"] == "LibraSpec" and row["request"] is not None]
    ranked = sorted(mine, key=lambda row: (row["mad"], row["request"]))
    if not ranked:
        raise ConfigError("deviations.parquet: none of LibraSpec's at a place of lengths.parquet; make both again")
    return lengths.filter(pc.field("request") == ranked[(len(ranked) - 1) // 2]["request"])


def read_data(file: Path) -> pa.Table:
    """The table of a figure's file.

    Raises:
        ConfigError: no parquet, no rows, or a column that is missing, of another type or with gaps.
    """
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{file}: cannot be read ({reason}); make it again with python -m real.paper") from None
    for wrong in _faults(table, COLUMNS[file.name]):
        raise ConfigError(f"{file}: {wrong}; make it again with python -m real.paper")
    return table


def _faults(table: pa.Table, columns: Sequence[str]) -> Iterator[str]:
    for name in columns:
        if table.column_names.count(name) != 1:
            yield f"column {name} is missing"
        elif not _fits(name, table[name].type):
            yield f"column {name} is {table[name].type}; allowed: {'text' if name in TEXTS else 'numbers'}"
        elif table[name].null_count and name not in WITH_GAPS:
            yield f"column {name} has nulls"
    if not len(table):
        yield "has no rows"


def _fits(name: str, kind: pa.DataType) -> bool:
    if name in TEXTS:
        return pa.types.is_string(kind)
    # A column of nulls alone has no type.
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or (name in WITH_GAPS and pa.types.is_null(kind))


def draw(folder: Path) -> list[Path]:
    """Draw every figure that a folder holds the data of, as PNG files beside them; their paths.

    Args:
        folder: OUT of `python -m real.paper`.

    Raises:
        ConfigError: a data file that cannot be used, or a picture that cannot be written.
    """
    made = []
    for name, (file, keys, function) in FIGURES.items():
        if not (folder / file).is_file():
            continue
        for number, (title, part) in enumerate(_parts(read_data(folder / file), keys)):
            if name == "lengths":
                part = shown_prompt(part, _same_place(folder, part, keys))
            figure = Figure(figsize=(8, 4.5), layout="constrained")
            function(part, figure.subplots()).set_title(textwrap.fill(title, TITLE_WIDTH))
            path = folder / f"{name}-{number}.png"
            with replace_file(path) as temporary:
                figure.savefig(temporary, format="png", dpi=150)
            made.append(path)
    return made


def _same_place(folder: Path, part: pa.Table, keys: Sequence[str]) -> pa.Table:
    deviations = read_data(folder / "deviations.parquet")
    for key in keys:
        deviations = deviations.filter(pc.field(key) == part[key][0])
    return deviations


def _parts(data: pa.Table, keys: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """The table split by the values of some columns, in their order, with a title each."""
    places: dict[tuple[Any, ...], None] = dict.fromkeys(zip(*(data[key].to_pylist() for key in keys), strict=True))
    for place in places:
        part = data
        for key, value in zip(keys, place, strict=True):
            part = part.filter(pc.field(key) == value)
        words = [f"T = {value}" if key == "temperature" else str(value) for key, value in zip(keys, place, strict=True)]
        yield ", ".join(words), part


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def main(folder: Path) -> None:
    """Draw the figures of an experiment's folder from its data files."""
    made = draw(folder)
    if not made:
        files = ", ".join(sorted({file for file, _, _ in FIGURES.values()}))
        raise ConfigError(f"{folder}: no data of a figure there; one of {files} is needed (python -m real.paper)")
    for path in made:
        click.echo(path)


if __name__ == "__main__":
    matplotlib.use("agg")
    run_cli(main, prog_name="python -m analysis.paper")
