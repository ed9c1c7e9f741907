"""Options of every drafter with a checkpoint, misspelt: refused in one line by every command, nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import calibrate, calibrate_cli, probe, validate  # noqa: E402
from real.drafters.choose import KEYS, parse_drafter  # noqa: E402
from real.drafters.dflash_load import save_dflash  # noqa: E402
from real.drafters.eagle3_load import save_eagle3  # noqa: E402
from real.drafters.options import fraction, whole  # noqa: E402
from real.generation import Speculative  # noqa: E402
from real.models import Loaded, load_target  # noqa: E402
from real.session import make_drafter  # noqa: E402
from specsim.errors import ConfigError, run_cli  # noqa: E402
from tests.dflash_tiny import tiny_dflash  # noqa: E402
from tests.real_eagle3 import random_head, tiny_config  # noqa: E402
from tests.real_runs import THIRD_PARTY_WARNINGS, run  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402
from tests.test_real_fastdllm_load import save_own  # noqa: E402

NO_WHOLE = ["", "x", "²", "٣", "1.5", "1_0", "+1", "-1", " 1", "1e3", "nan", "9" * 5000, "0"]
NO_FRACTION = ["x", "²", "nan", "inf", "-1", "2", "1.0001", "-0.1", "0_1", "٣"]
FOLDERS = {"dflash": "dflash", "ddtree": "dflash", "eagle3": "eagle3", "fastdllm": "fastdllm"}
BAD = [
    *(("dflash", "block", bad) for bad in (*NO_WHOLE[1:], "1", "4097", "1000000000")),
    *(("dflash", "pass_rule", bad) for bad in ("x", "keep_first")),
    *(("ddtree", "budget", bad) for bad in (*NO_WHOLE[1:], "1000000000")),
    *(("ddtree", "limit", bad) for bad in ("foo", "Nodes")),
    *(("eagle3", "tree", bad) for bad in (*NO_WHOLE[1:], "1000000000")),
    *(("eagle3", key, bad) for key in ("tree=9,depth", "tree=9,topk") for bad in (*NO_WHOLE[1:], "257")),
    *(("fastdllm", key, bad) for key in ("block", "small") for bad in (*NO_WHOLE[1:], "1000000000")),
    *(("fastdllm", "threshold", bad) for bad in NO_FRACTION),
    *(("fastdllm", "dual", bad) for bad in ("2", "yes", "True", "²")),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a drafter of every kind for it, and a prompt."""
    folder = tmp_path_factory.mktemp("options")
    save_tiny(folder / "tiny", layers=8)
    save_dflash(folder / "dflash", tiny_dflash(load_target(str(folder / "tiny"), device="cpu").model))
    save_eagle3(random_head(tiny_config()), folder / "eagle3")
    save_own(folder / "fastdllm")
    (folder / "prompts.jsonl").write_text(json.dumps({"prompt": "abcabcabd"}))
    return folder


@pytest.fixture(scope="module")
def loaded(place: Path) -> Loaded:
    return load_target(str(place / "tiny"), device="cpu")


def spelled(place: Path, name: str, more: str = "") -> str:
    if name not in FOLDERS:
        return f"{name}:{more}"
    return f"{name}:path={place / FOLDERS[name]}{more}"


def made(loaded: Loaded, text: str, **options: Any) -> Any:
    spec = parse_drafter(text, target="tiny", n_layers=8)
    return make_drafter(spec, loaded, **({"max_draft_len": 5} | options))


@pytest.mark.parametrize("name", FOLDERS)
def test_every_drafter_here_can_be_made(place: Path, loaded: Loaded, name: str) -> None:
    assert made(loaded, spelled(place, name)).max_draft_len > 0


@pytest.mark.parametrize(("name", "key", "bad"), BAD, ids=lambda value: str(value)[:12])
def test_bad_values_are_refused(place: Path, loaded: Loaded, name: str, key: str, bad: str) -> None:
    with pytest.raises(ConfigError) as found:
        made(loaded, spelled(place, name, f",{key}={bad}"))
    assert key.split(",")[-1] in str(found.value)
    assert "allowed: " in str(found.value)
    assert str(found.value).isprintable()


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("most", [0, -1, 10**9])
def test_drafts_of_impossible_lengths(place: Path, loaded: Loaded, name: str, most: int) -> None:
    with pytest.raises(ConfigError, match=f"max_draft_len {most}: allowed: 1"):
        made(loaded, spelled(place, name), max_draft_len=most)


@pytest.mark.parametrize("text", NO_WHOLE)
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ConfigError, match=r"d: k is .*; allowed: a whole number, 1\.\.9$"):
        whole("d", "k", text, high=9)
    assert whole("d", "k", "9", high=9) == 9


@pytest.mark.parametrize("text", NO_FRACTION)
def test_what_is_no_fraction(text: str) -> None:
    with pytest.raises(ConfigError, match=r"d: k is .*; allowed: a number from 0 to 1$"):
        fraction("d", "k", text)
    assert fraction("d", "k", "0.25") == 0.25


@pytest.mark.parametrize("bad", ["²", "٣", "9" * 5000, "-1", "1.5"])
@pytest.mark.parametrize(
    "text", ["layer-skip:skip={}", "layer-skip:keep={}", "early-exit:layers={}", "prompt-lookup:ngram={}"]
)
def test_numbers_of_the_other_drafters(text: str, bad: str) -> None:
    with pytest.raises(ConfigError):
        parse_drafter(text.format(bad), target="tiny", n_layers=8)


@pytest.mark.parametrize("name", sorted(KEYS))
@pytest.mark.parametrize("rest", ["x", "=", "=1", "path", "path=", "path=a,path=b", ",", "\0=1", "path=a,,=", "²=1"])
def test_pieces_that_are_no_options(name: str, rest: str) -> None:
    with pytest.raises(ConfigError) as found:
        parse_drafter(f"{name}:{rest}", target="tiny", n_layers=8)
    assert str(found.value).isprintable()


COMMANDS = {
    "calibrate": (calibrate_cli.main, ["--repeats", "2"]),
    "validate": (validate.main, ["--repeats", "2", "--controllers", "static:length=2"]),
    "probe": (probe.main, ["--latency-repeats", "0"]),
}
REFUSED = [
    *(("fastdllm", f",threshold={bad}") for bad in ("nan", "-1", "2")),
    *(("ddtree", more) for more in (",budget=0", ",budget=1000000000", ",limit=foo", ",budget=²")),
    *(("eagle3", more) for more in (",tree=9,depth=0", ",tree=0", ",tree=9,topk=1000", ",branches=3")),
    *(("dflash", more) for more in (",block=1000000000", ",block=²", "/nowhere", "\nline")),
    *(("self", more) for more in ("skip=a99", "skip=a1,stop=nan", "skip=a1,length=0", "arms=nowhere.json", "stop=0.5")),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("name", "more"), REFUSED)
def test_commands_refuse_in_one_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, more: str
) -> None:
    main, words = COMMANDS[command]
    out = tmp_path / ("t.parquet" if command == "probe" else "out")
    words = [*words, "--target", str(place / "tiny"), "--drafter", spelled(place, name, more), "--device", "cpu"]
    words += ["--dataset", str(place / "prompts.jsonl"), "--out", str(out)]
    if command != "calibrate":
        words += ["--requests", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "measure", lambda *_, **__: pytest.fail("measured"))
        with pytest.raises(SystemExit) as left:
            run_cli(main, words)
    assert left.value.code == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: ")
    assert "\n" not in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings(*THIRD_PARTY_WARNINGS)
@pytest.mark.parametrize(
    ("name", "more", "out"),
    [*((*refused, "out") for refused in REFUSED[::3]), (*REFUSED[0], "new/out"), (*REFUSED[0], None)],
)
def test_comparisons_refuse_in_one_line(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    more: str,
    out: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "measure", lambda *_, **__: pytest.fail("measured"))
    words = [f"--model.target={place / 'tiny'}", f"--model.drafter={spelled(place, name, more)}"]
    words += [f"--data.dataset={place / 'prompts.jsonl'}", "--trainer.accelerator=cpu", "--track.mode=disabled"]
    assert run("test", *words, *([] if out is None else [f"--record.out={out}"])) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: ")
    assert "\n" not in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "more"), REFUSED)
def test_generate_refuses_in_one_line(place: Path, loaded: Loaded, name: str, more: str) -> None:
    speculative = Speculative(
        drafter=spelled(place, name, more), controller="static:length=2", tokenizer=loaded.tokenizer
    )
    for _ in range(2):  # what was refused is not kept either
        with pytest.raises(ConfigError) as found:
            loaded.model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, custom_generate=speculative)
        assert str(found.value).isprintable()


@pytest.mark.parametrize("command", COMMANDS)
def test_seeds_beyond_those_of_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    main, words = COMMANDS[command]
    with pytest.raises(SystemExit) as left:
        run_cli(main, [*words, f"--seed={2**63}", f"--out={tmp_path / 'out'}"])
    assert left.value.code == 2
    assert f"{2**63} is not in the range 0<=x<={2**63 - 1}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
