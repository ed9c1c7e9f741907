"""Golden logs: what every registered controller does in its first 200 rounds on one fixed world per kind of trace.

Conformance compares three ways of running a controller with each other and would pass a rule that changed in all three;
these files would not. The world is built from the counter-based generator (`specsim.rng`) and plain arithmetic, so that
it depends on no library's random stream. `python -m tests.golden --update` writes the files anew, and only those that
changed; look at the difference before committing it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from specsim.chunk import TraceChunk, leading_true, offsets_of
from specsim.controllers import REGISTRY
from specsim.engine import controllers_for, replay
from specsim.latency import LatencyModel
from specsim.rng import uniform_array
from specsim.schema import TraceMeta
from tests.worlds import SPELLINGS, World, kinds_of

FOLDER = Path(__file__).resolve().parent
ROUNDS = 200
COLUMNS = ("submitted_len", "drafted_len", "accepted_len", "arm")
SEED = 20_261_130
REQUESTS, POSITIONS = 12, 180
# All costs are multiples of powers of two, so that sums are exact and ties do not hang on rounding.
LATENCY = LatencyModel.affine(
    c_s=1 / 32, b_s=1.0, ctx_s=1 / 4096, draft_pass_s=1 / 16, draft_token_s=1 / 128, overhead_s=1 / 64
)


def cases() -> list[tuple[str, str, str]]:
    """(name, kind, spelling) of every golden log: the first spelling of each controller on each kind it serves."""
    return [
        (name, kind, SPELLINGS[name][0])
        for name in REGISTRY
        if name in SPELLINGS
        for kind in kinds_of(SPELLINGS[name][0])
    ]


def path_of(name: str, kind: str) -> Path:
    return FOLDER / f"{name}.{kind}.json"


def grid(values: np.ndarray) -> np.ndarray:
    """Down to multiples of 1/256."""
    return np.floor(values * 256) / 256


def _places() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    request = np.repeat(np.arange(REQUESTS), POSITIONS)
    pos = np.tile(np.arange(POSITIONS), REQUESTS)
    return request, pos, (request + pos // 12) % 3  # the stretch of text: easy, medium, hard


def length_world(max_draft_len: int = 24) -> World:
    """Stretches of 12 positions with high, middling and low confidences, rows cut at random and at the end."""
    request, pos, stretch = _places()
    m = np.minimum(POSITIONS - 1 - pos, max_draft_len)
    short = uniform_array(SEED, request, pos, 0, stream=10)
    m = np.where(short < 0.1, np.floor(short * 10 * (m + 1)).astype(np.int64), m)
    offsets = offsets_of(m)
    row = np.repeat(np.arange(len(m)), m)
    place = np.arange(len(row)) - offsets[row]
    u, v = (uniform_array(SEED, request[row], pos[row], place, stream=s) for s in (11, 12))
    level = np.array([1.0, 0.9375, 0.625])[stretch[row]]
    q = grid(level * (1 - u * u / 4))
    accept_prob = grid(q * (1 - place / 128))
    # Three denoising passes per row, each with the confidences of the positions it fills.
    filled = np.stack([m // 3, 2 * m // 3, m], axis=1)[m > 0]
    meta = TraceMeta(max_draft_len=max_draft_len, block_len=3, temperature=1.0)
    chunk = TraceChunk(
        request=request.astype(np.int32),
        pos=pos.astype(np.int32),
        offsets=offsets,
        accept_len=leading_true(v < accept_prob, offsets).astype(np.int16),
        ctx_len=(pos + 64).astype(np.int32),
        q=q.astype(np.float32),
        accept_prob=accept_prob.astype(np.float32),
        pass_offsets=offsets_of(np.where(m > 0, 3, 0)),
        pass_count=np.diff(filled, prepend=0).astype(np.int16).ravel(),
        pass_filled=filled.astype(np.int16).ravel(),
        conf_offsets=offsets,
        pass_conf=q.astype(np.float32),
    )
    return World(meta=meta, chunk=chunk, latency=LATENCY)


def arm_world(arms: int = 4, draft_len: int = 6) -> World:
    """Four arms whose larger budgets help in hard stretches only; draft times measured in most rows."""
    request, pos, stretch = _places()
    chance = np.array([[0.9, 0.875, 0.8125, 0.75], [0.625, 0.75, 0.78125, 0.75], [0.25, 0.5, 0.625, 0.75]])[stretch]
    r, p = request[:, None, None], pos[:, None, None]
    cell = np.arange(arms)[:, None] * draft_len + np.arange(draft_len)
    passed = uniform_array(SEED, r, p, cell[None], stream=13) < chance[:, :, None]
    accept = np.cumprod(passed, axis=2).sum(axis=2).astype(np.int16)
    stated = np.array([1, 2, 3, 5]) / 32
    measured = (
        stated
        * draft_len
        * (1 + grid(uniform_array(SEED, request[:, None], pos[:, None], np.arange(arms), stream=14)) / 4)
    )
    measured[uniform_array(SEED, request, pos, 0, stream=15) < 0.2] = np.nan
    meta = TraceMeta(
        kind="arm",
        max_draft_len=draft_len,
        draft_len=draft_len,
        arms=tuple({"name": f"arm-{k}", "budget": k + 1, "draft_s": float(s)} for k, s in enumerate(stated)),
    )
    chunk = TraceChunk(
        request=request.astype(np.int32),
        pos=pos.astype(np.int32),
        offsets=np.arange(len(pos) + 1, dtype=np.int64) * draft_len,
        accept_len=accept.max(axis=1),
        ctx_len=(pos + 64).astype(np.int32),
        arm_accept_len=accept,
        arm_draft_s=measured.astype(np.float32),
    )
    return World(meta=meta, chunk=chunk, latency=LATENCY)


def tree_world(max_draft_len: int = 8, top_k: int = 4) -> World:
    """The same stretches with four tokens listed per position, each half as probable as the one before it or less."""
    world = length_world(max_draft_len)
    chunk = world.chunk
    row = np.repeat(np.arange(chunk.rows), chunk.lengths)
    place = np.arange(len(row)) - chunk.offsets[row]
    request, pos = chunk.request[row], chunk.pos[row]
    lists = [grid(chunk.q * 0.75)]
    for rank in range(1, top_k):
        u = uniform_array(SEED, request, pos, place * top_k + rank, stream=16)
        lists.append(grid(np.minimum(lists[-1] / 2, (1 - sum(lists)) * (0.5 + u / 4))))
    v = uniform_array(SEED, request, pos, place, stream=17)
    rank = np.sum([v >= total for total in np.cumsum(lists, axis=0)], axis=0)
    meta = replace(world.meta, kind="tree", block_len=max_draft_len, max_nodes=48)
    tree = {
        "topk_offsets": np.arange(len(row) + 1, dtype=np.int64) * top_k,
        "topk_q": np.stack(lists, axis=1).astype(np.float32).ravel(),
        "target_rank": np.where(rank < top_k, rank, -1).astype(np.int16),
    }
    chunk = chunk.keep({"ctx_len", "q", "accept_prob"})
    return World(meta=meta, chunk=replace(chunk, **tree), latency=LATENCY)


WORLDS = {"length": length_world, "arm": arm_world, "tree": tree_world}


def golden_log(kind: str, spelling: str) -> dict[str, Any]:
    """The document of one golden file."""
    world = WORLDS[kind]()
    controllers, chunk = controllers_for(world.meta, world.latency, [spelling]), world.chunk
    if kind == "length" and controllers[0].plan is None:
        # Rows without their passes are priced by whole blocks, as these logs were written.
        chunk = chunk.keep({"ctx_len", "q", "accept_prob"})
    log = replay(world.meta, [chunk], world.latency, controllers, seed=SEED, keep_rounds=True).rounds[0]
    return {"spelling": spelling, "kind": kind} | {name: log[name][:ROUNDS].tolist() for name in COLUMNS}


def text_of(document: dict[str, Any]) -> str:
    """One line per key."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
