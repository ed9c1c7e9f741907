"""What cosSim's construction and the controller take of a decode of 512 tokens: `pytest -m bench FILE -s` prints it."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.data import choose, encode, load_prompts  # noqa: E402
from real.interleave import Comparison  # noqa: E402
from real.loop import Settings  # noqa: E402
from real.models import LAB, LAB_SKIP, SMOLLM2  # noqa: E402
from real.results import results_of, sums_of  # noqa: E402
from real.session import ANY_LATENCY, open_session  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - one_thread is a fixture

TARGETS = {
    "smollm2": (SMOLLM2, "humaneval"),
    "lab": (LAB, "lab"),
    "lab-skip": (LAB_SKIP, "lab"),
}
TOKENS, BOUND, CONTROLLER = 512, 0.01, "sp2ec"

pytestmark = [
    pytest.mark.bench,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*generation_config.*:UserWarning"),
]


@pytest.mark.parametrize(("options", "bound"), [("zero=0", BOUND), ("warmup=tokens,probe=1", None)])
@pytest.mark.parametrize("name", [pytest.param("smollm2", marks=pytest.mark.models), "lab", "lab-skip"])
def test_construction_and_controller_take_little_of_512_tokens(
    monkeypatch: pytest.MonkeyPatch, name: str, options: str, bound: float | None
) -> None:
    """CPU time, since the machine may be busy. As published it is only shown.

    The lab targets' windows hold fewer tokens. All of the construction is in the first rounds, so its share of 512 is
    taken as that of fewer, times how many there were of 512.
    """
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    target, dataset = TARGETS[name]
    session = open_session(target, f"self:build=cossim,stop=0.7,{options}", device="cpu")
    (controller,) = session.controllers([CONTROLLER], ANY_LATENCY)
    # Without end-of-text tokens, so that it goes on.
    comparison = Comparison(session, [(CONTROLLER, controller)], Settings(max_new_tokens=TOKENS))
    (prompt,) = choose(load_prompts(dataset), 1, 0)
    ids = encode(session.loaded.tokenizer, prompt)
    comparison.warm_up(ids)
    request = comparison.run(0, prompt.id, ids)
    (result,) = results_of(sums_of(request, [CONTROLLER]), [CONTROLLER])
    build_share = result.build_share * result.tokens / TOKENS
    print(
        f"\n{name}, {options}: {result.tokens} tokens, {result.rounds} rounds of "
        f"{1e3 * result.decode_s / result.rounds:.1f} ms, {request.runs[0].decoded.built.arms} arms; construction "
        f"{result.build_share:.2%} of it, {build_share:.2%} of {TOKENS} tokens; controller "
        f"{result.controller_share:.2%}"
    )
    assert bound is None or build_share < bound
    assert result.controller_share <= 0.01
