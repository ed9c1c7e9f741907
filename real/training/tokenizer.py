"""A byte-level BPE tokenizer, trained on texts. The same texts give the same tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
SMALLEST = 257  # entries: the 256 bytes and the end of text


def train_tokenizer(texts: Iterable[str], vocabulary: int, window: int) -> PreTrainedTokenizerFast:
    """A tokenizer that takes any text apart without loss; id 0 ends a text.

    Args:
        texts: to train on.
        vocabulary: entries, at least SMALLEST.
        window: longest input of the model it is for, in tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        model_max_length=window,
        clean_up_tokenization_spaces=False,
    )
