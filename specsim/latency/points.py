"""Public per-layer timing tables turned into measurements of whole forward passes.

Owns what is summed: docs/latency.md ("Presets") says the same in words. Two sources: Vidur's `mlp.csv` (milliseconds
per operator) and LLMServingSim's `dense.csv` and `per_sequence.csv` (microseconds per operator). Neither sum holds
attention over the context, sampling, kernel launch gaps or host time. Knows nothing about fitting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specsim.errors import ConfigError
from specsim.latency.forms import FloatArray
from specsim.latency.measurements import Measurements, point_fault, read_number, read_rows

BYTES_PER_WEIGHT = 2  # both sources are 16-bit


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes that decide the weight bytes of one decoder layer."""

    n_embd: int
    n_inner: int
    n_head: int
    n_kv_head: int
    gated: bool

    def matmul_bytes(self, workers: int = 1) -> dict[str, float]:
        """Bytes of weights that each matrix product of a layer reads on one of `workers` tensor-parallel devices."""
        head = self.n_embd // self.n_head
        weights = {
            "attn_pre_proj": self.n_embd * (self.n_head + 2 * self.n_kv_head) * head,
            "attn_post_proj": self.n_embd * self.n_head * head,
            "mlp_up_proj": self.n_embd * self.n_inner * (2 if self.gated else 1),
            "mlp_down_proj": self.n_embd * self.n_inner,
        }
        return {name: BYTES_PER_WEIGHT * count / workers for name, count in weights.items()}


# Models that a measured table can be scaled to; sizes from the models' published configurations.
SHAPES = {
    "llama-2-7b": Shape(n_embd=4096, n_inner=11008, n_head=32, n_kv_head=32, gated=True),
    "llama-3.1-8b": Shape(n_embd=4096, n_inner=14336, n_head=32, n_kv_head=8, gated=True),
}
_MATMULS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
_SIZES = ("n_embd", "n_expanded_embd", "n_head", "n_kv_head", "num_tokens", "num_tensor_parallel_workers")


def vidur_points(path: str | Path, *, layers: int, workers: int = 1, like: str | None = None) -> Measurements:
    """Forward passes from a Vidur `mlp.csv`: embedding + `layers` * (norms, projections, rotary, MLP, residual adds).

    Medians of each operator are summed. The residual add is counted twice where the table has a
    `post_attention_layernorm` (Vidur times only the second of two equal adds), else once. The final norm and the
    output head (lm_head) are not in the table.

    Args:
        path: the table.
        layers: decoder layers of the model.
        workers: keep the rows with this tensor-parallel size.
        like: name in SHAPES: the four matrix products are scaled to that model. At each length the measured times
            are fitted as fixed + bytes / bandwidth (both >= 0) and read off at the other model's bytes; the two norms
            count as two of the measured norm, the other operators stay as measured.

    Raises:
        ConfigError: not such a table, no row with `workers`, or an unknown `like`.
    """
    if like is not None and like not in SHAPES:
        raise ConfigError(f"--like is {like!r}; allowed: {', '.join(SHAPES)}. Leave it out to keep the measured model.")
    header, rows = read_rows(path)
    once, per_layer = _vidur_operators(path, header)
    s: list[float] = []
    time_s: list[float] = []
    for row, line, cells in rows:
        sizes = {
            name: read_number(path, row, line, name, cells[name], allowed="a whole number >= 1", above=1, whole=True)
            for name in _SIZES
        }
        if sizes["num_tensor_parallel_workers"] != workers:
            continue
        time_ms = {
            name: read_number(path, row, line, column, cells[column], allowed="milliseconds > 0", above=0)
            for name in (once, *per_layer)
            for column in (f"time_stats.{name}.median",)
        }
        if like is not None:
            gated = cells.get("use_gated_mlp", "").strip().lower() == "true"
            time_ms = _scaled(time_ms, _shape(sizes, gated).matmul_bytes(workers), SHAPES[like].matmul_bytes(workers))
        s.append(sizes["num_tokens"])
        time_s.append(1e-3 * (time_ms[once] + layers * _layer_ms(time_ms, like)))
    if not s:
        raise point_fault(
            path,
            f"no row has {workers}",
            allowed="a tensor-parallel size that was measured",
            advice="Choose another --workers.",
            column="num_tensor_parallel_workers",
        )
    return Measurements(s=np.array(s), time_s=np.array(time_s), where=str(path))


def _vidur_operators(path: str | Path, header: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    per_layer = ["input_layernorm", *_MATMULS, "attn_rope", "mlp_act", "add"]
    if "time_stats.post_attention_layernorm.median" in header:
        per_layer.append("post_attention_layernorm")
    for column in (*(f"time_stats.{name}.median" for name in ("emb", *per_layer)), *_SIZES):
        _require(path, header, column, "a Vidur mlp.csv")
    return "emb", tuple(per_layer)


def _require(path: str | Path, header: Sequence[str], column: str, kind: str) -> None:
    if column not in header:
        advice = f"Give {kind} as it is published."
        raise point_fault(path, "is missing", allowed=f"the columns of {kind}", advice=advice, column=column)


def _shape(sizes: dict[str, float], gated: bool) -> Shape:
    return Shape(
        n_embd=int(sizes["n_embd"]),
        n_inner=int(sizes["n_expanded_embd"]),
        n_head=int(sizes["n_head"]),
        n_kv_head=int(sizes["n_kv_head"]),
        gated=gated,
    )


def _scaled(time_ms: dict[str, float], measured: dict[str, float], wanted: dict[str, float]) -> dict[str, float]:
    from scipy.optimize import nnls  # only this path needs scipy

    gigabytes = np.array([measured[name] for name in _MATMULS]) * 1e-9
    observed_ms = np.array([time_ms[name] for name in _MATMULS])
    (fixed_ms, ms_per_gb), _ = nnls(np.column_stack([np.ones_like(gigabytes), gigabytes]), observed_ms)
    return time_ms | {name: float(fixed_ms + ms_per_gb * wanted[name] * 1e-9) for name in _MATMULS}


def _layer_ms(time_ms: dict[str, float], like: str | None) -> float:
    layer_ms = sum(value for name, value in time_ms.items() if name != "emb")
    if "post_attention_layernorm" in time_ms:
        return layer_ms + time_ms["add"]
    return layer_ms + (time_ms["input_layernorm"] if like is not None else 0.0)


def llmservingsim_points(paths: Sequence[str | Path], *, layers: int) -> Measurements:
    """Forward passes from LLMServingSim tables: embedding + `layers` decoder layers + final norm + output head.

    Each decoder layer has two `layernorm`. The output head (`lm_head`) comes from `per_sequence.csv` at sequences = s,
    because verification needs the logits of every position; lengths that it lacks are left out. Without that file the
    head is not included. The sampler is not included.

    Args:
        paths: `dense.csv`, and `per_sequence.csv` if there is one, in any order.
        layers: decoder layers of the model.

    Raises:
        ConfigError: not such tables, or no length in both.
    """
    dense: dict[str, dict[int, float]] = {}
    head: dict[str, dict[int, float]] = {}
    for path in paths:
        header, _ = read_rows(path)
        if "sequences" in header:
            head = _by_layer(path, "sequences", ("lm_head",))
        else:
            dense = _by_layer(path, "tokens", (*_DENSE_ONCE, *_DENSE_LAYER))
    if not dense:
        raise ConfigError(f"{', '.join(map(str, paths))}: no dense.csv among them; allowed: one. Add it.")
    lengths = sorted(set.intersection(*(set(column) for column in (*dense.values(), *head.values()))))
    if not lengths:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no length has every operator; allowed: common lengths. Check the files."
        )
    time_us = np.zeros(len(lengths))
    for name, count in (_DENSE_ONCE | {key: layers * count for key, count in _DENSE_LAYER.items()}).items():
        time_us += count * _column(dense[name], lengths)
    if head:
        time_us += _column(head["lm_head"], lengths)
    where = ", ".join(map(str, paths))
    return Measurements(s=np.array(lengths, dtype=np.float64), time_s=time_us * 1e-6, where=where)


# operator -> how often it runs in a forward pass, respectively in a decoder layer
_DENSE_ONCE = {"embedding": 1, "final_layernorm": 1}
_DENSE_LAYER = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}


def _by_layer(path: str | Path, length_column: str, needed: Sequence[str]) -> dict[str, dict[int, float]]:
    """Microseconds by operator and length; medians of repeated rows. Only the `needed` operators."""
    header, rows = read_rows(path)
    kind = f"an LLMServingSim table by {length_column}"
    for column in ("layer", length_column, "time_us"):
        _require(path, header, column, kind)
    found: dict[str, dict[int, list[float]]] = {name: defaultdict(list) for name in needed}
    for row, line, cells in rows:
        name = cells["layer"].strip()
        if name not in found:
            continue
        length = read_number(
            path, row, line, length_column, cells[length_column], allowed="a whole number >= 1", above=1, whole=True
        )
        time_us = read_number(path, row, line, "time_us", cells["time_us"], allowed="microseconds > 0", above=0)
        found[name][int(length)].append(time_us)
    for name, times in found.items():
        if not times:
            raise point_fault(
                path, f"has no {name!r}", allowed=kind, advice="Give the file as it is published.", column="layer"
            )
    return {
        name: {length: float(np.median(values)) for length, values in times.items()} for name, times in found.items()
    }


def _column(times: dict[int, float], lengths: Sequence[int]) -> FloatArray:
    return np.array([times[length] for length in lengths])


def to_csv(measurements: Measurements) -> str:
    """POINTS.csv text: header `s,time_s`, one row per measurement in ascending s."""
    order = np.argsort(measurements.s, kind="stable")
    rows = (f"{int(measurements.s[index])},{float(measurements.time_s[index])!r}" for index in order)
    return "\n".join(["s,time_s", *rows]) + "\n"
