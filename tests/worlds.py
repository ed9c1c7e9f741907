"""Random replay problems from one seed: a trace, a latency model, and every registered controller's spellings."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from specsim.chunk import TraceChunk, offsets_of
from specsim.controllers import REGISTRY
from specsim.latency import LatencyModel
from specsim.schema import TraceMeta

# Every registered controller must appear here with at least one spelling; test_conformance checks it.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "plain": ("plain",),
    "static": ("static:length=0", "static:length=3", "static:length=40"),
    "g4": ("g4", "g4:start=3,up=3,down=2,min=2,max=7", "g4:start=0,min=0,max=0"),
    "hf-heuristic": ("hf-heuristic", "hf-heuristic:start=2,max=5"),
    "threshold": ("threshold", "threshold:tau=0.8,max=3", "threshold:tau=0"),
    "failfast": ("failfast:chunk=3", "failfast:chunk=4,tau=0.7,max=6", "failfast"),
    "failfast-repo": (
        "failfast-repo",
        "failfast-repo:chunk=3,tau=0.2,max=8",
        "failfast-repo:chunk=4,tau=0,max=0",
        "failfast-repo:chunk=1,tau=0.4,max=20",
    ),
    "specdecpp": ("specdecpp", "specdecpp:h=0.6,min=0,max=9", "specdecpp:h=0.1,min=5,max=3"),
    "libraspec": (
        "libraspec",
        "libraspec:alpha=2.2,block=4",
        "libraspec:alpha=3.7,block=1,max=7",
        "libraspec:block=3,fixpoint=1",
        "libraspec:block=4,shrink_at_cap=1",
        "libraspec:block=2,charge_draft=1",
        "libraspec:alpha=2.5,block=2,fixpoint=1,shrink_at_cap=1,charge_draft=1",
        "libraspec:max=0",
    ),
    "goodput": ("goodput", "goodput:max=4"),
    "greedy-oracle": ("greedy-oracle",),
    "oracle": ("oracle",),
    "corrected": ("corrected", "corrected:max=5"),
    "caddtree": ("caddtree", "caddtree:max=4", "caddtree:max=0"),
    "lambda": (
        "lambda",
        "lambda:calibrate=none,max=7",
        "lambda:calibrate=platt",
        "lambda:calibrate=isotonic,carry=0,prior=1,speed=4",
    ),
    "banditspec-ucb": ("banditspec-ucb",),
    "arm": ("arm:index=0",),
    "best-arm": ("best-arm",),
    "sp2ec-2d": ("sp2ec-2d", "sp2ec-2d:beta=1,reset=9"),
    "sp2ec": ("sp2ec", "sp2ec:beta=0.1,reset=7", "sp2ec:track=ewma,halflife=3", "sp2ec:reset=0"),
    "global-ucb": ("global-ucb", "global-ucb:reset=6"),
    "klucb-unimodal": ("klucb-unimodal", "klucb-unimodal:track=ewma,halflife=5"),
    "ucbspec": ("ucbspec", "ucbspec:variant=paper,delta=0.05,reset=8"),
    "exp3spec": ("exp3spec", "exp3spec:reset=5"),
    "ucb1": ("ucb1", "ucb1:scale=1"),
    "thompson": ("thompson",),
    "hedge": ("hedge",),
}


def kinds_of(spelling: str) -> tuple[str, ...]:
    """The kinds of trace a spelling serves: those of its controller, less trees for calibrations of single tokens."""
    kinds = REGISTRY[spelling.partition(":")[0]].kinds
    tokens_only = any(f"calibrate={name}" in spelling for name in ("platt", "isotonic", "beta"))
    return tuple(kind for kind in kinds if not (tokens_only and kind == "tree"))


SPELLED = [spelling for name in REGISTRY for spelling in SPELLINGS.get(name, ())]
ALL = [spelling for spelling in SPELLED if "length" in kinds_of(spelling)]  # those that choose lengths
EVERYWHERE = [(spelling, kind) for spelling in SPELLED for kind in kinds_of(spelling)]


@dataclass(frozen=True, kw_only=True)
class World:
    meta: TraceMeta
    chunk: TraceChunk
    latency: LatencyModel

    def __repr__(self) -> str:  # what hypothesis prints of a failing example
        c = self.chunk
        return (
            f"World({self.meta.coverage}, block {self.meta.block_len}, m {c.lengths}, a {c.accept_len}, {self.latency})"
        )


def make_latency(rng: np.random.Generator, *, ctx: bool, dyadic: bool = False) -> LatencyModel:
    """A random valid model of a random form; `dyadic` keeps every number a multiple of 2^-10 (sums are then exact)."""

    def amount(high: float) -> float:
        value = rng.random() * high * (rng.random() < 0.8)
        return float(np.round(value * 1024) / 1024) if dyadic else float(value)

    base = 1.0 + amount(4)
    form = rng.integers(4)
    if form == 0:
        verify = {"form": "affine", "c_s": amount(1), "b_s": base}
    elif form == 1:
        verify = {"form": "hinge", "c_s": amount(0.5), "b_s": base, "knee": 4, "c2_s": amount(1)}
    else:
        s = np.unique(np.append(rng.integers(1, 20, size=5), 1))
        times = (base + np.cumsum([amount(1) for _ in s])).tolist()
        verify = {"form": "step", "edges": s.tolist(), "times_s": times}
        if form == 3 and len(s) > 1:
            verify = {"form": "table", "s": s.tolist(), "times_s": times}
    if ctx:
        verify["ctx_s"] = amount(0.01)
    draft = {"pass_s": amount(1), "token_s": amount(0.2)}
    document = {"schema": "specsim.latency/1", "verify": verify, "draft": draft, "overhead_s": amount(0.3)}
    return LatencyModel.from_dict(document, where="world")


def make_world(
    seed: int,
    *,
    coverage: str | None = None,
    requests: int = 3,
    positions: int = 14,
    max_draft_len: int = 12,
    long_rows: bool = False,
    dyadic: bool = False,
) -> World:
    """A random trace with confidences, with short rows anywhere and, if `long_rows`, rows past the end of the text."""
    rng = np.random.default_rng(seed)
    coverage = coverage or str(rng.choice(["every-position", "every-round"]))
    counts = rng.integers(1, positions + 1, size=rng.integers(1, requests + 1))
    pos = np.concatenate(
        [np.arange(n) if coverage == "every-position" else np.cumsum(rng.integers(1, 4, n)) for n in counts]
    )
    left = np.concatenate([n - np.arange(n) - 1 for n in counts])
    limit = (
        np.full(len(pos), max_draft_len) if long_rows or coverage == "every-round" else np.minimum(left, max_draft_len)
    )
    m = np.where(rng.random(len(pos)) < 0.2, rng.integers(0, max_draft_len + 1, len(pos)), limit)
    m = np.minimum(m, limit)
    total = int(m.sum())
    # Confidences from a coarse dyadic grid make ties and exact thresholds common; half the worlds use it.
    q = rng.integers(0, 9, total) / 8 if rng.random() < 0.5 else rng.beta(4, 1, total)
    accept = (rng.random(total) < q).astype(np.float32) if rng.random() < 0.5 else rng.random(total).astype(np.float32)
    offsets = offsets_of(m)
    drawn = rng.random(total) < accept
    accept_len = [int(np.argmin(np.append(drawn[a:b], False))) for a, b in itertools.pairwise(offsets)]
    meta = TraceMeta(
        coverage=coverage, block_len=int(rng.choice([1, 1, 2, 3, 5])), max_draft_len=max_draft_len, temperature=1.0
    )
    chunk = TraceChunk(
        request=np.repeat(np.arange(len(counts)) * 2, counts).astype(np.int32),
        pos=pos.astype(np.int32),
        offsets=offsets,
        accept_len=np.array(accept_len, np.int16),
        ctx_len=(pos + 30).astype(np.int32),
        q=q.astype(np.float32),
        accept_prob=accept,
        **make_passes(np.random.default_rng((seed, 1)), m),
    )
    return World(meta=meta, chunk=chunk, latency=make_latency(rng, ctx=bool(rng.random() < 0.5), dyadic=dyadic))


def make_passes(rng: np.random.Generator, m: NDArray[np.int64]) -> dict[str, Any]:
    """Per-pass columns of rows of m tokens: one to six passes each (none where m is 0), the last of which fills all."""
    offsets = offsets_of(np.where(m > 0, rng.integers(1, 7, len(m)), 0))
    row = np.repeat(np.arange(len(m)), np.diff(offsets))
    share = rng.random(len(row))
    filled = (share[np.lexsort((share, row))] * (m[row] + 1)).astype(np.int16)
    filled[offsets[1:][m > 0] - 1] = m[m > 0]
    count = rng.integers(0, 6, len(row)).astype(np.int16)
    conf = rng.beta(8, 1, int(count.sum())).astype(np.float32)
    return {
        "pass_offsets": offsets,
        "pass_count": count,
        "pass_filled": filled,
        "conf_offsets": np.concatenate(([0], np.cumsum(count, dtype=np.int64)))[offsets],
        "pass_conf": conf,
    }


def make_arm_world(
    seed: int, *, coverage: str | None = None, requests: int = 3, positions: int = 24, arms: int | None = None
) -> World:
    """A random arm trace: K arms, some with ties, measured draft times in some rows."""
    rng = np.random.default_rng(seed)
    coverage = coverage or str(rng.choice(["every-position", "every-round"]))
    counts = rng.integers(1, positions + 1, size=rng.integers(1, requests + 1))
    pos = np.concatenate(
        [np.arange(n) if coverage == "every-position" else np.cumsum(rng.integers(1, 4, n)) for n in counts]
    )
    arms, draft_len = arms or int(rng.integers(1, 6)), int(rng.integers(1, 6))
    chance = rng.random(arms) * 0.9
    accept = np.minimum(rng.geometric(1 - chance, size=(len(pos), arms)) - 1, draft_len).astype(np.int16)
    draft_s = np.sort(rng.random(arms)).round(2)
    measured = None
    if rng.random() < 0.5:
        measured = (draft_s * draft_len + rng.random((len(pos), arms)) * 0.1).astype(np.float32)
        measured[rng.random(len(pos)) < 0.2] = np.nan
    meta = TraceMeta(
        kind="arm",
        coverage=coverage,
        max_draft_len=draft_len,
        draft_len=draft_len,
        arms=tuple({"name": f"arm-{k}", "budget": k + 1, "draft_s": float(s)} for k, s in enumerate(draft_s)),
    )
    chunk = TraceChunk(
        request=np.repeat(np.arange(len(counts)) * 2, counts).astype(np.int32),
        pos=pos.astype(np.int32),
        offsets=np.arange(len(pos) + 1, dtype=np.int64) * draft_len,
        accept_len=accept.max(axis=1),
        ctx_len=(pos + 30).astype(np.int32),
        arm_accept_len=accept,
        arm_draft_s=measured,
    )
    return World(meta=meta, chunk=chunk, latency=make_latency(rng, ctx=bool(rng.random() < 0.5)))


def make_tree_world(seed: int, *, max_nodes: int | None = None, width: int = 4, **kwargs: Any) -> World:
    """A random tree trace: lists of 0 to `width` tokens, with ties in half the worlds, and targets anywhere or nowhere.

    Other keyword arguments as for `make_world`, whose drafts are at most 5 positions deep here.
    """
    world = make_world(seed, **{"max_draft_len": 5, **kwargs})
    rng = np.random.default_rng((seed, 2))
    n = int(world.chunk.offsets[-1])
    tied = rng.random() < 0.5
    lists = (
        rng.integers(0, 5, (n, width)) / (16 if width <= 4 else 32)
        if tied
        else rng.dirichlet(np.full(width + 1, 0.5), n)[:, :width]
    )
    lists = -np.sort(-lists, axis=1)
    listed = np.where(rng.random(n) < 0.8, width, rng.integers(0, width + 1, n))
    kept = np.arange(width) < listed[:, None]
    rank = np.where(rng.random(n) < 0.5, 0, rng.integers(-1, width, n))
    meta = replace(world.meta, kind="tree", max_nodes=max_nodes or int(rng.integers(1, 40)))
    chunk = replace(
        world.chunk,
        topk_offsets=offsets_of(listed),
        topk_q=lists[kept].astype(np.float32),
        target_rank=np.minimum(rank, listed - 1).astype(np.int16),
        pass_offsets=None,
        pass_count=None,
        pass_filled=None,
        conf_offsets=None,
        pass_conf=None,
    )
    return replace(world, meta=meta, chunk=chunk)


MAKERS = {"length": make_world, "arm": make_arm_world, "tree": make_tree_world}


def worlds(*, kind: str = "length", **kwargs: object) -> st.SearchStrategy[World]:
    """Hypothesis strategy over the seeds of the maker of a kind; keyword arguments are passed on."""
    make = MAKERS[kind]
    return st.integers(0, 2**32).map(lambda seed: make(seed, **kwargs))  # pyright: ignore[reportArgumentType]
