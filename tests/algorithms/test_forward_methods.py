"""Forward dynamics in O(N) and through the mass matrix: one result."""

import pytest
import torch
from hypothesis import given

import torchsko as ts
from tests.batteries import ramp
from tests.strategies import (
    BATCHES,
    agree,
    dense_bias,
    dense_mass_matrix,
    mechanisms,
    random_model,
    sko_models,
)
from torchsko import algorithms
from torchsko.algebra.topology.tree import Tree

methods = pytest.mark.parametrize(
    "method",
    [algorithms.forward_dynamics, algorithms.composite_forward_dynamics],
    ids=lambda method: method.__name__,
)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(f, id=f.__name__, marks=pytest.mark.shows(paper, result, f))
        for f, paper, result in (
            (algorithms.forward_dynamics, "Jain 2011, Part II", "Algorithm 6.1"),
            (
                algorithms.composite_forward_dynamics,
                "Jain 2024, SOA slides 9",
                "forward dynamics by the mass matrix",
            ),
        )
    ],
)
@given(sko_models(max_nodes=12, mixed=True))
def test_every_method_solves_the_equations_of_motion(method, model):
    tau = ramp(model)
    qdd = method(model, tau)
    force = (dense_mass_matrix(model) @ qdd[..., None])[..., 0] + dense_bias(model)
    agree(force[..., None, :], tau.expand_as(force)[..., None, :], 1e-8)


@methods
@given(sko_models(max_nodes=12, armature=False))
def test_forward_dynamics_inverts_both_inverse_dynamics(method, model):
    qdd = ramp(model)
    for inverse in (algorithms.inverse_dynamics, algorithms.composite_inverse_dynamics):
        found = method(model, inverse(model, qdd))
        agree(found[..., None, :], qdd.expand_as(found)[..., None, :], 1e-7)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("parents", [[-1], [-1, 0, 0, 0], [-1, -1, -1]], ids=str)
def test_both_agree_on_one_body_star_and_forest(parents, batch):
    n = len(parents)
    model = random_model(Tree.from_parents(parents), [4] * n, [1, 2, 3, 1][:n], batch)
    tau = ramp(model).expand(*batch, -1)
    agree(
        algorithms.composite_forward_dynamics(model, tau)[..., None],
        algorithms.forward_dynamics(model, tau)[..., None],
        1e-8,
    )


@given(mechanisms())
def test_both_methods_of_a_mechanism_agree(mech):
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(2, generator=g)
    f_ext = torch.randn(2, mech.num_bodies, 6, generator=g, dtype=torch.float64)
    plain = ts.forward_dynamics(mech, q, qd, qd.cos(), f_ext)
    agree(ts.forward_dynamics(mech, q, qd, qd.cos(), f_ext, method="composite"), plain, 1e-8)


def test_both_methods_have_the_same_gradients():
    arm = ts.load(ts.robots.panda)
    mass = arm.mass.clone().requires_grad_()
    states = [x.requires_grad_() for x in arm.random_state(2)]

    def gradients(method):
        mech = arm.replace(mass=mass)
        qdd = ts.forward_dynamics(mech, *states, torch.zeros_like(states[1]), method=method)
        return torch.autograd.grad(qdd.sin().sum(), [mass, *states])

    pairs = zip(gradients("composite"), gradients("articulated"), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@methods
def test_a_vector_of_another_length_is_refused(method):
    model = random_model(Tree.from_parents([-1, 0]), [3, 3], [1, 2])
    with pytest.raises(ts.ShapeError, match=r"length 1 .* 3 components"):
        method(model, ramp(model)[..., :1])


def test_an_unknown_method_is_refused_with_the_known_ones():
    arm = ts.load(ts.robots.panda)
    q, qd = arm.random_state()
    with pytest.raises(ts.ShapeError, match="'articulated', 'composite'"):
        ts.forward_dynamics(arm, q, qd, qd, method="aba")
