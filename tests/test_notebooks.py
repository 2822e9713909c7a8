"""Every notebook runs from top to bottom in its fast mode, and is committed with its outputs."""

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted(Path(__file__).parents[1].glob("notebooks/*.ipynb"))


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_fresh_kernel(path, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXATTN_FAST", "1")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "sweeps").symlink_to(path.parents[1] / "sweeps")
    notebook = nbformat.read(path, 4)
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path / "notebooks")}},
    ).execute()
    assert all(cell.execution_count for cell in code_cells(notebook))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_outputs_come_from_a_single_complete_run(path):
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any(output.get("data", {}).get("image/png") for output in outputs)
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_imports_only_public_names(path):
    for cell in code_cells(nbformat.read(path, 4)):
        for node in ast.walk(ast.parse(cell.source)):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            own = [name.replace("jaxattn.lab.", "jaxattn.") for name in names if name.startswith("jaxattn")]
            assert all(name.count(".") < 2 for name in own), names
        assert ".toml" not in cell.source


def test_notebooks_exist():
    assert NOTEBOOKS
