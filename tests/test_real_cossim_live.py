"""cosSim while it decodes: the arms are those of an independent computation, and nothing changes but speed."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.builders.arm import Arm, nested  # noqa: E402
from real.builders.cossim import Construction, boundary, usable_rows, warmup_importance  # noqa: E402
from real.cache import KVCache, forward  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.drafters.cossim import CossimArms  # noqa: E402
from real.drafters.family import Observation  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.drafters.subblocks import SubBlocks  # noqa: E402
from real.loop import Decoded, Settings, decode  # noqa: E402
from real.session import make_drafter  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import FixedClock, one_thread  # noqa: E402, F401 - one_thread is a fixture
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_selfspec import LIVE, LooksAtCache, Reference, buffers, controller_for  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama, tiny_loaded  # noqa: E402

LAYERS, TOKENS = 9, 24
PUBLISHED: Any = {"warmup": "tokens", "probe": "1"}
# Small steps from layer to layer, so that drafts without some of them are taken up to a point.
SPREAD = 0.15


@functools.cache
def blocks() -> SubBlocks:
    return SubBlocks(tiny_llama(layers=LAYERS, spread=SPREAD, seed=4))


@functools.cache
def plain(seed: int) -> list[int]:
    return plain_greedy(blocks().target, prompt_ids(seed), TOKENS)


class SlowClock(FixedClock):
    """Rounds so long that what is built in them, which is measured, does not change what arms are told to cost."""

    def read(self) -> tuple[float, float, float]:
        return 1e3, 1e3, 4e3


class Watched(CossimArms):
    """Keeps what it was shown."""

    def start(self, prompt: torch.Tensor) -> None:
        super().start(prompt)
        self.text, self.rounds = prompt.tolist(), []

    def observe(self, seen: Observation) -> None:
        self.rounds.append((list(self.text), self.arms[self._played], seen, self.building))
        self.text += seen.committed
        super().observe(seen)


def drafter_of(family: CossimArms, **options: Any) -> SelfDrafter:
    return SelfDrafter(blocks(), family, name="cossim", **{"max_draft_len": 4, **options})


def run(drafter: SelfDrafter, spelling: str, seed: int = 1, target: Target | None = None, **asked: Any) -> Decoded:
    online = OnlineController(controller_for(spelling, drafter), seed=3, compiled=False)
    asked = {"max_new_tokens": TOKENS, **asked}
    return decode(
        target or Target(blocks().target), drafter, online, prompt_ids(seed), Settings(**asked), clock=SlowClock()
    )


class Layers(Reference):
    """The reference, with importances of the layers of its last token (whole layers left out have none)."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.states: dict[int, torch.Tensor] = {}

    def row(self, text: list[int], token: int, arm: Arm, held: list[list[Any]]) -> np.ndarray:
        """float32[L]; `held` gains the token's keys and values."""
        self.states = {}
        self.logits = self._token(token, len(text), held, arm)
        found, kept = np.zeros(LAYERS, np.float32), sorted(self.states)
        for layer, after in itertools.pairwise(kept):
            one, two = self.states[layer], self.states[after]
            found[layer] = 1 - float(one @ two / (one.norm() * two.norm()))
        return found

    def _norm(self, state: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        if name == "input_layernorm":
            self.states[layer] = state
        return super()._norm(state, layer, name)


def independent(family: Watched, prompt: list[int], *, removed: int, zero_skip: bool) -> tuple[Construction, list[int]]:
    """The construction fed by the reference, and how many drafted tokens each of its rounds kept."""
    reference, keeps = Layers(blocks().target), []
    text, token, passes = prompt[:-1], prompt[-1], []
    whole = reference.read(text)  # keys and values that the whole target makes of committed text
    held = [list(entries) for entries in whole]
    for _ in range(4):
        passes.append(reference.row(text, token, Arm(), held))
        text, token = [*text, token], int(reference.logits.argmax())
    construction = Construction(LAYERS, span=(1, removed), zero_skip=zero_skip)
    arm = construction.begin(warmup_importance(passes))
    for text, played, seen, building in family.rounds:
        if not building:
            break
        assert played == arm
        drafting, past, rows = [list(entries) for entries in whole], text[:-1], []
        for token in [text[-1], *seen.drafted[:-1]]:
            rows.append(reference.row(past, token, played, drafting))
            past = [*past, token]
        accepted, kept = list(seen.committed[:-1]), 0
        while kept < min(len(accepted), len(seen.drafted)) and accepted[kept] == seen.drafted[kept]:
            kept += 1
        edge = boundary(seen.drafted, kept, accepted[kept] if kept < len(accepted) else None)
        assert edge is not None
        past, probing = text[:-1], None
        for place, token in enumerate([text[-1], *accepted]):
            if place == edge.before + 1:
                probing = [list(entries) for entries in whole]
            reference.row(past, token, Arm(), whole)
            past = [*past, token]
        probe = reference.row(
            text + list(seen.drafted[: edge.before]), edge.token, played, probing or list(map(list, whole))
        )
        keeps.append(kept)
        arm = construction.observe(usable_rows(np.stack(rows), kept, probe))
    return construction, keeps


@pytest.mark.parametrize(("zero_skip", "tree"), [(False, True), (True, False)])
def test_arms_are_those_of_importances_computed_apart(zero_skip: bool, tree: bool) -> None:
    family = Watched(blocks(), arms=4 + zero_skip, zero_skip=zero_skip, **PUBLISHED)
    drafter, keeps = drafter_of(family, tree=tree), []
    found = set()
    for seed in (1, 2):
        decoded = run(drafter, "sp2ec", seed)
        prompt = prompt_ids(seed).tolist()
        apart, kept = independent(family, prompt, removed=4, zero_skip=zero_skip)
        assert tuple(family.arms) == apart.family
        assert apart.complete
        # Their rounds are the selector's first pulls.
        assert [row.arm for row in decoded.rounds][: family.size] == list(range(family.size))
        assert family.built.preparatory == 0
        found.add(apart.family)
        keeps += kept
    assert len(found) > 1  # every prompt has arms of its own
    assert len(set(keeps)) > 1


def test_the_prompts_own_pass_can_take_the_place_of_the_warm_up() -> None:
    family = CossimArms(blocks(), arms=4, warmup="prompt")
    drafter = drafter_of(family)
    for seed in (1, 2):
        prompt = prompt_ids(seed)
        assert run(drafter, "sp2ec", seed).output == plain(seed)
        states = blocks().target(prompt[None, :-1], output_hidden_states=True).hidden_states
        change = [
            1 - torch.cosine_similarity(states[layer][0], states[layer + 1][0], dim=-1).mean()
            for layer in range(LAYERS)
        ]
        assert family.arms[0] == Arm.blocks([min(range(2, LAYERS - 2), key=change.__getitem__)])
    one = prompt_ids(1)[:1]
    online = OnlineController(controller_for("sp2ec", drafter), seed=3, compiled=False)
    found = decode(Target(blocks().target), drafter, online, one, Settings(max_new_tokens=TOKENS), clock=SlowClock())
    assert found.output == plain_greedy(blocks().target, one, TOKENS)
    assert len(family.arms) == 4


def test_an_arm_not_yet_made_is_prepared_for_by_those_there_are() -> None:
    family = Watched(blocks(), arms=5)
    decoded = run(drafter_of(family), "arm:index=2")
    assert {row.arm for row in decoded.rounds} == {2}
    assert family.built.preparatory == 2
    played = [arm.skipped() // 2 for _, arm, _, _ in family.rounds]
    assert played[:3] == [1, 2, 3]
    assert set(played[3:]) == {3}
    assert len(family.arms) == 4  # the round with arm 2 was the newest arm's, and made one more
    states = [seen.states is not None for _, _, seen, _ in family.rounds]
    assert states == [True] * 3 + [False] * (len(states) - 3)


@pytest.mark.parametrize("tree", [False, True])
def test_the_cache_stays_a_fresh_prefills(tree: bool) -> None:
    """Warm-up, probe and rebuilding run behind and inside the committed text, and leave nothing."""
    model = tiny_llama(layers=LAYERS, spread=SPREAD, seed=4).double()
    pieces = SubBlocks(model)
    target = LooksAtCache(model)
    family = CossimArms(pieces, arms=5, rebuild=6, **PUBLISHED)
    drafter = SelfDrafter(pieces, family, name="cossim", max_draft_len=4, tree=tree)
    online = OnlineController(controller_for("sp2ec", drafter), seed=3, compiled=False)
    decode(target, drafter, online, prompt_ids(1), Settings(max_new_tokens=TOKENS), clock=SlowClock())
    assert target.compared > 5
    assert target.gap < 1e-12 * max(1.0, target.scale)
    assert family.built.families == target.compared // 6 + 1 > 1


@pytest.mark.parametrize("static", [False, True])
def test_a_cache_put_aside_comes_back_bit_for_bit(static: bool) -> None:
    target = Target(blocks().target, cache="static" if static else "dynamic")
    target.start(prompt_ids(1), 600)
    before, cache = buffers(target), target._cache
    with torch.inference_mode(), cache.aside(cache.length - 3):
        assert cache.length == len(prompt_ids(1)) - 4
        forward(blocks().target, torch.arange(3, 300) % 60, cache)  # more than the buffers held
    assert all(torch.equal(one, two) for one, two in zip(before, buffers(target), strict=True))
    empty = KVCache(10)
    with torch.inference_mode(), empty.aside(0):
        forward(blocks().target, torch.tensor([3, 4]), empty)
    assert empty.length == 0


def test_rounds_without_importances_end_the_construction() -> None:
    family = CossimArms(blocks(), arms=5, probe="0")
    run(drafter_of(family, max_draft_len=1, arm_draft_len=1), "sp2ec")
    assert len(family.arms) == 1  # the only pass reads the last committed token, which does not count
    assert not family.building
    family = CossimArms(blocks(), arms=5)
    run(drafter_of(family), "sp2ec", max_new_tokens=2)
    assert len(family.arms) <= 2


def test_the_spelling_names_the_family() -> None:
    def make(text: str, layers: int = LAYERS) -> SelfDrafter:
        spec = parse_drafter(text, target="tiny", n_layers=layers)
        made = make_drafter(spec, tiny_loaded(layers=layers), max_draft_len=24)
        assert isinstance(made, SelfDrafter)
        return made

    made = make("self:build=cossim,fraction=0.4,zero=1,length=3,stop=0.5,probe=0,warmup=prompt")
    assert made.family.size == 4  # 0.4 of 9, rounded down, and the zero-skip arm
    assert (made.max_draft_len, made.arm_draft_len) == (3, 3)
    assert made.tap is not None
    assert made.name == "self:build=cossim,fraction=0.4,zero=1,length=3,stop=0.5,probe=0,warmup=prompt"
    assert made.arm_costs == tuple(made.blocks.cost(Arm.blocks(range(2, 2 + k))) for k in range(4))
    bare = make("self:build=cossim")
    assert (bare.family.size, bare.tap is None) == (2, False)  # half of the 5 that may go
    assert make("self:build=cossim,warmup=tokens").tap is None
    for text, reason in (
        ("self:build=best", "build is 'best'; allowed: cossim, swift, knapspec, clasp"),
        ("self:build=cossim,skip=4", "name its arms in one way"),
        ("self:arms=a.json,zero=1", "zero belongs to build=cossim"),
        ("self:build=cossim,arms=7", r"7 arms; allowed: 1\.\.5"),
        ("self:build=cossim,arms=1,zero=1", r"1 arms; allowed: 2\.\.6"),
        ("self:build=cossim,arms=a.json", "arms is 'a.json'"),
        ("self:build=cossim,arms=3,fraction=0.4", "give one of them"),
        ("self:build=cossim,fraction=0.1", "leaves out none"),
        ("self:build=cossim,fraction=2", "fraction is '2'"),
        ("self:build=cossim,zero=yes", "zero is 'yes'; allowed: 0 or 1"),
        ("self:build=cossim,warmup=none", "warmup is 'none'; allowed: prompt, tokens"),
        ("self:build=cossim,probe=2", "probe is '2'; allowed: 0, 1, needed"),
        ("self:build=cossim,arms=4,rebuild=4", "rebuild after 4 rounds; allowed: more than the 4"),
        ("self:skip=4,rebuild=9", "rebuild belongs to build=cossim"),
    ):
        with pytest.raises(ConfigError, match=reason):
            make(text)
    with pytest.raises(ConfigError, match="allowed: at least 6"):
        make("self:build=cossim", layers=5)


@pytest.mark.parametrize("spelling", LIVE)
def test_greedy_output_is_plain_decodings_with_every_controller_of_arms(spelling: str) -> None:
    if spelling.startswith("arm"):
        spelling = "arm:index=3"
    for cache, options, tree in (
        ("dynamic", {"zero_skip": True, **PUBLISHED}, False),
        ("static", {"warmup": "prompt"}, True),
        ("dynamic", {"probe": "needed", "rebuild": 6}, True),
        ("static", {"probe": "0", "rebuild": 7}, False),
    ):
        family = CossimArms(blocks(), arms=5, **options)
        drafter = drafter_of(family, tree=tree)
        found = run(drafter, spelling, target=Target(blocks().target, cache=cache))
        assert found.output == plain(1), options
        assert nested(family.arms)
        assert family.built.build_s > 0
