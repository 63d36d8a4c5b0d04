"""Rotations that are none and positions that are not finite are refused; what has no values is not read."""

import pytest
import torch

import torchsko as ts
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.mechanism.placement import MAX_CHECKED_ENTRIES
from torchsko.spatial.rotation import quaternion_to_matrix

like = {"dtype": torch.float64}
EYE = torch.eye(3, **like)
NONE = {
    "scaled": 2 * EYE,
    "a reflection": torch.diag(torch.tensor([1.0, 1.0, -1.0], **like)),
    "zero": 0 * EYE,
    "nan": EYE * torch.nan,
    "sheared": EYE + torch.tensor([[0.0, 1e-3, 0], [0, 0, 0], [0, 0, 0]], **like),
    "one of a batch": torch.stack([EYE, 2 * EYE]),
}
FAR = torch.tensor([0.0, torch.nan, 0.0], **like)


@pytest.fixture(scope="module")
def tool():
    return ts.load(ts.robots.panda, floating_base=True)


@pytest.mark.parametrize("name", NONE)
def test_a_rotation_that_is_none_is_refused(name, arm, tool):
    R = NONE[name].requires_grad_(name == "scaled")
    with pytest.raises(
        ts.MechanismError, match=r"rotation of a frame on 'link7' is not a rotation\."
    ):
        ts.Frame("link7", R)
    with pytest.raises(
        ts.MechanismError, match=r"rotation of the appended mechanism is not a rotation\."
    ):
        arm.append(tool, "link7", R, prefix="b_")


def test_a_position_that_is_not_finite_is_refused(arm, tool):
    with pytest.raises(ts.MechanismError, match="position of a frame on 'link7' is not finite"):
        ts.Frame("link7", position=FAR)
    with pytest.raises(ts.MechanismError, match="position of the appended mechanism is not finite"):
        arm.append(tool, "link7", position=FAR, prefix="b_")


def test_six_digits_are_a_rotation_and_long_batches_are_not_looked_at(arm):
    R = quaternion_to_matrix(torch.nn.functional.normalize(torch.randn(4, **like), dim=0))
    printed = torch.round(R, decimals=6)
    assert ts.Frame("link7", printed).rotation is printed
    many = (2 * EYE).expand(MAX_CHECKED_ENTRIES, 3, 3)
    assert ts.Frame("link7", many).rotation is many


def placed_height(arm: ts.Mechanism, x: torch.Tensor) -> torch.Tensor:
    """Of a frame on the go, on a robot whose joints are turned: from a quaternion of any length."""
    R = quaternion_to_matrix(x / x.norm())
    moved = arm.replace(joint_rotation=R @ arm.joint_rotation)
    at = ts.frame_pose(moved, moved.neutral(), ts.Frame("link7", R, x[1:]))
    return at.position[..., 2].sum()


def test_placements_go_through_transforms_gradients_and_kernels(arm):
    x = torch.tensor([[0.9, 0.1, -0.3, 0.2], [0.4, 0.2, 0.5, 0.1]], **like)
    expected = torch.stack([placed_height(arm, row) for row in x])
    torch.testing.assert_close(torch.vmap(lambda row: placed_height(arm, row))(x), expected)
    slope = torch.func.jacrev(lambda row: placed_height(arm, row))(x[0])
    torch.testing.assert_close(torch.func.jacfwd(lambda row: placed_height(arm, row))(x[0]), slope)
    leaf = x[0].clone().requires_grad_()
    placed_height(arm, leaf).backward()
    torch.testing.assert_close(leaf.grad, slope)


def test_placements_are_traced():
    """By torch.compile without a break, and to scalars as by ts.fuse."""
    bar = ts.MechanismBuilder("bar")
    bar.link("link7", mass=1.0, inertia=torch.eye(3).tolist())
    bar.joint("j", "revolute", child="link7", position=(0.1, 0.2, 0.3))
    mech, x = bar.build(), torch.tensor([0.9, 0.1, -0.3, 0.2], **like)
    whole = torch.compile(placed_height, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(mech, x), placed_height(mech, x))
    assert trace(lambda x: placed_height(mech, x), [Port("x", (4,))]).outputs


def test_frames_are_made_within_kernels():
    bar = ts.MechanismBuilder("bar").link("link7", mass=1.0, inertia=torch.eye(3).tolist())
    mech = bar.joint("j", "revolute", child="link7", position=(0.1, 0.2, 0.3)).build()
    turned = quaternion_to_matrix(torch.tensor([0.8, 0.0, 0.6, 0.0], **like))

    def height(m: ts.Mechanism, q: torch.Tensor) -> torch.Tensor:
        return ts.frame_pose(m, q, ts.Frame("link7", turned, FAR.nan_to_num(0.5))).position

    q = torch.randn(5, 1, **like)
    torch.testing.assert_close(ts.fuse(height, mech)(q), height(mech, q))
