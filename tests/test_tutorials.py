"""The tutorials work as written and show what their commands print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorials import BLOCK, TUTORIALS, followed, lay_out


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_can_be_followed(page: Path, tmp_path: Path) -> None:
    lay_out(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert followed(text, tmp_path) == text, "run: python -m tests.tutorials --update"


def test_there_are_three_and_every_marker_is_part_of_a_block() -> None:
    assert len(TUTORIALS) == 3
    for page in TUTORIALS:
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- ") == len(BLOCK.findall(text))
        assert text.count("<!-- run -->") >= 1


def test_stale_output_is_found(tmp_path: Path) -> None:
    lay_out(tmp_path)
    page = "<!-- run -->\n```bash\necho new\n```\n\n<!-- shown -->\n```text\nold\n```\n"
    assert followed(page, tmp_path) == page.replace("old", "new")


def test_failing_command_is_found(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exit status 3"):
        followed("<!-- run -->\n```bash\nexit 3\n```\n", tmp_path)
