"""Frames placed on the go, relative to one another, and in coordinates of rotations."""

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.autograd import gradcheck

import torchsko as ts
from tests.newton import along
from tests.refusals import assert_refused
from tests.states import normal_state
from tests.strategies import agree, any_mechanisms, random_mechanism, seeds
from tests.verbs.test_frames import REFERENCES, drawn_frames, each_reference, velocity_of_pose
from torchsko.spatial.rotation import quaternion_exp, quaternion_to_matrix

any_mechanism = any_mechanisms(3, 3)
MECH = random_mechanism(["revolute", "spherical", "prismatic", "fixed"], [-1, 0, 1, 0], seed=3)


def placement(seed: int, *batch: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    turn, r = torch.randn(2, *batch, 3, generator=g, dtype=torch.float64)
    return quaternion_to_matrix(quaternion_exp(turn)), r


CALLS = {
    "pose": lambda m, q, qd, qdd, f, at: ts.frame_pose(m, q, f),
    "velocity": lambda m, q, qd, qdd, f, at: ts.frame_velocity(m, q, qd, f, reference=at),
    "acceleration": lambda m, q, qd, qdd, f, at: ts.frame_acceleration(
        m, q, qd, qdd, f, reference=at
    ),
    "jacobian": lambda m, q, qd, qdd, f, at: ts.frame_jacobian(m, q, f, reference=at),
    "jacobian rate": lambda m, q, qd, qdd, f, at: ts.frame_jacobian_rate(m, q, qd, f, reference=at),
    "compliance": lambda m, q, qd, qdd, f, at: ts.operational_space_compliance(m, q, f),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def parts(result) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


@pytest.mark.some(3)
@each_call
@given(any_mechanism, seeds)
def test_a_frame_on_the_go_is_one_of_the_robots_own_placed_there(call, mech, seed):
    q, qd, qdd = normal_state(mech, seed=seed)
    first, *others = drawn_frames(mech, seed)
    at = REFERENCES[seed % 3]
    R, r = placement(seed)
    k = mech.frame_index(first)
    turns, shifts = mech.frame_rotation.clone(), mech.frame_position.clone()
    shifts[k] += turns[k] @ r
    turns[k] = turns[k] @ R
    moved = mech.replace(frame_rotation=turns, frame_position=shifts)
    own = ts.Frame(first, R, r)
    for mine, named in ((own, first), ([*others, own], [*others, first])):
        actual = parts(call(mech, q, qd, qdd, mine, at))
        expected = parts(call(moved, q, qd, qdd, named, at))
        for a, b in zip(actual, expected, strict=True):
            agree(a[None], b[None], 1e-11)


@pytest.mark.some(4)
@each_call
def test_derivatives_reach_the_placement(call):
    q, qd, qdd = normal_state(MECH, seed=1)
    R, r = (x.requires_grad_() for x in placement(1))

    def at(R: Tensor, r: Tensor):
        return call(MECH, q, qd, qdd, ts.Frame("body1", R, r), "world")

    assert gradcheck(at, (R, r), check_forward_ad=True)


def test_a_batch_of_placements_is_a_batch_of_frames():
    q, qd, _ = normal_state(MECH, 4, seed=2)
    R, r = placement(2, 3, 1)
    for reference in REFERENCES:
        both = ["body2", ts.Frame("body1", R, r)]
        together = ts.frame_velocity(MECH, q, qd, both, reference=reference)
        assert together.shape == (3, 4, 2, 6)
        for i in range(3):
            one = ts.frame_velocity(
                MECH, q, qd, ts.Frame("body1", R[i, 0], r[i, 0]), reference=reference
            )
            agree(together[i, :, 1], one, 1e-13)


def test_a_tool_is_calibrated_from_poses_that_touch_one_point():
    """Inverse kinematics of a frame on the go, with derivatives to its placement."""
    q, *_ = normal_state(MECH, seed=3)
    r = torch.tensor([0.1, 0.2, 0.3], dtype=q.dtype, requires_grad=True)
    goal = ts.frame_pose(MECH, q, ts.Frame("body2", position=r.detach())).position
    start = ts.integrate(MECH, q, torch.full((MECH.num_dof,), 0.05, dtype=q.dtype))

    def touched(r: Tensor) -> Tensor:
        tool = ts.Frame("body2", position=r)
        found = ts.inverse_kinematics(MECH, start, [ts.control.FrameGoal(tool, goal)])
        assert found.converged
        return ts.frame_pose(MECH, found.q, tool).position

    agree(touched(r)[None], goal[None], 1e-12)
    (slope,) = torch.autograd.grad(touched(r).sum(), r)
    # Wherever the tip is on the hand, it is brought to the goal.
    assert slope.abs().max() < 1e-9


# Relative to one another.


@pytest.mark.some(2)
@each_reference
@given(any_mechanism, seeds)
def test_relative_velocity_is_the_derivative_of_the_relative_pose(reference, mech, seed):
    q, qd, _ = normal_state(mech, seed=seed)
    frames = drawn_frames(mech, seed)
    base = ts.Frame(mech.frame_names[seed % mech.num_frames], *placement(seed))
    V = ts.frame_velocity(mech, q, qd, frames, relative_to=base, reference=reference)
    pose = lambda q: ts.frame_pose(mech, q, frames, relative_to=base)  # noqa: E731
    agree(V, velocity_of_pose(mech, q, qd, pose, reference), 1e-10)
    J = ts.frame_jacobian(mech, q, frames, relative_to=base, reference=reference)
    agree(V, (J @ qd[:, None])[..., 0], 1e-11)


@each_reference
def test_velocities_relative_to_the_inertial_frame_are_absolute_ones(reference):
    mech = random_mechanism(["revolute", "fixed"], [-1, -1], seed=5)
    q, qd, _ = normal_state(mech, 2, seed=4)
    k = mech.frame_index("body1")
    assert mech.frame_body[k] == -1
    post = ts.Frame(
        "body1", mech.frame_rotation[k].mT, -mech.frame_rotation[k].mT @ mech.frame_position[k]
    )
    for actual, expected in (
        (
            ts.frame_jacobian(mech, q, "body0", relative_to=post, reference=reference),
            ts.frame_jacobian(mech, q, "body0", reference=reference),
        ),
        (
            ts.frame_velocity(mech, q, qd, "body0", relative_to=post, reference=reference),
            ts.frame_velocity(mech, q, qd, "body0", reference=reference),
        ),
    ):
        agree(actual, expected, 1e-13)


# In coordinates.


@pytest.mark.some(2)
@pytest.mark.parametrize("rotation", ["quaternion", "rotvec", "rpy"])
@given(any_mechanism, seeds)
def test_the_analytic_jacobian_is_the_derivative_of_the_coordinates(rotation, mech, seed):
    q, qd, _ = normal_state(mech, seed=seed)
    frames = drawn_frames(mech, seed)
    expected = along(
        mech, q, qd, lambda q: ts.frame_coordinates(mech, q, frames, rotation=rotation)
    )
    J = ts.analytic_jacobian(mech, q, frames, rotation=rotation)
    agree((J @ qd[:, None])[..., 0], expected, 1e-9)


def turn(axis: int, angle: Tensor) -> Tensor:
    axes = torch.eye(3, dtype=angle.dtype)
    return quaternion_to_matrix(quaternion_exp(axes[axis] * angle[..., None]))


@given(any_mechanism, seeds)
def test_coordinates_are_those_of_the_rotation(mech, seed):
    q, *_ = normal_state(mech, seed=seed)
    R, r = ts.frame_pose(mech, q, mech.frame_names)
    found = {
        name: ts.frame_coordinates(mech, q, mech.frame_names, rotation=name)
        for name in ("quaternion", "rotvec", "rpy")
    }
    agree(quaternion_to_matrix(found["quaternion"][..., :4]), R, 1e-13)
    assert (found["quaternion"][..., 0] >= 0).all()
    agree(quaternion_to_matrix(quaternion_exp(found["rotvec"][..., :3])), R, 1e-12)
    roll, pitch, yaw = found["rpy"][..., :3].unbind(-1)
    agree(turn(2, yaw) @ turn(1, pitch) @ turn(0, roll), R, 1e-12)
    for x in found.values():
        assert torch.equal(x[..., -3:], r)


def test_roll_and_yaw_have_no_rates_where_pitch_is_a_quarter_turn():
    builder = ts.MechanismBuilder("wrist").link("hand", mass=1.0, com=(0.1, 0.0, 0.0))
    mech = builder.joint("ball", "spherical", child="hand").build()
    half = torch.tensor(0.5, dtype=mech.dtype).sqrt()
    up = torch.stack([half, half * 0, half, half * 0])
    assert not ts.analytic_jacobian(mech, up, "hand", rotation="rpy")[:3].abs().max() < 1e6
    assert ts.analytic_jacobian(mech, up, "hand", rotation="quaternion").isfinite().all()


# Errors.


def test_an_iterator_of_frames_is_read_once():
    names = ["body1", ts.Frame("body0")]
    found = ts.analytic_jacobian(MECH, MECH.neutral(), iter(names))
    torch.testing.assert_close(found, ts.analytic_jacobian(MECH, MECH.neutral(), names))


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (ts.Frame("paw"), "no frame is named 'paw'"),
        (ts.Frame("body1", torch.zeros(3).double()), "rotation of a frame on 'body1' has shape"),
        (
            ts.Frame("body1", position=torch.zeros(3)),
            "position of a frame on 'body1' is torch.float32",
        ),
        (
            ts.Frame("body1", position=(0.0, 0.0, 1.0)),
            r"position of a frame on 'body1' has type tuple[^$]*torch.as_tensor\(x, dtype=torch.float64\)",
        ),
    ],
)
def test_a_placement_that_does_not_fit_is_refused_by_name(frame, said):
    with pytest.raises(ts.TorchskoError, match=said) as error:
        ts.frame_pose(MECH, normal_state(MECH)[0], frame)
    assert len(str(error.value).splitlines()) == 3


THREE = ts.Frame("body1", position=torch.zeros(3, 3).double())
FIVE = ts.Frame("body1", torch.eye(3).double().expand(5, 3, 3))
OF_FOUR = normal_state(MECH, 4)
Q4, QD4, _ = OF_FOUR


@pytest.mark.parametrize(
    "call",
    [
        lambda frame: ts.frame_pose(MECH, Q4, frame),
        lambda frame: ts.frame_jacobian(MECH, Q4, [frame, "body0"]),
        lambda frame: ts.frame_jacobian_rate(MECH, Q4, QD4, frame),
        lambda frame: ts.frame_velocity(MECH, Q4, QD4, frame, reference="mixed"),
        lambda frame: ts.frame_acceleration(MECH, *OF_FOUR, frame),
        lambda frame: ts.frame_velocity_derivatives(MECH, Q4, QD4, frame),
        lambda frame: ts.frame_acceleration_derivatives(MECH, *OF_FOUR, frame),
        lambda frame: ts.wrench_regressor(MECH, *OF_FOUR, frame),
        lambda frame: ts.frame_jacobian(MECH, Q4, "body0", relative_to=frame),
        lambda frame: ts.frame_acceleration(MECH, *OF_FOUR, frame, relative_to="body0"),
        lambda frame: ts.analytic_jacobian(MECH, Q4, frame),
        lambda frame: ts.operational_space_compliance(MECH, Q4, frame),
    ],
)
def test_placements_of_other_samples_are_refused_by_name(call):
    assert_refused(lambda: call(THREE), r"the position of a frame on 'body1' has \[3\]")
    assert_refused(lambda: call(FIVE), r"the rotation of a frame on 'body1' has \[5\]")


def test_placements_that_do_not_fit_one_another_are_refused_by_name():
    q = Q4[0]
    said = (
        r"position of Frame 0 on 'body1' has .*\[3\], the rotation of Frame 1 on 'body1' has \[5\]"
    )
    assert_refused(lambda: ts.frame_pose(MECH, q, [THREE, FIVE]), said)


def test_other_names_are_refused():
    q, qd, _ = normal_state(MECH)
    with pytest.raises(ts.MechanismError, match="no reference is named 'local'"):
        ts.frame_velocity(MECH, q, qd, "body1", relative_to="body0", reference="local")
    with pytest.raises(ts.MechanismError, match="no kind of coordinates is named 'euler'"):
        ts.analytic_jacobian(MECH, q, "body1", rotation="euler")
    with pytest.raises(ts.MechanismError, match="names no frames"):
        ts.frame_pose(MECH, q, [], relative_to="body0")


@pytest.mark.parametrize("frames", [5, None, ["body1", 5]])
def test_what_is_no_frame_is_refused_by_every_function_of_frames(frames):
    q = normal_state(MECH)[0]
    for call in (
        lambda: ts.frame_pose(MECH, q, frames, relative_to="body0"),
        lambda: ts.operational_space_inertia(MECH, q, frames),
        lambda: ts.consistent_jacobian_inverse(MECH, q, frames, singular="pinv"),
        lambda: ts.manipulability(MECH, q, frames),
    ):
        with pytest.raises(ts.TorchskoError, match="frames"):
            call()


def test_a_frame_on_the_go_is_told_by_its_numbers_or_by_their_shape():
    r = torch.tensor([0.1, 0.0, 0.25]).double()
    assert repr(ts.Frame("hand")) == "Frame('hand')"
    assert repr(ts.Frame("hand", position=r)) == "Frame('hand', position=[0.1, 0.0, 0.25])"
    many = ts.Frame("hand", torch.eye(3).double().expand(4, 3, 3), r)
    assert repr(many) == "Frame('hand', rotation=[4, 3, 3], position=[0.1, 0.0, 0.25])"


def test_a_kernel_takes_no_frame_on_the_go():
    fast = ts.fuse(MECH)
    with pytest.raises(ts.FusedError, match="runs eagerly"):
        fast.frame_pose(normal_state(MECH)[0], ts.Frame("body1"))
