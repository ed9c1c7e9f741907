"""Texts that a target wrote, on disk: shards of a parquet table, one row a text.

Columns: `tokens` (list of int32, the beginning included), `prompt_len` (int32), `greedy` (bool), `held_out` (bool: the
beginning comes from a file kept from training). A shard appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from real.places import reason_of
from real.training.settings_file import SETTINGS, check_same, write_settings
from specsim.errors import ConfigError
from specsim.paths import replace_file

AGAIN = "delete it; real.continuations then writes it again"
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
    """The file of a shard."""
    return folder / f"shard-{number:05d}.parquet"


def write_shard(folder: Path, number: int, texts: Sequence[Text]) -> None:
    """Write one shard."""
    columns = {
        "tokens": [text.tokens.tolist() for text in texts],
        **{key: [getattr(text, key) for text in texts] for key in ("prompt_len", "greedy", "held_out")},
    }
    with replace_file(shard_path(folder, number)) as temporary:
        pq.write_table(pa.Table.from_pydict(columns, schema=SCHEMA), temporary)


def check_folder(folder: Path) -> None:
    """Read every shard of a folder, which need not exist.

    Raises:
        ConfigError: one that cannot be used.
    """
    for path in _shards(folder):
        read_shard(path)


def open_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Make the folder, or check that it holds texts made with the same settings.

    Raises:
        ConfigError: other settings, or a folder that cannot be made.
    """
    if not check_same(folder, settings, holds="texts", advice="choose another folder, or delete this one"):
        if _shards(folder):
            raise ConfigError(
                f"{folder} holds texts without their {SETTINGS}; choose another folder, or delete this one"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be made ({error}); choose another folder") from error
        write_settings(folder, settings)


def read_texts(folder: Path) -> list[Text]:
    """Every text of a folder, in order.

    Raises:
        ConfigError: no finished shard there, or one that cannot be used.
    """
    texts = [text for path in _shards(folder) for text in read_shard(path)]
    if not texts:
        raise ConfigError(f"{folder} holds no texts; make some: python -m real.continuations --target T --out {folder}")
    return texts


def read_shard(path: Path) -> list[Text]:
    """The texts of one shard, in order.

    Raises:
        ConfigError: a file that is no parquet table, or has other columns or values than texts have.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: cannot be read ({reason_of(error)}); {AGAIN}") from error
    for field in SCHEMA:
        found = table.schema.field(field.name).type if field.name in table.column_names else "missing"
        if found != field.type:
            raise ConfigError(f"{path}, column {field.name!r}: is {found}; allowed: {field.type}; {AGAIN}")
        if table.column(field.name).null_count:
            raise ConfigError(f"{path}, column {field.name!r}: has nulls; allowed: none; {AGAIN}")
    texts = []
    for row, values in enumerate(table.select(SCHEMA.names).to_pylist()):
        tokens, prompt_len = values.pop("tokens"), values["prompt_len"]
        if None in tokens or not all(token >= 0 for token in tokens):
            raise ConfigError(f"{path}, column 'tokens', row {row}: allowed: token ids, 0 or more; {AGAIN}")
        if not 1 <= prompt_len <= len(tokens):
            raise ConfigError(
                f"{path}, column 'prompt_len', row {row}: {prompt_len}; allowed: 1 to the text's {len(tokens)} tokens; "
                f"{AGAIN}"
            )
        texts.append(Text(tokens=np.array(tokens, dtype=np.int32), **values))
    return texts


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.parquet"))
