"""Arms: spelling, order, validation, files."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.builders.arm import Arm, ArmFile, cost_order, nested, parse_layers, read_arms, spell_layers
from specsim.errors import ConfigError
from tests.arm_masks import mask_of

LAYERS = st.frozensets(st.integers(0, 40), max_size=12)
ARMS = st.builds(Arm, LAYERS, LAYERS)


@given(ARMS)
def test_a_spelling_reads_back_as_the_arm(arm):
    assert Arm.parse(str(arm)) == arm
    assert Arm.from_mask(mask_of(arm, 41)) == arm


@given(LAYERS)
def test_layers_read_back(layers):
    assert set(parse_layers(spell_layers(layers))) == layers


@pytest.mark.parametrize(
    ("text", "attention", "mlp"),
    [
        ("", (), ()),
        ("9-11", (9, 10, 11), (9, 10, 11)),
        ("a3,5-7+m2,9", (3, 5, 6, 7), (2, 9)),
        ("4+a9", (4, 9), (4,)),
        (" m1 ", (), (1,)),
    ],
)
def test_spellings(text, attention, mlp):
    arm = Arm.parse(text)
    assert arm == Arm(frozenset(attention), frozenset(mlp))
    assert str(arm) == text.strip()


@pytest.mark.parametrize("text", ["a", "+", "9+8", "x", "a3+a4", "1-", "4+", "²", "3-1", "a-1", "99999"])
def test_other_texts_are_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"arm|layers"):
        Arm.parse(text)


def test_arms_are_checked_against_the_target():
    assert Arm.parse("a0-3", 4) == Arm(frozenset(range(4)))
    with pytest.raises(ConfigError, match=r"no layer 4; the target has layers 0\.\.3"):
        Arm.parse("m4", 4)
    with pytest.raises(ConfigError, match="leaves out all 4 layers"):
        Arm.parse("0-3", 4)


@pytest.mark.parametrize("layer", [True, -1, 1.0, "1", 10_000])
def test_only_layer_numbers_make_an_arm(layer):
    with pytest.raises(ConfigError, match="mlp of layer"):
        Arm(mlp=frozenset([layer]))


def test_numpy_layers_make_the_same_arm():
    assert Arm.blocks(np.array([2, 3])) == Arm.blocks([2, 3])


@given(st.lists(ARMS, max_size=8), st.integers(1, 4), st.integers(1, 4))
def test_cost_order_is_stable_and_ascending(arms, attention, mlp):
    ordered = cost_order(arms, attention=attention, mlp=mlp)
    keys = [attention * len(a.attention) + mlp * len(a.mlp) for a in ordered]
    assert keys == sorted(keys)
    for key in set(keys):
        same = [a for a in arms if a.skipped(attention, mlp) == key]
        assert [a for a in ordered if a.skipped(attention, mlp) == key] == same


def test_nested_families():
    assert nested([Arm.parse(text) for text in ("", "a3", "3", "3-4+m9")])
    assert not nested([Arm.parse(text) for text in ("3", "4-6")])


@given(st.lists(ARMS, min_size=1, max_size=6, unique=True))
def test_a_file_of_arms_reads_back(arms):
    for told in ({}, {"share": 0.01}):
        file = ArmFile("tiny", 60, "cossim", tuple(arms), {"fraction": 0.6}, told)
        assert ArmFile.from_json(json.loads(json.dumps(file.to_json())), where="here") == file


def test_saved_files_read_back(tmp_path: Path):
    file = ArmFile("tiny", 8, "swift", (Arm(), Arm.parse("3")))
    file.save(tmp_path / "arms.json")
    assert read_arms(tmp_path / "arms.json") == file


GOOD = {"schema": "real.arms/1", "target": "t", "n_layers": 8, "builder": "b", "settings": {}, "arms": ["", "3"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "real.arms/2"}, "schema is 'real.arms/2'"),
        ({"arm": []}, "unknown key"),
        ({"n_layers": True}, "n_layers is True"),
        ({"n_layers": 0}, "n_layers is 0"),
        ({"settings": []}, r"settings is \[\]"),
        ({"construction": 3}, "construction is 3; allowed: a JSON object"),
        ({"arms": [3]}, r"arms\[0\] is 3"),
        ({"arms": []}, "none given"),
        ({"arms": ["3", "3"]}, r"arms\[1\]: '3' stands there twice"),
        ({"arms": ["8"]}, "no layer 8"),
        ({"arms": ["q"]}, "cannot read 'q'"),
    ],
)
def test_bad_files_are_refused_with_place_and_cause(tmp_path, change, message):
    path = tmp_path / "arms.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(ConfigError, match=message) as error:
        read_arms(path)
    assert str(error.value).startswith(str(path))


def test_missing_keys_files_and_json_are_refused(tmp_path):
    path = tmp_path / "arms.json"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_arms(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        read_arms(path)
    path.write_text(json.dumps({k: v for k, v in GOOD.items() if k != "builder"}))
    with pytest.raises(ConfigError, match="builder is missing"):
        read_arms(path)


def test_settings_that_are_no_json_leave_no_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        ArmFile("t", 8, "b", (Arm(),), {"x": float("nan")}).save(tmp_path / "arms.json")
    assert list(tmp_path.iterdir()) == []
