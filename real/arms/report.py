"""What is shown of a family of arms: the arms, and what building them took. Reads `arms.json` alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from real.builders.arm import ArmFile, nested
from real.builders.knapspec import Weights
from real.drafters.spent import PARTS, Spent
from specsim.errors import ConfigError

_NUMBERS: Final = ("rounds", "tokens", "trials", "generated", "generation_s")
_MOST: Final = 1e100  # far from where sums and spellings of numbers fail
_ADVICE: Final = "Build the file again, or leave construction out"


def record(spent: Spent) -> dict[str, Any]:
    """The cost of construction, as JSON values."""
    return {
        "seconds": dict(spent.seconds),
        "rounds": spent.rounds,
        "tokens": spent.tokens,
        "trials": spent.trials,
        "generated": spent.generated,
        "generation_s": spent.generation_s,
        "share": spent.share,
    }


def check_construction(file: ArmFile, where: str | Path) -> None:
    """Refuse what the tables cannot show of the cost of construction; a file may come from elsewhere.

    Args:
        file: its arms and construction; where that is empty nothing is wanted of it.
        where: the file's name, for messages.

    Raises:
        ConfigError: a key missing, a value that is no number, or lists of another length than the arms.
    """
    told, numbers = file.construction, dict[str, Any]()
    if told:
        numbers |= {key: told.get(key) for key in _NUMBERS} | _members(told, "seconds", PARTS)
    if "weights" in told:
        numbers |= _members(told, "weights", Weights._fields)
    for key in ("kept", "scores"):
        listed = told.get(key)
        if listed is not None and (not isinstance(listed, list) or len(listed) != len(file.arms)):
            raise ConfigError(
                f"{where}: construction: {key} is {listed!r}; allowed: a list with an entry for each of the "
                f"{len(file.arms)} arms. {_ADVICE}"
            )
        numbers |= {f"{key}[{place}]": value for place, value in enumerate(listed or []) if value is not None}
    for key, value in numbers.items():
        # False for NaN.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOST:
            raise ConfigError(f"{where}: construction: {key} is {value!r}; allowed: a number. {_ADVICE}")


def _members(told: Mapping[str, Any], key: str, names: Iterable[str]) -> dict[str, Any]:
    """The values of an object inside, None where there are none."""
    inner = told.get(key)
    return {f"{key}.{name}": inner.get(name) if isinstance(inner, Mapping) else None for name in names}


def family_table(file: ArmFile) -> Table:
    """The arms of a file with what each leaves out and keeps, and what its builder thinks of it."""
    told = file.construction
    weights = Weights(**told["weights"]) if "weights" in told else Weights(1, 1)
    table = _table("arm", "attentions out", "MLPs out", "weight out", "kept", "score")
    for number, arm in enumerate(file.arms):
        table.add_row(
            str(arm) or "(nothing left out)",
            f"{len(arm.attention)}",
            f"{len(arm.mlp)}",
            f"{arm.skipped(*weights):g}",
            _number(told.get("kept"), number, "{:.1%}"),
            _number(told.get("scores"), number, "{:.4g}"),
        )
    return table


def headline(file: ArmFile) -> str:
    """Where the arms are from, in a line."""
    order = "nested" if nested(file.arms) else "not nested"
    return f"{file.builder}: {len(file.arms)} arms, {order}, for {file.target} ({file.n_layers} layers)"


def cost_table(told: Mapping[str, Any]) -> Table:
    """Seconds of the parts of construction, alone and as shares of the generation they fell into."""
    table = _table("construction", "seconds", "of generation")
    generation_s = told["generation_s"]
    seconds = {part: told["seconds"][part] for part in PARTS}
    for part, part_s in {**seconds, "all": sum(seconds.values())}.items():
        table.add_row(part, f"{part_s:.4f}", f"{part_s / generation_s:.3%}" if generation_s else "")
    return table


def cost_line(told: Mapping[str, Any]) -> str:
    """What was decoded meanwhile, in a line."""
    if not told["generated"]:
        return "nothing was decoded"
    trials = f", {told['trials']} trials" if told["trials"] else ""
    return (
        f"{told['rounds']} rounds{trials} and {told['tokens']} tokens while arms were built, of {told['generated']} "
        f"tokens generated in {told['generation_s']:.2f} s"
    )


def _table(name: str, *columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(name, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _number(values: Any, number: int, form: str) -> str:
    return "" if values is None or values[number] is None else form.format(values[number])
