"""The report in a browser: no network, a silent console, plots drawn, tables sorted, colours, narrow, paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from analysis.report.__main__ import main
from tests.analysis_logs import PLAIN, real_folder, status
from tests.report_pages import figures_of, hostile_real, parsed, replayed

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_MS = 120_000  # of one step: other work may hold the machine
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests here. Of the module, not the session: its event loop must not outlast this file."""
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a replay and of a real run whose names are hostile."""
    folder = tmp_path_factory.mktemp("browser")
    runs = [replayed(folder / "replay", "open-ended-layer-skip"), hostile_real(folder / "real")]
    assert status(main, *runs, "-o", folder / "page.html") == 0
    return folder / "page.html"


@dataclass
class Opened:
    """A page, and everything that should not have happened while it was open."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def style(self, selector: str, name: str) -> str:
        return self.page.locator(selector).first.evaluate("(node, name) => getComputedStyle(node)[name]", name)


@contextmanager
def opening(browser: Any, file: Path, **options: Any) -> Iterator[Opened]:
    context = browser.new_context(offline=True, **options)
    context.set_default_timeout(PATIENCE_MS)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.messages.append(f"{message.type}: {message.text}"))
    found.page.on("pageerror", lambda error: found.messages.append(str(error)))
    found.page.on("dialog", lambda dialog: (found.messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    found.page.on("request", lambda request: found.requests.append(request.url))
    try:
        found.page.goto(file.as_uri())
        found.page.wait_for_selector("html[data-plots=done]", state="attached")
        yield found
        assert found.messages == []
        assert [url for url in found.requests if not url.startswith("data:")] == [file.as_uri()]
    finally:
        context.close()


@pytest.fixture(scope="module")
def opened(browser: Any, page_file: Path) -> Iterator[Opened]:
    """The page at the usual width, in light colours; tests leave it as it was."""
    with opening(browser, page_file, viewport={"width": 1280, "height": 800}, color_scheme="light") as found:
        yield found


def test_every_plot_is_drawn(opened: Opened, page_file: Path) -> None:
    wanted = figures_of(parsed(page_file.read_text(encoding="utf-8")))
    assert opened.page.locator(".plot").count() == len(wanted) > 10
    drawn = opened.page.locator(".plot").evaluate_all(
        """plots => plots.map(plot => [
            plot.querySelectorAll("svg.main-svg").length > 0,
            plot.querySelectorAll(".scatterlayer .trace, .barlayer .trace").length,
            plot.getBoundingClientRect().height,
        ])"""
    )
    for (has_svg, traces, height), figure in zip(drawn, wanted, strict=True):
        assert has_svg
        assert traces == len(figure["data"])
        assert height > 200
    assert opened.page.locator(".failed").count() == 0


def test_titles_of_axes_are_clear_of_numbers_and_legend(opened: Opened) -> None:
    gaps = opened.page.locator(".plot").evaluate_all(
        """plots => plots.map(plot => {
            const box = selector => [...plot.querySelectorAll(selector)].map(node => node.getBoundingClientRect());
            const [title] = box(".g-xtitle text, .g-x2title text");
            const [legend] = box(".legend .bg");
            const numbers = Math.max(...box(".xtick text, .x2tick text").map(tick => tick.bottom));
            return [title.top - numbers, legend ? legend.top - title.bottom : 1];
        })"""
    )
    assert gaps
    assert all(above > 0 and below > -2 for above, below in gaps), gaps


def test_names_are_shown_as_text(opened: Opened) -> None:
    assert opened.page.locator("img").count() == 0
    shown = opened.page.locator("#run-2").evaluate("node => node.parentElement.textContent")
    assert "</script><script>alert(1)</script>" in shown
    legends = opened.page.locator(".legendtext").all_text_contents()
    assert any(text.startswith("</script><scri") for text in legends)
    assert any(text.startswith('"><img src=x') for text in legends)


def column(opened: Opened, number: int) -> list[str]:
    return opened.page.locator("section[aria-labelledby=run-1] table").first.evaluate(
        """(table, number) => [...table.tBodies[0].rows]
            .map(row => row.cells[number]).map(cell => cell.dataset.value ?? cell.textContent)""",
        number,
    )


def press_key(header: Any) -> None:
    header.locator("button").focus()
    header.page.keyboard.press("Enter")


@pytest.mark.parametrize(
    "press", [lambda header: header.locator("button").click(), press_key], ids=["mouse", "keyboard"]
)
def test_table_sorts_both_ways(opened: Opened, press: Callable[[Any], None]) -> None:
    headers = opened.page.locator("section[aria-labelledby=run-1] table").first.locator("thead th")
    accepted, length = headers.nth(6), headers.nth(5)
    press(accepted)  # numbers: the largest first; plain decoding has none and stays last
    for direction in ("descending", "ascending", "descending"):
        assert accepted.get_attribute("aria-sort") == direction
        *known, unknown = column(opened, 6)
        assert unknown == ""
        assert known == sorted(known, key=float, reverse=direction == "descending")
        assert opened.page.locator("#said").text_content() == f"Sorted by accepted, {direction}."
        press(accepted)
    press(length)  # 10.46 after 4.00: by value, not by text
    assert accepted.get_attribute("aria-sort") is None
    assert column(opened, 5) == sorted(column(opened, 5), key=float, reverse=True)
    press(headers.nth(0))
    assert headers.nth(0).get_attribute("aria-sort") == "ascending"
    assert column(opened, 0) == sorted(column(opened, 0))
    press(headers.nth(1))


def test_everything_can_be_reached_by_keyboard(opened: Opened) -> None:
    page = opened.page
    page.locator("#theme").focus()
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    assert opened.style(".skip", "outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    summary = page.locator("summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() == 0
    page.locator("body").evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")


def test_colours_follow_the_system_and_the_button(browser: Any, page_file: Path) -> None:
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 28)"

    def ground(found: Opened) -> tuple[str, str]:
        return found.style("body", "backgroundColor"), found.style(".plot .bg", "fill")

    with opening(browser, page_file, color_scheme="dark") as found:
        assert ground(found) == (dark, dark)
        found.page.emulate_media(color_scheme="light")
        found.page.wait_for_timeout(300)
        assert ground(found) == (light, light)
        assert found.page.locator("#theme").text_content() == "Dark colours"
        found.page.locator("#theme").click()
        found.page.wait_for_timeout(300)
        assert ground(found) == (dark, dark)
        assert found.page.locator("#theme").text_content() == "Light colours"
        found.page.reload()
        found.page.wait_for_selector("html[data-plots=done]", state="attached")
        assert ground(found) == (dark, dark)  # remembered
        found.requests.pop()


@pytest.mark.parametrize("width", [375, 1280])
def test_page_is_never_wider_than_the_screen(browser: Any, page_file: Path, width: int) -> None:
    with opening(browser, page_file, viewport={"width": width, "height": 800}) as found:
        for node in ("document.documentElement", "document.body"):
            assert found.page.evaluate(f"{node}.scrollWidth") <= width
        wide = found.page.locator(".plot svg.main-svg").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().right)"
        )
        assert max(wide) <= width
        boxes = found.page.locator(".scroll").evaluate_all("all => all.map(one => one.scrollWidth > one.clientWidth)")
        assert any(boxes) or width == 1280
        if width == 1280:
            found.page.set_viewport_size({"width": 500, "height": 800})
            found.page.wait_for_timeout(1500)
            assert found.page.evaluate("document.documentElement.scrollWidth") <= 500


def test_long_names_and_names_like_formulas(browser: Any, tmp_path: Path) -> None:
    decodes = {}
    for request in range(3):
        decodes[request, PLAIN] = [(0, 0, 0.1)] * 6
        decodes[request, "n" * 300] = [(3, 2, 0.12 + 0.01 * request), (3, 2, 0.13)]
        decodes[request, "$x^2$"] = [(2, 1, 0.11 + 0.02 * request)] * 3
    folder = real_folder(tmp_path / ("n" * 200), decodes)
    assert status(main, folder, "-o", tmp_path / "page.html") == 0
    with opening(browser, tmp_path / "page.html", viewport={"width": 375, "height": 800}) as found:
        assert found.page.evaluate("document.documentElement.scrollWidth") <= 375
        assert "$x^2$" in found.page.locator(".legendtext").all_text_contents()


def test_on_paper(browser: Any, page_file: Path) -> None:
    with opening(browser, page_file, color_scheme="dark") as found:
        found.page.emulate_media(media="print", color_scheme="dark")
        found.page.wait_for_timeout(1500)
        assert found.style("body", "backgroundColor") == "rgb(255, 255, 255)"
        assert found.style(".plot .bg", "fill") == "rgb(255, 255, 255)"
        for hidden in ("#theme", "details", "nav"):
            assert not found.page.locator(hidden).first.is_visible()
        assert all(plot.is_visible() for plot in found.page.locator(".plot svg.main-svg").all()[:3])
        assert found.page.locator("details[open]").count() == 0
        found.page.set_viewport_size({"width": 700, "height": 990})  # between the margins of a sheet
        found.page.wait_for_timeout(1500)
        assert found.page.evaluate("document.documentElement.scrollWidth") <= 700
        assert len(found.page.pdf()) > 20_000
