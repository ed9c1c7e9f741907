"""A tiny random Llama and the slow, obvious recorder that the fast one must equal. Shared by the test_real_* files."""

from __future__ import annotations

import string
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from real.models import Loaded
from real.record import RequestRows

VOCABULARY = 64
STOP = 2


def tiny_llama(
    *, layers: int = 3, seed: int = 0, window: int = 256, spread: float = 0.25, vocabulary: int = VOCABULARY
) -> LlamaForCausalLM:
    """Random float32 weights; `spread` is their standard deviation (large enough that argmax is never a near tie)."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=window,
        initializer_range=spread,
        bos_token_id=1,
        eos_token_id=STOP,
        pad_token_id=STOP,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


# What a class needs besides the common sizes. Windows of 8 tokens are left behind by every prompt.
FAMILIES = {
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 8}),
    "mistral": (MistralConfig, {"sliding_window": 8}),
    "mistral-full": (MistralConfig, {"sliding_window": None}),
    "gemma2": (Gemma2Config, {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}),
    "gemma3": (
        Gemma3TextConfig,
        {
            "head_dim": 8,
            "sliding_window": 8,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "mixtral": (MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        Qwen3MoeConfig,
        {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
}


def tiny_family(name: str, *, seed: int = 0, window: int = 256, vocabulary: int = VOCABULARY):
    """A random float32 causal language model of three layers, of one of `FAMILIES`; id 0 is padding, 2 the end."""
    kind, more = FAMILIES[name]
    config = kind(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=window,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=STOP,
        pad_token_id=0,
        tie_word_embeddings=False,  # Gemma's own choice repeats one token for ever
        **more,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()


class LetterTokenizer:
    """One token per character, ids 3..63; no chat template."""

    chat_template = None
    eos_token_id = STOP

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(letter) % (VOCABULARY - 3) for letter in text]}


def tiny_loaded(**options: int) -> Loaded:
    return Loaded(
        model=tiny_llama(**options),
        tokenizer=LetterTokenizer(),
        name="tiny",
        stop_ids=(STOP,),
        device="cpu",
        dtype="float32",
    )


def save_tiny(folder: Path, **options: int) -> Path:
    """A folder that `load_target` and transformers load: `tiny_llama` and a tokenizer of one token per character."""
    letters = string.ascii_lowercase + string.digits + " .,:;!?()=+-*_\n#'[]<>/%"
    vocabulary = {token: number for number, token in enumerate(["<pad>", "<s>", "</s>", *letters])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = Fuse()
    tiny_llama(**options).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    return folder


def prompt_ids(seed: int, n: int = 12) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(3, VOCABULARY, size=n))


@torch.inference_mode()
def naive_rows(target, drafter, prompt: torch.Tensor, *, max_new_tokens: int, max_draft_len: int) -> RequestRows:
    """Every position by itself, every token by a full forward pass without any cache or mask."""

    def next_logits(model, ids: list[int]) -> torch.Tensor:
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()

    start = prompt.tolist()
    output: list[int] = []
    while len(output) < max_new_tokens and STOP not in output:
        output.append(int(next_logits(target, start + output).argmax()))
    rows = SimpleNamespace(tokens=[], q=[], p=[], accept_prob=[], entropy=[], accept_len=[], m=[])
    for pos in range(len(output)):
        m = min(max_draft_len, len(output) - pos - 1)
        context = start + output[:pos]
        branch, accepted = [], []
        for _ in range(m):
            log_probs = next_logits(drafter, context + branch).log_softmax(-1)
            token = int(log_probs.argmax())
            target_log_probs = next_logits(target, context + branch).log_softmax(-1)
            rows.tokens.append(token)
            rows.q.append(float(log_probs[token].exp()))
            rows.entropy.append(float(-(log_probs.exp() * log_probs).sum()))
            rows.p.append(float(target_log_probs[token].exp()))
            accepted.append(float(int(target_log_probs.argmax()) == token))
            branch.append(token)
        rows.accept_prob += accepted
        rows.accept_len.append(accepted.index(0.0) if 0.0 in accepted else m)
        rows.m.append(m)
    return RequestRows(
        prompt_len=len(prompt),
        output=np.array(output),
        offsets=np.concatenate([[0], np.cumsum(rows.m)]),
        tokens=np.array(rows.tokens),
        q=np.array(rows.q, np.float32),
        p=np.array(rows.p, np.float32),
        accept_prob=np.array(rows.accept_prob, np.float32),
        entropy=np.array(rows.entropy, np.float32),
        accept_len=np.array(rows.accept_len, np.int16),
        mismatches=0,
    )
