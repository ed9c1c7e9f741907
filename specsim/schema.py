"""Column schemas and metadata of the two parquet formats, and nothing about reading or writing them.

Owns the names, the types and the meaning of the `specsim` metadata key. Every reader and writer takes them from here,
so that adding a column is one line and renaming one is impossible to do by accident.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from specsim.errors import TraceError

TRACE_SCHEMA_NAME: Final = "specsim.position_trace/1"
ROUND_LOG_SCHEMA_NAME: Final = "specsim.round_log/1"
METADATA_KEY: Final = b"specsim"
ROW_GROUP_ROWS: Final = 65_536
"""Upper bound on the rows of one row group and, about, of one chunk: what one step of a streamed pass holds."""

MAX_DRAFT_LEN: Final = 32_766
"""emitted_len is int16 and one more than what is accepted, so no draft can be longer."""
DEFAULT_MAX_NODES: Final = 512
"""Nodes of the trees that tree traces are replayed with when their metadata does not say."""

KINDS: Final = ("length", "arm", "tree")
COVERAGES: Final = ("every-position", "every-round")
PASS_RULES: Final = ("keep-first", "per-length")

_FLOATS = pa.list_(pa.float32())
_KEYS = [
    pa.field("request", pa.int32(), nullable=False),
    pa.field("pos", pa.int32(), nullable=False),
    pa.field("ctx_len", pa.int32()),
]
_PROBS = [pa.field(name, _FLOATS) for name in ("q", "p", "accept_prob", "entropy")]
_ACCEPT = [pa.field("accept_len", pa.int16(), nullable=False)]
_TIMES = [pa.field("draft_s", _FLOATS), pa.field("verify_s", pa.float32())]

POSITION_SCHEMA: Final = pa.schema([*_KEYS, *_PROBS, *_ACCEPT, *_TIMES])
ARM_SCHEMA: Final = pa.schema(
    [
        *_KEYS,
        pa.field("entropy", _FLOATS),
        pa.field("arm_accept_len", pa.list_(pa.int16()), nullable=False),
        pa.field("arm_draft_s", _FLOATS),
        *_TIMES,
    ]
)
TREE_SCHEMA: Final = pa.schema(
    [
        *POSITION_SCHEMA,
        pa.field("topk_q", pa.list_(_FLOATS), nullable=False),
        pa.field("target_rank", pa.list_(pa.int16()), nullable=False),
    ]
)

PASS_COLUMNS: Final = ("pass_conf", "pass_count", "pass_filled")
"""Columns that a length file has all of or none of: what each denoising pass of the drafter recorded."""
PASS_FIELDS: Final = (
    pa.field("pass_conf", _FLOATS),
    pa.field("pass_count", pa.list_(pa.int16())),
    pa.field("pass_filled", pa.list_(pa.int16())),
)

ARM_OPTIONAL_COLUMNS: Final = frozenset({"entropy", "draft_s", "verify_s"})
"""Columns an arm file may lack: the format says only which columns replace q/p/accept_*, and imported arm logs have
neither an entropy of one drafter nor separate times."""

ROUND_LOG_SCHEMA: Final = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("lane", pa.int32(), nullable=False),
        pa.field("request", pa.int32(), nullable=False),
        pa.field("round", pa.int32(), nullable=False),
        pa.field("pos", pa.int32(), nullable=False),
        pa.field("ctx_len", pa.int32()),
        pa.field("arm", pa.int16()),
        pa.field("drafted_len", pa.int16(), nullable=False),
        pa.field("submitted_len", pa.int16(), nullable=False),
        pa.field("accepted_len", pa.int16(), nullable=False),
        pa.field("emitted_len", pa.int16(), nullable=False),
        pa.field("draft_passes", pa.int16(), nullable=False),
        pa.field("draft_s", pa.float64()),
        pa.field("verify_s", pa.float64()),
        pa.field("overhead_s", pa.float64()),
        pa.field("round_s", pa.float64(), nullable=False),
        pa.field("warmup", pa.bool_(), nullable=False),
    ]
)


def schema_for(kind: str, *, passes: bool = False) -> pa.Schema:
    """The columns a trace of this kind is written with.

    Args:
        kind: `length`, `arm` or `tree`.
        passes: with `PASS_COLUMNS`, for kind `length`.
    """
    schema = {"length": POSITION_SCHEMA, "arm": ARM_SCHEMA, "tree": TREE_SCHEMA}[kind]
    return pa.schema([*schema, *PASS_FIELDS]) if passes and kind == "length" else schema


def required_columns(kind: str) -> list[str]:
    """Names of the columns that must exist in a file of this kind, in schema order."""
    names = schema_for(kind).names
    return [name for name in names if name not in ARM_OPTIONAL_COLUMNS] if kind == "arm" else list(names)


@dataclass(frozen=True, kw_only=True)
class TraceMeta:
    """The `specsim` metadata of a trace file; field names are the JSON keys.

    `max_draft_len` is the longest draft a row may hold (kind `tree`: the depth), `max_nodes` the largest tree a replay
    builds from a row of a tree trace. Keys this version does not know are kept in `extra` and
    written back. Values are checked by `from_json` and by `write_trace`, not by the constructor.
    """

    kind: str = "length"
    coverage: str = "every-position"
    target: str | None = None
    drafter: str | None = None
    block_len: int = 1
    max_draft_len: int
    temperature: float = 0.0
    prefix_closed: bool = True
    exact: bool = False
    mismatches: int | None = None
    dataset: str | None = None
    requests: int | None = None
    seed: int | None = None
    device: str | None = None
    dtype: str | None = None
    created: str | None = None
    software: Mapping[str, Any] = field(default_factory=dict)
    git: str | None = None
    arms: tuple[Mapping[str, Any], ...] | None = None
    draft_len: int | None = None
    latency: Mapping[str, Any] | None = None
    pass_rule: str = "keep-first"
    max_nodes: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_arms(self) -> int:
        """Number K of arms; 0 when the file is not an arm trace."""
        return len(self.arms) if self.arms is not None else 0

    @property
    def unlogged_len(self) -> int:
        """m of a row none of whose list columns was recorded, in tokens."""
        return self.draft_len if self.kind == "arm" and self.draft_len is not None else self.max_draft_len

    @property
    def tree_nodes(self) -> int:
        """Nodes of the largest tree that a replay builds from a row."""
        return DEFAULT_MAX_NODES if self.max_nodes is None else self.max_nodes

    def to_json(self) -> dict[str, Any]:
        """The metadata object as it is stored, unknown keys included, `max_nodes` only where it is given."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        if self.max_nodes is None:
            del known["max_nodes"]
        known["software"] = dict(self.software)
        known["arms"] = None if self.arms is None else [dict(arm) for arm in self.arms]
        known["latency"] = None if self.latency is None else dict(self.latency)
        return {"schema": TRACE_SCHEMA_NAME, **known, **self.extra}

    @classmethod
    def from_json(cls, document: str | bytes | Mapping[str, Any], path: str | Path = "<metadata>") -> Self:
        """Parse and check a metadata object.

        Args:
            document: JSON text or the parsed object.
            path: file named in messages.

        Raises:
            TraceError: not JSON, another schema version, a required key missing, or a value that is not allowed.
        """
        raw = _parse(document, path)
        _check_version(raw, path)
        missing = [key for key in _REQUIRED_KEYS if key not in raw]
        if missing:
            raise TraceError(
                path,
                f"metadata 'specsim' lacks the key {missing[0]!r}",
                allowed=f"all of {', '.join(_REQUIRED_KEYS)}",
                advice="Add the key when the file is written; the reader does not guess it",
            )
        names = {f.name for f in fields(cls)} - {"extra"}
        # A file that does not say that its drafts are prefix-closed must not be treated as if it did.
        values: dict[str, Any] = {"prefix_closed": False} | {key: raw[key] for key in names if key in raw}
        values["software"] = {} if values.get("software") is None else values["software"]
        values["pass_rule"] = "keep-first" if values.get("pass_rule") is None else values["pass_rule"]
        if isinstance(values.get("arms"), list):
            values["arms"] = tuple(values["arms"])
        meta = cls(**values, extra={k: v for k, v in raw.items() if k not in names and k != "schema"})
        meta.check(path)
        return meta

    def check(self, path: str | Path) -> None:
        """Raise a TraceError that names `path` and the first key whose value the format does not allow."""
        for key, allowed in _faulty_keys(self):
            raise TraceError(
                path,
                f"metadata 'specsim' has {key} = {_key_value(self, key)!r}",
                allowed=allowed,
                advice="Write the file again with a corrected value",
            )


_REQUIRED_KEYS: Final = ("kind", "coverage", "block_len", "max_draft_len", "temperature")


def _parse(document: str | bytes | Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    if isinstance(document, Mapping):
        return dict(document)
    try:
        raw = json.loads(document, parse_constant=_refuse_constant, parse_float=_finite_float)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            path,
            f"metadata key 'specsim' is not valid JSON ({error})",
            allowed=f'a JSON object with "schema": "{TRACE_SCHEMA_NAME}"',
            advice="Write the metadata with json.dumps(..., allow_nan=False)",
        ) from error
    if not isinstance(raw, dict):
        raise TraceError(
            path,
            f"metadata key 'specsim' holds a JSON {type(raw).__name__}",
            allowed="a JSON object",
            advice="See docs on the trace format",
        )
    return raw


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)  # 1e999 is infinite


def _check_version(raw: Mapping[str, Any], path: str | Path) -> None:
    found = raw.get("schema")
    if found != TRACE_SCHEMA_NAME:
        raise TraceError(
            path,
            f"metadata 'specsim' has schema = {found!r}",
            allowed=repr(TRACE_SCHEMA_NAME),
            advice="This file is of another format or version; record it again or convert it with a version of "
            "specsim that reads it",
        )


class _Rule(NamedTuple):
    key: str
    holds: Callable[[Any], bool]
    allowed: str


def is_count(value: object) -> bool:
    """Whether a JSON value is a whole number >= 0 (true and false are not numbers)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_nonnegative(value: object) -> bool:
    """Whether a JSON value is a finite number >= 0."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value <= sys.float_info.max  # false for NaN, infinity and whole numbers that no double can hold


def _optional(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_TEXT_KEYS = ("target", "drafter", "dataset", "device", "dtype", "created", "git")
_RULES: Final = (
    _Rule("kind", lambda v: v in KINDS, "one of " + ", ".join(KINDS)),
    _Rule("coverage", lambda v: v in COVERAGES, "one of " + ", ".join(COVERAGES)),
    _Rule("block_len", lambda v: is_count(v) and v >= 1, "a whole number >= 1"),
    _Rule(
        "max_draft_len", lambda v: is_count(v) and v <= MAX_DRAFT_LEN, f"a whole number between 0 and {MAX_DRAFT_LEN}"
    ),
    _Rule("temperature", is_nonnegative, "a finite number >= 0"),
    _Rule("prefix_closed", lambda v: isinstance(v, bool), "true or false"),
    _Rule("exact", lambda v: isinstance(v, bool), "true or false"),
    _Rule("mismatches", _optional(is_count), "a whole number >= 0 or null"),
    _Rule("requests", _optional(is_count), "a whole number >= 0 or null"),
    _Rule("seed", _optional(lambda v: isinstance(v, int) and not isinstance(v, bool)), "a whole number or null"),
    *(_Rule(key, _optional(_is_text), "text or null") for key in _TEXT_KEYS),
    _Rule("software", lambda v: isinstance(v, Mapping), "an object"),
    _Rule("latency", _optional(lambda v: isinstance(v, Mapping)), "a latency model (an object) or null"),
    _Rule("pass_rule", lambda v: v in PASS_RULES, "one of " + ", ".join(PASS_RULES)),
    *(
        _Rule(
            key,
            _optional(lambda v: is_count(v) and 1 <= v <= MAX_DRAFT_LEN),
            f"a whole number between 1 and {MAX_DRAFT_LEN}, or null",
        )
        for key in ("draft_len", "max_nodes")
    ),
)


def _faulty_keys(meta: TraceMeta) -> Iterator[tuple[str, str]]:
    for rule in _RULES:
        value = getattr(meta, rule.key)
        try:
            fine = rule.holds(value)
        except TypeError:  # an unhashable or incomparable JSON value is not an allowed one
            fine = False
        if not fine:
            yield rule.key, rule.allowed
    if meta.exact and meta.temperature > 0:
        yield "exact", f"false, because temperature is {meta.temperature} and only a greedy trace can be exact"
    yield from _faulty_arms(meta)


def _faulty_arms(meta: TraceMeta) -> Iterator[tuple[str, str]]:
    if meta.kind != "arm":
        return
    if meta.draft_len is None:
        yield "draft_len", "a whole number >= 1 for kind 'arm' (the length every arm drafts)"
    if not isinstance(meta.arms, list | tuple) or len(meta.arms) == 0:
        yield "arms", 'a non-empty list of {"name", "budget", "draft_s"} objects for kind \'arm\''
        return
    budgets = []
    for k, arm in enumerate(meta.arms):
        if not (isinstance(arm, Mapping) and _is_text(arm.get("name")) and is_nonnegative(arm.get("budget"))):
            yield f"arms[{k}]", 'an object with a text "name" and a "budget" >= 0'
            return
        if not is_nonnegative(arm.get("draft_s")):
            yield f"arms[{k}]", 'an object whose "draft_s" (seconds per draft token) is finite and >= 0'
            return
        budgets.append(arm["budget"])
    if any(b < a for a, b in pairwise(budgets)):
        yield "arms", "arms in ascending budget"


def _key_value(meta: TraceMeta, key: str) -> Any:
    if key.startswith("arms[") and meta.arms is not None:
        return meta.arms[int(key[5:-1])]
    return getattr(meta, key)
