"""`fastdllm:path=..` on the command line: options, refusals, probe, replay of its trace, validate, generate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from click.testing import CliRunner  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

import real  # noqa: E402
from real import calibrate, probe, validate  # noqa: E402
from real.drafters.fastdllm import FastDLLMDrafter  # noqa: E402
from real.models import load_target  # noqa: E402
from real.session import open_session  # noqa: E402
from real.trace_latency import stored_drafter  # noqa: E402
from specsim import replay  # noqa: E402
from specsim.errors import ConfigError, run_cli  # noqa: E402
from specsim.trace import read_trace  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_tiny import VOCABULARY, save_tiny  # noqa: E402
from tests.real_validate import steadied  # noqa: E402

TEXTS = ("abcabcabd", "xyzzy xy")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a drafter with nearly its weights and a mask, and prompts."""
    folder = tmp_path_factory.mktemp("fastdllm")
    save_tiny(folder / "tiny", seed=3)
    target = load_target(str(folder / "tiny"), device="cpu").model
    sizes = {k: v for k, v in target.config.to_diff_dict().items() if k not in ("architectures", "vocab_size", "dtype")}
    extra: dict[str, Any] = {"bd_size": 8, "mask_token_id": VOCABULARY}
    drafter: Any = LlamaForCausalLM(LlamaConfig(**sizes, **extra, vocab_size=VOCABULARY + 1))
    held = drafter.state_dict()
    for name, weights in target.state_dict().items():
        held[name][: len(weights)] = weights
    held["model.embed_tokens.weight"][VOCABULARY] = 0.0
    drafter.save_pretrained(folder / "drafter")
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return folder


def opened(place: Path, more: str = "", **options: Any) -> FastDLLMDrafter:
    name = f"fastdllm:path={place / 'drafter'}{more}"
    drafter = open_session(str(place / "tiny"), name, device="cpu", **options).drafter
    assert isinstance(drafter, FastDLLMDrafter)
    return drafter


def test_options(place: Path) -> None:
    drafter = opened(place, ",small=4", max_draft_len=60)
    assert (drafter.block_len, drafter.max_draft_len, drafter.samples, drafter.pass_rule) == (
        10,
        60,
        False,
        "keep-first",
    )
    assert (drafter.threshold, drafter.small, drafter.bd_size, drafter.dual) == (0.9, 4, 8, False)
    assert drafter.name == f"fastdllm:path={place / 'drafter'},small=4"
    other = opened(place, ",threshold=0.05,block=5,small=2,dual=1")
    assert (other.threshold, other.block_len, other.small, other.dual) == (0.05, 5, 2, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (",threshold=high", r"threshold is 'high'; allowed: a number from 0 to 1"),
        (",block=1.5", r"block is '1\.5'; allowed: a whole number"),
        (",dual=yes", r"dual is 'yes'; allowed: 0 or 1"),
        (",small=5", r"small 5: allowed: a divisor of the drafter's block of 8"),
        (",budget=3", r"allowed: fastdllm:path=\.\.\."),
    ],
)
def test_options_that_are_refused(place: Path, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(place, more)


def test_sampled_drafts_are_refused_with_the_reason(place: Path) -> None:
    with pytest.raises(ConfigError, match=r"allowed: 'greedy'.*law of a drawn token.*not known"):
        opened(place, draft_sampling="sample")


def test_a_path_is_needed(place: Path) -> None:
    with pytest.raises(ConfigError, match="name its path"):
        open_session(str(place / "tiny"), "fastdllm", device="cpu")


def command(main: Any, place: Path, out: Path, *words: str) -> Any:
    arguments = [
        "--target",
        str(place / "tiny"),
        "--drafter",
        f"fastdllm:path={place / 'drafter'},threshold=0.3,small=4",
    ]
    arguments += ["--dataset", str(place / "prompts.jsonl"), "--requests", "2", "--max-new-tokens", "24"]
    arguments += ["--max-draft-len", "15", "--device", "cpu", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "measure", steadied)  # times of a tiny model are noise
        with pytest.raises(SystemExit) as left:
            run_cli(main, [*arguments, *words])
    return left.value.code


def test_probe_records_passes_that_failfast_replays(place: Path, tmp_path: Path) -> None:
    assert command(probe.main, place, tmp_path / "t.parquet", "--latency-repeats", "2") == 0
    meta, rows = read_trace(tmp_path / "t.parquet")
    assert (meta.drafter, meta.block_len, meta.pass_rule, meta.prefix_closed) == ("fastdllm", 10, "keep-first", True)
    assert (meta.exact, meta.mismatches) == (True, 0)
    assert rows.accept_len.max() >= 1
    assert rows.pass_offsets is not None
    assert rows.draft_offsets is not None
    for values in (rows.draft_s, rows.pass_count, rows.pass_filled):
        assert values is not None
        assert len(values) == rows.pass_offsets[-1] == rows.draft_offsets[-1]
    options = stored_drafter(tmp_path / "t.parquet", meta).options
    assert options == {"path": str(place / "drafter"), "threshold": "0.3", "small": "4"}
    found = CliRunner().invoke(
        replay.main, [str(tmp_path / "t.parquet"), "-c", "failfast-repo", "-c", "failfast", "--json"]
    )
    assert found.exit_code == 0, found.output
    assert [one["controller"] for one in json.loads(found.output)["results"]] == [
        "failfast-repo",
        "failfast",
    ]


def test_validate_finds_no_difference(place: Path, tmp_path: Path) -> None:
    names = ("static:length=5", "g4", "libraspec:alpha=2.0,block=10", "failfast", "failfast-repo:chunk=5")
    words = [word for name in names for word in ("--controllers", name)]
    assert command(validate.main, place, tmp_path / "run", "--repeats", "2", *words) == 0
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    assert document["differences"] == []
    assert {row["controller"]: row["shadow"] for row in document["results"]} == dict.fromkeys(("plain", *names))
    assert max(row["measured"]["tau"] for row in document["results"]) > 1.1


def test_generate_keeps_the_output(place: Path) -> None:
    loaded = load_target(str(place / "tiny"), device="cpu")
    inputs = {"input_ids": torch.tensor([loaded.tokenizer(TEXTS[0])["input_ids"]])}
    drafter = f"fastdllm:path={place / 'drafter'},small=4"
    plain = plain_greedy(loaded.model, inputs["input_ids"][0], 20)
    for controller in ("failfast-repo", "libraspec"):
        output = real.generate(loaded.model, inputs, max_new_tokens=20, drafter=drafter, controller=controller)
        assert output[0, -20:].tolist() == plain
