"""Notebooks run in under a minute, and their committed outputs are up to date."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
pytest.importorskip("viser")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def text_outputs(notebook) -> list[str]:
    """Text that each cell prints and returns, with numbers masked and white space collapsed."""
    texts = []
    for cell in notebook.cells:
        parts = [
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.get("outputs", ())
        ]
        masked = re.sub(r"\d[\d.]*(e[-+]\d+)?", "#", "".join(parts))
        texts.append(re.sub(r"\s+", " ", masked).strip())
    return texts


@pytest.mark.some(1)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_under_a_minute_and_prints_the_committed_text(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    committed, fresh = nbformat.read(path, 4), nbformat.read(path, 4)
    fresh.cells.append(nbformat.v4.new_code_cell("import time; time.process_time()"))
    resources = {"metadata": {"path": str(path.parent)}}
    client = nbclient.NotebookClient(fresh, timeout=300, kernel_name="python3", resources=resources)
    client.execute()
    seconds = float(fresh.cells.pop().outputs[0].data["text/plain"])
    assert seconds < 60
    assert text_outputs(fresh) == text_outputs(committed)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_with_its_outputs_and_pictures(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not any(output.output_type == "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_begins_with_its_installation_and_symbols(path):
    head = nbformat.read(path, 4).cells[0].source
    assert (
        re.search(r'pip install "\.\[notebooks(,(view|mjcf|envs))*\]"', head)
        and "**Symbols" in head
    )


def test_there_are_notebooks():
    assert NOTEBOOKS
