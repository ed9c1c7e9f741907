"""The picture of a report in README: `python -m tests.report_picture` makes docs/images/report.png anew.

Replays the traces that come with the project, writes the report and photographs its first screen. Needs chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from analysis.report.__main__ import main as report
from specsim.replay import main as replay
from tests.readme import ROOT

CHROMIUM = "/usr/bin/chromium"
PICTURE = ROOT / "docs" / "images" / "report.png"
SCREEN = {"width": 1280, "height": 800}


def photograph(page_file: Path, picture: Path) -> None:
    """The first screen of a page at 1280 x 800, as PNG of 256 colours."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=SCREEN, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-plots=done]", state="attached")
        page.screenshot(path=picture)
        browser.close()
    Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(picture, optimize=True)


def main(arguments: list[str]) -> int:
    if arguments:
        print("usage: python -m tests.report_picture")
        return 0 if arguments == ["--help"] else 2
    trace = ROOT / "traces" / "humaneval-prompt-lookup.parquet"
    with tempfile.TemporaryDirectory() as folder:
        out, page_file = Path(folder) / "replayed", Path(folder) / "report.html"
        replay.main([str(trace), "--out", str(out)], standalone_mode=False)
        report.main([str(out), "-o", str(page_file)], standalone_mode=False)
        PICTURE.parent.mkdir(exist_ok=True)
        photograph(page_file, PICTURE)
    print(f"written: {PICTURE.relative_to(ROOT)} ({PICTURE.stat().st_size / 1e3:.0f} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
