"""The search for layers to skip."""

from __future__ import annotations

import itertools
import json

import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.layer_skip import skip_layers  # noqa: E402
from real.skip_search import agreement, own_texts, search  # noqa: E402
from tests.real_tiny import tiny_loaded  # noqa: E402


@pytest.fixture
def loaded_and_texts(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in ("abcabd", "xyzzy")))
    loaded = tiny_loaded(layers=5, seed=3)
    return loaded, own_texts(loaded, [str(path)], prompts=2, tokens=8, seed=0)


def test_the_whole_model_agrees_with_its_own_text(loaded_and_texts):
    loaded, texts = loaded_and_texts
    assert [len(text.ids) - text.n for text in texts] == [6, 5]
    assert agreement(loaded.model, texts) == 1.0


def test_each_step_adds_the_layer_that_costs_least(loaded_and_texts):
    loaded, texts = loaded_and_texts
    steps = list(search(loaded, texts, 9))
    assert [len(step.skip) for step in steps] == [1, 2, 3]  # the first and the last layer stay
    alone = {layer: agreement(skip_layers(loaded.model, (layer,)), texts) for layer in (1, 2, 3)}
    assert steps[0].agreement == max(alone.values()) == alone[steps[0].skip[0]]
    for before, after in itertools.pairwise(steps):
        assert set(before.skip) < set(after.skip)
