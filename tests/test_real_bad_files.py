"""Folders of drafter checkpoints with broken files, and names that no folder has: one line that says what to do."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from real.drafters.checkpoint import Checkpoint, read_checkpoint, save_checkpoint  # noqa: E402
from real.drafters.dflash_load import load_dflash  # noqa: E402
from real.drafters.eagle3_load import load_eagle3  # noqa: E402
from real.drafters.fastdllm_load import load_block_model  # noqa: E402
from real.models import load_target, load_tokenizer  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.dflash_tiny import tiny_dflash  # noqa: E402
from tests.real_tiny import save_tiny, tiny_llama  # noqa: E402
from tests.test_real_dflash_load import load as load_tiny_dflash  # noqa: E402
from tests.test_real_dflash_load import written  # noqa: E402
from tests.test_real_fastdllm_load import save_own  # noqa: E402

MODEL = tiny_llama()
INDEX, WEIGHTS, PICKLED = "model.safetensors.index.json", "model.safetensors", "pytorch_model.bin"
LOADERS: dict[str, Callable[[str], Any]] = {
    "dflash": lambda path: load_dflash(path, MODEL, device="cpu", dtype="float32"),
    "eagle3": lambda path: load_eagle3(path, MODEL),
    "fastdllm": load_block_model,
    "target": load_target,
    "tokenizer": load_tokenizer,
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def refused(load: Callable[[str], Any], path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as found:
        load(path)
    assert str(found.value).isprintable()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("n" * 300, "File name too long"),
        ("a/" * 3000, "File name too long"),
        ("nul\0byte", r"nul\\x00byte.*printable characters"),
        ("two\nlines", r"two\\nlines.*printable characters"),
        ("", "allowed: a folder or a hub id"),
        ("  ", "allowed: a folder or a hub id"),
        ("no such place/at all/here", "no such place/at all/here"),
    ],
)
def test_names_that_no_folder_has(loader: str, name: str, words: str) -> None:
    refused(LOADERS[loader], name, words)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_file_in_place_of_a_folder(loader: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    refused(LOADERS[loader], str(tmp_path / "config.json"), "config.json': is a file; name the folder that holds it")
    refused(LOADERS[loader], str(tmp_path / "config.json" / "deeper"), "Not a directory")


@pytest.mark.parametrize("loader", LOADERS)
def test_a_folder_that_may_not_be_read(loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", closed)
    refused(LOADERS[loader], str(tmp_path), "cannot be read .Permission denied.; name a folder")


@pytest.mark.parametrize("loader", ["dflash", "eagle3", "fastdllm", "target"])
@pytest.mark.parametrize("text", ["", "[]", "3", "null", '"x"', "{", "[" * 100_000, "\x00", "NaN", "\ufeff{}"])
def test_a_config_that_is_no_object(loader: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    refused(LOADERS[loader], str(tmp_path), str(tmp_path))


@pytest.mark.parametrize("loader", ["dflash", "eagle3", "fastdllm"])
def test_a_config_that_is_a_folder_or_no_text(loader: str, tmp_path: Path) -> None:
    (tmp_path / "one" / "config.json").mkdir(parents=True)
    refused(LOADERS[loader], str(tmp_path / "one"), r"config\.json cannot be read .*Is a directory")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    refused(LOADERS[loader], str(tmp_path), r"config\.json cannot be read .*codec")


def indexed(folder: Path, index: Any) -> str:
    """A valid checkpoint whose weights lie in one shard, with any JSON as its index."""
    if not folder.is_dir():
        (written(folder) / WEIGHTS).rename(folder / "one.safetensors")
    (folder / INDEX).write_text(json.dumps(index))
    return str(folder)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        *(([], "holds a list; allowed: an object"), (3, "holds a int"), (None, "holds a NoneType")),
        *(({}, "has no weight_map"), ({"weight_map": {}}, "no weight_map"), ({"weight_map": []}, "no weight_map")),
        *(({"weight_map": {"fc.weight": bad}}, "names the file") for bad in (None, 3, True, [], {}, "", ".", "..")),
        ({"weight_map": {"fc.weight": "../one.safetensors"}}, r"names the file '\.\./one\.safetensors'; allowed"),
        ({"weight_map": {"fc.weight": "/one.safetensors"}}, "names the file '/one.safetensors'; allowed"),
        ({"weight_map": {"fc.weight": "config.json"}}, r"names the file 'config\.json'; allowed: safetensors files"),
        ({"weight_map": {"fc.weight": "two.safetensors"}}, r"names 'two\.safetensors', which is not there"),
        ({"weight_map": {"fc.weight": "nul\0.safetensors"}}, "names the file|is not there"),
    ],
)
def test_an_index_that_is_none(index: Any, words: str, tmp_path: Path) -> None:
    # A file of the right kind outside of the folder stays unread.
    written(tmp_path)
    (tmp_path / WEIGHTS).rename(tmp_path / "one.safetensors")
    refused(read_checkpoint, indexed(tmp_path / "p", index), words)
    assert read_checkpoint(indexed(tmp_path / "p", {"weight_map": {"fc.weight": "one.safetensors"}})).weights


@given(st.integers(0, 10**6), st.binary(max_size=8), st.sampled_from([WEIGHTS, PICKLED]))
@settings(max_examples=max(30, settings.default.max_examples // 2))
def test_damaged_weights(tmp_path_factory: pytest.TempPathFactory, place: int, other: bytes, name: str) -> None:
    """Bytes cut off, or replaced by others: a refusal, or tensors."""
    folder = tmp_path_factory.mktemp("damaged")
    weights = {"fc.weight": torch.ones(4, 3), "d2t": torch.arange(3)}
    save_checkpoint(folder, {}, weights)
    if name == PICKLED:
        (folder / WEIGHTS).unlink()
        torch.save(weights, folder / name)
    whole = (folder / name).read_bytes()
    place %= len(whole)
    (folder / name).write_bytes(whole[:place] + other + (whole[place + len(other) :] if other else b""))
    with contextlib.suppress(ConfigError):
        assert all(isinstance(value, torch.Tensor) for value in read_checkpoint(str(folder)).weights.values())


@pytest.mark.parametrize("loader", ["dflash", "eagle3", "fastdllm"])
def test_weights_cut_off(loader: str, tmp_path: Path) -> None:
    save_own(tmp_path)
    whole = (tmp_path / WEIGHTS).read_bytes()
    for size in (0, 4, 8, len(whole) // 2, len(whole) - 1):
        (tmp_path / WEIGHTS).write_bytes(whole[:size])
        refused(LOADERS[loader], str(tmp_path), r"model\.safetensors cannot be read: .*get the checkpoint again")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (torch.full((32, 64), torch.nan), "fc.weight holds values that are not finite"),
        (torch.full((32, 64), torch.inf, dtype=torch.bfloat16), "fc.weight holds values that are not finite"),
        (torch.zeros(32, 64, dtype=torch.int64), "fc.weight is of type torch.int64; allowed: such as torch.float32"),
        (torch.zeros(32, 64, dtype=torch.complex64), "fc.weight is of type torch.complex64"),
        (torch.zeros(32, 64).to(torch.float8_e4m3fn), "fc.weight is of type torch.float8_e4m3fn"),
    ],
)
def test_weights_of_another_kind(values: Any, words: str, tmp_path: Path) -> None:
    folder = written(tmp_path)
    save_file(load_file(folder / WEIGHTS) | {"fc.weight": values}, folder / WEIGHTS)
    refused(load_tiny_dflash, str(folder), words)


def test_weights_without_values(tmp_path: Path) -> None:
    folder = written(tmp_path)
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    for values in (torch.empty(32, 64, device="meta"), torch.zeros(32, 64).to_sparse()):
        torch.save(weights | {"fc.weight": values}, folder / PICKLED)
        refused(load_tiny_dflash, str(folder), "fc.weight is stored without its values|cannot be read")


@pytest.mark.parametrize("text", ["{}", "[]", "{", "", '{"model": {}}', '{"version": "1.0"}', "\x00"])
def test_a_tokenizer_that_is_there_has_to_be_one(text: str, tmp_path: Path) -> None:
    save_own(tmp_path / "drafter")
    assert load_block_model(str(tmp_path / "drafter")).tokenizer is None
    (tmp_path / "drafter" / "tokenizer.json").write_text(text)
    refused(load_block_model, str(tmp_path / "drafter"), r"drafter: tokenizer\.json cannot be read: .*; get it again")


def test_a_target_with_a_broken_tokenizer(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    refused(load_target, str(tmp_path), "cannot be loaded")
    refused(load_tokenizer, str(tmp_path), "cannot be loaded")


@pytest.mark.parametrize("change", [{"hidden_size": "x"}, {"num_attention_heads": 0}, {"hidden_act": []}, {"x": 1}])
def test_a_target_with_a_broken_config(change: dict[str, Any], tmp_path: Path) -> None:
    config = save_tiny(tmp_path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    if "x" in change:
        assert load_target(str(tmp_path), device="cpu").stop_ids
    else:
        refused(load_target, str(tmp_path), "cannot be loaded")


def test_a_network_far_too_large_is_refused_before_it_is_built(tmp_path: Path) -> None:
    """Its weights would be 64 TB."""
    folder = written(tmp_path, intermediate_size=2**20, num_attention_heads=2**14, num_key_value_heads=2**14)
    refused(load_tiny_dflash, str(folder), "has shape .*, its config.json makes it")


def test_an_own_checkpoint_stays_what_it_was(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"a": 1}, tiny_dflash(MODEL).state_dict())
    found = read_checkpoint(str(tmp_path))
    assert isinstance(found, Checkpoint)
    assert (found.where, found.folder, found.config) == (str(tmp_path), tmp_path, {"a": 1})
