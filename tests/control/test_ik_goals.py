"""Goals of inverse kinematics, alone and in order of priority, on trees, closed chains and held robots."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import jacrev, jvp, vmap

import torchsko as ts
from tests.linkages import four_bar
from tests.strategies import agree, any_mechanisms, random_mechanism, seeds
from torchsko.constraints import HeldMechanism
from torchsko.control import (
    AxisGoal,
    CenterOfMassGoal,
    FrameGoal,
    Goal,
    LookAtGoal,
    PostureGoal,
)
from torchsko.control.ik.goal_set import parse_goals
from torchsko.spatial.rotation import quaternion_exp, unit_quaternion_to_matrix

ARM = ts.load(ts.robots.panda)
HAND = "flange"
DOG = ts.load(ts.robots.quadruped, floating_base=True)
FEET = [name for name in DOG.frame_names if name.endswith("foot")]
BENT = DOG.middle()
BENT[7:] = torch.tensor([0.1, 0.6, -1.2]).double().repeat(4)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def goal_of(kind: str, mech: ts.Mechanism, seed: int, base: str | None) -> Goal:
    frame, x = mech.frame_names[-1], draw(seed, 4, 3)
    weight = 0.5 + draw(seed + 1, 3).square()
    R = unit_quaternion_to_matrix(quaternion_exp(x[0]))
    match kind:
        case "frame":
            return FrameGoal(frame, (R, x[1]), (weight, 2 * weight), relative_to=base)
        case "axis":
            return AxisGoal(frame, x[0], x[1], weight, relative_to=base)
        case "look":
            return LookAtGoal(frame, x[0], x[1], weight, relative_to=base)
        case "mass":
            return CenterOfMassGoal(x[0], weight)
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(seed))
    return PostureGoal(q, 0.5 + draw(seed, mech.num_dof).square())


KINDS = ("frame", "axis", "look", "mass", "posture")


@pytest.mark.parametrize("kind", KINDS)
@given(any_mechanisms(4, 4), seeds, st.booleans())
def test_rows_are_minus_the_derivative_of_the_errors(kind, mech, seed, relative):
    base = mech.frame_names[0] if relative and mech.num_frames > 1 else None
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(seed + 7))
    robot, rows, tensors, _ = parse_goals(mech, [goal_of(kind, mech, seed, base)], None, q)
    zero = torch.zeros(mech.num_dof, dtype=q.dtype)
    J = rows.linearized(robot, tensors, q)[1]
    for i, e in enumerate(torch.eye(mech.num_dof, dtype=q.dtype)):
        moved = lambda step: rows.error(robot, tensors, ts.integrate(mech, q, step))  # noqa: E731
        agree(-J[:, i], jvp(moved, (zero,), (e,))[1], 1e-8)


def test_reached_goals_hold():
    """Two feet, an axis of the trunk, the view of a foot, the center of mass and two relative feet."""
    q = BENT
    start = ts.integrate(DOG, q, 0.1 * draw(0, 32, DOG.num_dof))
    z, com = torch.tensor([0.0, 0.0, 1.0]).double(), ts.center_of_mass(DOG, q)
    left, third = (ts.frame_pose(DOG, q, name).position for name in FEET[:3:2])
    base, over = DOG.frame_names[0], torch.tensor([1.0, 1.0, 0.0]).double()
    apart = ts.frame_pose(DOG, q, FEET[1], relative_to=base).position
    goals = [
        FrameGoal(FEET[0], left),
        FrameGoal(FEET[1], apart, relative_to=base),
        FrameGoal(FEET[2], (None, third), weight=(1.0, torch.tensor([0.0, 0.0, 1.0]).double())),
        AxisGoal(base, z, z),
        CenterOfMassGoal(com, weight=over),
    ]
    found = ts.inverse_kinematics(DOG, start, goals)
    assert found.converged.all()
    pose = lambda name, **k: ts.frame_pose(DOG, found.q, name, **k)  # noqa: E731
    agree(pose(FEET[0]).position, left.expand(32, 3), 1e-7)
    agree(pose(FEET[1], relative_to=base).position, apart.expand(32, 3), 1e-7)
    agree(pose(FEET[2]).position[:, 2], third[2].expand(32), 1e-7)
    assert (pose(FEET[2]).position[:, :2] - third[:2]).norm(dim=-1).min() > 1e-3  # free
    agree(pose(base).rotation[..., 2], z.expand(32, 3), 1e-7)
    agree(ts.center_of_mass(DOG, found.q)[:, :2], com[:2].expand(32, 2), 1e-7)


def test_a_camera_looks_at_a_point_that_moves_with_the_robot():
    _, start = (x[0] for x in (draw(1, 1, 1), ARM.random_state(8)))
    x = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    point = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
    found = ts.inverse_kinematics(
        ARM, start, [LookAtGoal(HAND, point, x, relative_to="link2")], max_iterations=100
    )
    R, r = ts.frame_pose(ARM, found.q, HAND, relative_to="link2")
    there = (point - r) / (point - r).norm(dim=-1, keepdim=True)
    assert found.converged.all()
    agree(R[..., 0], there, 1e-7)


# Priorities. A limb of four joints, whose hand reaches points and whose posture is free otherwise.
LIMB = random_mechanism(["revolute"] * 4, [-1, 0, 1, 2], seed=2, passive=False)
TIP = LIMB.frame_names[-1]
NEAR, AWAY = 0.2 * draw(3, 4), 0.2 * draw(4, 4)


def reached(position: Tensor, posture: Tensor, weight: Tensor, joint_position: Tensor) -> Tensor:
    mech = LIMB.replace(joint_position=joint_position)
    goals = [PostureGoal(posture, weight, priority=1), FrameGoal(TIP, position)]
    options = {"max_iterations": 300, "stop_early": True}
    return ts.inverse_kinematics(mech, posture.detach(), goals, **options).q


def inputs() -> tuple[Tensor, ...]:
    at = ts.frame_pose(LIMB, AWAY, TIP).position
    tensors = at, NEAR, torch.tensor([1.0, 2.0, 0.5, 1.5]).double(), LIMB.joint_position
    return tuple(x.clone().requires_grad_() for x in tensors)


def test_a_posture_of_lower_priority_is_minimized_among_the_configurations_that_reach():
    """The gradient of the posture's error has no component along the motions that keep the tip."""
    position, posture, weight, _ = inputs()
    q = reached(*inputs()).detach()
    agree(ts.frame_pose(LIMB, q, TIP).position[None], position[None], 1e-9)
    J = ts.frame_jacobian(LIMB, q, TIP, reference="mixed")[3:]
    free = torch.eye(4, dtype=q.dtype) - torch.linalg.pinv(J) @ J
    pull = weight**2 * (posture - q)
    assert pull.norm() > 0.01
    assert (free @ pull).norm() < 1e-8
    # Other configurations of the self-motion are farther from the posture.
    along = torch.linalg.svd(J).Vh[-1]
    for sign in (-0.1, 0.1):
        goals = [FrameGoal(TIP, position.detach())]
        other = ts.inverse_kinematics(LIMB, q + sign * along, goals).q
        assert (weight * (posture - other)).norm() > (weight * (posture - q)).norm()


def test_gradients_with_priorities_are_differences_of_solutions():
    assert gradcheck(reached, inputs(), eps=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_forward_gradients_with_priorities_are_differences_of_solutions():
    assert gradcheck(reached, inputs(), eps=1e-5, atol=1e-5, check_forward_ad=True)


def test_unreachable_goals_of_a_low_priority_move_others_by_rounding_only():
    start = ARM.middle() + 0.1 * draw(5, 16, 7)
    far, turn = torch.tensor([0.9, 0.5, 0.5]).double(), torch.eye(3).double()
    goals = [FrameGoal(HAND, far, priority=2), FrameGoal(HAND, (turn, None))]
    found = ts.inverse_kinematics(ARM, start, goals, max_iterations=300)
    assert not found.converged.any()
    assert found.residual[:, 3:].abs().max() < 1e-7
    assert (ts.frame_pose(ARM, found.q, HAND).rotation - turn).abs().max() < 1e-7
    # The nearest point keeps the rotation: its error is orthogonal to the motions that do.
    J = ts.frame_jacobian(ARM, found.q, HAND, reference="mixed")
    angular, linear = J.split(3, -2)
    free = torch.eye(7, dtype=J.dtype) - torch.linalg.pinv(angular) @ angular
    pull = (free @ linear.mT @ found.residual[:, :3, None])[..., 0]
    assert pull.norm(dim=-1).max() < 1e-6


def test_contradicting_goals_are_served_in_order():
    start, far = ARM.middle(), torch.tensor([3.0, 0.0, 0.5]).double()
    goals = [
        FrameGoal(HAND, -far, priority=1),
        FrameGoal(HAND, far),
        PostureGoal(start, priority=2),
    ]
    found = ts.inverse_kinematics(ARM, start, goals, max_iterations=200)
    assert ts.frame_pose(ARM, found.q, HAND).position[0] > 0.5


def test_weights_differ_between_samples_and_have_gradients():
    a, b = (ts.frame_pose(LIMB, q, TIP).position for q in (NEAR, AWAY))
    start = NEAR.expand(2, 4)

    def middle(weight: Tensor) -> Tensor:
        goals = [FrameGoal(TIP, a), FrameGoal(TIP, b, weight=(1.0, weight[:, None].expand(2, 3)))]
        found = ts.inverse_kinematics(LIMB, start, goals, max_iterations=100)
        return ts.frame_pose(LIMB, found.q, TIP).position

    weight = torch.tensor([0.5, 2.0]).double()
    share = (weight**2 / (1 + weight**2))[:, None]
    agree(middle(weight), (1 - share) * a + share * b, 1e-9)
    slope = jacrev(middle)(weight)[[0, 1], :, [0, 1]]
    agree(slope, (2 * weight / (1 + weight**2) ** 2)[:, None] * (b - a), 1e-7)


# Held robots.
HELD = ts.constrain(DOG, [ts.HeldFrame(foot) for foot in FEET])


def lean(dog: HeldMechanism, start: Tensor, com: Tensor) -> ts.control.IKResult:
    goals = [CenterOfMassGoal(com), PostureGoal(BENT, 0.1, priority=1)]
    options = {"max_iterations": 300, "stop_early": True}
    return ts.inverse_kinematics(dog, start, goals, **options)


@pytest.mark.nightly
def test_feet_of_a_held_robot_stay_where_they_are_and_the_rest_reaches():
    start = ts.integrate(DOG, BENT, 0.05 * draw(1, 8, DOG.num_dof))
    com = ts.center_of_mass(DOG, start) + 0.02 * draw(2, 8, 3)
    found = lean(HELD, start, com)
    was, now = (ts.frame_pose(DOG, q, FEET).position for q in (start, found.q))
    agree(now, was, 1e-8)
    agree(ts.center_of_mass(DOG, found.q), com, 1e-8)
    assert (found.q - start).norm(dim=-1).min() > 1e-2
    assert found.residual.shape == (8, 3 + DOG.num_dof + 12)


@pytest.mark.nightly
def test_gradients_of_a_held_robot_are_differences_of_solutions():
    start = ts.integrate(DOG, BENT, 0.05 * draw(1, DOG.num_dof))
    com, way = ts.center_of_mass(DOG, start) + 0.01, draw(3, 3)
    solution = lambda com: lean(HELD, start, com).q  # noqa: E731
    slope = jacrev(solution)(com) @ way
    h = 1e-5
    ends = [solution(com + s * h * way) for s in (1, -1)]
    agree(slope[None], ((ends[0] - ends[1]) / (2 * h))[None], 1e-6)


@pytest.mark.nightly
def test_placements_of_held_frames_have_gradients():
    """A weld at a given pose, whose position moves the whole robot."""
    trunk = DOG.frame_names[0]
    R, r = ts.frame_pose(DOG, DOG.middle(), trunk)

    def solution(r: Tensor) -> Tensor:
        held = ts.constrain(DOG, [ts.HeldFrame(trunk, "weld", (R, r))])
        return ts.inverse_kinematics(held, DOG.middle(), [PostureGoal(DOG.middle())]).q

    agree(jacrev(solution)(r + 0.1)[:3], torch.eye(3).double(), 1e-8)


def test_cut_loops_close_and_equal_embedded_ones():
    """A four-bar that closes by rows, and one that closes by its coordinates."""
    cut, closed = four_bar("cut", "planar"), four_bar("embed", "planar")
    held = ts.constrain(cut, cut.closures)
    tip = cut.frame_names[-1]
    q = closed.random_state(4, generator=torch.Generator().manual_seed(0))[0]
    goals = [PostureGoal(q + 0.05 * draw(1, 4, q.shape[-1])[..., : q.shape[-1]])]
    rows = ts.inverse_kinematics(held, q, goals, max_iterations=100)
    again = ts.integrate(closed, rows.q, torch.zeros(4, closed.num_dof).double())
    agree(again, rows.q, 1e-8)
    place = ts.frame_pose(closed, rows.q, tip).position
    found = ts.inverse_kinematics(closed, q, [FrameGoal(tip, place)], max_iterations=100)
    agree(
        ts.frame_pose(closed, found.q, tip).position[found.converged], place[found.converged], 1e-7
    )
    assert found.converged.any()


def test_limits_of_independent_joints_of_a_closed_chain_hold():
    closed = four_bar(independent=["crank_j"])
    q = closed.random_state(6, generator=torch.Generator().manual_seed(0))[0]
    tip, k = closed.frame_names[-1], closed.q_slice("crank_j")
    place = ts.frame_pose(closed, q, tip).position
    start = closed.middle()
    upper = closed.upper.clone()
    upper[k] = start[k] + 0.05
    tight = closed.replace(upper=upper)
    found = ts.inverse_kinematics(tight, start.expand(6, -1), [FrameGoal(tip, place)], limits=True)
    assert (found.q[:, k] <= upper[k] + 1e-12).all()
    agree(ts.close_loops(tight, found.q)[0], found.q, 1e-8)


# The same under transforms.


def test_priorities_under_vmap_are_those_of_a_batch():
    at = ts.frame_pose(LIMB, 0.2 * draw(6, 5, 4), TIP).position
    _, posture, weight, place = (x.detach() for x in inputs())
    each = vmap(lambda x: reached(x, posture, weight, place))(at)
    agree(each, reached(at, posture, weight, place), 1e-9)


@pytest.mark.parametrize("derive", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_fused_function_has_priorities(derive):
    _, posture, weight, _ = (x.detach() for x in inputs())

    def law(mech: ts.Mechanism, at: Tensor) -> Tensor:
        goals = [PostureGoal(posture, weight, priority=1), FrameGoal(TIP, at)]
        return ts.inverse_kinematics(mech, posture, goals).q

    at = ts.frame_pose(LIMB, AWAY, TIP).position
    fast = ts.fuse(law, LIMB, shapes={"at": (3,)})
    agree(fast(at)[None], law(LIMB, at)[None], 1e-9)
    if derive:
        found, expected = (jacrev(f)(at) for f in (fast, lambda x: law(LIMB, x)))
        agree(found, expected, 1e-7)


def test_a_fused_held_mechanism_runs_one_kernel_for_all_placements():
    held, plain = (ts.constrain(x, [ts.HeldFrame(TIP)]) for x in (ts.fuse(LIMB), LIMB))
    start = NEAR + 0.03 * draw(7, 4, 4)

    def solution(robot: HeldMechanism, q: Tensor) -> ts.control.IKResult:
        return ts.inverse_kinematics(robot, q, [PostureGoal(NEAR)], max_iterations=300)

    for q in (start, start + 0.02):
        found, expected = (solution(x, q) for x in (held, plain))
        agree(found.q, expected.q, 1e-6)
        now, was = (ts.frame_pose(LIMB, x, TIP).position for x in (found.q, q))
        agree(now, was, 1e-7)
