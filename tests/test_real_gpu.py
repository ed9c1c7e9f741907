"""On a CUDA device: the same outputs, and times that make sense. And `make gpu`, which is harmless without one."""

from __future__ import annotations

import json
import subprocess
import types

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import gpu  # noqa: E402
from real.clock import DRAFT, VERIFY, EventClock  # noqa: E402
from real.drafters.layer_skip import skip_layers  # noqa: E402
from real.drafters.model import ModelDrafter  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.neartie import exact_twin, explain  # noqa: E402
from real.record import decode_plain  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.controllers import Setting, build  # noqa: E402
from specsim.errors import run_cli  # noqa: E402
from specsim.latency import LatencyModel  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_family, tiny_llama  # noqa: E402

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
NEW = 40


def outputs(model, spelling: str, kind: str, *, cache: str = "dynamic"):
    """(plain output, this controller's decode) of a model on CUDA."""
    drafter = (
        PromptLookupDrafter(max_draft_len=6)
        if kind == "lookup"
        else ModelDrafter(skip_layers(model, (1,)), name="model", max_draft_len=6)
    )
    latency = LatencyModel.affine(c_s=0.001, b_s=0.05, draft_pass_s=0.01)
    setting = Setting(block_len=drafter.block_len, max_draft_len=6, latency=latency)
    online = OnlineController(build(spelling, setting))
    prompt = torch.cat([prompt_ids(5), prompt_ids(5)]).cuda()
    plain = decode_plain(model, prompt, NEW, ())
    return plain, decode(Target(model, cache=cache), drafter, online, prompt, Settings(max_new_tokens=NEW)), prompt


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "mixtral"])
@pytest.mark.parametrize("spelling", ["static:length=4", "libraspec", "lambda"])
@pytest.mark.parametrize("kind", ["model", "lookup"])
def test_float32_is_lossless_on_cuda(family, spelling, kind):
    plain, result, _ = outputs(tiny_family(family, seed=3).cuda(), spelling, kind)
    assert result.output == plain


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_bfloat16_differs_by_near_ties_only_on_cuda(cache):
    model = tiny_llama(seed=3, spread=0.25).to(torch.bfloat16).cuda()
    plain, result, prompt = outputs(model, "static:length=4", "model", cache=cache)
    difference = explain(model, exact_twin(model), prompt, plain, result.output)
    assert difference is None or difference.near_tie, str(difference)


@pytest.mark.gpu
@needs_cuda
def test_event_times_fit_into_the_round():
    model = tiny_llama(seed=3, spread=0.08).cuda()
    outputs(model, "static:length=4", "model")  # warm-up
    _, result, _ = outputs(model, "static:length=4", "model")
    for row in result.rounds[1:]:
        assert row.verify_s > 0
        assert (row.draft_s > 0) == (row.draft_passes > 0)
        # Stages follow each other on one stream; 50 us for the event's resolution and the host's own counter.
        assert row.draft_s + row.verify_s <= row.round_s + 5e-5


@pytest.mark.gpu
@needs_cuda
def test_an_event_clock_times_the_device_not_the_launch():
    clock, big = EventClock(), torch.randn(4096, 4096, device="cuda")
    for _ in range(3):  # warm-up, then one that counts
        clock.start()
        for stage, repeats in ((DRAFT, 2), (VERIFY, 20)):
            clock.enter()
            for _ in range(repeats):
                big = torch.nn.functional.normalize(big @ big)
            clock.leave(stage)
        big.sum().item()
        draft_s, verify_s, whole_s = clock.read()
    assert 3 * draft_s < verify_s < whole_s


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        run_cli(gpu.main, list(arguments))
    return left.value.code


def test_without_cuda_one_line_and_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: pytest.fail("something was started"))
    assert command(f"--out={tmp_path / 'gpu'}") == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert "no CUDA device" in out
    assert err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A machine that claims to have a GPU, and whose commands are only written down; their statuses can be set."""
    started, statuses = [], {}

    def run(command, **options):
        started.append(command)
        status = next((statuses[word] for word in command if word in statuses), 0)
        if status == "late":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "device_name", lambda device: "cuda: pretended")
    monkeypatch.setattr(gpu.models, "fetch", lambda say: None)
    # In this module only: elsewhere, `platform` asks a process for the name of the machine.
    monkeypatch.setattr(gpu, "subprocess", types.SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))
    return tmp_path / "gpu", started, statuses


def test_with_cuda_tests_then_validations_into_one_folder(pretended):
    folder, started, _ = pretended
    assert command(f"--out={folder}") == 0
    assert len(started) == 3
    assert started[0][1:5] == ["-m", "pytest", "-m", "gpu"]
    for words, dtype in zip(started[1:], gpu.DTYPES, strict=True):
        assert words[1:3] == ["-m", "real.validate"]
        assert {"--device=cuda", f"--dtype={dtype}", f"--out={folder / dtype}"} <= set(words)
    document = json.loads((folder / "gpu.json").read_text())
    assert document["device"] == "cuda: pretended"
    assert [step["status"] for step in document["steps"]] == [0, 0, 0]


@pytest.mark.parametrize("outcome", [1, "late"])
def test_a_step_that_fails_does_not_stop_the_others(pretended, capsys, outcome):
    folder, started, statuses = pretended
    statuses["pytest"] = outcome
    assert command(f"--out={folder}") == 1
    assert len(started) == 3
    assert "gpu tests: " in capsys.readouterr().out
    document = json.loads((folder / "gpu.json").read_text())
    assert [step["status"] for step in document["steps"]] == [None if outcome == "late" else 1, 0, 0]


def test_an_old_folder_is_not_mixed_with_a_new_run(pretended, capsys):
    folder, started, _ = pretended
    assert command(f"--out={folder}") == 0
    assert command(f"--out={folder}") == 2
    assert "--out" in capsys.readouterr().err
    assert len(started) == 3
