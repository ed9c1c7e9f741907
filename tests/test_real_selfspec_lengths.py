"""Lengths of one draft as arms: each is the static length, the longest comes first, and a bandit chooses among them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.builders.arm import Arm  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.drafters.family import FixedArms, LengthArms  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.loop import Decoded, Settings, decode  # noqa: E402
from real.record import proposer_of  # noqa: E402
from real.session import make_drafter  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_selfspec import blocks_of, controller_for  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_loaded  # noqa: E402

NEW, ARM = 20, Arm.parse("m1")
PROMPT = prompt_ids(6)


def make(text: str, longest: int = 24) -> SelfDrafter:
    spec = parse_drafter(text, target="tiny", n_layers=12)
    made = make_drafter(spec, tiny_loaded(layers=12), max_draft_len=longest)
    assert isinstance(made, SelfDrafter)
    return made


def live(family: FixedArms, spelling: str, longest: int = 5, new: int = NEW) -> Decoded:
    drafter = SelfDrafter(blocks_of("llama"), family, name="self", max_draft_len=longest, arm_draft_len=longest)
    controller = OnlineController(controller_for(spelling, drafter), compiled=False)
    settings = Settings(max_new_tokens=new)
    return decode(Target(drafter.blocks.target), drafter, controller, PROMPT, settings)


def test_the_longest_is_the_first_arm() -> None:
    made = make("self:skip=4-9,lengths=2,8,1")
    assert made.family.lengths == (8, 2, 1)
    assert [made.family.arm(number) for number in range(3)] == [Arm.parse("4-9")] * 3
    assert (made.max_draft_len, made.arm_draft_len) == (8, 8)
    assert len(made.arm_costs) == 3
    assert made.name == "self:skip=4-9,lengths=2,8,1"


@pytest.mark.parametrize(("number", "length"), [(0, 5), (1, 3), (2, 1)])
def test_an_arm_is_the_static_length(number: int, length: int) -> None:
    family = LengthArms(ARM, (1, 5, 3))
    mine, static = live(family, f"arm:index={number}"), live(FixedArms([ARM]), f"static:length={length}")
    assert mine.output == static.output == plain_greedy(blocks_of("llama").target, PROMPT, NEW)
    seen, wanted = (
        [(row.pos, row.drafted_len, row.submitted_len, row.accepted_len) for row in run.rounds]
        for run in (mine, static)
    )
    assert seen == wanted
    assert max(row.submitted_len for row in mine.rounds) == length


@pytest.mark.parametrize("spelling", ["sp2ec", "ucbspec:variant=paper"])
def test_a_bandit_chooses_among_them_without_changing_the_output(spelling: str) -> None:
    family = LengthArms(ARM, (1, 2, 4))
    run = live(family, spelling, longest=4)
    assert run.output == plain_greedy(blocks_of("llama").target, PROMPT, NEW)
    assert [row.arm for row in run.rounds[:3]] == [0, 1, 2]
    assert all(row.drafted_len == min(family.lengths[row.arm], NEW - row.pos - 1) for row in run.rounds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("self:lengths=1,2", "name its arms in one way"),
        ("self:build=cossim,lengths=1,2", r"lengths belongs to skip="),
        ("self:skip=4,lengths=2", r"lengths is '2'; allowed: at least two, each once"),
        ("self:skip=4,lengths=2,2", r"lengths is '2,2'; allowed: at least two, each once"),
        ("self:skip=4,lengths=0,2", r"lengths is '0'; allowed: a whole number, 1\.\.24"),
        ("self:skip=4,lengths=2,25", r"lengths is '25'; allowed: a whole number, 1\.\.24"),
        ("self:skip=4,lengths=1,x", r"lengths is 'x'; allowed"),
        ("self:skip=4,length=4,lengths=1,2", "length and lengths both say"),
    ],
)
def test_what_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(text)


def test_they_are_in_no_trace_of_arms() -> None:
    with pytest.raises(ConfigError, match="every arm drafts the same number of tokens, these draft different ones"):
        proposer_of(make("self:skip=4,lengths=1,2"))
