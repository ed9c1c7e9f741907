"""Which modules have an API page: found by walking the packages' folders, not listed by hand; nothing is imported.

A module is public when no part of its name begins with an underscore, `__init__` apart, which is its package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PACKAGES = ("specsim", "analysis", "real")
FOLDER = "api"


@dataclass(frozen=True)
class Module:
    """A public module: its dotted name, its file in the repository, whether it is a package."""

    name: str
    source: PurePosixPath
    package: bool

    @property
    def page(self) -> str:
        """Where its page lies among the site's sources."""
        return f"{FOLDER}/{self.name}.md"

    def markdown(self) -> str:
        """Its page: mkdocstrings fills in the docstrings."""
        return f"# `{self.name}`\n\n::: {self.name}\n"


def public_modules(root: Path) -> Iterator[Module]:
    """Every public module below a repository's root, packages before what is in them, by name."""
    for package in PACKAGES:
        yield from sorted(_below(root, package), key=lambda module: module.name)


def _below(root: Path, package: str) -> Iterator[Module]:
    for file in (root / package).rglob("*.py"):
        source = PurePosixPath(file.relative_to(root).as_posix())
        parts = source.with_suffix("").parts
        whole = parts[-1] == "__init__"
        name = parts[:-1] if whole else parts
        if not any(part.startswith("_") for part in name):
            yield Module(".".join(name), source, whole)


def navigation(root: Path) -> list[dict[str, object]]:
    """The navigation of the API pages: one entry a package, in it its overview, its modules, then its subpackages."""
    modules = list(public_modules(root))
    return [_entry(module, modules) for module in modules if module.package and "." not in module.name]


def _entry(package: Module, modules: list[Module]) -> dict[str, object]:
    inside = [module for module in modules if module.name.rpartition(".")[0] == package.name]
    pages: list[object] = [{package.name: package.page}]
    pages += [{module.name: module.page} for module in inside if not module.package]
    pages += [_entry(module, modules) for module in inside if module.package]
    return {package.name: pages}


def overview(root: Path) -> str:
    """The page that lists all modules with the first sentence of each docstring."""
    lines = [
        "# Modules",
        "",
        "One page a module, from its docstrings. `specsim` simulates, `analysis` draws and judges, `real` decodes.",
        "",
        "| module | what it is for |",
        "|---|---|",
    ]
    for module in public_modules(root):
        lines.append(f"| [`{module.name}`]({module.name}.md) | {_summary(root / module.source)} |")
    return "\n".join(lines) + "\n"


def _summary(file: Path) -> str:
    """The first paragraph of a file's docstring, in one line that fits a table's cell."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")
