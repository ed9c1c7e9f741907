"""Mistakes in an experiment's YAML file: each is refused in one line that names its place."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.paper import __main__ as command
from real.paper import cells
from real.paper.reading import parse_config, read_config
from specsim.errors import ConfigError, run_cli
from tests.real_paper import GOOD

METHOD = ("pairs", 0, "methods", 0)
LONG = "x" * 300
NAN = float("nan")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((), [], r"the file is \[\]; allowed: a mapping with experiment"),
        ((), None, "the file is None"),
        (("experiment",), "table9", "experiment is 'table9'; allowed: table1, table2"),
        (("experiment",), ["table1"], "experiment is"),
        (("tempratures",), [0], "the file: key 'tempratures'; did you mean 'temperatures'"),
        ((7,), [0], "the file: key 7; allowed: experiment"),
        *(
            (("temperatures",), value, rf"temperatures is {re.escape(repr(value))}; allowed: a list")
            for value in (0, None, "0", [], {}, NAN)
        ),
        *(
            (("temperatures",), [0, value], r"temperatures\[1\] is .*; allowed: 0, 1")
            for value in (0.5, 1.0, -1, 2, "1", None, NAN, True, [1])
        ),
        (("temperatures",), [1, 0, 1], r"temperatures\[2\]: 1 is there already"),
        *((("datasets",), value, r"datasets is .*at least one entry") for value in ({}, [], None, "humaneval", 3)),
        (("datasets",), {1: {"data": "humaneval", "requests": 3}}, "datasets: a name is 1; allowed: text"),
        (("datasets",), {"": {"data": "humaneval", "requests": 3}}, "datasets: a name is ''; allowed: text"),
        (("datasets", "A"), "humaneval", r"datasets\.A is 'humaneval'; allowed: a mapping with data"),
        (("datasets", "A"), {"data": "humaneval"}, r"datasets\.A: requests is missing"),
        (("datasets", "A", "request"), 3, r"datasets\.A: key 'request'; did you mean 'requests'"),
        *(
            (("datasets", "A", "data"), value, r"datasets\.A\.data is ")
            for value in ("", None, 3, ["humaneval"], "a\nb")
        ),
        *((("datasets", "A", "requests"), value, r"datasets\.A\.requests is ") for value in (0, -1, True, 1.5, "3")),
        (("datasets", "A", "context"), 1, r"datasets\.A\.context is 1; allowed: a whole number, 2 or more"),
        (("datasets", "A", "visual_tokens"), 0, r"datasets\.A\.visual_tokens is 0; allowed: a whole number, 1 or more"),
        (
            ("datasets", "A"),
            {"data": "humaneval", "requests": 3, "context": 9, "visual_tokens": 9},
            r"datasets\.A: context lengthens texts, visual_tokens bounds pictures; give one of them",
        ),
        *((("pairs",), value, "pairs is .*allowed: a list") for value in ({}, [], None, "lab")),
        (("pairs",), ["lab"], r"pairs\[0\] is 'lab'; allowed: a mapping with target"),
        *((("pairs", 0, "target"), value, r"pairs\[0\]\.target is ") for value in ("", 3, None, ["t"], "\x00")),
        (("pairs", 0, "datasets"), ["B"], r"pairs\[0\]\.datasets\[0\] is 'B'; allowed: A"),
        *((("pairs", 0, "datasets"), value, r"pairs\[0\]\.datasets is ") for value in ([], "A", None, {"A": 1})),
        (("pairs", 0, "datasets"), ["A", "A"], r"pairs\[0\]\.datasets\[1\]: 'A' is there already"),
        *(
            (("pairs", 0, "thinking"), value, r"pairs\[0\]\.thinking is .*allowed: on, off")
            for value in ("often", 1, [])
        ),
        *((("pairs", 0, "methods"), value, r"pairs\[0\]\.methods is ") for value in ([], None, "M", {"M": 1})),
        (METHOD, ["M"], r"pairs\[0\]\.methods\[0\] is \['M'\]; allowed: a mapping with name"),
        ((*METHOD, "drafters"), "x", r"pairs\[0\]\.methods\[0\]: key 'drafters'; did you mean 'drafter'"),
        *(((*METHOD, "name"), value, r"pairs\[0\]\.methods\[0\]\.name is ") for value in ("", 3, None, True, "\ud800")),
        ((*METHOD, "name"), LONG, r"pairs\[0\]\.methods\[0\]\.name: .*more than 200 bytes"),
        *(((*METHOD, "drafter"), value, r"methods\[0\]\.drafter is ") for value in ("", 3, None, {"path": "x"})),
        ((*METHOD, "drafter"), "prompt-lookpu", r"methods\[0\]\.drafter: .*did you mean 'prompt-lookup'"),
        ((*METHOD, "drafter"), "dflash:block=3", r"methods\[0\]\.drafter: .*name its path"),
        *(
            ((*METHOD, "max_draft_len"), value, r"methods\[0\]\.max_draft_len is .*allowed: a whole number, 2 to")
            for value in (1, -1, True, 8.0, "8", None, 10**9)
        ),
        *(
            ((*METHOD, "static"), value, r"methods\[0\]\.static is .*a range such as 3\.\.20")
            for value in ("3-5", "", None, 3, {"3": 5}, "1.." + "9" * 5000)
        ),
        *(
            ((*METHOD, "static"), value, rf"methods\[0\]\.static is '{value}'; allowed: from 1 on, upwards, to .* 8")
            for value in ("1..100000000", "5..3", "0..3", "3..9")
        ),
        *(
            ((*METHOD, "static"), [2, value], r"methods\[0\]\.static\[1\] is .*allowed: a whole number, 1 to 8")
            for value in (0, -1, True, 1.5, "3", 9, None)
        ),
        ((*METHOD, "static"), [3, 4, 3], r"methods\[0\]\.static\[2\]: 3 is there already"),
        *(
            ((*METHOD, "arms"), value, r"methods\[0\]\.arms is .*a range such as 3\.\.20")
            for value in ("0-5", "all", None, 3)
        ),
        *(
            ((*METHOD, "arms"), value, rf"methods\[0\]\.arms is '{value}'; allowed: from 0 on, upwards, to 1023")
            for value in ("5..3", "0..1024")
        ),
        *(
            ((*METHOD, "arms"), [0, value], r"methods\[0\]\.arms\[1\] is .*allowed: a whole number, 0 to 1023")
            for value in (-1, True, 1.5, "3", 1024, None)
        ),
        ((*METHOD, "arms"), [3, 0, 3], r"methods\[0\]\.arms\[2\]: 3 is there already"),
        *(((*METHOD, "predict"), value, r"methods\[0\]\.predict is .*allowed: on, off") for value in (1, "no", None)),
        ((*METHOD, "controllers"), {"a": "sp2ec:alpha=1"}, r"controllers\.a: .*'alpha'"),
        ((*METHOD, "controllers"), {"a": "ucbspec:variant=both"}, r"controllers\.a: .*sp2ec-repo or paper"),
        (
            (*METHOD, "controllers"),
            {"a": "sp2ec", "b": "sp2ec:beta=0.3"},
            r"controllers\.b: 'sp2ec:beta=0\.3' is the controller of 'a'",
        ),
        *(((*METHOD, "controllers"), value, r"methods\[0\]\.controllers is ") for value in (None, [], "g4", 3)),
        ((*METHOD, "controllers"), {1: "g4"}, r"methods\[0\]\.controllers: a name is 1"),
        ((*METHOD, "controllers"), {"a": None}, r"methods\[0\]\.controllers\.a is None; allowed: text"),
        ((*METHOD, "controllers"), {"static": "g4"}, r"controllers\.static: 'static' is the label of the swept"),
        ((*METHOD, "controllers"), {"a": "g4", "b": "g4"}, r"controllers\.b: 'g4' is the controller of 'a'"),
        (
            (*METHOD, "controllers"),
            {"a": "libraspec:alpha=2", "b": "libraspec:alpha=2.0"},
            r"controllers\.b: 'libraspec:alpha=2\.0' is the controller of 'a'",
        ),
        ((*METHOD, "controllers"), {"a": "libraspek"}, r"controllers\.a: .*did you mean 'libraspec'"),
        ((*METHOD, "controllers"), {"a": "libraspec:alpha=-1"}, r"controllers\.a: .*alpha=-1: allowed"),
        ((*METHOD, "controllers"), {"a": "libraspec:alfa=1"}, r"controllers\.a: .*did you mean 'alpha'"),
        (
            METHOD,
            GOOD["pairs"][0]["methods"][0] | {"static": [], "controllers": {}},
            r"methods\[0\]: nothing to decode",
        ),
        (
            ("pairs", 0, "methods"),
            GOOD["pairs"][0]["methods"] * 2,
            r"pairs\[0\]\.methods\[1\]: measures the same as pairs\[0\]\.methods\[0\] on 'A'",
        ),
        (("pairs",), GOOD["pairs"] * 2, r"pairs\[1\]\.methods\[0\]: measures the same as pairs\[0\]\.methods\[0\]"),
        ((*METHOD, "draft_sampling"), "beam", r"draft_sampling is 'beam'; allowed: greedy, sample"),
        ((*METHOD, "draft_sampling"), None, r"draft_sampling is None; allowed: greedy, sample"),
        ((*METHOD, "draft_sampling"), "sample", r"temperatures is \[0\]; add 1 to it"),
        *(
            ((key,), value, rf"{key} is {re.escape(repr(value))}; allowed: a whole number, ")
            for key, values in {
                "repeats": (0, -1, 1, True, 2.5, "3", None, 10**9),
                "threads": (-1, True, 1.5, "1", None, 10**9),
                "max_new_tokens": (0, -1, True, 1.5, "9", None, NAN),
                "seed": (-1, True, 1.5, "0", None, 2**63),
            }.items()
            for value in values
        ),
        (("dtype",), "float64", "dtype is 'float64'; allowed: float32"),
        (("dtype",), [], "dtype is"),
        (("device",), None, "device is None; allowed: auto"),
    ],
)
def test_mistakes_are_refused_in_words(place: tuple[Any, ...], value: Any, message: str) -> None:
    document: Any = copy.deepcopy(GOOD)
    if place:
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
    else:
        document = value
    with pytest.raises(ConfigError, match=message) as found:
        parse_config(document)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500


@pytest.mark.parametrize("key", ["experiment", "datasets", "pairs"])
def test_what_is_missing_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"the file: {key} is missing"):
        parse_config({name: value for name, value in GOOD.items() if name != key})


def test_a_thinking_mode_is_said_once() -> None:
    document = copy.deepcopy(GOOD)
    document["pairs"][0]["thinking"] = True
    assert parse_config(document).cells()[0].prompts().data == "humaneval:thinking=on"
    document["datasets"]["A"]["data"] = "humaneval:thinking=off"
    with pytest.raises(ConfigError, match=r"pairs\[0\]\.thinking: datasets\.A\.data says 'humaneval:thinking=off'"):
        parse_config(document)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is None"),
        (b"# nothing\n", "the file is None"),
        (b"pairs: [", r"is not YAML \(.*, line 1\)"),
        (b"a: 1\n\tb: 2", r"is not YAML \(.*, line 2\)"),
        (b"\xff\xfe\x00", r"is not UTF-8 text \(byte 0\)"),
        (b"a: \x00", "is not YAML"),
        (b"experiment: table1\nseed: 1\nseed: 2", r"key 'seed' is given twice, line 3"),
        (b"a: !!python/object/apply:os.system [x]", "is not YAML"),
        (b"a: 2001-99-99", "is not YAML"),
        (b"a: !!int ''", "is not YAML"),
        (b"a: !!timestamp x", "is not YAML"),
        (b"a: 1\n---\na: 2", "single document"),
        (b"a: " + b"[" * 5000, "is not YAML"),
        (b"a: " + b"9" * 5000, "is not YAML"),
        (b"a: 0x" + b"f" * 5000, "holds a whole number beyond 64 bits"),
        (b"#" * (1 << 18) + b"#", "has more than 262144 bytes"),
        (BOMB.encode(), "more than 10000 values, aliases included"),
        (b"&a [*a]", "more than 10000 values, aliases included"),
    ],
)
def test_a_file_that_says_nothing_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"--config .*c\.yaml: .*{message}") as found:
        read_config(file)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read \(No such file"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path)


def test_anchors_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    text = """
experiment: table1
datasets: {A: {data: humaneval, requests: 3}}
pairs:
  - target: t
    methods:
      - &first {name: M, drafter: prompt-lookup, max_draft_len: 8, static: 3..5}
      - {<<: *first, name: N}
"""
    file = tmp_path / "c.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    first, second = read_config(file).pairs[0].methods
    assert (first.name, second.name) == ("M", "N")
    assert first.static == second.static == (3, 4, 5)


def test_nothing_is_loaded_or_written_after_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cells, "load_target", lambda *_, **__: pytest.fail("loaded a model"))
    file = tmp_path / "c.yaml"
    mistakes = {
        r"pairs[0].methods[0].static is '1..100000000'": (METHOD, "static", "1..100000000"),
        "dataset 'humanevil': no such dataset": (("datasets", "A"), "data", "humanevil"),
        "the dataset has 164 prompts": (("datasets", "A"), "requests", 10**9),
    }
    for message, (place, key, value) in mistakes.items():
        document: Any = copy.deepcopy(GOOD)
        inner = document
        for step in place:
            inner = inner[step]
        inner[key] = value
        file.write_text(yaml.safe_dump(document))
        with pytest.raises(SystemExit) as left:
            run_cli(command.main, ["table1", f"--config={file}", f"--out={tmp_path / 'run'}"])
        error = capsys.readouterr().err
        assert left.value.code == 2
        assert message in error
        assert error.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
