"""What a controller is: parameters, a row of state, and three functions; how one is named and built.

The same functions run compiled in the batch kernel, interpreted in the tests, and one round at a time in a live decode
loop (`specsim.online`). This file knows no particular controller.

The functions (`q` holds the confidences of the drafted tokens, and only q[:drafted] may be read; all lengths exclude
the anchor/bonus token):

* `begin(params, state, lane, pos, ctx_len, u, hint) -> (arm, want)`: draft configuration (-1 when there is none) and
  how many tokens to draft first; 0 is a plain decoding round. `u` is uniform in [0, 1), keyed by (seed, request, pos),
  for controllers marked `random`, else 0.
  `hint` is -1 except for privileged controllers (see `Controller.privilege`) and those with a `Controller.plan`.
* `revise(params, state, lane, q, drafted, more) -> (submit, want)`: called after each request for tokens was served.
  `want > drafted` asks for more; `submit <= drafted` is verified when nothing more is wanted, or when nothing more can
  be had: `more` is False when the drafter has reached the end of what it can offer in this round. A `want` above
  `drafted` that stays unserved is counted as a clamped round.
* `update(params, state, lane, arm, drafted, submitted, accepted, round_s) -> None`: feedback after verification.

State is one float64 row per lane: first the columns that persist, then `scratch` columns, which every round finds
zeroed, then `work` columns, which hold anything and must be written before they are read. One plain
matrix keeps copying, comparing, resetting and pickling the state free of controller-specific code.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specsim.chunk import TraceChunk
from specsim.errors import ConfigError
from specsim.jit import is_compiled
from specsim.latency import LatencyModel
from specsim.passes import PassRecord, passes_per_block
from specsim.schema import MAX_DRAFT_LEN


class NoParams(NamedTuple):
    """Parameters of a controller that has none (numba needs at least one field)."""

    unused: int = 0


class Plan(NamedTuple):
    """What a rule that reads the denoising passes decides beforehand, for each of R rows.

    `lengths` int32[R] are the lengths it will submit, `waits` int32[R] the passes it needs to see to know them: a round
    is charged for no fewer.
    """

    lengths: NDArray[np.int32]
    waits: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Controller:
    """A controller ready to run: parameters fixed, state not yet allocated.

    Attributes:
        name: command-line name.
        config: resolved parameters as reported in results, JSON values only.
        params: NamedTuple of scalars and small arrays handed to the functions.
        begin, revise, update: see the module docstring; compiled for shipped controllers, plain Python allowed.
        initial: float64[k], the persistent part of a fresh state row.
        scratch: number of further columns, zeroed before each round.
        work: number of further columns that are not.
        per_request: whether the state is cleared at the start of each request.
        scale_free: whether choices stay the same when all latencies are multiplied by a constant.
        random: whether `begin` uses `u`, so that choices depend on the seed and on the numbers of the requests.
        needs_q: whether `revise` reads confidences, so that a trace without them is refused.
        privilege: what `hint` holds: "none"; "round" (the best length, or arm, of this round, given its acceptance);
            "path" (the length, or arm, the shortest path over the whole request takes here); "file" (the best single
            arm over the whole trace).
        plan: a `Plan` for the rows of a chunk, worked out from columns the loop does not carry, whose lengths are
            delivered as `hint`; raises ConfigError for a chunk that lacks them. Deployable, unlike what a privilege
            tells.
        judge: the same rule in a live round, which knows the passes made so far: (length, whether it waits for another
            pass). Asked after every request; the last length is the one `plan` gives for the row those passes make.
        full_information: `update` is called for every arm of the round in turn, not only for the one played.
        pays_overhead: False only for plain decoding, which is charged verify(1) alone.
    """

    name: str
    config: dict[str, Any]
    params: Any
    begin: Callable[..., tuple[int, int]]
    revise: Callable[..., tuple[int, int]]
    update: Callable[..., None]
    initial: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    scratch: int = 0
    work: int = 0
    per_request: bool = True
    scale_free: bool = True
    random: bool = False
    needs_q: bool = False
    privilege: str = "none"
    plan: Callable[[TraceChunk], Plan] | None = None
    judge: Callable[[PassRecord], tuple[int, bool]] | None = None
    full_information: bool = False
    pays_overhead: bool = True

    @property
    def compiled(self) -> bool:
        """Whether all three functions are compiled; otherwise replay takes the slow interpreted path."""
        return all(is_compiled(f) for f in (self.begin, self.revise, self.update))

    def fresh_state(self, lanes: int = 1) -> NDArray[np.float64]:
        """State for `lanes` independent streams: float64[lanes, k + scratch + work]."""
        # NaN, so that a rule that reads its work columns before writing them cannot go unnoticed.
        row = np.concatenate([self.initial, np.zeros(self.scratch), np.full(self.work, np.nan)])
        return np.tile(row, (lanes, 1))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a controller is built for: facts of the trace (or live drafter) and of the hardware.

    Attributes:
        block_len: tokens one drafter pass yields.
        max_draft_len: longest draft the trace holds.
        latency: latency model, for cost-aware controllers.
        arm_draft_s: seconds per draft token of each arm, in the order of the trace; empty when there are no arms.
        draft_len: tokens every arm drafts; 0 when there are no arms.
        tree: the draft is a best-first tree: a length is a number of nodes, of the best paths first; `block_len` and
            `max_draft_len` are nodes of the whole tree, which one pass of `latency` drafts.
    """

    block_len: int
    max_draft_len: int
    latency: LatencyModel
    arm_draft_s: tuple[float, ...] = ()
    draft_len: int = 0
    tree: bool = False

    @property
    def block_pass_s(self) -> float:
        """Expected seconds of the passes that draft a block of `block_len` tokens: one, but for denoising drafters."""
        return float(self.latency.draft_pass_s) * passes_per_block(self.latency.provenance)

    @property
    def kind(self) -> str:
        """What a controller chooses here: an "arm", a "length", or of a "tree" the number of nodes."""
        return "arm" if self.arm_draft_s else "tree" if self.tree else "length"


@dataclass(frozen=True, kw_only=True)
class Param:
    """One parameter on the command line.

    Attributes:
        kind: int, float, bool or str.
        default: value; None means `from_setting` gives it, or that it must be given when that is None too.
        low, high: inclusive bounds; `open_low` excludes the lower one.
        choices: allowed values of a str.
        from_setting: default taken from the trace.
        doc: one line for the documentation.
    """

    kind: type
    default: Any = None
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    choices: tuple[str, ...] = ()
    from_setting: Callable[[Setting], Any] | None = None
    doc: str = ""

    def allowed(self) -> str:
        """The allowed values in words."""
        if self.kind is bool:
            return "0 or 1"
        if self.kind is str:
            return " or ".join(self.choices)
        word = "an integer" if self.kind is int else "a finite number"
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f"{word} in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}]"
        return word + (f" {'>' if self.open_low else '>='} {self.low:g}" if math.isfinite(self.low) else "")

    def parse(self, where: str, raw: Any) -> Any:
        """Value of the parameter from command-line text or a Python value.

        Raises:
            ConfigError: not of the kind, not finite, or out of range.
        """
        refusal = ConfigError(f"{where}={raw}: allowed is {self.allowed()}")
        if self.kind is str:
            if raw not in self.choices:
                raise refusal
            return raw
        try:
            value = _BOOLS[str(raw).lower()] if self.kind is bool else self.kind(_plain(raw))
        except (KeyError, ValueError, TypeError, OverflowError):
            raise refusal from None
        if self.kind is int and isinstance(raw, float) and raw != value:
            raise refusal
        too_low = value <= self.low if self.open_low else value < self.low
        if not math.isfinite(value) or too_low or value > self.high:
            raise refusal
        return value


def _plain(raw: Any) -> Any:
    """The same; ValueError for text that only Python reads as a number: digits of other scripts, "_" between digits."""
    if isinstance(raw, str) and not (raw.isascii() and "_" not in raw):
        raise ValueError(raw)
    return raw


_BOOLS = {"0": False, "1": True, "false": False, "true": True}
LENGTH_HIGH = MAX_DRAFT_LEN


def length_param(default: int | None = None, *, low: int = 0, doc: str = "") -> Param:
    """A draft length in tokens."""
    return Param(kind=int, default=default, low=low, high=LENGTH_HIGH, doc=doc)


def max_param(written: int = LENGTH_HIGH) -> Param:
    """The largest length a controller may choose: the written default, but no more than the trace holds."""
    bound = "" if written == LENGTH_HIGH else f", at most {written}"
    return Param(
        kind=int,
        low=0,
        high=LENGTH_HIGH,
        from_setting=lambda s: min(written, s.max_draft_len),
        doc=f"largest draft length; default the trace's max_draft_len{bound}",
    )


@dataclass(frozen=True, kw_only=True)
class ControllerSpec:
    """A registry entry: the command-line name, its parameters, and how to build the controller.

    Attributes:
        name: command-line name.
        params: parameter name to `Param`.
        build: (resolved parameters, setting) -> Controller.
        doc: one line: what it decides and the source of the rule.
        kinds: what it can choose, of "length", "arm" and "tree" (`Setting.kind`).
        per_request: whether its state is cleared at the start of each request, with default parameters.
        check: called with the parameters that were given, parsed, to refuse combinations.
    """

    name: str
    params: Mapping[str, Param]
    build: Callable[[dict[str, Any], Setting], Controller]
    doc: str
    kinds: tuple[str, ...] = ("length",)
    per_request: bool = True
    check: Callable[[dict[str, Any]], None] | None = None

    def resolve(self, given: Mapping[str, Any], setting: Setting) -> Controller:
        """Validate parameters, fill in defaults and build.

        Raises:
            ConfigError: unknown, missing or out-of-range parameter; the message lists what is allowed.
        """
        for key in given:
            if key not in self.params:
                known = ", ".join(self.params) or "none"
                raise ConfigError(
                    f"controller {self.name!r} has no parameter {key!r}{suggest(key, self.params)}; it takes: {known}"
                )
        if setting.kind not in self.kinds:
            chosen = "an arm" if self.kinds[0] == "arm" else "a length"
            raise ConfigError(f"controller {self.name!r} chooses {chosen}, but this is {_OTHER_KIND[setting.kind]}")
        values: dict[str, Any] = {}
        for key, param in self.params.items():
            if key in given:
                values[key] = param.parse(f"controller {self.name!r}: {key}", given[key])
            elif param.default is not None:
                values[key] = param.default
            elif param.from_setting is not None:
                values[key] = param.from_setting(setting)
            else:
                raise ConfigError(
                    f"controller {self.name!r} needs {key}: write {self.name}:{key}=VALUE, VALUE {param.allowed()}"
                )
        if self.check is not None:
            self.check({key: values[key] for key in given})
        return self.build(values, setting)


_OTHER_KIND = {
    "arm": "an arm trace, whose draft length is fixed",
    "length": "a trace without arms",
    "tree": "a tree, of which a number of nodes is verified; docs/controllers.md says which controllers read trees, "
    "and --chain replays the main chain alone",
}


def suggest(word: str, known: Mapping[str, Any]) -> str:
    """A did-you-mean clause for an unknown word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
