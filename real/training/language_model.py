"""A small causal language model (Llama class), trained from scratch, and what training any model on text shares."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import logging as transformers_logging

from real.training.module import TrainModule
from real.training.ranges import COUNT, SEED, head_size
from real.training.text_data import StdlibText
from real.training.tokenizer import SMALLEST
from specsim.controllers.base import Param
from specsim.errors import ConfigError


class CausalModule(TrainModule):
    """A causal language model on windows of text; what it is and how it is trained say subclasses.

    Args:
        net: transformers causal language model.
        muon_lr, adam_lr, warmup_steps: see TrainModule.
    """

    def __init__(self, net: Any, muon_lr: float, adam_lr: float, warmup_steps: int) -> None:
        super().__init__(muon_lr, adam_lr, warmup_steps)
        self.net = net

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        loss = cross_entropy(self.net(input_ids=batch[:, :-1], use_cache=False).logits, batch)
        self.log("val/loss", loss, batch_size=len(batch))

    def about(self) -> dict[str, str]:
        size, config = sum(parameter.numel() for parameter in self.net.parameters()), self.net.config
        kind = type(self.net).__name__.removesuffix("ForCausalLM")
        return {
            "title": "Small language model of Python sources",
            "data": self._data().about,
            "model": f"{kind} class, {config.num_hidden_layers} layers x {config.hidden_size}, {size} parameters",
        }

    def export(self, folder: Path) -> None:
        """The model in bfloat16 with the data's tokenizer, as transformers loads them."""
        transformers_logging.disable_progress_bar()
        copy.deepcopy(self.net).bfloat16().save_pretrained(folder)
        self._data().tokenizer.save_pretrained(folder)

    def _data(self) -> StdlibText:
        data = cast(Any, self.trainer).datamodule
        if not isinstance(data, StdlibText):
            raise ConfigError("a language model is trained on real.training.text_data.StdlibText")
        return data


def cross_entropy(logits: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss in nats of float[B, T, V] logits on int64[B, T + 1] windows."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


class LanguageModel(CausalModule):
    """Next-token cross-entropy in nats.

    Deep and narrow on purpose: a plain step then costs many layers, and a drafter of one layer is cheap beside it.

    Args:
        layers, hidden, heads, kv_heads, feed_forward: sizes; a head has hidden / heads entries.
        vocabulary: tokens; of the data's tokenizer.
        window: longest text in tokens.
        seed: of the initial weights.
        muon_lr, adam_lr, warmup_steps: see TrainModule.
    """

    ALLOWED: ClassVar = {
        **TrainModule.ALLOWED,
        **dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "feed_forward", "window"), COUNT),
        "vocabulary": Param(kind=int, low=SMALLEST),
        "seed": SEED,
    }

    def __init__(
        self,
        layers: int = 16,
        hidden: int = 160,
        heads: int = 4,
        kv_heads: int = 2,
        feed_forward: int = 432,
        vocabulary: int = 4096,
        window: int = 320,
        seed: int = 0,
        muon_lr: float = 0.02,
        adam_lr: float = 0.003,
        warmup_steps: int = 100,
    ) -> None:
        head_size(hidden, heads)
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=feed_forward,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=window,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = LlamaForCausalLM(config)
        super().__init__(net, muon_lr, adam_lr, warmup_steps)

    def setup(self, stage: str) -> None:
        config, data = self.net.config, self._data()
        if data.length > config.max_position_embeddings:
            raise ConfigError(
                f"data.length={data.length}: allowed is up to model.window, {config.max_position_embeddings}"
            )
        if len(data.tokenizer) > config.vocab_size:
            raise ConfigError(
                f"model.vocabulary={config.vocab_size}: allowed is data.vocabulary, {data.vocabulary}, or more"
            )

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = cross_entropy(self.net(input_ids=batch[:, :-1], use_cache=False).logits, batch)
        self.log("train/loss", loss.detach())
        return loss
