"""Vision-language targets on the command lines: whole runs and recordings of tiny models on questions in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import probe  # noqa: E402
from real.data import load_prompts  # noqa: E402
from real.folder import RunFolder, read_run  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.models import load_target, load_text_target  # noqa: E402
from real.neartie import exact_twin, explain  # noqa: E402
from real.record import decode_plain  # noqa: E402
from real.session import ANY_LATENCY, open_session  # noqa: E402
from real.vision import attention  # noqa: E402
from real.vision.load import prompt_for  # noqa: E402
from specsim.engine import replay  # noqa: E402
from specsim.errors import ConfigError, run_cli  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from specsim.roundlog import read_round_log  # noqa: E402
from specsim.trace import read_trace  # noqa: E402
from tests.real_law import FixedClock  # noqa: E402
from tests.real_runs import LATENCY, THIRD_PARTY_WARNINGS, run  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402
from tests.real_vision_files import save_questions, save_vision  # noqa: E402
from tests.test_real_vision_lossless import LooksAtCache  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]
CLASSES = ("qwen2_5_vl", "qwen3_vl", "llava")
NEW = 10
TIMES = "arms=3,length=3,latency=2e-4,1e-7,1e-4"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, questions, texts, arms and a latency model."""
    folder = tmp_path_factory.mktemp("vision")
    for name in CLASSES:
        save_vision(folder / name, name)
    save_tiny(folder / "text")
    save_questions(folder / "questions")
    (folder / "texts.jsonl").write_text('{"prompt": "a b c a b c"}\n{"prompt": "one and one?"}\n')
    (folder / "latency.json").write_text(json.dumps(LATENCY))
    arms = {"schema": "real.arms/1", "target": "tiny", "n_layers": 3, "builder": "hand", "settings": {}}
    (folder / "arms.json").write_text(json.dumps({**arms, "arms": ["", "m1", "1"]}))
    return folder


def arguments(place: Path, target: str, drafter: str, dataset: str = "questions", **model: str) -> list[str]:
    """Of `real.run test` into `place/out`."""
    given = {"target": str(place / target), "drafter": drafter, "latency": str(place / "latency.json"), **model}
    given |= {"max_new_tokens": str(NEW), "max_draft_len": "4"}
    flags = [f"--model.{key}={value}" for key, value in given.items()]
    return ["test", *flags, f"--data.dataset={place / dataset}", "--trainer.accelerator=cpu", "--track.mode=disabled"]


def outputs(out: Path) -> dict[str, dict[str, list[int]]]:
    """Tokens of a run by prompt and controller."""
    requests = RunFolder(out, read_run(out)["config"], reopen=True).load()
    return {
        request.id: {one.controller: one.decoded.output for one in request.runs if not one.warmup}
        for request in requests
    }


@pytest.mark.parametrize(
    ("name", "drafter", "controllers"),
    [
        ("qwen2_5_vl", "prompt-lookup", "[static:length=3,libraspec]"),
        ("qwen3_vl", "self:arms=ARMS,length=3", "[sp2ec,arm:index=1]"),
        ("llava", "layer-skip:skip=1", "[static:length=2,libraspec]"),
        ("qwen2_5_vl", f"self:build=knapspec,{TIMES},rebuild=4", "[sp2ec,arm:index=1]"),
        ("qwen3_vl", f"self:build=knapspec,{TIMES},rebuild=4", "[sp2ec,arm:index=1]"),
        ("llava", "self:build=swift,ratio=0.5,1,window=2", "[sp2ec,arm:index=1]"),
    ],
)
def test_questions_are_answered_as_by_plain_decoding(
    place: Path, tmp_path: Path, name: str, drafter: str, controllers: str
) -> None:
    """With and without pictures in one run; and plain decoding is that of the loop on the encoder's prompts."""
    spelled = drafter.replace("ARMS", str(place / "arms.json"))
    flags = [*arguments(place, name, spelled, controllers=controllers), f"--record.out={tmp_path / 'out'}"]
    assert run(*flags) == 0
    found = outputs(tmp_path / "out")
    assert set(found) == {"two", "line-3", "7", "line-7"}
    loaded = load_target(str(place / name), device="cpu")
    for prompt in load_prompts(str(place / "questions")):
        assert len(found[prompt.id]) == 3
        plain = decode_plain(loaded.model, prompt_for(loaded, prompt), NEW, loaded.stop_ids)
        assert all(output == plain for output in found[prompt.id].values())
    assert found["line-3"] != found["7"]  # the same text, other frames


@pytest.mark.parametrize(
    "build",
    [
        "cossim,arms=3",
        "swift,arms=3,window=1,rebuild=5",
        "knapspec,arms=3,latency=2e-4,1e-7,1e-4,rebuild=4",
        "clasp,ratio=0.2,0.5",
    ],
)
def test_arms_are_made_on_the_way_on_pictures(place: Path, tmp_path: Path, build: str) -> None:
    """cosSim needs more layers than the other models here have: the one that comes with the project."""
    flags = arguments(place, "qwen2_5_vl", f"self:build={build},length=3", controllers="[sp2ec]")
    questions = save_questions(tmp_path / "questions")
    (questions / "questions.jsonl").write_text(json.dumps({"question": "a1", "images": ["0.png"]}))
    flags = [flag.replace(str(place / "qwen2_5_vl"), "digits-vlm") for flag in flags if not flag.startswith("--data")]
    flags += [f"--data.dataset={questions}", "--data.requests=1"]
    assert run(*flags, f"--record.out={tmp_path / 'out'}") == 0
    found = outputs(tmp_path / "out")
    assert len(found) == 1
    assert all(one["sp2ec"] == one["plain"] for one in found.values())


def test_texts_go_to_vision_language_targets_and_a_run_is_tied_to_its_pictures(place: Path, tmp_path: Path) -> None:
    flags = arguments(place, "qwen3_vl", "prompt-lookup", "texts.jsonl", controllers="[lambda]")
    assert run(*flags, f"--record.out={tmp_path / 'texts'}") == 0
    copied = save_questions(tmp_path / "questions")
    flags = arguments(place, "qwen3_vl", "none", controllers="[]", visual_tokens="6")
    flags = [flag for flag in flags if not flag.startswith("--data")] + [f"--data.dataset={copied}"]
    assert run(*flags, f"--record.out={tmp_path / 'out'}") == 0
    assert read_run(tmp_path / "out")["config"]["visual_tokens"] == 6
    (copied / "0.png").write_bytes((copied / "3.png").read_bytes())
    assert run(*flags, f"--record.out={tmp_path / 'out'}") == 2


@pytest.mark.parametrize(
    ("target", "dataset", "model", "complaint"),
    [
        ("text", "questions", {}, "prompt 'two' has pictures, which this target does not see"),
        ("text", "texts.jsonl", {"visual_tokens": "9"}, "sees no pictures; leave it out"),
        ("llava", "questions", {"visual_tokens": "20"}, "32 visual tokens, allowed are 20"),
        ("llava", "questions", {"visual_tokens": "0"}, "visual tokens 0: allowed: 1 or more"),
        ("llava", "nothing.jsonl", {}, "no such dataset or file"),
    ],
)
def test_refusals(place: Path, tmp_path: Path, capfd, target, dataset, model, complaint) -> None:
    """In one line, before anything is measured; the folder is not left behind."""
    out = tmp_path / "out"
    flags = [flag for flag in arguments(place, target, "prompt-lookup", dataset, **model) if "latency" not in flag]
    assert run(*flags, f"--record.out={out}") == 2
    error = capfd.readouterr().err.strip().splitlines()
    assert complaint in error[-1]
    assert not any("calibration" in line for line in error)
    assert not out.exists()


# --- recordings ------------------------------------------------------------------------------------------------------


def recorded(place: Path, out: Path, name: str, drafter: str, dataset: str = "questions", *flags: str) -> int:
    """Exit status of `real.probe` on the questions."""
    options = [f"--target={place / name}", f"--drafter={drafter}", f"--dataset={place / dataset}", f"--out={out}"]
    options += ["--requests=2", f"--max-new-tokens={NEW}", "--max-draft-len=4", "--latency-repeats=0", "--device=cpu"]
    with pytest.raises(SystemExit) as leaving:
        run_cli(probe.main, [*options, *flags])
    return int(leaving.value.code or 0)


@pytest.mark.parametrize("name", CLASSES)
def test_arm_traces_are_what_live_drafts_do(place: Path, tmp_path: Path, name: str) -> None:
    """Of prompts with pictures; the whole target is accepted everywhere, which it is at its own positions only."""
    assert recorded(place, tmp_path / "arms.parquet", name, f"self:arms={place / 'arms.json'},length=3") == 0
    meta, chunk = read_trace(tmp_path / "arms.parquet")
    assert (meta.kind, meta.mismatches, meta.exact) == ("arm", 0, True)
    left = np.concatenate([n - 1 - np.arange(n) for n in np.bincount(chunk.request)])
    assert chunk.arm_accept_len[:, -1].tolist() == np.minimum(3, left).tolist()
    assert chunk.arm_accept_len[:, :-1].min() < 3


# --- pruned visual tokens --------------------------------------------------------------------------------------------

PRUNED = {
    "qwen2_5_vl": "self:prune=0,0.5,0.9,length=3",
    "qwen3_vl": "self:prune=0.3,0.7,0.9,choice=attention,queries=similar,nested=1,skip=m1,length=3",
    "llava": "self:prune=0,0.5,1,choice=random,tree=published,length=3",
}


@pytest.mark.parametrize("name", CLASSES)
def test_pruned_drafts_change_no_output_and_leave_the_targets_cache(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """After every round the cache is that of a fresh pass over pictures and text (`LooksAtCache`)."""
    monkeypatch.setattr("real.session.Target", LooksAtCache)
    chosen = "[sp2ec,ucbspec,klucb-unimodal,arm:index=2]"
    out = tmp_path / "out"
    flags = [*arguments(place, name, PRUNED[name], controllers=chosen), "--data.requests=2", f"--record.out={out}"]
    assert run(*flags) == 0
    for answers in outputs(out).values():
        assert len(answers) == 5
        assert all(output == answers["plain"] for output in answers.values())
    _, columns = read_round_log(out / "rounds.parquet")
    assert set(columns["arm"].tolist()) >= {0, 1, 2}


@pytest.mark.parametrize("name", CLASSES)
def test_live_rounds_are_the_replay_of_the_arm_trace(place: Path, tmp_path: Path, name: str) -> None:
    spelled = PRUNED[name].replace(",tree=published", "")
    assert recorded(place, tmp_path / "arms.parquet", name, spelled) == 0
    meta, chunk = read_trace(tmp_path / "arms.parquet")
    assert meta.arms is not None
    rates = spelled.partition("prune=")[2].split(",")[:3]
    more = "+skip=m1" if "skip" in spelled else ""
    assert [arm["name"] for arm in meta.arms] == [f"prune={rate}{more}" for rate in reversed(rates)]
    assert (chunk.arm_draft_s > 0).all()
    session = open_session(str(place / name), spelled, device="cpu", max_draft_len=4)
    prompts = {prompt.id: prompt for prompt in load_prompts(str(place / "questions"))}
    chosen = [prompt_for(session.loaded, prompts[id]) for id in meta.extra["prompt_ids"]]
    for arm in range(3):
        live = []
        for number, prompt in enumerate(chosen):
            online = OnlineController(session.controllers([f"arm:index={arm}"], ANY_LATENCY)[0], compiled=False)
            settings = Settings(max_new_tokens=NEW, stop_ids=session.loaded.stop_ids)
            found = decode(session.target, session.drafter, online, prompt, settings, clock=FixedClock())
            live += [(number, row.pos, row.accepted_len, row.emitted_len) for row in found.rounds]
        [log] = replay(meta, [chunk], ANY_LATENCY, [f"arm:index={2 - arm}"], keep_rounds=True, compiled=False).rounds
        columns = ("request", "pos", "accepted_len", "emitted_len")
        assert live == [tuple(int(log[key][n]) for key in columns) for n in range(len(log["pos"]))]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("prune=2", "prune is '2'; allowed: a number from 0 to 1"),
        ("prune=0.9,0.5", "allowed: ascending, each 0..1"),
        ("prune=0.5,choice=best", "choice 'best'; allowed: two-stage"),
        ("prune=0.5,choice=uniform,share=0.4", "share has no say in choice=uniform"),
        ("prune=0.5,choice=attention,attended=0.4", "attended has no say in choice=attention"),
        ("prune=0.5,share=0.4,attended=0.1", "give one of them"),
        ("prune=0.5,queries=some", "queries is 'some'; allowed: all, similar"),
        ("prune=0.5,nested=2", "nested is '2'; allowed: 0 or 1"),
        ("skip=1,nested=1", "nested belongs to prune=..."),
        ("prune=0.5,build=cossim", "name its arms in one way"),
        ("prune=0.5,skip=1,lengths=1,2", "lengths belongs to skip=..., a single arm"),
    ],
)
def test_bad_options_of_pruning_are_refused(place: Path, options: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_session(str(place / "llava"), f"self:{options}", device="cpu")
    assert complaint in str(refused.value)


def test_pruning_needs_a_target_with_pictures_and_other_commands_a_text_target(place: Path, tmp_path: Path) -> None:
    flags = arguments(place, "text", "self:prune=0.5", "texts.jsonl")
    assert run(*flags, f"--record.out={tmp_path / 'out'}") == 2
    assert recorded(place, tmp_path / "one.parquet", "llava", "self:prune=0.5,length=3") == 2
    with pytest.raises(ConfigError, match="is a vision-language model, which this does not work with"):
        load_text_target(str(place / "llava"), device="cpu")


def test_attention_is_told_prompt_by_prompt(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [f"--target={place / 'llava'}", f"--dataset={place / 'questions'}", "--requests=4", "--device=cpu"]
    with pytest.raises(SystemExit) as leaving:
        run_cli(attention.main, command)
    assert not leaving.value.code
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["prompt"] for line in told] == ["two", "line-3", "7"]
    for line in told:
        assert line["visual_tokens"] % 16 == 0
        assert 1 <= line["tokens_for_share"] <= 0.4 * line["visual_tokens"] + 1
        assert 0 < line["top_0.01"] < line["top_0.1"] < line["top_0.5"] < 1
        assert line["top_0.5"] >= 0.5
    with pytest.raises(SystemExit) as leaving:
        run_cli(attention.main, [f"--target={place / 'text'}", *command[1:]])
    assert leaving.value.code == 2


def test_differences_behind_pictures_are_explained(place: Path) -> None:
    """By passes that see the pictures: the plain output's token is the likeliest there, in wider precision too."""
    loaded = load_target(str(place / "qwen2_5_vl"), device="cpu")
    prompt = prompt_for(loaded, load_prompts(str(place / "questions"))[0])
    plain = decode_plain(loaded.model, prompt, NEW, ())
    other = [*plain[:4], plain[4] + 1, *plain[5:]]
    found = explain(loaded.model, exact_twin(loaded.model), prompt, plain, other)
    assert found is not None
    assert (found.place, found.near_tie) == (4, False)
    assert found.gap == pytest.approx(found.exact_gap, abs=1e-3)
    assert found.gap > 0
    assert next(loaded.vision.whole.parameters()).dtype == torch.float32  # the twin is another model
