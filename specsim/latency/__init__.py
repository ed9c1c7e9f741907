"""Latency models: what drafting, verification and overhead cost on one machine (docs/latency.md).

`load_latency("preset:NAME")` or `load_latency("file.json")` gives a `LatencyModel`; `python -m specsim.latency fit`
makes one from measurements. Importing this package loads neither scipy nor click.
"""

from specsim.latency.forms import Affine, Hinge, Step, Table, VerifyForm
from specsim.latency.model import SCHEMA, LatencyModel, load_latency, save_latency

__all__ = [
    "SCHEMA",
    "Affine",
    "Hinge",
    "LatencyModel",
    "Step",
    "Table",
    "VerifyForm",
    "load_latency",
    "save_latency",
]
