"""The notebooks hold no logic, no outputs, and run from a fresh clone on what ships with it."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import warnings
from pathlib import Path

import nbformat
import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = ["real-model-tour", "regret-tour", "replay-tour", "theory-tour"]
ALLOWED = {"specsim", "analysis", "numpy", "matplotlib", "IPython", "pathlib"}
LONGEST = 5  # lines of a function or loop
LIMIT_S = 300  # of a cell; a quiet machine needs seconds
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def faults(path_name: str, source: str) -> list[str]:
    """What does not belong into a notebook's code."""
    found = []
    allowed = ALLOWED | ({"real"} if path_name == "real-model-tour" else set())
    for node in ast.walk(ast.parse(source)):
        lines = getattr(node, "end_lineno", 0) - getattr(node, "lineno", 0) + 1
        if isinstance(node, ast.ClassDef):
            found.append(f"class {node.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines > LONGEST:
            found.append(f"def {node.name} of {lines} lines")
        elif isinstance(node, ast.For | ast.While) and lines > LONGEST:
            found.append(f"loop of {lines} lines")
        elif isinstance(node, ast.Import):
            found += [one.name for one in node.names if one.name.partition(".")[0] not in allowed]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in allowed:
            found.append(str(node.module))
    return found


def unstripped(notebook: nbformat.NotebookNode) -> list[int]:
    """Cells with an output, a number or metadata of a run."""
    return [
        number
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None or cell.metadata)
    ]


def test_they_are_all_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == NAMES


@each
def test_format_is_4_5_and_outputs_are_stripped(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert unstripped(notebook) == [], f"run: python -m nbstripout {path.relative_to(ROOT)}"
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


@each
def test_no_logic(path: Path) -> None:
    notebook = read(path)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert [fault for source in code for fault in faults(path.stem, source)] == []
    assert notebook.cells[0].cell_type == "markdown"
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert len(texts) >= len(code) / 2, "more code than explanations"
    assert all(not line.startswith(("%", "!")) for source in code for line in source.splitlines())


def test_the_checks_above_can_fail() -> None:
    loop = "for i in x:\n" + "    print(i)\n" * 5
    assert faults("theory-tour", f"import torch\nfrom real import x\nclass A: pass\n{loop}") == [
        "torch",
        "real",
        "class A",
        "loop of 6 lines",
    ]
    assert faults("theory-tour", "def f():\n" + "    x = 1\n" * 5) == ["def f of 6 lines"]
    assert faults("real-model-tour", "import real\nfrom real.models import load_target\nimport specsim.engine") == []
    cell = nbformat.v4.new_code_cell("1")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    assert unstripped(notebook) == []
    cell.execution_count = 3
    assert unstripped(notebook) == [0]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel of this interpreter, known to this test alone; nothing of the user's is read or written."""
    folder = tmp_path / "jupyter" / "kernels" / "here"
    folder.mkdir(parents=True)
    words = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": words, "display_name": "here", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return "here"


def executed(notebook: nbformat.NotebookNode, kernel: str, folder: Path) -> nbformat.NotebookNode:
    """The notebook after all its cells ran in a folder."""
    with warnings.catch_warnings():
        # The client's own: event loops and sockets that are closed late are no business of the notebooks.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(jupyter|zmq|tornado|nbclient)")
        warnings.filterwarnings("ignore", category=ResourceWarning)
        from nbclient import NotebookClient

        client = NotebookClient(
            notebook, timeout=LIMIT_S, kernel_name=kernel, resources={"metadata": {"path": str(folder)}}
        )
        return client.execute()


def lay_out(tmp_path: Path) -> Path:
    """A checkout as far as notebooks look, so that what they write is not in this one; their folder."""
    for name in ("traces", "real"):
        (tmp_path / "checkout").mkdir(exist_ok=True)
        (tmp_path / "checkout" / name).symlink_to(ROOT / name)
    folder = tmp_path / "checkout" / "notebooks"
    folder.mkdir()
    return folder


def complaints(outputs: list[nbformat.NotebookNode]) -> list[str]:
    """What went to standard error. tqdm's wish for ipywidgets, which only draw its bars, is one."""
    return [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]


@each
def test_runs(path: Path, kernels: str, tmp_path: Path) -> None:
    notebook = executed(read(path), kernels, lay_out(tmp_path))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [text for text in complaints(outputs) if "IProgress not found" not in text] == []
    shown = json.dumps([output.get("data", {}) for output in outputs])
    assert "image/png" in shown
    assert not re.search(r"Traceback|Error:|\\u001b", shown)
    assert json.loads(path.read_text(encoding="utf-8"))["cells"][1]["outputs"] == []  # the file was left alone


def test_a_cell_that_fails_is_found(kernels: str, tmp_path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    source = "from analysis.notebook import command\ncommand('specsim.replay gone.parquet')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    with pytest.raises(CellExecutionError, match=r"gone\.parquet"):
        executed(notebook, kernels, lay_out(tmp_path))
