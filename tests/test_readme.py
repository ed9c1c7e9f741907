"""What README and the pages show as output is what the command prints."""

from __future__ import annotations

import pytest

from tests.readme import ROOT, Block, blocks_of, normalised, pages, run

BLOCKS = [block for page in pages() for block in blocks_of(page)]


def test_every_marker_is_part_of_a_block() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- output:") == text.count("<!-- end -->") == len(list(blocks_of(page))), page.name


def test_readme_shows_a_replay_and_the_controllers() -> None:
    commands = [block.command for block in blocks_of(ROOT / "README.md")]
    assert any("specsim.replay traces/" in command for command in commands)
    assert any("specsim.controllers" in command for command in commands)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_page_shows_what_the_command_prints(block: Block) -> None:
    assert normalised(run(block.command)) == normalised(block.shown), "run: python -m tests.readme --update"
