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
from real.models import load_target  # noqa: E402
from real.record import decode_plain  # noqa: E402
from real.vision.load import prompt_for  # noqa: E402
from specsim.errors import run_cli  # noqa: E402
from specsim.trace import read_trace  # noqa: E402
from tests.real_runs import LATENCY, THIRD_PARTY_WARNINGS, run  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402
from tests.real_vision_files import save_questions, save_vision  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(warning) for warning in THIRD_PARTY_WARNINGS]
CLASSES = ("qwen2_5_vl", "qwen3_vl", "llava")
NEW = 10


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


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("drafter", "controllers"),
    [("prompt-lookup", "[static:length=3,libraspec]"), ("self:arms=ARMS,length=3", "[sp2ec,arm:index=1]")],
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
