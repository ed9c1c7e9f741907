"""Numbers of a validation: formulas by hand, and predictions where every round has a known price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.compare import (  # noqa: E402
    Measured,
    Row,
    in_sample_model,
    measured,
    verdict,
)
from real.data import encode, load_prompts  # noqa: E402
from real.foretold import foretell  # noqa: E402
from real.interleave import PLAIN, Comparison  # noqa: E402
from real.loop import Round, Settings  # noqa: E402
from real.record import proposer_of, record_request  # noqa: E402
from real.session import open_session  # noqa: E402
from specsim.trace import TraceMeta, write_trace  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402
from tests.real_validate import COSTS, MAX_DRAFT, TEXTS, decode_of, request_of  # noqa: E402


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder with a model that transformers loads, and prompts."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder / "model", seed=3, spread=0.08)
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return folder


def price(name: str, row: Round) -> None:
    """Gives a round exactly its price, before the controller is told."""
    row.draft_s = float(COSTS.draft_s(row.draft_passes if row.drafted_len else 0, row.drafted_len))
    row.verify_s = float(COSTS.verify_s(row.submitted_len + 1, row.ctx_len))
    row.round_s = row.draft_s + row.verify_s + (0.0 if name == PLAIN else COSTS.overhead_s)


@pytest.fixture(scope="module", params=["layer-skip:skip=1", "prompt-lookup"])
def world(request, tiny, tmp_path_factory):
    """(session, controllers by spelling, requests of a run at known prices, trace of the same prompts)."""
    session = open_session(str(tiny / "model"), request.param, device="cpu", max_draft_len=MAX_DRAFT)
    spellings = [PLAIN, "static:length=1", "static:length=4", "g4", "threshold", "libraspec", "lambda"]
    controllers = session.controllers(spellings, COSTS)
    comparison = Comparison(
        session, list(zip(spellings, controllers, strict=True)), Settings(max_new_tokens=24, seed=7)
    )
    prompts = [encode(session.loaded.tokenizer, prompt) for prompt in load_prompts(str(tiny / "p.jsonl"))]
    requests = [comparison.run(number, str(number), prompt, price) for number, prompt in enumerate(prompts)]
    rows = [
        record_request(
            session.loaded.model,
            proposer_of(session.drafter),
            prompt,
            max_new_tokens=24,
            max_draft_len=MAX_DRAFT,
            stop_ids=(),
        )
        for prompt in prompts
    ]
    from real.recordings import to_chunks

    trace = tmp_path_factory.mktemp("world") / "trace.parquet"
    meta = TraceMeta(block_len=session.drafter.block_len, max_draft_len=MAX_DRAFT, exact=True)
    write_trace(trace, meta, to_chunks(rows))
    return session, dict(zip(spellings, controllers, strict=True)), requests, trace


def test_the_prediction_is_exact_where_costs_are(world):
    # Recorder, replay, loop and formulas agree: no error is left when every round costs what the model says.
    _, controllers, requests, trace = world
    seen = measured(requests, list(controllers), seed=7)
    ahead = foretell(trace, COSTS, list(controllers.values()), seed=7)
    for name, was, now in zip(controllers, seen, ahead, strict=True):
        assert now.speedup == pytest.approx(was.speedup, rel=1e-9), name
        assert (now.tokens, now.rounds) == (was.tokens, was.rounds), name
    assert len({round(was.speedup, 3) for was in seen}) > 4


def test_costs_fitted_to_the_run_are_those_it_had(world):
    session, controllers, requests, trace = world
    model = in_sample_model(requests, block_len=session.drafter.block_len)
    assert model is not None
    for s in (1, 2, 5):
        assert float(model.verify_s(s, 20)) == pytest.approx(float(COSTS.verify_s(s, 20)), rel=0.02)
    assert model.draft_pass_s == pytest.approx(COSTS.draft_pass_s)
    seen = measured(requests, list(controllers), seed=7)
    own = foretell(trace, model, list(controllers.values()), seed=7)
    assert max(abs(now.speedup / was.speedup - 1) for was, now in zip(seen, own, strict=True)) < 0.07
    assert in_sample_model([request_of(0, plain=decode_of(2, 1.0, 1.0))], block_len=1) is None


def row_of(name: str, speedup: float, now: float, *, half: float = 0.0, own: float | None = None) -> Row:
    seen = Measured(
        tokens=10,
        rounds=5,
        tau=2.0,
        decode_s=1.0,
        speedup=speedup,
        mean_of_ratios=speedup,
        ci95=(speedup * (1 - half), speedup * (1 + half)),
    )
    return Row(controller=name, measured=seen, predicted=now, predicted_sd=0.0, in_sample=own, shadow=None)


def test_the_verdict_by_hand():
    plain = row_of(PLAIN, 1.0, 9.0)
    rows = [plain, row_of("a", 1.0, 1.04), row_of("b", 2.0, 1.8, own=1.9), row_of("c", 1.0, 1.2, half=0.02)]
    judged = verdict(rows)
    assert judged is not None
    assert judged.median_error == pytest.approx(0.1)
    assert judged.bound == 0.05
    assert not judged.holds
    assert judged.in_sample_error == pytest.approx(0.05)
    wide = verdict([plain, row_of("a", 1.0, 1.1, half=0.11), row_of("b", 1.0, 0.9, half=0.13)])
    assert wide is not None
    assert (wide.bound, wide.holds, wide.in_sample_error) == (pytest.approx(0.12), True, None)
    assert verdict([plain]) is None
