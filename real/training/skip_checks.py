"""How well a model is followed by what is left of it when layers are left out, on texts it writes greedily itself.

Per arm, over the places of the text where a draft could begin or go on:

    agree        share of the model's tokens that the arm would have chosen after the true text before them
    tau          tokens per round of a decode with drafts of four tokens, followed round by round
    tau_fresh    the same over rounds whose next token is not in a loop (`real.loops.repeated`)

For an exit, whose layers read the same keys and values in a draft as here, that is what a decode will see. Where layers
after a gap run too, a draft's look back on keys and values of the whole model, here on those of the arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from real.builders.arm import Arm
from real.builders.cossim import Construction
from real.builders.similarity import importance_rows
from real.drafters.selfspec import DRAFT_LEN
from real.drafters.subblocks import SubBlocks
from real.loops import repeated
from real.target import hidden_states
from real.training.blocks import walk
from real.training.texts import Text


def followed(blocks: SubBlocks, arms: dict[str, Arm], texts: Sequence[Text]) -> dict[str, float]:
    """`agree`, `tau` and `tau_fresh` of arms, each after `_` and the arm's name.

    Args:
        blocks: the model.
        arms: by name.
        texts: greedy ones of the model.
    """
    metrics: dict[str, float] = {}
    for name, arm in arms.items():
        model, right, rounds = blocks.model(arm), [], []
        for text in texts:
            ids = torch.from_numpy(text.tokens).long().to(blocks.target.device)
            chosen = model(input_ids=ids[None, :-1], use_cache=False).logits[0].argmax(dim=-1)
            same = (chosen == ids[1:]).cpu().numpy()
            right.append(same[text.prompt_len - 1 :])
            loops = repeated(text.tokens)
            found = walk(run_lengths(same, DRAFT_LEN), text.prompt_len, len(text.tokens))
            rounds += [(emitted, bool(loops[anchor + 1])) for anchor, emitted in found]
        metrics[f"agree_{name}"] = _mean(np.concatenate(right).tolist())
        metrics[f"tau_{name}"] = _mean([emitted for emitted, _ in rounds])
        metrics[f"tau_fresh_{name}"] = _mean([emitted for emitted, loop in rounds if not loop])
    return metrics


def run_lengths(same: np.ndarray, most: int) -> np.ndarray:
    """int64[T]: how many of bool[T] are true from each place on without a gap, at most `most`."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(same, (0, most - 1)), most)
    return np.cumprod(windows, axis=1).sum(axis=1)


def cossim_arms(blocks: SubBlocks, removed: Iterable[int], texts: Sequence[Text]) -> dict[str, Arm]:
    """The arms `cossimN` that cosSim builds, for each number N of blocks removed.

    Importances are averaged over all places of the texts the model wrote; a decode builds from its first rounds.

    Raises:
        ConfigError: more blocks than may be removed.
    """
    wanted = set(removed)
    if not wanted:
        return {}
    construction = Construction(blocks.n_layers, span=(min(wanted), max(wanted)))
    found: dict[str, Arm] = {}
    arm = construction.begin(_importances(blocks, Arm(), texts).mean(axis=0))
    while arm is not None:
        if len(construction.removed) in wanted:
            found[f"cossim{len(construction.removed)}"] = arm
        arm = construction.observe(_importances(blocks, arm, texts))
    return found


def _importances(blocks: SubBlocks, arm: Arm, texts: Sequence[Text]) -> np.ndarray:
    """float32[places, L]; 0 for a layer left out."""
    model, kept, rows = blocks.model(arm), blocks.kept(arm), []
    for text in texts:
        ids = torch.from_numpy(text.tokens).long().to(blocks.target.device)
        with hidden_states(model, range(len(kept))) as found:
            model(input_ids=ids[None], use_cache=False)
        after = {number: found[place][0] for place, number in enumerate(kept)}
        states = [blocks.target.get_input_embeddings()(ids)]
        for number in range(blocks.n_layers):
            states.append(after.get(number, states[-1]))
        rows.append(importance_rows(torch.stack(states, dim=1)[text.prompt_len - 1 : -1]).cpu().numpy())
    return np.concatenate(rows)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
