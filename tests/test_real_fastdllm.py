"""Block-diffusion drafts: tokens, probabilities and passes against the naive reference, round after round."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from real.draws import KeyedDraws  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.real_fastdllm import BLOCK, MASK, block_drafter, block_model, denoise  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_tiny import VOCABULARY, prompt_ids  # noqa: E402

THRESHOLDS = (0.0, 0.05, 0.2, 0.9, 1.0)
MODEL = block_model()


def begin(drafter, text: list[int]) -> None:
    drafter.start(torch.tensor(text), len(text) + 200, KeyedDraws(0, 0), ())


def same(draft, expected, count: int) -> None:
    assert draft.tokens.tolist() == expected.tokens[:count]
    np.testing.assert_allclose(draft.q.numpy(), expected.q[:count], rtol=2e-4)


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_a_draft_is_the_published_denoising(threshold: float, dual: bool) -> None:
    several = 0
    for length in (1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 21):
        text = prompt_ids(length, length).tolist()
        for count in (1, 2, BLOCK, 13):
            drafter = block_drafter(MODEL, threshold=threshold, dual=dual)
            begin(drafter, text)
            draft, expected = drafter.propose(count, -1), denoise(MODEL, text, count, threshold=threshold, dual=dual)
            same(draft, expected, count)
            assert (len(draft.tokens), draft.passes) == (count, len(expected.passes))
            several += len(expected.passes) < count
    assert several > 0 or threshold == 1.0


def test_dual_is_another_drafter() -> None:
    text = prompt_ids(5, 11).tolist()
    plain, dual = (denoise(MODEL, text, 13, threshold=0.2, dual=dual) for dual in (False, True))
    assert plain.q != dual.q


@settings(deadline=None, max_examples=40)
@given(data=st.data(), dual=st.booleans(), threshold=st.sampled_from(THRESHOLDS))
def test_every_round_drafts_as_a_fresh_one(data: st.DataObject, dual: bool, threshold: float) -> None:
    """After any requests and any verdicts: what is kept in the cache is what the text alone would give."""
    text = prompt_ids(data.draw(st.integers(0, 3)), data.draw(st.integers(1, 2 * BLOCK + 1))).tolist()
    drafter, written = block_drafter(MODEL, threshold=threshold, dual=dual), len(text) // BLOCK * BLOCK
    begin(drafter, text)
    for _ in range(data.draw(st.integers(1, 5))):
        counts = sorted(data.draw(st.lists(st.integers(0, 20), max_size=3)))
        known = written == len(text)
        expected = denoise(MODEL, text, max(counts, default=0), threshold=threshold, dual=dual, free_first=known)
        for count in counts:
            draft = drafter.propose(count, -1)
            same(draft, expected, count)
            filled = [after for _, after in expected.passes]
            free = int(known and len(text) % BLOCK == 0)
            assert draft.passes == (0 if count <= free else 1 + next(i for i, f in enumerate(filled) if f >= count))
        drafted = expected.tokens[: counts[-1]] if counts else []
        accepted = data.draw(st.integers(0, len(drafted)))
        new = [*drafted[:accepted], data.draw(st.integers(3, VOCABULARY - 1))]
        # A block filled by the draft and written because the request went beyond it stays if all of it was accepted.
        matching = accepted + (drafted[accepted : accepted + 1] == new[-1:])
        reached = (len(text) + max(0, len(drafted) - 1)) // BLOCK * BLOCK
        written = min(max(written, reached), (len(text) + matching) // BLOCK * BLOCK)
        text += new
        drafter.commit(new)


def test_the_prompt_may_wait_for_the_first_draft() -> None:
    for length in (BLOCK - 1, 2 * BLOCK, 21):
        text = prompt_ids(length, length).tolist()
        expected = denoise(MODEL, text, 9, threshold=0.3, free_first=False)
        drafter = block_drafter(MODEL, threshold=0.3, merge_prompt=True)
        begin(drafter, text)
        draft = drafter.propose(9, -1)
        same(draft, expected, 9)
        assert draft.passes == len(expected.passes)


def test_a_draft_ends_with_the_window_of_the_drafter() -> None:
    model = block_model()
    model.config.max_position_embeddings = 24
    drafter = block_drafter(model)
    for length, most in ((20, 4), (23, 1), (24, 0), (30, 0)):
        begin(drafter, prompt_ids(1, length).tolist())
        assert len(drafter.propose(9, -1).tokens) == most


def test_neither_the_mask_nor_foreign_ids_are_proposed() -> None:
    model = block_model()
    with torch.no_grad():
        model.lm_head.weight[[5, MASK]] = 0.0
        model.lm_head.weight[[7, MASK]] += 40 * model.lm_head.weight[9]  # outputs like id 9 now like the mask best
    for width in (VOCABULARY, VOCABULARY + 1, 20):
        drafter = block_drafter(model, width=width)
        begin(drafter, [*prompt_ids(2, 20).tolist(), VOCABULARY + 900])
        tokens = drafter.propose(20, -1).tokens
        assert int(tokens.max()) < min(width, MASK)
        assert len(tokens) == 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"small": 3}, "small 3.*divisor.*8"),
        ({"small": 0}, "small 0"),
        ({"threshold": 1.5}, "threshold 1.5.*0 to 1"),
        ({"threshold": float("nan")}, "threshold nan"),
        ({"block": 0}, "block 0.*1 or more"),
        ({"max_draft_len": 0}, "max_draft_len 0"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        block_drafter(MODEL, **options)
