"""DDTree from the command line: traces, replay, calibration and validation; live runs against replays of the trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real import calibrate, calibrate_cli, probe, recordings, validate  # noqa: E402
from real.compare import measured  # noqa: E402
from real.data import encode, load_prompts  # noqa: E402
from real.drafters.ddtree import DepthTrees, NodeTrees  # noqa: E402
from real.drafters.dflash_load import save_dflash  # noqa: E402
from real.foretold import foretell  # noqa: E402
from real.interleave import PLAIN, Comparison  # noqa: E402
from real.loop import Round, Settings  # noqa: E402
from real.measure import Sample, lengths_up_to, measure, most_new_tokens  # noqa: E402
from real.models import load_target  # noqa: E402
from real.record import proposer_of, record_request  # noqa: E402
from real.session import open_session, setting_of  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.controllers import REGISTRY  # noqa: E402
from specsim.errors import ConfigError, run_cli  # noqa: E402
from specsim.latency import LatencyModel, Table, load_latency  # noqa: E402
from specsim.trace import TraceMeta, read_trace, write_trace  # noqa: E402
from tests.dflash_tiny import fitted_dflash, tiny_dflash  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_tiny import prompt_ids, save_tiny, tiny_llama  # noqa: E402

TEXTS = ("abcabcabd", "hello hello", "xyzzy xy")
NEW, BUDGET = 24, 12
COSTS = LatencyModel(
    verify=Table(s=(1.0, 2.0, 5.0, 13.0), times_s=(0.05, 0.06, 0.08, 0.15)),
    ctx_s=1e-4,
    draft_pass_s=0.01,
    overhead_s=0.003,
)
SPELLINGS = (
    *("static:length=0", "static:length=1", "static:length=5", f"static:length={BUDGET}"),
    *("caddtree", "lambda", "goodput", "libraspec"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a DFlash drafter that half knows what it writes, and prompts."""
    folder = tmp_path_factory.mktemp("ddtree")
    save_tiny(folder / "model", seed=3, spread=0.08)
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    loaded = load_target(str(folder / "model"), device="cpu")
    prompt = encode(loaded.tokenizer, load_prompts(str(folder / "p.jsonl"))[0])
    text = torch.cat([prompt, torch.tensor(plain_greedy(loaded.model, prompt, 40))])
    save_dflash(folder / "dflash", fitted_dflash(loaded.model, text, steps=60, noise=0.3))
    return folder


def session_of(place: Path, limit: str = "nodes", **options: Any) -> Any:
    return open_session(
        str(place / "model"), f"ddtree:path={place / 'dflash'},budget={BUDGET},limit={limit}", device="cpu", **options
    )


def price(name: str, row: Round) -> None:
    """Gives a round exactly its price, before the controller is told."""
    row.draft_s = float(COSTS.draft_s(row.draft_passes if row.drafted_len else 0, row.drafted_len))
    row.verify_s = float(COSTS.verify_s(row.submitted_len + 1, row.ctx_len))
    row.round_s = row.draft_s + row.verify_s + (0.0 if name == PLAIN else COSTS.overhead_s)


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("stops", [False, True])
def test_a_replay_of_the_trace_is_the_live_run(place: Path, tmp_path: Path, stops: bool, sample: bool) -> None:
    """Recorder, replay, loop and formulas agree: no error is left where every round costs what the model says.

    Under sampling too: a node's token is drawn with the number plain decoding uses there.
    """
    session, spellings = session_of(place), [PLAIN, *SPELLINGS]
    controllers = session.controllers(spellings, COSTS)
    prompts = [encode(session.loaded.tokenizer, prompt) for prompt in load_prompts(str(place / "p.jsonl"))]
    stop_ids = (plain_greedy(session.loaded.model, prompts[0], NEW)[15],) if stops else ()
    asked = Settings(max_new_tokens=NEW, seed=7, stop_ids=stop_ids, sample=sample)
    comparison = Comparison(session, list(zip(spellings, controllers, strict=True)), asked)
    requests = [comparison.run(number, str(number), prompt, price) for number, prompt in enumerate(prompts)]
    rows = [
        record_request(
            session.loaded.model,
            proposer_of(session.drafter),
            prompt,
            max_new_tokens=NEW,
            max_draft_len=24,
            stop_ids=stop_ids,
            sampled=(7, number) if sample else None,
        )
        for number, prompt in enumerate(prompts)
    ]
    meta = TraceMeta(**recordings.trace_shape(session.drafter, 24), exact=not sample, temperature=float(sample))
    write_trace(tmp_path / "t.parquet", meta, recordings.to_chunks(rows))
    seen = measured(requests, spellings, seed=7)
    ahead = foretell(tmp_path / "t.parquet", COSTS, controllers, seed=7)
    for name, was, now in zip(spellings, seen, ahead, strict=True):
        assert (now.tokens, now.rounds) == (was.tokens, was.rounds), name
        assert now.speedup == pytest.approx(was.speedup, rel=1e-9), name
    assert sum(len(rows.output) for rows in rows) < NEW * len(TEXTS) or not stops
    assert len({round(was.speedup, 3) for was in seen}) > 4
    assert any(was.tau > (1.0 if sample else 1.3) for was in seen)


def command(main: Any, arguments: dict[str, str], *flags: str) -> int:
    with pytest.raises(SystemExit) as left:
        run_cli(main, [*(f"{key}={value}" for key, value in arguments.items()), *flags])
    return left.value.code


def names(place: Path, limit: str = "nodes") -> dict[str, str]:
    return {
        "--target": str(place / "model"),
        "--drafter": f"ddtree:path={place / 'dflash'},budget={BUDGET},limit={limit}",
        "--device": "cpu",
    }


def steadied(*args: Any, **options: Any) -> list[Sample]:
    """Measures for real, then says what `COSTS` does: times of a tiny model on a busy machine are noise."""
    return [
        replace(
            one,
            verify_s=float(COSTS.verify_s(one.s, one.ctx_len)),
            draft_s=COSTS.draft_pass_s * one.passes,
            overhead_s=COSTS.overhead_s,
        )
        for one in measure(*args, **options)
    ]


def test_the_probe_writes_a_tree_trace(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    limits = {"--dataset": str(place / "p.jsonl"), "--requests": "2", "--max-new-tokens": "8", "--max-draft-len": "2"}
    arguments = names(place) | limits | {"--latency-repeats": "0", "--out": str(out)}
    assert command(probe.main, arguments) == 0
    meta, rows = read_trace(out)
    assert (meta.kind, meta.block_len, meta.max_draft_len, meta.max_nodes) == ("tree", 3, 2, BUDGET)
    assert meta.exact
    assert rows.topk_q is not None
    assert len(rows.topk_q) == BUDGET * rows.offsets[-1]
    assert max(rows.lengths) == 2
    assert command(probe.main, {**arguments, **names(place, "depth"), "--out": str(tmp_path / "d.parquet")}) == 2


def test_validation(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "measure", steadied)
    out = tmp_path / "run"
    limits = {"--dataset": str(place / "p.jsonl"), "--requests": "2", "--max-new-tokens": "12", "--repeats": "2"}
    spellings = (f"static:length={BUDGET}", "caddtree", "lambda")
    flags = [f"--controllers={name}" for name in spellings]
    assert command(validate.main, names(place) | limits | {"--out": str(out)}, *flags) == 0
    document = json.loads((out / "results.json").read_text())
    assert [row["controller"] for row in document["results"]] == [PLAIN, *spellings]
    assert all(row["shadow"] is None and row["predicted"] is not None for row in document["results"])
    assert document["differences"] == []
    assert document["other_texts_in_trace"] == 0
    model = load_latency(out / "calibration.json")
    assert {int(s) for s, _ in model.provenance["points"]} >= {1, 2, BUDGET + 1}
    assert model.draft_pass_s == pytest.approx(COSTS.draft_pass_s)
    for flag in ("threshold", "g4"):
        assert (
            command(validate.main, names(place) | limits | {"--out": str(tmp_path / "x")}, f"--controllers={flag}") == 2
        )


def test_a_depth_limit_is_calibrated_by_depth(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rule asks the latency model about is what it counts, though the nodes verified are always the budget."""
    monkeypatch.setattr(calibrate, "measure", steadied)
    session = session_of(place, "depth", max_draft_len=7)
    assert isinstance(session.drafter, DepthTrees)
    out = tmp_path / "c.json"
    arguments = names(place, "depth") | {"--max-draft-len": "7", "--repeats": "2", "--out": str(out)}
    assert command(calibrate_cli.main, arguments, "--context=12", "--context=30") == 0
    model = load_latency(out)
    assert [int(s) for s, _ in model.provenance["points"]] == list(range(1, 9))
    samples = measure(
        Target(session.loaded.model), session.drafter, [torch.tensor([3, 4, 5])], max_draft_len=7, repeats=1
    )
    assert {one.s for one in samples} == set(range(1, 9))
    assert {one.passes for one in samples} == {0, 1, 2, 3}


def test_a_tree_fits_a_window_that_its_nodes_in_a_row_would_not() -> None:
    """Rounds of up to 64 nodes at a window of 256: no path is longer than a block."""
    model = tiny_llama(seed=3)
    drafter = NodeTrees(tiny_dflash(model), model, name="t", budget=64)
    assert most_new_tokens(64) > 256 > most_new_tokens(64, drafter.depth) + 8
    samples = measure(Target(model), drafter, [prompt_ids(5, n=8)], max_draft_len=64, repeats=1)
    assert [one.s for one in samples].count(65) == 1
    assert {one.s for one in samples} == set(lengths_up_to(64))
    with pytest.raises(ConfigError, match="exceed the target's window"):
        measure(Target(model), drafter, [prompt_ids(5, n=200)], max_draft_len=64, repeats=1)


def test_controllers_of_trees_are_built_for_trees(place: Path) -> None:
    """The same names on trees, by node; where the depth is chosen, a rule of chains."""
    nodes, deep = session_of(place), session_of(place, "depth", max_draft_len=7)
    assert isinstance(nodes.drafter, NodeTrees)
    assert setting_of(nodes.drafter, COSTS).tree
    assert not setting_of(deep.drafter, COSTS).tree
    assert nodes.controllers(["caddtree"], COSTS)[0].config["max"] == BUDGET
    assert deep.controllers(["libraspec:alpha=2.2"], COSTS)[0].config == {
        **REGISTRY["libraspec"].resolve({"alpha": 2.2}, setting_of(deep.drafter, COSTS)).config,
        "block": 3,
        "max": 7,
    }
    with pytest.raises(ConfigError, match="a tree, of which a number of nodes"):
        nodes.controllers(["threshold"], COSTS)
    assert deep.controllers(["threshold"], COSTS)
