"""Self-speculation's arms: names and files, families made on the way, small trees, live rounds against replays."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real  # noqa: E402
from real.builders.arm import Arm, ArmFile  # noqa: E402
from real.builders.spine import SP2EC  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.drafters.family import Family, Observation  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.drafters.spine import Spine, likeliest  # noqa: E402
from real.interleave import Comparison  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.measure import measure  # noqa: E402
from real.record import proposer_of  # noqa: E402
from real.session import make_drafter, open_session, setting_of  # noqa: E402
from real.target import Target, hidden_states  # noqa: E402
from real.tree import depths  # noqa: E402
from real.verify import Draft  # noqa: E402
from specsim.chunk import TraceChunk  # noqa: E402
from specsim.engine import replay  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from specsim.trace import TraceMeta  # noqa: E402
from tests.real_law import FixedClock, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_selfspec import ARMS, COSTS, LIVE, Reference, blocks_of, controller_for, self_drafter  # noqa: E402
from tests.real_tiny import prompt_ids, save_tiny, tiny_llama, tiny_loaded  # noqa: E402

# --- names and files -------------------------------------------------------------------------------------------------


def make(text: str, *, layers: int = 12, longest: int = 24, sampling: str = "greedy") -> SelfDrafter:
    loaded = tiny_loaded(layers=layers)
    spec = parse_drafter(text, target="tiny", n_layers=layers)
    made = make_drafter(spec, loaded, max_draft_len=longest, draft_sampling=sampling)
    assert isinstance(made, SelfDrafter)
    return made


def test_one_arm_by_its_spelling() -> None:
    made = make("self:skip=a3,5-7+m2,9,length=6,stop=0.7,tree=published")
    assert made.family.arm(0) == Arm(attention=frozenset({3, 5, 6, 7}), mlp=frozenset({2, 9}))
    assert made.name == "self:skip=a3,5-7+m2,9,length=6,stop=0.7,tree=published"
    assert (made.max_draft_len, made.arm_draft_len, made.stop, made.depth) == (6, 6, 0.7, 6)
    bare = make("self:skip=9,4-5")
    assert (bare.name, bare.max_draft_len, bare.arm_draft_len, bare.stop) == ("self:skip=4,5,9", 24, 4, None)
    assert make("self:skip=4", longest=2).arm_draft_len == 2


def arms_file(folder: Path, *texts: str, layers: int = 12) -> Path:
    ArmFile("tiny", layers, "by hand", tuple(Arm.parse(text) for text in texts)).save(folder / "arms.json")
    return folder / "arms.json"


def test_a_file_of_arms_in_the_order_of_what_they_leave_out(tmp_path: Path) -> None:
    made = make(f"self:arms={arms_file(tmp_path, '4-6', '', 'm4', 'a4')},stop=0.5")
    assert [str(made.family.arm(k)) for k in range(made.family.size)] == ["", "a4", "m4", "4-6"]
    assert list(made.arm_costs) == sorted(made.arm_costs, reverse=True)
    assert made.max_draft_len == made.arm_draft_len == 4
    other = make(f"self:arms={arms_file(tmp_path, '4-6', '')},stop=0.5")
    assert made.name.partition("#")[0] == other.name.partition("#")[0] == "self:arms=arms.json"
    assert made.name != other.name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("self", "name its arms in one way"),
        ("self:skip=4,arms=x.json", "name its arms in one way"),
        ("self:skip=12", r"no layer 12; the target has layers 0\.\.11"),
        ("self:skip=0-11", "leaves out all 12 layers"),
        ("self:skip=x", "cannot read"),
        ("self:skip=4,length=0", r"length is '0'; allowed: a whole number, 1\.\.24"),
        ("self:skip=4,length=25", r"length is '25'; allowed: a whole number, 1\.\.24"),
        ("self:skip=4,stop=2", "stop is '2'; allowed: a number from 0 to 1"),
        ("self:skip=4,stop=nan", "stop is 'nan'; allowed: a number from 0 to 1"),
        ("self:skip=4,tree=big", "tree is 'big'; allowed: published"),
        ("self:arms=none.json", "cannot be read"),
    ],
)
def test_spellings_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make(text)


def test_what_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="draft sampling 'sample'; allowed: greedy"):
        make("self:skip=4", sampling="sample")
    with pytest.raises(ConfigError, match=r"arms of a target of 12 decoder layers \(tiny\); this one has 3"):
        make(f"self:arms={arms_file(tmp_path, '4')}", layers=3)
    with pytest.raises(ConfigError, match="a trace of arms is for choosing among several"):
        proposer_of(make("self:skip=4"))


def test_what_controllers_are_told_of_arms() -> None:
    drafter = self_drafter(blocks_of("llama"), arm_draft_len=3)
    told = setting_of(drafter, COSTS, arms=True)
    assert (told.kind, told.draft_len, told.block_len) == ("arm", 3, 1)
    assert told.arm_draft_s == pytest.approx([cost * 1.05 for cost in drafter.arm_costs])  # a plain pass takes 1.05
    assert setting_of(drafter, COSTS).kind == "length"


def test_a_session_with_arms_from_its_names_to_its_rounds(tmp_path: Path) -> None:
    """Controllers of arms and plain decoding side by side; with one arm those of lengths too."""
    save_tiny(tmp_path / "model", layers=4)
    file = arms_file(tmp_path, "1+m2", "", "m1", layers=4)
    spellings = ["plain", "sp2ec", "exp3spec", "arm:index=2", "sp2ec-2d"]
    session = open_session(str(tmp_path / "model"), f"self:arms={file},length=3,stop=0.2", device="cpu")
    lanes = list(zip(spellings, session.controllers(spellings, COSTS), strict=True))
    asked = Settings(max_new_tokens=14, seed=4)
    request = Comparison(session, lanes, asked).run(0, "0", prompt_ids(2))
    outputs, arms = {}, {}
    for run in request.runs:
        outputs[run.controller] = run.decoded.output
        arms[run.controller] = [row.arm for row in run.decoded.rounds]
    assert all(output == outputs["plain"] for output in outputs.values())
    assert arms["sp2ec"][:3] == [0, 1, 2]
    assert set(arms["arm:index=2"]) == {2}
    assert set(arms["plain"]) == {-1}
    with pytest.raises(ConfigError, match="has 3 arms to choose from"):
        session.controllers(["lambda"], COSTS)
    one = open_session(str(tmp_path / "model"), "self:skip=m1", device="cpu")
    both = ["plain", "lambda", "sp2ec", "arm:index=0"]
    lanes = list(zip(both, one.controllers(both, COSTS), strict=True))
    request = Comparison(one, lanes, asked).run(0, "0", prompt_ids(2))
    assert all(run.decoded.output == outputs["plain"] for run in request.runs)


@pytest.mark.parametrize("tree", [False, True])
def test_every_length_is_measured(tree: bool) -> None:
    drafter = self_drafter(blocks_of("llama"), max_draft_len=6, tree=tree)
    samples = measure(Target(blocks_of("llama").target), drafter, [prompt_ids(5)], max_draft_len=6, repeats=1)
    assert {one.s for one in samples} == set(range(1, 8))
    assert (max(one.passes for one in samples) == 6) == tree


def test_generate_drafts_with_arms_from_the_first_round_on() -> None:
    """The prompt is not merged with the first round, which would be the first arm's."""
    model, prompt = tiny_llama(), prompt_ids(1)
    found = real.generate(
        model,
        prompt[None],
        drafter="self:skip=m1,length=3",
        controller="sp2ec",
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
    )
    assert found.sequences[0, len(prompt) :].tolist() == plain_greedy(model, prompt, 12)


# --- arms made on the way --------------------------------------------------------------------------------------------


class Toy(Family):
    """Leaves out one sub-block more for each arm, by what it saw of the rounds before; arms 0..2."""

    size, wants_states = 3, True

    def start(self, prompt: torch.Tensor) -> None:
        self.prompt, self.made, self.seen = prompt.tolist(), [Arm()], []

    def arm(self, number: int) -> Arm:
        return self.made[number]

    def observe(self, seen: Observation) -> None:
        self.seen.append(seen)
        if len(self.made) < self.size:
            assert seen.states is not None
            moved = (seen.states[:, 1:] - seen.states[:, :-1]).abs().sum(dim=(0, 2))
            for layer in self.made[-1].mlp:
                moved[layer] = math.inf
            self.made.append(Arm(mlp=self.made[-1].mlp | {int(moved.argmin())}))


def test_arms_can_be_made_while_a_prompt_is_decoded() -> None:
    blocks, toy = blocks_of("llama"), Toy()
    drafter = SelfDrafter(blocks, toy, name="toy", max_draft_len=3, arm_draft_len=3)
    assert all(math.isnan(cost) for cost in drafter.arm_costs)
    online = OnlineController(controller_for("sp2ec", drafter), seed=1)
    for seed in (1, 2):
        prompt = prompt_ids(seed)
        found = decode(Target(blocks.target), drafter, online, prompt, Settings(max_new_tokens=14), clock=FixedClock())
        assert found.output == plain_greedy(blocks.target, prompt, 14)
        assert toy.prompt == prompt.tolist()
        # Construction rounds are the controller's first pulls, and the arms are those rounds' own.
        assert [row.arm for row in found.rounds[:3]] == [0, 1, 2]
        assert [seen.arm for seen in toy.seen] == [row.arm if row.drafted_len else -1 for row in found.rounds]
        assert [token for seen in toy.seen for token in seen.committed] == found.output
        for seen, row in zip(toy.seen, found.rounds, strict=True):
            assert len(seen.drafted) == row.drafted_len
            assert list(seen.drafted[: row.accepted_len]) == list(seen.committed[: row.accepted_len])
            assert (seen.states is None) == (row.drafted_len == 0)
    with pytest.raises(ConfigError, match="needs arms with a known draft_s"):
        controller_for("sp2ec-2d", drafter)


@torch.inference_mode()
def test_a_family_sees_what_went_through_every_layer() -> None:
    """States of whole passes are those of the target; a layer left out hands on what entered it."""
    blocks, prompt = blocks_of("qwen2"), prompt_ids(3)

    class Watch(Toy):
        def start(self, prompt: torch.Tensor) -> None:
            super().start(prompt)
            self.made = [Arm(), Arm.parse("1"), Arm.parse("0+a1")]

    watch = Watch()
    drafter = SelfDrafter(blocks, watch, name="watch", max_draft_len=3, arm_draft_len=3)
    decode(
        Target(blocks.target),
        drafter,
        OnlineController(controller_for("ucb1", drafter)),
        prompt,
        Settings(max_new_tokens=12),
    )
    whole, without, other = watch.seen[:3]
    assert whole.states.shape == (3, 4, 32)
    text = torch.cat([prompt, torch.tensor(whole.drafted[:2])])
    with hidden_states(blocks.target, range(3)) as found:
        blocks.target(input_ids=text[None], use_cache=False)
    for layer in range(3):
        assert torch.allclose(whole.states[:, layer + 1], found[layer][0, -3:], atol=1e-4)
    embedded = blocks.target.get_input_embeddings()(text[-3:])
    assert torch.equal(whole.states[:, 0], embedded)
    assert torch.equal(without.states[:, 1], without.states[:, 2])
    assert not torch.equal(without.states[:, 0], without.states[:, 1])
    assert torch.equal(other.states[:, 0], other.states[:, 1])
    assert not torch.equal(other.states[:, 1], other.states[:, 2])
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in blocks.target.model.layers)


# --- the small tree --------------------------------------------------------------------------------------------------


def test_how_many_candidates_a_place_has() -> None:
    assert [SP2EC.of(q) for q in (0.1, 0.5, 0.500001, 0.8, 0.800001, 1.0)] == [5, 5, 3, 3, 2, 2]


def test_a_spine_with_its_alternatives() -> None:
    """Probabilities by hand: the second place is the surest, its alternative the least likely node of all."""
    tops = torch.tensor([[0.6, 0.2, 0.1, 0.05, 0.02], [0.9, 0.04, 0.03, 0.02, 0.01], [0.4, 0.3, 0.1, 0.1, 0.1]])
    ids = torch.arange(15).reshape(3, 5)
    spine = Spine(Draft(ids[:, 0], tops[:, 0]), ids, tops)
    tree = spine.first(3)
    assert tree.tokens.tolist() == [0, 5, 10, 1, 11, 2, 12, 13, 14, 6]
    assert tree.parents.tolist() == [-1, 0, 1, -1, 1, -1, 1, 1, 1, 0]
    w = [0.6, 0.54, 0.216, 0.2, 0.162, 0.1, 0.054, 0.054, 0.054, 0.024]
    assert np.cumprod(tree.q.double().numpy()) == pytest.approx(w, rel=1e-5)
    assert spine.first(1).tokens.tolist() == [0, 1, 2]
    assert len(spine.first(0).tokens) == 0
    assert spine.q.tolist() == tops[:, 0].tolist()


@settings(max_examples=60)
@given(st.lists(st.lists(st.floats(-30, 30), min_size=7, max_size=7), min_size=1, max_size=6))
def test_trees_are_the_chain_and_leaves_beside_it(rows: list[list[float]]) -> None:
    found = [likeliest(torch.tensor(row)) for row in rows]
    tops, ids = (torch.stack(part) for part in zip(*found, strict=True))
    law = torch.softmax(torch.tensor(rows), dim=-1)
    assert torch.allclose(tops, law.gather(1, ids), atol=1e-6)
    tree = Spine(Draft(ids[:, 0], tops[:, 0]), ids, tops).first(len(rows))
    parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
    assert all(parent < node for node, parent in enumerate(parents))
    assert len(set(zip(parents, tokens, strict=True))) == len(parents)  # siblings differ
    inner, levels = {parent for parent in parents if parent >= 0}, depths(parents)
    assert sorted(levels[node] for node in inner) == list(range(1, len(rows)))
    assert [tokens[node] for node in sorted(inner)] == ids[:-1, 0].tolist()
    assert [levels.count(level + 1) for level in range(len(rows))] == [SP2EC.of(float(q)) for q in tops[:, 0]]
    assert bool((tree.q <= 1).all() & (tree.q >= 0).all())


# --- live rounds against a replay ------------------------------------------------------------------------------------


class ArmClock:
    """Shows what a round of the arm under way costs."""

    def __init__(self, drafter: SelfDrafter, seconds: list[float]) -> None:
        self.drafter, self.seconds, self.now = drafter, seconds, 0

    def start(self) -> None:
        pass

    def enter(self) -> None:
        pass

    def leave(self, stage: str) -> None:
        self.now = max(self.drafter._arm, 0)

    def read(self) -> tuple[float, float, float]:
        return 0.0, 0.0, self.seconds[self.now]


@pytest.fixture(scope="module")
def table() -> tuple[list[int], np.ndarray]:
    """Plain greedy output, and how many of 4 tokens each arm has accepted at each position, by the reference."""
    model, prompt = blocks_of("llama").target, prompt_ids(6).tolist()
    reference, output = Reference(model), plain_greedy(model, torch.tensor(prompt), 28)
    known, accepted = reference.read(prompt + output), np.zeros((len(output), len(ARMS)), np.int16)
    for pos in range(len(output)):
        for number, arm in enumerate(ARMS):
            drafted, _ = reference.draft([*prompt, *output[:pos]], arm, 4, known)
            left = output[pos : len(output) - 1]
            same = [one == two for one, two in zip(drafted, left, strict=False)]
            accepted[pos, number] = same.index(False) if False in same else len(same)
    return output, accepted


@pytest.mark.parametrize("spelling", [spelling for spelling in LIVE if not spelling.startswith("sp2ec-2d")])
def test_a_live_run_is_the_replay_of_its_arm_trace(spelling: str, table: tuple[list[int], np.ndarray]) -> None:
    """The same arms, tokens and rounds, where rounds cost what the trace says."""
    output, accepted = table
    drafter = self_drafter(blocks_of("llama"))
    draft_s = [0.05 * (len(ARMS) - number) for number in range(len(ARMS))]
    controller = controller_for(spelling, drafter)
    rounds = [4 * one + 1.0 + 0.05 * 5 for one in draft_s]  # COSTS: a pass over five positions, no overhead
    found = decode(
        Target(blocks_of("llama").target),
        drafter,
        OnlineController(controller, seed=9, compiled=False),
        prompt_ids(6),
        Settings(max_new_tokens=len(output)),
        clock=ArmClock(drafter, rounds),
    )
    rows = len(output)
    chunk = TraceChunk(
        request=np.zeros(rows, np.int32),
        pos=np.arange(rows, dtype=np.int32),
        offsets=np.arange(rows + 1) * 4,
        accept_len=accepted.max(axis=1),
        arm_accept_len=accepted,
    )
    arms: Any = tuple({"name": str(n), "budget": n, "draft_s": one} for n, one in enumerate(draft_s))
    meta = TraceMeta(kind="arm", max_draft_len=4, draft_len=4, arms=arms)
    [log] = replay(meta, [chunk], COSTS, [controller], seed=9, keep_rounds=True, compiled=False).rounds
    live = [(row.arm, row.accepted_len, row.emitted_len) for row in found.rounds]
    again = [tuple(int(log[key][n]) for key in ("arm", "accepted_len", "emitted_len")) for n in range(len(log["arm"]))]
    assert live == again
    assert len({arm for arm, *_ in live}) > 1 or spelling.startswith("arm:")
