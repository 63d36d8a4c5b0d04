"""One step of every model of gymnasium and dm_control, as far as they are installed, equals mj_step."""

from pathlib import Path

import pytest

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")


@pytest.mark.nightly
def test_steps_of_public_models_equal_those_of_mujoco(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from contact_models import compare, compiled, files

    models = ((name, compiled(path)) for name, path in files())
    rows = [compare(name, model, 50) for name, model in models if model is not None]
    errors = {row.name: row.error for row in rows if row.error is not None}
    assert len(errors) >= 9
    assert {name: error for name, error in errors.items() if error > 1e-8} == {}
