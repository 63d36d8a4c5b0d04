"""Fixtures of the tests of contact."""

import pytest

mujoco = pytest.importorskip("mujoco")


def tight(model):
    """Make MuJoCo's solver iterate to rounding."""
    model.opt.tolerance, model.opt.iterations = 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50
    return model


@pytest.fixture
def compiled():
    """A function that compiles the text of a model with a solver that iterates to rounding."""
    return lambda text: tight(mujoco.MjModel.from_xml_string(text))
