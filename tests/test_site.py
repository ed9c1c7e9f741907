"""The documentation site: a page for every public module, links that lead somewhere, nothing loaded from afar."""

from __future__ import annotations

import ast
import html
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from docs.site.docstrings import spelt_out
from docs.site.links import COPIED, BadLinkError, links_of, resolve, rewritten
from tests.conftest import ROOT
from tests.readme import pages

CHROMIUM = Path("/usr/bin/chromium")
_TAG = re.compile(r"<(script|link|img|iframe|source)\b[^>]*>")
_HREF = re.compile(r'<a\b[^>]*\shref="([^"]*)"')
_SRC = re.compile(r'<img\b[^>]*\ssrc="([^"]*)"')
_ID = re.compile(r'\s(?:id|name)="([^"]+)"')


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(root), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "built"
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


def modules_below(folder: Path, prefix: str) -> list[str]:
    """Names of importable modules, found as Python's import system would, without importing."""
    found = [prefix]
    for module in pkgutil.iter_modules([str(folder)]):
        name = f"{prefix}.{module.name}"
        if not module.name.startswith("_"):
            found += modules_below(folder / module.name, name) if module.ispkg else [name]
    return found


def test_every_public_module_has_its_page(site: Path) -> None:
    names = [name for package in ("specsim", "real", "analysis") for name in modules_below(ROOT / package, package)]
    assert len(names) > 200
    overview = (site / "api" / "index.html").read_text(encoding="utf-8")
    for name in names:
        page = (site / "api" / f"{name}.html").read_text(encoding="utf-8")
        file = ROOT.joinpath(*name.split("."))
        source = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        documented = [
            node.name
            for node in ast.parse(source.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and ast.get_docstring(node)
        ]
        assert {one for one in documented if f'id="{name}.{one}"' not in page} == set(), name
        assert f'href="{name}.html"' in overview, name
    assert len(list((site / "api").glob("*.html"))) == len(names) + 1  # and no page of anything private


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for tag in _TAG.finditer(page.read_text(encoding="utf-8")):
            found = re.search(r'(?:src|href)="([^"]*)"', tag[0])
            assert found is None or "//" not in found[1], f"{page.name}: {tag[0]}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_every_link_of_the_built_pages_has_its_end(site: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    ids = {path: {html.unescape(one) for one in _ID.findall(text)} for path, text in texts.items()}
    checked = 0
    for page, text in texts.items():
        if page.name == "404.html":
            continue
        for link in {*_HREF.findall(text), *_SRC.findall(text)}:
            link = html.unescape(link)
            if re.match(r"https?:", link):
                continue
            path, _, anchor = link.partition("#")
            target = Path(os.path.normpath(page.parent / unquote(path))) if path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.relative_to(site)} links to {link}"
            if anchor and target in ids:
                assert unquote(anchor) in ids[target] | {"__top"}, f"{page.relative_to(site)} links to {link}"
            checked += 1
    assert checked > 5000


def test_markdown_is_understood(site: Path) -> None:
    """Fences, lists and tables that only the repository's own reader understands would show as they are written."""
    for page in site.glob("*.html"):
        body = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for raw in ("```", "<p>* ", "\n* ", "|---", "<!-- output"):
            assert raw not in body, f"{page.name} shows {raw!r}"


def test_home_is_the_readme(site: Path) -> None:
    assert not (ROOT / "docs" / "index.md").exists()
    text = re.sub(r"<[^>]+>", "", (site / "index.html").read_text(encoding="utf-8"))
    for heading in re.findall(r"^## (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE):
        assert heading in text


@pytest.mark.skipif(not CHROMIUM.is_file(), reason=f"{CHROMIUM} is not installed")
def test_search_works_on_the_files_alone(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        faults: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((site / "formats.html").as_uri())
        page.locator(".md-search__input").click()
        page.keyboard.type("clairvoyant")
        page.wait_for_function("document.querySelectorAll('.md-search-result__link').length > 0")
        links = page.eval_on_selector_all(".md-search-result__link", "all => all.map(one => one.href)")
        browser.close()
    assert any("glossary.html" in link for link in links)
    assert faults == []
    assert [url for url in asked if not url.startswith(site.as_uri())] == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project of a few files with the site's own machinery."""
    root = tmp_path / "project"
    shutil.copytree(ROOT / "docs" / "site", root / "docs" / "site", ignore=shutil.ignore_patterns("__pycache__"))
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[0]
    (root / "mkdocs.yml").write_text(settings + "\nnav:\n  - index.md\n  - first.md\n  - changelog.md\n  - traces.md\n")
    for package in ("specsim", "real", "analysis"):
        (root / package).mkdir()
        (root / package / "__init__.py").write_text('"""A package."""\n')
    (root / "specsim" / "thing.py").write_text('"""A thing."""\n\ndef call() -> int:\n    """One."""\n    return 1\n')
    (root / "specsim" / "_hidden.py").write_text('"""Nobody sees this."""\n')
    (root / "traces").mkdir()
    (root / "traces" / "README.md").write_text("# Traces\n\n[first](../docs/first.md#part)\n")
    (root / "README.md").write_text("# Name\n\n[first](docs/first.md) [text](LICENSE)\n")
    (root / "CHANGELOG.md").write_text("# Changes\n\n[here](README.md)\n")
    (root / "LICENSE").write_text("Do as you like.\n")
    (root / "tool.py").write_text("print(1)\n")
    (root / "docs" / "first.md").write_text(
        "# First\n\n## Part\n\n[a](../specsim/thing.py) [b](../specsim) [c](../tool.py)\n"
        "[d](../README.md#name) [e](#part) [f](https://host.example/path#x)\n\n```\n[code](missing.md)\n```\n"
    )
    return root


def test_links_that_leave_the_folder_stay_on_the_site(small: Path, tmp_path: Path) -> None:
    done = build(small, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "out" / "first.html").read_text()
    for target in ("api/specsim.thing.html", "api/specsim.html", "repository/tool.py.html", "index.html#name"):
        assert f'href="{target}"' in first
        assert (tmp_path / "out" / target.partition("#")[0]).is_file()
    assert "Do as you like." in (tmp_path / "out" / "repository" / "LICENSE.html").read_text()
    assert not list((tmp_path / "out" / "api").glob("*hidden*"))
    assert not list((tmp_path / "out").rglob("*.pyc"))


def test_every_fault_fails_the_build(small: Path, tmp_path: Path) -> None:
    first = small / "docs" / "first.md"
    first.write_text(
        first.read_text() + "\n[1](gone.md) [2](#nowhere) [3](traces.md) [4](../specsim/gone.py)\n"
        "[5](../../outside.txt) [6](http:/typo.example) [7](../LICENSE#part) [8](../traces/README.md#no)\n"
    )
    (small / "docs" / "lost.md").write_text("# Nobody links here\n")
    thing = small / "specsim" / "thing.py"
    documented = '"""One.\n\n    Args:\n        nothing: of the kind.\n    """'
    thing.write_text(thing.read_text().replace('"""One."""', documented))
    done = build(small, tmp_path / "out")
    assert done.returncode == 1
    for message in (
        "docs/gone.md is no file",
        "'#nowhere'",
        "docs/traces.md is no file",  # the page's own place is traces/README.md
        "'traces.md#no'",
        "specsim/gone.py is no file",
        "../outside.txt is no file",
        "http:/typo.example",
        "repository/LICENSE.md#part",
        "lost.md",
        "'nothing' does not appear in the function signature",
    ):
        assert message in done.stderr, f"{message!r} is not in\n{done.stderr}"


@pytest.mark.parametrize(
    ("page", "link", "want"),
    [
        ("index.md", "docs/formats.md#writing-one", "formats.md#writing-one"),
        ("formats.md", "../traces/README.md", "traces.md"),
        ("traces.md", "../docs/real.md", "real.md"),
        ("formats.md", "../specsim/schema.py", "api/specsim.schema.md"),
        ("formats.md", "../specsim/latency", "api/specsim.latency.md"),
        ("formats.md", "../LICENSE", "repository/LICENSE.md"),
    ],
)
def test_resolved(page: str, link: str, want: str) -> None:
    assert resolve(ROOT, page, link) == want


def test_binary_files_are_not_shown() -> None:
    with pytest.raises(BadLinkError, match="cannot be shown"):
        resolve(ROOT, "formats.md", "../traces/humaneval-layer-skip.parquet")


def test_rewritten_leaves_code_alone() -> None:
    text = "[a](b)\n```\n[a](b)\n```\n![c](b) [d](e)\n"
    assert rewritten(text, str.upper) == "[a](B)\n```\n[a](b)\n```\n![c](B) [d](E)\n"
    assert list(links_of(text)) == ["b", "b", "e"]


def test_every_page_of_the_repository_is_a_page_of_the_site(site: Path) -> None:
    for page in pages():
        name = str(page.relative_to(ROOT))
        made = COPIED.get(name, page.name)
        assert (site / made).with_suffix(".html").is_file(), name


def test_names_that_share_a_description() -> None:
    text = "Do.\n\nArgs:\n    a, b: two.\n    one: x, y: z.\n    *c,\n        d: rest.\n"
    want = "Do.\n\nArgs:\n    a: see `b`.\n    b: two.\n    one: x, y: z.\n    *c: see `d`.\n    d: rest.\n"
    assert spelt_out(text) == want
