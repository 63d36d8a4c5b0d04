"""Laws of mechanics that hold for every mechanism: no other engine, no stored number."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.func import jacfwd, jacrev, jvp
from torch.testing import assert_close

import torchsko as ts
from tests.newton import along, centers, kinetic_energy, momentum, potential_energy, unskew
from tests.states import normal_state
from tests.strategies import ALL_KINDS, mechanisms, random_mechanism, seeds

VECTOR_KINDS = tuple(kind for kind in ALL_KINDS if kind not in ("spherical", "free"))


def forces(mech: ts.Mechanism, seed: int, batch: tuple[int, ...] = ()) -> Tensor:
    """An external force on every body."""
    g = torch.Generator().manual_seed(seed + 1)
    return torch.randn(*batch, mech.num_bodies, 6, generator=g, dtype=mech.dtype)


def without_passive(mech: ts.Mechanism) -> ts.Mechanism:
    zero = torch.zeros_like(mech.damping)
    return mech.replace(damping=zero, friction=zero, stiffness=zero)


@given(mechanisms(), seeds)
def test_the_mass_matrix_is_symmetric_positive_definite(mech, seed):
    M = ts.mass_matrix(mech, normal_state(mech, 2, seed=seed, vectors=3)[0])
    assert_close(M, M.mT, rtol=0, atol=0)
    assert torch.linalg.eigvalsh(M).min() > 0


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 3.1", ts.bias_force)
@given(mechanisms(), seeds)
def test_joint_force_is_mass_times_acceleration_plus_bias(mech, seed):
    q, qd, qdd, _ = normal_state(mech, 2, seed=seed, vectors=3)
    f_ext = forces(mech, seed, (2,))
    inertial = (ts.mass_matrix(mech, q) @ qdd[..., None])[..., 0]
    tau = ts.inverse_dynamics(mech, q, qd, qdd, f_ext)
    assert_close(tau, inertial + ts.bias_force(mech, q, qd, f_ext))


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 6.1", ts.forward_dynamics)
@given(mechanisms(), seeds)
def test_forward_dynamics_inverts_inverse_dynamics(mech, seed):
    q, qd, qdd, _ = normal_state(mech, 2, seed=seed, vectors=3)
    f_ext = forces(mech, seed, (2,))
    tau = ts.inverse_dynamics(mech, q, qd, qdd, f_ext)
    assert_close(ts.forward_dynamics(mech, q, qd, tau, f_ext), qdd)


@given(mechanisms(), seeds)
def test_the_mass_matrix_is_the_metric_of_kinetic_energy(mech, seed):
    q, qd, *_ = normal_state(mech, 2, seed=seed, vectors=3)
    quadratic = (qd[..., None, :] @ ts.mass_matrix(mech, q) @ qd[..., None])[..., 0, 0] / 2
    assert_close(quadratic, kinetic_energy(mech, q, qd))


@given(mechanisms(), seeds)
def test_diagonalized_rates_carry_the_kinetic_energy(mech, seed):
    q, qd, *_ = normal_state(mech, 2, seed=seed, vectors=3)
    rates = ts.innovations(ts.assemble(mech, q)).sqrt_transpose(qd)
    assert_close(rates.square().sum(-1) / 2, kinetic_energy(mech, q, qd))


@given(mechanisms(), seeds)
def test_power_in_is_the_rate_of_energy_plus_dissipation(mech, seed):
    q, qd, tau, _ = normal_state(mech, seed=seed, vectors=3)
    f_ext = forces(mech, seed)
    qdd = ts.forward_dynamics(mech, q, qd, tau, f_ext)

    def energy(t: Tensor) -> Tensor:
        q_t, qd_t = ts.integrate(mech, q, qd * t), qd + qdd * t
        return kinetic_energy(mech, q_t, qd_t) + potential_energy(mech, q_t)

    t = torch.zeros((), dtype=q.dtype)
    rate = jvp(energy, (t,), (torch.ones_like(t),))[1]
    velocity = (ts.frame_jacobian(mech, q, mech.body_names) @ qd[..., None])[..., 0]
    power = (qd * tau).sum() + (f_ext * velocity).sum()
    dissipation = (mech.damping * qd.square() + mech.friction * qd.abs()).sum()
    assert_close(rate, power - dissipation)


@given(mechanisms(), seeds)
def test_the_force_that_holds_a_robot_still_is_the_gradient_of_potential_energy(mech, seed):
    q, *_ = normal_state(mech, seed=seed, vectors=3)
    still = torch.zeros(mech.num_dof, dtype=q.dtype)
    gradient = jacrev(lambda s: potential_energy(mech, ts.integrate(mech, q, s)))(still)
    assert_close(ts.bias_force(mech, q, still), gradient)


def test_springs_about_every_axis_of_a_ball_joint_have_a_potential():
    mech = random_mechanism(["spherical", "revolute"], [-1, 0], seed=7)
    g = torch.Generator().manual_seed(8)
    reference, _ = mech.random_state(generator=g)
    stiffness = torch.tensor([2.0, 2.0, 2.0, 0.7], dtype=torch.float64)
    sprung = mech.replace(stiffness=stiffness, spring_reference=reference)
    q, _ = mech.random_state(generator=g)
    still = torch.zeros(mech.num_dof, dtype=q.dtype)
    gradient = jacrev(lambda s: potential_energy(sprung, ts.integrate(sprung, q, s)))(still)
    assert_close(ts.bias_force(sprung, q, still), gradient)


@st.composite
def vector_mechanisms(draw: st.DrawFn, kinds: tuple[str, ...] = VECTOR_KINDS) -> ts.Mechanism:
    """Trees of joints whose q is a vector, and qd its rate."""
    n = draw(st.integers(1, 4))
    kinds = [draw(st.sampled_from(kinds)) for _ in range(n)]
    parents = [-1] + [draw(st.integers(-1, k - 1)) for k in range(1, n)]
    return random_mechanism(kinds, parents, draw(seeds), draw(st.booleans()), passive=False)


@given(vector_mechanisms(), seeds)
def test_rate_of_mass_matrix_less_twice_coriolis_matrix_is_skew(mech, seed):
    q, qd, *_ = normal_state(mech, seed=seed, vectors=3)
    # Velocity forces are quadratic in qd, so half their derivative is the Christoffel matrix C(q, qd).
    C = jacfwd(lambda qd: ts.bias_force(mech, q, qd))(qd) / 2
    rate = jvp(lambda q: ts.mass_matrix(mech, q), (q,), (qd,))[1]
    skew = rate - 2 * C
    assert_close(skew, -skew.mT)


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 3.1", ts.inverse_dynamics)
@given(vector_mechanisms(), seeds)
def test_equations_of_motion_are_those_of_lagrange(mech, seed):
    q, qd, qdd, _ = normal_state(mech, seed=seed, vectors=3)

    def lagrangian(q: Tensor, qd: Tensor) -> Tensor:
        return kinetic_energy(mech, q, qd) - potential_energy(mech, q)

    by_q, by_qd = jacrev(lagrangian, 0), jacrev(lagrangian, 1)
    rate = jvp(by_qd, (q, qd), (qd, qdd))[1]
    assert_close(ts.inverse_dynamics(mech, q, qd, qdd), rate - by_q(q, qd))


@given(mechanisms(), seeds)
def test_an_external_force_acts_through_the_jacobian_of_its_body(mech, seed):
    q, qd, qdd, _ = normal_state(mech, seed=seed, vectors=3)
    f_ext = forces(mech, seed)
    without = ts.inverse_dynamics(mech, q, qd, qdd)
    J = ts.frame_jacobian(mech, q, mech.body_names)
    carried = (J.mT @ f_ext[..., None]).sum(-3)[..., 0]
    assert_close(ts.inverse_dynamics(mech, q, qd, qdd, f_ext), without - carried)


@pytest.mark.shows("Concurrent Dynamics 2018, Generalized Mass Matrix", "Eq. 7", ts.frame_jacobian)
@given(mechanisms(), seeds)
def test_the_frame_jacobian_is_the_derivative_of_the_frame_pose(mech, seed):
    q, qd, *_ = normal_state(mech, seed=seed, vectors=3)
    pose = ts.frame_pose(mech, q, mech.frame_names)
    R_dot = along(mech, q, qd, lambda q: ts.frame_pose(mech, q, mech.frame_names).rotation)
    r_dot = along(mech, q, qd, lambda q: ts.frame_pose(mech, q, mech.frame_names).position)
    omega = unskew(pose.rotation.mT @ R_dot)
    v = (pose.rotation.mT @ r_dot[..., None])[..., 0]
    J = ts.frame_jacobian(mech, q, mech.frame_names)
    assert_close((J @ qd[..., None])[..., 0], torch.cat([omega, v], -1))


@st.composite
def floating_mechanisms(draw: st.DrawFn) -> ts.Mechanism:
    """A tree of any joints on one free base; the base joint itself is frictionless."""
    n = draw(st.integers(1, 4))
    kinds = ["free"] + [draw(st.sampled_from([k for k in ALL_KINDS if k != "free"]))] * (n - 1)
    parents = [-1] + [draw(st.integers(0, k - 1)) for k in range(1, n)]
    mech = random_mechanism(kinds, parents, draw(seeds))
    on_base = torch.arange(mech.num_dof) < 6
    return mech.replace(
        damping=mech.damping.masked_fill(on_base, 0), friction=mech.friction.masked_fill(on_base, 0)
    )


@given(floating_mechanisms(), seeds)
def test_internal_forces_leave_momentum_to_gravity(mech, seed):
    q, qd, tau, _ = normal_state(mech, seed=seed, vectors=3)
    tau = torch.cat([torch.zeros(6, dtype=q.dtype), tau[6:]])
    qdd = ts.forward_dynamics(mech, q, qd, tau)

    def at(t: Tensor) -> Tensor:
        return momentum(mech, ts.integrate(mech, q, qd * t), qd + qdd * t)

    t = torch.zeros((), dtype=q.dtype)
    weight = mech.mass[..., None] * mech.gravity
    moment = torch.linalg.cross(centers(mech, q), weight)
    rate = jvp(at, (t,), (torch.ones_like(t),))[1]
    assert_close(rate, torch.cat([moment, weight], -1).sum(0))


@given(mechanisms(), seeds)
def test_dynamics_do_not_depend_on_where_the_inertial_frame_is(mech, seed):
    q, qd, qdd, _ = normal_state(mech, seed=seed, vectors=3)
    g = torch.Generator().manual_seed(seed)
    W = torch.randn(3, 3, generator=g, dtype=q.dtype)
    turn, shift = torch.linalg.matrix_exp(W - W.mT), torch.randn(3, generator=g, dtype=q.dtype)
    at_base = torch.tensor([p < 0 for p in mech.parents])
    turned = torch.where(at_base[:, None, None], turn @ mech.joint_rotation, mech.joint_rotation)
    placed = (turn @ mech.joint_position[..., None])[..., 0] + shift
    moved = mech.replace(
        joint_rotation=turned,
        joint_position=torch.where(at_base[:, None], placed, mech.joint_position),
        gravity=turn @ mech.gravity,
    )
    assert_close(ts.inverse_dynamics(moved, q, qd, qdd), ts.inverse_dynamics(mech, q, qd, qdd))


@given(vector_mechanisms(("revolute", "prismatic", "helical")), seeds)
def test_reversing_an_axis_reverses_its_coordinate_and_its_force(mech, seed):
    q, qd, qdd, _ = normal_state(mech, seed=seed, vectors=3)
    sign = torch.where(torch.arange(mech.num_dof) % 2 == 0, -1.0, 1.0).to(q.dtype)
    reversed_ = mech.replace(axis=mech.axis * sign[:, None])
    tau = ts.inverse_dynamics(reversed_, sign * q, sign * qd, sign * qdd)
    assert_close(tau, sign * ts.inverse_dynamics(mech, q, qd, qdd))


@given(mechanisms(), seeds)
def test_gravity_acts_like_an_accelerated_inertial_frame(mech, seed):
    """Weightless and pushed with m g at each center of mass, a robot moves as under gravity."""
    q, qd, tau, _ = normal_state(mech, seed=seed, vectors=3)
    R = ts.forward_kinematics(mech, q).rotation
    force = (R.mT @ (mech.mass[:, None] * mech.gravity)[..., None])[..., 0]
    f_ext = torch.cat([torch.linalg.cross(mech.com, force), force], -1)
    weightless = mech.replace(gravity=torch.zeros(3, dtype=q.dtype))
    assert_close(
        ts.forward_dynamics(weightless, q, qd, tau, f_ext), ts.forward_dynamics(mech, q, qd, tau)
    )


@given(mechanisms(), seeds)
def test_passive_forces_take_energy_out_or_store_it(mech, seed):
    q, qd, *_ = normal_state(mech, seed=seed, vectors=3)
    loss = mech.damping * qd.square() + mech.friction * qd.abs()
    stored = along(mech, q, qd, lambda q: potential_energy(mech, q) - potential_energy(
        mech.replace(stiffness=torch.zeros_like(mech.stiffness)), q))  # fmt: skip
    assert_close((ts.passive_force(mech, q, qd) * qd).sum(), loss.sum() + stored)
    active = ts.bias_force(mech, q, qd) - ts.bias_force(without_passive(mech), q, qd)
    # The armature of free joints stays: its force is part of the passive forces without power.
    passive = ts.passive_force(mech, q, qd) - ts.passive_force(without_passive(mech), q, qd)
    assert_close(active, passive)
