"""Control laws satisfy the equations of the closed loop, on random robots."""

from itertools import product

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.func import jvp

import torchsko as ts
from tests.linkages import four_bar
from tests.linkages import state as linkage_state
from tests.newton import unskew
from tests.states import normal_state
from tests.strategies import (
    ALL_KINDS,
    agree,
    any_mechanisms,
    coupled_mechanisms,
    mechanisms,
    random_mechanism,
    seeds,
)
from torchsko.spatial.rotation import quaternion_exp, quaternion_to_matrix

any_mechanism = any_mechanisms(4, 4)
VECTORS = tuple(kind for kind in ALL_KINDS if kind not in ("spherical", "free"))
vector_mechanisms = mechanisms(max_bodies=4, kinds=VECTORS)
ARM = ts.load(ts.robots.panda)
HAND = ARM.frame_names[-1]
control = ts.control


def slope(f, mech: ts.Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, *rates) -> Tensor:
    """Time derivative of f(q, qd, ...), given the rates of all arguments."""
    t = torch.zeros((), dtype=q.dtype)

    def at(t: Tensor):
        others = [x + t * rate for x, rate in rates]
        return f(ts.integrate(mech, q, qd * t), qd + t * qdd, *others)

    return jvp(at, (t,), (torch.ones_like(t),))[1]


@given(any_mechanism, seeds)
def test_computed_torque_gives_the_acceleration_that_it_asks_for(mech, seed):
    q, qd, wanted, rate, step = normal_state(mech, seed=seed, vectors=4)
    target = ts.integrate(mech, q, 0.3 * step)
    tau = control.computed_torque(mech, q, qd, target, rate, wanted, stiffness=30.0, damping=7.0)
    asked = wanted + 30 * ts.difference(mech, q, target) + 7 * (rate - qd)
    agree(ts.forward_dynamics(mech, q, qd, tau)[None], asked[None], 1e-8)


@given(mechanisms(max_bodies=4, kinds=(*VECTORS, "spherical")), seeds)
def test_feedback_with_gravity_compensated_loses_energy_as_dampers_do(mech, seed):
    """Kinetic energy plus that of the feedback springs falls by the losses; joint springs are compensated."""
    q, qd, *_, step = normal_state(mech, seed=seed, vectors=4)
    mech = mech.replace(friction=torch.zeros_like(mech.friction))
    target = ts.integrate(mech, q, 0.3 * step)

    def energy(q: Tensor, qd: Tensor) -> Tensor:
        e = ts.difference(mech, q, target)
        return ts.kinetic_energy(mech, q, qd) + 20.0 * (e * e).sum(-1) / 2

    tau = control.pd_with_gravity(mech, q, qd, target, stiffness=20.0, damping=3.0)
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    lost = ((3.0 + mech.damping) * qd * qd).sum(-1)
    agree(slope(energy, mech, q, qd, qdd)[None, None], -lost[None, None], 1e-9)


def test_gravity_compensation_holds_a_robot_at_its_target():
    q, *_ = normal_state(ARM, 5, seed=1, vectors=4)
    tau = control.pd_with_gravity(ARM, q, 0 * q, q, stiffness=20.0, damping=3.0)
    agree(ts.forward_dynamics(ARM, q, 0 * q, tau), 0 * q, 1e-9)


def test_gravity_compensation_includes_springs_and_compensated_weights():
    """A ball on a joint with a spring and gravity compensation."""
    mech = ts.load(
        """<mujoco><worldbody><body gravcomp="0.7">
             <joint name="swing" axis="0 1 0" stiffness="5" springref="60"/>
             <geom type="sphere" size="0.05" pos="0.3 0 0" mass="2"/></body></worldbody></mujoco>"""
    )
    q = torch.tensor([[0.2], [-1.0]], dtype=mech.dtype)
    tau = control.pd_with_gravity(mech, q, 0 * q, q, stiffness=10.0, damping=1.0)
    agree(tau, ts.inverse_dynamics(mech, q, 0 * q, 0 * q), 1e-12)


# Operational space.


def near(pose: ts.Pose, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    turn, way = 0.3 * torch.randn(2, 3, generator=g, dtype=pose.position.dtype)
    return quaternion_to_matrix(quaternion_exp(turn)) @ pose.rotation, pose.position + way


def test_the_first_task_is_a_spring_and_a_damper_on_the_inertia_felt_there():
    """Lambda (a - a_target) = K e + D de/dt + F: the pushed frame obeys its own equation of motion."""
    q, qd, *_ = normal_state(ARM, 3, seed=2, vectors=4)
    g = torch.Generator().manual_seed(3)
    velocity, acceleration, push = torch.randn(3, 6, generator=g, dtype=q.dtype)
    R, r = near(ts.Pose(*(x[0] for x in ts.frame_pose(ARM, q, HAND))), 4)
    first = control.Task(HAND, (R, r), (90.0, 800.0), (15.0, 50.0), velocity, acceleration)
    second = control.Task("link4", ts.frame_pose(ARM, q, "link3").position)
    tau = control.impedance(ARM, q, qd, [first, second], posture=-5 * qd)
    J = ts.frame_jacobian(ARM, q, HAND, reference="mixed")
    pushed = tau + (J.mT @ push[:, None])[..., 0]
    qdd = ts.forward_dynamics(ARM, q, qd, pushed)
    a = ts.frame_acceleration(ARM, q, qd, qdd, HAND, reference="mixed", classical=True)
    pose = ts.frame_pose(ARM, q, HAND)
    off = velocity - ts.frame_velocity(ARM, q, qd, HAND, reference="mixed")
    e = torch.cat([rotation_vector(R @ pose.rotation.mT), r - pose.position], -1)
    stiff = torch.tensor([90.0] * 3 + [800.0] * 3, dtype=q.dtype)
    damp = torch.tensor([15.0] * 3 + [50.0] * 3, dtype=q.dtype)
    felt = torch.linalg.inv(J @ torch.linalg.solve(ts.mass_matrix(ARM, q), J.mT))
    left = (felt @ (a - acceleration)[..., None])[..., 0]
    agree(left, stiff * e + damp * off + push, 1e-8)


@pytest.mark.parametrize("dt", [1e-3, 5e-3])
def test_a_task_without_a_damping_holds_a_light_wrist_at_the_usual_rates(dt):
    """Regression: damping for the arm's inertia made the Panda's wrist of 5 g m^2 unstable at 1 kHz."""
    arm = ARM.replace(damping=0 * ARM.damping, friction=0 * ARM.friction)
    goal = ts.frame_pose(arm, arm.middle(), HAND)
    start = arm.middle() + 0.1 * normal_state(ARM, vectors=4)[1]
    task = control.Task(HAND, goal)

    def law(t, q, qd):
        return control.impedance(arm, q, qd, [task], posture=-5 * qd)

    qs, qds, *_ = ts.rollout(arm, ts.State(start, 0 * start), law, steps=30, dt=dt)
    off = [(ts.frame_pose(arm, q, HAND).position - goal.position).norm() for q in (qs[0], qs[-1])]
    assert off[1] < off[0] and qds.abs().max() < 20.0


def test_a_damping_that_is_left_out_is_critical_on_the_inertia_felt_along_each_axis():
    builder = ts.MechanismBuilder("cart")
    builder.link("cart", mass=2.0)
    builder.joint("rail", "prismatic", child="cart", axis=(1.0, 0.0, 0.0))
    cart = builder.build()
    q, qd = torch.zeros(2, 1, dtype=cart.dtype), torch.tensor([[1.0], [-3.0]], dtype=cart.dtype)
    stiffness = torch.tensor([50.0, 0.0, 7.0], dtype=cart.dtype, requires_grad=True)
    here = torch.zeros(3, dtype=cart.dtype)
    for k, expected in ((800.0, 80.0), (0.0, 0.0), (stiffness, 20.0)):
        task = control.Task("cart", (None, here), (1.0, k))
        tau = control.impedance(cart, q, qd, [task])
        agree(tau.detach(), -expected * qd, 1e-12)
        objective = control.frame_objective(cart, q, qd, task)
        agree(objective.desired[:, :1].detach(), -expected / 2**0.5 * qd, 1e-12)
    # Axes without a spring or without motion have finite gradients.
    tau.sum().backward()
    assert stiffness.grad is not None and stiffness.grad.isfinite().all() and stiffness.grad[0] != 0


def falling(mech: ts.Mechanism, q: Tensor, law) -> tuple[Tensor, Tensor]:
    """Matrices A and B of d/dt qd = -A dq - B qd about rest at q, `[*batch, n, n]`."""
    still = torch.zeros(*q.shape[:-1], mech.num_dof, dtype=q.dtype)
    ways = torch.eye(mech.num_dof, dtype=q.dtype)[:, *(None,) * (q.ndim - 1)].expand(
        -1, *still.shape
    )

    def moved(step: Tensor, qd: Tensor) -> Tensor:
        at = ts.integrate(mech, q, step)
        return ts.forward_dynamics(mech, at, qd, law(at, qd))

    by_way = [jvp(lambda x: moved(x, still), (still,), (e,))[1] for e in ways]
    by_rate = [jvp(lambda x: moved(still, x), (still,), (e,))[1] for e in ways]
    return -torch.stack(by_way, -1), -torch.stack(by_rate, -1)


@pytest.mark.parametrize("singular", ["pinv", "nan", ("damped", 0.1)], ids=str)
def test_a_damping_that_is_left_out_is_critical_for_every_motion_of_a_pose(singular):
    """Critical damping means B^2 = 4 A with A = M^-1 J* K J, not only along single axes."""
    arm = ARM.replace(damping=0 * ARM.damping, friction=0 * ARM.friction)
    q, *_ = normal_state(arm, 6, seed=3, vectors=4)
    task = control.Task(
        HAND, ts.frame_pose(arm, q, HAND), (100.0, torch.tensor([1e3, 0.0, 50.0]).to(q))
    )
    A, B = falling(arm, q, lambda q, qd: control.impedance(arm, q, qd, [task], singular=singular))
    agree(B @ B, 4 * A, 1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_damping_is_critical_where_rows_outnumber_dofs(dtype):
    """Six springs act on three hinges: six of the twelve modes of the rows are zero."""
    mech = random_mechanism(["revolute", "prismatic", "revolute"], [-1, 0, 1], seed=8).to(dtype)
    mech = mech.replace(**{x: 0 * getattr(mech, x) for x in ("damping", "friction", "stiffness")})
    q, *_ = normal_state(mech, 5, seed=4, vectors=4)
    task = control.Task("body2", ts.frame_pose(mech, q, "body2"))
    A, B = falling(mech, q, lambda q, qd: control.impedance(mech, q, qd, [task]))
    agree(B @ B, 4 * A, 1e-8 if dtype == torch.float64 else 2e-2)


def test_the_damping_of_a_lower_task_is_critical_in_the_remaining_freedom():
    arm = ARM.replace(damping=0 * ARM.damping, friction=0 * ARM.friction)
    q, *_ = normal_state(arm, 4, seed=5, vectors=4)
    pose = ts.frame_pose(arm, q, HAND)
    tasks = [control.Task(HAND, (None, pose.position)), control.Task(HAND, (pose.rotation, None))]
    A, B = falling(arm, q, lambda q, qd: control.impedance(arm, q, qd, tasks))
    J, M = ts.frame_jacobian(arm, q, HAND, reference="mixed"), ts.mass_matrix(arm, q)
    free = torch.stack([consistent(*x) for x in zip(M, J[:, 3:], strict=True)])
    agree(B @ B @ free, 4 * A @ free, 1e-8)


def in_a_row(length: float, kinds: str) -> ts.Mechanism:
    """A chain of revolute (r) and prismatic (p) joints about and along z, y and x in turn."""
    builder, parent = ts.MechanismBuilder("row"), None
    own = (length**2 / 12) * torch.eye(3, dtype=torch.float64)
    for k, kind in enumerate(kinds):
        axis = [0.0, 0.0, 0.0]
        axis[2 - k % 3] = 1.0
        builder.link(f"{k}", mass=1.0, com=[length / 2, 0, 0], inertia=own.tolist())
        builder.joint(
            f"joint {k}", "revolute" if kind == "r" else "prismatic", parent=parent, child=f"{k}",
            axis=axis, position=[length, 0, 0],
        )  # fmt: skip
        parent = f"{k}"
    return builder.build(gravity=(0, 0, 0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kinds", ["rrrrrrrrr", "rrprrrprr", "rrr"])
def test_tasks_are_done_as_well_in_millimeters(kinds, dtype):
    """Regression: the rank depended on units of length, so a small arm in float32 counted as singular."""
    found = []
    for length in (1.0, 1e-3, 1e3):
        mech = in_a_row(length, kinds)
        sized = torch.tensor([1.0 if kind == "r" else length for kind in kinds]).double()
        g = torch.Generator().manual_seed(1)
        q, qd, way = (torch.randn(3, n, generator=g).double() for n in (len(kinds), len(kinds), 9))
        q, qd = q * sized, qd * sized
        pose = ts.frame_pose(mech, q, mech.frame_names[-1])
        asked = way[:, 3:] * torch.tensor([1.0] * 3 + [length] * 3).double()
        last = (pose.rotation, pose.position + 0.1 * length * way[:, :3])
        first = ts.frame_pose(mech, 0.9 * q, "1")
        tasks = [(mech.frame_names[-1], last, asked), ("1", first, None)]
        tau = control.impedance(
            mech.to(dtype), q.to(dtype), qd.to(dtype),
            [
                control.Task(
                    name, tuple(x.to(dtype) for x in target), (100.0 * length**2, 100.0),
                    acceleration=None if asked is None else asked.to(dtype),
                )
                for name, target, asked in tasks
            ],
            posture=-qd.to(dtype),
        )  # fmt: skip
        found.append(tau.double() * sized / length**2)
    rounding = 1e-7 if dtype == torch.float64 else 1e-3
    for tau in found[1:]:
        assert (tau - found[0]).abs().max() < rounding * found[0].abs().max()


def test_a_pose_task_of_three_hinges_has_all_derivatives():
    """An unreachable acceleration is replaced by the nearest one in units of the arm's length."""
    mech = in_a_row(0.7, "rrr")
    q, qd, *_ = normal_state(mech, 2, seed=2, vectors=4)
    asked = torch.randn(2, 6, generator=torch.Generator().manual_seed(3), dtype=q.dtype)
    task = control.Task("2", ts.frame_pose(mech, 0.8 * q, "2"), acceleration=asked)

    def tau(place: Tensor, q: Tensor, qd: Tensor) -> Tensor:
        return control.impedance(mech.replace(joint_position=place), q, qd, [task])

    given = [x.clone().requires_grad_() for x in (mech.joint_position, q, qd)]
    assert torch.autograd.gradcheck(tau, given, check_forward_ad=True, atol=1e-4)


def rotation_vector(R: Tensor) -> Tensor:
    """Rotation vector from the angle and the skew part; not for zero and half turns."""
    angle = ((R.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2).acos()[..., None]
    return unskew((R - R.mT) / 2) * angle / angle.sin()


def test_a_lower_task_and_the_posture_move_no_higher_one():
    q, qd, *_, posture = normal_state(ARM, 4, seed=5, vectors=4)
    first = control.Task(HAND, (None, ts.frame_pose(ARM, q, "link6").position))
    second = control.Task("link4", (None, ts.frame_pose(ARM, q, "link2").position))
    alone = control.impedance(ARM, q, qd, [first])
    J = ts.frame_jacobian(ARM, q, HAND, reference="mixed")[..., 3:, :]
    for tau in (
        control.impedance(ARM, q, qd, [first, second]),
        control.impedance(ARM, q, qd, [first], posture=posture),
        control.impedance(ARM, q, qd, [first, second], posture=posture),
    ):
        change = ts.forward_dynamics(ARM, q, qd, tau) - ts.forward_dynamics(ARM, q, qd, alone)
        assert change.abs().amax(-1).min() > 1e-2
        agree(J @ change[..., None], 0 * J[..., :1], 1e-8)


@pytest.mark.parametrize("damping", [1e-4, 1e-6])
def test_damping_lets_a_lower_task_move_a_higher_one_by_its_own_share_alone(damping):
    """Also with a task that pulls the same frame in the opposite direction."""
    q, qd, *_, posture = normal_state(ARM, seed=5, vectors=4)
    r, along = ts.frame_pose(ARM, q, HAND).position, torch.tensor([0.1, 0.0, 0.0]).to(q)
    there, back = (control.Task(HAND, (None, r + way)) for way in (along, -along))
    J = ts.frame_jacobian(ARM, q, HAND, reference="mixed")[3:]

    def moves(tasks, **posture):
        tau = control.impedance(ARM, q, qd, tasks, singular=("damped", damping), **posture)
        return J @ ts.forward_dynamics(ARM, q, qd, tau)

    alone = moves([there])
    felt = torch.linalg.eigvalsh(J @ torch.linalg.solve(ts.mass_matrix(ARM, q), J.mT))[0]
    share = 10 * (damping / felt).item()  # a force on either side, and the posture
    assert share < 0.02
    for lower in ([there, back], [there, back, back]):
        for free in ({}, {"posture": posture}):
            assert (moves(lower, **free) - alone).norm() < share * alone.norm()


def test_two_tasks_that_fit_are_both_done():
    """A position task and a damped rotation task: both accelerate by their springs and dampers."""
    q, qd, *_ = normal_state(ARM, seed=6, vectors=4)
    R, r = ts.frame_pose(ARM, q, HAND)
    tasks = [
        control.Task(HAND, (None, r + 0.1), (0.0, 500.0), (0.0, 0.0)),
        control.Task(HAND, (R, None), (0.0, 0.0), (4.0, 0.0)),
    ]
    qdd = ts.forward_dynamics(ARM, q, qd, control.impedance(ARM, q, qd, tasks))
    M, J = ts.mass_matrix(ARM, q), ts.frame_jacobian(ARM, q, HAND, reference="mixed")
    a = ts.frame_acceleration(ARM, q, qd, qdd, HAND, reference="mixed", classical=True)
    linear, turning = J[3:], J[:3] @ consistent(M, J[3:])
    springs = torch.full((3,), 50.0, dtype=q.dtype)
    felt = linear @ torch.linalg.solve(M, linear.mT)
    agree(a[None, 3:], (felt @ springs)[None], 1e-8)
    felt = turning @ torch.linalg.solve(M, turning.mT)
    agree(a[None, :3], (felt @ (-4.0 * J[:3] @ qd))[None], 1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("frame", [HAND, "link3"])
def test_tasks_without_any_freedom_left_change_nothing(frame, dtype):
    """Two poses use all seven dofs; rounding errors of a third task's rows do not count as rank."""
    q, qd, *_ = (x.to(dtype) for x in normal_state(ARM, 3, seed=7, vectors=4))
    arm = ARM.to(dtype)
    asked = [
        control.Task(name, near(ts.Pose(*(x[0] for x in ts.frame_pose(arm, q, name))), 8))
        for name in (HAND, "link4", frame)
    ]
    q.requires_grad_()
    two, three = (control.impedance(arm, q, qd, asked[:count]) for count in (2, 3))
    rounding = 1e-9 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(three, two, rtol=rounding, atol=rounding)
    slopes = [torch.autograd.grad(tau.sum(), q)[0] for tau in (two, three)]
    torch.testing.assert_close(*slopes, rtol=rounding, atol=rounding * float(slopes[0].abs().max()))
    assert control.impedance(arm, q, qd, asked[:1] * 2, singular="nan").isnan().all()
    with pytest.raises(ts.SingularError, match=r"samples \[\[0\], \[1\], \[2\]\]"):
        control.impedance(arm, q, qd, asked[:1] * 2, singular="raise")


def consistent(M: Tensor, J: Tensor) -> Tensor:
    """The null-space projector 1 - Jbar J."""
    back = torch.linalg.solve(M, J.mT)
    return torch.eye(len(M), dtype=M.dtype) - back @ torch.linalg.solve(J @ back, J)


# Adaptive control.


def adaptive(mech: ts.Mechanism, parameters: Tensor, seed: int):
    q, qd, q_target, qd_target, qdd_target = normal_state(mech, seed=seed, vectors=4)
    q_target = q + 0.3 * q_target if q.shape == qd.shape else q
    given = (q, qd, q_target, qd_target, qdd_target)
    done = control.adaptive_control(
        mech, q, qd, parameters, *given[2:], slope=2.0, gain=5.0, adaptation=0.7
    )
    return given, done


def test_on_its_target_the_adaptive_law_is_inverse_dynamics_of_closed_chains() -> None:
    """With the armature of a dependent joint, which moves at qdd = 0 as well."""
    mech = four_bar(independent=["crank_j"])
    q, qd, qdd = linkage_state(mech, 2)
    given = (mech, q, qd, ts.inertial_parameters(mech), q, qd, qdd)
    found = control.adaptive_control(*given, slope=2.0, gain=5.0, adaptation=0.7).tau
    torch.testing.assert_close(found, ts.inverse_dynamics(mech, q, qd, qdd))


@given(st.one_of(vector_mechanisms, coupled_mechanisms(max_bodies=4)), seeds)
def test_the_energy_of_the_adaptive_loop_falls_whatever_the_parameters(mech, seed):
    kinds = {mech.joints.kinds[k].vector for k in mech.independent_joints}
    if kinds != {True}:
        with pytest.raises(ts.MechanismError, match="not a vector"):
            adaptive(mech, ts.inertial_parameters(mech), seed)
        return
    g = torch.Generator().manual_seed(seed)
    true = ts.inertial_parameters(mech)
    thought = true + torch.randn(true.shape, generator=g, dtype=true.dtype)
    (q, qd, q_target, qd_target, qdd_target), done = adaptive(mech, thought, seed)
    qdd = ts.forward_dynamics(mech, q, qd, done.tau)

    def energy(q, qd, parameters, q_target, qd_target) -> Tensor:
        s = qd - qd_target - 2.0 * (q_target - q)
        off = parameters - true
        return (s @ ts.mass_matrix(mech, q) @ s + (off * off).sum() / 0.7) / 2

    rates = [(thought, done.rate), (q_target, qd_target), (qd_target, qdd_target)]
    s = qd - qd_target - 2.0 * (q_target - q)
    fell = slope(energy, mech, q, qd, qdd, *rates)
    agree(fell[None, None], -5.0 * (s * s).sum()[None, None], 1e-8)
    after = control.adaptive_control(
        mech, q, qd, thought, q_target, qd_target, qdd_target,
        slope=2.0, gain=5.0, adaptation=0.7, dt=0.01,
    )  # fmt: skip
    assert torch.equal(after.rate, done.rate)
    faster = (
        0.01 * done.rate.square().sum() / 0.7
    )  # s* times the change of the parameters in a step
    agree((s @ (after.tau - done.tau))[None, None], -faster[None, None], 1e-8)


@pytest.mark.parametrize("dt", [None, 0.01])
def test_the_sampled_adaptive_loop_is_stable_up_to_the_bound_that_its_help_states(dt):
    """A mass held against gravity, whose regressor is g: stable below the bound and unstable above it."""
    builder = ts.MechanismBuilder("lift")
    builder.link("car", mass=0.5)
    builder.joint("rail", "prismatic", child="car", axis=(0.0, 0.0, 1.0))
    lift, gain, every = builder.build(), 3.0, 0.01
    edge = gain / every if dt is None else (4 * 0.5 - 2 * every * gain) / every**2
    zero = torch.zeros(1, dtype=lift.dtype)
    true = ts.inertial_parameters(lift)

    def step(x: Tensor, adaptation: float) -> Tensor:
        qd, off = x.split(1)
        thought = true + torch.nn.functional.pad(off, (0, 9))
        done = control.adaptive_control(
            lift, zero, qd, thought, zero, zero, zero,
            slope=0.0, gain=gain, adaptation=adaptation, dt=dt,
        )  # fmt: skip
        after = qd + every * ts.forward_dynamics(lift, zero, qd, done.tau)
        return torch.cat([after, off + every * done.rate[0, :1]])

    for share in (0.98, 1.02):
        A = torch.func.jacrev(step)(torch.zeros(2, dtype=lift.dtype), share * edge / 9.81**2)
        assert (torch.linalg.eigvals(A).abs().max() < 1) == (share < 1)


@given(vector_mechanisms, seeds)
def test_the_adaptation_is_the_transposed_regressor_times_the_error(mech, seed):
    """At v = qd, Y is the torque regressor."""
    thought = torch.zeros_like(ts.inertial_parameters(mech))
    q, qd, a, s, _ = normal_state(mech, seed=seed, vectors=4)
    Y = ts.torque_regressor(mech, q, qd, a)
    eps = 1e-6
    done = control.adaptive_control(
        mech, q, qd, thought, q, qd - eps * s, a, slope=0.0, gain=0.0, adaptation=1.0
    )
    expected = -(Y * s[:, None, None]).sum(0)
    agree(done.rate / eps, expected, 1e-4)


@given(vector_mechanisms, seeds)
def test_with_the_right_parameters_it_is_computed_torque_where_s_vanishes(mech, seed):
    q, qd, qdd, *_ = normal_state(mech, seed=seed, vectors=4)
    done = control.adaptive_control(
        mech, q, qd, ts.inertial_parameters(mech), q, qd, qdd, slope=1.0, gain=1.0, adaptation=1.0
    )
    agree(done.tau[None], ts.inverse_dynamics(mech, q, qd, qdd)[None], 1e-11)
    assert done.rate.abs().max() == 0


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)], ids=str)
def test_batches_are_their_samples(batch):
    mech = random_mechanism(["revolute", "prismatic", "revolute"], [-1, 0, 0], seed=8)
    q, qd, a, step, _ = normal_state(mech, *batch, seed=9, vectors=4)
    goal = near(ts.Pose(*ts.frame_pose(mech, 0 * q[(0,) * len(batch)], "body2")), 1)
    start = ts.inertial_parameters(mech)

    def laws(q, qd, a, step):
        adapted = control.adaptive_control(
            mech, q, qd, start, q + step, qd, a, slope=1.0, gain=2.0, adaptation=0.5,
            dt=0.1 * step[..., 0].square() + 1e-3,
        )  # fmt: skip
        return (
            control.computed_torque(mech, q, qd, q + step, stiffness=9.0, damping=6.0),
            control.pd_with_gravity(mech, q, qd, q + step, stiffness=9.0, damping=6.0),
            control.impedance(mech, q, qd, [control.Task("body2", goal)]),
            *adapted,
        )

    together = laws(q, qd, a, step)
    for place in product(*map(range, batch)):
        alone = laws(*(x[place] for x in (q, qd, a, step)))
        for x, y in zip(together, alone, strict=True):
            torch.testing.assert_close(x[place], y)


def test_samples_of_the_parameters_alone_may_have_gains_of_their_own():
    q, qd, a, step, _ = normal_state(ARM, seed=4, vectors=4)
    g = torch.Generator().manual_seed(0)
    thought = ts.inertial_parameters(ARM) * torch.rand(3, 1, 1, generator=g, dtype=q.dtype)
    gains = torch.rand(3, 7, generator=g, dtype=q.dtype)

    def adapted(parameters, gain):
        return control.adaptive_control(
            ARM, q, qd, parameters, q + step, qd, a, slope=1.0, gain=gain, adaptation=0.5
        ).tau

    each = torch.stack([adapted(*x) for x in zip(thought, gains, strict=True)])
    agree(adapted(thought, gains), each, 1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize("law", ["whole body", "impedance"])
def test_laws_of_frames_on_the_go_are_traced_as_those_of_named_ones(law):
    """Traced by torch.compile in one graph, and to a kernel."""
    rail = mechanism_of_two_slides()
    q, qd, *_ = normal_state(rail, 3, seed=8, vectors=4)
    tool = ts.Frame(rail.frame_names[-1], position=torch.tensor([0.1, 0.0, 0.2], dtype=q.dtype))
    goal = torch.tensor([0.3, -0.2, 0.1], dtype=q.dtype)

    def forces(mech, q, qd):
        task = control.Task(tool, (None, goal))
        if law == "impedance":
            return control.impedance(mech, q, qd, [task], singular=("damped", 1e-3))
        asked = [control.frame_objective(mech, q, qd, task)]
        return control.whole_body_control(mech, q, qd, asked, iterations=2).tau

    expected = forces(rail, q, qd)
    step = torch.compile(lambda q, qd: forces(rail, q, qd), fullgraph=True, backend="eager")
    agree(step(q, qd), expected, 1e-12)
    agree(ts.fuse(forces, rail)(q, qd), expected, 1e-12)


def mechanism_of_two_slides() -> ts.Mechanism:
    builder = ts.MechanismBuilder("rail")
    for name, parent, axis in (("x", None, (1, 0, 0)), ("y", "x", (0, 1, 0))):
        builder.link(name, mass=1.0, inertia=torch.eye(3).tolist())
        builder.joint(f"to {name}", "prismatic", parent=parent, child=name, axis=axis)
    return builder.build()


def test_parameters_that_do_not_fit_are_refused():
    q, qd, *_ = normal_state(ARM, vectors=4)
    with pytest.raises(ts.ShapeError, match="ten parameters each"):
        control.adaptive_control(
            ARM, q, qd, torch.zeros(7, 9, dtype=q.dtype), q, qd, qd, slope=1, gain=1, adaptation=1
        )


def test_tasks_that_are_no_sequence_and_gains_that_are_no_pair_are_refused():
    q, qd, *_ = normal_state(ARM, vectors=4)
    task = control.Task(HAND, ts.frame_pose(ARM, q, HAND))
    with pytest.raises(ts.MechanismError, match=r"tasks was given as Task[^$]*Pass \[Task"):
        control.impedance(ARM, q, qd, task)
    with pytest.raises(ts.MechanismError, match=rf"the damping of the task for '{HAND}' is 5.0"):
        control.Task(HAND, (None, q[:3]), damping=5.0)
