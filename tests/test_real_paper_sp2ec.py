"""The second paper's experiments end to end, on a tiny model that drafts for itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from analysis.results import read_results
from real.builders.arm import Arm, ArmFile
from real.interleave import Comparison
from real.paper import cells
from tests.real_paper import TEXTS, config, decisions, results, run
from tests.real_tiny import save_tiny
from tests.real_vision_files import save_questions, save_vision

ARMS = ("", "2", "a2+m3", "2-3")
RULES = {"SP2ec": "sp2ec", "UCBSpec": "ucbspec"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder / "model", layers=8, seed=3, spread=0.08)  # pyright: ignore[reportArgumentType]
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    spent = {"seconds": {"passes": 0.5, "search": 0.25}, "generated": 30, "generation_s": 3.0}
    ArmFile("tiny", 8, "random", tuple(map(Arm.parse, ARMS)), construction=spent).save(folder / "arms.json")
    return folder


def experiment(tiny: Path, name: str, **changes: Any) -> dict[str, Any]:
    swift = {
        "name": "SWIFT",
        "drafter": f"self:arms={tiny / 'arms.json'},length=3",
        "max_draft_len": 3,
        "arms": "0..3",
        "controllers": RULES,
    }
    live = {**swift, "name": "cosSim", "drafter": "self:build=cossim,arms=3,length=3", "arms": [0, 1, 2]}
    pairs = [{"target": str(tiny / "model"), "methods": [swift, live]}]
    return config(tiny, experiment=name, pairs=pairs, temperatures=[0], **changes)


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    assert run(experiment(tiny, "sp2ec-main"), out) == 0
    return out


def test_every_arm_and_every_rule_has_a_row_in_the_same_words(tiny: Path, finished: Path) -> None:
    document = results(finished)
    found = {(row["method"], row["label"], row["controller"]) for row in document["rows"]}
    assert len(document["rows"]) == len(found) == 4 + 3 + 2 * len(RULES)
    assert {(method, *rule) for method in ("SWIFT", "cosSim") for rule in RULES.items()} <= found
    assert ("SWIFT", "static", "arm:index=3") in found
    assert document["differences"] == []
    assert all(row["shadow"] is None for row in document["rows"])
    pairs = {(one["method"], one["label"], one["against"]) for one in document["comparisons"]}
    assert pairs == {
        (method, *rivals)
        for method in ("SWIFT", "cosSim")
        for rivals in (("SP2ec", "UCBSpec"), ("SP2ec", "static"), ("UCBSpec", "static"))
    }
    assert "| cosSim SP2ec |" in (finished / "sp2ec-main.md").read_text()
    outputs: dict[int, set[tuple[int, ...]]] = {}
    for _, number, _, output, _ in decisions(finished / "cells"):
        outputs.setdefault(number, set()).add(tuple(output))
    assert [len(different) for different in outputs.values()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "files", "pictures"),
    [
        ("sp2ec-mat", {"acceptance"}, 1),
        ("sp2ec-pulls", {"pulls", "shares"}, 2),
        ("sp2ec-regret", {"regret", "regrets"}, 4),
        ("sp2ec-context", {"contexts"}, 1),
        ("sp2ec-build", {"construction"}, 0),
    ],
)
def test_further_experiments_come_from_the_same_cells(
    tiny: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    files: set[str],
    pictures: int,
) -> None:
    monkeypatch.setattr(cells, "load_target", lambda *_, **__: pytest.fail("loaded a model"))
    out = tmp_path / "run"
    assert run(experiment(tiny, name), out, f"--cells={finished / 'cells'}") == 0
    assert {path.stem for path in out.glob("*.parquet")} == files | {"rows"}
    made = list(out.glob("*.png"))
    # Besides those that every experiment's rows give.
    assert len([path for path in made if not path.stem.startswith(("speedups-", "predictions-"))]) == pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)
    assert set(read_results([out])) == {"run"}


def test_pulls_are_those_of_the_rounds(tiny: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(experiment(tiny, "sp2ec-pulls"), out, f"--cells={finished / 'cells'}") == 0
    rows = pq.read_table(out / "pulls.parquet").to_pylist()
    for method, arms in (("SWIFT", 4), ("cosSim", 3)):
        for label, spelling in RULES.items():
            mine = [row for row in rows if (row["method"], row["label"]) == (method, label)]
            assert [row["arm"] for row in mine] == list(range(arms))
            assert sorted(row["rank"] for row in mine) == list(range(1, arms + 1))
            drafted = sum(
                sum(submitted > 0 for _, submitted, _ in lengths)
                for name, _, controller, _, lengths in decisions(finished / "cells")
                if f"-{method}-" in name and controller == spelling
            )
            assert sum(row["pulls"] for row in mine) == drafted
    # Each rule that begins with every arm once does so on every prompt.
    assert all(row["pulls"] >= len(TEXTS) for row in rows if row["label"] == "SP2ec")


def test_replayed_regret_is_that_of_the_predicted_speedups(tiny: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(experiment(tiny, "sp2ec-regret"), out, f"--cells={finished / 'cells'}") == 0
    document = results(out)
    guesses = {(row["method"], row["controller"]): row["predicted"] for row in document["rows"]}
    arms = {
        controller: guess for (method, controller), guess in guesses.items() if method == "SWIFT" if ":" in controller
    }
    rows = [row for row in document["regrets"] if row["method"] == "SWIFT"]
    assert len(rows) == 2 * len(RULES)
    for row in rows:
        low, high = row["predicted_ci95"]
        assert low <= row["predicted"] <= high
        if row["against"] == "dataset":
            assert row["predicted_arm"] == max(arms, key=lambda name: arms[name])
            assert row["predicted"] == pytest.approx(max(arms.values()) / guesses["SWIFT", row["controller"]] - 1)
    # Arms made on the way are in no trace.
    assert all(row["predicted"] is None for row in document["regrets"] if row["method"] == "cosSim")


def test_construction_is_that_of_the_decodes_and_of_the_file(tiny: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(experiment(tiny, "sp2ec-build"), out, f"--cells={finished / 'cells'}") == 0
    document = results(out)
    found = {(row["method"], row["label"]): row for row in document["construction"]}
    assert set(found) == {("SWIFT", "beforehand"), *(("cosSim", label) for label in RULES)}
    for row in found.values():
        assert 0 < row["share"] < 1
        assert row["share"] == pytest.approx(row["build_s"] / row["whole_s"])
        # With as many tokens, and one family, construction is a hundredth.
        token_s = (row["whole_s"] - row["build_s"]) / row["tokens"]
        alone_s = row["build_s"] / row["families"]
        assert alone_s / (alone_s + token_s * row["tokens_for_1_percent"]) == pytest.approx(0.01)
    told = found["SWIFT", "beforehand"]
    assert [told[key] for key in ("build_s", "whole_s", "tokens", "families")] == [0.75, 3.0, 30, 1]
    assert found["cosSim", "SP2ec"]["families"] == len(TEXTS)
    assert found["cosSim", "SP2ec"]["tokens"] == sum(
        row["tokens"] for row in document["rows"] if (row["method"], row["label"]) == ("cosSim", "SP2ec")
    )
    assert "| cosSim | UCBSpec |" in (out / "sp2ec-build.md").read_text()


def test_an_experiment_may_do_without_predictions(
    tiny: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = experiment(tiny, "sp2ec-main")
    (pair,) = document["pairs"]
    (method,) = pair["methods"] = [pair["methods"][0]]
    monkeypatch.setattr(cells, "frozen_trace", lambda *_: pytest.fail("recorded a trace"))
    method.update(predict=False, arms=[0], controllers={"SP2ec": "sp2ec"})
    assert run(document, tmp_path / "run") == 0
    (told,) = results(tmp_path / "run")["not_predicted"]
    assert told["why"] == "no prediction was asked for (predict: off)"
    assert told["cell"] not in {path.name for path in (finished / "cells").iterdir()}


def test_pictures_in_several_sizes_are_several_lengths_of_prompts(tmp_path: Path) -> None:
    save_vision(tmp_path / "vlm", "qwen2_5_vl")
    data = str(save_questions(tmp_path / "questions"))
    sizes = {"small": 2, "large": 40}
    skip = {"name": "skip", "drafter": "self:skip=1", "max_draft_len": 2, "static": [2], "predict": False}
    document = config(
        tmp_path,
        experiment="sp2ec-context",
        temperatures=[0],
        max_new_tokens=6,
        datasets={name: {"data": data, "requests": 4, "visual_tokens": most} for name, most in sizes.items()},
        pairs=[{"target": str(tmp_path / "vlm"), "methods": [skip]}],
    )
    assert run(document, tmp_path / "run") == 0
    rows = {row["dataset"]: row for row in pq.read_table(tmp_path / "run" / "contexts.parquet").to_pylist()}
    assert rows["small"]["prompt_len"] < rows["large"]["prompt_len"]
    assert results(tmp_path / "run")["differences"] == []


def test_an_arm_that_is_not_there_is_named_before_anything_is_decoded(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Comparison, "run", lambda *_, **__: pytest.fail("decoded"))
    document = experiment(tiny, "sp2ec-main")
    document["pairs"][0]["methods"][1]["arms"] = "0..3"
    assert run(document, tmp_path / "run") == 2
    assert "index=3" in capsys.readouterr().err
    document["pairs"][0]["methods"][0]["drafter"] = "self:arms=nowhere.json"
    assert run(document, tmp_path / "other") == 2
    assert "nowhere.json: cannot be read" in capsys.readouterr().err
    document = experiment(tiny, "sp2ec-main")
    document["datasets"]["Small"]["visual_tokens"] = 8
    assert run(document, tmp_path / "third") == 2
    assert "sees no pictures" in capsys.readouterr().err
