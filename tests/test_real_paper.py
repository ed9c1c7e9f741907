"""Experiments end to end on a tiny model: cells that are kept and continued, and the files that come of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from analysis import claims
from analysis.results import read_results
from real.interleave import Comparison
from real.paper import __main__ as command
from real.paper import cells
from real.paper.reading import parse_config
from specsim.controllers import REGISTRY, Setting, build
from specsim.engine import replay
from specsim.errors import ConfigError, run_cli
from specsim.latency import LatencyModel, load_latency
from specsim.trace import open_trace, read_trace
from tests.conftest import ROOT
from tests.real_paper import COSTS, EXIT, LOOKUP, TEXTS, config, decisions, results, run, tiny_place


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_place(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    assert run(config(tiny), out) == 0
    return out


def test_every_method_has_a_row_with_a_prediction(finished: Path) -> None:
    document = results(finished)
    rows = document["rows"]
    found = {(row["temperature"], row["method"], row["label"], row["controller"]) for row in rows}
    for temperature in (0, 1):
        assert (temperature, "Exit", "static", "static:length=2") in found
        assert (temperature, "Lookup", "LibraSpec", "libraspec:block=2,max=3") in found
    assert len(rows) == len(found) == 2 * (4 + 3)
    assert all(row["predicted"] is not None and row["shadow"] is None for row in rows)
    assert document["prediction"]["predicted"] == len(rows)
    assert document["not_predicted"] == document["differences"] == []
    pairs = {(one["temperature"], one["method"], one["label"], one["against"]) for one in document["comparisons"]}
    assert pairs == {
        (temperature, *rivals)
        for temperature in (0, 1)
        for rivals in (
            ("Exit", "lambda", "LibraSpec"),
            ("Exit", "lambda", "static"),
            ("Exit", "LibraSpec", "static"),
            ("Lookup", "LibraSpec", "static"),
        )
    }
    assert pq.read_table(finished / "rows.parquet").num_rows == len(rows)
    text = (finished / "table1.md").read_text()
    assert "T = 1" in text
    assert "| Exit lambda |" in text
    assert f"{finished.name}: at most " in claims.table(read_results([finished]))


def test_greedy_rows_emit_plain_decodings_tokens_and_sampled_ones_their_own(finished: Path) -> None:
    tokens = {}
    for name, _, controller, output, _ in decisions(finished / "cells"):
        tokens.setdefault((name, controller), []).append(output)
    for (name, controller), outputs in tokens.items():
        if "-T0-" in name:
            assert outputs == tokens[name, "plain"], controller
    sampled = [outputs for (name, controller), outputs in tokens.items() if "-T1-" in name and controller == "plain"]
    greedy = [outputs for (name, controller), outputs in tokens.items() if "-T0-" in name and controller == "plain"]
    assert sampled[0] == sampled[1]
    assert sampled[0] != greedy[0]


def test_a_trace_of_sampled_text_says_so(finished: Path) -> None:
    for folder in sorted((finished / "cells").iterdir()):
        with open_trace(folder / "trace.parquet") as reader:
            meta = reader.meta
        assert meta.temperature == float("-T1-" in folder.name)
        assert meta.exact == (meta.temperature == 0)
        assert json.loads((folder / "calibration.json").read_text())["provenance"]["sample"] == (meta.temperature == 1)
        assert json.loads((folder / "results.json").read_text())["other_texts_in_trace"] == 0


def test_a_finished_experiment_is_summed_up_again_without_a_model(
    tiny: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = results(finished)
    monkeypatch.setattr(cells, "load_target", lambda *_, **__: pytest.fail("loaded a model"))
    assert run(config(tiny), finished) == 0
    assert results(finished)["rows"] == before["rows"]


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Prompts decoded, by drafter, as they come."""
    done: list[str] = []
    original = Comparison.run

    def counting(self: Comparison, number: int, *rest: Any, **options: Any) -> Any:
        done.append(f"{self.session.drafter.name} {number}")
        return original(self, number, *rest, **options)

    monkeypatch.setattr(Comparison, "run", counting)
    return done


def test_an_interrupted_experiment_continues(
    tiny: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decodes: list[str]
) -> None:
    out, counting = tmp_path / "run", Comparison.run

    def interrupted(self: Comparison, *rest: Any, **options: Any) -> Any:
        if len(decodes) == 8:
            raise KeyboardInterrupt
        return counting(self, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Comparison, "run", interrupted)
        assert run(config(tiny), out) == 130
    assert len(decodes) == 8
    assert not (out / "results.json").exists()
    assert run(config(tiny), out) == 0
    assert len(decodes) == 2 * 2 * 3
    assert decisions(out / "cells") == decisions(finished / "cells")
    # Methods take turns: no drafter is more than one prompt ahead.
    names = [name.rpartition(" ")[0] for name in decodes[:6]]
    assert all(abs(2 * names[:end].count(names[0]) - end) <= 2 for end in range(1, 7))


def test_another_method_leaves_finished_cells_alone(
    tiny: Path, tmp_path: Path, decodes: list[str], finished: Path
) -> None:
    more = {**LOOKUP, "name": "Longer", "drafter": "prompt-lookup:ngram=1"}
    pairs = [{"target": str(tiny / "model"), "methods": [EXIT, LOOKUP, more]}]
    shared = f"--cells={finished / 'cells'}"
    assert run(config(tiny, pairs=pairs, temperatures=[0]), tmp_path / "run", shared) == 0
    assert len(decodes) == 3
    assert {row["method"] for row in results(tmp_path / "run")["rows"]} == {"Exit", "Lookup", "Longer"}


@pytest.mark.parametrize(
    ("experiment", "files"),
    [
        ("figure1", {"gains"}),
        ("figure2", {"lengths", "deviations"}),
        ("figure3", {"breakdown"}),
        ("figure4", {"max_lengths", "calibration"}),
        ("figure5", {"lengths", "deviations"}),
    ],
)
def test_figures_come_from_the_same_cells(
    tiny: Path, finished: Path, tmp_path: Path, experiment: str, files: set[str], decodes: list[str]
) -> None:
    out = tmp_path / "run"
    document = config(tiny, experiment=experiment, temperatures=[0])
    assert run(document, out, f"--cells={finished / 'cells'}") == 0
    assert decodes == []
    assert {path.stem for path in out.glob("*.parquet")} == files | {"rows"}
    pictures = list(out.glob("*.png"))
    assert pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_deviations_are_those_of_a_replay(tiny: Path, finished: Path, tmp_path: Path) -> None:
    """Run and replay decide alike, and `specsim.engine` has its own sum of distances to the best length."""
    out, place = tmp_path / "run", finished / "cells"
    assert run(config(tiny, experiment="figure2", temperatures=[0]), out, f"--cells={place}") == 0
    found = [row for row in results(out)["deviations"] if row["request"] is None]
    assert {row["series"] for row in found} == {"LibraSpec", "static"}
    folders = {"Exit": next(place.glob("*-T0-Exit-*")), "Lookup": next(place.glob("*-T0-Lookup-*"))}
    for row in found:
        folder = folders[row["method"]]
        meta, chunk = read_trace(folder / "trace.parquet")
        replayed = replay(meta, [chunk], load_latency(folder / "calibration.json"), [row["controller"]]).results[0]
        assert row["mad"] == pytest.approx(replayed["oracle_mad"])
        assert row["rounds"] == replayed["rounds"]


def test_drawing_needs_no_torch(tiny: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(config(tiny, experiment="figure4", temperatures=[0]), out, f"--cells={finished / 'cells'}") == 0
    for path in out.glob("*.png"):
        path.unlink()
    code = "import sys, pathlib; from analysis.figures import draw_folder; draw_folder(pathlib.Path(sys.argv[1])); "
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'real')))"
    assert subprocess.run([sys.executable, "-c", code, str(out)], cwd=ROOT, check=False).returncode == 0
    drawn = {path.name.rpartition("-")[0] for path in out.glob("*.png")}
    assert drawn == {"max-lengths", "depths", "reliability", "speedups", "predictions"}


def test_sampled_drafts_are_measured_at_temperature_one_and_not_predicted(tiny: Path, tmp_path: Path) -> None:
    sampled = {**EXIT, "draft_sampling": "sample", "name": "Sampled", "controllers": {}}
    pairs = [{"target": str(tiny / "model"), "methods": [{**EXIT, "controllers": {}}, sampled]}]
    assert run(config(tiny, pairs=pairs), tmp_path / "run") == 0
    document = results(tmp_path / "run")
    assert {(row["temperature"], row["method"]) for row in document["rows"]} == {
        (0, "Exit"),
        (1, "Exit"),
        (1, "Sampled"),
    }
    for row in document["rows"]:
        assert row["draft_sampling"] == ("sample" if row["method"] == "Sampled" else "greedy")
        assert (row["predicted"] is None) == (row["method"] == "Sampled")
        assert row["shadow"] is None
    (why,) = document["not_predicted"]
    assert "-T1-Sampled-" in why["cell"]
    # The law is the target's either way; with other drafts the same draws accept other tokens.
    taus = {row["method"]: row["tau"] for row in document["rows"] if row["temperature"] == 1}
    assert taus["Sampled"] != taus["Exit"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({**LOOKUP, "controllers": {}}, "it draws no tokens; allowed: greedy"),
        (EXIT, "Draft greedily"),
    ],
)
def test_sampled_drafts_that_cannot_be_are_refused_before_anything_is_measured(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: dict[str, Any], message: str
) -> None:
    pairs = [{"target": str(tiny / "model"), "methods": [{**method, "draft_sampling": "sample"}]}]
    assert run(config(tiny, pairs=pairs, temperatures=[1]), tmp_path / "run") == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "run").rglob("*.*"))


def test_a_spoilt_calibration_is_made_again(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    frozen = cells.frozen_calibration

    def spoilt(work: Any, given: Any, repeats: int) -> LatencyModel:
        asked.append(repeats)
        if len(asked) < 3:
            raise ConfigError("longer passes were faster.")
        return frozen(work, given, 2)

    monkeypatch.setattr(cells, "frozen_calibration", spoilt)
    pairs = [{"target": str(tiny / "model"), "methods": [{**LOOKUP, "controllers": {}}]}]
    assert run(config(tiny, pairs=pairs, temperatures=[0]), tmp_path / "run") == 0
    assert asked == [2, 4, 8]


def test_a_cell_without_prediction_or_costs_needs_no_calibration(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unrecordable(drafter: Any) -> Any:
        raise ConfigError("is in no trace")

    monkeypatch.setattr(cells, "proposer_of", unrecordable)
    pairs = [{"target": str(tiny / "model"), "methods": [LOOKUP]}]
    assert run(config(tiny, pairs=pairs, temperatures=[0]), tmp_path / "run") == 0
    document = results(tmp_path / "run")
    assert all(row["predicted"] is row["error"] is None for row in document["rows"])
    assert [one["why"] for one in document["not_predicted"]] == ["is in no trace"]
    assert document["prediction"]["median_error"] is None
    (cell,) = (tmp_path / "run" / "cells").iterdir()
    assert not (cell / "calibration.json").exists()


def priced(spelling: str, costs: LatencyModel, *, tree: bool) -> tuple[Any, ...]:
    """What a controller is built to from a latency model."""
    built = build(spelling, Setting(block_len=1, max_draft_len=9, latency=costs, tree=tree))
    params = built.params._asdict() if built.params is not None else {}
    return str(built.config), *((key, np.asarray(value).tolist()) for key, value in params.items())


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize(
    "spelling",
    [
        *(
            name
            for name, spec in REGISTRY.items()
            if "length" in spec.kinds
            and not any(param.default is None and param.from_setting is None for param in spec.params.values())
        ),
        *("libraspec:charge_draft=1", "libraspec:charge_draft=0", "static:length=3"),
    ],
)
def test_rules_look_at_costs_when_other_costs_make_them_another_rule(spelling: str, tree: bool) -> None:
    if tree and "tree" not in REGISTRY[spelling.partition(":")[0]].kinds:
        return
    dear = LatencyModel.affine(c_s=0.5, b_s=0.5, draft_pass_s=0.25)
    drafter = SimpleNamespace(block_len=1, max_draft_len=9, branches=tree, arm_costs=())
    session: Any = SimpleNamespace(drafter=drafter)
    other = priced(spelling, COSTS, tree=tree) != priced(spelling, dear, tree=tree)
    assert cells.looks_at_costs(spelling, session) == other
    if spelling in ("lambda", "goodput", "libraspec:charge_draft=1"):
        assert other
    if spelling in ("plain", "libraspec:charge_draft=0"):
        assert not other


def test_a_longer_context_is_a_dataset_of_its_own(tiny: Path, tmp_path: Path) -> None:
    data = {"Long": {"data": str(tiny / "p.jsonl"), "requests": 2, "context": 40}}
    method = {**LOOKUP, "controllers": {}}
    pairs = [{"target": str(tiny / "model"), "methods": [method]}]
    document = config(tiny, experiment="figure3", datasets=data, pairs=pairs, temperatures=[0])
    assert run(document, tmp_path / "run") == 0
    (file,) = (tmp_path / "run" / "cells").glob("prompts-40-*.jsonl")
    lines = [json.loads(line)["prompt"] for line in file.read_text().splitlines()]
    # One token a character; the other two texts do not both fit before the prompt.
    assert all(24 < len(line) <= 40 for line in lines)
    assert all(any(line.endswith(text) for text in TEXTS) for line in lines)
    assert len(parse_config(document).cells()) == 1


def test_a_file_of_another_experiment_and_an_unfit_prompt_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(config(tiny)))
    with pytest.raises(SystemExit) as left:
        run_cli(command.main, ["table2", f"--config={file}", f"--out={tmp_path / 'run'}"])
    assert left.value.code == 2
    assert "is of table1, not of table2" in capsys.readouterr().err
    assert run(config(tiny, max_new_tokens=300), tmp_path / "long") == 2
    assert "context window" in capsys.readouterr().err
