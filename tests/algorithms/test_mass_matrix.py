"""The mass matrix (Jain Part II, Algs. 4.1-4.2) against every formula for it."""

import pytest
import torch
from hypothesis import given

from tests.forms import in_form
from tests.strategies import agree, dense_mass_matrix, dense_operators, random_model, sko_models
from torchsko.algebra.operators.operators import BlockDiagonal
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.tree import Tree
from torchsko.algorithms import bias_force, composite_inertia, inverse_dynamics, mass_matrix

ANY = sko_models(mixed=True, min_dofs=0)


def composite(model):
    """R as a matrix."""
    return BlockDiagonal(model.layout, join(list(composite_inertia(model)))).to_dense()


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 4.2", mass_matrix)
@given(ANY)
def test_the_mass_matrix_is_h_a_m_a_transposed_h_plus_armature(model):
    MM = mass_matrix(model)
    assert MM.shape == (*model.batch_shape, model.num_dof, model.num_dof)
    agree(MM, dense_mass_matrix(model))


@given(ANY)
def test_the_mass_matrix_is_exactly_symmetric_and_positive(model):
    MM = mass_matrix(model)
    off = MM - MM.mT
    agree(off, torch.zeros_like(off), 1e-13)
    if model.num_dof:
        assert bool((torch.linalg.eigvalsh(MM) > 0).all())


@given(ANY)
def test_composite_inertia_solves_the_lyapunov_equation(model):
    x, R = dense_operators(model), composite(model)
    agree(R - x.E @ R @ x.E.mT, x.M)


@given(ANY)
def test_the_mass_matrix_decomposes_by_the_composite_inertia(model):
    """MM = H R H* + H A~ R H* + H R A~* H*."""
    x, R = dense_operators(model), composite(model)
    At = x.A - torch.eye(x.A.shape[-1], dtype=x.A.dtype)
    agree(mass_matrix(model), x.H @ (R + At @ R + R @ At.mT) @ x.H.mT + x.S)


@given(ANY)
def test_the_trace_is_the_sum_over_hinges_of_composite_inertias(model):
    x, R = dense_operators(model), composite(model)
    trace = (x.H @ R @ x.H.mT + x.S).diagonal(dim1=-2, dim2=-1).sum(-1)
    actual = mass_matrix(model).diagonal(dim1=-2, dim2=-1).sum(-1)
    agree(actual.reshape(-1, 1), trace.expand(actual.shape).reshape(-1, 1))


@given(ANY)
def test_columns_are_inverse_dynamics_of_unit_accelerations(model):
    C = bias_force(model)
    unit = torch.eye(model.num_dof, dtype=torch.float64)
    columns = [inverse_dynamics(model, unit[i]) - C for i in range(model.num_dof)]
    if columns:
        agree(mass_matrix(model), torch.stack(columns, -1))


@given(ANY)
def test_unrelated_hinges_are_not_coupled(model):
    MM, tree, place = mass_matrix(model), model.tree, model.layout.dofs.places
    for i in range(tree.num_nodes):
        for j in range(tree.num_nodes):
            if not tree.related(i, j):
                assert not MM[..., place[i], :][..., place[j]].any()


@pytest.mark.parametrize("scalar", [False, True])
def test_scalar_and_dense_operations_on_symmetric_blocks_agree(scalar):
    model = random_model(Tree.from_parents([2, 2, -1, 0]), [4, 3, 6, 5], [2, 3, 3, 1], (2, 3))
    agree(in_form(scalar, mass_matrix)(model), dense_mass_matrix(model))
