"""Can this model draft for that one? Asked before the first token.

Any drafter is lossless, since the target verifies token ids; one with another tokenizer only proposes nonsense, at full
price. So tokenizers have to agree; the width of the logits, which padding makes differ, need not.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from specsim.errors import ConfigError

# Spaces, code, accents, CJK, emoji, digits: tokenizers that split this alike and name the pieces alike agree.
PROBE = "def f(x):\n    return x**2  # naïve café, 数学 42, 🙂\tThe end."


def logits_width(model: Any) -> int:
    """Token ids a model gives logits for, padding included."""
    head = model.get_output_embeddings()
    return int(head.weight.shape[0] if head is not None else model.config.vocab_size)


def check_tokenizers(target: Any, drafter: Any, *, extra: Collection[int] = ()) -> None:
    """Refuse a drafter whose tokenizer is not the target's.

    Args:
        target, drafter: transformers tokenizers.
        extra: ids the drafter may have besides, such as a mask.

    Raises:
        ConfigError: with the first difference found.
    """
    ours = target.get_vocab()
    theirs = {token: number for token, number in drafter.get_vocab().items() if number not in extra}
    different = sorted(token for token in {*ours, *theirs} if ours.get(token) != theirs.get(token))
    if different:
        token = different[0]
        raise ConfigError(
            f"the drafter's tokenizer is not the target's: {len(different)} tokens differ, e.g. {token!r} is "
            f"{ours.get(token)} in the target and {theirs.get(token)} in the drafter; use a drafter of the same family"
        )
    ids = target(PROBE)["input_ids"], drafter(PROBE)["input_ids"]
    if ids[0] != ids[1]:
        raise ConfigError(
            "the drafter's tokenizer knows the target's tokens but splits text differently; use a drafter of the same "
            "family"
        )


def check_models(target: Any, drafter: Any, *, tokenizers: tuple[Any, Any] | None) -> None:
    """Refuse a drafting model that does not speak the target's token ids.

    Args:
        target, drafter: causal language models.
        tokenizers: theirs, when they are known.

    Raises:
        ConfigError: different tokenizers; or different vocabulary sizes and no tokenizers to tell padding from another
            vocabulary.
    """
    if tokenizers is not None:
        check_tokenizers(*tokenizers)
        return
    widths = logits_width(target), logits_width(drafter)
    if widths[0] != widths[1]:
        raise ConfigError(
            f"the target has {widths[0]} token ids and the drafter {widths[1]}; if only padding differs, show it by "
            "passing both tokenizers (tokenizer=, drafter_tokenizer=)"
        )
