"""Subtrees, the rate of centroidal momentum, the zero-moment point, regressors of energies and momentum."""

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

import torchsko as ts
from tests.newton import along, centers, moving
from tests.states import normal_state
from tests.strategies import agree, any_mechanisms, mechanisms, random_mechanism, seeds

any_mechanism = any_mechanisms(4, 4)


@given(any_mechanism, seeds)
def test_a_subtree_is_a_body_and_all_that_it_carries(mech, seed):
    q, *_ = normal_state(mech, seed=seed)
    at, masses, found = centers(mech, q), ts.subtree_masses(mech), ts.subtree_centers(mech, q)
    for k in range(mech.num_bodies):
        carried = [j for j in range(mech.num_bodies) if j == k or carries(mech, k, j)]
        mass = mech.mass[carried]
        agree(masses[k][None, None], mass.sum()[None, None], 1e-13)
        agree(found[k][None], (mass @ at[carried] / mass.sum())[None], 1e-12)


def test_a_rotor_has_no_center_and_spoils_no_gradient_of_the_others():
    """Zero by zero of the rotor's own made all gradients nan."""
    found = []
    for rotor in (False, True):
        builder = ts.MechanismBuilder("arm")
        for k, parent in enumerate((None, "link 0")):
            builder.link(
                f"link {k}",
                mass=1.0,
                com=[0.1, 0, 0],
                inertia=[[0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]],
            )
            builder.joint(
                f"j{k}", "revolute", parent=parent, child=f"link {k}", position=[0.2, 0, 0]
            )
        mech = (builder.rotor("j1", ratio=50.0, inertia=1e-5) if rotor else builder).build()
        q = torch.tensor([0.3, 0.4], dtype=torch.float64, requires_grad=True)
        mass = mech.mass.clone().requires_grad_()
        centers = ts.subtree_centers(mech.replace(mass=mass), q)
        assert centers.isnan().any() == rotor
        at_q, at_mass = torch.autograd.grad(centers[:2].square().sum(), (q, mass))
        found.append(torch.cat([at_q, at_mass[:2]]))
    torch.testing.assert_close(found[1], found[0])


def carries(mech: ts.Mechanism, body: int, other: int) -> bool:
    while other >= 0:
        other = mech.parents[other]
        if other == body:
            return True
    return False


@given(any_mechanism, seeds)
def test_the_rates_are_derivatives_of_momentum_and_of_its_matrix(mech, seed):
    q, qd, qdd = normal_state(mech, seed=seed)
    rate = ts.centroidal_momentum_rate(mech, q, qd, qdd)
    expected = moving(mech, q, qd, qdd, lambda q, qd: ts.centroidal_momentum(mech, q, qd))
    agree(rate[None], expected[None], 1e-10)
    change = along(mech, q, qd, lambda q: ts.centroidal_momentum_matrix(mech, q))
    found = ts.centroidal_momentum_matrix_rate(mech, q, qd)
    agree(found, change, 1e-10)
    bias = ts.centroidal_momentum_rate(mech, q, qd, 0 * qdd)
    agree(bias[None], (found @ qd)[None], 1e-11)


@given(mechanisms(max_bodies=4), seeds)
def test_about_the_zero_moment_point_the_ground_has_no_tipping_moment(mech, seed):
    """The ground's forces are what the joints of base bodies transmit, at the inertial origin."""
    q, qd, qdd = normal_state(mech, seed=seed)
    height = 0.3
    point = ts.zero_moment_point(mech, q, qd, qdd, height=height)
    wrenches = ts.joint_wrenches(mech, q, qd, qdd)
    pose = ts.forward_kinematics(mech, q)
    moment = force = torch.zeros(3, dtype=q.dtype)
    for k, p in enumerate(mech.parents):
        if p < 0:
            n, f = (pose.rotation[k] @ x for x in wrenches[k].split(3))
            force = force + f
            moment = moment + n + torch.linalg.cross(pose.position[k] - point, f)
    assert abs(float(point[2]) - height) < 1e-12 * (1 + float(point.abs().max()))
    agree(moment[None, :2], 0 * moment[None, :2], 1e-9 * (1 + float(point.abs().max())))


def test_at_rest_the_zero_moment_point_is_below_the_center_of_mass():
    mech = random_mechanism(["free", "revolute"], [-1, 0], seed=1)
    q, *_ = normal_state(mech, 3, seed=2)
    zero = torch.zeros(3, mech.num_dof, dtype=q.dtype)
    raised = ts.zero_moment_point(
        mech, q, zero, zero, height=np.float32(0.25)
    )  # a number of numpy is one
    assert torch.equal(raised, ts.zero_moment_point(mech, q, zero, zero, height=0.25))
    agree(
        ts.zero_moment_point(mech, q, zero, zero)[:, :2], ts.center_of_mass(mech, q)[:, :2], 1e-13
    )


# Regressors.


def product(regressor: Tensor, mech: ts.Mechanism) -> Tensor:
    return (regressor * ts.inertial_parameters(mech)).sum((-2, -1))


@given(any_mechanism, seeds)
def test_energies_and_momenta_are_linear_in_the_inertial_parameters(mech, seed):
    q, qd, _ = normal_state(mech, seed=seed)
    bare = mech.replace(
        armature=torch.zeros_like(mech.armature), stiffness=torch.zeros_like(mech.stiffness)
    )
    kinetic = product(ts.kinetic_energy_regressor(mech, q, qd), mech)
    agree(kinetic[None, None], ts.kinetic_energy(bare, q, qd)[None, None], 1e-11)
    potential = product(ts.potential_energy_regressor(mech, q), mech)
    agree(potential[None, None], ts.potential_energy(bare, q)[None, None], 1e-11)
    momentum = product(ts.momentum_regressor(mech, q, qd), mech)
    agree(momentum[None], (ts.mass_matrix(bare, q) @ qd)[None], 1e-11)


# Manipulability.


def test_the_manipulability_of_two_links_is_the_area_that_they_span():
    """Yoshikawa's planar arm: l1 l2 |sin q2|."""
    builder = ts.MechanismBuilder("planar")
    builder.link("upper", mass=1.0).link("lower", mass=1.0).link("tip", mass=1.0)
    builder.joint("shoulder", "revolute", child="upper")
    builder.joint("elbow", "revolute", parent="upper", child="lower", position=(0.7, 0.0, 0.0))
    builder.joint("end", "fixed", parent="lower", child="tip", position=(0.4, 0.0, 0.0))
    mech = builder.build()
    q, *_ = normal_state(mech, 6, seed=1)
    found = ts.manipulability(mech, q, "tip", part="position")
    agree(found[None], 0.7 * 0.4 * q[:, 1].sin().abs()[None], 1e-12)


@pytest.mark.parametrize("reference", ["body", "mixed"])
def test_manipulability_is_the_root_of_the_determinant(reference):
    arm = ts.load(ts.robots.panda)
    q, *_ = normal_state(arm, 5, seed=3)
    J = ts.frame_jacobian(arm, q, "flange", reference=reference)
    agree(
        ts.manipulability(arm, q, "flange", reference=reference)[None],
        torch.linalg.det(J @ J.mT).sqrt()[None],
        1e-11,
    )
    with pytest.raises(ts.MechanismError, match="no part of a Jacobian is named 'linear'"):
        ts.manipulability(arm, q, "flange", part="linear")


@pytest.mark.parametrize("part", ["whole", "rotation", "position"])
def test_second_derivatives_of_manipulability_exist_at_equal_singular_values(part):
    """Of a free body all are one, wherever it is."""
    mech = random_mechanism(["free", "revolute"], [-1, 0], seed=1)
    q, *_ = normal_state(mech, seed=7)
    along = torch.linspace(-1.0, 1.0, mech.num_q, dtype=q.dtype)

    def measure(q):
        # Alone it would not change, and nor would its derivatives.
        return (1 + q[3:7].square().sum()) * ts.manipulability(mech, q, "body0", part=part) ** 2

    gradient = torch.func.grad(measure)
    found = torch.func.jvp(gradient, (q,), (along,))[1]
    ahead, behind = (gradient(q + h * along) for h in (1e-5, -1e-5))
    torch.testing.assert_close(found, (ahead - behind) / 2e-5, rtol=1e-7, atol=1e-8)


def test_manipulability_has_gradients_at_a_singular_configuration():
    arm = ts.load(ts.robots.panda)
    q, *_ = normal_state(arm, 3, seed=8)
    q = q.index_fill(0, torch.tensor([1]), 0.0).requires_grad_()  # stretched upwards
    found = ts.manipulability(arm, q, "flange", part="position")
    (gradient,) = torch.autograd.grad(found.sum(), q)
    assert gradient.isfinite().all()

    def measure(q):
        return ts.manipulability(arm, q, "flange", part="position")

    alone = torch.stack([torch.func.grad(measure)(x) for x in q.detach()])
    torch.testing.assert_close(gradient, alone, rtol=1e-9, atol=1e-12)


def test_a_sample_that_is_nan_changes_no_other():
    arm = ts.load(ts.robots.panda)
    q, *_ = normal_state(arm, 3, seed=9)
    found = ts.manipulability(arm, q * torch.tensor([[1.0], [torch.nan], [1.0]]), "flange")
    assert found.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(found[::2], ts.manipulability(arm, q[::2], "flange"))
