"""Derivatives of dynamics of robots of `example-robot-data` are Pinocchio's."""

import numpy as np
import pytest
import torch

import torchsko as ts

pin = pytest.importorskip("pinocchio")

from tests.oracles.pinocchio_bridge import (  # noqa: E402
    ALIGNING_AXES,
    NO_FORWARD_DYNAMICS,
    Robot,
    robot_files,
    state_errors,
)

FEW = ("panda_description/urdf/panda.urdf", "talos_data/robots/talos_reduced.urdf")
BOUND = 1e-10


def inverse(k):
    return lambda model, data, *state: pin.computeRNEADerivatives(model, data, *state)[k]


def forward(k):
    return lambda model, data, *state: pin.computeABADerivatives(model, data, *state)[k]


def symmetric(of):
    """A matrix of which one triangle is filled."""

    def both(*args):
        upper = np.triu(of(*args))
        return upper + np.triu(upper, 1).T

    return both


def compare(name, floating_base, batch, forward_too):
    robot = Robot.load(robot_files()[name], floating_base)
    q, qd, x, _ = robot.states(batch)
    cases = [(ts.inverse_dynamics_derivatives, [inverse(0), inverse(1), symmetric(inverse(2))])]
    if forward_too:
        rows = [forward(0), forward(1), symmetric(forward(2))]
        cases.append((ts.forward_dynamics_derivatives, rows))
    for ours, rows in cases:
        for mine, of in zip(ours(robot.mech, q, qd, x), rows, strict=True):
            theirs = robot.map(of, q, qd, x, axes=2)
            errors = state_errors(mine, theirs)
            print(f"{name:60s} {ours.__name__:32s} {errors.max():.1e}")
            assert errors.max() < BOUND


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("floating_base", [False, True])
def test_they_are_pinocchio_s(name, floating_base):
    compare(name, floating_base, 16, True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", robot_files())
def test_they_are_pinocchio_s_for_every_robot(name):
    defined = name not in NO_FORWARD_DYNAMICS and name not in ALIGNING_AXES
    compare(name, True, 64, defined)


def test_a_robot_whose_joints_follow_others_has_the_projected_matrices():
    """Pinocchio has no derivatives of mimic joints: those of the tree, times the constant ratios."""
    name = "panda_description/urdf/panda.urdf"
    coupled = ts.load(robot_files()[name], mimic="couple")
    free = ts.load(robot_files()[name], mimic="independent")
    assert coupled.num_dof < free.num_dof
    g = torch.Generator().manual_seed(0)
    q, qd = coupled.random_state(4, generator=g)
    qdd = torch.randn(qd.shape, generator=g, dtype=qd.dtype)
    wide = [ts.expand(coupled, q), *(ts.expand_velocity(coupled, x) for x in (qd, qdd))]
    X = ts.expand_velocity(coupled, torch.eye(coupled.num_dof, dtype=q.dtype)).mT
    of_tree = ts.inverse_dynamics_derivatives(free, *wide)
    for mine, theirs in zip(
        ts.inverse_dynamics_derivatives(coupled, q, qd, qdd), of_tree, strict=True
    ):
        assert state_errors(mine, X.mT @ theirs @ X).max() < BOUND
