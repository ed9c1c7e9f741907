"""Where a link of a page leads: within the site always.

Pages are written for readers of the repository, so links are relative to the file they stand in. On the site, one rule:

* a page or picture of docs/ is one of the site, and so is a Markdown file of `COPIED`;
* a public module or package is its API page;
* any other text file of the repository is shown on a page of its own, a notebook cell by cell;
* whatever is not there, or is no text, is a fault, and so is an address of another site that is misspelt.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from docs.site.modules import public_modules

DOCS = "docs"
COPIED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "traces/README.md": "traces.md"}
SHOWN = "repository"  # folder of the pages that show files
LARGEST = 200_000  # bytes of a file that is shown
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
_HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?", re.IGNORECASE)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".sh": "bash"}


class BadLinkError(ValueError):
    """A link that leads nowhere; the message says which and why."""


def source_of(page: str) -> str:
    """The repository's file a page of the site is made of."""
    copied = {target: source for source, target in COPIED.items()}
    return copied.get(page, f"{DOCS}/{page}")


def links_of(text: str) -> Iterator[str]:
    """Targets of a page's links, those in code blocks left out."""
    for found in _LINK.finditer(_FENCE.sub("", text)):
        yield found[2]


def rewritten(text: str, change: Callable[[str], str]) -> str:
    """A page with every link's target changed, code blocks left alone."""

    def links(part: str) -> str:
        return _LINK.sub(lambda found: f"{found[1]}({change(found[2])})", part)

    parts, at = [], 0
    for fence in _FENCE.finditer(text):
        parts += [links(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, links(text[at:])])


def page_of(root: Path, target: str) -> str:
    """The page of the site for a file or folder of the repository.

    Args:
        root: of the repository.
        target: path from there.

    Raises:
        BadLinkError: there is no such file, or none that can be shown.
    """
    if target in COPIED:
        return COPIED[target]
    if target.startswith(f"{DOCS}/") and target.endswith((".md", ".png")) and (root / target).is_file():
        return target.removeprefix(f"{DOCS}/")
    for module in public_modules(root):
        if target in (str(module.source), str(module.source.parent) if module.package else None):
            return module.page
    file = root / target
    if target.startswith("..") or not file.is_file():
        raise BadLinkError(f"{target} is no file of the repository; link to one, or to a page")
    if file.stat().st_size > LARGEST or not _is_text(file):
        raise BadLinkError(f"{target} cannot be shown: only text files of up to {LARGEST} bytes can")
    return f"{SHOWN}/{target}.md"


def resolve(root: Path, page: str, link: str) -> str:
    """The link as the site needs it.

    Args:
        root: of the repository.
        page: of the site, on which it stands.
        link: as written.

    Raises:
        BadLinkError: see the module's rule.
    """
    if link.startswith("#"):
        return link
    if "://" in link or link.startswith("mailto:"):
        parts = urlsplit(link)
        if parts.scheme not in ("http", "https") or not _HOST.fullmatch(parts.netloc):
            raise BadLinkError(f"{link} is no address of the form https://host.example/path")
        return link
    path, mark, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source_of(page)), path))
    return posixpath.relpath(page_of(root, target), posixpath.dirname(page) or ".") + mark + anchor


def shown(root: Path, target: str) -> str:
    """The page that shows a file: its name and its text, of a notebook its cells."""
    text = (root / target).read_text(encoding="utf-8")
    if target.endswith(".ipynb"):
        return _notebook(target, text)
    longest = max((len(ticks) for ticks in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"# {target}\n\n{fence}{LANGUAGES.get(Path(target).suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def _notebook(target: str, text: str) -> str:
    cells = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        cells.append(source if cell["cell_type"] == "markdown" else f"```py\n{source}\n```")
    run = f"*{target}, without its outputs: see [how to run it]({'../' * (target.count('/') + 1)}notebooks.md).*"
    return "\n\n".join([cells[0], run, *cells[1:]]) + "\n"


def _is_text(file: Path) -> bool:
    try:
        return "\0" not in file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
