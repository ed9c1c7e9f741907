"""Tree traces: what is recorded at every position is what the live drafter grows its tree from there."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.ddtree import DepthTrees, Likeliest, NodeTrees, tree_of  # noqa: E402
from real.drafters.dflash import DFlashDrafter  # noqa: E402
from real.draws import KeyedDraws  # noqa: E402
from real.record import RequestRows, proposer_of, record_request  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.errors import ConfigError  # noqa: E402
from tests.dflash_tiny import fitted_dflash, tiny_dflash  # noqa: E402
from tests.real_law import one_thread  # noqa: E402, F401 - a fixture
from tests.real_lossless import plain_greedy  # noqa: E402
from tests.real_tiny import prompt_ids, tiny_llama  # noqa: E402

BUDGET, NEW = 12, 20


@functools.cache
def pair() -> tuple[Any, Any]:
    """A target, and a network that half knows what it writes."""
    model = tiny_llama(seed=3, spread=0.08)
    text = torch.cat([prompt_ids(5), torch.tensor(plain_greedy(model, prompt_ids(5), NEW))])
    return model, fitted_dflash(model, text, steps=40, noise=0.3)


def recorded(
    drafter: Any, model: Any, *, stop_ids: tuple[int, ...] = (), prompt: Any = None, **more: Any
) -> RequestRows:
    limits: dict[str, Any] = {"max_new_tokens": NEW, "max_draft_len": 24} | more
    asked = prompt_ids(5) if prompt is None else prompt
    return record_request(model, proposer_of(drafter), asked, stop_ids=stop_ids, **limits)


def live(drafter: Any, model: Any, text: torch.Tensor) -> Any:
    """What the drafter proposes after a text."""
    target = Target(model)
    with torch.inference_mode():
        target.start(text, 256, drafter.tap)
        drafter.start(text, 256, KeyedDraws(0, 0), ())
        return drafter.propose(drafter.max_draft_len, -1)


@pytest.mark.parametrize("options", [{}, {"kept_vocab": 40}, {"max_position_embeddings": 30}, {"block_size": 3}])
def test_recorded_trees_are_the_live_drafters(options: dict[str, Any]) -> None:
    model = pair()[0]
    drafter = NodeTrees(tiny_dflash(model, **options), model, name="t", budget=BUDGET)
    rows, prompt = recorded(drafter, model, prompt=prompt_ids(5, n=10)), prompt_ids(5, n=10)
    text = torch.cat([prompt, torch.from_numpy(rows.output)])
    assert rows.topk_q.shape == (rows.offsets[-1], BUDGET)
    for pos in range(NEW):
        part = slice(*rows.offsets[pos : pos + 2])
        draft = live(drafter, model, text[: len(prompt) + pos])
        top = Likeliest(rows.topk_q[part], np.zeros((part.stop - part.start, BUDGET), np.int64))
        again = tree_of(top, BUDGET, "cpu")
        if pos == NEW - 1:  # the loop asks for nothing there
            assert not len(again.tokens)
            continue
        np.testing.assert_allclose(again.q, draft.q, atol=1e-5)
        assert (again.parents.tolist() if len(draft.tokens) else None) == (
            draft.parents.tolist() if len(draft.tokens) else None
        )


def test_the_ranks_are_those_of_the_text_and_nothing_is_accepted_beyond_it() -> None:
    model, network = pair()
    drafter = NodeTrees(network, model, name="t", budget=BUDGET)
    rows, prompt = recorded(drafter, model), prompt_ids(5)
    text = prompt.tolist() + rows.output.tolist()
    found = []
    for pos in range(NEW - 1):
        start = len(prompt) + pos
        a, b = rows.offsets[pos : pos + 2]
        assert b - a == 3  # the whole block, also where less is left
        live(drafter, model, torch.tensor(text[:start]))
        top = drafter._filled(3)
        assert top is not None
        for place in range(3):
            rank = int(rows.target_rank[a + place])
            inside = start + place < len(text) - 1
            known = top.ids[place].tolist()
            assert rank == (known.index(text[start + place]) if inside and text[start + place] in known else -1)
            found.append(rank)
    assert {-1, 0} < set(found)


def test_the_main_chain_is_dflashs_recording() -> None:
    """Up to the end of the text the lists are those of a chain's trace."""
    model, network = pair()
    tree = recorded(NodeTrees(network, model, name="t", budget=BUDGET), model)
    chain = recorded(DFlashDrafter(network, model, name="c", max_draft_len=3), model)
    assert tree.output.tolist() == chain.output.tolist()
    assert tree.accept_len.tolist() == chain.accept_len.tolist()
    for pos in range(NEW):
        a, b = chain.offsets[pos : pos + 2]
        first = tree.offsets[pos]
        for name in ("tokens", "q", "p", "accept_prob", "entropy"):
            np.testing.assert_allclose(
                getattr(tree, name)[first : first + b - a], getattr(chain, name)[a:b], atol=1e-4, err_msg=name
            )
    assert tree.accept_len.any()
    # The target's probability of a token beyond the text is as good as any: by a pass over text and draft.
    first = tree.offsets[NEW - 2]
    context = torch.cat(
        [prompt_ids(5), torch.from_numpy(tree.output[: NEW - 2]), torch.from_numpy(tree.tokens[first:])]
    )
    with torch.inference_mode():
        law = model(input_ids=context[None], use_cache=False).logits[0].softmax(-1)
    wanted = [float(law[len(context) - 4 + i, context[len(context) - 3 + i]]) for i in range(3)]
    np.testing.assert_allclose(tree.p[first : first + 3], wanted, atol=1e-4)


def test_a_text_that_ends_by_itself_has_trees_to_its_last_position() -> None:
    model, network = pair()
    drafter = NodeTrees(network, model, name="t", budget=BUDGET)
    whole = recorded(drafter, model)
    rows = recorded(drafter, model, stop_ids=(int(whole.output[9]),))
    n = len(rows.output)
    assert n <= 10
    assert np.diff(rows.offsets).tolist() == [3] * n
    np.testing.assert_allclose(rows.topk_q, whole.topk_q[: 3 * n], atol=1e-5)
    assert (rows.accept_len <= n - 1 - np.arange(n)).all()


def test_depths_cannot_be_recorded() -> None:
    model, network = pair()
    with pytest.raises(ConfigError, match="limit=nodes"):
        proposer_of(DepthTrees(network, model, name="d"))
