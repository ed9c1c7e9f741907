"""Tables as values, and how they are written: Markdown, LaTeX (booktabs) and CSV.

Owns escaping and layout, no number: a cell keeps the numbers it shows, Markdown and LaTeX round them when they are
written, CSV has them in full.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


def number(value: float | None, form: str) -> str:
    """A number rounded, `-` where there is none. A value that rounds to 0 has no sign."""
    return "-" if value is None else f"{value:{form}}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share, `-` where there is none."""
    return number(value, f".{digits}%")


def spread(interval: Sequence[float] | None, form: str) -> str:
    """An interval behind its value."""
    return "" if interval is None else f" [{interval[0]:{form}}, {interval[1]:{form}}]"


def ends(name: str, key: str) -> dict[str, Callable[[Row], Any]]:
    """CSV columns NAME_low and NAME_high of an interval under a key."""
    return {
        f"{name}_low": lambda row: None if row[key] is None else row[key][0],
        f"{name}_high": lambda row: None if row[key] is None else row[key][1],
    }


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Args:
        name: over it.
        shown: a row's cell for people; a line break is one in the cell.
        values: CSV columns in its place: name to a row's value.
        group: what a column and its neighbours of the same group are of (a dataset); its name comes first.
        left: whether cells are set to the left; Markdown without `rules` sets all so.
    """

    name: str
    shown: Callable[[Row], str]
    values: Mapping[str, Callable[[Row], Any]]
    group: str = ""
    left: bool = False

    @property
    def title(self) -> str:
        """Group and name."""
        return f"{self.group} {self.name}".strip()


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under columns.

    Args:
        title: of the table; LaTeX's caption.
        place: what all of it is of (run, target, temperature): the first columns of CSV.
        columns, rows: as they are shown.
        heading: Markdown above it, whole lines; a section's heading or what sets it apart from the one before.
        notes: lines below it.
        aligned: whether Markdown sets columns of numbers to the right.
        of: caption and section of one LaTeX table that it shares with others of that caption and these columns.
    """

    title: str
    place: Mapping[str, Any]
    columns: Sequence[Column]
    rows: Sequence[Row]
    heading: str = ""
    notes: Sequence[str] = ()
    aligned: bool = True
    of: tuple[str, str] | None = None


def markdown(tables: Sequence[Table]) -> str:
    """The tables one after the other, each under its heading; paragraphs with an empty line between them."""
    parts: list[str] = []
    for table in tables:
        parts += [table.heading] if table.heading else []
        parts += [_markdown(table), *table.notes]
    return "\n\n".join(parts) + "\n"


def _markdown(table: Table) -> str:
    marks = ["---" if column.left or not table.aligned else "---:" for column in table.columns]
    lines = [[column.title for column in table.columns], marks, *_cells(table)]
    return "\n".join("| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines)


def _cells(table: Table) -> list[list[str]]:
    return [[column.shown(row) for column in table.columns] for row in table.rows]


def _markdown_cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", "<br>")


LATEX_HEAD = "% needs \\usepackage{booktabs}"
_LATEX = {
    "\\": r"\textbackslash{}",
    **{char: rf"\{char}" for char in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"},
    **{"|": r"\textbar{}", "\n": "; "},
}


def latex_text(text: str) -> str:
    """Text as it is, for LaTeX. Square brackets are in braces, as a row that begins with one would be an option."""
    escaped = "".join(_LATEX.get(char, char) for char in text)
    return "{}" + escaped if escaped.startswith(("[", "*")) else escaped


def latex(tables: Sequence[Table]) -> str:
    """A `table` environment for each, with its title as the caption; those that share one (`Table.of`) are its
    sections."""
    shared: dict[Any, list[Table]] = {}
    for place, table in enumerate(tables):
        titles = tuple(column.title for column in table.columns)
        shared.setdefault(place if table.of is None else (table.of[0], titles), []).append(table)
    return "\n\n".join([LATEX_HEAD, *map(_latex, shared.values())]) + "\n"


def _latex(tables: Sequence[Table]) -> str:
    columns, of = tables[0].columns, tables[0].of
    caption = tables[0].title if of is None or len(tables) == 1 else of[0]
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{latex_text(caption)}}}",
        rf"\begin{{tabular}}{{{''.join('l' if column.left else 'r' for column in columns)}}}",
        r"\toprule",
        *_latex_groups(columns),
        _latex_row([column.name for column in columns]),
    ]
    for table in tables:
        lines.append(r"\midrule")
        if table.of is not None and len(tables) > 1:
            section = latex_text(table.of[1])
            lines += [rf"\multicolumn{{{len(columns)}}}{{l}}{{\textit{{{section}}}}} \\", r"\midrule"]
        lines += map(_latex_row, _cells(table))
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip {latex_text(note)}" for note in notes),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_groups(columns: Sequence[Column]) -> list[str]:
    """The line of groups over the columns' names, with rules under them; nothing without groups."""
    spans: list[tuple[str, int, int]] = []  # group, first and last column from 1
    for place, column in enumerate(columns, start=1):
        if spans and column.group and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1], place)
        else:
            spans.append((column.group, place, place))
    if not any(group for group, _, _ in spans):
        return []
    over = [
        rf"\multicolumn{{{last - first + 1}}}{{c}}{{{latex_text(group)}}}" if group else ""
        for group, first, last in spans
    ]
    rules = [rf"\cmidrule(lr){{{first}-{last}}}" for group, first, last in spans if group]
    return [" & ".join(over) + r" \\", " ".join(rules)]


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


def comma_separated(tables: Sequence[Table]) -> str:
    """One CSV for all tables: what a row is of, then its numbers in full; columns that a table lacks are empty."""
    rows = []
    for table in tables:
        for row in table.rows:
            values = {name: value(row) for column in table.columns for name, value in column.values.items()}
            rows.append({**table.place, **values})
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _full(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _full(value: Any) -> Any:
    """A float as `repr` writes it, whatever kind of float it is; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(float(value)) if isinstance(value, float) else value
