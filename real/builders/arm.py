"""Draft configurations ("arms") of self-speculation: what they are, how they are spelled, and files of them.

Owns `Arm`, its spelling, the order of arms by cost, and `arms.json`. Knows no model, no builder and no decode loop, and
needs no torch.

A decoder layer is an attention and an MLP; an arm names those that its draft pass leaves out. Whole layers are written
as numbers and ranges, single halves after `a` (attention) or `m` (MLP), parts joined by `+`: `9-14`, `a3,5-7+m2,9`,
`4+a9`. The empty text leaves nothing out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Any, Final, Self, SupportsIndex

from real.drafters.options import is_whole
from specsim.errors import ConfigError
from specsim.latency.forms import check_keys
from specsim.paths import replace_file

SCHEMA: Final = "real.arms/1"
MOST_LAYERS: Final = 10_000  # more than any model has; a mistyped range should not fill the memory
_KEYS: Final = ("schema", "target", "n_layers", "builder", "settings", "arms")
_OPTIONAL: Final = ("construction",)


def parse_layers(text: str) -> tuple[int, ...]:
    """Layer numbers from "3,5,10-12" (0-based, ends included), ascending and without repeats.

    Raises:
        ConfigError: the text is not a list of numbers and ranges.
    """
    layers: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        if not is_whole(first) or (dash and not is_whole(last)) or (dash and int(last) < int(first)):
            raise ConfigError(f"layers {text!r}: cannot read {part!r}; write numbers and ranges, e.g. 9,12-15")
        if int(last or first) >= MOST_LAYERS:
            raise ConfigError(f"layers {text!r}: {part!r} goes beyond {MOST_LAYERS - 1}; no model has as many layers")
        layers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(layers))


def spell_layers(layers: Iterable[int]) -> str:
    """The shortest text that `parse_layers` reads as these layers: runs of three or more become ranges."""
    runs: list[list[int]] = []
    for layer in sorted(set(layers)):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _layer_number(kind: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or not 0 <= index(value) < MOST_LAYERS:
        raise ConfigError(f"arm: {kind} of layer {value!r}; allowed: whole numbers 0..{MOST_LAYERS - 1}")
    return index(value)


@dataclass(frozen=True)
class Arm:
    """Sub-blocks that the draft pass leaves out; a whole layer has its number in both sets.

    Args:
        attention: decoder layers (0-based) without their attention.
        mlp: decoder layers without their MLP.

    Raises:
        ConfigError: a number that is no layer number.
    """

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for kind in ("attention", "mlp"):
            object.__setattr__(self, kind, frozenset(_layer_number(kind, layer) for layer in getattr(self, kind)))

    @classmethod
    def blocks(cls, layers: Iterable[int]) -> Self:
        """The arm without these whole layers."""
        both = frozenset(layers)
        return cls(both, both)

    @classmethod
    def from_mask(cls, mask: Sequence[int]) -> Self:
        """The arm of a mask over sub-blocks: entry 2i is the attention, 2i+1 the MLP of layer i, 1 = left out.

        Raises:
            ConfigError: an odd number of entries, or one that is not 0 or 1.
        """
        if len(mask) % 2 or any(entry not in (0, 1) for entry in mask):
            raise ConfigError(f"mask {list(mask)}: write 0 or 1 for the attention and for the MLP of each layer")
        out = [number for number, entry in enumerate(mask) if entry]
        return cls(frozenset(n // 2 for n in out if n % 2 == 0), frozenset(n // 2 for n in out if n % 2))

    @classmethod
    def parse(cls, text: str, n_layers: int | None = None) -> Self:
        """The arm that a spelling names, checked against `n_layers` where that is given.

        Raises:
            ConfigError: not a spelling, a part twice, or an arm that `check` refuses.
        """
        found: dict[str, tuple[int, ...]] = {}
        for part in text.split("+") if text.strip() else []:
            piece = part.strip()
            kind = piece[:1] if piece[:1] in ("a", "m") else ""
            layers = parse_layers(piece.removeprefix(kind))
            if not layers or kind in found:
                raise ConfigError(
                    f"arm {text!r}: cannot read the part {part!r}; allowed: layers, a and layers (attention only), "
                    "m and layers (MLP only), each once, joined by +, e.g. 9-14 or a3,5-7+m2,9; nothing for the whole "
                    "target"
                )
            found[kind] = layers
        whole = found.get("", ())
        arm = cls(frozenset((*whole, *found.get("a", ()))), frozenset((*whole, *found.get("m", ()))))
        return arm if n_layers is None else arm.check(n_layers)

    def __str__(self) -> str:
        """The spelling; `parse` reads it back."""
        whole = self.attention & self.mlp
        parts = ("", whole), ("a", self.attention - whole), ("m", self.mlp - whole)
        return "+".join(kind + spell_layers(layers) for kind, layers in parts if layers)

    def check(self, n_layers: int) -> Self:
        """Itself, if a target of `n_layers` decoder layers can draft with it.

        Raises:
            ConfigError: a layer the target does not have, or nothing left to run.
        """
        wrong = sorted(layer for layer in self.attention | self.mlp if layer >= n_layers)
        if wrong:
            raise ConfigError(f"arm {str(self)!r}: no layer {wrong[0]}; the target has layers 0..{n_layers - 1}")
        if self.skipped() == 2 * n_layers:
            raise ConfigError(
                f"arm {str(self)!r}: leaves out all {n_layers} layers; keep at least one attention or MLP"
            )
        return self

    def skipped(self, attention: float = 1, mlp: float = 1) -> float:
        """How much it leaves out, with the cost of one attention and of one MLP in any common unit."""
        return attention * len(self.attention) + mlp * len(self.mlp)

    def within(self, other: Arm) -> bool:
        """Whether the other leaves out all that this one does."""
        return self.attention <= other.attention and self.mlp <= other.mlp


def cost_order(arms: Iterable[Arm], *, attention: float = 1, mlp: float = 1) -> list[Arm]:
    """The arms by ascending amount left out, so the dearest draft comes first; equal ones keep their order.

    Traces list arms the other way round, by ascending kept compute (docs/formats.md).

    Args:
        arms: in any order.
        attention: cost of one attention, in any unit.
        mlp: cost of one MLP, in the same unit.
    """
    return sorted(arms, key=lambda arm: arm.skipped(attention, mlp))


def nested(arms: Sequence[Arm]) -> bool:
    """Whether each arm leaves out at least what the one before it does."""
    return all(one.within(other) for one, other in pairwise(arms))


@dataclass(frozen=True)
class ArmFile:
    """What `arms.json` holds.

    Args:
        target: name of the target the arms were built for.
        n_layers: its decoder layers.
        builder: what made them.
        settings: that builder's settings, as JSON values.
        arms: in the builder's order.
        construction: what building them took and told, as JSON values (`real.arms`); empty: not known.

    Raises:
        ConfigError: no arm, one twice, or one that does not suit `n_layers`.
    """

    target: str
    n_layers: int
    builder: str
    arms: tuple[Arm, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    construction: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.arms:
            raise ConfigError("arms: none given; allowed: at least one")
        for number, arm in enumerate(self.arms):
            arm.check(self.n_layers)
            if arm in self.arms[:number]:
                raise ConfigError(f"arms[{number}]: {str(arm)!r} stands there twice; remove one")

    def to_json(self) -> dict[str, Any]:
        """The document that `from_json` reads."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "n_layers": self.n_layers,
            "builder": self.builder,
            "settings": self.settings,
            "arms": [str(arm) for arm in self.arms],
            **({"construction": self.construction} if self.construction else {}),
        }

    @classmethod
    def from_json(cls, document: Any, *, where: str) -> Self:
        """The arms of a document.

        Args:
            document: parsed JSON.
            where: file or place it came from, for messages.

        Raises:
            ConfigError: another schema, a key missing, unknown or of the wrong type, or arms that do not suit.
        """
        try:
            if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
                found = document.get("schema") if isinstance(document, Mapping) else document
                raise ConfigError(f'the schema is {found!r}; allowed: a JSON object with "schema": "{SCHEMA}"')
            check_keys("arms file", document, (*_KEYS, *_OPTIONAL), _KEYS, strict=True)
            for key, kind in _KINDS.items():
                value = document.get(key, kind())
                if not isinstance(value, kind) or isinstance(value, bool):
                    raise ConfigError(f"{key} is {value!r}; allowed: {_WORDS[kind]}")
            if not 1 <= document["n_layers"] <= MOST_LAYERS:
                raise ConfigError(f"n_layers is {document['n_layers']}; allowed: 1..{MOST_LAYERS}")
            for number, text in enumerate(document["arms"]):
                if not isinstance(text, str):
                    raise ConfigError(f"arms[{number}] is {text!r}; allowed: a spelling such as '9-14' or 'a3+m2,9'")
            arms = tuple(Arm.parse(text) for text in document["arms"])
            told = document["settings"], document.get("construction", {})
            return cls(document["target"], document["n_layers"], document["builder"], arms, *told)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the file; it replaces one of that name only once it is complete.

        Raises:
            ConfigError: it cannot be written there, or settings or construction are no JSON.
        """
        try:
            text = json.dumps(self.to_json(), allow_nan=False, indent=1)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: the settings cannot be written as JSON ({error})") from None
        with replace_file(path) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")


_KINDS: Final = {"target": str, "builder": str, "n_layers": int, "settings": dict, "arms": list, "construction": dict}
_WORDS: Final = {str: "a text", int: "a whole number", dict: "a JSON object", list: "a JSON list"}


def read_arms(path: str | Path) -> ArmFile:
    """The arms of a file.

    Raises:
        ConfigError: the file is missing or no JSON, or what `ArmFile.from_json` refuses.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a file that `save` wrote") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error}); name a file that `save` wrote") from None
    return ArmFile.from_json(document, where=str(path))
