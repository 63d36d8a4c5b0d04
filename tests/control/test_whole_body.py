"""Whole-body control satisfies dynamics and friction cones; quadratic programs satisfy the KKT conditions."""

from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.autograd import gradcheck
from torch.func import jacfwd, jacrev, jvp, vmap

import torchsko as ts
from tests.forms import in_form
from tests.strategies import agree, coupled_mechanisms, random_mechanism, seeds
from torchsko.control import (
    Contact,
    Task,
    com_objective,
    frame_objective,
    posture_objective,
    whole_body_control,
)
from torchsko.control.qp import QuadraticProgram, solve_qp
from torchsko.errors import MechanismError

sizes = st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(0, 8))
BOTH = pytest.mark.parametrize("scalar", [False, True])
"""By pivots, and as kernels do it."""
FEET = ["front_right_foot", "front_left_foot", "hind_right_foot", "hind_left_foot"]


def program(n, e, m, batch=(3,), seed=0):
    """A random program with a known feasible x, where some rows are active."""
    g = torch.Generator().manual_seed(seed)
    B, x = (torch.randn(*batch, n, k, generator=g, dtype=torch.float64) for k in (n, 1))
    A = torch.randn(*batch, min(e, n), n, generator=g, dtype=torch.float64)
    G = torch.randn(*batch, m, n, generator=g, dtype=torch.float64)
    room = torch.rand(*batch, m, generator=g, dtype=torch.float64)
    h = (G @ x)[..., 0] + torch.where(torch.arange(m) % 3 == 0, 0.1 * room, room)
    p = torch.randn(*batch, n, generator=g, dtype=torch.float64)
    eye = 0.1 * torch.eye(n, dtype=torch.float64)
    return QuadraticProgram(B @ B.mT + eye, 3 * p, A, (A @ x)[..., 0], G, h)


def meets_the_conditions(given, found, tolerance=1e-7):
    P, p, A, b, G, h = given
    x, y, z, _, residual = found
    slack = h - (G @ x[..., None])[..., 0]
    pulled = (P @ x[..., None])[..., 0] + p
    pulled = pulled + (A.mT @ y[..., None])[..., 0] + (G.mT @ z[..., None])[..., 0]
    scale = 1 + max([v.abs().max() for v in (x, y, z) if v.numel()])
    assert pulled.abs().max() < tolerance * scale
    assert ((A @ x[..., None])[..., 0] - b).abs().sum() < tolerance * scale
    if h.numel():
        assert slack.min() > -tolerance * scale and z.min() > -tolerance
        assert (slack * z).abs().max() < tolerance * scale
    assert (residual < 1e-8).all()


@BOTH
@given(sizes=sizes, batch=st.sampled_from([(), (3,), (2, 2)]), seed=seeds)
def test_a_solution_is_feasible_stationary_and_complementary(scalar, sizes, batch, seed):
    given = program(*sizes, batch, seed)
    meets_the_conditions(given, in_form(scalar, solve_qp)(given))


@BOTH
@pytest.mark.parametrize("heavy", [1e3, 1e6])
def test_an_objective_a_million_times_as_heavy_has_the_same_solution(heavy, scalar):
    """Multipliers scale with the objective."""
    given = program(6, 2, 8, (2, 3))
    found = in_form(scalar, solve_qp)(given)
    other = in_form(scalar, solve_qp)(given._replace(P=heavy * given.P, p=heavy * given.p))
    assert (other.residual < 1e-8).all()
    agree(other.x, found.x, 1e-7)
    agree(other.inequality_multipliers / heavy, found.inequality_multipliers, 1e-7)
    agree(other.equality_multipliers / heavy, found.equality_multipliers, 1e-7)


@BOTH
def test_equalities_may_repeat_and_bounds_may_be_none(scalar):
    given = program(5, 2, 4)
    A, b = torch.cat([given.A, given.A], -2), torch.cat([given.b, given.b], -1)
    h = torch.where(torch.arange(4) == 1, torch.inf, given.h)
    found = in_form(scalar, solve_qp)(given._replace(A=A, b=b, h=h))
    without = [0, 2, 3]
    alone = in_form(scalar, solve_qp)(given._replace(G=given.G[:, without], h=given.h[:, without]))
    agree(found.x, alone.x, 1e-7)
    assert not found.inequality_multipliers[:, 1].abs().gt(1e-7).any()


@BOTH
def test_a_point_is_projected_onto_a_pyramid_its_apex_and_the_face_where_it_lies_included(scalar):
    """More active bounds than unknowns at the apex; on the face the multiplier is zero."""
    rows = [[1.0, 0.0, -0.5], [-1.0, 0.0, -0.5], [0.0, 1.0, -0.5], [0.0, -1.0, -0.5]]
    points = [[0.1, 0.2, 1.0], [0.5, 0.1, 1.0], [0.3, -0.2, -9.0], [1.0, 0.0, 0.0]]
    nearest = [points[0], points[1], [0.0, 0.0, 0.0], [0.2, 0.0, 0.4]]
    eye, none = torch.eye(3).double(), torch.zeros(0, 3).double()
    p, G = -torch.tensor(points).double(), torch.tensor(rows).double()
    found = in_form(scalar, solve_qp)(QuadraticProgram(eye, p, none, none[:, 0], G, 0 * G[:, 0]))
    agree(found.x, torch.tensor(nearest).double(), 1e-8)
    off = torch.minimum(found.inequality_multipliers, -(found.x @ G.mT))
    assert off.abs().max() < 1e-8 and (found.residual < 1e-8).all()


@BOTH
def test_an_infeasible_program_is_flagged_and_changes_no_other_sample(scalar):
    given = program(3, 0, 2)
    G = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]]).double().expand(3, 2, 3)
    h = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0]]).double()
    found = in_form(scalar, solve_qp)(given._replace(G=G, h=h))
    assert found.residual[1] > 1e-2 and (found.residual[[0, 2]] < 1e-8).all()
    alone = solve_qp(QuadraticProgram(*(x[2] for x in given._replace(G=G, h=h))))
    agree(found.x[2], alone.x, 1e-10)


@BOTH
def test_a_bound_that_is_nan_is_flagged_and_changes_no_other_sample(scalar):
    given = program(3, 0, 2)
    h = given.h.clone()
    h[0, 0], h[1, 0] = torch.nan, torch.inf
    found = in_form(scalar, solve_qp)(given._replace(h=h))
    assert not found.residual[0] < 1e-2 and (found.residual[1:] < 1e-8).all()
    agree(found.x[2], solve_qp(QuadraticProgram(*(x[2] for x in given))).x, 1e-10)


@BOTH
def test_a_program_whose_conditions_lose_their_rank_ends_no_other(scalar):
    given = program(3, 2, 2, (2,))
    repeated = given.A.clone()
    repeated[0, 1] = repeated[0, 0]  # with inconsistent right-hand sides
    found = in_form(scalar, solve_qp)(given._replace(A=repeated), slack=0.0)
    alone = solve_qp(QuadraticProgram(*(x[1] for x in given)), slack=0.0)
    assert not found.residual[0] < 1e-2
    agree(found.x[1], alone.x, 1e-10)


@pytest.mark.nightly
def test_derivatives_are_those_of_the_solution_in_both_modes_and_under_vmap():
    given = program(4, 1, 5, (), 1)
    assert (solve_qp(given).inequality_multipliers > 1e-3).any()  # a bound is active
    leaves = [x.clone().requires_grad_() for x in given]

    def solution(P, *rest):
        return solve_qp(QuadraticProgram((P + P.mT) / 2, *rest)).x

    assert gradcheck(solution, leaves, check_forward_ad=True, eps=1e-4, atol=1e-4)
    several = program(4, 1, 5, (3,), 1)
    agree(vmap(lambda *x: solve_qp(QuadraticProgram(*x)).x)(*several), solve_qp(several).x, 1e-9)
    step = [torch.ones_like(x) for x in given]
    moved = jvp(solution, tuple(given), tuple(step))[1]
    near = 1e-6
    ends = [
        solution(*(x + s * near * d for x, d in zip(given, step, strict=True))) for s in (1, -1)
    ]
    agree(moved, (ends[0] - ends[1]) / (2 * near), 1e-4)


@pytest.mark.parametrize("derivative", [jacrev, jacfwd])
@pytest.mark.parametrize("several", [2, 3])
def test_derivatives_of_many_samples_by_vmap_are_those_of_each_alone(derivative, several):
    given = program(4, 1, 5, (several,), 1)

    def slope(*x):
        return derivative(lambda p: solve_qp(QuadraticProgram(x[0], p, *x[2:])).x)(x[1])

    alone = [slope(*(x[k] for x in given)) for k in range(several)]
    agree(
        vmap(slope)(*given), torch.stack(alone), 1e-5
    )  # slopes at an active bound have rounding errors of 1e-7


@pytest.fixture(scope="module")
def dog():
    mech = ts.load(ts.robots.quadruped, floating_base=True)
    return mech.replace(damping=0 * mech.damping, friction=0 * mech.friction)


def standing(mech, batch=(4,), seed=0):
    g = torch.Generator().manual_seed(seed)
    step = 0.1 * torch.randn(*batch, mech.num_dof, generator=g, dtype=torch.float64)
    q = ts.integrate(mech, mech.middle(), step)
    qd = 0.05 * torch.randn(*batch, mech.num_dof, generator=g, dtype=torch.float64)
    return q, qd


def commanded(mech, q, qd, ahead=0.0, contacts=None):
    target = ts.center_of_mass(mech, q).detach() + torch.tensor([ahead, 0.0, 0.0]).to(q)
    objectives = [com_objective(mech, q, qd, target), posture_objective(mech, q, qd, q.detach())]
    contacts = [Contact(foot) for foot in FEET] if contacts is None else contacts
    return whole_body_control(mech, q, qd, objectives, contacts)


def as_wrenches(mech, q, frames, forces):
    """Forces in inertial axes on frames, as `f_ext` of their bodies."""
    pose, f_ext = ts.forward_kinematics(mech, q), []
    at = ts.frame_pose(mech, q, frames).position
    for k in range(mech.num_bodies):
        R, r = pose.rotation[..., k, :, :], pose.position[..., k, :]
        here = [i for i, f in enumerate(frames) if mech.frame_body[mech.frame_index(f)] == k]
        force = sum((forces[..., i, :] for i in here), torch.zeros_like(r))
        moment = sum(
            (torch.linalg.cross(at[..., i, :] - r, forces[..., i, :]) for i in here),
            torch.zeros_like(r),
        )
        both = [(R.mT @ x[..., None])[..., 0] for x in (moment, force)]
        f_ext.append(torch.cat(both, -1))
    return torch.stack(f_ext, -2)


@pytest.mark.parametrize("ahead", [0.0, 0.05, 0.5])
def test_commanded_accelerations_are_reached_and_the_feet_stay(dog, ahead):
    q, qd = standing(dog)
    out = commanded(dog, q, qd, ahead)
    assert (out.residual < 1e-6).all()
    f_ext = as_wrenches(dog, q, FEET, out.forces)
    agree(ts.forward_dynamics(dog, q, qd, out.tau, f_ext), out.qdd, 1e-6)
    assert out.tau[..., :6].abs().max() < 1e-6  # the free joint is unactuated
    foot = ts.frame_acceleration(dog, q, qd, out.qdd, FEET, reference="mixed", classical=True)[
        ..., 3:
    ]
    sliding = ts.frame_velocity(dog, q, qd, FEET, reference="mixed")[..., 3:]
    assert (foot + 20 * sliding).abs().max() < 1e-6


@pytest.mark.parametrize("ahead", [0.0, 0.5, 5.0])
def test_forces_push_inside_their_cones_and_drives_keep_their_limits(dog, ahead):
    out = commanded(dog, *standing(dog), ahead)
    assert (out.residual < 1e-6).all()
    along = out.forces[..., :2].norm(dim=-1)
    assert (along <= 0.7 * out.forces[..., 2] + 1e-6).all()
    assert (out.tau.abs() <= dog.effort_limit + 1e-6).all()
    if ahead == 5.0:  # the objective exceeds the limits
        tight = (out.forces[..., 0].abs() - 0.7 / 2**0.5 * out.forces[..., 2]).abs() < 1e-5
        assert tight.any() or ((out.tau.abs() - dog.effort_limit).abs() < 1e-5).any()


def test_in_single_precision_forces_and_drives_keep_their_limits_too(dog):
    """Derivatives with effort limits and friction cones active."""
    single, there, both = dog.to(torch.float32), dog.middle(), []
    q, qd = standing(dog, (64,))
    for mech, state in ((dog, (q, qd, there)), (single, (q.float(), qd.float(), there.float()))):
        com = com_objective(mech, *state[:2], ts.center_of_mass(mech, state[2]))
        objectives = [com, posture_objective(mech, *state)]
        both.append(whole_body_control(mech, *state[:2], objectives, [Contact(f) for f in FEET]))
    exact, out = both
    assert (exact.residual < 1e-8).all() and (out.residual < 1e-3).all()
    assert (out.forces[..., :2].norm(dim=-1) <= 0.7 * out.forces[..., 2] + 0.01).all()
    assert (out.tau.abs() <= dog.effort_limit + 0.01).all()
    assert (out.tau - exact.tau).abs().max() < 0.02 * exact.tau.abs().max()


def test_an_unreachable_command_saturates_at_the_limits(dog):
    """Without the iterations that are left; they were at a residual of a thousand, as if there were nothing.

    In single precision drives were off by more than the largest of their forces.
    """
    q, qd = standing(dog)
    com = com_objective(dog, q, qd, ts.center_of_mass(dog, q) + 50.0)
    heavy = [com, posture_objective(dog, q, qd, q)]
    contacts = [Contact(foot) for foot in FEET]
    few, many = (whole_body_control(dog, q, qd, heavy, contacts, iterations=k) for k in (25, 90))
    assert (few.residual < 1e-8).all()
    agree(few.tau, many.tau, 1e-5)
    single = [x._replace(rows=x.rows.float(), desired=x.desired.float()) for x in heavy]
    out = whole_body_control(dog.to(torch.float32), q.float(), qd.float(), single, contacts)
    assert (out.residual < 1e-3).all()
    assert (out.tau - many.tau).abs().max() < 0.02 * many.tau.abs().max()


def test_forces_of_a_robot_that_stays_carry_its_weight(dog):
    q, qd = standing(dog)
    out = commanded(dog, q, 0 * qd)
    rate = ts.com_acceleration(dog, q, 0 * qd, out.qdd) - dog.gravity
    agree(out.forces.sum(-2), dog.mass.sum() * rate, 1e-7)
    still = (out.qdd.abs() < 1e-3).all(-1)
    assert still.any() and (out.forces.sum(-2)[still][:, 2] > 0.99 * 9.8 * dog.mass.sum()).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("length", [0.01, 0.001])
def test_a_quadruped_in_millimeters_has_the_same_solution(dog, length, dtype):
    """Regression: its equations of motion were below the tolerance, and nonphysical forces balanced it."""
    found = []
    for L in (1.0, length):
        per_length = {
            name: L * getattr(dog, name) for name in ("com", "joint_position", "frame_position")
        }
        m, I = L**3, L**5  # of one density
        mech = dog.replace(
            mass=m * dog.mass, inertia=I * dog.inertia, armature=I * dog.armature,
            effort_limit=m * L * dog.effort_limit, **per_length,
        ).to(dtype)  # fmt: skip
        q = mech.middle()
        posture = posture_objective(mech, q, 0 * q[..., 1:], q)
        com = com_objective(mech, q, 0 * q[..., 1:], ts.center_of_mass(mech, q))
        out = whole_body_control(
            mech, q, 0 * q[..., 1:], [com, posture], [Contact(f) for f in FEET]
        )
        weight = 9.81 * m * dog.mass.sum().to(dtype)
        found.append((out.forces / weight, out.tau / (weight * L)))
    (forces, tau), (forces_of_small, tau_of_small) = found
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(forces_of_small.sum(-2), forces.sum(-2), rtol=0, atol=tolerance)
    assert forces_of_small.sum(-2)[2] > 0.99
    assert (
        tau_of_small[:6].abs().max() < tolerance and tau_of_small.abs().max() < 2 * tau.abs().max()
    )


def test_a_slope_turns_the_cone(dog):
    c, s = 0.96, 0.28  # less steep than the pyramid's sides
    axes = torch.tensor([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]]).double()
    contacts = [Contact(foot, axes=axes) for foot in FEET]
    out = commanded(dog, *standing(dog), contacts=contacts)
    own = out.forces @ axes
    assert (out.residual < 1e-6).all()
    assert (own[..., :2].norm(dim=-1) <= 0.7 * own[..., 2] + 1e-6).all()


def test_a_flat_foot_that_turns_comes_to_rest_as_one_body():
    """Four contact points of a rotating body: the equations are consistent."""
    mech = ts.load(ts.robots.humanoid, floating_base=True)
    soles, corners = ("left_sole", "right_sole"), torch.tensor([0.1, 0.05, 0.0]).double()
    signs = torch.tensor([[1.0, 1, 1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1]]).double()
    contacts = [Contact(ts.Frame(f, position=s * corners)) for f in soles for s in signs]
    q, qd = standing(mech)
    given = mech.middle().expand_as(q), 5 * qd

    def found(q, qd):
        target = ts.center_of_mass(mech, mech.middle())
        asked = [com_objective(mech, q, qd, target), posture_objective(mech, q, qd, mech.middle())]
        return whole_body_control(mech, q, qd, asked, contacts)

    out = found(*given)
    assert (out.residual < 1e-9).all()
    feet = ts.frame_acceleration(mech, *given, out.qdd, soles, reference="mixed", classical=True)
    agree(feet, -20.0 * ts.frame_velocity(mech, *given, soles, reference="mixed"), 1e-8)
    slope = [x[0].clone().requires_grad_() for x in given]
    assert gradcheck(lambda *x: found(*x).tau, slope, fast_mode=True, rtol=1e-4, atol=1e-4)


def test_every_sample_may_have_a_friction_of_its_own_with_derivatives(dog):
    q, qd = standing(dog)
    friction = torch.tensor([0.3, 0.5, 0.7, 0.9], dtype=q.dtype)
    given = [x[:1].expand_as(x) for x in (q, qd)]
    out = commanded(dog, *given, 5.0, [Contact(f, friction) for f in FEET])
    for k, mu in enumerate(friction.tolist()):
        alone = commanded(dog, q[0], qd[0], 5.0, [Contact(f, mu) for f in FEET])
        agree(out.forces[k], alone.forces, 1e-7)
    assert (out.forces[:-1] - out.forces[1:]).abs().amax((-2, -1)).min() > 0.1

    def forces(friction):
        return commanded(dog, q[0], qd[0], 5.0, [Contact(f, friction) for f in FEET]).forces

    mu = friction[0].clone().requires_grad_()
    assert gradcheck(forces, (mu,), check_forward_ad=True, rtol=1e-4, atol=1e-4)


def test_every_sample_may_have_drives_of_its_own_in_one_state(dog):
    """Only the effort limits have a batch dimension."""
    q, qd = (x[0] for x in standing(dog))
    limits = dog.effort_limit * torch.tensor([[1.0], [0.1], [0.2]], dtype=q.dtype)
    out = commanded(dog.replace(effort_limit=limits), q, qd, 5.0)
    for k, limit in enumerate(limits):
        alone = commanded(dog.replace(effort_limit=limit), q, qd, 5.0)
        agree(out.tau[k], alone.tau, 1e-7)
    assert (out.residual < 1e-6).all()
    assert (out.tau[:-1] - out.tau[1:]).abs().amax(-1).min() > 0.1


def test_an_arm_without_contacts_does_what_computed_torque_does():
    arm = ts.load(ts.robots.panda)
    arm = arm.replace(effort_limit=torch.full_like(arm.effort_limit, torch.inf))
    q, qd = arm.random_state(3, generator=torch.Generator().manual_seed(0))
    there = arm.middle().expand_as(q)
    objective = posture_objective(arm, q, qd, there, gains=(50.0, 10.0), weight=1.0)
    out = whole_body_control(arm, q, qd, [objective])
    qdd = 50.0 * (there - q) - 10.0 * qd
    agree(out.qdd, qdd, 1e-5)
    agree(out.tau, ts.inverse_dynamics(arm, q, qd, qdd), 1e-5)
    assert out.forces.shape == (3, 0, 3)


@given(coupled_mechanisms(max_bodies=4), seeds)
def test_robots_with_coupled_joints_obey_their_equations(mech, seed):
    """Unactuated joints are named among the independent joints."""
    mech = mech.replace(effort_limit=torch.full_like(mech.effort_limit, torch.inf))
    q, qd = mech.random_state(2, generator=torch.Generator().manual_seed(seed))
    objective = posture_objective(mech, q, qd, q, gains=(50.0, 10.0), weight=1.0)
    out = whole_body_control(mech, q, qd, [objective])
    free = [k for n, k in zip(mech.joint_names, mech.joint_kinds, strict=True) if k == "free"]
    assert (out.residual < 1e-5).all()
    scale = 1.0 + float(out.tau.abs().max())
    agree(out.tau / scale, ts.inverse_dynamics(mech, q, qd, out.qdd) / scale, 1e-6)
    if not free:
        agree(out.qdd, -10.0 * qd, 1e-3)


def test_a_hand_has_the_acceleration_of_its_objective():
    arm = ts.load(ts.robots.panda)
    q, qd = arm.middle() + 0.1, 0.1 * torch.ones(7).double()
    hand, place = arm.frame_names[-1], torch.tensor([0.4, 0.1, 0.5]).double()
    objective = frame_objective(arm, q, qd, Task(hand, place, (0.0, 20.0), (0.0, 5.0)))
    out = whole_body_control(arm, q, qd, [objective, posture_objective(arm, q, qd, q, weight=1e-7)])
    at = ts.frame_pose(arm, q, hand).position
    v = ts.frame_velocity(arm, q, qd, hand, reference="mixed")[3:]
    a = ts.frame_acceleration(arm, q, qd, out.qdd, hand, reference="mixed", classical=True)[3:]
    agree(a, 20.0 * (place - at) - 5.0 * v, 1e-3)


def test_gradients_reach_states_and_parameters():
    mech = random_mechanism(["free", "revolute", "revolute"], [-1, 0, 0], seed=2, passive=False)
    foot, (q, qd) = ts.Frame(mech.body_names[1]), standing(mech, (), 3)

    def tau(q, qd, mass):
        robot = mech.replace(mass=mass)
        out = whole_body_control(
            robot, q, qd, [posture_objective(robot, q, qd, mech.middle())], [Contact(foot)]
        )
        return out.tau[6:], out.forces

    leaves = [x.detach().clone().requires_grad_() for x in (q, qd, mech.mass)]
    assert gradcheck(tau, leaves, eps=1e-4, atol=1e-6, rtol=1e-6)


def test_derivatives_where_forces_are_at_the_edge_of_cones_are_those_of_differences(dog):
    """The relaxation of dependent rows does not change the derivatives."""
    q, qd = standing(dog, (8,))
    way, by = torch.randn(2, *qd.shape, generator=torch.Generator().manual_seed(1)).to(qd)
    slope = jvp(lambda x: (commanded(dog, q, x, 0.5).tau * by).sum(-1), (qd,), (way,))[1]
    ends = [(commanded(dog, q, qd + s * way, 0.5).tau * by).sum(-1) for s in (1e-4, -1e-4)]
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-4, rtol=1e-6, atol=1e-6)


def kernel_is_the_law(law, mech, q, qd, tolerance):
    """Compare values and gradients of a kernel of a law with contacts to eager mode."""
    found, expected = ts.fuse(law, mech)(q, qd), law(mech, q, qd)
    assert (expected[2] < 1e-6).all() and (found[2] < 1e-6).all()
    g = torch.Generator().manual_seed(2)
    by = [torch.randn(x.shape, generator=g, dtype=x.dtype) for x in expected[:2]]
    slopes = [torch.autograd.grad(x[:2], (q, qd), by) for x in (found, expected)]
    for one, other in zip((*found[:2], *slopes[0]), (*expected[:2], *slopes[1]), strict=True):
        torch.testing.assert_close(
            one, other, rtol=0, atol=tolerance * float(other.detach().abs().max())
        )


@pytest.mark.nightly
@pytest.mark.parametrize("batch", [(), (2, 9)])
def test_a_law_with_contacts_is_one_kernel(batch):
    mech = random_mechanism(["free", "revolute", "revolute"], [-1, 0, 0], seed=2, passive=False)
    feet = [Contact(ts.Frame(mech.body_names[1]))]

    def law(mech, q, qd):
        asked = [posture_objective(mech, q, qd, mech.middle())]
        out = whole_body_control(mech, q, qd, asked, feet)
        return out.tau, out.forces, out.residual

    q, qd = (x.requires_grad_() for x in standing(mech, batch, 3))
    kernel_is_the_law(law, mech, q, qd, 1e-7)


@pytest.mark.nightly
@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_the_law_of_a_quadruped_is_one_kernel(dog, ahead):
    target = ts.center_of_mass(dog, dog.middle()) + torch.tensor([ahead, 0.0, 0.0]).double()

    def law(mech, q, qd):
        asked = [com_objective(mech, q, qd, target), posture_objective(mech, q, qd, dog.middle())]
        out = whole_body_control(mech, q, qd, asked, [Contact(foot) for foot in FEET])
        return out.tau, out.forces, out.residual

    q, qd = (x.requires_grad_() for x in standing(dog, (12,)))
    kernel_is_the_law(law, dog, q, qd, 1e-6)


@pytest.mark.nightly
def test_the_law_of_a_humanoid_on_the_corners_of_its_feet_is_one_kernel():
    pin = pytest.importorskip("pinocchio")  # example-robot-data installs beside it
    robots = Path(pin.__file__).parents[4] / "share" / "example-robot-data" / "robots"
    path = robots / "talos_data" / "robots" / "talos_reduced.urdf"
    mech = ts.load(path, floating_base=True)
    mech = mech.replace(damping=0 * mech.damping, friction=0 * mech.friction)
    corners = torch.tensor([[x, y, 0.0] for x in (-0.1, 0.1) for y in (-0.05, 0.05)]).double()
    soles = ["leg_left_6_link", "leg_right_6_link"]
    contacts = [
        Contact(ts.Frame(sole, torch.eye(3).double(), r)) for sole in soles for r in corners
    ]

    def law(mech, q, qd):
        asked = [
            com_objective(mech, q, qd, ts.center_of_mass(mech, q) + 0.02),
            posture_objective(mech, q, qd, mech.neutral()),
        ]
        out = whole_body_control(mech, q, qd, asked, contacts)
        return out.tau, out.forces, out.residual

    g = torch.Generator().manual_seed(0)
    q = ts.integrate(mech, mech.neutral(), 0.1 * torch.randn(9, 38, generator=g).double())
    qd = 0.05 * torch.randn(9, 38, generator=g).double()
    found, expected = ts.fuse(law, mech)(q, qd), law(mech, q, qd)
    assert (expected[2] < 1e-6).all() and (found[2] < 1e-6).all()
    for one, other in zip(found[:2], expected[:2], strict=True):
        agree(one, other, 1e-6)


def test_nothing_asked_for_and_what_is_no_sequence_are_refused(dog):
    q, qd = standing(dog)
    one = posture_objective(dog, q, qd, q)
    with pytest.raises(MechanismError, match="objectives is empty"):
        whole_body_control(dog, q, qd, [])
    with pytest.raises(MechanismError, match=r"objectives was given as Objective[^$]*Pass \["):
        whole_body_control(dog, q, qd, one)
    for contacts, said in (("hind_left_foot", "was given as str"), (FEET, "holds str")):
        with pytest.raises(MechanismError, match=rf"contacts {said}[^$]*Contact\(frame\)"):
            whole_body_control(dog, q, qd, [one], contacts)
