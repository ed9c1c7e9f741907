"""The shipped traces: valid, exact, consistent, small; and a spot check against the model itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from specsim.latency import LatencyModel
from specsim.trace import read_trace

TRACES = Path(__file__).resolve().parent.parent / "traces"
NAMES = [f"{data}-{drafter}" for data in ("humaneval", "open-ended") for drafter in ("layer-skip", "prompt-lookup")]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_trace_is_exact_and_consistent(name):
    path = TRACES / f"{name}.parquet"
    assert path.stat().st_size < 1_000_000
    meta, rows = read_trace(path)
    assert meta.exact
    assert meta.mismatches == 0
    assert meta.requests is not None
    assert meta.requests >= 10
    assert rows.accept_prob is not None
    assert rows.q is not None
    # Rows are cut at the tokens left, so m of the last row of a request is 0.
    last = np.flatnonzero(np.append(np.diff(rows.request) != 0, True))
    assert (rows.lengths[last] == 0).all()
    for row in range(rows.rows):
        ones = rows.accept_prob[rows.offsets[row] : rows.offsets[row + 1]]
        assert rows.accept_len[row] == np.cumprod(ones).sum()
    if meta.drafter == "prompt-lookup":
        assert (rows.q == 1.0).all()
    LatencyModel.from_dict(meta.latency or {}, where=name)


def test_there_is_enough_to_replay():
    assert sum(pq.read_metadata(TRACES / f"{name}.parquet").num_rows for name in NAMES) >= 5000


@pytest.mark.models
@pytest.mark.parametrize("name", NAMES)
def test_rows_recomputed_without_cache_or_branches(name):
    torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")
    from real.data import encode, load_prompts
    from real.drafters.layer_skip import skip_layers
    from real.models import SMOLLM2, cache_dir, load_target

    if not (cache_dir() / SMOLLM2 / "model.safetensors").is_file():
        pytest.skip(f"no SmolLM2 in {cache_dir()}; run `make models`")
    path = TRACES / f"{name}.parquet"
    meta, rows = read_trace(path)
    loaded = load_target(meta.extra["target_spec"], device="cpu")
    prompt = next(p for p in load_prompts(meta.dataset or "") if p.id == meta.extra["prompt_ids"][0])
    ids = encode(loaded.tokenizer, prompt).tolist()
    output = pq.read_table(path)["token"].to_numpy()[rows.request == 0].tolist()
    # the row whose draft is right longest but not to its end: both sides of the first rejection are checked
    first = rows.request == 0
    row = int(np.argmax(np.where(first & (rows.accept_len + 2 < rows.lengths), rows.accept_len, -1)))
    start, accept_len = int(rows.offsets[row]), int(rows.accept_len[row])
    context = ids + output[:row]
    draft = output[row : row + accept_len]
    assert rows.ctx_len is not None
    assert len(context) == rows.ctx_len[row]

    def log_probs(model, tokens):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False, logits_to_keep=len(draft) + 1).logits[0]
        return logits.log_softmax(-1)

    target = log_probs(loaded.model, context + draft)
    assert target[:accept_len].argmax(-1).tolist() == draft
    chosen = torch.tensor(draft, dtype=torch.int64)[:, None]
    p = target[:accept_len].gather(1, chosen)[:, 0].exp()
    assert rows.p is not None
    np.testing.assert_allclose(rows.p[start : start + accept_len], p, atol=1e-4)
    if meta.drafter == "layer-skip":
        own = log_probs(skip_layers(loaded.model, meta.extra["skip_layers"]), context + draft)
        assert own[:accept_len].argmax(-1).tolist() == draft
        rejected = int(own[accept_len].argmax())
        assert rejected != int(target[accept_len].argmax())
        assert rows.p[start + accept_len] == pytest.approx(float(target[accept_len, rejected].exp()), abs=1e-4)
        q = torch.cat([own[:accept_len].gather(1, chosen)[:, 0].exp(), own[accept_len, rejected].exp()[None]])
        entropy = torch.special.entr(own.exp()).sum(-1)
        np.testing.assert_allclose(rows.q[start : start + accept_len + 1], q, atol=1e-4)
        np.testing.assert_allclose(rows.entropy[start : start + accept_len + 1], entropy, atol=1e-3)
