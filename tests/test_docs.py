"""The pages keep up with the code: links, commands, examples, one section per controller, one row per system."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specsim.controllers import DEFAULT_SETS, REGISTRY, Setting, build
from specsim.latency import LatencyModel
from tests.readme import ROOT, pages
from tests.worlds import kinds_of

DOCS = [*pages(), ROOT / "CHANGELOG.md"]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_MODULE = re.compile(r"python -m ((?:specsim|real|analysis|tests)[\w.]*)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Pages with files of their own: tests/test_adding_a_controller.py and tests/test_tutorials.py follow them.
FOLLOWED = ("adding-a-controller.md", "tutorial-extend.md")
_EXAMPLES = [
    pytest.param(page, source, id=f"{page.name}-{number}")
    for page in DOCS
    if page.name not in FOLLOWED
    for number, (language, source) in enumerate(_FENCE.findall(page.read_text(encoding="utf-8")))
    if language == "python"
]

SYSTEMS = (
    "plain decoding",
    "FastdLLM (static)",
    "FailFast",
    "G4-style",
    "LibraSpec",
    "EAGLE-3",
    "DFlash",
    "DDTree",
    "BanditSpec: UCBSpec",
    "BanditSpec: EXP3Spec",
    "SP2ec",
    "cosSim",
    "SWIFT",
    "KnapSpec",
    "SpecVLM",
    "HF heuristic",
    "HF threshold",
    "SpecDec++",
    "SGLang EMA",
    "SGLang throughput-aware",
    "vLLM adaptive K",
    "CaDDTree",
    "DSpark / SPS",
    "DSDE",
    "TETRIS",
    "Nightjar",
    "AdaEDL",
    "SVIP",
    "GammaTune",
    "TapOut",
    "HedgeSpec",
    "BlockPilot",
    "DISCO",
    "DEL",
    "CLaSp",
)


def modules_named() -> list[str]:
    return sorted({name.rstrip(".") for page in DOCS for name in _MODULE.findall(page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in _LINK.findall(text):
        if "://" in target or target.startswith(("#", "mailto:")):
            continue
        assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}, which does not exist"


@pytest.mark.parametrize("module", modules_named())
def test_commands_exist(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"python -m {module} --help: {done.stderr}"


@pytest.mark.parametrize(("page", "source"), _EXAMPLES)
def test_python_examples_run(page: Path, source: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{page.name}:\n{source}\n{done.stderr}"


def test_every_controller_has_a_section() -> None:
    text = (ROOT / "docs" / "controllers.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## `([\w-]+)`$", text, re.MULTILINE)
    assert sorted(sections) == sorted(REGISTRY)


def test_controllers_page_names_every_parameter() -> None:
    text = (ROOT / "docs" / "controllers.md").read_text(encoding="utf-8")
    for name, spec in REGISTRY.items():
        section = text.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        for key in spec.params:
            assert re.search(rf"\b{key}\b", section), f"the section of {name} does not name {key}"


def test_spellings_in_the_pages_are_valid() -> None:
    length = Setting(block_len=1, max_draft_len=96, latency=LatencyModel.affine(c_s=0.001, b_s=0.02))
    settings = {
        "length": length,
        "arm": dataclasses.replace(length, arm_draft_s=(0.01, 0.02), draft_len=4),
        "tree": dataclasses.replace(length, tree=True, block_len=96),
    }
    text = "\n".join(page.read_text(encoding="utf-8") for page in DOCS if page.name not in FOLLOWED)
    spellings = re.findall(r"(?:-c|--controllers) ([a-z][\w-]*(?::[\w=.,-]+)?)", text)
    assert spellings
    for spelling in (*spellings, *(text for texts in DEFAULT_SETS.values() for text in texts)):
        name = spelling.partition(":")[0]
        for kind in kinds_of(spelling):
            assert build(spelling, settings[kind]).name == name


def test_claims_has_one_row_per_system() -> None:
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    for system in SYSTEMS:
        assert rows.count(system) == 1, f"{system}: {rows.count(system)} rows"


def test_tests_named_in_the_pages_exist() -> None:
    for page in DOCS:
        for file, function in re.findall(r"(tests/\w+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8")):
            path = ROOT / file
            assert path.is_file(), f"{page.name} names {file}"
            if function:
                assert f"def {function}(" in path.read_text(encoding="utf-8"), f"{page.name} names {file}::{function}"
