"""What a round costs: the latency model, and the JSON files it is kept in.

Owns schema `specsim.latency/1` (docs/latency.md; the project's file formats, section 3). Knows nothing about fitting,
traces or controllers; `specsim.latency.forms` holds the formulas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from specsim.errors import ConfigError
from specsim.latency.forms import FORM_KEYS, FORMS, Affine, FloatArray, VerifyForm, check_keys, fault, number
from specsim.paths import replace_file

SCHEMA = "specsim.latency/1"
_ADVICE = "docs/latency.md shows every form; `python -m specsim.latency fit` writes one from measurements."


@dataclass(frozen=True, kw_only=True)
class LatencyModel:
    """Seconds of every part of a round: draft, verification, overhead. Always valid once built.

    A round that submits d draft tokens runs a target forward pass over s = d + 1 token positions and costs
    `draft_s(passes, drafted) + verify_s(d + 1, ctx_len) + overhead_s`. Plain decoding costs `verify_s(1, ctx_len)` per
    token, without overhead.

    Args:
        verify: time of a target forward pass at zero context: Affine, Hinge, Step or Table.
        ctx_s: seconds per context token added to every forward pass, >= 0.
        draft_pass_s: seconds per drafter pass, >= 0.
        draft_token_s: seconds per drafted token, >= 0.
        overhead_s: seconds per speculative round, >= 0.
        provenance: where the numbers come from; free keys, JSON values.

    Raises:
        ConfigError: a value outside its range.
    """

    verify: VerifyForm
    ctx_s: float = 0.0
    draft_pass_s: float = 0.0
    draft_token_s: float = 0.0
    overhead_s: float = 0.0
    provenance: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, key in (
            ("ctx_s", "verify.ctx_s"),
            ("draft_pass_s", "draft.pass_s"),
            ("draft_token_s", "draft.token_s"),
            ("overhead_s", "overhead_s"),
        ):
            object.__setattr__(self, name, number(key, getattr(self, name), at_least=0.0))

    @classmethod
    def affine(
        cls,
        *,
        c_s: float,
        b_s: float,
        ctx_s: float = 0.0,
        draft_pass_s: float = 0.0,
        draft_token_s: float = 0.0,
        overhead_s: float = 0.0,
    ) -> Self:
        """The commonest model, verify(s) = c_s * s + b_s, in one call; arguments as in the class."""
        return cls(
            verify=Affine(c_s=c_s, b_s=b_s),
            ctx_s=ctx_s,
            draft_pass_s=draft_pass_s,
            draft_token_s=draft_token_s,
            overhead_s=overhead_s,
        )

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], *, where: str) -> Self:
        """The model that a `specsim.latency/1` document describes.

        `draft`, its two keys, `overhead_s` and `verify.ctx_s` are 0 when left out.

        Args:
            d: the parsed document.
            where: file or place it came from, for messages.

        Raises:
            ConfigError: not such a document, or values out of range; names `where`, key, value, what is allowed and
                what to do.
        """
        try:
            return cls._parse(d)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    @classmethod
    def _parse(cls, d: Mapping[str, Any]) -> Self:
        top = _mapping("latency", d)
        if top.get("schema") != SCHEMA:
            raise fault("schema", f"is {top.get('schema')!r}", repr(SCHEMA), _ADVICE)
        check_keys("latency", top, ("schema", "verify", "draft", "overhead_s", "provenance"), ("schema", "verify"))
        verify = dict(_mapping("verify", top["verify"]))
        form = verify.pop("form", None)
        if not isinstance(form, str) or form not in FORMS:
            raise fault("verify.form", f"is {form!r}", ", ".join(FORMS), _ADVICE)
        check_keys("verify", verify, (*FORM_KEYS[form], "ctx_s"), FORM_KEYS[form])
        draft = _mapping("draft", top.get("draft", {}))
        check_keys("draft", draft, ("pass_s", "token_s"))
        return cls(
            ctx_s=verify.pop("ctx_s", 0.0),
            verify=FORMS[form](**{key: verify[key] for key in FORM_KEYS[form]}),
            draft_pass_s=draft.get("pass_s", 0.0),
            draft_token_s=draft.get("token_s", 0.0),
            overhead_s=top.get("overhead_s", 0.0),
            provenance=dict(_mapping("provenance", top.get("provenance", {}))),
        )

    def to_dict(self) -> dict[str, Any]:
        """The `specsim.latency/1` document; `from_dict` gives back an equal model."""
        form = self.verify.form
        verify: dict[str, Any] = {"form": form}
        for key in FORM_KEYS[form]:
            value = getattr(self.verify, key)
            verify[key] = list(value) if isinstance(value, tuple) else value
        if self.ctx_s > 0.0:
            verify["ctx_s"] = self.ctx_s
        return {
            "schema": SCHEMA,
            "verify": verify,
            "draft": {"pass_s": self.draft_pass_s, "token_s": self.draft_token_s},
            "overhead_s": self.overhead_s,
            "provenance": dict(self.provenance),
        }

    def verify_table(self, max_s: int) -> FloatArray:
        """Time of a target forward pass at zero context, for every number of token positions.

        Args:
            max_s: largest number of token positions, >= 0.

        Returns:
            float64[max_s + 1] seconds, entry s for s token positions; entry 0 is 0.0 and never used.

        Raises:
            ConfigError: `max_s` is negative.
        """
        if max_s < 0:
            raise fault("max_s", f"is {max_s}", ">= 0", "Pass the largest number of token positions.")
        table = np.zeros(max_s + 1, dtype=np.float64)
        table[1:] = self.verify.at(np.arange(1, max_s + 1, dtype=np.float64))
        return table

    def verify_s(self, s: npt.ArrayLike, ctx_len: npt.ArrayLike = 0) -> Any:
        """Seconds of a target forward pass over `s` (>= 1) token positions with `ctx_len` tokens before them.

        Args:
            s: token positions, scalar or array.
            ctx_len: context tokens, scalar or array that broadcasts with `s`.

        Returns:
            float64 scalar or array of the broadcast shape.
        """
        form_s = self.verify.at(np.asarray(s, dtype=np.float64))
        return np.add(form_s, self.ctx_s * np.asarray(ctx_len, dtype=np.float64))

    def draft_s(self, passes: npt.ArrayLike, drafted: npt.ArrayLike) -> Any:
        """Seconds spent drafting: passes * draft_pass_s + drafted * draft_token_s; scalars or arrays, float64."""
        passes, drafted = np.asarray(passes, dtype=np.float64), np.asarray(drafted, dtype=np.float64)
        return np.add(passes * self.draft_pass_s, drafted * self.draft_token_s)


def _mapping(key: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise fault(key, f"is {value!r}", "a JSON object", _ADVICE)
    return value


def load_latency(spec: str | Path) -> LatencyModel:
    """The latency model that a user names.

    Args:
        spec: path of a JSON file, `preset:NAME`, or `preset:NAME:draft_pass_s=0.001,...` with costs of one's own.

    Raises:
        ConfigError: unknown preset (suggests a name), unreadable file, not JSON, wrong schema, value out of range.
    """
    if isinstance(spec, str) and spec.startswith("preset:"):
        from specsim.latency.presets import load_preset  # presets imports this module

        return load_preset(spec.removeprefix("preset:"))
    return LatencyModel.from_dict(read_json(spec), where=str(spec))


def read_json(path: str | Path) -> Any:
    """Parsed JSON of a file: UTF-8, no NaN or Infinity, no duplicate keys.

    Raises:
        ConfigError: unreadable or not such JSON; names the file and what to do.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; allowed: UTF-8 JSON. {_ADVICE}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path}: cannot be read ({reason}); allowed: a JSON file or preset:NAME. "
            "Check the path; `python -m specsim.latency presets` lists the presets."
        ) from None
    return parse_json(text, where=str(path))


def parse_json(text: str, *, where: str) -> Any:
    """Strict JSON; raises ConfigError with `where` for NaN, Infinity, duplicate keys or a syntax error."""

    def refuse(literal: str) -> float:
        raise ConfigError(f"{where}: {literal} is not a finite number; allowed: finite JSON numbers. {_ADVICE}")

    def finite(literal: str) -> float:
        value = float(literal)
        return value if math.isfinite(value) else refuse(literal)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise ConfigError(f"{where}: key {twice!r} stands twice; allowed: each key once. Remove one of them.")
        return result

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno} column {error.colno}"
        raise ConfigError(f"{place}: {error.msg}; allowed: JSON. {_ADVICE}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}; allowed: JSON. {_ADVICE}") from None


def save_latency(path: str | Path, model: LatencyModel) -> None:
    """Write `model` as JSON, atomically: readers see the old file or the new one, never half of one.

    Raises:
        ConfigError: provenance is not JSON, or the file cannot be written; nothing is left behind.
    """
    try:
        text = json.dumps(model.to_dict(), indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: provenance cannot be written as JSON ({error}); allowed: finite JSON values"
        ) from None
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
