"""Eight planted faults, each of which a named property must catch; the unchanged source must pass the same way."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest

from specsim import theory
from tests import theory_props as props
from tests.theory_props import Prop, hold

EXAMPLES = 100


class Mutant(NamedTuple):
    """One substitution in one module, and the property that sees it."""

    module: str
    old: str
    new: str
    prop: Prop


MUTANTS = {
    "sigma dropped": Mutant("exact", "values = [Fraction(sigma)]", "values = [Fraction(0)]", props.P01),
    "floor to ceil": Mutant("algorithm1", "math.floor(", "math.ceil(", props.P30),
    "< to <=": Mutant("adjust", "d + 1 < alpha * total + i", "d + 1 <= alpha * total + i", props.P06),
    "block rounding": Mutant("algorithm1", "(-budget + n - 1) // n", "-budget // n", props.P30),
    "i from 2": Mutant("algorithm1", "range(d, 0, -1)", "range(d, 1, -1)", props.P30),
    "never stops": Mutant("algorithm1", "if bound <= d:", "if bound < d:", props.P30),
    "clip off": Mutant("algorithm1", "min(bound, dmax) if clip else bound", "bound", props.P30),
    "eps^c > to >=": Mutant(
        "adjust",
        "tokens[d] * table[m] > tokens[m] * table[d]",
        "tokens[d] * table[m] >= tokens[m] * table[d]",
        props.P44,
    ),
}


def source_of(module: str) -> str:
    file = importlib.import_module(f"specsim.theory.{module}").__file__
    assert file
    return Path(file).read_text(encoding="utf-8")


def built(module: str, source: str) -> SimpleNamespace:
    """The names of `specsim.theory`, those of one module taken from `source`."""
    changed = ModuleType(f"mutant_{module}")
    exec(compile(source, f"<mutant of {module}>", "exec"), changed.__dict__)
    names = {name: getattr(changed, name, value) for name, value in vars(theory).items() if not name.startswith("_")}
    return SimpleNamespace(**names)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    source = source_of(mutant.module)
    assert source.count(mutant.old) == 1, f"{mutant.old!r} is no longer in {mutant.module} once: adapt the mutant"
    with pytest.raises((AssertionError, ValueError, ExceptionGroup)):  # min() of nothing is the ValueError
        hold(mutant.prop, built(mutant.module, source.replace(mutant.old, mutant.new)), EXAMPLES)


@pytest.mark.parametrize(("module", "prop"), sorted({(m.module, m.prop.body.__name__) for m in MUTANTS.values()}))
def test_unchanged_source_passes(module: str, prop: str) -> None:
    """Loaded the same way, so that a mutant cannot be caught for being a copy."""
    hold(getattr(props, prop.upper()), built(module, source_of(module)), EXAMPLES)


def test_plateaus_are_needed_to_see_the_last_one() -> None:
    """The corrected bound with >= passes P08 and P09, which use random costs only: hence P44."""
    mutant = MUTANTS["eps^c > to >="]
    wrong = built(mutant.module, source_of(mutant.module).replace(mutant.old, mutant.new))
    hold(props.P08, wrong, EXAMPLES)
