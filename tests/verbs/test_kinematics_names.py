"""A frame by its name, or several by a list: one rule in every function of frames."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import random_mechanism

MECH = random_mechanism(["free", "revolute", "prismatic"], [-1, 0, 1], seed=3)
NAME = MECH.frame_names[-1]


def states(*batch: int) -> torch.Tensor:
    return MECH.random_state(*batch, generator=torch.Generator().manual_seed(0))[0]


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize("fused", [False, True])
def test_one_name_drops_the_dimension_of_frames(batch, fused):
    q = states(*batch)
    if fused:
        fast = ts.fuse(MECH)
        pose, several = fast.frame_pose(q, NAME), fast.frame_pose(q, [NAME])
        J, rows = fast.frame_jacobian(q, NAME), fast.frame_jacobian(q, [NAME])
    else:
        pose, several = ts.frame_pose(MECH, q, NAME), ts.frame_pose(MECH, q, [NAME])
        J, rows = ts.frame_jacobian(MECH, q, NAME), ts.frame_jacobian(MECH, q, [NAME])
    assert pose.rotation.shape == (*batch, 3, 3) and pose.position.shape == (*batch, 3)
    assert J.shape == (*batch, 6, MECH.num_dof)
    assert_close(pose.rotation, several.rotation[..., 0, :, :])
    assert_close(pose.position, several.position[..., 0, :])
    assert_close(J, rows[..., 0, :, :])


@pytest.mark.parametrize(
    "verb",
    [
        ts.operational_space_compliance,
        ts.operational_space_inertia,
        ts.consistent_jacobian_inverse,
    ],
)
def test_a_task_of_one_frame_may_be_its_name(verb):
    q = states(3)
    assert_close(verb(MECH, q, NAME), verb(MECH, q, [NAME]))
