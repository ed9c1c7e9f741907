"""`caddtree`: the worked example of design/controllers.md, 16.5, and optimality where the source promises it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.controllers import Setting, build
from specsim.controllers.caddtree import stopping_size
from specsim.latency import LatencyModel
from specsim.latency.forms import Table
from specsim.online import OnlineController
from specsim.tree import best_first

SLOTS = np.log([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.7, 0.2, 0.1]])


def decided(q: np.ndarray, model: LatencyModel, *, block_len: int, max_draft_len: int, ctx: int = 0) -> tuple[int, int]:
    """(tokens drafted, tokens submitted) of one round in a live loop that has len(q) tokens to offer."""
    setting = Setting(block_len=block_len, max_draft_len=max_draft_len, latency=model)
    online = OnlineController(build("caddtree", setting), compiled=False)
    online.start_request(0)
    _, want = online.begin(0, ctx)
    drafted = submit = 0
    while want > drafted and drafted < len(q):
        drafted = min(-(-want // block_len) * block_len, len(q))
        submit, want = online.revise(q[:drafted], drafted < len(q))
    return drafted, submit


@pytest.mark.parametrize(
    ("c_s", "nodes", "theta"),
    [
        (0.9, 6, [0.090909, 0.134454, 0.148438, 0.160584, 0.167123, 0.170968, 0.171829]),
        (3.0, 1, [0.090909, 0.114286]),
    ],
)
def test_worked_example(c_s: float, nodes: int, theta: list[float]) -> None:
    """C_D = 1 and C_V(n) = 10 + c n: verify(s) = 10 - c + c s."""
    model = LatencyModel.affine(c_s=c_s, b_s=10 - c_s, draft_pass_s=1.0)
    tree = best_first(SLOTS, 6)  # the example's tree is full with 6 nodes; with more, the seventh would not pay either
    assert decided(tree.q, model, block_len=20, max_draft_len=20) == (6, nodes)
    gains = 1 + np.append(0, np.cumsum(np.exp(tree.logw)))
    speeds = [gains[n] / (1 + float(model.verify_s(n + 1))) for n in range(nodes + 1)]
    np.testing.assert_allclose(speeds, theta, atol=5e-7)


@st.composite
def convex_models(draw: st.DrawFn) -> LatencyModel:
    """A table whose steps never shrink, and draft costs."""
    steps = np.cumsum(draw(st.lists(st.floats(0, 0.2), min_size=20, max_size=20)))
    times = 1.0 + np.append(0, np.cumsum(steps))
    return LatencyModel(
        verify=Table(s=tuple(range(1, 22)), times_s=tuple(times.tolist())),
        draft_pass_s=draw(st.floats(0, 2)),
        draft_token_s=draw(st.floats(0, 0.1)),
        overhead_s=draw(st.floats(0, 0.5)),
        ctx_s=draw(st.sampled_from([0.0, 0.01])),
    )


CONFIDENCES = st.lists(st.floats(0, 1), min_size=1, max_size=20).map(np.array)


@given(q=CONFIDENCES, model=convex_models(), block_len=st.integers(1, 20))
def test_first_node_that_does_not_pay_is_the_end_of_the_best_size(
    q: np.ndarray, model: LatencyModel, block_len: int
) -> None:
    """Costs convex, path probabilities descending: no size of what was drafted has more expected tokens per second."""
    drafted, submit = decided(q, model, block_len=block_len, max_draft_len=20, ctx=7)
    draft_s = float(model.draft_s(-(-drafted // block_len), drafted)) + model.overhead_s
    gains = 1 + np.append(0, np.cumsum(np.cumprod(q[:drafted])))
    speeds = gains / (draft_s + model.verify_s(np.arange(1, drafted + 2), 7))
    assert speeds[submit] >= speeds.max() * (1 - 1e-12)
    assert submit == drafted == len(q) or drafted - submit <= block_len  # what was not wanted was not asked for


@given(q=CONFIDENCES, model=convex_models(), cut=st.integers(1, 20))
def test_going_on_after_a_pass_is_starting_anew(q: np.ndarray, model: LatencyModel, cut: int) -> None:
    """A draft judged in two parts ends where it ends when judged at once with the whole draft time."""
    setting = Setting(block_len=1, max_draft_len=20, latency=model)
    params = build("caddtree", setting).params
    cost, cut = float(model.draft_s(len(q), len(q))), min(cut, len(q))
    whole = stopping_size.py_func(params, q, 0, len(q), 0.0, 1.0, cost)
    first = stopping_size.py_func(params, q, 0, cut, 0.0, 1.0, float(model.draft_s(cut, cut)))
    if first[0] == cut:
        assert stopping_size.py_func(params, q, cut, len(q), *first[1:], cost) == pytest.approx(whole)


def test_a_tree_that_does_not_pay_is_not_verified() -> None:
    model = LatencyModel.affine(c_s=5.0, b_s=1.0, draft_pass_s=1.0)
    assert decided(np.array([0.2, 0.1]), model, block_len=4, max_draft_len=4) == (2, 0)
