"""What every builder's construction takes of one prompt on `lab-skip`: `pytest -m bench FILE -s` prints it."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real.loop  # noqa: E402
from real.data import choose, encode, load_prompts  # noqa: E402
from real.drafters import spent, subblock_times  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.models import LAB_SKIP  # noqa: E402
from real.session import ANY_LATENCY, open_session  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - one_thread is a fixture

TOKENS = 96
BUILDS = (
    "cossim,arms=8",
    "swift,arms=8",
    "swift,arms=8,every=4",
    "swift,arms=1",
    "knapspec,arms=8,fraction=0.6",
    "knapspec,arms=8,fraction=0.6,warmup=rounds",
    "clasp,arms=4",
)

pytestmark = [
    pytest.mark.bench,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*generation_config.*:UserWarning"),
]


@pytest.mark.parametrize("build", BUILDS)
def test_what_construction_takes_of_a_prompt(monkeypatch: pytest.MonkeyPatch, build: str) -> None:
    """CPU time, since the machine may be busy; of the second decode, as the first pays for what is made once."""
    for place in (time, real.loop, spent, subblock_times):
        monkeypatch.setattr(place, "perf_counter", time.process_time)
    session = open_session(LAB_SKIP, f"self:build={build},length=4", device="cpu")
    (controller,) = session.controllers(["arm:index=0" if build == "swift,arms=1" else "sp2ec"], ANY_LATENCY)
    (prompt,) = choose(load_prompts("lab"), 1, 0)
    ids = encode(session.loaded.tokenizer, prompt)
    asked = Settings(max_new_tokens=TOKENS, stop_ids=session.loaded.stop_ids)
    for _ in range(2):
        found = decode(session.target, session.drafter, OnlineController(controller), ids, asked)
    built = found.built
    print(
        f"\n{build}: {found.prompt_len} + {len(found.output)} tokens, {len(found.rounds)} rounds; construction "
        f"{1e3 * found.build_s:.0f} ms ({1e3 * found.early_build_s:.0f} before the first round), "
        f"{found.build_s / found.decode_s:.1%} of the decode; {built.arms} arms, {built.trials} trials, "
        f"{built.preparatory} preparatory; timing {built.timing_s:.1f} s"
    )
    assert 0 < found.build_s < found.decode_s
    assert sum(row.build_s for row in found.rounds) + found.early_build_s == pytest.approx(found.build_s)
