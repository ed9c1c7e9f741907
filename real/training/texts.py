"""Texts that a target wrote, on disk: shards of a parquet table, one row a text.

Columns: `tokens` (list of int32, the beginning included), `prompt_len` (int32), `greedy` (bool), `held_out` (bool: the
beginning comes from a file kept from training). A shard appears whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specsim.errors import ConfigError
from specsim.paths import replace_file

SETTINGS = "settings.json"
SCHEMA = pa.schema(
    [("tokens", pa.list_(pa.int32())), ("prompt_len", pa.int32()), ("greedy", pa.bool_()), ("held_out", pa.bool_())]
)


@dataclass(frozen=True, kw_only=True)
class Text:
    """One text.

    Args:
        tokens: int32[T], its beginning included.
        prompt_len: tokens of the beginning, which the target did not write.
        greedy: written greedily, not sampled.
        held_out: begins with held-out text.
    """

    tokens: np.ndarray
    prompt_len: int
    greedy: bool
    held_out: bool


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.parquet"


def write_shard(folder: Path, number: int, texts: Sequence[Text]) -> None:
    """Write one shard."""
    columns = {
        "tokens": [text.tokens.tolist() for text in texts],
        **{key: [getattr(text, key) for text in texts] for key in ("prompt_len", "greedy", "held_out")},
    }
    with replace_file(shard_path(folder, number)) as temporary:
        pq.write_table(pa.Table.from_pydict(columns, schema=SCHEMA), temporary)


def open_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Make the folder, or check that it holds texts made with the same settings.

    Raises:
        ConfigError: other settings, or a folder that cannot be used.
    """
    file, wanted = folder / SETTINGS, json.loads(json.dumps(settings))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else wanted
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be used ({error}); choose another folder") from error
    different = sorted(key for key in {*wanted, *found} if wanted.get(key) != found.get(key))
    if different:
        key = different[0]
        raise ConfigError(
            f"{folder} holds texts made with other settings ({', '.join(different)}; {key} was {found.get(key)!r}, now "
            f"{wanted.get(key)!r}); choose another folder, or delete this one"
        )
    with replace_file(file) as temporary:
        temporary.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")


def read_texts(folder: Path) -> list[Text]:
    """Every text of a folder, in order.

    Raises:
        ConfigError: no finished shard there, or one that cannot be read.
    """
    texts = []
    for path in sorted(folder.glob("shard-*.parquet")):
        try:
            table = pq.read_table(path, schema=SCHEMA)
        except (OSError, pa.ArrowInvalid) as error:
            raise ConfigError(f"{path}: cannot be read ({error}); delete it and write it again") from error
        columns = [table.column(name).to_pylist() for name in ("tokens", "prompt_len", "greedy", "held_out")]
        texts += [
            Text(tokens=np.array(tokens, dtype=np.int32), prompt_len=length, greedy=greedy, held_out=held_out)
            for tokens, length, greedy, held_out in zip(*columns, strict=True)
        ]
    if not texts:
        raise ConfigError(f"{folder} holds no texts; make some: python -m real.continuations --target T --out {folder}")
    return texts
