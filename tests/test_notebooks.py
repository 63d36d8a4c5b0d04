"""The notebooks run from top to bottom in under a minute, and what is committed is what they print."""

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


def printed(notebook) -> list[str]:
    """What each cell prints and returns, rounding errors and line breaks left out of account."""
    found = []
    for cell in notebook.cells:
        parts = [
            o.get("text") or o.get("data", {}).get("text/plain", "")
            for o in cell.get("outputs", ())
        ]
        found.append(
            re.sub(r"\s+", " ", re.sub(r"\d[\d.]*(e[-+]\d+)?", "#", "".join(parts))).strip()
        )
    return found


@pytest.mark.some(1)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_under_a_minute_and_prints_what_is_committed(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    committed, fresh = nbformat.read(path, 4), nbformat.read(path, 4)
    fresh.cells.append(nbformat.v4.new_code_cell("import time; time.process_time()"))
    place = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(fresh, timeout=300, kernel_name="python3", resources=place).execute()
    seconds = float(fresh.cells.pop().outputs[0].data["text/plain"])
    assert seconds < 60
    assert printed(fresh) == printed(committed)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_with_its_outputs_and_pictures(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not any(output.output_type == "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_there_are_notebooks():
    assert NOTEBOOKS
