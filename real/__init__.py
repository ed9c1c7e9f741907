"""Real decoding: the simulator's controllers on real models (torch, transformers), and traces and latencies for replay.

`real.generate` and `real.Speculative` are loaded when they are first used; `import real` itself loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from real.generation import Speculative, generate

__all__ = ["Speculative", "generate"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        import real.generation

        return getattr(real.generation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
