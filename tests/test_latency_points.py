"""Converters on made-up tables, and the presets against the public tables when those are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specsim.errors import ConfigError
from specsim.latency import load_latency
from specsim.latency.measurements import read_measurements
from specsim.latency.points import SHAPES, llmservingsim_points, to_csv, vidur_points
from specsim.latency.presets import load_presets
from specsim.latency.recipes import MAX_S, RECIPES, build, to_json

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
OPERATORS = (
    "emb",
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
SIZES = "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers"


def vidur_table(path: Path, rows: list[tuple[list[float], str]], *, post_norm: bool) -> Path:
    names = (*OPERATORS, "post_attention_layernorm") if post_norm else OPERATORS
    header = ",".join([*(f"time_stats.{name}.median" for name in names), SIZES])
    lines = [",".join([*map(str, times), sizes]) for times, sizes in rows]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_vidur_sums(tmp_path: Path) -> None:
    times = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    two = "4,4,8,16,100,False,2,1"
    rows = [(times, "4,4,8,16,100,False,1,1"), (times, two.replace("2,1", "2,2")), ([2 * t for t in times], two)]
    points = vidur_points(vidur_table(tmp_path / "a.csv", rows, post_norm=False), layers=3)
    np.testing.assert_array_equal(points.s, [1, 2])
    np.testing.assert_allclose(points.time_s, [(0.5 + 3 * 255) * 1e-3, 2 * (0.5 + 3 * 255) * 1e-3], rtol=1e-14)
    rows = [([*times, 256.0], "4,4,8,16,100,True,1,1")]
    points = vidur_points(vidur_table(tmp_path / "b.csv", rows, post_norm=True), layers=3)
    np.testing.assert_allclose(points.time_s, [(0.5 + 3 * (255 + 256 + 128)) * 1e-3], rtol=1e-14)
    with pytest.raises(ConfigError, match="no row has 4; allowed: a tensor-parallel size"):
        vidur_points(tmp_path / "b.csv", layers=3, workers=4)


def test_vidur_scaling_recovers_fixed_cost_plus_bandwidth(tmp_path: Path) -> None:
    # an ungated, 2560-wide layer whose products cost exactly 0.005 ms + 0.6 ms per GB
    gigabytes = 2e-9 * np.array([2560 * 7680, 2560 * 2560, 2560 * 10240, 2560 * 10240])
    pre, post, up, down = (0.005 + 0.6 * gigabytes).tolist()
    times = [0.003, 0.007, pre, 0.004, post, up, 0.002, down, 0.004]
    path = vidur_table(tmp_path / "a.csv", [(times, "32,32,2560,10240,51200,False,1,1")], post_norm=False)
    points = vidur_points(path, layers=2, like="llama-2-7b")
    wanted_gb = 1e-9 * sum(SHAPES["llama-2-7b"].matmul_bytes().values())
    layer_ms = 4 * 0.005 + 0.6 * wanted_gb + 2 * 0.007 + 0.004 + 0.002 + 0.004
    np.testing.assert_allclose(points.time_s, [(0.003 + 2 * layer_ms) * 1e-3], rtol=1e-12)
    with pytest.raises(ConfigError, match="--like is 'llama'; allowed: llama-2-7b"):
        vidur_points(path, layers=2, like="llama")


def test_weight_bytes_of_known_models() -> None:
    # 6.74e9 parameters less 2 * 32000 * 4096 of embedding and head, 8.03e9 less 2 * 128256 * 4096: 2 bytes each
    for name, billions in (("llama-2-7b", 6.476), ("llama-3.1-8b", 6.979)):
        assert 32 * sum(SHAPES[name].matmul_bytes().values()) == pytest.approx(2e9 * billions, rel=1e-3)
    assert sum(SHAPES["llama-2-7b"].matmul_bytes(4).values()) * 4 == sum(SHAPES["llama-2-7b"].matmul_bytes().values())


def llmservingsim_tables(folder: Path, *, without: str = "") -> list[Path]:
    dense = ["layer,tokens,time_us"]
    for index, name in enumerate(
        (
            "embedding",
            "layernorm",
            "qkv_proj",
            "rotary_emb",
            "o_proj",
            "gate_up_proj",
            "act_fn",
            "down_proj",
            "final_layernorm",
        )
    ):
        if name != without:
            dense += [f"{name},{tokens},{2.0**index * tokens}" for tokens in (1, 2, 3)]
    head = ["layer,sequences,time_us", "lm_head,1,1000", "lm_head,3,3000", "sampler,1,7"]
    (folder / "dense.csv").write_text("\n".join(dense) + "\n")
    (folder / "head.csv").write_text("\n".join(head) + "\n")
    return [folder / "head.csv", folder / "dense.csv"]


def test_llmservingsim_sums(tmp_path: Path) -> None:
    head, dense = llmservingsim_tables(tmp_path)
    one_us = 1 + 256 + 10 * (2 * 2 + 4 + 8 + 16 + 32 + 64 + 128)
    points = llmservingsim_points([head, dense], layers=10)
    np.testing.assert_array_equal(points.s, [1, 3])
    np.testing.assert_allclose(points.time_s, [(one_us + 1000) * 1e-6, (3 * one_us + 3000) * 1e-6], rtol=1e-14)
    points = llmservingsim_points([dense], layers=10)
    np.testing.assert_allclose(points.time_s, np.array([1, 2, 3]) * one_us * 1e-6, rtol=1e-14)
    with pytest.raises(ConfigError, match=r"no dense\.csv"):
        llmservingsim_points([head], layers=10)
    with pytest.raises(ConfigError, match="'layer': has no 'act_fn'"):
        llmservingsim_points(llmservingsim_tables(tmp_path, without="act_fn"), layers=10)
    llmservingsim_tables(tmp_path)
    with pytest.raises(ConfigError, match="no length has every operator"):
        llmservingsim_points([dense, _far_head(tmp_path)], layers=10)


def _far_head(folder: Path) -> Path:
    path = folder / "far.csv"
    path.write_text("layer,sequences,time_us\nlm_head,99,1\n")
    return path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "'time_stats.emb.median': is missing"),
    ],
)
def test_tables_of_another_kind(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        vidur_points(path, layers=1)
    assert str(path) in str(error.value)
    assert found in str(error.value)


def test_bad_cells_name_row_and_column(tmp_path: Path) -> None:
    times = [0.5, 1.0, 2.0, 4.0, -8.0, 16.0, 32.0, 64.0, 128.0]
    path = vidur_table(tmp_path / "a.csv", [(times, "4,4,8,16,100,False,1,1")], post_norm=False)
    with pytest.raises(ConfigError, match=r"row 0 \(line 2\), column 'time_stats\.attn_post_proj\.median': '-8\.0'"):
        vidur_points(path, layers=1)


def test_points_csv_round_trip(tmp_path: Path) -> None:
    points = llmservingsim_points([llmservingsim_tables(tmp_path)[1]], layers=7)
    path = tmp_path / "points.csv"
    path.write_text(to_csv(points))
    again = read_measurements(path)
    np.testing.assert_array_equal(again.s, points.s)
    np.testing.assert_array_equal(again.time_s, points.time_s)


def test_every_preset_is_usable_and_documented() -> None:
    presets = load_presets()
    assert list(presets) == list(RECIPES)
    for name, model in presets.items():
        assert load_latency(f"preset:{name}") == model
        table = model.verify_table(MAX_S)
        assert (np.diff(table[1:]) >= 0.0).all()
        assert 1e-3 < table[1] < 0.1
        found = model.provenance
        assert found["valid_s"] == [1, MAX_S]
        assert 0.0 < found["heldout_rel_err"] < 0.05
        assert found["max_rel_err"] < 0.06
        assert "attention" in found["excludes"]
        assert "drafting" in found["excludes"]
        assert found["license"] == "MIT"
        assert "points" not in found
        assert found["derived"] == ("derived" in name) == (found["scaling_rel_err"] is not None)
        assert found["commands"] == list(RECIPES[name].commands(name))


def test_an_h100_is_faster_than_an_a100_which_is_faster_than_a_4090() -> None:
    names = ("h100-llama-2-7b", "a100-llama-2-7b", "rtx4090-llama-3.1-8b")
    tables = [load_latency(f"preset:{name}").verify_table(MAX_S)[1:] for name in names]
    assert (tables[0] < tables[1]).all()
    assert (tables[1] < tables[2]).all()


def _assert_close(found: object, expected: object, place: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert set(found) == set(expected), place
        for key, value in expected.items():
            _assert_close(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected), place
        for index, value in enumerate(expected):
            _assert_close(found[index], value, f"{place}[{index}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12), place
    else:
        assert found == expected, place


@pytest.mark.parametrize("name", list(RECIPES))
def test_committed_presets_are_what_the_commands_give(name: str) -> None:
    missing = [file for file in RECIPES[name].files if not (DATA / file).exists()]
    if missing:
        pytest.skip(f"public table not here: {DATA / missing[0]}")
    _assert_close(build(name, DATA).to_dict(), load_presets()[name].to_dict(), name)


def test_committed_file_is_in_its_own_format() -> None:
    import specsim.latency

    committed = (Path(specsim.latency.__file__).parent / "presets.json").read_text("utf-8")
    assert to_json(load_presets()) == committed
