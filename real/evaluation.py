"""What comes of a work: the document of a validation, from its run, its trace and its calibration.

Owns the order of the evaluation and its words for other outputs; formulas are `real.compare`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from real.arm_costs import live_view
from real.arm_shape import arms_of_run, shape_of, sums_of_trace
from real.compare import Row, counted, in_sample_model, measured, verdict
from real.folder import Request
from real.foretold import foretell
from real.interleave import PLAIN
from real.neartie import exact_twin, explain
from real.results import warmup_rounds
from real.shadow import shadow_run
from real.validation import Work
from specsim.controllers import Controller
from specsim.latency import LatencyModel
from specsim.trace import read_trace

SCHEMA = "specsim.validation/1"


def differences(work: Work, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Outputs that are not plain decoding's, each located and explained."""
    found: list[dict[str, Any]] = []
    exact = None
    for request in requests:
        plain = counted(request, PLAIN).decoded.output
        for spelling in work.spellings:
            output = counted(request, spelling).decoded.output
            if output == plain:
                continue
            model = work.session.loaded.model
            exact = exact if exact is not None else exact_twin(model)
            difference = explain(model, exact, work.encoded[request.number], plain, output)
            assert difference is not None
            found.append(
                {
                    "request": request.number,
                    "id": request.id,
                    "controller": spelling,
                    "place": difference.place,
                    "near_tie": difference.near_tie,
                    "text": str(difference),
                }
            )
    return found


def evaluate(
    work: Work,
    controllers: Sequence[Controller],
    requests: Sequence[Request],
    trace: Path | None,
    latency: LatencyModel,
) -> dict[str, Any]:
    """The document of results.json.

    Args:
        work: what ran.
        controllers, requests: of its run.
        trace: of the same prompts, recorded before; None: nothing is predicted.
        latency: calibrated before.
    """
    seed, block_len = work.settings.seed, work.session.drafter.block_len
    nothing: list[Any] = [None] * len(controllers)
    ahead = nothing if trace is None else foretell(trace, latency, controllers, seed=seed)
    drafter = work.session.drafter
    own_model = (
        None
        if trace is None
        else in_sample_model(requests, block_len=block_len, arms=drafter.arm_names, draft_len=drafter.arm_draft_len)
    )
    own = nothing if trace is None or own_model is None else foretell(trace, own_model, controllers, seed=seed)
    rows = []
    for spelling, controller, seen, now, after in zip(
        work.spellings, controllers, measured(requests, work.spellings, seed=seed), ahead, own, strict=True
    ):
        difference = shadow_run(
            controller, spelling, requests, block_len=block_len, max_draft_len=work.max_draft_len, seed=seed
        )
        rows.append(
            Row(
                controller=spelling,
                measured=seen,
                predicted=None if now is None else now.speedup,
                predicted_sd=None if now is None else now.sd,
                in_sample=None if after is None else after.speedup,
                shadow=None if difference is None else str(difference),
            )
        )
    judged = verdict(rows)
    return {
        "schema": SCHEMA,
        "config": work.folder.config,
        "results": [row.to_json() for row in rows],
        "verdict": None if judged is None else {**asdict(judged), "holds": judged.holds},
        # Sampled outputs differ by chance: their law is what is the target's.
        "differences": [] if work.settings.sample else differences(work, requests),
        "other_texts_in_trace": None if trace is None else _other_texts(trace, requests),
        "warmup_rounds": warmup_rounds(requests),
        "plain_pass": _plain_pass(requests, latency),
        "arms": _arms(work, requests, trace, latency),
    }


def _arms(work: Work, requests: Sequence[Request], trace: Path | None, latency: LatencyModel) -> dict[str, Any] | None:
    """Tokens and seconds of each arm, of a drafter of several known beforehand; by the trace, else by the run."""
    drafter = work.session.drafter
    if trace is None or len(drafter.arm_names) < 2:
        return arms_of_run(requests, drafter)
    _, chunk = live_view(*read_trace(trace), latency)
    return {"seconds_of": "draft", **shape_of(drafter.arm_names, sums_of_trace(chunk, drafter.arm_draft_len))}


def _other_texts(trace: Path, requests: Sequence[Request]) -> int:
    """Prompts whose recorded text is not the run's plain text (in float32 there should be none)."""
    table = pq.read_table(trace, columns=["request", "token"])
    number, token = table["request"].to_numpy(), table["token"].to_numpy()
    return sum(token[number == r.number].tolist() != counted(r, PLAIN).decoded.output for r in requests)


def _plain_pass(requests: Sequence[Request], latency: LatencyModel) -> dict[str, float]:
    """Seconds of plain decoding's pass, calibrated and in the run: how far the machine has drifted."""
    rounds = [row for request in requests for row in counted(request, PLAIN).decoded.rounds]
    context = float(np.median([row.ctx_len for row in rounds]))
    return {
        "calibrated_s": float(latency.verify_s(1, context)),
        "run_s": float(np.median([row.verify_s for row in rounds])),
    }
