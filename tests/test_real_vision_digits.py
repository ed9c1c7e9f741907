"""Tables of handwritten digits: what is drawn, asked and answered, and which digits are held out."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("torch", reason="real/ needs the extra 'real'")
if importlib.util.find_spec("sklearn") is None:
    pytest.skip("the digits need the extra 'vision'", allow_module_level=True)

from real.data import load_prompts
from real.training.digits_data import DigitTables
from real.vision import digits
from real.vision.digits import (
    ASKED,
    CELL,
    HELD_OUT_FROM,
    LEAST,
    MOST,
    Table,
    draw_table,
    load_digits,
    main,
    words,
)
from specsim.errors import ConfigError, run_cli

KEYS = st.tuples(st.integers(0, 3), st.integers(0, 500))
Place = tuple[int, int]


def table_of(key: tuple[int, int], *, held_out: bool = False) -> Table:
    return draw_table(load_digits(held_out=held_out), np.random.default_rng(key))


def there(table: Table) -> dict[Place, int]:
    """Digits by (row, column), from 1."""
    cells = [(row, column) for row in range(len(table.grid)) for column in range(len(table.grid[0]))]
    return {(r + 1, c + 1): digit for r, c in cells if (digit := table.grid[r][c]) is not None}


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        run_cli(main, list(args))
    return int(leaving.value.code or 0)


@given(KEYS)
def test_answers_read_back_give_the_table(key: tuple[int, int]) -> None:
    """Each answer is taken apart by rules of its own."""
    table = table_of(key)
    rows, columns, places, sums = (answer(table.grid) for answer in ASKED.values())
    height, width = len(table.grid), len(table.grid[0])
    cells = [(row, column) for row in range(1, height + 1) for column in range(1, width + 1)]
    for text, order in ((rows, cells), (columns, sorted(cells, key=lambda cell: cell[::-1])), (sums, cells)):
        named = re.findall(r"([a-e])(\d) ([-\d])", text)
        assert [("abcde".index(row) + 1, int(column)) for row, column, _ in named] == order
        digits = {cell: int(digit) for cell, (_, _, digit) in zip(order, named, strict=True) if digit != "-"}
        assert digits == there(table)
    assert [len(line.split()) for line in rows.split(".")[:-1]] == [2 * width] * height
    assert [len(line.split()) for line in columns.split(".")[:-1]] == [2 * height] * width
    listed = [re.fullmatch(r"([a-e])(\d) (\d)", text) for text in places.removesuffix(" .").split(" , ")]
    assert [("abcde".index(one[1]) + 1, int(one[2]), int(one[3])) for one in listed if one] == [
        (*cell, digit) for cell, digit in sorted(there(table).items())
    ]
    totals = [int(total) for total in re.findall(r"= (\d+) \.", sums)]
    assert totals == [sum(n for (at, _), n in there(table).items() if at == row) for row in range(1, height + 1)]
    known = set(words())
    assert all(set(text.split()) <= known for text in (rows, columns, places, sums, *ASKED))


@given(KEYS)
def test_pictures_show_the_table(key: tuple[int, int]) -> None:
    table = table_of(key)
    height, width = len(table.grid), len(table.grid[0])
    assert LEAST <= min(height, width) <= max(height, width) <= MOST
    assert table.picture.size == (width * CELL, height * CELL)
    cells = np.asarray(table.picture, dtype=float).reshape(height, CELL, width, CELL, 3).transpose(0, 2, 1, 3, 4)
    inked = cells[..., 1].max(axis=(2, 3)) > 60
    assert inked.tolist() == [[digit is not None for digit in row] for row in table.grid]
    red, blue = cells[..., 0].mean(axis=(2, 3)), cells[..., 2].mean(axis=(2, 3))
    assert (np.diff(red, axis=0) > 30).all()
    assert (np.diff(blue, axis=1) > 30).all()
    assert np.abs(red - red[:, :1]).max() < 5
    assert np.abs(blue - blue[:1]).max() < 5


def test_pictures_show_the_digits_named() -> None:
    images, like, unlike = load_digits(held_out=False).images, [], []
    for key in range(20):
        table = table_of((0, key))
        for row, column in (place for place, digit in np.ndenumerate(np.array(table.grid)) if digit is not None):
            number, (top, left) = table.digits[row][column], (row * CELL, column * CELL)
            ink = np.asarray(table.picture)[top : top + CELL, left : left + CELL, 1]
            like.append(likeness(ink, images[number]))
            unlike.append(likeness(ink, images[number - 7]))
    assert np.mean(like) > 0.75 > 0.5 > np.mean(unlike)
    assert min(like) > 0.2


def likeness(ink: np.ndarray, image: np.ndarray) -> float:
    """Correlation of two digits, each cut to its ink."""
    cut = []
    for pixels in (ink, image):
        inked = np.argwhere(pixels > 80)
        (top, left), (bottom, right) = inked.min(axis=0), inked.max(axis=0)
        part = Image.fromarray(pixels[top : bottom + 1, left : right + 1].astype(np.uint8))
        cut.append(np.asarray(part.resize((12, 12))).ravel())
    return float(np.corrcoef(cut)[0, 1])


def test_no_digit_is_both_trained_on_and_held_out() -> None:
    sets = [load_digits(held_out=held_out) for held_out in (False, True)]
    assert [len(each.labels) for each in sets] == [HELD_OUT_FROM, 1797 - HELD_OUT_FROM]
    seen, kept = ({image.tobytes() for image in each.images} for each in sets)
    assert not seen & kept
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    labels = [int(line.rpartition(",")[2]) for line in gzip.open(path, "rt").read().split()]  # noqa: SIM115
    data = DigitTables(batch=4, checks=8)
    data.setup("fit")
    parts = {
        False: ([asked.table for step in range(20) for asked in data.batch_of(step)], labels[:HELD_OUT_FROM]),
        True: ([asked.table for batch in data.val_dataloader() for asked in batch], labels[HELD_OUT_FROM:]),
    }
    for drawn, names in parts.values():
        for table in drawn:
            numbers = [number for row in table.digits for number in row if number is not None]
            assert [names[number] for number in numbers] == [digit for _, digit in sorted(there(table).items())]
    assert max(n or 0 for table in parts[False][0] for row in table.digits for n in row) > len(parts[True][1])


def test_a_steps_batch_is_a_pure_function_of_it() -> None:
    data, again, other = (DigitTables(batch=3, seed=seed) for seed in (0, 0, 1))
    for each in (data, again, other):
        each.setup("fit")

    def shown(of: DigitTables, step: int) -> list[tuple[bytes, str, str]]:
        return [(asked.table.picture.tobytes(), asked.question, asked.answer) for asked in of.batch_of(step)]

    steps = [shown(data, step) for step in range(4)]
    assert [shown(again, step) for step in reversed(range(4))][::-1] == steps
    assert shown(other, 0) != steps[0]
    assert len({picture for step in steps for picture, _, _ in step}) == 12  # nothing twice
    assert len({asked.question for step in range(12) for asked in data.batch_of(step)}) == len(ASKED)
    assert len({asked.question for batch in data.val_dataloader() for asked in batch}) == len(ASKED)


def test_a_question_set_is_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "digits"
    assert run("--out", str(out), "--tables", "3", "--seed", "7") == 0
    assert "12 questions about 3 tables" in capsys.readouterr().out
    questions = load_prompts(str(out))
    entries = [json.loads(line) for line in (out / "questions.jsonl").read_text().splitlines()]
    assert [question.text for question in questions] == list(ASKED) * 3
    assert len({question.id for question in questions}) == 12
    for number in range(3):
        table = table_of((7, number), held_out=True)
        for place, answer in enumerate(ASKED.values()):
            question, entry = questions[4 * number + place], entries[4 * number + place]
            assert entry["answer"] == answer(table.grid)
            assert question.pictures is not None
            with Image.open(question.pictures.images[0]) as picture:
                assert picture.tobytes() == table.picture.tobytes()
    before = {path: path.read_bytes() for path in out.iterdir()}
    assert run("--out", str(out), "--tables", "1") == 2
    assert "choose a new folder" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    again = tmp_path / "again"
    assert run("--out", str(again), "--tables", "3", "--seed", "7") == 0
    assert [(again / path.name).read_bytes() for path in before] == list(before.values())


def test_what_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run("--out", str(tmp_path / "file" / "digits")) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert run("--out", str(tmp_path / "digits"), "--tables", "0") == 2
    assert run("--out", str(tmp_path / "digits"), "--seed", "-1") == 2
    load_digits.cache_clear()
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape("pip install -e '.[vision]'")):
        load_digits(held_out=True)
    assert run("--out", str(tmp_path / "digits")) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
