"""The torque regressor and its parameters are Pinocchio's, eager and fused, fixed and free base."""

import pytest
import torch

import torchsko as ts

pin = pytest.importorskip("pinocchio")

from tests.oracles.pinocchio_bridge import (  # noqa: E402
    FLOATING_ONLY,
    Robot,
    robot_files,
    worst_error,
)

CASES = [
    ("panda_description/urdf/panda.urdf", False),
    ("kinova_description/robots/kinova.urdf", False),
    ("ur_description/urdf/ur5_robot.urdf", True),
    ("anymal_c_simple_description/urdf/anymal.urdf", True),
    ("talos_data/robots/talos_reduced.urdf", True),
    ("iris_description/robots/iris_simple.urdf", True),
]

robots = pytest.mark.parametrize(("name", "floating"), CASES, ids=str)


def in_our_order(both: Robot, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Bodies from the order of Pinocchio's joints to that of ours."""
    places = [both.model.getJointId(joint) - 1 for joint in both.mech.joint_names]
    return x.index_select(dim, torch.tensor(places))


def of_pinocchio(both: Robot, *states: torch.Tensor) -> torch.Tensor:
    """Pinocchio's regressor at every state, in our order, `[batch, num_dof, num_bodies, 10]`."""

    def transposed(*args):
        return pin.computeJointTorqueRegressor(*args).T

    columns = both.map(transposed, *states).mT.unflatten(-1, (both.mech.num_bodies, 10))
    return in_our_order(both, columns, -2)


@pytest.mark.some(1)
@robots
def test_the_regressor_equals_that_of_pinocchio(name, floating):
    both = Robot.load(robot_files()[name], floating)
    *states, _ = both.states(16)
    theirs = of_pinocchio(both, *states)
    assert worst_error(ts.torque_regressor(both.mech, *states), theirs) < 1e-12
    assert worst_error(ts.fuse(both.mech).torque_regressor(*states), theirs) < 1e-12


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("name", robot_files())
def test_the_regressor_of_every_robot_equals_that_of_pinocchio(name, floating):
    both = Robot.load(robot_files()[name], floating or name in FLOATING_ONLY)
    *states, _ = both.states(4)
    theirs = of_pinocchio(both, *states)
    assert worst_error(ts.torque_regressor(both.mech, *states), theirs) < 1e-12


@robots
def test_inertial_parameters_equal_those_of_pinocchio(name, floating):
    both = Robot.load(robot_files()[name], floating)
    bodies = list(both.model.inertias)[1:]
    theirs = torch.stack([torch.from_numpy(I.toDynamicParameters()) for I in bodies])
    mine = ts.inertial_parameters(both.mech)
    assert worst_error(mine[None], in_our_order(both, theirs, 0)[None]) < 1e-12
