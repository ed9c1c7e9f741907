"""How each preset is made: which public table, which two commands, what the sum holds.

Owns the recipes and `build`. The tables are not part of the project; they are looked for in a data folder with one
subfolder per source (`vidur/`, `llmservingsim/`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.latency.model import LatencyModel
from specsim.latency.presets import PRESETS_SCHEMA

MAX_S = 64
_VIDUR = "Vidur (github.com/microsoft/vidur), MIT"
_SUMS = "embedding, 32 x (norms, QKV/output/MLP projections, rotary, activation, residual adds)"
_NEVER = "attention over the context, sampling, launch gaps, host time, and all drafting (0 until you set it)"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One preset: source tables, converter arguments and what is written into its provenance.

    Args:
        converter: `vidur` or `llmservingsim`.
        files: paths below the data folder.
        like: model that the matrix products are scaled to, for derived presets.
        scaling_rel_err: for derived presets, mean relative error of the scaled times against a measured table.
        device, target, dtype, source, license: provenance.
        includes, excludes: what the times hold and what they lack.
        notes: everything else a user must know.
    """

    converter: str
    files: tuple[str, ...]
    device: str
    target: str
    source: str
    license: str
    includes: str
    excludes: str
    notes: str
    dtype: str = "float16"
    like: str | None = None
    scaling_rel_err: float | None = None

    def metadata(self) -> dict[str, Any]:
        """Provenance keys that do not come from the fit."""
        names = ("device", "target", "dtype", "source", "license", "includes", "excludes", "notes")
        derived = {"derived": self.like is not None, "scaling_rel_err": self.scaling_rel_err}
        return {name: getattr(self, name) for name in names} | derived

    def commands(self, name: str, data: str = "../shared/data") -> tuple[str, str]:
        """The two shell commands that make this preset's figures, from the repository root."""
        files = " ".join(f"{data}/{file}" for file in self.files)
        like = f" --like {self.like}" if self.like else ""
        points = f"python -m specsim.latency points {self.converter} {files} --layers 32{like} --out {name}.csv"
        return points, f"python -m specsim.latency fit {name}.csv --max-s {MAX_S} --out {name}.json"


RECIPES: dict[str, Recipe] = {
    "a100-llama-2-7b": Recipe(
        converter="vidur",
        files=("vidur/a100-llama-2-7b-mlp.csv",),
        device="NVIDIA A100",
        target="Llama-2-7B",
        source=f"{_VIDUR}, data/profiling/compute/a100/meta-llama/Llama-2-7b-hf/mlp.csv @bee57daf, 1 GPU",
        license="MIT",
        includes=_SUMS,
        excludes=f"final norm and lm_head (about 2 % of the weights), {_NEVER}",
        notes=(
            "Measured. Times have a resolution of 1 us per operator. The residual add is counted twice (one timed). "
            "Fitted from the operator medians at the 11 lengths up to 64, copied by hand from that file."
        ),
    ),
    "a100-llama-2-7b-derived": Recipe(
        converter="vidur",
        files=("vidur/a100-phi-2-mlp.csv",),
        like="llama-2-7b",
        scaling_rel_err=0.10,
        device="NVIDIA A100",
        target="Llama-2-7B",
        source=f"{_VIDUR}, data/profiling/compute/a100/microsoft/phi-2/mlp.csv, 1 GPU",
        license="MIT",
        includes=_SUMS,
        excludes=f"final norm and lm_head (about 2 % of the weights), {_NEVER}",
        notes=(
            "Derived, not measured: phi-2 (2.7B) was measured; its four matrix products, 13 to 52 MB of weights, were "
            "scaled to Llama-2-7B's 34 to 180 MB as fixed + bytes / bandwidth at each s. Against the measured table of "
            "preset a100-llama-2-7b the scaled times are 2 to 15 % too long (mean 10 %) at the 11 lengths up to 64, "
            "and the slope is twice as steep. Prefer a100-llama-2-7b."
        ),
    ),
    "a100-phi-2": Recipe(
        converter="vidur",
        files=("vidur/a100-phi-2-mlp.csv",),
        device="NVIDIA A100",
        target="phi-2 (2.7B)",
        source=f"{_VIDUR}, data/profiling/compute/a100/microsoft/phi-2/mlp.csv, 1 GPU",
        license="MIT",
        includes=_SUMS,
        excludes=f"final norm and lm_head (about 5 % of the weights), {_NEVER}",
        notes="Measured. Times have a resolution of 1 us per operator. The residual add was timed whole.",
    ),
    "h100-llama-2-7b": Recipe(
        converter="vidur",
        files=("vidur/h100-llama-2-7b-mlp.csv",),
        device="NVIDIA H100",
        target="Llama-2-7B",
        source=f"{_VIDUR}, data/profiling/compute/h100/meta-llama/Llama-2-7b-hf/mlp.csv, 1 GPU",
        license="MIT",
        includes=_SUMS,
        excludes=f"final norm and lm_head (about 2 % of the weights), {_NEVER}",
        notes="Measured. Times have a resolution of 1 us per operator. The residual add is counted twice (one timed).",
    ),
    "rtx4090-llama-3.1-8b": Recipe(
        converter="llmservingsim",
        files=("llmservingsim/dense.csv", "llmservingsim/per_sequence.csv"),
        device="NVIDIA GeForce RTX 4090",
        target="Llama-3.1-8B",
        dtype="bfloat16",
        source="LLMServingSim (github.com/casys-kaist/LLMServingSim), MIT, RTX4090/meta-llama/Llama-3.1-8B/bf16",
        license="MIT",
        includes=f"{_SUMS}, final norm, lm_head for all s positions",
        excludes=_NEVER,
        notes="Measured on one decoder layer (vLLM 0.19.0, eager, 3 iterations), multiplied by 32.",
    ),
}


def build(name: str, data: Path) -> LatencyModel:
    """The preset that the two commands of `name` give now; the measured points are left out of its provenance.

    Raises:
        ConfigError: a table is missing or unusable.
    """
    from specsim.latency.fit import fit_latency  # these two load scipy
    from specsim.latency.points import llmservingsim_points, vidur_points

    recipe = RECIPES[name]
    paths = [data / file for file in recipe.files]
    if recipe.converter == "vidur":
        measurements = vidur_points(paths[0], layers=32, like=recipe.like)
    else:
        measurements = llmservingsim_points(paths, layers=32)
    metadata = recipe.metadata() | {"commands": list(recipe.commands(name))}
    model = fit_latency(measurements, max_s=MAX_S, provenance=metadata).model
    del model.provenance["points"]
    return model


def to_json(models: Mapping[str, LatencyModel]) -> str:
    """Text of `presets.json`."""
    presets = {name: model.to_dict() for name, model in models.items()}
    return json.dumps({"schema": PRESETS_SCHEMA, "presets": presets}, indent=1, allow_nan=False) + "\n"
