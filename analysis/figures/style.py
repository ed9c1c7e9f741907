"""How every figure looks: sizes, colours, names of controllers, legends; and how one is written.

Owns the style, so that nothing depends on the caller's rcParams: figures are drawn and written inside `styled()`, and
what a function draws names its colours itself. PDF holds its fonts as TrueType; equal tables give equal bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specsim.paths import replace_file

COLUMN, WIDE = 3.4, 7.0  # inches: one and two columns of a two-column paper
FORMATS = ("pdf", "svg", "png")
# Okabe and Ito's palette, told apart with the common colour blindnesses; yellow left out, too faint on white.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000"),
)
GRAY = "#7F7F7F"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same on every machine
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "figure.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.3,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#E4E4E4",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "specsim",
    "savefig.dpi": 300,
}
_DATES: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}
_CHARACTER = 0.053  # inches of a letter in a legend, about
_HANDLE = 6  # letters that a legend's handle and the gap beside it take
_BESIDE = 0.45  # inches that numbers and label of the vertical axis take
_LONGEST = 40  # characters of a name: a column of text holds about so many
_LINE = 0.16  # inches of a line of a title


@contextmanager
def styled() -> Iterator[None]:
    """matplotlib's defaults and this style on top, whatever the caller has set; the caller's settings come back."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def save(figure: Figure, path: Path, form: str) -> None:
    """Write a figure in one step, inside `styled()`.

    Args:
        figure: what was drawn.
        path: the file.
        form: one of `FORMATS`.

    Raises:
        ConfigError: the place cannot be written.
    """
    with replace_file(path) as temporary:
        figure.savefig(temporary, format=form, metadata=_DATES[form])


def colour(number: int) -> str:
    """The colour of the n-th series."""
    return CYCLE[number % len(CYCLE)]


def marker(number: int) -> str:
    """The marker of the n-th series; together with `colour`, 70 series differ."""
    return MARKERS[number % len(MARKERS)]


def dash(number: int) -> str:
    """The line of the n-th series: another one whenever the colours begin again."""
    return ("-", "--", ":", "-.")[number // len(CYCLE) % 4]


def names(controllers: Sequence[str]) -> dict[str, str]:
    """Short names of controllers: without parameters where that tells them apart, else as spelled.

    A name that would leave no room for the axes is cut in the middle, and numbered where that makes it another's.
    """
    bases = Counter(spelling.partition(":")[0] for spelling in dict.fromkeys(controllers))
    found: dict[str, str] = {}
    times: Counter[str] = Counter()
    for spelling in dict.fromkeys(controllers):
        name = _name(spelling, bases)
        if len(name) > _LONGEST:
            half = (_LONGEST - 1) // 2
            name = f"{name[:half]}…{name[-half:]}"
        times[name] += 1
        found[spelling] = name if times[name] == 1 else f"{name} ({times[name]})"
    return found


def _name(spelling: str, bases: Counter[str]) -> str:
    for prefix, word in (("static:length=", "static "), ("arm:index=", "arm ")):
        if spelling.startswith(prefix):
            return word + spelling.removeprefix(prefix)
    base = spelling.partition(":")[0]
    return base if bases[base] == 1 else spelling


def fit(figure: Figure, ax: Axes) -> None:
    """Make a figure higher by its title and its legend, so that the axes keep their height."""
    # The title first: a legend is measured by drawing, for which axes must be left beside a title of many lines.
    figure.set_figheight(figure.get_figheight() + _LINE * len(figure.get_suptitle().splitlines()))
    found = ax.get_legend()
    if found is not None:
        figure.draw_without_rendering()
        figure.set_figheight(figure.get_figheight() + found.get_window_extent().height / figure.dpi)


def legend(ax: Axes, *, title: str | None = None) -> None:
    """A legend above the axes, in as many columns as its texts leave room for, so that it never covers data."""
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(reversed(labels), reversed(handles), strict=True))
    order = list(dict.fromkeys(labels))
    if not order:
        return
    figure = ax.get_figure(root=True)
    width = COLUMN if figure is None else figure.get_figwidth()
    columns = int((width - _BESIDE) / _CHARACTER) // (max(map(len, order)) + _HANDLE)
    ax.legend(
        [unique[label] for label in order],
        order,
        title=title,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=max(1, min(columns, 4, len(order))),
    )
