"""Files of prompts as users have them: what is read or refused with its line (hub: test_real_lightning_prompts)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.data import Prompt, load_prompts
from specsim.errors import ConfigError

GOOD = '{"prompt": "a"}\n'


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    """U+2028, U+0085 and the like are allowed inside a JSON text; Python's splitlines would cut there."""
    file = tmp_path / "p.jsonl"
    file.write_bytes('\ufeff{"prompt": "one\u2028two\x85"}\r\n\r\n{"turns": ["b", "c"], "id": 7}'.encode())
    assert load_prompts(str(file)) == [Prompt("line-1", "one\u2028two\x85"), Prompt("7", "b")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt":', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["a"]', "no text in `prompt`"),
        ("NaN", "no text in `prompt`"),
        ('{"prompt": ""}', "no text in `prompt`"),
        ('{"prompt": 5}', "no text in `prompt`"),
        ('{"turns": []}', "no text in `prompt`"),
        ('{"turns": [null]}', "no text in `prompt`"),
        (r'{"prompt": "a \ud800 b"}', "half of a surrogate pair"),
    ],
)
def test_a_line_without_a_prompt_is_refused_by_number(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(GOOD + line + "\n" + GOOD)
    with pytest.raises(ConfigError, match=rf"p\.jsonl, line 2: {message}"):
        load_prompts(str(file))


def test_other_encodings_and_files_without_lines_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes('{"prompt": "é"}'.encode("latin-1"))
    with pytest.raises(ConfigError, match="cannot be read as UTF-8"):
        load_prompts(str(file))
    file.write_text("\n\n")
    with pytest.raises(ConfigError, match="no prompts"):
        load_prompts(str(file))
