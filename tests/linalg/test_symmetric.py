"""Small symmetric solves: the dense and the scalar reading are one mathematics."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.forms import in_form
from tests.strategies import BATCHES, agree, seeds
from torchsko.linalg.dense import ldl_matrix
from torchsko.linalg.scalar_form import scalar_form
from torchsko.linalg.symmetric import (
    factor_solve,
    ldl,
    mirror,
    spd_condition,
    spd_factor,
    spd_logdet,
    spd_solve,
)

SIZES = range(1, 7)


@st.composite
def matrices(draw):
    """A positive definite matrix of size 1..6 and columns, of condition up to 1e6."""
    d, batch = draw(st.integers(1, 6)), draw(st.sampled_from(BATCHES))
    g = torch.Generator().manual_seed(draw(seeds))
    Q = torch.linalg.qr(torch.randn(*batch, d, d, generator=g, dtype=torch.float64)).Q
    spread = torch.rand(*batch, d, generator=g, dtype=torch.float64)
    D = Q @ torch.diag_embed(10 ** (draw(st.floats(0, 6)) * spread)) @ Q.mT
    return (D + D.mT) / 2, torch.randn(*batch, d, 2, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("scalar", [False, True])
@given(matrices())
def test_spd_solve_solves(scalar, system):
    D, B = system
    X = in_form(scalar, spd_solve)(D, B)
    assert X.shape == B.shape
    agree(D @ X, B, 1e-9)


@pytest.mark.parametrize("scalar", [False, True])
@given(matrices())
def test_spd_logdet_is_the_log_determinant(scalar, system):
    D, _ = system
    logdet = in_form(scalar, spd_logdet)(D)
    torch.testing.assert_close(logdet, torch.logdet(D))


@pytest.mark.parametrize("scalar", [False, True])
@given(matrices())
def test_spd_factor_is_lower_triangular_and_squares_to_the_matrix(scalar, system):
    D, _ = system
    L = in_form(scalar, spd_factor)(D)
    assert torch.equal(L, L.tril())
    agree(L @ L.mT, D)


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("adjoint", [False, True])
@given(system=matrices())
def test_factor_solve_inverts_the_factor_or_its_transpose(scalar, adjoint, system):
    D, B = system
    L = torch.linalg.cholesky(D)
    X = in_form(scalar, factor_solve)(D, B, adjoint=adjoint)
    agree((L.mT if adjoint else L) @ X, B, 1e-9)


@given(matrices())
def test_scalar_and_dense_operations_agree(system):
    D, B = system
    agree(scalar_form()(spd_factor)(D), spd_factor(D), 1e-9)
    agree(scalar_form()(spd_solve)(D, B), spd_solve(D, B), 1e-8)
    for adjoint in (False, True):
        one = scalar_form()(factor_solve)(D, B, adjoint=adjoint)
        agree(one, factor_solve(D, B, adjoint=adjoint), 1e-8)


@given(matrices())
def test_ldl_is_unit_lower_triangular_times_pivots(system):
    D, _ = system
    d = D.shape[-1]
    pivots, columns = ldl(D)
    assert len(pivots) == d and len(columns) == d - 1
    L = torch.eye(d, dtype=D.dtype).expand(D.shape).clone()
    for i, column in enumerate(columns):
        L[..., i + 1 :, i] = column
    agree(L @ torch.diag_embed(torch.stack(pivots, -1)) @ L.mT, D)


@given(matrices())
def test_columns_broadcast_over_the_batch_of_the_matrix(system):
    D, B = system
    shared = B.reshape(-1, *B.shape[-2:])[0]
    for scalar in (False, True):
        X = in_form(scalar, spd_solve)(D, shared.expand_as(B) if not scalar else shared)
        agree(D @ X, shared.expand_as(B), 1e-9)


@pytest.mark.parametrize("d", SIZES)
def test_scalar_operations_read_the_upper_half_only(d):
    D = torch.randn(d, d, dtype=torch.float64)
    assert torch.equal(scalar_form()(mirror)(D), D.triu() + D.triu(1).mT)
    assert mirror(D) is D


@pytest.mark.some(4)
@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("d", SIZES)
def test_all_operations_are_differentiable(d, scalar):
    root = torch.randn(d, d, dtype=torch.float64, requires_grad=True)
    B = torch.randn(d, 2, dtype=torch.float64, requires_grad=True)

    def run(root, B):
        D = root @ root.mT + torch.eye(d, dtype=torch.float64)
        solved = factor_solve(D, B, adjoint=True)
        return spd_solve(D, B), spd_logdet(D), solved

    assert in_form(scalar, torch.autograd.gradcheck)(run, (root, B), check_forward_ad=True)


@pytest.mark.parametrize("batch", [(), (2,), (3,), (3, 2)], ids=str)
def test_derivatives_of_spd_solve_are_right_for_columns_shared_by_a_batch(batch):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(*batch, 2, 2, generator=g, dtype=torch.float64)
    B = torch.randn(2, 2, generator=g, dtype=torch.float64)

    def solve(x, B):
        return spd_solve(x @ x.mT + torch.eye(2, dtype=x.dtype), B)

    inputs = (x.requires_grad_(), B.requires_grad_())
    assert torch.autograd.gradcheck(solve, inputs, check_forward_ad=True)


@pytest.mark.parametrize("scalar", [False, True])
def test_the_condition_of_a_matrix_that_is_not_positive_is_infinite(scalar):
    D = torch.tensor([[1.0, 0.0, 0.2], [0.0, -2.0, 0.0], [0.2, 0.0, 3.0]]).double()
    bad, good = in_form(scalar, spd_condition)(torch.stack([D, D.abs()]))
    values = torch.linalg.eigvalsh(D.abs())
    torch.testing.assert_close(
        good, (values.square().sum() * values.pow(-2).sum()).sqrt(), rtol=1e-12, atol=0
    )
    assert bad == torch.inf


def test_lost_pivots_of_a_singular_matrix_leave_a_bounded_solution():
    g = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    D = g @ g.mT
    B = torch.ones(5, 1, dtype=torch.float64)
    B = torch.cat([D @ B, B], -1)  # the second column is not in the range
    factors = ldl(D, 64.0)
    X = factors.backward(factors.scaled(factors.forward(B)))
    agree(D @ X[:, :1], B[:, :1], 1e-9)
    assert X.abs().max() < 1e3


@pytest.mark.parametrize("d", [2, 4])
def test_factors_of_a_block_have_derivatives_in_both_modes(d):
    root = torch.randn(d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start = (root @ root.mT + torch.eye(d)).requires_grad_()

    assert torch.autograd.gradcheck(
        lambda D: ldl_matrix((D + D.mT) / 2, -1.0, lambda D: ldl(D).matrix),
        start,
        check_forward_ad=True,
    )
