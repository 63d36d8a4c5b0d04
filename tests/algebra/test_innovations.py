"""The innovations factorization (Jain Part II, Lemma 11, Cor. 6.1): every law of it, one test each."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.forms import in_form
from tests.strategies import (
    BATCHES,
    agree,
    dense_bias,
    dense_mass_matrix,
    random_model,
    sko_models,
    straightened,
)
from torchsko.algebra.recursions.articulated import articulated_operators, operators
from torchsko.algebra.recursions.innovations import Innovations, swept_innovations
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import ShapeError
from torchsko.linalg.scalar_form import scalar_form

ANY = sko_models(mixed=True, min_dofs=0)


def factors(model):
    """[I + H A K], its inverse [I - H psi K], and D, D^-1 as operators."""
    m, r = operators(model), articulated_operators(model)
    H, one = m.joint_map, m.dof_identity
    L = one + H @ m.spo @ r.shifted_gain
    return L, one - H @ r.art_spo @ r.shifted_gain, r.hinge_inertia, r.hinge_compliance


def columns(model, r=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(model.num_dof, r, generator=g, dtype=torch.float64)


@given(ANY)
def test_the_mass_matrix_is_l_d_l_transposed(model):
    L, _, D, _ = factors(model)
    agree((L @ D @ L.T).to_dense(), dense_mass_matrix(model), 1e-9)


@given(ANY)
def test_identity_minus_h_psi_k_inverts_identity_plus_h_a_k(model):
    L, L_inv, _, _ = factors(model)
    one = torch.eye(model.num_dof, dtype=torch.float64)
    agree((L @ L_inv).to_dense(), one, 1e-9)
    agree((L_inv @ L).to_dense(), one, 1e-9)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 11", swept_innovations, Innovations.inverse)
@given(ANY)
def test_the_inverse_mass_matrix_is_l_inverse_transposed_d_inverse_l_inverse(model):
    _, L_inv, _, D_inv = factors(model)
    product = (L_inv.T @ D_inv @ L_inv).to_dense()
    one = torch.eye(model.num_dof, dtype=torch.float64)
    agree(dense_mass_matrix(model) @ product, one, 1e-9)
    agree(swept_innovations(model).inverse(), product, 1e-9)


@given(ANY)
def test_the_factor_is_unit_triangular_in_breadth_first_order(model):
    if model.num_dof:
        L, layout = factors(model)[0].to_dense(), model.layout
        order = [i for k in layout.tree.order for i in layout.dofs.places[k]]
        sorted_L = L[..., order, :][..., order]
        agree(sorted_L, torch.triu(sorted_L, 1) + torch.eye(model.num_dof).double())


@pytest.mark.shows("Jain 2011, Part II", "Corollary 6.1", Innovations.logdet)
@given(ANY)
def test_the_log_determinant_is_the_sum_over_hinges(model):
    logdet = swept_innovations(model).logdet()
    assert logdet.shape == model.batch_shape
    expected = torch.logdet(dense_mass_matrix(model)).expand(model.batch_shape)
    agree(logdet.reshape(-1, 1), expected.reshape(-1, 1))


@pytest.mark.shows("Jain 2011, Part II", "Lemma 11", Innovations.solve)
@given(ANY, st.sampled_from(BATCHES))
def test_solve_is_the_inverse_mass_matrix(model, batch):
    x = columns(model).expand(*batch, -1, -1)
    agree(dense_mass_matrix(model) @ swept_innovations(model).solve(x, columns=True), x, 1e-9)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 11", Innovations.sqrt)
@given(ANY)
def test_sqrt_times_its_transpose_is_the_mass_matrix(model):
    fac, one = swept_innovations(model), torch.eye(model.num_dof, dtype=torch.float64)
    W = fac.sqrt(one, columns=True)
    agree(W @ W.mT, dense_mass_matrix(model), 1e-9)
    agree(fac.sqrt(fac.sqrt_transpose(one, columns=True), columns=True), W @ W.mT, 1e-9)


@given(ANY)
def test_sqrt_transpose_is_the_transpose_of_sqrt(model):
    fac, one = swept_innovations(model), torch.eye(model.num_dof, dtype=torch.float64)
    agree(fac.sqrt_transpose(one, columns=True), fac.sqrt(one, columns=True).mT, 1e-9)


@given(ANY)
def test_whiten_inverts_sqrt(model):
    fac, x = swept_innovations(model), columns(model)
    agree(fac.whiten(fac.sqrt(x, columns=True), columns=True), x, 1e-9)
    agree(fac.sqrt(fac.whiten(x, columns=True), columns=True), x, 1e-9)


@given(ANY)
def test_whiten_transpose_inverts_sqrt_transpose(model):
    fac, x = swept_innovations(model), columns(model)
    both = fac.whiten_transpose(fac.sqrt_transpose(x, columns=True), columns=True)
    agree(both, x, 1e-9)


@given(ANY)
def test_whitened_forces_have_unit_covariance(model):
    fac, one = swept_innovations(model), torch.eye(model.num_dof, dtype=torch.float64)
    W = fac.whiten(one, columns=True)
    agree(W @ dense_mass_matrix(model) @ W.mT, one, 1e-9)


@given(ANY)
def test_whitened_rates_carry_twice_the_kinetic_energy(model):
    qd = columns(model, 1)
    rates = swept_innovations(model).sqrt_transpose(qd, columns=True)
    agree(rates.mT @ rates, qd.mT @ dense_mass_matrix(model) @ qd, 1e-9)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 12", Innovations.forward_dynamics)
@given(ANY)
def test_forward_dynamics_is_the_inverse_mass_matrix_on_force_less_bias(model):
    T = columns(model, 1)[..., 0]
    qdd = swept_innovations(model).forward_dynamics(T)
    force = dense_mass_matrix(model) @ qdd[..., None] + dense_bias(model)[..., None]
    agree(force, T[:, None], 1e-9)


ACTIONS = ("solve", "sqrt", "whiten", "sqrt_transpose", "whiten_transpose")


@pytest.mark.parametrize("action", ACTIONS)
@given(model=ANY)
def test_a_vector_is_one_column(action, model):
    act, x = getattr(swept_innovations(model), action), columns(model)
    each = torch.stack([act(x[:, i]) for i in range(2)], -1)
    agree(each, act(x, columns=True))


def products(model):
    """Products of the factors with columns, accelerations, and the logarithm of the determinant."""
    factors, x = swept_innovations(model), columns(model)
    acted = [getattr(factors, action)(x, columns=True) for action in ACTIONS]
    return [*acted, factors.forward_dynamics(x[:, 0])[..., None], factors.logdet().reshape(-1, 1)]


@given(straightened(sko_models(mixed=True, min_dofs=0)), st.booleans())
def test_models_with_straight_hinges_have_equal_results(model, scalar):
    of = in_form(scalar, products)
    for mine, plain in zip(of(model), of(replace(model, straight=None)), strict=True):
        agree(mine, plain, 1e-9)


@given(sko_models(mixed=True, min_dofs=0))
def test_scalar_and_dense_operations_agree(model):
    for one, other in zip(scalar_form()(products)(model), products(model), strict=True):
        agree(one, other, 1e-9)


def test_a_vector_of_another_length_is_refused():
    fac = swept_innovations(random_model(Tree.from_parents([-1, 0]), [3, 3], [1, 2]))
    for action in ACTIONS:
        with pytest.raises(ShapeError, match="length 4 was given where the model has 3"):
            getattr(fac, action)(torch.zeros(4, dtype=torch.float64))


def test_a_vector_of_another_type_is_refused_not_cast():
    fac = swept_innovations(random_model(Tree.from_parents([-1, 0]), [3, 3], [1, 2]))
    for action in ACTIONS:
        with pytest.raises(ShapeError, match=r"float32 was given, the model is torch\.float64"):
            getattr(fac, action)(torch.zeros(3, dtype=torch.float32))
