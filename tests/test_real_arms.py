"""`python -m real.arms`: families that every builder makes of a target, what they took, and what is refused."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import json
import math
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real.arms.__main__ as command  # noqa: E402
from real.arms.plan import BUILDERS  # noqa: E402
from real.builders.arm import Arm, ArmFile, nested, read_arms  # noqa: E402
from real.builders.knapspec import MAX_WEIGHT  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.drafters.subblocks import SubBlocks  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.models import Loaded  # noqa: E402
from real.session import make_drafter  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import run_cli  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_lossless import plain_greedy, tiny_class  # noqa: E402
from tests.real_selfspec import controller_for  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_loaded  # noqa: E402

LAYERS, TOKENS = 8, 40
SHORT = {"swift": ["--window=6", "--ratio=0.3", "--ratio=0.6", "--trials=5"], "knapspec": ["--latency=2e-4,1e-7,1e-4"]}


@functools.cache
def tiny(layers: int = LAYERS) -> Loaded:
    """Small steps from layer to layer, so that drafts without some are taken up to a point; texts never end."""
    return replace(tiny_loaded(layers=layers, spread=0.15, seed=4), stop_ids=())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "p.jsonl").write_text('{"prompt": "abcabcabd"}\n{"prompt": "hello hello"}\n')
    targets = {"tiny": tiny, "short": lambda: tiny(2), "gpt2": lambda: replace(tiny(), model=tiny_class("gpt2"))}
    monkeypatch.setattr(command, "load_text_target", lambda name, **how: targets[name]())
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        run_cli(command.main, list(arguments))
    assert isinstance(left.value.code, int)
    return left.value.code


def build(folder: Path, builder: str, *more: str, target: str = "tiny", out: str = "arms.json") -> int:
    options = [f"--builder={builder}", f"--target={target}", f"--dataset={folder / 'p.jsonl'}", f"--out={folder / out}"]
    return run("build", *options, f"--max-new-tokens={TOKENS}", *SHORT.get(builder, []), *more)


def built(folder: Path, builder: str, *more: str, **how: Any) -> ArmFile:
    assert build(folder, builder, *more, "--force", **how) == 0
    return read_arms(folder / how.get("out", "arms.json"))


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_family_decodes_what_its_target_does(builder: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = built(folder, builder, "--requests=2")
    out, err = capsys.readouterr()
    assert ArmFile.from_json(json.loads(out.strip().splitlines()[-1]), where="output") == file
    assert (file.builder, file.target, file.n_layers, file.arms[0]) == (builder, "tiny", LAYERS, Arm())
    assert len(file.arms) > 2
    told, kept = file.construction, file.construction["kept"]
    assert kept[0] == 1
    assert all(one > two for one, two in itertools.pairwise(kept)) or builder == "knapspec"
    assert kept == sorted(kept, reverse=True)
    assert len(told["scores"]) == len(file.arms)
    assert sum(told["seconds"].values()) > 0
    assert all(seconds >= 0 for seconds in told["seconds"].values())
    if builder == "random":
        assert (told["generated"], told["share"], told["rounds"]) == (0, None, 0)
    else:
        assert told["generated"] == 2 * TOKENS * (2 if builder == "swift" else 1)
        assert 0 < told["tokens"] <= told["generated"]
        assert 0 < told["share"] < 1
        assert told["seconds"]["passes"] > 0
        assert f"{builder} 2/" in err
    spec = parse_drafter(f"self:arms={folder / 'arms.json'}", target="tiny", n_layers=LAYERS)
    drafter = make_drafter(spec, tiny(), max_draft_len=4)
    assert isinstance(drafter, SelfDrafter)
    assert [drafter.family.arm(k) for k in range(drafter.family.size)] == list(file.arms)
    prompt = prompt_ids(7)
    for spelling in ("sp2ec", "ucbspec"):
        lane = OnlineController(controller_for(spelling, drafter), seed=1, compiled=False)
        found = decode(Target(tiny().model), drafter, lane, prompt, Settings(max_new_tokens=24))
        assert found.output == plain_greedy(tiny().model, prompt, 24)
        assert len({row.arm for row in found.rounds}) > 2
    again = built(folder, builder, "--requests=2", out="again.json")
    assert (again.arms, again.settings) == (file.arms, file.settings)
    capsys.readouterr()
    assert run("show", str(folder / "arms.json")) == 0
    shown = capsys.readouterr().out
    assert all(str(arm) in shown for arm in file.arms[:2])
    assert f"{len(file.arms)} arms, {'nested' if nested(file.arms) else 'not nested'}" in shown


def test_numbers_of_arms_are_what_was_asked_for(folder: Path) -> None:
    for builder in ("cossim", "random"):
        file = built(folder, builder, "--arms=4")
        assert [arm.skipped() / 2 for arm in file.arms] == [0, 1, 2, 3]
        assert nested(file.arms)
        assert all(not {0, 1, 6, 7} & arm.attention for arm in file.arms)
        assert [arm.skipped() / 2 for arm in built(folder, builder, "--fraction=0.3", "--no-zero-skip").arms] == [1, 2]
    assert len({built(folder, "random", f"--seed={seed}").arms for seed in range(4)}) > 1
    file = built(folder, "knapspec", "--arms=4", "--no-zero-skip")
    assert len(file.arms) == 4
    assert Arm() not in file.arms
    choice = file.construction["choice"]["arm"]
    best = max(range(4), key=file.construction["scores"].__getitem__)
    assert choice == str(file.arms[best])  # KnapSpec's own draft is the family's best
    file = built(folder, "clasp", "--ratio=0.25", "--ratio=0.5", "--no-zero-skip")
    assert [len(arm.attention) for arm in file.arms] == [2, 4]
    assert all(arm.attention == arm.mlp for arm in file.arms)
    file = built(folder, "swift", "--no-zero-skip")
    assert [arm.skipped() for arm in file.arms] == [3, 7]  # of twelve sub-blocks


def test_searches_end_carry_over_and_start_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six trials end a search for good, or in each prompt, the last of them the optimiser's."""
    monkeypatch.setitem(SHORT, "swift", ["--window=6", "--ratio=0.4", "--trials=5"])
    how = ["--requests=2", "--max-score=1", "--bayes-every=6"]
    once = built(folder, "swift", *how)
    assert once.construction["searches"] == [{"ratio": 0.4, "trials": 6, "finished": True}]
    assert once.construction["trials"] == 6
    assert once.construction["tokens"] < once.construction["generated"] / 2
    anew = built(folder, "swift", *how, "--per-prompt")
    assert anew.construction["searches"] == [{"ratio": 0.4, "trials": 12, "finished": True}]
    assert anew.settings["per_prompt"]
    how[-1] = "--bayes-every=0"
    assert built(folder, "swift", *how).settings["bayes_every"] == 0
    assert built(folder, "swift", *how, "--judged=first").settings["judged"] == "first"


def test_sub_blocks_are_timed_where_no_times_are_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHORT, "knapspec", [])
    file = built(folder, "knapspec", "--context=20", "--context=90", "--repeats=3")
    measured = file.construction["measured"]
    assert measured["past"] == [19, 89]
    assert all(seconds > 0 for seconds in (*measured["attention_s"], *measured["mlp_s"]))
    assert file.settings["latency"] is None
    assert min(file.construction["weights"].values()) == 1


@pytest.mark.parametrize(
    ("builder", "more", "message"),
    [
        ("swift", ["--window=39"], "longer than the 40 tokens"),
        ("swift", ["--ratio=1.5"], r"ratio 1\.5; allowed: above 0"),
        ("swift", ["--ratio=0.01"], "leaves nothing out"),
        ("swift", ["--ratio=0.31"], "leave out 3, 7, 3; choose such that each"),
        ("swift", ["--trials=-1"], "trials -1; allowed: at least 0"),
        ("swift", ["--arms=3"], "--arms belongs to --builder cossim or knapspec or random"),
        ("swift", ["--max-score=nan"], "max_score nan; allowed: a finite"),
        ("swift", ["--max-score=inf"], "max_score inf; allowed: a finite"),
        ("clasp", ["--ratio=nan"], "--ratio nan; allowed: above 0"),
        ("clasp", ["--ratio=inf"], "--ratio inf; allowed: above 0"),
        ("clasp", ["--ratio=1"], "ratio 1 leaves out 8 of 8 layers; allowed: 1..7"),
        ("clasp", ["--ratio=0.1"], r"ratio 0\.1 leaves out 0"),
        ("cossim", ["--window=0"], "--window belongs to --builder swift"),
        ("cossim", ["--arms=6"], r"6 arms; allowed: 2\.\.5"),
        ("cossim", ["--arms=3", "--fraction=0.3"], "give one of them"),
        ("random", ["--fraction=0.1"], "leaves out none of 8 layers"),
        ("cossim", ["--target=short"], "has 2 layers"),
        ("random", ["--target=short"], "has 2 layers"),
        ("swift", ["--target=short"], "has 2 layers"),
        ("cossim", ["--target=gpt2"], "GPT2LMHeadModel has none"),
        ("cossim", ["--max-new-tokens=1"], "no output was long enough"),
        ("knapspec", ["--max-new-tokens=12"], "no output had 6 rounds"),
        ("knapspec", ["--fraction=0"], "no network that leaves anything out"),
        ("knapspec", ["--latency=1,2"], "three numbers"),
        ("knapspec", ["--latency=1,nan,2"], "three numbers"),
        ("knapspec", ["--latency=0,0,0"], "positive times"),
        ("knapspec", ["--repeats=2"], "leave --context and --repeats out"),
        ("cossim", ["--max-new-tokens=600"], "exceed the target's"),
        ("cossim", ["--requests=3"], "has 2 prompts"),
        ("cossim", ["--dataset=no"], "no such dataset"),
        ("best", [], "is not one of"),
        ("cossim", ["--fraction=2"], "not in the range"),
    ],
)
def test_what_cannot_be_built_leaves_nothing(
    builder: str, more: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert build(folder, builder, *more) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert re.search(message, err), err
    assert sorted(folder.iterdir()) == before


def test_a_file_that_is_there_stays_unless_forced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "arms.json").write_text("mine")
    assert build(folder, "random") == 2
    assert "exists; choose another file or add --force" in capsys.readouterr().err
    assert build(folder, "cossim", "--force", "--requests=3") == 2
    assert (folder / "arms.json").read_text() == "mine"
    assert build(folder, "random", "--force") == 0
    assert read_arms(folder / "arms.json").builder == "random"
    assert build(folder, "random", out="none/arms.json") == 2
    assert "does not exist; create it first" in capsys.readouterr().err


def test_an_interrupted_build_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def interrupted(*args: Any, **how: Any) -> Any:
        decoded.append(how.get("request"))
        if how.get("request") == 1:
            raise KeyboardInterrupt
        return decode(*args, **how)

    monkeypatch.setattr("real.arms.job.decode", interrupted)
    before = sorted(folder.iterdir())
    assert build(folder, "cossim", "--requests=2") == 130
    assert decoded == [None, 0, 1]
    assert sorted(folder.iterdir()) == before


def test_show_of_a_file_made_elsewhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ArmFile("t", 8, "by hand", (Arm(), Arm.parse("a3+m2,5"))).save(folder / "hand.json")
    assert run("show", str(folder / "hand.json")) == 0
    out = capsys.readouterr().out
    assert "by hand: 2 arms, nested, for t (8 layers)" in out
    assert "a3+m2,5" in out
    assert "construction" not in out
    assert run("show", str(folder / "none.json")) == 2


WHOLE = {
    "seconds": {"passes": 0.1, "search": 0.1, "bookkeeping": 0.0},
    **dict.fromkeys(("rounds", "tokens", "trials", "generated", "generation_s"), 1),
    "weights": {"attention": 1, "mlp": 2},
    "kept": [1, None],
    "scores": [None, 0.5],
}
ODD = (None, True, "x", [], [1], {}, ["x", "y"], {"passes": "x"}, math.nan, math.inf, 10**400)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(sorted(WHOLE)), odd=st.sampled_from(ODD), drop=st.booleans(), inside=st.booleans())
def test_a_construction_from_elsewhere_is_shown_or_refused(
    key: str, odd: Any, drop: bool, inside: bool, folder: Path
) -> None:
    """Whatever one of its values is replaced by; nothing is shown of what is refused."""
    told = copy.deepcopy(WHOLE)
    held: Any = told[key] if inside and isinstance(told[key], dict) else told
    place = next(iter(held)) if held is not told else key
    held[place] = odd
    if drop:
        del held[place]
    document = ArmFile("t", 8, "by hand", (Arm(), Arm.parse("3"))).to_json() | {"construction": told}
    (folder / "odd.json").write_text(json.dumps(document))
    shown, err = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(err):
        status = run("show", str(folder / "odd.json"))
    optional = held is told and key in ("weights", "kept", "scores")
    fine = optional and (drop or (odd is None and key != "weights"))
    assert status == (0 if fine else 2)
    if status:
        assert re.search(rf"odd\.json: construction: {key}\S* is .*; allowed: ", err.getvalue())
        assert not shown.getvalue()


def test_a_file_nested_too_deep_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "deep.json").write_text("[" * 100_000)
    assert run("show", str(folder / "deep.json")) == 2
    assert "deep.json: not JSON" in capsys.readouterr().err


@pytest.mark.parametrize("times", ["1e-300,0,1e300", "1e300,0,1e-300"])
def test_times_that_differ_beyond_floats_weigh_the_most(times: str, folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(SHORT, "knapspec", [f"--latency={times}"])
    assert max(built(folder, "knapspec").construction["weights"].values()) == MAX_WEIGHT


def test_one_context_is_refused_before_anything_is_measured(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(SHORT, "knapspec", [])
    monkeypatch.setattr("real.arms.plan.measure", lambda *args, **how: pytest.fail("measured"))
    assert build(folder, "knapspec", "--context=8", "--context=8") == 2
    assert "--context 8 alone; allowed: at least two lengths" in capsys.readouterr().err


def test_what_a_target_keeps_is_by_its_weights(folder: Path) -> None:
    file = built(folder, "clasp")
    blocks = SubBlocks(tiny().model)
    assert file.construction["kept"] == [blocks.cost(arm) for arm in file.arms]
