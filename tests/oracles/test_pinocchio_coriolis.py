"""The Coriolis matrix of robots of `example-robot-data` is Pinocchio's."""

import pytest

import torchsko as ts

pytest.importorskip("pinocchio")

import pinocchio as pin

from tests.oracles.pinocchio_bridge import Robot, robot_files, state_errors

FEW = ("panda_description/urdf/panda.urdf", "ur_description/urdf/ur5_robot.urdf")


def compare(name, floating_base):
    robot = Robot.load(robot_files()[name], floating_base)
    q, qd, _, _ = robot.states(16)
    theirs = robot.map(pin.computeCoriolisMatrix, q, qd, axes=2)
    assert state_errors(ts.coriolis_matrix(robot.mech, q, qd), theirs).max() < 1e-10


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("floating_base", [False, True])
def test_the_coriolis_matrix_equals_that_of_pinocchio(name, floating_base):
    compare(name, floating_base)


@pytest.mark.nightly
@pytest.mark.parametrize("name", robot_files())
def test_the_coriolis_matrix_of_every_robot_equals_that_of_pinocchio(name):
    compare(name, floating_base=True)
