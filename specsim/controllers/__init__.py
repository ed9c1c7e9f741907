"""The registry of controllers, and their command-line spelling `name` or `name:key=value,key=value`.

A new controller is one file with its `ControllerSpec` and one line here; it then runs in the whole conformance suite
(`tests/test_conformance.py`). `register` adds one at run time (`--plugin FILE.py`).
"""

from __future__ import annotations

from specsim.controllers import (
    arms,
    bandits,
    caddtree,
    confidence,
    corrected,
    failfast_repo,
    goodput,
    lambda_rule,
    lengths_bandit,
    libraspec,
    oracles,
    schedules,
    weights,
)
from specsim.controllers.base import Controller, ControllerSpec, NoParams, Param, Plan, Setting, suggest
from specsim.errors import ConfigError

__all__ = [
    "DEFAULT_ARM_SET",
    "DEFAULT_SET",
    "DEFAULT_SETS",
    "DEFAULT_TREE_SET",
    "REGISTRY",
    "Controller",
    "ControllerSpec",
    "NoParams",
    "Param",
    "Plan",
    "Setting",
    "build",
    "parse_spec",
    "register",
]

REGISTRY: dict[str, ControllerSpec] = {
    spec.name: spec
    for family in (
        schedules,
        confidence,
        failfast_repo,
        libraspec,
        goodput,
        caddtree,
        corrected,
        lambda_rule,
        lengths_bandit,
        oracles,
        arms,
        bandits,
        weights,
    )
    for spec in family.SPECS
}

DEFAULT_SET = ("plain", "static:length=4", "g4", "threshold", "failfast", "libraspec", "goodput", "oracle")
DEFAULT_TREE_SET = (
    "plain",
    "static:length=16",
    "static:length=64",
    "libraspec",
    "goodput",
    "caddtree",
    "lambda",
    "oracle",
)
DEFAULT_ARM_SET = ("plain", "best-arm", "sp2ec", "global-ucb", "klucb-unimodal", "ucbspec", "exp3spec", "oracle")


DEFAULT_SETS = {"length": DEFAULT_SET, "arm": DEFAULT_ARM_SET, "tree": DEFAULT_TREE_SET}
"""Kind of trace -> what is replayed when nothing is asked for."""


def register(spec: ControllerSpec) -> None:
    """Add a controller at run time.

    Raises:
        ConfigError: the name is taken or is not made of letters, digits, "-" and "_".
    """
    if spec.name in REGISTRY:
        raise ConfigError(f"controller {spec.name!r} is registered already; give yours another name")
    if not spec.name.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"controller name {spec.name!r}: allowed are letters, digits, '-' and '_'")
    REGISTRY[spec.name] = spec


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split `name:key=value,key=value`.

    Raises:
        ConfigError: unknown name, an item without "=", or a key given twice.
    """
    name, _, rest = text.partition(":")
    if name not in REGISTRY:
        raise ConfigError(f"unknown controller {name!r}{suggest(name, REGISTRY)}; known: {', '.join(REGISTRY)}")
    given: dict[str, str] = {}
    for item in rest.split(",") if rest else []:
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise ConfigError(f"controller {text!r}: {item!r} is not key=value; write {name}:key=value,key=value")
        if key in given:
            raise ConfigError(f"controller {text!r}: {key!r} is given twice")
        given[key] = value
    return name, given


def build(text: str, setting: Setting) -> Controller:
    """The controller that a command-line spelling means on a given trace and hardware.

    Raises:
        ConfigError: unknown controller or parameter, missing or out-of-range value.
    """
    name, given = parse_spec(text)
    return REGISTRY[name].resolve(given, setting)
