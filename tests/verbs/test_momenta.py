"""Laws of the whole robot: center of mass, energies, momenta, forces in joints; Newton is the oracle."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.func import jacrev

import torchsko as ts
from tests import newton
from tests.newton import along, centers, moving
from tests.states import normal_state
from tests.strategies import ALL_KINDS, agree, any_mechanisms, random_mechanism, seeds
from torchsko.bridge.body_momenta import composite_momenta, joint_forces

any_mechanism = any_mechanisms(3, 3)


def forces(mech: ts.Mechanism, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed + 1)
    return torch.randn(mech.num_bodies, 6, generator=g, dtype=torch.float64)


def about_center(mech: ts.Mechanism, q: Tensor, at_origin: Tensor) -> Tensor:
    """A spatial momentum or force [moment; linear] at the inertial origin, at the center of mass."""
    c, (n, p) = ts.center_of_mass(mech, q), at_origin.split(3, -1)
    return torch.cat([n - torch.linalg.cross(c, p), p], -1)


# Center of mass.


@given(any_mechanism, seeds)
def test_the_center_of_mass_is_the_mean_of_the_bodies(mech, seed):
    q, *_ = normal_state(mech, seed=seed)
    mean = (mech.mass[:, None] * centers(mech, q)).sum(0) / mech.mass.sum()
    agree(ts.center_of_mass(mech, q), mean, 1e-13)


@given(any_mechanism, seeds)
def test_the_center_of_mass_moves_at_its_derivatives(mech, seed):
    q, qd, qdd = normal_state(mech, seed=seed)
    v, a = ts.com_velocity(mech, q, qd), ts.com_acceleration(mech, q, qd, qdd)
    agree(v, along(mech, q, qd, lambda q: ts.center_of_mass(mech, q)), 1e-12)
    agree(v, ts.com_jacobian(mech, q) @ qd, 1e-12)
    agree(a, moving(mech, q, qd, qdd, lambda q, qd: ts.com_velocity(mech, q, qd)), 1e-11)


# Energy.


@pytest.mark.shows(
    "Concurrent Dynamics 2018, Generalized Mass Matrix", "Eqs. 10 and 13", ts.kinetic_energy
)
@given(any_mechanism, seeds)
def test_kinetic_energy_is_that_of_newton_and_of_the_mass_matrix(mech, seed):
    q, qd, _ = normal_state(mech, seed=seed)
    energy = ts.kinetic_energy(mech, q, qd)
    tree = mech.tree
    agree(energy, newton.kinetic_energy(tree, ts.expand(mech, q), ts.expand_velocity(mech, q, qd)))
    agree(energy, qd @ ts.mass_matrix(mech, q) @ qd / 2, 1e-12)


@given(any_mechanism, seeds)
def test_potential_energy_is_that_of_newton(mech, seed):
    q, *_ = normal_state(mech, seed=seed)
    expected = newton.potential_energy(mech.tree, ts.expand(mech, q))
    agree(ts.potential_energy(mech, q), expected, 1e-12)


@given(any_mechanism, seeds)
def test_power_is_the_rate_of_energy_and_losses(mech, seed):
    q, qd, tau = normal_state(mech, seed=seed)
    qdd = ts.forward_dynamics(mech, q, qd, tau)

    def energy(q: Tensor, qd: Tensor) -> Tensor:
        return ts.kinetic_energy(mech, q, qd) + ts.potential_energy(mech, q)

    rate, tree_rates = moving(mech, q, qd, qdd, energy), ts.expand_velocity(mech, q, qd)
    losses = (mech.damping * tree_rates.square() + mech.friction * tree_rates.abs()).sum()
    agree(rate, qd @ tau - losses, 1e-9)


@given(any_mechanism, seeds)
def test_gravity_force_is_the_gradient_of_gravitys_potential(mech, seed):
    q, *_ = normal_state(mech, seed=seed)
    loose = mech.replace(stiffness=0 * mech.stiffness)
    still = torch.zeros(mech.num_dof, dtype=q.dtype)
    potential = lambda s: ts.potential_energy(loose, ts.integrate(mech, q, s))  # noqa: E731
    agree(ts.gravity_force(mech, q), jacrev(potential)(still), 1e-12)


def sprung(kind: str) -> tuple[float, ...]:
    """Stiffnesses under which springs of a joint have a potential."""
    return (2.0,) * 3 if kind == "spherical" else (1.0, 2.0, 3.0)


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if kind != "free"])
def test_springs_pull_down_the_slope_of_what_potential_energy_counts_of_them(kind):
    """Of all kinds that it is said of, balls equally stiff about every axis among them."""
    mech = random_mechanism([kind], [-1], seed=3, passive=False)
    stiffness = torch.tensor(sprung(kind)[: mech.num_dof], dtype=mech.dtype)
    mech = mech.replace(stiffness=stiffness, gravity=torch.zeros_like(mech.gravity))
    q, *_ = normal_state(mech)
    still = torch.zeros(mech.num_dof, dtype=q.dtype)
    slope = jacrev(lambda s: ts.potential_energy(mech, ts.integrate(mech, q, s)))(still)
    agree(slope, ts.passive_force(mech, q, still), 1e-12)


def test_potential_energy_is_zero_level_with_the_origin_and_springs_relaxed():
    mech = ts.MechanismBuilder("slider").link("box", mass=2.0)
    mech = mech.joint("rail", "prismatic", child="box", axis=(0.0, 0.0, 1.0)).build()
    sprung = mech.replace(
        stiffness=torch.tensor([3.0]).double(), spring_reference=torch.tensor([0.5]).double()
    )
    heights = torch.tensor([[0.0], [0.5]]).double()
    weight = 2.0 * 9.81
    assert torch.equal(ts.potential_energy(mech, heights), weight * heights[:, 0])
    expected = torch.tensor([3.0 * 0.5**2 / 2, weight * 0.5]).double()
    torch.testing.assert_close(ts.potential_energy(sprung, heights), expected)


# Momentum.


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 4.1", composite_momenta)
@given(any_mechanism, seeds)
def test_centroidal_momentum_is_newtons_and_its_matrix_times_qd(mech, seed):
    q, qd, _ = normal_state(mech, seed=seed)
    at_origin = newton.momentum(mech.tree, ts.expand(mech, q), ts.expand_velocity(mech, q, qd))
    h = ts.centroidal_momentum(mech, q, qd)
    agree(h, about_center(mech, q, at_origin), 1e-11)
    agree(h, ts.centroidal_momentum_matrix(mech, q) @ qd, 1e-11)


@given(st.lists(st.sampled_from([k for k in ALL_KINDS if k != "free"]), max_size=2), seeds)
def test_the_rate_of_momentum_of_a_floating_robot_is_the_wrench_of_weight_and_forces(kinds, seed):
    mech = random_mechanism(["free", *kinds], [-1, *range(len(kinds))], seed % 1000, passive=False)
    q, qd, tau = normal_state(mech, seed=seed)
    tau = torch.cat([torch.zeros(6, dtype=q.dtype), tau[6:]])
    f_ext = forces(mech, seed)
    qdd = ts.forward_dynamics(mech, q, qd, tau, f_ext)
    rate = moving(mech, q, qd, qdd, lambda q, qd: ts.centroidal_momentum(mech, q, qd))
    R, r = ts.forward_kinematics(mech, q)
    n, f = ((R @ x[..., None])[..., 0] for x in f_ext.split(3, -1))
    moment = n + torch.linalg.cross(r - ts.center_of_mass(mech, q), f)
    weight = mech.mass.sum() * mech.gravity
    agree(rate, torch.cat([moment.sum(0), f.sum(0) + weight]), 1e-10)


# Forces in joints.


def world_wrench(mech: ts.Mechanism, q: Tensor, wrench: Tensor) -> Tensor:
    """Wrenches on the bodies, in their frames, at the inertial origin."""
    R, r = ts.forward_kinematics(mech, q)
    n, f = ((R @ x[..., None])[..., 0] for x in wrench.split(3, -1))
    return torch.cat([n + torch.linalg.cross(r, f), f], -1)


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 3.1", ts.joint_wrenches, joint_forces)
@given(any_mechanism, seeds)
def test_joint_wrenches_balance_every_body(mech, seed):
    q, qd, qdd = normal_state(mech, seed=seed)
    f_ext = forces(mech, seed)
    at_joints = world_wrench(mech, q, ts.joint_wrenches(mech, q, qd, qdd, f_ext))
    weight = mech.mass[:, None] * mech.gravity
    moment = torch.linalg.cross(centers(mech, q), weight)
    given_force = world_wrench(mech, q, f_ext) + torch.cat([moment, weight], -1)

    def bodies(q: Tensor, qd: Tensor) -> Tensor:
        """Momentum of each body by Newton, at the inertial origin."""
        at, rate = centers(mech, q), along(mech, q, qd, lambda q: centers(mech, q))
        linear = mech.mass[:, None] * rate
        spin = (newton.inertias(mech, q) @ newton.spins(mech, q, qd)[..., None])[..., 0]
        return torch.cat([spin + torch.linalg.cross(at, linear), linear], -1)

    rates = moving(mech, q, qd, qdd, bodies)
    for k in range(mech.num_bodies):
        children = [j for j, p in enumerate(mech.parents) if p == k]
        total = at_joints[k] - at_joints[children].sum(0) + given_force[k]
        agree(total, rates[k], 1e-10)


@given(any_mechanism, seeds)
def test_joint_wrenches_along_the_freedoms_are_the_joint_forces(mech, seed):
    q, qd, qdd = normal_state(mech, seed=seed)
    f_ext = forces(mech, seed)
    wrench = ts.joint_wrenches(mech, q, qd, qdd, f_ext)
    # Of the tree, whose joints are all its own: H f, with H from the relative Jacobian of each body.
    tree, q_tree = mech.tree, ts.expand(mech, q)
    rates, accels = (ts.expand_velocity(mech, q, x) for x in (qd, qdd))
    tau = ts.inverse_dynamics(tree, q_tree, rates, accels, f_ext)
    tau = tau - ts.passive_force(tree, q_tree, rates) - tree.armature * accels
    for k, name in enumerate(tree.joint_names):
        own = tree.dof_slice(name)
        H = ts.frame_jacobian(tree, q_tree, tree.body_names[k])[:, own].mT
        agree(H @ wrench[k], tau[own], 1e-10)


def test_the_ground_carries_a_robot_at_rest():
    mech = random_mechanism(["revolute", "universal", "fixed"], [-1, 0, 0], seed=2)
    q, *_ = normal_state(mech)
    still = torch.zeros(mech.num_dof, dtype=q.dtype)
    base = world_wrench(mech, q, ts.joint_wrenches(mech, q, still, still))[0]
    weight = mech.mass.sum() * mech.gravity
    moment = torch.linalg.cross(ts.center_of_mass(mech, q), weight)
    agree(base, -torch.cat([moment, weight]), 1e-12)


# Batches.

CALLS = {
    "center_of_mass": lambda m, q, qd, qdd: ts.center_of_mass(m, q),
    "com_velocity": lambda m, q, qd, qdd: ts.com_velocity(m, q, qd),
    "com_acceleration": ts.com_acceleration,
    "com_jacobian": lambda m, q, qd, qdd: ts.com_jacobian(m, q),
    "kinetic_energy": lambda m, q, qd, qdd: ts.kinetic_energy(m, q, qd),
    "potential_energy": lambda m, q, qd, qdd: ts.potential_energy(m, q),
    "centroidal_momentum": lambda m, q, qd, qdd: ts.centroidal_momentum(m, q, qd),
    "centroidal_momentum_matrix": lambda m, q, qd, qdd: ts.centroidal_momentum_matrix(m, q),
    "gravity_force": lambda m, q, qd, qdd: ts.gravity_force(m, q),
    "joint_wrenches": ts.joint_wrenches,
}
COUPLED = random_mechanism(
    ["revolute", "universal", "revolute", "free"], [-1, 0, 1, 0], 3, True, couplings={2: {0: -1.5}}
)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_every_sample_is_computed_on_its_own(call):
    q, qd, qdd = normal_state(COUPLED, 2, 3, seed=5)
    g = torch.Generator().manual_seed(6)
    names = ("joint_position", "coupling_ratio", "coupling_offset", "mass", "com", "gravity")
    fields = {
        name: value * (1 + 0.1 * torch.rand(3, *value.shape, generator=g, dtype=value.dtype))
        for name in names
        for value in (getattr(COUPLED, name),)
    }
    found = call(COUPLED.replace(**fields), q, qd[0], qdd[:, :1])
    assert found.shape[:2] == (2, 3)
    for i in range(2):
        for k in range(3):
            mech = COUPLED.replace(**{name: value[k] for name, value in fields.items()})
            agree(found[i, k], call(mech, q[i, k], qd[0, k], qdd[i, 0]), 1e-13)
