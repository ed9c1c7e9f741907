"""A small vision-language model of the Qwen2.5-VL class, its tokenizer of words and its image processor.

Owns the sizes and token ids of such a model. The picture goes through a tower of few layers, with attention within
windows and, in the last one, over all of it; 8 x 8 pixels make a visual token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from real.training.ranges import head_size

PATCH, MERGE, TOGETHER = 4, 2, 2  # pixels of a patch's sides, patches of a visual token's, frames of a step of time
END, IMAGE, VIDEO, BEGIN, CLOSE, ANSWER, UNKNOWN = (
    f"<|{name}|>" for name in ("end", "image_pad", "video_pad", "vision_start", "vision_end", "answer", "unknown")
)
SPECIAL = (END, IMAGE, VIDEO, BEGIN, CLOSE, ANSWER, UNKNOWN)  # their ids are their places
# A question of text alone comes as a text instead of a list.
TEMPLATE = (
    "{% for part in messages[0].content %}{% if part is string %}{{ part }}{% elif part.type == 'text' %}"
    f"{{{{ part.text }}}}{{% else %}}{BEGIN}{IMAGE}{CLOSE}{{% endif %}}{{% endfor %}}{ANSWER}"
)


def word_tokenizer(words: Sequence[str], window: int) -> PreTrainedTokenizerFast:
    """A tokenizer of texts whose words stand apart by single spaces; id 0 ends an answer.

    Args:
        words: its vocabulary besides the special tokens.
        window: longest input of the model it is for, in tokens.
    """
    places = {word: place for place, word in enumerate([*SPECIAL, *words])}
    made = Tokenizer(models.WordLevel(places, unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=END,
        pad_token=END,
        unk_token=UNKNOWN,
        model_max_length=window,
        clean_up_tokenization_spaces=False,
        extra_special_tokens={"image_token": IMAGE, "video_token": VIDEO},
    )
    fast.add_special_tokens({"additional_special_tokens": [BEGIN, CLOSE, ANSWER]}, replace_extra_special_tokens=False)
    fast.chat_template = TEMPLATE
    return fast


def image_processor(most_pixels: int) -> Any:
    """The library's for such a model, without torchvision.

    Args:
        most_pixels: of a picture; larger ones are made smaller.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    size = {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": most_pixels}
    return Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGE, temporal_patch_size=TOGETHER, size=size)


def vision_net(
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    feed_forward: int,
    tower_layers: int,
    tower_hidden: int,
    tower_heads: int,
    window_pixels: int,
    vocabulary: int,
    window: int,
    seed: int,
) -> Qwen2_5_VLForConditionalGeneration:
    """A model with random weights.

    Args:
        layers, hidden, heads, kv_heads, feed_forward: of the language model.
        tower_layers, tower_hidden, tower_heads: of the vision tower.
        window_pixels: sides of the windows within which all layers of the tower but the last attend.
        vocabulary: tokens.
        window: longest text in tokens, visual ones included.
        seed: of the weights.

    Raises:
        ConfigError: heads that do not divide the hidden size.
    """
    half = head_size(hidden, heads) // 2
    time, row = half // 4, (half - half // 4) // 2  # Qwen2.5-VL's shares: 16, 24, 24 of 64
    # A cell is found by its content from anywhere in the answer: slow pairs have to stand almost still over its length.
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [time, row, half - time - row]}
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": feed_forward,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": window,
            "rope_parameters": rope,
            "bos_token_id": None,
            "eos_token_id": SPECIAL.index(END),
            "pad_token_id": SPECIAL.index(END),
        },
        vision_config={
            "depth": tower_layers,
            "hidden_size": tower_hidden,
            "intermediate_size": 8 * tower_hidden // 3,
            "num_heads": tower_heads,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": TOGETHER,
            "window_size": window_pixels,
            "out_hidden_size": hidden,
            "fullatt_block_indexes": [tower_layers - 1],
        },
        image_token_id=SPECIAL.index(IMAGE),
        video_token_id=SPECIAL.index(VIDEO),
        vision_start_token_id=SPECIAL.index(BEGIN),
        vision_end_token_id=SPECIAL.index(CLOSE),
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Qwen2_5_VLForConditionalGeneration(config)
    net.generation_config.eos_token_id = net.generation_config.pad_token_id = SPECIAL.index(END)
    return net
