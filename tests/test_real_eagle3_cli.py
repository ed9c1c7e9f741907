"""`eagle3:path=..` on the command line: options, a recording that predicts runs, and probe and validate on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import calibrate, probe, validate  # noqa: E402
from real.drafters.eagle3 import Eagle3Chain, Eagle3Tree  # noqa: E402
from real.drafters.eagle3_load import save_eagle3  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.record import proposer_of, record_request  # noqa: E402
from real.session import open_session  # noqa: E402
from real.target import Target  # noqa: E402
from real.trace_latency import stored_drafter  # noqa: E402
from specsim.errors import ConfigError, run_cli  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from specsim.trace import read_trace  # noqa: E402
from tests.real_eagle3 import pair  # noqa: E402
from tests.real_law import controller_of, one_thread  # noqa: E402, F401 - a fixture
from tests.real_lossless import random_lengths  # noqa: E402
from tests.real_tiny import save_tiny  # noqa: E402
from tests.real_validate import steadied  # noqa: E402


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a head for it and prompts."""
    folder = tmp_path_factory.mktemp("eagle3")
    save_tiny(folder / "tiny", layers=8)
    save_eagle3(pair().net, folder / "head", dtype=torch.float32)
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in ("abcabcabd", "xyzzy xy")))
    return folder


def opened(place: Path, more: str = "", **options):
    return open_session(str(place / "tiny"), f"eagle3:path={place / 'head'}{more}", device="cpu", **options).drafter


def test_options(place: Path) -> None:
    chain = opened(place, max_draft_len=7)
    assert isinstance(chain, Eagle3Chain)
    assert (chain.block_len, chain.max_draft_len, chain.samples, chain.branches) == (1, 7, False, False)
    assert chain.name == f"eagle3:path={place / 'head'}"
    assert opened(place, draft_sampling="sample").samples
    tree = opened(place, ",tree=30,depth=4,topk=6")
    assert isinstance(tree, Eagle3Tree)
    assert (tree.block_len, tree.max_draft_len, tree.depth, tree.top_k, tree.branches) == (30, 30, 4, 6, True)
    assert (opened(place, ",tree=59").depth, opened(place, ",tree=59").top_k) == (8, 10)
    assert opened(place, ",tree=59", max_draft_len=3).depth == 3


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        (",tree=0", {}, "tree is '0'; allowed: a whole number, 1.."),
        (",tree=x", {}, "tree is 'x'; allowed: a whole number"),
        (",topk=3", {}, "topk belong to a tree; give its most nodes"),
        (",leaves=3", {}, "allowed: eagle3:path=... or eagle3:tree=..."),
        (",tree=9", {"draft_sampling": "sample"}, "draft sampling 'sample' with a tree: allowed: greedy"),
    ],
)
def test_options_that_are_refused(place: Path, more: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        opened(place, more, **options)


def test_a_path_is_needed(place: Path) -> None:
    with pytest.raises(ConfigError, match="name its path"):
        open_session(str(place / "tiny"), "eagle3", device="cpu")


def test_every_round_of_a_decode_is_a_row_of_the_recording() -> None:
    found = pair()
    drafter = Eagle3Chain(found.net, found.model, name="chain", max_draft_len=6)
    rows = record_request(
        found.model, proposer_of(drafter), found.prompt, max_new_tokens=24, max_draft_len=6, stop_ids=()
    )
    assert rows.output.tolist() == found.plain
    assert rows.mismatches == 0
    compared = 0
    for controller in (
        random_lengths(),
        controller_of("libraspec", drafter),
        controller_of("static:length=6", drafter),
    ):
        online = OnlineController(controller, seed=1, compiled=not controller.compiled)
        for row in decode(Target(found.model), drafter, online, found.prompt, Settings(max_new_tokens=24)).rounds:
            assert row.accepted_len == min(rows.accept_len[row.pos], row.submitted_len)
            recorded = rows.q[rows.offsets[row.pos] : rows.offsets[row.pos] + row.drafted_len]
            assert row.q.tolist() == pytest.approx(recorded.tolist(), rel=1e-3)
            compared += row.drafted_len
    assert compared > 30
    assert rows.accept_len.max() > 2


def command(main, place: Path, out: Path, *words: str) -> int:
    arguments = ["--target", str(place / "tiny"), "--drafter", f"eagle3:path={place / 'head'}", "--device", "cpu"]
    arguments += ["--dataset", str(place / "prompts.jsonl"), "--requests", "2", "--max-new-tokens", "10"]
    arguments += ["--max-draft-len", "4", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "measure", steadied)  # times of a tiny model are noise
        with pytest.raises(SystemExit) as left:
            run_cli(main, [*arguments, *words])
    return left.value.code


def test_probe_records_a_chain_with_its_latency(place: Path, tmp_path: Path) -> None:
    assert command(probe.main, place, tmp_path / "trace.parquet", "--latency-repeats", "2") == 0
    meta, rows = read_trace(tmp_path / "trace.parquet")
    assert (meta.drafter, meta.block_len, meta.exact, meta.max_draft_len) == ("eagle3", 1, True, 4)
    assert meta.latency is not None
    assert stored_drafter(tmp_path / "trace.parquet", meta).options == {"path": str(place / "head")}
    assert rows.rows > 10


def test_validate_finds_no_difference(place: Path, tmp_path: Path) -> None:
    words = ["--controllers", "static:length=2", "--repeats", "2"]
    assert command(validate.main, place, tmp_path / "run", *words) == 0
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    assert document["differences"] == []
    assert document["other_texts_in_trace"] == 0
    assert all(row["shadow"] is None for row in document["results"])


def test_a_tree_is_not_recorded_as_a_chain(place: Path) -> None:
    with pytest.raises(ConfigError, match="record the chain"):
        proposer_of(opened(place, ",tree=9"))
