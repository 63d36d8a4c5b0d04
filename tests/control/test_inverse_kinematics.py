"""Inverse kinematics: results reach their targets, and derivatives are those of the solution."""

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import jacfwd, jacrev, vmap

import torchsko as ts
from tests.strategies import agree, any_mechanisms, random_mechanism, seeds
from torchsko.control import FrameGoal
from torchsko.spatial.rotation import quaternion_exp, unit_quaternion_to_matrix

any_mechanism = any_mechanisms(4, 4)
ARM = ts.load(ts.robots.panda)
HAND, ELBOW = ARM.frame_names[-1], "link4"


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def near(mech: ts.Mechanism, seed: int, *batch: int, step: float = 0.2) -> tuple[Tensor, Tensor]:
    """Configurations, and perturbed configurations."""
    g = generator(seed)
    q, _ = mech.random_state(*batch, generator=g)
    away = step * torch.randn(*batch, mech.num_dof, generator=g, dtype=q.dtype)
    return q, ts.integrate(mech, q, away)


def turn(w: Tensor) -> Tensor:
    return unit_quaternion_to_matrix(quaternion_exp(w))


@given(any_mechanism, seeds)
def test_converged_samples_reach_their_targets_and_no_residual_grows(mech, seed):
    q, start = near(mech, seed, 3)
    frames = mech.frame_names[-2:]
    poses = {frame: ts.frame_pose(mech, q, frame) for frame in frames}
    goals = [FrameGoal(frame, pose) for frame, pose in poses.items()]
    before = ts.inverse_kinematics(mech, q, goals, max_iterations=1)
    assert before.converged.all()
    found = ts.inverse_kinematics(mech, start, goals)
    for frame in frames:
        for is_at, goal in zip(ts.frame_pose(mech, found.q, frame), poses[frame], strict=True):
            off = (is_at - goal).flatten(1).abs().amax(1)
            assert (off[found.converged] < 1e-7).all()
    first = ts.inverse_kinematics(mech, start, goals, max_iterations=1).residual
    assert (found.residual.norm(dim=-1) <= first.norm(dim=-1) * (1 + 1e-12)).all()
    assert (found.residual.norm(dim=-1)[found.converged] < 1e-7).all()


def test_nearby_poses_of_an_arm_are_found_to_rounding():
    q, start = near(ARM, 1, 64)
    found = ts.inverse_kinematics(ARM, start, [FrameGoal(HAND, ts.frame_pose(ARM, q, HAND))])
    assert found.converged.all()
    assert found.residual.abs().max() < 1e-12
    assert (found.iterations < 15).all()


def test_float32_results_do_not_depend_on_the_default_dtype_of_torch():
    arm = ARM.to(torch.float32)
    q, start = near(arm, 0, 3)
    goal = ts.frame_pose(arm, q, HAND)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        found = ts.inverse_kinematics(arm, start, [FrameGoal(HAND, goal)])
    finally:
        torch.set_default_dtype(before)
    assert found.q.dtype == found.residual.dtype == torch.float32
    assert found.converged.all()


def test_two_frames_at_once_and_parts_of_poses():
    q, start = near(ARM, 2, 16)
    hand, elbow = ts.frame_pose(ARM, q, HAND), ts.frame_pose(ARM, q, ELBOW)
    goals = [FrameGoal(HAND, (None, hand.position)), FrameGoal(ELBOW, (elbow.rotation, None))]
    found = ts.inverse_kinematics(ARM, start, goals)
    assert found.converged.all()
    assert found.residual.shape == (16, 6)
    agree(ts.frame_pose(ARM, found.q, HAND).position, hand.position, 1e-12)
    agree(ts.frame_pose(ARM, found.q, ELBOW).rotation, elbow.rotation, 1e-12)
    goals[0] = FrameGoal(HAND, hand.position)
    same = ts.inverse_kinematics(ARM, start, goals)
    assert torch.equal(found.q, same.q)


def test_out_of_reach_a_heavier_weight_brings_nearer():
    """A target 3 m from the base: the arm points at it, and more closely with a lower rotation weight."""
    _, start = near(ARM, 3)
    at = torch.tensor([2.0, 2.0, 1.0], dtype=start.dtype)
    goal = (torch.eye(3, dtype=start.dtype), at)
    off = []
    for weight in (0.1, 1.0, 10.0):
        heavier = FrameGoal(HAND, goal, weight=(1.0, weight))
        found = ts.inverse_kinematics(ARM, start, [heavier], max_iterations=300)
        assert not found.converged
        off.append(float((ts.frame_pose(ARM, found.q, HAND).position - at).norm()))
    assert off[0] > off[1] > off[2]


def test_limits_hold_and_restarts_find_more():
    g = generator(4)
    q, start = (ARM.random_state(64, generator=g)[0] for _ in range(2))
    goals = [FrameGoal(HAND, ts.frame_pose(ARM, q, HAND))]
    once = ts.inverse_kinematics(ARM, start, goals, limits=True)
    assert ((once.q >= ARM.lower) & (once.q <= ARM.upper)).all()
    assert not once.converged.all()
    often = ts.inverse_kinematics(ARM, start, goals, limits=True, restarts=5, generator=g)
    assert ((often.q >= ARM.lower) & (often.q <= ARM.upper)).all()
    # The first converged attempt is returned.
    assert torch.equal(often.q[once.converged], once.q[once.converged])
    assert often.converged.sum() > once.converged.sum()
    free = ts.inverse_kinematics(ARM, start, goals)
    assert not ((free.q >= ARM.lower) & (free.q <= ARM.upper)).all()


@pytest.mark.parametrize("kind", ["spherical", "free"])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)], ids=str)
def test_quaternions_are_of_unit_length_whatever_the_start_was(kind, batch):
    """Regression: an initial guess at its target was returned without normalization."""
    mech = random_mechanism([kind, "revolute"], [-1, 0], seed=4)
    turned = [i for i, name in enumerate(mech.joints.kinds[0].coordinates) if name.startswith("q")]
    q, _ = mech.random_state(*batch, generator=generator(2))
    long = q.clone()
    long[..., turned] *= 2.0
    for limits in (False, True):
        goal = [FrameGoal("body1", ts.frame_pose(mech, q, "body1"))]
        found = ts.inverse_kinematics(mech, long, goal, limits=limits)
        assert found.converged.all()
        agree(found.q, q, 1e-9)


def test_entries_of_quaternions_have_no_limits():
    """Regression: limits of a quaternion's entries, set by ``replace``, clamped the quaternion."""
    mech = random_mechanism(["spherical", "revolute"], [-1, 0], seed=4)
    tight = mech.replace(
        lower=torch.full_like(mech.lower, -0.4), upper=torch.full_like(mech.upper, 0.4)
    )
    q = torch.tensor([1.0, 0.1, 0.2, 0.1, 0.3], dtype=mech.dtype)
    q[:4] /= q[:4].norm()
    goal = [FrameGoal("body1", ts.frame_pose(mech, q, "body1"))]
    found = ts.inverse_kinematics(tight, mech.neutral(), goal, limits=True)
    assert found.converged
    agree(found.q[None], q[None], 1e-7)


def test_to_stop_early_changes_nothing_that_converged():
    q, start = near(ARM, 5, 8)
    goals = [FrameGoal(HAND, ts.frame_pose(ARM, q, HAND))]
    whole = ts.inverse_kinematics(ARM, start, goals)
    early = ts.inverse_kinematics(ARM, start, goals, stop_early=True)
    assert early.converged.all()
    assert torch.equal(early.iterations, whole.iterations)
    agree(early.q, whole.q, 1e-13)


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)], ids=str)
def test_batches_of_targets_starts_and_robots_broadcast(batch):
    q, start = near(ARM, 6)
    length = ARM.joint_position * (1 + 0.05 * torch.rand(*batch, 1, 1, dtype=q.dtype))
    mech = ARM.replace(joint_position=length)
    goal = ts.frame_pose(mech, q, HAND)
    found = ts.inverse_kinematics(mech, start, [FrameGoal(HAND, goal)])
    assert found.q.shape == (*batch, 7)
    assert found.converged.shape == found.iterations.shape == batch
    assert found.converged.all()
    flat = zip(
        *(x.reshape(-1, *x.shape[len(batch) :]) for x in (*goal, length, found.q)), strict=True
    )
    for R, r, own, expected in flat:
        alone = ts.inverse_kinematics(
            ARM.replace(joint_position=own), start, [FrameGoal(HAND, (R, r))]
        )
        agree(alone.q[None], expected[None], 1e-9)


def test_the_solution_follows_its_targets_by_the_least_step():
    """dq is the minimum-norm solution of J dq = twist of the target."""
    q, start = near(ARM, 7)
    R, r = ts.frame_pose(ARM, q, HAND)

    def solution(twist: Tensor) -> Tensor:
        goal = (turn(twist[:3]) @ R, r + twist[3:])
        return ts.inverse_kinematics(ARM, start, [FrameGoal(HAND, goal)]).q

    at = torch.zeros(6, dtype=q.dtype)
    inverse = torch.linalg.pinv(ts.frame_jacobian(ARM, solution(at), HAND, reference="mixed"))
    for jacobian in (jacrev, jacfwd):
        agree(jacobian(solution)(at), inverse, 1e-8)
    agree(vmap(solution)(torch.zeros(2, 6, dtype=q.dtype))[1:], solution(at)[None], 1e-12)


# Three joints and a position target: the solution is locally unique, as finite differences need.
LIMB = random_mechanism(["revolute", "revolute", "prismatic"], [-1, 0, 1], seed=1, passive=False)


def placed(position: Tensor, joint_position: Tensor, frame_position: Tensor) -> Tensor:
    mech = LIMB.replace(joint_position=joint_position, frame_position=frame_position)
    start = torch.tensor([0.5, 0.4, 0.3], dtype=position.dtype)
    return ts.inverse_kinematics(mech, start, [FrameGoal("body2", position)], stop_early=True).q


def target(q: list[float]) -> Tensor:
    return ts.frame_pose(LIMB, torch.tensor(q, dtype=LIMB.dtype), "body2").position


def leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.clone().requires_grad_() for x in tensors)


def test_gradients_to_targets_and_parameters_are_differences_of_solutions():
    inputs = leaves(target([0.4, 0.3, 0.5]), LIMB.joint_position, LIMB.frame_position)
    assert gradcheck(placed, inputs, eps=1e-5, atol=1e-6, rtol=1e-6, check_forward_ad=True)


def test_second_derivatives_are_derivatives_of_the_first():
    at = target([0.4, 0.3, 0.5])

    def first(x: Tensor) -> Tensor:
        return jacrev(placed)(x, LIMB.joint_position, LIMB.frame_position)

    assert gradcheck(first, leaves(at), atol=1e-5)


def test_out_of_reach_derivatives_are_those_of_the_nearest_point():
    """A point on a ball joint moves on a sphere, whose nearest point to x lies on the ray to x."""
    mech = random_mechanism(["spherical", "fixed"], [-1, 0], seed=2, passive=False)
    far = torch.tensor([3.0, -2.0, 1.0], dtype=mech.dtype)

    def nearest(x: Tensor) -> Tensor:
        found = ts.inverse_kinematics(
            mech, mech.neutral(), [FrameGoal("body1", x)], max_iterations=100
        )
        assert not found.converged
        return ts.frame_pose(mech, found.q, "body1").position

    center = mech.joint_position[0]
    radius = mech.frame_position[mech.frame_index("body1")].norm()
    ray = (far - center) / (far - center).norm()
    agree((nearest(far) - center)[None], radius * ray[None], 1e-7)
    across = torch.eye(3, dtype=far.dtype) - torch.outer(ray, ray)
    agree(jacrev(nearest)(far), radius / (far - center).norm() * across, 1e-7)


def test_a_joint_that_a_limit_stops_moves_with_the_limit():
    at, upper = target([0.4, 0.3, 0.5]), torch.full_like(LIMB.upper, 0.42)
    stopped = LIMB.replace(upper=upper)

    def solution(position: Tensor, upper: Tensor) -> Tensor:
        mech = stopped.replace(upper=upper)
        start = torch.tensor([0.3, 0.2, 0.1], dtype=position.dtype)
        goal = [FrameGoal("body2", position)]
        return ts.inverse_kinematics(mech, start, goal, limits=True, max_iterations=60).q

    q = solution(at, upper)
    assert (q == upper).any()
    assert (q != upper).any()
    assert gradcheck(solution, leaves(at, upper), atol=1e-5)


def test_a_joint_at_its_limit_is_free_where_the_target_is_reached():
    """Regression: rounding errors decided whether the limit was active."""
    arm = ts.load(ts.robots.panda)
    g = torch.Generator().manual_seed(1)
    q = arm.middle() + 0.3 * torch.randn(7, generator=g, dtype=arm.dtype)
    hand, most = arm.frame_names[-1], q + 1
    most[1] = q[1] - 0.05
    arm = arm.replace(upper=torch.minimum(arm.upper, most))
    place = lambda q: ts.frame_pose(arm, q, hand).position  # noqa: E731
    goals = place(q) + 1e-3 * torch.randn(12, 3, generator=g, dtype=q.dtype)

    def solution(goal: Tensor) -> Tensor:
        found = ts.inverse_kinematics(
            arm, arm.middle(), [FrameGoal(hand, goal)], limits=True, max_iterations=100
        )
        return found.q

    ends = solution(goals)
    agree(place(ends), goals, 1e-9)
    assert (((ends == arm.upper) | (ends == arm.lower)).sum(-1) == 1).sum() > 6
    slopes = vmap(jacrev(solution))(goals)
    agree(slopes, torch.linalg.pinv(vmap(jacrev(place))(ends)), 1e-6)


@pytest.mark.parametrize("limits", [False, True])
def test_a_start_that_is_no_number_spoils_no_other_samples_derivatives(limits):
    q, start = near(ARM, 8)
    goal = ts.frame_pose(ARM, q, HAND)

    def slope(start: Tensor) -> Tensor:
        place = goal.position.expand(len(start), 3).clone().requires_grad_()
        there = [FrameGoal(HAND, (goal.rotation.expand(len(start), 3, 3), place))]
        found = ts.inverse_kinematics(ARM, start, there, limits=limits)
        return torch.autograd.grad(found.q.sum(), place)[0]

    both = slope(torch.stack([start, start * torch.nan]))
    assert both[1].isnan().all()
    torch.testing.assert_close(both[:1], slope(start[None]))


def test_the_start_has_no_gradient():
    q, start = near(ARM, 8)
    start = start.requires_grad_()
    found = ts.inverse_kinematics(ARM, start, [FrameGoal(HAND, ts.frame_pose(ARM, q, HAND))])
    assert not found.q.requires_grad


def test_compiling_without_derivatives_is_refused():
    def solution(position: Tensor) -> Tensor:
        start = torch.zeros(3, dtype=position.dtype)
        return ts.inverse_kinematics(LIMB, start, [FrameGoal("body2", position)]).q

    whole = torch.compile(solution, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="inverse_kinematics was called inside"):
        whole(target([0.4, 0.3, 0.5]))
    torch.compiler.reset()


@pytest.mark.parametrize(
    "derive",
    [
        jacrev,
        pytest.param(jacfwd, marks=pytest.mark.nightly),
        pytest.param(lambda f: jacrev(jacfwd(f)), marks=pytest.mark.nightly),
        pytest.param(lambda f: jacfwd(jacrev(f)), marks=pytest.mark.nightly),
    ],
)
def test_a_fused_function_contains_the_iterations_and_the_derivatives_of_the_solution(derive):
    """The limb is redundant, so its solutions are not unique."""
    mech = random_mechanism(["revolute"] * 4, [-1, 0, 1, 2], seed=2, passive=False)
    tip = mech.frame_names[-1]

    def reach(mech: ts.Mechanism, start: Tensor, position: Tensor) -> Tensor:
        return ts.inverse_kinematics(mech, start, [FrameGoal(tip, position)]).q

    fast = ts.fuse(reach, mech, shapes={"start": (4,), "position": (3,)})
    q, start = near(mech, 3, 2, 3)
    at = ts.frame_pose(mech, q, tip).position
    wanted = reach(mech, start, at)
    agree(fast(start, at).flatten(0, 1), wanted.flatten(0, 1), 1e-9)
    agree(fast(start[0, :1], at[0, :1]), wanted[0, :1], 1e-9)
    agree(vmap(fast)(start[0], at[0]), wanted[0], 1e-9)
    found, expected = (
        derive(lambda x, f=f: f(start[0, 0], x))(at[0, 0])
        for f in (fast, lambda *x: reach(mech, *x))
    )
    agree(found.reshape(1, -1), expected.reshape(1, -1), 1e-6)


def test_a_fused_mechanism_runs_its_kernels():
    fast = ts.fuse(LIMB)
    at = target([0.4, 0.3, 0.5]).requires_grad_()
    start = torch.tensor([0.5, 0.4, 0.3], dtype=at.dtype)
    results = [
        ts.inverse_kinematics(mech, start, [FrameGoal("body2", at)]) for mech in (fast, LIMB)
    ]
    agree(results[0].q[None], results[1].q[None], 1e-12)
    slopes = [torch.autograd.grad(found.q.sum(), at)[0] for found in results]
    agree(slopes[0][None], slopes[1][None], 1e-10)


@pytest.mark.parametrize("inputs", [(), ("joint_position",)], ids=["one kernel", "kernels a step"])
def test_kernels_take_the_steps_of_eager_mode_sample_by_sample(inputs):
    lower, upper = (torch.full_like(LIMB.lower, x) for x in (-0.7, 0.9))
    tight = LIMB.replace(lower=lower, upper=upper)
    g = torch.Generator().manual_seed(7)
    start, q = (tight.random_state(2, 5, generator=g)[0] for _ in range(2))
    far = q * torch.tensor([[1.5], [1.0]], dtype=q.dtype)[:, None]  # out of reach, and within it
    at = ts.frame_pose(LIMB, q, "body1").position
    goals = [
        FrameGoal("body2", ts.frame_pose(LIMB, far, "body2").position),
        FrameGoal("body1", (None, at), weight=(1.0, 0.1)),
    ]
    options = {"limits": True, "max_iterations": 20}
    eager, fused = (
        ts.inverse_kinematics(mech, start, goals, **options)
        for mech in (tight, ts.fuse(tight, inputs=inputs))
    )
    assert torch.equal(fused.iterations, eager.iterations)
    assert torch.equal(fused.converged, eager.converged) and eager.converged.any(1).tolist() == [
        0,
        1,
    ]
    # Within reach the solution is determined to rounding.
    agree(fused.q[1], eager.q[1], 1e-10)
    agree(fused.residual[1], eager.residual[1], 1e-10)
    # At a nonzero minimum the cost is stationary: it is determined to rounding, but the solution, and the
    # residual with it, only to the square root of rounding, 1.5e-8, over the curvature.
    agree(*(found.residual[0].norm(dim=-1) for found in (fused, eager)), 1e-10)
    agree(fused.q[0], eager.q[0], 1e-6)
    agree(fused.residual[0], eager.residual[0], 1e-6)


GOAL = ts.frame_pose(ARM, ARM.middle(), HAND)


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ((None, None), {}, "the target of frame 'flange' is"),
        (
            (GOAL.position, GOAL.rotation),
            {},
            "rotation of the target of 'flange' has shape (?s:.*)a pair is",
        ),
        (
            (torch.zeros(5, 4, dtype=torch.float64), GOAL.position),
            {},
            r"(?s)rotation of the target of 'flange' has shape .*quaternion_to_matrix\(x\)",
        ),
        (
            torch.eye(4, dtype=torch.float64),
            {},
            r"(?s)position of the target.*\(x\[..., :3, :3\], x\[..., :3, 3\]\)",
        ),
        (GOAL.position.float(), {}, "torch.float32"),
        (GOAL, {"weight": (1.0, torch.inf)}, "weight of the goal for 'flange'.* is inf"),
        (GOAL, {"weight": (1.0, -1.0)}, "weight of the position of the target of 'flange' is -1"),
        (GOAL, {"priority": 0.5}, "priority of a FrameGoal is 0.5"),
        (GOAL, {"relative_to": "paw"}, "no frame is named 'paw'"),
    ],
)
def test_invalid_goals_are_refused_by_name(target, options, said):
    with pytest.raises(ts.TorchskoError, match=said) as error:
        ts.inverse_kinematics(ARM, ARM.middle(), [FrameGoal(HAND, target, **options)])
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("goals", "options", "said"),
    [
        ([], {}, "goals is empty"),
        ({HAND: GOAL}, {}, "goals was given as dict"),
        ([HAND], {}, "goals holds str"),
        ([FrameGoal("paw", GOAL)], {}, "no frame is named 'paw'"),
        ([FrameGoal(HAND, GOAL)], {"restarts": -1}, "restarts=-1"),
        ([FrameGoal(HAND, GOAL)], {"max_iterations": 0}, "max_iterations=0"),
        ([FrameGoal(HAND, GOAL)], {"stop_early": "no"}, "stop_early='no'"),
    ],
)
def test_invalid_arguments_are_refused_by_name(goals, options, said):
    with pytest.raises(ts.TorchskoError, match=said) as error:
        ts.inverse_kinematics(ARM, ARM.middle(), goals, **options)
    assert len(str(error.value).splitlines()) == 3


def test_a_start_that_does_not_fit_is_named():
    with pytest.raises(ts.ShapeError, match="q0 has shape"):
        ts.inverse_kinematics(ARM, torch.zeros(6, dtype=ARM.dtype), [FrameGoal(HAND, GOAL)])
