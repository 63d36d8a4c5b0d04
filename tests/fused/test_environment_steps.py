"""Environment steps as kernels: values of Gymnasium, gradients of eager mode, and their size."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "environment_steps.py"


@pytest.fixture(scope="module")
def steps():
    """The module of the benchmark."""
    spec = importlib.util.spec_from_file_location("environment_steps", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "hopper",
        *(pytest.param(x, marks=pytest.mark.nightly) for x in ("half_cheetah", "ant", "humanoid")),
    ],
)
def test_kernels_of_environment_steps_equal_gymnasium(steps, name):
    pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    to_gymnasium, to_eager, of_gradient = steps.errors(name)
    assert to_gymnasium < 1e-9 and to_eager < 1e-9 and of_gradient < 1e-8
