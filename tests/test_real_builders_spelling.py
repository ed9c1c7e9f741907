"""How `self:build=...` of SWIFT, KnapSpec and CLaSp is spelled, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.building import KEYS  # noqa: E402
from real.drafters.choose import parse_drafter  # noqa: E402
from real.session import make_drafter  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_building import LAYERS, TIMES, make, tiny  # noqa: E402


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("swift", 4),
        ("swift,zero=1", 5),
        ("swift,arms=3", 3),
        ("swift,arms=3,zero=1", 3),
        ("swift,ratio=0.6", 1),
        (f"knapspec,{TIMES}", 10),
        (f"knapspec,arms=1,zero=0,{TIMES}", 1),
        ("clasp,arms=1", 1),
        ("clasp", 4),
    ],
)
def test_how_many_arms_there_are(text: str, size: int) -> None:
    drafter = make(text)
    assert (drafter.family.size, drafter.arm_names) == (size, ())
    assert drafter.name == f"self:build={text}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("best", "build is 'best'; allowed: cossim, swift, knapspec, clasp"),
        ("swift,fraction=0.5", "fraction belongs to build=cossim or build=knapspec; build=swift does not know it"),
        ("knapspec,ratio=0.5", "ratio belongs to build=swift or build=clasp; build=knapspec does not"),
        ("clasp,window=3", "window belongs to build=swift or build=knapspec"),
        ("cossim,seed=3", "seed belongs to build=swift"),
        ("swift,probe=1", "probe belongs to build=cossim"),
        ("swift,skip=3", "name its arms in one way"),
        ("swift,lengths=1,2", "lengths belongs to skip="),
        ("swift,arms=2,ratio=0.5", "arms and ratio both say"),
        ("swift,arms=1,zero=1", r"arms is '1'; allowed: a whole number, 2\.\."),
        ("swift,ratio=0.31,0.3", "leave out 3, 3; choose such that each"),
        ("swift,ratio=0", r"ratio 0; allowed: above 0"),
        ("swift,ratio=0.01", "leaves nothing out of 8 layers"),
        ("swift,ratio=2", "ratio is '2'"),
        ("swift,judged=all", "judged is 'all'; allowed: first, last"),
        ("swift,window=0", "window is '0'"),
        ("swift,trials=x", "trials is 'x'"),
        ("swift,score=1.5", "score is '1.5'"),
        ("swift,seed=-1", "seed is '-1'"),
        ("swift,rebuild=4", "rebuild after 4 rounds; allowed: more than the 4"),
        ("swift,zero=2", "zero is '2'"),
        ("knapspec,latency=1,2", "self: latency is '1,2'; allowed: three numbers"),
        ("knapspec,latency=0,0,0", "allowed: positive times"),
        (f"knapspec,{TIMES},context=3,4", "latency takes the place of measuring"),
        ("knapspec,context=64", "at least two different numbers"),
        ("knapspec,context=1,9", "2 or more each"),
        ("knapspec,context=300,400", "in the target's window 256;"),
        (f"knapspec,{TIMES},warmup=tokens", "warmup is 'tokens'; allowed: prompt, rounds"),
        (f"knapspec,{TIMES},warmup=rounds,window=4", "window belongs to warmup=prompt"),
        (f"knapspec,{TIMES},arms=4,rebuild=4", "more than the 4"),
        (f"knapspec,{TIMES},arms=4,rebuild=10,warmup=rounds", "more than the 10"),
        (f"knapspec,{TIMES},fraction=2", "fraction is '2'"),
        ("clasp,ratio=0.1", r"ratio 0\.1 leaves out 0 of 8 layers"),
        ("swift,arms=1000000000", r"arms is '1000000000'; allowed: a whole number, 1\.\.16"),
        ("clasp,arms=1000000000,zero=1", r"arms is '1000000000'; allowed: a whole number, 2\.\.17"),
        ("knapspec,arms=1000000000", r"arms is '1000000000'; allowed: a whole number, 2\.\.16"),
        ("knapspec,latency=1,1e300,1", "attention inf, MLP 1; allowed: positive times"),
        ("knapspec,latency=1_0,1,1", "latency is '1_0,1,1'"),
        ("clasp,arms=9", "choose such that each leaves out another number"),
        ("clasp,rebuild=0", "rebuild is '0'"),
    ],
)
def test_what_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        make(text)
    assert "\n" not in str(refused.value)


def test_a_number_of_arms_that_nobody_asked_for_is_not_refused() -> None:
    for layers in (2, 3, 4, 8):
        assert make(f"knapspec,{TIMES}", tiny(layers)).family.size == min(10, 2 * layers)


def test_options_without_a_builder_are_refused() -> None:
    for text in ("self:skip=4,ratio=0.5", "self:arms=a.json,seed=1"):
        spec = parse_drafter(text, target="tiny", n_layers=LAYERS)
        with pytest.raises(ConfigError, match=r"belongs to build=swift.*; name that too, or leave it out"):
            make_drafter(spec, tiny(), max_draft_len=4)
    with pytest.raises(ConfigError, match="has 2 layers; allowed: at least 3"):
        make("swift", tiny(2))
    assert set(KEYS) == {"cossim", "swift", "knapspec", "clasp"}
