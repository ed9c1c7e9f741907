"""The EAGLE-3 head and its drafters: against a second writing of the head, and against drafters that begin anew."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.base import Drafter  # noqa: E402
from real.drafters.eagle3 import Eagle3Chain, Eagle3Tree  # noqa: E402
from real.drafters.eagle3_net import default_layers  # noqa: E402
from real.drafters.eagle3_record import Eagle3Proposer  # noqa: E402
from real.draws import KeyedDraws  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_eagle3 import (  # noqa: E402
    SlowHead,
    features_of,
    pair,
    random_head,
    slow_chain,
    slow_tree,
    tiny_config,
    tree_paths,
)
from tests.real_law import controller_of, one_thread  # noqa: E402, F401 - a fixture
from tests.real_lossless import plain_greedy, random_lengths  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402


def begun(drafter: Drafter, model, text: torch.Tensor) -> Drafter:
    """A drafter at the first round after a text."""
    Target(model).start(text, len(text) + 80, drafter.tap)
    drafter.start(text, len(text) + 80, KeyedDraws(0, 0), ())
    return drafter


@pytest.mark.parametrize("options", [{}, {"norm_before_residual": True}, {"draft_vocabulary": 64}])
def test_a_chain_is_what_the_slow_head_drafts(options) -> None:
    model, text, seen = tiny_llama(layers=8), prompt_ids(3, 9), set()
    for seed in range(3):
        net = random_head(tiny_config(**options), seed=seed)
        draft = begun(Eagle3Chain(net, model, name="chain"), model, text).propose(6, -1)
        slow = SlowHead(net, model.get_input_embeddings().weight)
        wanted = slow_chain(slow, text.tolist(), features_of(model, text), 6)
        assert draft.tokens.tolist() == [token for token, _ in wanted]
        assert draft.q.tolist() == pytest.approx([q for _, q in wanted], rel=1e-3)
        assert bool(net.t2d[draft.tokens].all())
        seen |= set(draft.tokens.tolist())
    assert len(seen) > 3


def test_a_head_with_its_own_embeddings_does_not_look_at_the_targets() -> None:
    model, text = tiny_llama(layers=8), prompt_ids(3, 9)
    net = random_head(tiny_config(own_embedding=True), seed=4)
    draft = begun(Eagle3Chain(net, model, name="chain"), model, text).propose(4, -1)
    slow = SlowHead(net, net.embed_tokens.weight)
    assert draft.tokens.tolist() == [t for t, _ in slow_chain(slow, text.tolist(), features_of(model, text), 4)]


@pytest.mark.parametrize(
    ("size", "depth", "top_k"), [(59, 4, 4), (12, 5, 3), (3, 3, 4), (200, 2, 5), (6, 6, 1), (9, 3, 40)]
)
def test_a_tree_is_what_the_slow_head_grows(size: int, depth: int, top_k: int) -> None:
    model, text = tiny_llama(layers=8), prompt_ids(5, 8)
    net = random_head(tiny_config(), seed=5)
    tree = begun(Eagle3Tree(net, model, name="tree", size=size, depth=depth, top_k=top_k), model, text)
    draft = tree.propose(tree.max_draft_len, -1)
    slow = SlowHead(net, model.get_input_embeddings().weight)
    wanted = slow_tree(slow, text.tolist(), features_of(model, text), size=size, depth=depth, top_k=top_k)
    found = tree_paths(draft)
    assert set(found) == set(wanted)
    assert len(found) == tree.max_draft_len == min(size, top_k + (depth - 1) * top_k**2)
    assert [found[path] for path in found] == pytest.approx([wanted[path] for path in found], rel=1e-3)
    assert draft.passes == depth
    assert all(parent < node for node, parent in enumerate(draft.parents.tolist()))
    assert bool((draft.q <= 1).all())


def test_one_child_per_level_is_a_chain() -> None:
    model, text = tiny_llama(layers=8), prompt_ids(7)
    net = random_head(tiny_config(), seed=7)
    tree = begun(Eagle3Tree(net, model, name="tree", size=59, depth=6, top_k=1), model, text).propose(6, -1)
    chain = begun(Eagle3Chain(net, model, name="chain"), model, text).propose(6, -1)
    assert tree.tokens.tolist() == chain.tokens.tolist()
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4]
    assert tree.q.tolist() == pytest.approx(chain.q.tolist(), rel=1e-5)


class Overheard(Drafter):
    """A drafter whose proposals are written down: {committed text: draft}."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.tap = inner, inner.tap
        self.name, self.block_len, self.max_draft_len = inner.name, inner.block_len, inner.max_draft_len
        self.branches, self.samples = inner.branches, inner.samples
        self.heard: dict[tuple[int, ...], object] = {}

    def start(self, prompt, capacity, draws, processors) -> None:
        self.text = prompt.tolist()
        self.inner.start(prompt, capacity, draws, processors)

    def propose(self, count, arm):
        self.heard[tuple(self.text)] = draft = self.inner.propose(count, arm)
        return draft

    def commit(self, tokens) -> None:
        self.text += tokens
        self.inner.commit(tokens)


def make(kind: str, sampling: str = "greedy") -> Drafter:
    found = pair()
    if kind == "chain":
        return Eagle3Chain(found.net, found.model, name=kind, max_draft_len=5, sampling=sampling)
    return Eagle3Tree(found.net, found.model, name=kind, size=11, depth=4, top_k=3)


@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize("merge", [False, True])
def test_every_draft_of_a_decode_is_that_of_a_drafter_that_begins_there(kind: str, merge: bool) -> None:
    found, drafter = pair(), Overheard(make(kind))
    target, rounds = Target(found.model, merge_prompt=merge), []
    for seed in range(3):
        controller = OnlineController(random_lengths(), seed=seed)
        decoded = decode(target, drafter, controller, found.prompt, Settings(max_new_tokens=24))
        assert decoded.output == found.plain
        rounds += decoded.rounds
    assert sum(row.accepted_len < row.submitted_len for row in rounds) > 5
    assert sum(row.accepted_len for row in rounds) > 20
    for text, draft in drafter.heard.items():
        if merge and len(text) == len(found.prompt):
            assert len(draft.tokens) == 0  # the target has not read the prompt yet
            continue
        fresh = begun(make(kind), found.model, torch.tensor(text)).propose(max(1, len(draft.tokens)), -1)
        assert fresh.tokens.tolist() == draft.tokens.tolist()
        assert fresh.q.tolist() == pytest.approx(draft.q.tolist(), rel=1e-3)
        if kind == "tree":
            assert fresh.parents.tolist() == draft.parents.tolist()


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_after_a_prompt_of_one_token_there_are_no_features_and_the_round_is_plain(kind: str) -> None:
    found, drafter = pair(), make(kind)
    controller = OnlineController(controller_of("static:length=3", drafter))
    decoded = decode(Target(found.model), drafter, controller, found.prompt[:1], Settings(max_new_tokens=9))
    assert decoded.output == plain_greedy(found.model, found.prompt[:1], 9)
    first, *others = decoded.rounds
    assert (first.drafted_len, first.forward_passes, first.emitted_len) == (0, 0, 1)
    assert all(row.drafted_len for row in others[:3])


def test_the_recorder_drafts_what_the_loop_would_at_every_position() -> None:
    found = pair()
    text, prompt_len = torch.tensor([*found.prompt.tolist(), *found.plain]), len(found.prompt)
    n = len(found.plain)
    lens = torch.tensor([min(5, n - pos - 1) for pos in range(n)])
    drafts = Eagle3Proposer(found.net, found.model).propose(text, prompt_len, lens)
    assert drafts.lens.tolist() == lens.tolist()
    for pos, length in enumerate(lens.tolist()):
        fresh = begun(make("chain"), found.model, text[: prompt_len + pos]).propose(length, -1)
        assert drafts.tokens[pos, :length].tolist() == fresh.tokens.tolist()
        assert drafts.q[pos, :length].tolist() == pytest.approx(fresh.q.tolist(), rel=1e-3)


def test_the_recorder_has_nothing_after_a_prompt_of_one_token() -> None:
    found = pair()
    drafts = Eagle3Proposer(found.net, found.model).propose(found.prompt[:6], 1, torch.tensor([3, 3, 2, 1, 0]))
    assert drafts.lens.tolist() == [0, 3, 2, 1, 0]
    assert drafts.entropy[1, 0] > 0


def test_unrolled_training_rows_are_the_drafts_own() -> None:
    found = pair()
    text = torch.tensor([*found.prompt.tolist(), *found.plain])[:12]
    features, embed = features_of(found.model, text), found.model.get_input_embeddings()
    steps = list(found.net.unroll(features[None], text[None], embed, 3))
    assert [tuple(step.shape) for step in steps] == [(1, 11 - j, 40) for j in range(3)]
    for row in range(9):
        slow = SlowHead(found.net, embed.weight)
        output = slow.read(text[: row + 2].tolist(), features)
        for step, logits in enumerate(steps):
            law = torch.log_softmax(logits[0, row], -1)
            wanted = slow.log_law(output)
            assert law.tolist() == pytest.approx([wanted[i] for i in found.net.target_ids.tolist()], abs=1e-3)
            if row + 2 + step < len(text):
                output = slow.entry(output, int(text[row + 2 + step]), row + 1 + step, range(len(slow.keys)))
    assert found.losses[-1] < found.losses[0] / 3


def test_layers_that_are_read() -> None:
    assert default_layers(32) == (1, 15, 28)
    assert default_layers(8) == (1, 3, 4)
    with pytest.raises(ConfigError, match="7 or more"):
        default_layers(6)


def test_refusals() -> None:
    found = pair()
    with pytest.raises(ConfigError, match="allowed: greedy, sample"):
        Eagle3Chain(found.net, found.model, name="x", sampling="beam")
    with pytest.raises(ConfigError, match="1 token or more"):
        Eagle3Chain(found.net, found.model, name="x", max_draft_len=0)
    with pytest.raises(ConfigError, match="topk is 0; allowed: 1"):
        Eagle3Tree(found.net, found.model, name="x", top_k=0)
    with pytest.raises(ConfigError, match=r"layers 0\.\.2"):
        Eagle3Chain(found.net, tiny_llama(layers=3), name="x")


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_bfloat16(kind: str) -> None:
    found = pair()
    model, net = copy.deepcopy(found.model).bfloat16(), copy.deepcopy(found.net).bfloat16()
    if kind == "chain":
        drafter = Eagle3Chain(net, model, name=kind, max_draft_len=5)
    else:
        drafter = Eagle3Tree(net, model, name=kind, size=11, depth=4, top_k=3)
    controller = OnlineController(controller_of("static:length=5", drafter))
    decoded = decode(Target(model), drafter, controller, found.prompt, Settings(max_new_tokens=20))
    assert len(decoded.output) == 20
    assert sum(row.accepted_len for row in decoded.rounds) > 3
    wide = begun(Eagle3Chain(found.net, found.model, name=kind), found.model, found.prompt).propose(1, -1)
    narrow = begun(Eagle3Chain(net, model, name=kind), model, found.prompt).propose(1, -1)
    assert narrow.q.tolist() == pytest.approx(wide.q.tolist(), rel=0.1)
