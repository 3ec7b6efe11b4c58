"""The notebooks run, and are stored as a reader wants to find them: with their outputs and without noise."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tests.notebooks import FOLDER, NOTEBOOKS, TIMEOUT, execute

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def kinds_of_output(notebook: NotebookNode) -> list[list[str]]:
    """What each code cell shows: streams by name, results and displays by their MIME types."""
    return [
        [output.get("name") or output.get("ename") or "+".join(sorted(output.data)) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@each_notebook
@pytest.mark.timeout(TIMEOUT + 30)
def test_it_runs_and_shows_what_its_stored_outputs_show(path: Path):
    assert kinds_of_output(execute(path)) == kinds_of_output(nbformat.read(path, as_version=4))


@each_notebook
def test_it_was_stored_after_one_run_from_top_to_bottom(path: Path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any(cell.outputs for cell in code)


@each_notebook
def test_its_outputs_hold_no_error_and_nothing_of_stderr(path: Path):
    shown = {kind for cell in kinds_of_output(nbformat.read(path, as_version=4)) for kind in cell}
    assert shown <= {"stdout", "text/plain", "text/html+text/plain", "image/png+text/plain"}


@each_notebook
def test_it_says_nothing_of_the_machine_and_the_time_it_ran(path: Path):
    text = path.read_text(encoding="utf-8")
    for folder in (Path.home(), FOLDER.parent, "/home/", "/Users/", "/root/", "/tmp/ipykernel"):
        assert str(folder) not in text
    notebook = json.loads(text)
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
    assert all(not cell["metadata"] for cell in notebook["cells"])
