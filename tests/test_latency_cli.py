"""`python -m specsim.latency`: exit statuses, messages, and that nothing is written on error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specsim.errors import ConfigError, run_cli
from specsim.latency import load_latency
from specsim.latency.cli import main
from specsim.latency.recipes import RECIPES

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
LENGTHS = (1, 2, 4, 8, 16, 32)


def status(*args: object) -> int:
    with pytest.raises(SystemExit) as leave:
        run_cli(main, [str(arg) for arg in args], prog_name="python -m specsim.latency")
    return int(leave.value.code or 0)


def points_file(folder: Path, text: str | None = None) -> Path:
    path = folder / "points.csv"
    rows = [f"{s},{20 + 0.3 * s + 0.01 * repeat}" for repeat in range(3) for s in LENGTHS]
    path.write_text("\n".join(["s,time_ms", *rows]) + "\n" if text is None else text)
    return path


def test_fit_writes_a_model_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.json"
    costs = ("--draft-pass-s", 0.001, "--draft-token-s", 0.0001, "--overhead-s", 0.0002)
    told = ("--device", "toy", "--dtype", "bf16", "--target", "tiny", "--notes", "none")
    assert status("fit", points_file(tmp_path), "--out", out, *costs, *told) == 0
    model = load_latency(str(out))
    assert model.verify_s(11) == pytest.approx(0.02331, rel=1e-6)
    assert (model.draft_pass_s, model.draft_token_s, model.overhead_s) == (0.001, 0.0001, 0.0002)
    assert {key: model.provenance[key] for key in ("device", "dtype", "target", "notes")} == {
        "device": "toy",
        "dtype": "bf16",
        "target": "tiny",
        "notes": "none",
    }
    assert model.provenance["created"].endswith("Z")
    text = capsys.readouterr()
    assert "affine" in text.out
    assert "<- chosen" in text.out
    assert "95 % interval" in text.out
    assert f"written: {out}" in text.out
    assert text.err == ""
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.json", "points.csv"]


def test_fit_as_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("fit", points_file(tmp_path), "--json") == 0
    text = capsys.readouterr()
    report = json.loads(text.out)
    assert report["schema"] == "specsim.latency_fit/1"
    assert report["model"]["schema"] == "specsim.latency/1"
    assert report["form"] == "affine"
    assert report["c_ci95_s"][0] <= report["line"]["c_s"] <= report["c_ci95_s"][1]
    assert any("drafting costs nothing" in warning for warning in report["warnings"])


def test_units_and_context_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for unit, factor in (("time_s", 1e-3), ("time_ms", 1.0), ("time_us", 1e3)):
        rows = [f"{s},{(20 + 0.3 * s + 0.001 * ctx) * factor},{ctx},x" for s in LENGTHS for ctx in (0, 1000)]
        path = points_file(tmp_path, "\n".join([f"s,{unit},ctx_len,comment", *rows]) + "\n")
        assert status("fit", path, "--json") == 0
        model = json.loads(capsys.readouterr().out)["model"]
        assert model["verify"]["ctx_s"] == pytest.approx(1e-6)
        assert model["verify"]["c_s"] == pytest.approx(3e-4)
    assert status("fit", path) == 0
    assert "context: 1000 ns per context token" in capsys.readouterr().out


FALLING = "s,time_s\n" + "".join(f"{s},{0.03 - 0.0001 * s}\n" for s in LENGTHS)
BAD_POINTS = [
    ("", ["is empty", "columns s and time_s"]),
    ("t,time_s\n1,1\n", ["column 's': is missing"]),
    ("s,times\n1,1\n", ["column 'time_s': is missing", "Rename 'times'?"]),
    ("s,time_s,time_ms\n1,1,1\n", ["has time_s and time_ms", "one column of times"]),
    ("s,s,time_s\n1,1,1\n", ["column 's': stands twice"]),
    ("s,time_s\n1,1\n2,nan\n", ["row 1 (line 3), column 'time_s': 'nan'", "a finite number > 0"]),
    ("s,time_s\n1,1\n\n2,inf\n", ["row 1 (line 4), column 'time_s': 'inf'"]),
    ("s,time_s\n1,0\n", ["row 0 (line 2), column 'time_s': '0'", "Remove or repair"]),
    ("s,time_s\n1,-0.1\n", ["column 'time_s': '-0.1'"]),
    ("s,time_s\n1,\n", ["column 'time_s': ''"]),
    ("s,time_s\n0,1\n", ["column 's': '0'", "a whole number >= 1"]),
    ("s,time_s\n1.5,1\n", ["column 's': '1.5'"]),
    ("s,time_s\nx,1\n", ["column 's': 'x'"]),
    ("s,time_s\n1,1,1\n", ["row 0 (line 2): 3 cells", "2 cells"]),
    ("s,time_s,ctx_len\n1,1,-5\n", ["column 'ctx_len': '-5'", ">= 0"]),
    ("s,time_s\n1,1\n2,1.1\n", ["2 distinct lengths (1, 2)", "at least 3"]),
    ("s,time_s\n", ["0 distinct lengths (none)"]),
    (FALLING, ["the slope is -100 us", "allowed: c_s >= 0", "interleave"]),
]


@pytest.mark.parametrize(("text", "told"), BAD_POINTS, ids=[told[0][:30] for _, told in BAD_POINTS])
def test_bad_points_exit_2_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: list[str]
) -> None:
    out = tmp_path / "model.json"
    path = points_file(tmp_path, text)
    assert status("fit", path, "--out", out) == 2
    error = capsys.readouterr()
    assert error.out == ""
    assert str(path) in error.err
    for part in (*told, "allowed: "):
        assert part in error.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["points.csv"]


def test_other_errors_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = points_file(tmp_path)
    out = tmp_path / "out.json"
    calls: list[tuple[tuple[object, ...], str]] = [
        (("fit", tmp_path / "missing.csv", "--out", out), "cannot be read"),
        (("fit", tmp_path, "--out", out), "cannot be read"),
        (("fit", good, "--out", tmp_path / "no" / "x.json"), "does not exist; create it first"),
        (("fit", good, "--out", out, "--draft-pass-s", -1), "draft.pass_s is -1"),
        (("fit", good, "--out", out, "--overhead-s", "nan"), "overhead_s is nan"),
        (("fit", good, "--out", out, "--form", "spline"), "'spline' is not one of"),
        (("fit", good, "--out", out, "--max-s", 2), "2 distinct lengths"),
        (("points", "vidur", good, good, "--out", out), "vidur got 2 files"),
        (("points", "vidur", good, "--out", out), "time_stats.emb.median"),
        (("points", "llmservingsim", good, "--like", "x", "--out", out), "are for vidur tables"),
        (("points", "llmservingsim", good, "--out", out), "column 'layer': is missing"),
        (("presets", "--rebuild", tmp_path), "belong together"),
    ]
    for args, told in calls:
        assert status(*args) == 2, args
        assert told in capsys.readouterr().err
    binary = tmp_path / "points.csv"
    binary.write_bytes(b"s,time_s\n1,\xff\n")
    assert status("fit", binary, "--out", out) == 2
    assert "is not UTF-8" in capsys.readouterr().err
    assert not out.exists()


def test_staircase_warning_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{s},{0.02 if s <= 16 else 0.03}" for s in range(1, 33)]
    assert status("fit", points_file(tmp_path, "\n".join(["s,time_s", *rows]) + "\n")) == 0
    text = capsys.readouterr()
    assert "warning: the points are a staircase" in text.err
    assert "not written: give --out FILE" in text.out


def test_presets_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("presets") == 0
    table = capsys.readouterr().out
    for name in RECIPES:
        assert name in table
    assert all("…" not in line for line in table.splitlines())
    assert "Llama-2-7B (derived)" in table
    assert status("presets", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["presets"]
    assert [entry["name"] for entry in listed] == list(RECIPES)
    for entry in listed:
        assert entry["c_over_b"] == entry["c_s"] / entry["b_s"]
        assert {"device", "target", "valid_s", "heldout_rel_err", "slope_significant", "source", "license"} <= set(
            entry
        )


def test_unknown_preset_suggests_one() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean preset:h100-llama-2-7b\?"):
        load_latency("preset:h100_llama_2_7b")
    with pytest.raises(ConfigError, match=r"Did you mean preset:h100-llama-2-7b\?"):
        load_latency("preset:h100")
    with pytest.raises(ConfigError, match=r"no such preset; allowed: a100-llama-2-7b, "):
        load_latency("preset:")


def test_preset_with_own_costs() -> None:
    model = load_latency("preset:a100-phi-2:draft_pass_s=0.001, overhead_s=2e-4")
    assert (model.draft_pass_s, model.draft_token_s, model.overhead_s) == (0.001, 0.0, 2e-4)
    assert model.verify == load_latency("preset:a100-phi-2").verify
    for costs, told in (
        ("draft_s=1", "Did you mean 'draft_pass_s'"),
        ("overhead_s", "key=value"),
        ("overhead_s=x", "'x'"),
        ("overhead_s=-1", ">= 0"),
        ("overhead_s=1,overhead_s=2", "each key once"),
        ("overhead_s=nan", "finite"),
    ):
        with pytest.raises(ConfigError) as error:
            load_latency(f"preset:a100-phi-2:{costs}")
        assert str(error.value).startswith(f"preset:a100-phi-2:{costs}: ")
        assert told in str(error.value)


def test_rebuild_keeps_what_it_cannot_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "presets.json"
    assert status("presets", "--rebuild", tmp_path, "--out", out) == 0
    assert capsys.readouterr().err.count("kept as it is") == len(RECIPES)
    assert set(json.loads(out.read_text())["presets"]) == set(RECIPES)


@pytest.mark.skipif(not DATA.exists(), reason="public tables not here")
def test_documented_commands_give_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "rtx4090-llama-3.1-8b"
    for command in RECIPES[name].commands(name, str(DATA)):
        assert status(*command.split()[3:]) == 0
    model, preset = load_latency(f"{name}.json"), load_latency(f"preset:{name}")
    assert model.verify_table(64) == pytest.approx(preset.verify_table(64), rel=1e-9)


def test_module_entry_point(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "specsim.latency"]
    done = subprocess.run([*command, "presets", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "specsim.latency_preset_list/1"
    failed = subprocess.run(
        [*command, "fit", str(points_file(tmp_path, FALLING))], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 2
    assert failed.stderr.startswith("error: ")
    assert "Traceback" not in failed.stderr
