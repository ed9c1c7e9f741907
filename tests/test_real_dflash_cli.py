"""`dflash:path=..` on the command line: options, recordings that predict runs, probe, validate, run and generate."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real  # noqa: E402
from real import calibrate, probe, validate  # noqa: E402
from real.drafters import dflash  # noqa: E402
from real.drafters.dflash import DFlashDrafter  # noqa: E402
from real.drafters.dflash_load import save_dflash  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.measure import measure  # noqa: E402
from real.models import load_target  # noqa: E402
from real.record import proposer_of, record_request  # noqa: E402
from real.recordings import to_chunks  # noqa: E402
from real.session import open_session  # noqa: E402
from real.target import Target  # noqa: E402
from real.trace_latency import stored_drafter  # noqa: E402
from specsim.engine import replay  # noqa: E402
from specsim.errors import ConfigError, run_cli  # noqa: E402
from specsim.latency import LatencyModel  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from specsim.schema import TraceMeta  # noqa: E402
from specsim.trace import read_trace  # noqa: E402
from tests.dflash_tiny import fitted_dflash  # noqa: E402
from tests.real_law import FixedClock, controller_of, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import plain_greedy, subject  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402
from tests.real_validate import steadied  # noqa: E402

TEXTS = ("abcabcabd", "xyzzy xy")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a drafter fitted to its first answer, and prompts."""
    folder = tmp_path_factory.mktemp("dflash")
    save_tiny(folder / "tiny", seed=3)
    loaded = load_target(str(folder / "tiny"), device="cpu")
    prompt = torch.tensor(loaded.tokenizer(TEXTS[0])["input_ids"])
    text = torch.cat([prompt, torch.tensor(plain_greedy(loaded.model, prompt, 14))])
    save_dflash(folder / "drafter", fitted_dflash(loaded.model, text, noise=0.2))
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return folder


def opened(place: Path, more: str = "", **options) -> DFlashDrafter:
    drafter = open_session(
        str(place / "tiny"), f"dflash:path={place / 'drafter'}{more}", device="cpu", **options
    ).drafter
    assert isinstance(drafter, DFlashDrafter)
    return drafter


def test_options(place: Path) -> None:
    drafter = opened(place)
    assert (drafter.block_len, drafter.max_draft_len, drafter.samples, drafter.pass_rule) == (
        3,
        24,
        False,
        "keep-first",
    )
    assert drafter.name == f"dflash:path={place / 'drafter'}"
    other = opened(place, ",pass_rule=per-length,block=7", max_draft_len=9, draft_sampling="sample")
    assert (other.block_len, other.max_draft_len, other.samples, other.pass_rule) == (6, 9, True, "per-length")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (",pass_rule=both", "pass_rule 'both': allowed: keep-first, per-length"),
        (",block=1", "block is '1'; allowed: a whole number, 2..4096"),
        (",block=x", "block is 'x'; allowed: a whole number"),
        (",budget=3", "allowed: dflash:path=... or dflash:pass_rule=..."),
    ],
)
def test_options_that_are_refused(place: Path, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        opened(place, more)


def test_a_path_is_needed(place: Path) -> None:
    with pytest.raises(ConfigError, match="name its path"):
        open_session(str(place / "tiny"), "dflash", device="cpu")


COSTS = LatencyModel.affine(c_s=0.0001, b_s=0.004, draft_pass_s=0.0005)
SPELLINGS = ("static:length=2", "static:length=7", "libraspec:alpha=1.2", "goodput", "threshold:tau=0.2")


@functools.cache
def fitted() -> DFlashDrafter:
    tried = subject("llama")
    text = torch.cat([tried.prompt, torch.tensor(tried.plain)])
    return DFlashDrafter(fitted_dflash(tried.model, text, noise=0.2), tried.model, name="dflash", max_draft_len=7)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_recording_replays_to_the_rounds_of_a_run(spelling: str) -> None:
    """Lengths, passes and accepted tokens of every round, with up to three passes in a round."""
    tried, drafter = subject("llama"), fitted()
    rows = record_request(
        tried.model, proposer_of(drafter), tried.prompt, max_new_tokens=14, max_draft_len=7, stop_ids=()
    )
    assert rows.output.tolist() == tried.plain
    assert rows.accept_len.max() >= 3
    meta = TraceMeta(block_len=3, max_draft_len=7, exact=True)
    replayed = replay(meta, list(to_chunks([rows])), COSTS, [spelling], keep_rounds=True).rounds[0]
    controller = controller_of(spelling, drafter, c_s=0.0001 / 0.004, pass_s=0.0005 / 0.004)
    online = OnlineController(controller, compiled=not controller.compiled)
    found = decode(Target(tried.model), drafter, online, tried.prompt, Settings(max_new_tokens=14), clock=FixedClock())
    for column in ("pos", "drafted_len", "submitted_len", "accepted_len", "draft_passes"):
        assert [getattr(row, column) for row in found.rounds] == replayed[column].tolist(), column
    assert all(row.forward_passes == row.draft_passes for row in found.rounds)


def test_measuring_gives_every_round_the_context(place: Path) -> None:
    """Every draft is the drafter's own, as long as asked for; passes are counted."""
    drafter = opened(place, max_draft_len=8)
    prompts = [torch.arange(3, 3 + n) % 40 for n in (9, 20)]
    samples = measure(Target(drafter.model), drafter, prompts, max_draft_len=8, repeats=1)
    drafting = [one for one in samples if one.s > 1]
    assert {one.s for one in samples} == set(range(1, 10))
    assert all(one.own >= one.s - 1 and one.passes == -(-one.own // 3) for one in drafting)
    assert all(one.draft_s > 0 for one in drafting)


def command(main, place: Path, out: Path, *words: str, drafter: str = "") -> int:
    arguments = ["--target", str(place / "tiny"), "--drafter", f"dflash:path={place / 'drafter'}{drafter}"]
    arguments += ["--dataset", str(place / "prompts.jsonl"), "--requests", "2", "--max-new-tokens", "12"]
    arguments += ["--max-draft-len", "5", "--device", "cpu", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "measure", steadied)  # times of a tiny model are noise
        with pytest.raises(SystemExit) as left:
            run_cli(main, [*arguments, *words])
    return left.value.code


@pytest.mark.parametrize("pass_rule", ["keep-first", "per-length"])
def test_probe_records_block_and_rule(place: Path, tmp_path: Path, pass_rule: str) -> None:
    more = "" if pass_rule == "keep-first" else f",pass_rule={pass_rule}"
    assert command(probe.main, place, tmp_path / "t.parquet", "--latency-repeats", "2", drafter=more) == 0
    meta, rows = read_trace(tmp_path / "t.parquet")
    assert (meta.drafter, meta.block_len, meta.pass_rule, meta.max_draft_len) == ("dflash", 3, pass_rule, 5)
    assert (meta.exact, meta.mismatches) == (True, 0)
    assert meta.latency is not None
    assert rows.accept_len.max() >= 2
    assert rows.q is not None
    assert bool(((rows.q > 0) & (rows.q <= 1)).all())
    options = stored_drafter(tmp_path / "t.parquet", meta).options
    assert options == {"path": str(place / "drafter")} | ({"pass_rule": pass_rule} if more else {})


def test_validate_finds_no_difference(place: Path, tmp_path: Path) -> None:
    words = ["--repeats", "2", "--controllers", "static:length=5", "--controllers", "libraspec"]
    assert command(validate.main, place, tmp_path / "run", *words) == 0
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    assert document["differences"] == []
    assert document["other_texts_in_trace"] == 0
    assert all(row["shadow"] is None for row in document["results"])
    drafted = [row["measured"]["tau"] for row in document["results"]]
    assert max(drafted) > 1.2


def test_per_length_is_validated_with_rules_that_read_no_confidences(place: Path, tmp_path: Path, capsys) -> None:
    """Those that do see confidences which the next pass replaces."""
    words, rule = ["--repeats", "2", "--controllers"], ",pass_rule=per-length"
    assert command(validate.main, place, tmp_path / "run", *words, "libraspec", drafter=rule) == 2
    assert "reads confidences, which pass_rule=per-length replaces" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert command(validate.main, place, tmp_path / "run", *words, "static:length=5", drafter=rule) == 0
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    assert all(row["shadow"] is None for row in document["results"])


def test_generate_drafts_from_the_second_round_on(place: Path) -> None:
    loaded = load_target(str(place / "tiny"), device="cpu")
    inputs = {"input_ids": torch.tensor([loaded.tokenizer(TEXTS[0])["input_ids"]])}
    spelled = {"drafter": f"dflash:path={place / 'drafter'}", "controller": "static:length=3"}
    output = real.generate(loaded.model, inputs, max_new_tokens=12, return_dict_in_generate=True, **spelled)
    plain = plain_greedy(loaded.model, inputs["input_ids"][0], 12)
    assert output.sequences[0, -12:].tolist() == plain


def test_generate_reads_the_drafter_once_for_a_target(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, load = [], dflash.load_dflash
    monkeypatch.setattr(dflash, "load_dflash", lambda *args, **more: read.append(args[0]) or load(*args, **more))
    method = real.Speculative(drafter=f"dflash:path={place / 'drafter'}", controller="static:length=3")
    models = [load_target(str(place / "tiny"), device="cpu").model for _ in range(2)]
    for model in (models[0], models[0], models[1], models[1]):
        model.generate(torch.tensor([[5, 6, 7]]), custom_generate=method, max_new_tokens=3)
    assert len(read) == 2
