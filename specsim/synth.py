"""Synthetic traces whose acceptance probabilities are known.

    python -m specsim.synth KIND OUT.parquet [options]

KIND says how the true acceptance probability p of draft token i (from 0) in the row at `pos` comes about:

    iid            p = alpha
    geometric      p = alpha * decay^i
    two-regime     output positions are easy or hard, a Markov chain; p = alpha or alpha_hard of position pos + i
    beta           one p per row, Beta distributed
    markov         logit p follows a stationary AR(1) process over output positions; the token uses position pos + i
    miscalibrated  geometric, with q = logit-distorted p: a shift, a drift over draft positions and noise together

Every kind decays with depth when `decay` < 1, and every kind can be distorted (`--distort`).

With `--top-k K` the trace is of kind `tree`, its other columns unchanged: the drafter's distribution at a position
whose most probable token has probability p is geometric, p (1 - p)^r at rank r, and the target's own token is drawn
from it, so that a path is the target's with exactly the product of its probabilities. `topk_q` lists the first K ranks
after the same distortion of p, `target_rank` is the rank drawn.

Columns: `accept_prob` is p; `q` is p after the distortion (calibrated: q = p); `accept_len` counts the leading
successes of independent draws, one per token, from p, so rows are consistent with `accept_prob` but not with each
other (no staircase). `p` (the target's probability of the token), `entropy`, all times and, without `--prompt-len`,
`ctx_len` are null: a synthetic trace has no target model, no vocabulary and no prompt.
Metadata: coverage every-position, temperature 1.0
(because `accept_prob` is a probability), exact false, the settings under the key `synth`.

Every number is a pure function of (seed, request, pos, i): files are identical byte by byte, whatever the chunking.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, expit, logit, ndtri

from specsim import __version__
from specsim.chunk import TraceChunk, concat_chunks, leading_true, offsets_of
from specsim.errors import ConfigError
from specsim.rng import uniform_array
from specsim.schema import MAX_DRAFT_LEN, ROW_GROUP_ROWS, TraceMeta

KINDS: Final = ("iid", "geometric", "two-regime", "beta", "markov", "miscalibrated")
DISTORTIONS: Final[Mapping[str, tuple[float, float, float]]] = {
    "calibrated": (0.0, 0.0, 0.0),
    "over": (1.0, 0.0, 0.0),
    "under": (-1.0, 0.0, 0.0),
    "noisy": (0.0, 0.0, 1.0),
    "drift": (0.0, 0.25, 0.0),
    "mixed": (0.5, 0.15, 0.7),
}
"""Name -> (shift, drift per draft position, standard deviation of the noise), all in logits."""

# Streams of the generator; 0 is left to replays, so that no replay seed can repeat the draws of a trace.
_ACCEPT, _NOISE, _LATENT, _ROW = 101, 102, 103, 104
# Draft tokens held at once, so that long drafts make smaller chunks.
_CHUNK_TOKENS = 1 << 20
_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SynthSpec:
    """Settings of a synthetic trace; checked on construction.

    Args:
        kind: one of `KINDS`.
        requests, positions: number of requests and of output tokens in each.
        max_draft_len: longest draft; a row at pos holds min(max_draft_len, positions - pos - 1) tokens.
        block_len: tokens per drafter pass, metadata only.
        prompt_len: when given, `ctx_len` = prompt_len + pos is recorded (a latency model with ctx_s needs it).
        seed: whole number >= 0.
        top_k: above 0, a tree trace that lists so many tokens per draft position.
        alpha: acceptance probability at depth 0 (easy positions in two-regime, mean in beta, centre in markov).
        decay: factor on p per draft position, in (0, 1].
        alpha_hard, stay_easy, stay_hard: two-regime: p at hard positions, probabilities of staying in a regime.
        concentration: beta: sum of the two parameters of the distribution.
        persistence, spread: markov: correlation of neighbouring positions, standard deviation in logits.
        distort: one of `DISTORTIONS`; None is `mixed` for kind miscalibrated and `calibrated` otherwise.
        q_shift, q_drift, q_noise: replace the entries of the distortion, in logits.

    Raises:
        ConfigError: a value outside its range.
    """

    kind: str
    requests: int = 16
    positions: int = 256
    max_draft_len: int = 16
    block_len: int = 1
    prompt_len: int | None = None
    seed: int = 0
    top_k: int = 0
    alpha: float = 0.8
    decay: float | None = None
    alpha_hard: float = 0.3
    stay_easy: float = 0.95
    stay_hard: float = 0.9
    concentration: float = 4.0
    persistence: float = 0.9
    spread: float = 1.0
    distort: str | None = None
    q_shift: float | None = None
    q_drift: float | None = None
    q_noise: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"synth: kind is {self.kind!r}; allowed: {', '.join(KINDS)}")
        if self.distort is not None and self.distort not in DISTORTIONS:
            raise ConfigError(f"synth: distort is {self.distort!r}; allowed: {', '.join(DISTORTIONS)}")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise ConfigError(f"synth: {name} is {value}; allowed: {low:g} to {high:g}")
        for name in ("concentration", "decay"):
            if getattr(self, name) == 0:
                raise ConfigError(f"synth: {name} is 0; allowed: above 0")
        if self.kind in ("beta", "markov") and not 0 < self.alpha < 1:
            raise ConfigError(f"synth: alpha is {self.alpha}; allowed for kind {self.kind}: strictly between 0 and 1")

    @property
    def depth_decay(self) -> float:
        """`decay`, by default 0.95 for the kinds that are about decay and 1 for the others."""
        if self.decay is not None:
            return self.decay
        return 0.95 if self.kind in ("geometric", "miscalibrated") else 1.0

    @property
    def distortion(self) -> tuple[float, float, float]:
        """(shift, drift, noise) of q against p, in logits."""
        default = "mixed" if self.kind == "miscalibrated" else "calibrated"
        shift, drift, noise = DISTORTIONS[self.distort or default]
        given = (self.q_shift, self.q_drift, self.q_noise)
        merged = [d if g is None else g for d, g in zip((shift, drift, noise), given, strict=True)]
        return merged[0], merged[1], merged[2]


_INT32_MAX = 2**31 - 1
_RANGES: Final = (
    ("requests", 1, _INT32_MAX),
    ("max_draft_len", 0, MAX_DRAFT_LEN),
    ("block_len", 1, MAX_DRAFT_LEN),
    ("prompt_len", 0, 2**30),
    ("positions", 1, 2**30),
    ("seed", 0, 2**63 - 1),
    ("top_k", 0, 2**15 - 1),
    ("alpha", 0, 1),
    ("decay", 0, 1),
    ("alpha_hard", 0, 1),
    ("stay_easy", 0, 1),
    ("stay_hard", 0, 1),
    ("concentration", 0, 1e6),
    ("persistence", 0, 1),
    ("spread", 0, 100),
    ("q_shift", -100, 100),
    ("q_drift", -100, 100),
    ("q_noise", 0, 100),
)


def synthesize(kind: str, *, latency: Mapping[str, Any] | None = None, **settings: Any) -> tuple[TraceMeta, TraceChunk]:
    """A synthetic trace in memory.

    Args:
        kind: one of `KINDS`.
        latency: latency model to embed, as its JSON object.
        settings: other fields of `SynthSpec`.

    Raises:
        ConfigError: a setting outside its range.
    """
    spec = SynthSpec(kind=kind, **settings)
    return synth_meta(spec, latency), concat_chunks(list(synth_chunks(spec)))


def synth_meta(spec: SynthSpec, latency: Mapping[str, Any] | None = None) -> TraceMeta:
    """Metadata of a synthetic trace; it holds no time of day, so that equal settings give equal files."""
    settings = asdict(spec)
    if not spec.top_k:
        del settings["top_k"]
    return TraceMeta(
        kind="tree" if spec.top_k else "length",
        coverage="every-position",
        target="synthetic",
        drafter=f"synthetic-{spec.kind}",
        block_len=spec.block_len,
        max_draft_len=spec.max_draft_len,
        temperature=1.0,
        prefix_closed=True,
        exact=False,
        mismatches=None,
        dataset=f"synthetic-{spec.kind}",
        requests=spec.requests,
        seed=spec.seed,
        software={"specsim": __version__},
        latency=latency,
        extra={"synth": settings},
    )


def synth_chunks(spec: SynthSpec) -> Iterator[TraceChunk]:
    """The rows of a synthetic trace, about 64k rows or a million draft tokens at a time.

    A request longer than that is cut between chunks, except in the kinds whose positions depend on each other: there
    the hidden state of one whole request (8 bytes per position) is held.
    """
    rows = max(1, min(ROW_GROUP_ROWS, _CHUNK_TOKENS // max(1, spec.max_draft_len * max(1, spec.top_k))))
    per_chunk = max(1, rows // spec.positions)
    for first in range(0, spec.requests, per_chunk):
        ids = np.arange(first, min(first + per_chunk, spec.requests))
        levels = _position_levels(spec, ids)
        for start in range(0, spec.positions, rows):
            stop = min(start + rows, spec.positions)
            yield _rows(spec, ids, np.arange(start, stop), levels)


def _rows(spec: SynthSpec, ids: NDArray[np.int64], positions: NDArray[np.int64], levels: _Floats | None) -> TraceChunk:
    request = np.repeat(ids, len(positions))
    pos = np.tile(positions, len(ids))
    lengths = np.minimum(spec.max_draft_len, spec.positions - pos - 1)
    offsets = offsets_of(lengths)
    row = np.repeat(np.arange(len(request)), lengths)
    depth = np.arange(int(offsets[-1])) - offsets[row]
    base = _token_levels(spec, request, pos, row, depth, levels, int(ids[0]))
    true = (base * spec.depth_decay**depth).astype(np.float32)
    # Compared as stored, so that a probability that float32 rounds to 1 is a certain acceptance.
    draws = uniform_array(spec.seed, request[row], pos[row], depth, stream=_ACCEPT)
    accepted = draws < true
    q = _distorted(spec, true, request[row], pos[row], depth)
    return TraceChunk(
        request=request.astype(np.int32),
        pos=pos.astype(np.int32),
        ctx_len=None if spec.prompt_len is None else (pos + spec.prompt_len).astype(np.int32),
        offsets=offsets,
        accept_len=leading_true(accepted, offsets).astype(np.int16),
        q=q,
        accept_prob=true,
        **(_tree_columns(spec.top_k, q, true, draws) if spec.top_k else {}),
        first_row=int(ids[0]) * spec.positions + int(positions[0]),
    )


def _tree_columns(
    top_k: int, q: NDArray[np.float32], true: NDArray[np.float32], draws: _Floats
) -> dict[str, NDArray[Any]]:
    """Lists of the geometric distributions of q, and the rank that the draw picks from that of p (rank 0 below p)."""
    ranks = np.arange(top_k)
    lists = q.astype(np.float64)[:, None] * (1.0 - q.astype(np.float64)[:, None]) ** ranks
    with np.errstate(divide="ignore", invalid="ignore"):
        rank = np.floor(np.log1p(-draws) / np.log1p(-true.astype(np.float64)))
    rank = np.where(draws < true, 0, np.where(true > 0, np.maximum(rank, 1), top_k))
    return {
        "topk_offsets": np.arange(len(q) + 1, dtype=np.int64) * top_k,
        "topk_q": lists.astype(np.float32).ravel(),
        "target_rank": np.where(rank < top_k, rank, -1).astype(np.int16),
    }


def _position_levels(spec: SynthSpec, ids: NDArray[np.int64]) -> _Floats | None:
    """p at depth 0 of every output position, float64[requests of the chunk, positions]; None where rows set it."""
    if spec.kind == "two-regime":
        u = uniform_array(spec.seed, ids[:, None], np.arange(spec.positions)[None, :], 0, stream=_LATENT)
        return np.where(_easy(spec, u), spec.alpha, spec.alpha_hard)
    if spec.kind == "markov":
        u = uniform_array(spec.seed, ids[:, None], np.arange(spec.positions)[None, :], 0, stream=_LATENT)
        level = _normal(u)
        innovation = math.sqrt(1 - spec.persistence**2)  # keeps the variance at 1
        for t in range(1, spec.positions):
            level[:, t] = spec.persistence * level[:, t - 1] + innovation * level[:, t]
        return expit(logit(spec.alpha) + spec.spread * level)
    return None


def _easy(spec: SynthSpec, u: _Floats) -> NDArray[np.bool_]:
    """The Markov chain of easy positions, started in its stationary distribution."""
    leave_easy, leave_hard = 1 - spec.stay_easy, 1 - spec.stay_hard
    leaving = leave_easy + leave_hard
    share = leave_hard / leaving if leaving > 0 else 0.5
    easy = np.empty(u.shape, dtype=np.bool_)
    easy[:, 0] = u[:, 0] < share
    for t in range(1, u.shape[1]):
        easy[:, t] = u[:, t] < np.where(easy[:, t - 1], spec.stay_easy, leave_hard)
    return easy


def _token_levels(
    spec: SynthSpec,
    request: NDArray[np.int64],
    pos: NDArray[np.int64],
    row: NDArray[np.int64],
    depth: NDArray[np.int64],
    levels: _Floats | None,
    first_request: int,
) -> _Floats:
    if levels is not None:
        return levels[request[row] - first_request, pos[row] + depth]
    if spec.kind == "beta":
        a = spec.alpha * spec.concentration
        u = uniform_array(spec.seed, request, pos, 0, stream=_ROW)
        return betaincinv(a, spec.concentration - a, u)[row]
    return np.full(len(row), spec.alpha)


def _normal(u: _Floats) -> _Floats:
    return ndtri(u + 2.0**-54)  # half a step up: u = 0 would be minus infinity


def _distorted(
    spec: SynthSpec, true: NDArray[np.float32], request: NDArray[Any], pos: NDArray[Any], depth: NDArray[np.int64]
) -> NDArray[np.float32]:
    shift, drift, noise = spec.distortion
    if shift == drift == noise == 0:
        return true.copy()
    # Clipped, because at 0 and 1 no finite distortion could be seen.
    logits = logit(np.clip(true.astype(np.float64), 1e-6, 1 - 1e-6)) + shift + drift * depth
    if noise:
        logits += noise * _normal(uniform_array(spec.seed, request, pos, depth, stream=_NOISE))
    return expit(logits).astype(np.float32)


if __name__ == "__main__":
    # The command lives in its own module, so that a library user of `synthesize` needs neither click nor rich.
    from specsim.errors import run_cli
    from specsim.synth_cli import main

    run_cli(main, prog_name="python -m specsim.synth")
