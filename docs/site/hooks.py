"""What mkdocs asks while it builds the site: pages that are not in docs/, and links (`docs.site.links`).

A fault is a warning here; `make docs` builds with --strict, where warnings fail.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site import links, modules

log = logging.getLogger("mkdocs.plugins.docs.site")
_MARKER = re.compile(r"^<!-- (output: .*|end) -->$", re.MULTILINE)


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the API pages behind the navigation of mkdocs.yml."""
    assert config.nav is not None
    config.nav.append({"Modules": [f"{modules.FOLDER}/index.md", *modules.navigation(_root(config))]})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that come from elsewhere: README and the like, modules, and files that pages link to."""
    root = _root(config)
    made = {target: (root / source).read_text(encoding="utf-8") for source, target in links.COPIED.items()}
    made |= {module.page: module.markdown() for module in modules.public_modules(root)}
    made[f"{modules.FOLDER}/index.md"] = modules.overview(root)
    written = {page.src_uri: page.content_string for page in files.documentation_pages()} | made
    for page, text in written.items():
        if not page.startswith(f"{modules.FOLDER}/"):
            made |= {name: links.shown(root, target) for name, target in _files_linked(root, page, text)}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def _files_linked(root: Path, page: str, text: str) -> list[tuple[str, str]]:
    """(page that shows it, file) of the files that a page links to; bad links are told of when it is rendered."""
    found = []
    for link in links.links_of(text):
        try:
            name = links.resolve(root, page, link).partition("#")[0]
        except links.BadLinkError:
            continue
        if name.startswith(f"{links.SHOWN}/"):
            found.append((name, name.removeprefix(f"{links.SHOWN}/").removesuffix(".md")))
    return found


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that lead within the site, and no markers of `tests.readme`."""
    name = page.file.src_uri
    if name.startswith((f"{modules.FOLDER}/", f"{links.SHOWN}/")):
        return markdown

    def change(link: str) -> str:
        try:
            return links.resolve(_root(config), name, link)
        except links.BadLinkError as error:
            log.warning("%s: %s", links.source_of(name), error)
            return link

    return _MARKER.sub("", links.rewritten(markdown, change))
