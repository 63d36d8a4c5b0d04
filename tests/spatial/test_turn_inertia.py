"""The cheap congruence about an axis is the general one."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchsko.mechanism.joints.revolute import rotation_about
from torchsko.spatial.rigid_transform import rotate_inertia, turn_inertia


@given(st.sampled_from([(), (1,), (2, 3)]), st.integers(0, 2**31))
def test_turning_about_an_axis_is_rotating(batch, seed):
    g = torch.Generator().manual_seed(seed)
    axis = torch.nn.functional.normalize(
        torch.randn(4, 3, generator=g, dtype=torch.float64), dim=-1
    )
    axis = torch.cat([axis, torch.eye(3, dtype=torch.float64)])
    rotation = rotation_about(axis, 3 * torch.randn(*batch, 7, 1, generator=g, dtype=torch.float64))
    P = torch.randn(*batch, 7, 6, 6, generator=g, dtype=torch.float64)
    P = P + P.mT
    torch.testing.assert_close(turn_inertia(axis, rotation, P), rotate_inertia(rotation, P))


def test_without_a_turn_nothing_changes():
    P = torch.arange(36.0, dtype=torch.float64).reshape(1, 6, 6)
    P = P + P.mT
    for axis in torch.eye(3, dtype=torch.float64):
        torch.testing.assert_close(turn_inertia(axis[None], torch.eye(3).double()[None], P), P)
