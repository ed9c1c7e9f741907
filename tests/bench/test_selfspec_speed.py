"""What a self-speculating draft pass costs beside the layers it runs, against a plain pass in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.draws import KeyedDraws  # noqa: E402
from real.session import open_session  # noqa: E402

LAYERS, KEPT, CONTEXT, LENGTH, REPEATS = 16, 8, 200, 4, 60

pytestmark = pytest.mark.bench


class InLayers:
    """CPU seconds between entering and leaving decoder layers."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.spent, self._entered = 0.0, 0.0
        for layer in model.model.layers:
            layer.register_forward_pre_hook(self._enter)
            layer.register_forward_hook(self._leave)

    def _enter(self, *_: object) -> None:
        self._entered = time.process_time()

    def _leave(self, *_: object) -> None:
        self.spent += time.process_time() - self._entered


@torch.inference_mode()
def test_a_draft_pass_costs_its_layers_and_little_else() -> None:
    """Its own work is less than a tenth of a plain pass; CPU time, since the machine may be busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    session = open_session("lab", "self:skip=4-11", device="cpu")
    target, drafter, layers = session.target, session.drafter, InLayers(session.loaded.model)
    text = torch.arange(CONTEXT + 1) % 900 + 100
    target.start(text, 2 * CONTEXT, None, drafter.loan)
    drafter.start(text, 2 * CONTEXT, KeyedDraws(0, 0), ())

    def plain() -> None:
        target.score(text[-1:]).argmax().item()

    def draft() -> None:
        drafter.propose(LENGTH, 0).q.tolist()
        drafter.commit(text[-1:].tolist())

    def timed(call: Callable[[], None], passes: int) -> tuple[float, float]:
        target._cache.crop_to(CONTEXT)
        layers.spent, started = 0.0, time.process_time()
        call()
        whole = time.process_time() - started
        return whole / passes, (whole - layers.spent) / passes

    rows = [(*timed(plain, 1), *timed(draft, LENGTH)) for _ in range(REPEATS)]
    torch.set_num_threads(before)
    pass_s, around_s, draft_s, around_draft_s = (median(column) for column in zip(*rows, strict=True))
    print(
        f"plain pass {1e3 * pass_s:.2f} ms, {1e3 * around_s:.2f} of them outside the layers; draft pass "
        f"{1e3 * draft_s:.2f} ms, {1e3 * around_draft_s:.2f} outside; {KEPT}/{LAYERS} of a plain pass "
        f"{1e3 * pass_s * KEPT / LAYERS:.2f} ms"
    )
    assert around_draft_s - around_s < 0.1 * pass_s
    assert draft_s < (KEPT / LAYERS + 0.25) * pass_s
