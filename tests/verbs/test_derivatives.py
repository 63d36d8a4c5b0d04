"""Derivatives of dynamics in closed form are those of the dynamics, on every kind of joint."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import jacrev, vmap

import torchsko as ts
from tests.states import normal_state
from tests.strategies import BATCHES, agree, any_mechanisms, mechanisms, random_mechanism, seeds
from torchsko.algorithms.motion_products import mass_and_motion_matrices
from torchsko.linalg.scalar_form import scalar_form

robots = any_mechanisms(4, 4)
PAIRS = [
    (ts.inverse_dynamics, ts.inverse_dynamics_derivatives),
    (ts.forward_dynamics, ts.forward_dynamics_derivatives),
]


def by_reverse_mode(dynamics, mech, q, qd, x, f_ext) -> tuple[Tensor, ...]:
    """Derivatives of a function of dynamics to tangent steps, rates and its third argument."""

    def stepped(step, qd, x, q, f_ext):
        return dynamics(mech, ts.integrate(mech, q, step), qd, x, f_ext)

    each = jacrev(stepped, (0, 1, 2))
    for _ in q.shape[:-1]:
        each = vmap(each)
    return each(torch.zeros_like(qd), qd, x, q, f_ext)


@pytest.mark.some(1)
@pytest.mark.parametrize(("dynamics", "derivatives"), PAIRS)
@given(robots, st.sampled_from(BATCHES), seeds)
def test_closed_form_derivatives_are_those_of_reverse_mode(
    dynamics, derivatives, mech, batch, seed
):
    at = normal_state(mech, *batch, seed=seed, wrench=True)
    expected = by_reverse_mode(dynamics, mech, *at)
    for mine, theirs in zip(derivatives(mech, *at), expected, strict=True):
        agree(mine, theirs, 1e-9)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 3", mass_and_motion_matrices)
@pytest.mark.shows("Jain 2011, Part II", "Lemma 11", ts.forward_dynamics_derivatives)
@given(robots, seeds)
def test_derivatives_of_forward_and_inverse_dynamics_are_inverse_to_each_other(mech, seed):
    q, qd, tau, f_ext = normal_state(mech, 2, seed=seed, wrench=True)
    qdd = ts.forward_dynamics(mech, q, qd, tau, f_ext)
    to_q, to_qd, to_qdd = ts.inverse_dynamics_derivatives(mech, q, qd, qdd, f_ext)
    of_q, of_qd, of_tau = ts.forward_dynamics_derivatives(mech, q, qd, tau, f_ext)
    agree(to_qdd @ of_tau, torch.eye(mech.num_dof, dtype=q.dtype).expand_as(of_tau), 1e-9)
    agree(to_qdd @ of_q, -to_q, 1e-9)
    agree(to_qdd @ of_qd, -to_qd, 1e-9)


@pytest.mark.parametrize(
    "kinds", [["free", "revolute"], ["free", "spherical", "free"], ["revolute", "free"]]
)
def test_scalar_programs_separate_the_accelerations_of_free_bases_exactly(kinds):
    """Armature, springs and compensated weights act on the whole acceleration."""
    parents = list(range(-1, len(kinds) - 1))
    mech, g = random_mechanism(kinds, parents, seed=3), torch.Generator().manual_seed(0)
    armature = 0.5 + torch.rand(mech.damping.shape, generator=g, dtype=mech.dtype)
    gravcomp = 0.3 * torch.randn(mech.gravcomp.shape, generator=g, dtype=mech.dtype)
    mech = mech.replace(armature=armature, gravcomp=gravcomp, stiffness=2 * armature)
    at = normal_state(mech, 2, seed=1, wrench=True)
    expected = ts.forward_dynamics_derivatives(mech, *at)
    spelt_out = scalar_form()(ts.forward_dynamics_derivatives)(mech, *at)
    for mine, theirs in zip(spelt_out, expected, strict=True):
        agree(mine.expand_as(theirs), theirs, 1e-9)


@given(mechanisms(max_bodies=4), seeds)
def test_at_rest_they_are_damping_and_a_symmetric_stiffness_where_q_is_a_vector(mech, seed):
    q, *_ = normal_state(mech, seed=seed)
    still = torch.zeros(mech.num_dof, dtype=q.dtype)
    to_q, to_qd, _ = ts.inverse_dynamics_derivatives(mech, q, still, still)
    agree(to_qd, torch.diag_embed(mech.damping), 1e-12)
    if mech.num_q == mech.num_dof:
        agree(to_q, to_q.mT, 1e-10)


@pytest.mark.parametrize(("dynamics", "derivatives"), PAIRS)
def test_second_order_products_are_pullbacks_of_the_matrices(dynamics, derivatives):
    mech = random_mechanism(["free", "universal", "revolute"], [-1, 0, 0], seed=5)
    q, qd, x, f_ext = normal_state(mech, seed=3, wrench=True)
    weight = torch.randn(3, mech.num_dof, mech.num_dof, dtype=q.dtype)

    def total(of, step, qd, x):
        at = ts.integrate(mech, q, step)
        return sum((w * m).sum() for w, m in zip(weight, of(at, qd, x), strict=True))

    def twice(at, qd, x):
        return by_reverse_mode(dynamics, mech, at, qd, x, f_ext)

    found, expected = (
        torch.func.grad(lambda *s: total(of, *s), (0, 1, 2))(torch.zeros_like(qd), qd, x)  # noqa: B023
        for of in (lambda *s: derivatives(mech, *s, f_ext), twice)
    )
    for mine, theirs in zip(found, expected, strict=True):
        agree(mine, theirs, 1e-9)


@pytest.mark.parametrize(("dynamics", "derivatives"), PAIRS)
def test_slopes_of_nonlinear_losses_are_those_of_reverse_mode(dynamics, derivatives):
    mech = random_mechanism(["revolute", "prismatic"], [-1, 0], seed=2)
    wide = torch.tensor([0.3, 0.8]).to(mech.damping)
    mech = mech.replace(higher_damping=torch.stack([wide, 2 * wide], -1), friction_speed=wide)
    at = normal_state(mech, 2, seed=4, wrench=True)
    for mine, theirs in zip(
        derivatives(mech, *at), by_reverse_mode(dynamics, mech, *at), strict=True
    ):
        agree(mine, theirs, 1e-9)


def test_parameters_get_gradients_through_the_matrices():
    mech = random_mechanism(["planar", "spherical"], [-1, 0], seed=6)
    q, qd, tau = normal_state(mech, seed=1)
    names = ("mass", "com", "inertia", "stiffness", "damping", "joint_position")

    def matrices(*values):
        robot = mech.replace(**dict(zip(names, values, strict=True)))
        return ts.forward_dynamics_derivatives(robot, q, qd, tau)

    leaves = [getattr(mech, name).clone().requires_grad_() for name in names]
    assert gradcheck(matrices, leaves, fast_mode=True)


def test_steps_of_bodies_on_different_branches_are_not_coupled():
    mech = random_mechanism(["revolute"] * 5, [-1, 0, 0, -1, 3], seed=1)
    to_q, to_qd, _ = ts.inverse_dynamics_derivatives(mech, *normal_state(mech, wrench=True)[:3])
    related = torch.block_diag(torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 1]]), torch.ones(2, 2))
    for matrix in (to_q, to_qd):
        assert (matrix[related == 0] == 0).all() and (matrix[0, 1:3] != 0).all()


@pytest.mark.parametrize("derivatives", [x for _, x in PAIRS])
def test_a_free_body_has_the_matrices_of_every_sample_though_its_inertia_is_the_same(derivatives):
    mech = random_mechanism(["free"], [-1], 1)
    found = derivatives(mech, *normal_state(mech, 2, 3, wrench=True))
    assert [x.shape for x in found] == [(2, 3, 6, 6)] * 3
