"""Configurations of the paper's experiments: the shipped ones, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.builders.arm import Arm, ArmFile
from real.drafters import selfspec
from real.drafters.choose import parse_drafter
from real.paper.config import EXPERIMENTS, FIXED, LAMBDA, LIBRASPEC, SP2EC, STATIC, UCBSPEC
from real.paper.reading import parse_config, read_config
from real.session import make_drafter
from specsim.controllers import REGISTRY, parse_spec
from tests.conftest import ROOT
from tests.real_paper import GOOD
from tests.real_tiny import tiny_loaded

FILES = sorted((ROOT / "real" / "configs" / "paper").glob("*.yaml"))
LAB = [path for path in FILES if path.stem.endswith("_lab")]
SIX = {f"Qwen/Qwen2.5-{size}B-Instruct" for size in (7, 14, 32)} | {
    *("Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-Coder-30B-A3B-Instruct")
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_configurations_can_be_read(path: Path) -> None:
    config = read_config(path)
    assert path.stem.startswith(f"{config.experiment}_")
    first = path.read_text().splitlines()[0]
    name = f"real/configs/paper/{path.name}"
    assert first == f"# python -m real.paper {config.experiment} --config {name} --out runs/paper/{path.stem}"
    for cell in config.cells():
        parse_drafter(cell.method.drafter, target=cell.target, n_layers=30)
        for spelling in cell.method.spellings():
            assert parse_spec(spelling)[0] in REGISTRY


def test_self_speculating_drafters_have_options_that_a_target_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are read when the target is there: a misspelt one would end an experiment that took hours so far."""
    loaded = tiny_loaded(layers=30)
    monkeypatch.setattr(selfspec, "read_arms", lambda path: ArmFile("tiny", 30, "by hand", (Arm(), Arm.parse("4"))))
    found = {(cell.method.drafter, cell.method.max_draft_len) for path in FILES for cell in read_config(path).cells()}
    checked = 0
    for drafter, longest in sorted(found):
        if drafter.startswith("self:") and "prune=" not in drafter:
            spec = parse_drafter(drafter, target="tiny", n_layers=30)
            assert make_drafter(spec, loaded, max_draft_len=longest).arm_draft_len >= 1
            checked += 1
    assert checked > 10


def test_every_experiment_has_one_of_the_papers_and_the_lab_pair_has_all_without_a_thinking_mode() -> None:
    papers = {path.stem.partition("_")[0] for path in FILES if path.stem.endswith("_paper")}
    assert papers == set(EXPERIMENTS)
    assert {path.stem.partition("_")[0] for path in LAB} == set(EXPERIMENTS) - {"table3"}


def test_the_papers_settings() -> None:
    """Sections 4.1 to 4.6 and Appendix B.2."""
    one, two, three = (read_config(ROOT / f"real/configs/paper/table{n}_paper.yaml") for n in (1, 2, 3))
    assert {pair.target for config in (one, two) for pair in config.pairs} == SIX
    for pair, tau in zip(one.pairs, ("0.5", "0.45", "0.4"), strict=True):
        eagle, fast = pair.methods
        assert eagle.static == fast.static == tuple(range(3, 21))
        assert fast.controllers["FailFast"] == f"failfast:tau={tau},max=80"
        assert fast.controllers[LIBRASPEC] == "libraspec:alpha=2.0,max=60"
    for pair in two.pairs:
        assert pair.thinking is (None if "Coder" in pair.target else False)
        assert pair.methods[0].controllers[FIXED] == "static:length=15"
        budgets = [method.drafter for method in pair.methods if LIBRASPEC in method.controllers][1:]
        assert [drafter.split("budget=")[1].split(",")[0] for drafter in budgets] == ["64", "128", "256", "512"]
    assert all(pair.thinking for pair in three.pairs)
    assert all(cell.prompts().data.endswith(":thinking=on") for cell in three.cells())
    for config in (one, two, three):
        assert config.temperatures == (0, 1)
        assert list(config.datasets) == ["MATH-500", "GSM8K", "HumanEval", "MT-Bench"]


def test_the_lab_measures_forty_prompts_and_lambda_beside_its_rivals() -> None:
    for path in LAB:
        config = read_config(path)
        # Figure 3 is of one length, Table 4 of sixteen rules that hardly differ; families have many arms.
        usual = 12 if "sp2ec" in config.experiment else 40
        least = {"figure3": 12, "table4": 20, "sp2ec-reset": 10}.get(config.experiment, usual)
        assert all(dataset.requests >= least for dataset in config.datasets.values())
        if config.experiment in ("table1", "table2"):
            names = {method.name for pair in config.pairs for method in pair.methods}
            for name in names:
                labels = {
                    label
                    for pair in config.pairs
                    for method in pair.methods
                    for label, _ in method.labels()
                    if method.name == name
                }
                assert LAMBDA in labels
                assert labels & {STATIC, FIXED}


def test_cells_are_shared_by_experiments_that_measure_the_same() -> None:
    def folders(name: str) -> set[str]:
        return {cell.folder() for cell in read_config(ROOT / f"real/configs/paper/{name}.yaml").cells()}

    assert folders("figure2_lab") <= folders("table1_lab")
    assert folders("figure5_lab") <= folders("figure1_lab")
    assert folders("figure2_smollm2") <= folders("table1_smollm2")
    assert folders("figure5_paper") <= folders("table1_paper")
    for name in ("sp2ec-mat", "sp2ec-pulls", "sp2ec-build"):
        for place in ("lab", "paper"):
            assert folders(f"sp2ec-main_{place}") <= folders(f"{name}_{place}")
            # What is built live, prompt by prompt, is compared by its seconds of construction alone.
            assert len(folders(f"{name}_{place}") - folders(f"sp2ec-main_{place}")) in (0, 2 * (name == "sp2ec-build"))
    assert folders("sp2ec-regret_paper") == folders("sp2ec-main_paper")
    assert folders("figure1_paper") <= folders("table1_paper") | folders("table2_paper")


def test_a_length_may_have_a_label_of_its_own() -> None:
    document = copy.deepcopy(GOOD)
    document["pairs"][0]["methods"][0]["controllers"][FIXED] = "static:length=4"
    (cell,) = parse_config(document).cells()
    assert cell.method.spellings() == [*(f"static:length={n}" for n in (3, 4, 5)), "libraspec"]
    assert (FIXED, "static:length=4") in cell.method.labels()
    assert (STATIC, "static:length=4") in cell.method.labels()


def test_arms_are_swept_like_lengths() -> None:
    document = copy.deepcopy(GOOD)
    (method,) = document["pairs"][0]["methods"]
    plain = [cell.folder() for cell in parse_config(document).cells()]
    method.update(drafter="self:arms=arms.json", arms="0..2", controllers={SP2EC: "sp2ec", "first": "arm:index=0"})
    del method["static"]
    (cell,) = parse_config(document).cells()
    assert cell.method.labels() == [
        *((STATIC, f"arm:index={number}") for number in range(3)),
        *((SP2EC, "sp2ec"), ("first", "arm:index=0")),
    ]
    assert cell.method.spellings() == ["arm:index=0", "arm:index=1", "arm:index=2", "sp2ec"]
    method["arms"] = [2]
    assert parse_config(document).cells()[0].method.labels()[0] == (STATIC, "arm:index=2")
    assert "predict" not in cell.settings()
    method["predict"] = False
    (other,) = parse_config(document).cells()
    assert other.settings()["predict"] is False
    assert other.folder() not in {*plain, cell.folder()}


def test_the_second_papers_rules_and_families_are_measured_together() -> None:
    """Every family with SP2ec, with both readings of UCBSpec, and with each of its arms throughout."""
    for place in ("lab", "paper"):
        pairs = read_config(ROOT / f"real/configs/paper/sp2ec-main_{place}.yaml").pairs
        for target in {pair.target for pair in pairs}:
            families = [method for pair in pairs if pair.target == target for method in pair.methods if method.arms]
            assert {"cosSim", "SWIFT", "KnapSpec"} <= {method.name for method in families}
            for method in families:
                labels = dict(method.labels())
                assert {SP2EC, UCBSPEC} <= set(labels)
                assert {"ucbspec", "ucbspec:variant=paper", "exp3spec", "klucb-unimodal"} <= set(method.spellings())
                assert "length=4" in method.drafter
                assert method.max_draft_len == 4


def test_sampled_drafts_have_cells_of_their_own_at_temperature_one() -> None:
    document = copy.deepcopy(GOOD)
    document["temperatures"] = [0, 1]
    (method,) = document["pairs"][0]["methods"]
    greedy = [cell.folder() for cell in parse_config(document).cells()]
    method["draft_sampling"] = "greedy"
    assert [cell.folder() for cell in parse_config(document).cells()] == greedy
    method["draft_sampling"] = "sample"
    (cell,) = parse_config(document).cells()
    assert cell.temperature == 1
    assert cell.settings()["draft_sampling"] == "sample"
    assert cell.folder() not in greedy


def test_the_lab_and_smollm2_measure_dflash_with_sampled_drafts() -> None:
    for name in ("table2_lab", "table2_smollm2"):
        cells = read_config(ROOT / f"real/configs/paper/{name}.yaml").cells()
        greedy, sampled = (
            [cell for cell in cells if cell.method.name == method] for method in ("DFlash", "DFlash, sampled drafts")
        )
        assert [cell.temperature for cell in greedy] == [0, 1]
        assert [(cell.temperature, cell.method.draft_sampling) for cell in sampled] == [(1, "sample")]
        assert sampled[0].method.drafter == greedy[0].method.drafter
        assert sampled[0].method.controllers == greedy[0].method.controllers
