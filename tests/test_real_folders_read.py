"""Folders that real.run, real.validate and real.paper wrote themselves, as `analysis.runs` reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from analysis.compare import sides_of  # noqa: E402
from analysis.live import ASSISTED, PLAIN, REAL_SCHEMA, SEED  # noqa: E402
from analysis.perrequest import OUTPUTS, per_request  # noqa: E402
from analysis.rounds import scan  # noqa: E402
from analysis.runs import VALIDATION_SCHEMA, Run, read_runs  # noqa: E402
from real import evaluation, folder, interleave, reference  # noqa: E402
from real.compare import measured  # noqa: E402
from real.folder import RunFolder, read_run  # noqa: E402
from specsim.metrics import bootstrap_ratios  # noqa: E402
from tests import real_validate  # noqa: E402
from tests.real_runs import CONTROLLERS, THIRD_PARTY_WARNINGS, make_place, run  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]


def only(path: Path) -> Run:
    (found,) = read_runs([path]).runs
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    place = make_place(tmp_path_factory.mktemp("place"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        assert run("test", "--config", str(place)) == 0
    return place.parent / "out"


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished validation."""
    tiny = tmp_path_factory.mktemp("tiny")
    save_tiny(tiny / "model", seed=3, spread=0.08)
    lines = [json.dumps({"prompt": text}) for text in real_validate.TEXTS]
    (tiny / "p.jsonl").write_text("\n".join(lines))
    assert real_validate.run(tiny, tiny / "out") == 0
    return tiny / "out"


def test_names_are_those_of_real() -> None:
    assert (REAL_SCHEMA, OUTPUTS) == (folder.SCHEMA, folder.OUTPUTS)
    assert VALIDATION_SCHEMA == evaluation.SCHEMA
    assert (PLAIN, ASSISTED) == (interleave.PLAIN, reference.ASSISTED)


def test_a_run(ran: Path) -> None:
    found, about = only(ran), json.loads((ran / "run.json").read_text())
    assert (found.kind, found.notes, found.dataset) == ("real", (), about["config"]["dataset"])
    assert found.latency is not None
    assert [method.controller for method in found.methods] == CONTROLLERS
    expected = measured(list(RunFolder(ran, read_run(ran)["config"], reopen=True).load()), CONTROLLERS, seed=SEED)
    for method, row, seen in zip(found.methods, about["results"], expected, strict=True):
        assert (method.tokens, method.time_s, method.speedup) == (row["tokens"], row["decode_s"], row["speedup"])
        assert method.ci95 == pytest.approx(seen.ci95, rel=1e-9)


def test_a_validation(validated: Path) -> None:
    found, document = only(validated), json.loads((validated / "results.json").read_text())
    assert (found.kind, found.notes, found.temperature) == ("validation", (), 0.0)
    assert found.trace == validated / "trace.parquet"
    assert found.rounds is not None
    sides = per_request(scan(found.rounds), found.run_ids)
    for method, row in zip(found.methods, document["results"], strict=True):
        assert method.ci95 == tuple(row["measured"]["ci95"])
        assert method.predicted == row["predicted"]
        mine, plain = sides[method.controller], sides[PLAIN]
        # The interval that the validation computed from the rounds it had in memory.
        interval = bootstrap_ratios(mine.plain_seconds(plain), [mine.time_s], SEED)[0]
        assert interval == pytest.approx(row["measured"]["ci95"], rel=1e-9)
    kept = [json.loads(file.read_text()) for file in sorted((validated / "requests").iterdir())]
    for method in found.methods:
        rounds = [
            row
            for request in kept
            for one in request["runs"]
            if one["controller"] == method.controller and not one["warmup"]
            for row in one["rounds"]["submitted_len"]
        ]
        assert method.submitted_len == pytest.approx(np.mean(rounds))


def test_an_interrupted_run(ran: Path, tmp_path: Path) -> None:
    about = json.loads((ran / "run.json").read_text())
    kept = {key: value for key, value in about.items() if key in ("schema", "config", "provenance")}
    (tmp_path / "run.json").write_text(json.dumps(kept))
    (tmp_path / "requests").mkdir()
    found = only(tmp_path)
    assert found.methods == ()
    assert "0 of 5 prompts are kept" in found.notes[0]


def test_seconds_of_a_request_are_those_of_the_outputs(ran: Path) -> None:
    sides = sides_of(only(ran))
    lines = [json.loads(line) for line in (ran / "outputs.jsonl").read_text().splitlines()]
    for name, side in sides.items():
        expected = [line["decode_s"] for line in lines if line["controller"] == name]
        assert side.requests.time_s.tolist() == pytest.approx(expected, rel=1e-9)
