"""Models of gymnasium and dm_control, as far as they are installed, move in saved files as before."""

from pathlib import Path

import pytest

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

NOT_MODELED = ("spatial tendons", "actuator 'adhere")
"""Parts of files without which a new file moves differently; the message of `torchsko.save` names them."""


@pytest.mark.nightly
def test_saved_public_models_move_as_in_mujoco(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from saved_models import HEADER, compare, files, folder_of, line

    rows = [compare(name, path, folder_of(name, path)) for name, path in files()]
    rows = [row for row in rows if row is not None]
    with capsys.disabled():
        print("\n".join(["", HEADER, *map(line, rows)]))
    assert len(rows) >= 9
    named = {row.name for row in rows if any(x in row.lacks for x in NOT_MODELED)}
    wrong = {
        (row.name, road): error
        for row in rows
        for road, error in row.errors.items()
        if error > 1e-8 and not (row.name in named and road != "like")
    }
    assert wrong == {}
