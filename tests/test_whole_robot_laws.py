"""Laws of the whole robot: where power goes, what is frozen, what wrenches and joints are linear in."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.func import jacrev, jvp, vmap

import torchsko as ts
from tests.states import normal_state
from tests.strategies import (
    ALL_KINDS,
    BATCHES,
    agree,
    any_mechanisms,
    flexible_mechanisms,
    mechanisms,
    random_mechanism,
    seeds,
)
from torchsko.bridge.body_momenta import composite_inertias_of

robots = any_mechanisms(4, 4) | flexible_mechanisms()
references = st.sampled_from(["body", "world", "mixed"])


def along(function, mech, q, qd, qdd):
    """Rate of a function of (q, qd) along a motion."""

    def at(t: Tensor):
        return function(ts.integrate(mech, q, t * qd), qd + t * qdd)

    zero = torch.zeros((), dtype=q.dtype)
    return jvp(at, (zero,), (torch.ones_like(zero),))[1]


def summed(Y, parameters):
    return (Y * parameters).sum((-2, -1))


@given(robots, st.sampled_from(BATCHES), seeds)
def test_energy_changes_by_what_is_given_less_what_is_lost(mech, batch, seed):
    q, qd, tau, f_ext = normal_state(mech, *batch, seed=seed, wrench=True)
    power = ts.power_balance(mech, q, qd, tau, f_ext)
    agree(power.kinetic + power.potential, power.drives + power.external - power.losses, 1e-9)
    assert (power.losses >= 0).all()


@given(robots, seeds)
def test_parts_of_the_power_balance_are_rates_of_the_energies(mech, seed):
    """Of the potential without springs, which balls may have that are no potential's."""
    mech = mech.replace(stiffness=torch.zeros_like(mech.stiffness))
    q, qd, tau, f_ext = normal_state(mech, seed=seed, wrench=True)
    qdd = ts.forward_dynamics(mech, q, qd, tau, f_ext)
    power = ts.power_balance(mech, q, qd, tau, f_ext)
    rates = {
        "kinetic": along(lambda q, qd: ts.kinetic_energy(mech, q, qd), mech, q, qd, qdd),
        "potential": along(lambda q, qd: ts.potential_energy(mech, q), mech, q, qd, qdd),
    }
    total = along(lambda q, qd: ts.total_energy(mech, q, qd), mech, q, qd, qdd)
    scale = sum(x.abs() for x in power) + 1
    for name, rate in rates.items():
        assert (getattr(power, name) - rate).abs() < 1e-9 * scale
    assert (total - rates["kinetic"] - rates["potential"]).abs() < 1e-9 * scale


@given(robots, st.sampled_from(BATCHES), seeds)
def test_passive_force_is_the_sum_of_its_parts(mech, batch, seed):
    q, qd, *_ = normal_state(mech, *batch, seed=seed)
    parts = ts.passive_force_parts(mech, q, qd)
    agree(sum(parts), ts.passive_force(mech, q, qd), 1e-12)
    none = torch.zeros_like(mech.friction)
    modal = torch.zeros_like(mech.modal_damping)
    lossless = mech.replace(damping=none, friction=none, modal_damping=modal)
    agree(parts.springs + parts.armature, ts.passive_force(lossless, q, qd), 1e-12)


@pytest.mark.shows(
    "Jain 2011, Part II", "Algorithm 4.1", ts.composite_inertias, composite_inertias_of
)
@given(robots, st.sampled_from(BATCHES), seeds)
def test_composite_and_centroidal_inertias_are_those_of_the_locked_robot(mech, batch, seed):
    """A composite inertia is that of the bodies outboard: its momentum at any one twist is their sum."""
    q, *_ = normal_state(mech, *batch, seed=seed)
    R, M = ts.composite_inertias(mech, q), ts.centroidal_inertia(mech, q)
    agree(R[..., 5, 5], ts.subtree_masses(mech).expand(R.shape[:-2]), 1e-12)
    pose, total = ts.forward_kinematics(mech, q), torch.zeros(3, dtype=q.dtype)
    for k, parent in enumerate(mech.parents):
        moment = torch.stack([R[..., k, 2, 4], R[..., k, 0, 5], R[..., k, 1, 3]], -1)
        turned = (pose.rotation[..., k, :, :] @ moment[..., None])[..., 0]
        if parent < 0:
            total = total + turned + R[..., k, 5, 5, None] * pose.position[..., k, :]
    mass = mech.mass.sum(-1)
    agree(total / mass, ts.center_of_mass(mech, q), 1e-9)
    blocks = torch.eye(3, dtype=q.dtype) * mass
    agree(M[..., 3:, 3:], blocks.expand(M[..., 3:, 3:].shape), 1e-9)
    assert (M[..., :3, 3:].abs() < 1e-9 * M.abs().amax()).all()


@given(mechanisms(kinds=("free",), max_bodies=1), seeds)
def test_of_a_free_body_the_centroidal_inertia_takes_its_twist_to_its_momentum(mech, seed):
    q, qd, *_ = normal_state(mech, seed=seed)
    spin = ts.frame_velocity(mech, q, qd, mech.body_names[0], reference="mixed")[:3]
    twist = torch.cat([spin, ts.com_velocity(mech, q, qd)])
    agree(ts.centroidal_inertia(mech, q) @ twist, ts.centroidal_momentum(mech, q, qd), 1e-10)


@given(mechanisms(kinds=tuple({*ALL_KINDS} - {"spherical", "free"})), seeds)
def test_christoffel_symbols_are_derivatives_of_the_mass_matrix_where_q_is_a_vector(mech, seed):
    q, *_ = normal_state(mech, 3, seed=seed)
    dM = vmap(jacrev(lambda q: ts.mass_matrix(mech, q)))(q)
    expected = (dM + dM.transpose(-1, -2) - dM.movedim(-1, 1)) / 2
    agree(ts.christoffel_symbols(mech, q), expected, 1e-10)


@given(robots, st.sampled_from(BATCHES), seeds)
def test_christoffel_symbols_give_the_coriolis_matrix_of_every_velocity(mech, batch, seed):
    q, qd, *_ = normal_state(mech, *batch, seed=seed)
    symbols = ts.christoffel_symbols(mech, q)
    agree((symbols * qd[..., None, None, :]).sum(-1), ts.coriolis_matrix(mech, q, qd), 1e-10)


def test_symbols_of_a_batch_of_robots_are_those_of_each():
    mech = ts.load(ts.robots.panda)
    mass = mech.mass * torch.tensor([[1.0], [2.0]]).double()
    q, _ = mech.random_state()
    both = ts.christoffel_symbols(mech.replace(mass=mass), q)
    for k in range(2):
        agree(both[k], ts.christoffel_symbols(mech.replace(mass=mass[k]), q), 1e-12)


@given(robots, st.sampled_from(BATCHES), seeds)
def test_wrenches_of_joints_are_linear_in_inertial_parameters(mech, batch, seed):
    q, qd, qdd = normal_state(mech, *batch, seed=seed)
    frames = list(mech.body_names)
    Y = ts.wrench_regressor(mech, q, qd, qdd, frames)
    found = summed(Y, ts.inertial_parameters(mech)[..., None, None, :, :])
    agree(found, ts.joint_wrenches(mech, q, qd, qdd), 1e-9)


@given(robots, seeds, references)
def test_wrenches_have_equal_power_in_every_reference(mech, seed, reference):
    """Its power on the frame's velocity is the same in every reference."""
    q, qd, qdd = normal_state(mech, 2, seed=seed)
    frame, phi = mech.frame_names[-1], ts.inertial_parameters(mech)
    wrench = summed(ts.wrench_regressor(mech, q, qd, qdd, frame, reference=reference), phi)
    own = summed(ts.wrench_regressor(mech, q, qd, qdd, frame), phi)
    power = (wrench * ts.frame_velocity(mech, q, qd, frame, reference=reference)).sum(-1)
    agree(power, (own * ts.frame_velocity(mech, q, qd, frame)).sum(-1), 1e-9)


def test_the_ground_exerts_the_rate_of_momentum_less_the_weight():
    mech = ts.load(ts.robots.panda)
    ground = next(f for f, k in zip(mech.frame_names, mech.frame_body, strict=True) if k < 0)
    q, qd, qdd = normal_state(mech, 4)
    Y = ts.wrench_regressor(mech, q, qd, qdd, ground, reference="world")
    force = summed(Y, ts.inertial_parameters(mech))[..., 3:]
    rate = mech.mass.sum() * ts.com_acceleration(mech, q, qd, qdd)
    # The base link is welded to the ground: its weight rests on it, and is none of the bodies'.
    agree(force, rate - mech.mass.sum() * mech.gravity, 1e-9)


@given(robots, st.sampled_from(BATCHES), seeds)
def test_both_regressors_together_are_inverse_dynamics(mech, batch, seed):
    """Apart from forces of modal coordinates, which have no columns."""
    none = {x: torch.zeros_like(getattr(mech, x)) for x in ("modal_stiffness", "modal_damping")}
    mech = mech.replace(**none)
    q, qd, qdd = normal_state(mech, *batch, seed=seed)
    bodies = summed(ts.torque_regressor(mech, q, qd, qdd), ts.inertial_parameters(mech)[None])
    drives = summed(ts.friction_regressor(mech, q, qd, qdd), ts.friction_parameters(mech)[None])
    agree(bodies + drives, ts.inverse_dynamics(mech, q, qd, qdd), 1e-9)


@given(mechanisms(max_bodies=4), seeds, references, st.booleans())
def test_frames_derivatives_are_those_of_their_motion(mech, seed, reference, classical):
    q, qd, qdd = normal_state(mech, seed=seed)
    zero, frames = torch.zeros_like(qd), mech.frame_names[-2:]
    moved = lambda step: ts.integrate(mech, q, step)  # noqa: E731
    expected = jacrev(
        lambda s, u: ts.frame_velocity(mech, moved(s), u, frames, reference=reference), (0, 1)
    )(zero, qd)
    for mine, theirs in zip(
        ts.frame_velocity_derivatives(mech, q, qd, frames, reference=reference),
        expected,
        strict=True,
    ):
        agree(mine, theirs, 1e-9)
    expected = jacrev(
        lambda s, u, a: ts.frame_acceleration(
            mech, moved(s), u, a, frames, reference=reference, classical=classical
        ),
        (0, 1, 2),
    )(zero, qd, qdd)
    found = ts.frame_acceleration_derivatives(
        mech, q, qd, qdd, frames, reference=reference, classical=classical
    )
    for mine, theirs in zip(found, expected, strict=True):
        agree(mine, theirs, 1e-9)


@given(robots, st.sampled_from(BATCHES), seeds)
def test_centroidal_derivatives_are_those_of_momentum_and_its_rate(mech, batch, seed):
    q, qd, qdd = normal_state(mech, *batch, seed=seed)

    def momentum(step, q, qd, qdd):
        return ts.centroidal_momentum(mech, ts.integrate(mech, q, step), qd)

    def rate(step, q, qd, qdd):
        return ts.centroidal_momentum_rate(mech, ts.integrate(mech, q, step), qd, qdd)

    first, second = jacrev(momentum), jacrev(rate, (0, 2, 3))
    for _ in batch:
        first, second = vmap(first), vmap(second)
    at = (torch.zeros_like(qd), q, qd, qdd)
    found = ts.centroidal_derivatives(mech, q, qd, qdd)
    for mine, theirs in zip(found, (first(*at), *second(*at)), strict=True):
        agree(mine, theirs, 1e-9)


@pytest.mark.some(2)
@pytest.mark.parametrize("reference", ["body", "world", "mixed"])
@given(mechanisms(max_bodies=4), seeds)
def test_rates_relative_to_a_moving_frame_are_those_of_what_it_sees(reference, mech, seed):
    q, qd, qdd = normal_state(mech, seed=seed)
    frame, base = mech.body_names[-1], mech.body_names[0]
    J = along(
        lambda q, _: ts.frame_jacobian(mech, q, frame, relative_to=base, reference=reference),
        mech,
        q,
        qd,
        qdd,
    )
    found = ts.frame_jacobian_rate(mech, q, qd, frame, relative_to=base, reference=reference)
    assert (found - J).abs().max() < 1e-9 * (1 + J.abs().max())
    V = along(
        lambda q, qd: ts.frame_velocity(mech, q, qd, frame, relative_to=base, reference=reference),
        mech,
        q,
        qd,
        qdd,
    )
    classical = reference == "mixed"
    found = ts.frame_acceleration(
        mech, q, qd, qdd, frame, relative_to=base, reference=reference, classical=classical
    )
    assert (found - V).abs().max() < 1e-9 * (1 + V.abs().max())


WHAT_MAY_BE_CONSTANT = {
    "composite_inertias": lambda m, q, v: (ts.composite_inertias(m, q),),
    "christoffel_symbols": lambda m, q, v: (ts.christoffel_symbols(m, q),),
    "passive_force_parts": ts.passive_force_parts,
    "inverse_dynamics_derivatives": lambda m, q, v: ts.inverse_dynamics_derivatives(m, q, v, v),
    "frame_velocity_derivatives": lambda m, q, v: ts.frame_velocity_derivatives(m, q, v, "body0"),
    "frame_acceleration_derivatives": lambda m, q, v: ts.frame_acceleration_derivatives(
        m, q, v, v, "body0"
    ),
}


@pytest.mark.parametrize("call", WHAT_MAY_BE_CONSTANT.values(), ids=WHAT_MAY_BE_CONSTANT.keys())
@pytest.mark.parametrize("kind", ["free", "prismatic"])
def test_results_that_are_equal_for_all_samples_have_the_batch_shape(call, kind):
    """A single body, of which much is the same in all configurations and whatever its damping."""
    mech = random_mechanism([kind], [-1], 1)
    q, qd = mech.random_state(2, 3)
    of_one = call(mech, q[0, 0], qd[0, 0])
    for x, one in zip(call(mech, q, qd[0, 0]), of_one, strict=True):
        assert x.shape == (2, 3, *one.shape)
    damped = mech.replace(damping=mech.damping * torch.ones(3, 1, dtype=q.dtype))
    found = call(damped, q[0, 0], qd[0, 0])
    assert len({x.shape[: x.ndim - one.ndim] for x, one in zip(found, of_one, strict=True)}) == 1
    for x, one in zip(found, of_one, strict=True):
        assert x.shape in (one.shape, (3, *one.shape))
        agree(x, one.expand_as(x), 1e-12)
