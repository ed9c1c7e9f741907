"""Latency forms, their JSON, and every refusal."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.errors import ConfigError
from specsim.latency import Affine, Hinge, LatencyModel, Step, Table, load_latency, save_latency

AFFINE = {"form": "affine", "c_s": 0.001, "b_s": 0.02}
STEP = {"form": "step", "edges": [4, 8], "times_s": [1.0, 2.0]}
TABLE = {"form": "table", "s": [2, 4, 8], "times_s": [1.0, 2.0, 6.0]}
HINGE = {"form": "hinge", "c_s": 1.0, "b_s": 2.0, "knee": 3.0, "c2_s": 10.0}


def document(verify: object = AFFINE, **top: object) -> dict[str, object]:
    return {"schema": "specsim.latency/1", "verify": verify, "draft": {"pass_s": 0.005, "token_s": 0.001}, **top}


def model_of(verify: object) -> LatencyModel:
    return LatencyModel.from_dict(document(verify), where="test")


@pytest.mark.parametrize(
    ("verify", "s", "expected"),
    [
        ({"form": "affine", "c_s": 1.0, "b_s": 2.0}, [1, 2, 10], [3.0, 4.0, 12.0]),
        (HINGE, [1, 3, 4, 5], [3.0, 5.0, 16.0, 27.0]),
        (STEP, [1, 4, 5, 8, 9, 12], [1.0, 1.0, 2.0, 2.0, 2.25, 3.0]),
        ({"form": "step", "edges": [4], "times_s": [1.5]}, [1, 4, 9], [1.5, 1.5, 1.5]),
        (TABLE, [1, 2, 3, 4, 6, 8, 10], [0.5, 1.0, 1.5, 2.0, 4.0, 6.0, 8.0]),
    ],
)
def test_values_of_every_form(verify: dict[str, object], s: list[int], expected: list[float]) -> None:
    model = model_of(verify)
    np.testing.assert_allclose(model.verify_s(s), expected, rtol=1e-15)
    table = model.verify_table(max(s))
    assert table.dtype == np.float64
    assert table[0] == 0.0
    np.testing.assert_array_equal(table[s], model.verify_s(s))


def test_table_below_its_first_point_never_goes_under_zero() -> None:
    form = Table(s=(1.0, 4.0, 5.0), times_s=(0.5, 3.5, 4.0))
    np.testing.assert_array_equal(form.at(np.array([0.25, 0.0])), [0.0, 0.0])


def test_scalars_arrays_and_context() -> None:
    model = LatencyModel.affine(c_s=0.5, b_s=1.0, ctx_s=0.25, draft_pass_s=2.0, draft_token_s=0.5, overhead_s=0.125)
    assert isinstance(model.verify_s(2), np.float64)
    assert model.verify_s(2, 4) == 3.0
    np.testing.assert_array_equal(model.verify_s([1, 2], [0, 4]), [1.5, 3.0])
    assert isinstance(model.draft_s(3, 4), np.float64)
    assert model.draft_s(3, 4) == 8.0
    np.testing.assert_array_equal(model.draft_s([0, 1], [0, 2]), [0.0, 3.0])
    np.testing.assert_array_equal(model.verify_table(2), [0.0, 1.5, 2.0])
    np.testing.assert_array_equal(model.verify_table(0), [0.0])
    assert (model.ctx_s, model.draft_pass_s, model.draft_token_s, model.overhead_s) == (0.25, 2.0, 0.5, 0.125)
    with pytest.raises(ConfigError, match="max_s is -1"):
        model.verify_table(-1)


def test_costs_left_out_are_zero() -> None:
    model = LatencyModel.from_dict({"schema": "specsim.latency/1", "verify": AFFINE}, where="test")
    assert (model.ctx_s, model.draft_pass_s, model.draft_token_s, model.overhead_s) == (0.0, 0.0, 0.0, 0.0)


times = st.floats(0.0, 1e6, allow_subnormal=False)


@st.composite
def stairs(draw: st.DrawFn, min_len: int) -> tuple[list[float], list[float]]:
    gaps = draw(st.lists(st.integers(1, 50), min_size=min_len, max_size=8))
    rises = draw(st.lists(st.floats(0.0, 1.0), min_size=len(gaps), max_size=len(gaps)))
    s = np.cumsum(gaps).tolist()
    # a start above what the first slope could take away keeps verify(1) > 0
    return s, (60.0 + np.cumsum(rises)).tolist()


@st.composite
def models(draw: st.DrawFn) -> LatencyModel:
    kind = draw(st.sampled_from(["affine", "hinge", "step", "table"]))
    if kind == "affine":
        verify = Affine(c_s=draw(times), b_s=draw(st.floats(1e-9, 1e6)))
    elif kind == "hinge":
        verify = Hinge(
            c_s=draw(times), b_s=draw(st.floats(1e-9, 1e6)), knee=draw(st.floats(-10, 1e4)), c2_s=draw(times)
        )
    elif kind == "step":
        edges, times_s = draw(stairs(1))
        verify = Step(edges=tuple(edges), times_s=tuple(times_s))
    else:
        s, times_s = draw(stairs(2))
        verify = Table(s=tuple(s), times_s=tuple(times_s))
    return LatencyModel(
        verify=verify,
        ctx_s=draw(times),
        draft_pass_s=draw(times),
        draft_token_s=draw(times),
        overhead_s=draw(times),
        provenance=draw(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)),
    )


@settings(deadline=None)
@given(model=models())
def test_round_trip_and_monotone(model: LatencyModel) -> None:
    text = json.dumps(model.to_dict(), allow_nan=False)
    again = LatencyModel.from_dict(json.loads(text), where="test")
    assert again == model
    table = model.verify_table(200)
    assert np.isfinite(table).all()
    assert table[1] > 0.0
    assert (np.diff(table[1:]) >= -1e-12 * table[1:-1]).all()


def test_models_are_hashable_and_frozen() -> None:
    model = LatencyModel.affine(c_s=1.0, b_s=1.0)
    assert hash(model) == hash(LatencyModel.affine(c_s=1, b_s=1))
    with pytest.raises(AttributeError):
        model.ctx_s = 1.0  # type: ignore[misc]


REFUSALS = [
    ({"verify": AFFINE}, "schema is None", "'specsim.latency/1'"),
    (document() | {"schema": "specsim.latency/2"}, "schema is 'specsim.latency/2'", "docs/latency.md"),
    (
        {k: v for k, v in document().items() if k != "draft"} | {"darft": {}},
        "latency.darft is an unknown",
        "Did you mean 'draft'",
    ),
    ({"schema": "specsim.latency/1"}, "latency.verify is missing", "needs schema, verify"),
    (document([1]), "verify is [1]", "a JSON object"),
    (document({"form": "afine", "c_s": 0, "b_s": 1}), "verify.form is 'afine'", "affine, hinge, step, table"),
    (document({"form": ["affine"]}), "verify.form is ['affine']", "affine, hinge"),
    (document({"form": "affine", "c": 0.1, "b_s": 1}), "verify.c is an unknown key", "Did you mean 'c_s'"),
    (document({"form": "affine", "b_s": 1}), "verify.c_s is missing", "c_s, b_s"),
    (document(AFFINE | {"c_s": -1e-6}), "verify.c_s is -1e-06", ">= 0"),
    (document(AFFINE | {"c_s": True}), "verify.c_s is True", "finite number"),
    (document(AFFINE | {"c_s": "0.1"}), "verify.c_s is '0.1'", "finite number"),
    (document(AFFINE | {"c_s": math.nan}), "verify.c_s is nan", "finite number"),
    (document(AFFINE | {"b_s": math.inf}), "verify.b_s is inf", "finite number"),
    (document(AFFINE | {"b_s": 10**400}), "too large", "finite number"),
    (document(AFFINE | {"ctx_s": -1.0}), "verify.ctx_s is -1", ">= 0"),
    (document({"form": "affine", "c_s": 0.1, "b_s": -0.1}), "verify(1) = 0 s", "verify(1) > 0"),
    (document(HINGE | {"c2_s": -1.0}), "verify.c2_s is -1", ">= 0"),
    (document(HINGE | {"knee": None}), "verify.knee is None", "finite number"),
    (document(STEP | {"edges": [8, 8]}), "verify.edges[1] is 8 after 8", "strictly increasing"),
    (document(STEP | {"times_s": [2.0, 1.0]}), "verify.times_s[1] is 1 after 2", "non-decreasing"),
    (document(STEP | {"times_s": [2.0]}), "has 1 entries but verify.edges has 2", "one time per entry"),
    (document(STEP | {"edges": [], "times_s": []}), "verify.edges has length 0", "at least 1"),
    (document(STEP | {"times_s": [0.0, 1.0]}), "verify(1) = 0 s", "verify(1) > 0"),
    (document(STEP | {"edges": "48"}), "verify.edges is '48'", "a list"),
    (document(STEP | {"edges": [4, None]}), "verify.edges[1] is None", "finite number"),
    (document(TABLE | {"s": [2, 8, 4]}), "verify.s[2] is 4 after 8", "strictly increasing"),
    (document(TABLE | {"times_s": [1.0, 2.0, 1.5]}), "verify.times_s[2] is 1.5 after 2", "non-decreasing"),
    (document({"form": "table", "s": [2], "times_s": [1.0]}), "verify.s has length 1", "at least 2"),
    (document({"form": "table", "s": [5, 6], "times_s": [1.0, 2.0]}), "verify(1) = 0 s", "verify(1) > 0"),
    (document(draft={"pass_s": -1}), "draft.pass_s is -1", ">= 0"),
    (document(draft={"token_s": math.nan}), "draft.token_s is nan", "finite"),
    (document(draft={"pas_s": 1}), "draft.pas_s is an unknown key", "Did you mean 'pass_s'"),
    (document(draft=None), "draft is None", "a JSON object"),
    (document(overhead_s=-0.1), "overhead_s is -0.1", ">= 0"),
    (document(provenance=[]), "provenance is []", "a JSON object"),
    ([], "latency is []", "a JSON object"),
]


@pytest.mark.parametrize(("bad", "found", "told"), REFUSALS, ids=[f"{found}"[:40] for _, found, _ in REFUSALS])
def test_refusals_name_place_value_and_remedy(bad: dict[str, object], found: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        LatencyModel.from_dict(bad, where="costs.json")
    message = str(error.value)
    assert message.startswith("costs.json: ")
    assert found in message
    assert told in message
    assert "; allowed: " in message


def test_equal_neighbouring_times_are_accepted() -> None:
    assert model_of(STEP | {"times_s": [1.0, 1.0]}).verify_s(12) == 1.0
    assert model_of(TABLE | {"times_s": [1.0, 1.0, 1.0]}).verify_s(100) == 1.0


def test_provenance_keys_are_free() -> None:
    model = LatencyModel.from_dict(document(provenance={"anything": {"goes": [1]}}), where="test")
    assert model.to_dict()["provenance"] == {"anything": {"goes": [1]}}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"schema": "specsim.latency/1", "verify": {"form": "affine", "c_s": NaN, "b_s": 1}}', "NaN"),
        ('{"schema": "specsim.latency/1", "verify": {"form": "affine", "c_s": -Infinity, "b_s": 1}}', "-Infinity"),
        ('{"schema": "specsim.latency/1", "provenance": {"x": 1e999}}', "1e999"),
        ('{"schema": 1, "schema": 2}', "'schema' stands twice"),
        ('{"schema": ', "line 1 column 12"),
        ("[" * 100_000, "allowed: JSON"),
        ("", "line 1 column 1"),
    ],
)
def test_files_that_are_not_strict_json(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_latency(str(path))
    assert str(path) in str(error.value)
    assert found in str(error.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.json: cannot be read.*preset:NAME"):
        load_latency(str(tmp_path / "missing.json"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_latency(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_latency("a\0b")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="byte 0 is not UTF-8"):
        load_latency(str(binary))


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    model = LatencyModel.affine(c_s=1e-5, b_s=0.02, overhead_s=1e-4)
    save_latency(path, model)
    assert load_latency(str(path)) == model
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_latency(path) == model
    assert [entry.name for entry in tmp_path.iterdir()] == ["costs.json"]


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    model = LatencyModel.affine(c_s=1e-5, b_s=0.02)
    save_latency(path, model)
    before = path.read_bytes()
    bad = LatencyModel(verify=model.verify, provenance={"x": math.nan})
    with pytest.raises(ConfigError, match="provenance cannot be written"):
        save_latency(path, bad)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="does not exist; create it first"):
        save_latency(tmp_path / "no" / "costs.json", model)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="is a directory"):
        save_latency(tmp_path / "folder", model)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["costs.json", "folder"]


def test_an_interrupted_save_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "costs.json"
    save_latency(path, LatencyModel.affine(c_s=1e-5, b_s=0.02))
    before = path.read_bytes()

    def interrupted(self: Path, *args: object, **options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_latency(path, LatencyModel.affine(c_s=2e-5, b_s=0.02))
    assert [entry.name for entry in tmp_path.iterdir()] == ["costs.json"]
    assert path.read_bytes() == before


def test_import_is_light() -> None:
    # click comes with specsim.errors; nothing heavier may come with the models
    code = (
        "import sys, specsim.latency; specsim.latency.load_latency('preset:a100-phi-2');"
        "sys.exit(3 * any(name in sys.modules for name in ('scipy', 'rich', 'numba', 'pyarrow', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert subprocess.run([sys.executable, "-c", "import scipy;" + code], check=False).returncode == 3


def test_further_keys_are_allowed() -> None:
    """The format may grow; only what looks like a misspelling of a key that is not there is refused."""
    extra = document() | {"note": "measured at night", "host": {"name": "a"}}
    extra["verify"] = {**AFFINE, "comment": "x"}
    model = LatencyModel.from_dict(extra, where="latency")
    assert model == LatencyModel.from_dict(document(), where="latency")
