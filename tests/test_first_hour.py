"""A new user's first hour, end to end: install, load, roll out, differentiate, fuse, learn, save, load."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest

import torchsko as ts
from tests.first_hour import first_hour

ROOT = Path(__file__).parent.parent
WILD = "ur_description/urdf/ur5_robot.urdf"
MORE = (
    "kinova_description/robots/kinova.urdf",
    "tiago_description/robots/tiago_no_hand.urdf",
    "talos_data/robots/talos_reduced.urdf",
)


def test_the_first_hour_with_the_robot_that_ships(tmp_path):
    first_hour(ts.robots.panda, tmp_path)


@pytest.mark.parametrize(
    "robot", [WILD, *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)]
)
def test_the_first_hour_with_a_robot_from_the_wild(robot, tmp_path):
    pin = pytest.importorskip("pinocchio")  # example-robot-data installs beside it
    folder = Path(pin.__file__).parents[4] / "share" / "example-robot-data" / "robots"
    first_hour(folder / robot, tmp_path)


@pytest.mark.nightly
def test_the_first_hour_in_a_fresh_environment(tmp_path):
    """As the README says: `pip install .`, and nothing but torch and numpy with what they need."""
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    env["TORCHSKO_CACHE"] = str(tmp_path / "kernels")

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=3600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(ROOT))
    said = run(python, str(ROOT / "tests" / "first_hour.py"), "panda", str(tmp_path))
    assert "a good first hour" in said
    absent = "import importlib.util as u; print([n for n in ('mujoco','tqdm','scipy') if u.find_spec(n)])"
    assert run(python, "-c", absent).strip() == "[]"
