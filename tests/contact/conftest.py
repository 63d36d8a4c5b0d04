"""Fixtures of the tests of contact."""

import pytest

mujoco = pytest.importorskip("mujoco")


def pytest_collection_modifyitems(items):
    """Ignore warnings that `ts.rollout` lacks contact."""
    for item in items:
        if "tests/contact" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning"))


@pytest.fixture
def compiled():
    """A function that compiles the text of a model with a solver that iterates to rounding."""

    def compile_text(text):
        model = mujoco.MjModel.from_xml_string(text)
        model.opt.tolerance, model.opt.iterations = 0.0, 100
        model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50
        return model

    return compile_text
