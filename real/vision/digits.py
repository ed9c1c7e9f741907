"""`python -m real.vision.digits`: pictures of tables of handwritten digits, and questions about them with answers.

Owns where the digits come from, which of them are held out, how a table is drawn, and what is asked and answered. The
digits are those of scikit-learn's `load_digits` (1,797 of 8 x 8 pixels; UCI, Optical Recognition of Handwritten Digits,
test part, thirteen writers): its data file is read where the package is installed, and nothing of the package is run.

Most of a table is empty, so that of many visual tokens few matter. Background colours say in which row (red) and column
(blue) a cell is; the ink is green. A small model then finds a cell by its colour, and learns in minutes to read.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import numpy as np
from PIL import Image

from real.options import SEED
from real.vision.data import QUESTIONS
from specsim.errors import ConfigError, run_cli

HELD_OUT_FROM = 1545
"""Number of the first digit kept from training. Writers come one after the other, about 130 digits each, and one ends
here (scikit-learn's course, on groups of samples): no writer is on both sides."""
LEAST, MOST = 4, 5  # rows and columns of a table
CELL = 16  # pixels
SIZES, TURN = (12, 15), 10.0  # of a digit: pixels of its sides, and degrees it may be turned by
FULL = 0.5  # chance that a cell has a digit
NOISE = 10  # of 255
EMPTY, ROW_NAMES = "-", "abcde"

Grid = tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Handwritten digits.

    Args:
        images: uint8[n, 8, 8], 255 is ink.
        labels: int64[n], 0..9.
    """

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Table:
    """A picture and what it shows.

    Args:
        picture: RGB, `CELL` pixels a cell.
        digits: numbers of the digits shown, by rows; None: an empty cell.
        grid: the same as labels.
    """

    picture: Image.Image
    digits: Grid
    grid: Grid


@cache
def load_digits(*, held_out: bool) -> Digits:
    """Digits for training, or those held out.

    Raises:
        ConfigError: scikit-learn is not installed, or has other digits.
    """
    # find_spec runs nothing of the package.
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            with gzip.open(path, "rt", encoding="ascii") as file:
                rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
            if rows.shape != (1797, 65):
                raise ConfigError(f"{path}: {rows.shape} numbers; allowed: 1797 digits of 64 pixels and a label each")
            rows = rows[HELD_OUT_FROM:] if held_out else rows[:HELD_OUT_FROM]
            images = (rows[:, :64] * 255 // 16).astype(np.uint8).reshape(-1, 8, 8)
            return Digits(images=images, labels=rows[:, 64])
    raise ConfigError("digits: the package scikit-learn is not installed; run: pip install -e '.[vision]'")


def draw_table(digits: Digits, rng: np.random.Generator) -> Table:
    """A table of random size and content, at least one digit; the same generator draws the same."""
    rows, columns = rng.integers(LEAST, MOST + 1, size=2).tolist()
    full = rng.random((rows, columns)) < FULL
    full[rng.integers(rows), rng.integers(columns)] = True
    chosen = np.where(full, rng.integers(len(digits.labels), size=full.shape), -1)
    pixels = np.zeros((rows * CELL, columns * CELL, 3))
    tints = 16 + 220 * np.arange(MOST) / (MOST - 1)
    pixels[:, :, 0] = np.repeat(tints[:rows], CELL)[:, None]
    pixels[:, :, 2] = np.repeat(tints[:columns], CELL)
    for row, column in np.argwhere(full).tolist():
        ink = _ink(digits.images[chosen[row, column]], rng)
        top, left = (CELL * np.array([row, column]) + rng.integers(CELL - len(ink) + 1, size=2)).tolist()
        pixels[top : top + len(ink), left : left + len(ink), 1] = ink
    pixels += rng.uniform(-NOISE, NOISE, size=pixels.shape)
    numbers = tuple(tuple(None if number < 0 else number for number in row) for row in chosen.tolist())
    labels = digits.labels.tolist()
    return Table(
        picture=Image.fromarray(pixels.clip(0, 255).astype(np.uint8)),
        digits=numbers,
        grid=tuple(tuple(None if number is None else labels[number] for number in row) for row in numbers),
    )


def _ink(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """float64[s, s]: a digit in another size, turned, and more or less dark."""
    size, turn, strength = int(rng.integers(SIZES[0], SIZES[1] + 1)), rng.uniform(-TURN, TURN), rng.uniform(0.7, 1.0)
    large = Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(large.rotate(turn, Image.Resampling.BILINEAR), dtype=np.float64) * strength


def shown_as(digit: int | None) -> str:
    """The word for what a cell shows."""
    return EMPTY if digit is None else str(digit)


def cell_name(row: int, column: int) -> str:
    """The word for a cell, counted from 0: its row's letter and its column's number, such as b3."""
    return f"{ROW_NAMES[row]}{column + 1}"


def _read(grid: Grid) -> list[list[str]]:
    """Every cell's name and what it shows, by rows."""
    return [
        [f"{cell_name(row, column)} {shown_as(digit)}" for column, digit in enumerate(cells)]
        for row, cells in enumerate(grid)
    ]


def _rows(grid: Grid) -> str:
    return " ".join(f"{' '.join(cells)} ." for cells in _read(grid))


def _columns(grid: Grid) -> str:
    return " ".join(f"{' '.join(cells)} ." for cells in zip(*_read(grid), strict=True))


def _places(grid: Grid) -> str:
    return f"{' , '.join(text for cells in _read(grid) for text in cells if not text.endswith(EMPTY))} ."


def _sums(grid: Grid) -> str:
    return " ".join(
        f"{' '.join(cells)} = {sum(digit or 0 for digit in digits)} ."
        for cells, digits in zip(_read(grid), grid, strict=True)
    )


ASKED: dict[str, Callable[[Grid], str]] = {
    "read the table row by row": _rows,
    "read the table column by column": _columns,
    "name every digit with its place": _places,
    "add up every row": _sums,
}
"""Questions, and how each is answered; words stand apart by single spaces."""


def words() -> list[str]:
    """Every word of questions and answers, once."""
    numbers = [str(number) for number in range(9 * MOST + 1)]
    names = [cell_name(row, column) for row in range(MOST) for column in range(MOST)]
    return list(dict.fromkeys([*numbers, *names, EMPTY, ".", ",", "=", *" ".join(ASKED).split()]))


def tables(digits: Digits, seed: int, first: int = 0) -> Iterator[Table]:
    """Tables without end; each is a pure function of seed and number, from `first` on."""
    number = first
    while True:
        yield draw_table(digits, np.random.default_rng((seed, number)))
        number += 1


def write_questions(out: Path, count: int, seed: int) -> int:
    """Every question about tables of held-out digits, in a new folder, as `real.data.load_prompts` reads them.

    Args:
        out: gets `questions.jsonl`, with an `answer` beside each question, and the pictures.
        count: tables.
        seed: of the tables.

    Returns:
        Questions written.

    Raises:
        ConfigError: the folder is there already, or cannot be written; nothing is left behind.
    """
    drawn = tables(load_digits(held_out=True), seed)
    if out.exists():
        raise ConfigError(f"--out {out}: exists; choose a new folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".digits-", dir=out.parent) as scratch:
            made, lines = Path(scratch) / "made", []
            made.mkdir()
            for number, table in zip(range(count), drawn, strict=False):
                picture = f"table-{number:04d}.png"
                table.picture.save(made / picture)
                for place, (question, answer) in enumerate(ASKED.items()):
                    entry = {"id": f"{number}-{place}", "question": question, "images": [picture]}
                    lines.append(json.dumps({**entry, "answer": answer(table.grid)}) + "\n")
            (made / QUESTIONS).write_text("".join(lines), encoding="utf-8")
            made.replace(out)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error}); choose another folder") from error
    return len(lines)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder for questions and pictures.")
@click.option("--tables", "count", type=click.IntRange(min=1), default=25, show_default=True)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the tables.")
def main(out: Path, count: int, seed: int) -> None:
    """Questions about pictures of tables of handwritten digits that no training here has seen."""
    click.echo(f"{out}: {write_questions(out, count, seed)} questions about {count} tables")


if __name__ == "__main__":
    run_cli(main, prog_name="python -m real.vision.digits")
