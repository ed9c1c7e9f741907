"""Prompts from a dataset of the Hugging Face hub, for users who have the package `datasets`.

Owns the spelling `hub:NAME[:config=...,split=...,column=...]`. What a row's text is, `real.data` decides.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from real.places import reason_of
from specsim.errors import ConfigError

HUB = "hub:"
KEYS = ("config", "split", "column")


@dataclass(frozen=True)
class HubDataset:
    """A dataset by name.

    Args:
        name: hub id, or a folder that `datasets` can read.
        config: its configuration, where it has several.
        split: part of it.
        column: column that holds the prompt; None: `prompt`, else `turns`.
    """

    name: str
    config: str | None = None
    split: str = "test"
    column: str | None = None


def parse_hub(text: str) -> HubDataset:
    """Read `hub:NAME[:key=value,...]`.

    Raises:
        ConfigError: no name, an unknown key, or an item that is not key=value.
    """
    name, _, rest = text.removeprefix(HUB).partition(":")
    if not name:
        raise ConfigError(f"dataset {text!r}: name one, e.g. hub:openai/openai_humaneval:split=test,column=prompt")
    given: dict[str, str] = {}
    for item in rest.split(",") if rest else []:
        key, equals, value = item.partition("=")
        if key not in KEYS or not equals or not value or key in given:
            raise ConfigError(f"dataset {text!r}: cannot read {item!r}; allowed, each once: {'=..., '.join(KEYS)}=...")
        given[key] = value
    return HubDataset(name, **given)


def hub_rows(dataset: HubDataset) -> Iterator[dict[str, Any]]:
    """The rows of a dataset as dictionaries, in its order.

    Raises:
        ConfigError: `datasets` is not installed, the hub cannot be reached, or there is no such dataset or split.
    """
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise ConfigError(
            f"dataset hub:{dataset.name}: needs the package datasets; run: pip install datasets. Without it, a JSONL "
            "file with `prompt` or `turns` in every line does as well"
        ) from None
    try:
        rows = datasets.load_dataset(dataset.name, dataset.config, split=dataset.split)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"dataset hub:{dataset.name}: cannot be loaded ({reason_of(error)}); check name, config and split "
            f"{dataset.split!r}, and that this machine reaches the hub or has the dataset in its cache"
        ) from error
    yield from (dict(row) for row in rows)
