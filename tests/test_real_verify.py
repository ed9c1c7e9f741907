"""Verification and luck, one function at a time: the pains P3 to P6, P9 and P10, and the quantile of a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.model import ModelDrafter  # noqa: E402
from real.draws import KeyedDraws, pick  # noqa: E402
from real.loop import Decoded, NotFiniteError, Settings, decode  # noqa: E402
from real.target import Target  # noqa: E402
from real.verify import (  # noqa: E402
    Draft,
    acceptance,
    process,
    residual,
    sampling_processors,
    text_for,
    verify_greedy,
    verify_sampling,
)
from specsim.online import OnlineController  # noqa: E402
from tests.real_law import (  # noqa: E402
    FixedClock,
    Sampling,
    Scripted,
    branches,
    controller_of,
    one_thread,  # noqa: F401 - a fixture
    random_model,
)

NAN, INF = math.nan, math.inf


def drafted(tokens: Sequence[int], law: Sequence[Sequence[float]] | None = None) -> Draft:
    ids = torch.tensor(tokens, dtype=torch.int64)
    return Draft(ids, torch.full((len(tokens),), 0.5), None if law is None else torch.tensor(law))


def run(target: Target, drafter, spelling: str, settings: Settings, *, request: int = 0) -> Decoded:
    online = OnlineController(controller_of(spelling, drafter), compiled=False)
    return decode(target, drafter, online, torch.tensor([0, 1]), settings, request=request, clock=FixedClock())


# --- the pieces -------------------------------------------------------------------------------------------------------


def test_greedy_accepts_up_to_the_first_other_choice() -> None:
    scores = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]])
    assert verify_greedy(drafted([1, 2, 0]), scores).tolist() == [3, 1, 0]
    assert verify_greedy(drafted([1, 1, 0]), scores).tolist() == [1, 2, 0]
    assert verify_greedy(drafted([0, 2, 0]), scores).tolist() == [0, 1, 0]
    assert verify_greedy(drafted([]), scores[:1]).tolist() == [0, 1, 0]


def test_acceptance_and_residual_by_hand() -> None:
    p, q = [[0.5, 0.3, 0.2]], [[0.2, 0.3, 0.5]]
    assert [float(acceptance(drafted([x], q), torch.tensor(p))) for x in range(3)] == pytest.approx([1, 1, 0.4])
    assert [float(acceptance(drafted([x]), torch.tensor(p))) for x in range(3)] == pytest.approx(p[0])
    row = torch.tensor(p[0])
    assert residual(row, torch.tensor(2), torch.tensor(q[0])).tolist() == pytest.approx([0.3, 0, 0])
    assert residual(row, torch.tensor(0), None).tolist() == pytest.approx([0, 0.3, 0.2])


def test_p3_several_candidates_per_place_are_a_tree() -> None:
    """They are verified by a walk (tests/test_real_tree.py); two tokens side by side without parents end the round."""

    class TwoPerPlace(ModelDrafter):
        def propose(self, count: int, arm: int) -> Draft:
            draft = super().propose(count, arm)
            return draft._replace(tokens=draft.tokens[:, None].repeat(1, 2))

    target, seen = Target(random_model(3, 1)), []
    drafter = TwoPerPlace(target.model, name="two")
    online = OnlineController(controller_of("static:length=2", drafter), compiled=False)
    with pytest.raises(RuntimeError):
        decode(
            target,
            drafter,
            online,
            torch.tensor([0, 1]),
            Settings(max_new_tokens=4),
            on_round=lambda row, tokens: seen.append(tokens),
        )
    assert not seen


class Watched(KeyedDraws):
    """Keeps the weights that draft tokens were drawn from."""

    def drafted(self, weights: torch.Tensor, pos: int) -> torch.Tensor:
        self.drawn = [*getattr(self, "drawn", []), *weights]
        return super().drafted(weights, pos)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_p4_what_is_drawn_from_is_what_the_ratio_divides_by(dtype: torch.dtype) -> None:
    draws = Watched(0, 0)
    drafter = ModelDrafter(random_model(4, 2).to(dtype), name="m", sampling="sample")
    drafter.start(torch.tensor([0, 1]), 16, draws, Sampling(0.7, top_k=3).settings(1).processors)
    draft = drafter.propose(3, -1)
    assert draft.law is not None
    assert draft.law.dtype == torch.float32
    assert torch.equal(draft.law, torch.stack(draws.drawn))
    p = torch.softmax(torch.randn(3, 4, generator=torch.manual_seed(0)), dim=-1)
    ratio = p.gather(1, draft.tokens[:, None]).double() / draft.law.gather(1, draft.tokens[:, None]).double()
    assert torch.equal(acceptance(draft, p), ratio[:, 0].clamp(max=1.0))


def test_p4_the_residual_is_taken_in_float64() -> None:
    p = torch.tensor([0.5, 0.5 - 2**-25, 2**-25])
    q = torch.tensor([0.5, 0.5, 0.0])
    left = residual(p, torch.tensor(1), q)
    assert left.dtype == torch.float64
    assert left.tolist() == [0.0, 0.0, 2**-25]


def outcomes(draft: Draft, p: Sequence[Sequence[float]]) -> dict[tuple[int, ...], float]:
    """Probability of each verdict (accepted, token, unsound)."""
    scores, found = torch.tensor(p).log(), {}
    for draws, verdict in branches(lambda draws: tuple(verify_sampling(draft, scores, draws, 0).tolist())):
        found[verdict] = found.get(verdict, 0.0) + draws.probability
    return found


@pytest.mark.parametrize(
    ("p", "q", "token", "want"),
    [
        ((0.3, 0.7), (0.3, 0.7), 1, {(1, 0): 1.0}),  # equal: always accepted
        ((0.0, 1.0), (0.0, 1.0), 1, {(1, 0): 1.0}),
        ((1.0, 0.0), (0.0, 1.0), 1, {(0, 0): 1.0}),  # disjoint: never, and the target's own token
        ((0.6, 0.4), (0.0, 1.0), 1, {(1, 0): 0.4, (0, 0): 0.6}),  # the drafter is certain
        ((1.0, 0.0), (0.5, 0.5), 1, {(0, 0): 1.0}),  # the target is certain
    ],
)
def test_p5_degenerate_laws(p, q, token: int, want: dict[tuple[int, int], float]) -> None:
    draft = drafted([token], [q])
    assert outcomes(draft, [p, (1.0, 0.0)]) == pytest.approx({(*key, 0): value for key, value in want.items()})
    for law in (torch.tensor(q), None):
        left = residual(torch.tensor(p), torch.tensor(token), law)
        assert torch.isfinite(left).all()
        assert left.sum() > 0


def test_p5_a_rejection_by_rounding_falls_back_to_the_target() -> None:
    """q one float32 step above p where both are all there is: rejected with chance 6e-8, and then nothing is left."""
    p = torch.tensor([1.0, 0.0])
    assert residual(p, torch.tensor(0), torch.tensor([1.0000001, 0.0])).tolist() == [1.0, 0.0]
    assert residual(p, torch.tensor(0), None).tolist() == [1.0, 0.0]


@given(st.integers(0, 2**32), st.integers(2, 5), st.floats(0.01, 60.0))
def test_p5_any_laws_give_a_legal_token(seed: int, width: int, spread: float) -> None:
    """Peaks of any sharpness, tokens ruled out: every verdict is sound, its token possible, and the law is p's."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, width)) * spread
    logits[:, 1:][rng.random((3, width - 1)) < 0.3] = -INF
    p, nothing_after, q = torch.softmax(torch.tensor(logits, dtype=torch.float32), dim=-1)
    law = np.zeros(width)
    for token in range(width):
        if q[token] > 0:
            draft = drafted([token], [q.tolist()])
            for (accepted, next_token, unsound), chance in outcomes(
                draft, torch.stack([p, nothing_after]).tolist()
            ).items():
                assert unsound == 0
                assert 0 <= next_token < width
                assert (nothing_after if accepted else p)[next_token] > 0
                law[token if accepted else next_token] += float(q[token] / q.sum()) * chance
    np.testing.assert_allclose(law, p.numpy(), atol=1e-6)


# --- P6: numbers that are none ----------------------------------------------------------------------------------------

BAD_ROWS = {"a NaN": [0.0, NAN, 0.0], "NaN": [NAN] * 3, "infinity": [0.0, INF, 0.0], "nothing": [-INF] * 3}


def bad_after(length: int, row: list[float]) -> Scripted:
    """Says token 1 after every text but those of one length. Its NaN lies where a greedy choice would be right."""
    return Scripted(3, lambda context: row if len(context) == length else [0.0, 1.0, 0.5])


@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS)
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("spelling", ["plain", "static:length=2", "libraspec:block=2", "lambda"])
def test_p6_a_targets_nan_is_named_and_nothing_accepted(row: list[float], sample: bool, spelling: str) -> None:
    target = Target(bad_after(3, [0.0, 1.0, 0.5]))
    drafter = NoDrafter() if spelling == "plain" else ModelDrafter(target.model, name="m", max_draft_len=2)
    target.model = bad_after(5, row)  # found while decoding, not by the check of a fresh model
    with pytest.raises(NotFiniteError, match=r"output position [0-3]:.*not finite.*nothing"):
        run(target, drafter, spelling, Settings(max_new_tokens=6, sample=sample))


@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS)
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize(
    ("spelling", "sampling"),
    [
        ("static:length=2", "greedy"),
        ("static:length=2", "sample"),
        ("libraspec:block=2", "greedy"),
        ("lambda", "greedy"),
    ],
)
def test_p6_a_drafters_nan_is_named_and_nothing_accepted(
    row: list[float], sample: bool, spelling: str, sampling: str
) -> None:
    target = Target(bad_after(3, [0.0, 1.0, 0.5]))
    drafter = ModelDrafter(bad_after(3, row), name="broken", max_draft_len=2, sampling=sampling)
    with pytest.raises(NotFiniteError, match=r"output position 1: drafter broken"):
        run(target, drafter, spelling, Settings(max_new_tokens=6, sample=sample))


@pytest.mark.parametrize("wrong", [NAN, INF])
def test_p6_a_law_that_is_not_finite_anywhere_is_unsound(wrong: float) -> None:
    """Also where the drafted token's own probability is fine: the residual would be wrong."""
    scores = torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.0, 0.0]])
    sound, law = [[0.2, 0.3, 0.5]], [[wrong, 0.3, 0.5]]
    assert verify_sampling(drafted([1], sound), scores, KeyedDraws(0, 0), 0)[2] == 0
    assert verify_sampling(drafted([1], law), scores, KeyedDraws(0, 0), 0)[2] == 1


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("wrong", [[NAN, 0.3, 0.5], [INF, 0.3, 0.5], [-INF, -INF, -INF]])
def test_p6_scores_that_give_no_law_are_unsound_in_any_row(wrong: list[float], place: int) -> None:
    """Also in rows that verification does not reach."""
    scores = torch.tensor([[0.1, 0.2, 0.3], [0.0, -INF, 0.0], [1.0, 2.0, 3.0]])
    assert verify_sampling(drafted([1, 1]), scores, KeyedDraws(0, 0), 0)[2] == 0
    scores[place] = torch.tensor(wrong)
    assert verify_sampling(drafted([1, 1]), scores, KeyedDraws(0, 0), 0)[2] == 1


# --- P9: the seed -----------------------------------------------------------------------------------------------------


def test_p9_a_seed_fixes_everything_and_another_changes_it() -> None:
    target = Target(random_model(5, 4))
    drafter = ModelDrafter(random_model(5, 104, like=target.model), name="m", max_draft_len=4, sampling="sample")

    def trace(seed: int, request: int = 0) -> tuple[list[int], list[tuple[int, ...]]]:
        settings = Settings(max_new_tokens=12, sample=True, seed=seed)
        found = run(target, drafter, "banditspec-ucb", settings, request=request)
        return found.output, [(r.pos, r.drafted_len, r.submitted_len, r.accepted_len) for r in found.rounds]

    assert trace(7) == trace(7)
    assert len({tuple(trace(seed)[0]) for seed in range(8)}) == 8
    assert trace(7)[0] != trace(7, request=1)[0]


def test_p9_nothing_depends_on_which_other_controllers_run_or_when() -> None:
    target = Target(random_model(5, 4))
    drafter = ModelDrafter(random_model(5, 104, like=target.model), name="m", max_draft_len=4)
    settings = Settings(max_new_tokens=10, sample=True, seed=3)
    spellings = ["plain", "static:length=2", "libraspec:block=2", "banditspec-ucb"]
    alone = {spelling: run(target, drafter, spelling, settings).output for spelling in spellings}
    for order in (spellings, spellings[::-1], spellings[1:3]):
        assert {spelling: run(target, drafter, spelling, settings).output for spelling in order} == {
            spelling: alone[spelling] for spelling in order
        }


# --- P10: counts ------------------------------------------------------------------------------------------------------


class Wrong(ModelDrafter):
    """Proposes everything but the model's own choice."""

    def propose(self, count: int, arm: int) -> Draft:
        draft = super().propose(count, arm)
        return draft._replace(tokens=(draft.tokens + 1) % 3)


@pytest.mark.parametrize("length", range(7))
@pytest.mark.parametrize("limit", [1, 2, 5, 12])
def test_p10_all_accepted_and_none_accepted_have_closed_forms(length: int, limit: int) -> None:
    target, settings = Target(random_model(3, 6)), Settings(max_new_tokens=limit)
    spelling = f"static:length={length}"
    plain = run(target, NoDrafter(), "plain", settings).output

    found = run(target, ModelDrafter(target.model, name="itself", max_draft_len=6), spelling, settings)
    rounds = math.ceil(limit / (length + 1))
    assert found.output == plain
    assert len(found.rounds) == rounds
    assert sum(row.accepted_len for row in found.rounds) == limit - rounds
    assert sum(row.drafted_len for row in found.rounds) == limit - rounds
    assert [row.submitted_len for row in found.rounds] == [row.accepted_len for row in found.rounds]

    found = run(target, Wrong(target.model, name="wrong", max_draft_len=6), spelling, settings)
    assert found.output == plain
    assert len(found.rounds) == limit
    assert [row.accepted_len for row in found.rounds] == [0] * limit
    assert [row.drafted_len for row in found.rounds] == [min(length, limit - 1 - pos) for pos in range(limit)]


# --- the quantile of a distribution -----------------------------------------------------------------------------------

some_weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1e3)), min_size=1, max_size=12)


@given(some_weights, st.floats(0.0, 1.0, exclude_max=True))
def test_pick_is_the_quantile_and_never_a_token_of_weight_zero(weights: list[float], uniform: float) -> None:
    assume(sum(weights) > 0)
    token = int(pick(torch.tensor(weights), torch.tensor(uniform, dtype=torch.float64)))
    exact = torch.tensor(weights).tolist()  # as float32 holds them
    before, total = math.fsum(exact[:token]), math.fsum(exact)
    assert exact[token] > 0
    slack = 1e-12 * total
    assert before - slack <= uniform * total <= before + exact[token] + slack


@pytest.mark.parametrize("count", [1, 3, 8])
def test_pick_on_a_grid_gives_every_token_its_share(count: int) -> None:
    weights = torch.tensor([3.0, 0.0, 1.0, 4.0]) * count
    picked = [int(pick(weights, torch.tensor(u / 64, dtype=torch.float64))) for u in range(64)]
    assert picked == [0] * 24 + [2] * 8 + [3] * 32


def test_pick_at_the_very_end() -> None:
    almost = torch.tensor(1.0 - 2**-53, dtype=torch.float64)
    assert int(pick(torch.tensor([0.1, 0.2, 0.0, 0.0]), almost)) == 1
    assert int(pick(torch.tensor([0.0, 5e-324, 0.0], dtype=torch.float64), almost)) == 1
    wide = torch.full((200_000,), 1e-9)
    assert int(pick(wide, almost)) == 199_999
    assert int(pick(wide, torch.tensor(0.5, dtype=torch.float64))) in (99_999, 100_000)


@given(st.integers(0, 2**31), st.integers(1, 9), st.sampled_from([1, 2, 37, 5000]))
def test_rows_are_drawn_together_as_each_alone(seed: int, count: int, vocabulary: int) -> None:
    """Sums included, bit for bit: a block's tokens do not depend on how many slots are drawn at once."""
    source = torch.manual_seed(seed)
    logits = 8.0 * torch.randn(count, vocabulary, generator=source)
    logits[:, 1:][torch.rand(count, vocabulary - 1, generator=source) < 0.5] = -INF
    law, uniform = torch.softmax(logits, dim=-1), torch.rand(count, generator=source, dtype=torch.float64)
    sums = law.double().cumsum(dim=-1)
    assert all(torch.equal(together, row.double().cumsum(dim=-1)) for together, row in zip(sums, law, strict=True))
    assert pick(law, uniform).tolist() == [int(pick(*row)) for row in zip(law, uniform, strict=True)]
    draws = KeyedDraws(seed, 2)
    alone = [draws.drafted(law[i : i + 1], 5 + i) for i in range(count)]
    assert torch.equal(draws.drafted(law, 5), torch.cat(alone))


def test_the_text_is_given_to_processors_that_look_at_it() -> None:
    def seen(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + len(ids[0])

    alike = sampling_processors(temperature=0.5, top_k=2)
    for processors in ([], alike):
        assert text_for(processors, [3, 1, 4], "cpu").tolist() == []
    assert text_for([*alike, seen], [3, 1, 4], "cpu").tolist() == [3, 1, 4]
    logits, text = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([2, 1])
    assert torch.equal(process(alike, text[:0], text[:0], logits), process(alike, text, text[:0], logits))


def test_keyed_draws_are_functions_of_their_key() -> None:
    weights, places = torch.ones(1_000_000), torch.tensor(2)
    draws = KeyedDraws(5, 1)
    tokens = [int(draws.token(weights, pos, places, 4)) for pos in range(6)]
    # The token for pos + 2 is the same whoever asks for it.
    assert tokens == [int(KeyedDraws(5, 1).token(weights, pos + 2, torch.tensor(0), 1)) for pos in range(6)]
    assert len({*tokens, *draws.drafted(weights.expand(6, -1), 2).tolist()}) == 12
    assert tokens != [int(KeyedDraws(5, 2).token(weights, pos, places, 4)) for pos in range(6)]
    half = torch.full((6,), 0.5, dtype=torch.float64)
    whole = int(draws.leading(half, 0))
    assert whole == next(i for i in range(7) if i == 6 or int(draws.leading(half[:1], i)) == 0)
