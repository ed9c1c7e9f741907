"""What moves the law of the output: a q that is not what was drawn from, and decisions that look at sampled tokens.

The losses are exact (tests/real_law.py) and checked against closed forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import real.loop  # noqa: E402
from real.drafters.base import Drafter  # noqa: E402
from real.drafters.model import ModelDrafter  # noqa: E402
from real.loop import NotFiniteError  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import Draft  # noqa: E402
from specsim.controllers import Controller  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_law import (  # noqa: E402
    EXACT,
    InBlocks,
    Law,
    Sampling,
    controller_of,
    decode_branches,
    distance,
    fixed_model,
    gap,
    law_of,
    one_thread,  # noqa: F401 - a fixture
    plain_law,
    random_model,
)

# --- P1, P2: a q that is not what was drawn from ----------------------------------------------------------------------

P, Q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)


class Reporting(Drafter):
    """Another drafter that says its tokens were drawn from something else."""

    block_len, name = 1, "tampered"

    def __init__(self, inner: ModelDrafter, report: Callable[[Draft], torch.Tensor | None]) -> None:
        self.inner, self.report, self.max_draft_len = inner, report, inner.max_draft_len
        self.samples = inner.samples and report is not point_mass
        self.start, self.commit = inner.start, inner.commit

    def propose(self, count: int, arm: int) -> Draft:
        draft = self.inner.propose(count, arm)
        return draft._replace(law=self.report(draft))


def point_mass(draft: Draft) -> None:
    return None


def first_token(law: Law) -> np.ndarray:
    found = np.zeros(3)
    for output, chance in law.items():
        found[output[0]] += chance
    return found


def run_tampered(
    report: Callable[[Draft], torch.Tensor | None], *, sampling: str = "sample"
) -> tuple[np.ndarray, float]:
    """(law of the first output token, probability that the first draft token is accepted) for target P, drafter Q."""
    target = Target(fixed_model(P))
    drafter = Reporting(ModelDrafter(fixed_model(Q), name="q", max_draft_len=1, sampling=sampling), report)
    pairs = list(
        decode_branches(target, drafter, controller_of("static:length=1", drafter), [0], Sampling().settings(2))
    )
    accepted = sum(draws.probability for draws, decoded in pairs if decoded.rounds[0].accepted_len)
    return first_token(law_of(iter(pairs))), accepted


def closed_form(drawn: Sequence[float], reported: Sequence[float]) -> np.ndarray:
    """The first token's law when tokens are drawn from one law and verified as if from another."""
    p, q, said = np.array(P), np.array(drawn), np.array(reported)
    kept = q * np.minimum(1.0, p / said)
    left = np.maximum(p - said, 0.0)
    left = left / left.sum() if left.sum() > 0 else p
    return kept + (1.0 - kept.sum()) * left


def tempered(law: torch.Tensor) -> torch.Tensor:
    return torch.softmax(law.log() / 2, dim=-1)


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        (lambda law: 0.5 * law, 0.227),
        (lambda law: 2.0 * law, 0.249),
        (tempered, 0.040),
        (lambda law: law.roll(1, dims=-1), 0.299),
        (lambda law: torch.full_like(law, 1 / 3), 0.099),
    ],
    ids=["halved", "doubled", "tempered", "shifted", "uniform"],
)
def test_p1_a_wrong_q_moves_the_law(change: Callable[[torch.Tensor], torch.Tensor], moved: float) -> None:
    reported = change(torch.tensor([Q])).tolist()[0]
    law, _ = run_tampered(lambda draft: change(draft.law))
    np.testing.assert_allclose(law, closed_form(Q, reported), atol=EXACT)
    assert abs(law - np.array(P)).sum() / 2 > moved


def test_p1_the_true_q_keeps_it() -> None:
    law, accepted = run_tampered(lambda draft: draft.law)
    np.testing.assert_allclose(law, P, atol=EXACT)
    assert accepted == pytest.approx(np.minimum(P, Q).sum(), abs=EXACT)


def test_p1_a_law_that_rules_the_token_out_is_an_error() -> None:
    def elsewhere(draft: Draft) -> torch.Tensor:
        return torch.nn.functional.one_hot((draft.tokens + 1) % 3, 3).float()

    with pytest.raises(NotFiniteError, match="output position 0"):
        run_tampered(elsewhere)


def test_p2_a_greedy_draft_with_a_softmax_q_moves_the_law() -> None:
    law, accepted = run_tampered(lambda draft: torch.tensor([Q]), sampling="greedy")
    # The greedy token is 2, always; it is accepted with p/q = 0.4 instead of p = 0.2.
    np.testing.assert_allclose(law, closed_form((0, 0, 1), Q), atol=EXACT)
    assert law[2] == pytest.approx(0.4, abs=EXACT)
    assert accepted == pytest.approx(0.4, abs=EXACT)


def test_p2_a_greedy_draft_is_a_point_mass() -> None:
    law, accepted = run_tampered(point_mass, sampling="greedy")
    np.testing.assert_allclose(law, P, atol=EXACT)
    assert accepted == pytest.approx(P[2], abs=EXACT)


@pytest.mark.parametrize("report", [point_mass, lambda draft: torch.nn.functional.one_hot(draft.tokens, 3).float()])
def test_p2_a_sampled_draft_taken_for_a_point_mass_keeps_the_law_and_accepts_less(report) -> None:
    """Whatever the token, a point mass on it is verified rightly; only sum p q is accepted, not sum min(p, q)."""
    law, accepted = run_tampered(report)
    np.testing.assert_allclose(law, P, atol=EXACT)
    assert accepted == pytest.approx(np.dot(P, Q), abs=EXACT)


# --- controllers that read q and drop sampled tokens (docs/controllers.md, "Sampled drafts") --------------------------


def keeping(liked: Callable[[float], bool]) -> Controller:
    """Drafts one token and submits it if its confidence is liked."""
    return Controller(
        name="keeping",
        config={},
        params=None,
        begin=lambda params, state, lane, pos, ctx_len, u, hint: (-1, 1),
        revise=lambda params, state, lane, q, drafted, more: (int(liked(float(q[0]))), 1),
        update=lambda params, state, lane, arm, drafted, submitted, accepted, round_s: None,
        needs_q=True,
    )


def law_when_dropping(p: Sequence[float], q: Sequence[float], liked: Callable[[float], bool]) -> np.ndarray:
    target, drafter = Target(fixed_model(p)), ModelDrafter(fixed_model(q), name="q", sampling="sample")
    found = np.zeros(len(p))
    for output, chance in law_of(decode_branches(target, drafter, keeping(liked), [0], Sampling().settings(2))).items():
        found[output[0]] += chance
    return found


@pytest.fixture
def no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real.loop, "check_pair", lambda controller, drafter: None)


@pytest.mark.usefixtures("no_check")
def test_dropping_a_sampled_token_by_its_q_moves_the_law() -> None:
    law = law_when_dropping((0.5, 0.5), (0.9, 0.1), lambda confidence: confidence >= 0.5)
    np.testing.assert_allclose(law, [0.55, 0.45], atol=EXACT)


weights = st.lists(st.integers(1, 9), min_size=2, max_size=4)


@given(st.data(), weights, st.floats(0.05, 0.95))
@settings(max_examples=20)
def test_by_how_much_it_moves(data: st.DataObject, parts: list[int], limit: float) -> None:
    """P'(y) = p(y) + q(D) p(y) - [y in D] min(p, q)(y) - (a / d) (p - q)+(y), D the dropped tokens, a their excess of
    q over p, d the distance of p and q."""
    other = data.draw(st.lists(st.integers(1, 9), min_size=len(parts), max_size=len(parts)))
    p, q = np.array(parts) / sum(parts), np.array(other) / sum(other)
    assume(np.abs(q - limit).min() > 1e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real.loop, "check_pair", lambda controller, drafter: None)
        law = law_when_dropping(p, q, lambda confidence: confidence >= limit)
    dropped = q < limit
    short = np.maximum(p - q, 0.0)
    share = np.maximum(q - p, 0.0)[dropped].sum() / short.sum() if short.sum() > 0 else 0.0
    want = p + q[dropped].sum() * p - dropped * np.minimum(p, q) - share * short
    np.testing.assert_allclose(law, want, atol=EXACT)


def sampled_law(spelling: str, seed: int, kind: type[ModelDrafter] = ModelDrafter) -> tuple[Law, Law]:
    """(the output's law, the target's) for sampled drafts with a controller, allowed or not."""
    target = Target(random_model(2, seed, spread=1.0))
    model = random_model(2, seed + 100, spread=1.2, like=target.model)
    drafter = kind(model, name="q", max_draft_len=4, sampling="sample")
    pairs = decode_branches(target, drafter, controller_of(spelling, drafter), [0, 1], Sampling().settings(4))
    return law_of(pairs), plain_law(target.model, [0, 1], 4, Sampling())


@pytest.mark.parametrize(
    ("spelling", "moved"),
    [("libraspec:alpha=1,block=2", 0.13), ("goodput", 0.05), ("corrected", 0.04), ("lambda", 0.04)],
)
def test_rules_that_drop_what_they_looked_at_move_the_law(
    spelling: str, moved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="changes the output's distribution"):
        sampled_law(spelling, 2)
    monkeypatch.setattr(real.loop, "check_pair", lambda controller, drafter: None)
    found = distance(*sampled_law(spelling, 2))
    print(f"\n{spelling}: total variation distance {found:.4f}", end="")
    assert found > moved


@pytest.mark.parametrize("kind", [ModelDrafter, InBlocks])
@pytest.mark.parametrize("spelling", ["threshold:tau=0.7", "failfast:chunk=1,tau=0.7", "specdecpp:h=0.5,min=0"])
@pytest.mark.usefixtures("no_check")
def test_rules_that_submit_all_they_looked_at_keep_it(spelling: str, kind: type[ModelDrafter]) -> None:
    """Whether token i is submitted is settled before it is drawn; `check_pair` refuses them too, being the simpler."""
    law, want = sampled_law(spelling, 3, kind)
    assert gap(law, want) < EXACT


def test_a_sampled_draft_taken_for_a_point_mass_goes_with_every_rule() -> None:
    target = Target(random_model(3, 1, spread=1.0))
    inner = ModelDrafter(random_model(3, 101, spread=1.2, like=target.model), name="q", sampling="sample")
    drafter = Reporting(inner, point_mass)
    pairs = decode_branches(target, drafter, controller_of("lambda", drafter), [0, 1], Sampling().settings(3))
    assert gap(law_of(pairs), plain_law(target.model, [0, 1], 3, Sampling())) < EXACT
