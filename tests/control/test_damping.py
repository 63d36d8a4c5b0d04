"""Polar factor of critical damping."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jvp

from tests.forms import in_form
from tests.strategies import agree
from torchsko.control.task_space.critical_damping import polar_factor


def of_rank(r: int, m: int, rank: int, least: float = 0.1) -> tuple[Tensor, Tensor]:
    """Random matrices `[5, r, m]` with singular values from 1 to the least, and their polar factors."""
    g = torch.Generator().manual_seed(r + m)
    U, V = (torch.linalg.qr(torch.randn(5, n, rank, generator=g).double())[0] for n in (r, m))
    return U * torch.logspace(0, torch.tensor(least).log10(), rank) @ V.mT, U @ V.mT


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("shape", [(1, 4, 1), (3, 7, 3), (6, 4, 4), (6, 7, 4), (3, 3, 2)], ids=str)
def test_directions_stay_and_singular_values_become_one_but_for_zeros(shape, scalar):
    X, P = of_rank(*shape)
    agree(in_form(scalar, polar_factor)(X), P, 1e-7 if shape[2] < shape[0] else 1e-13)
    agree(in_form(scalar, polar_factor)(1e-9 * X), P, 1e-7 if shape[2] < shape[0] else 1e-13)
    single = in_form(scalar, polar_factor)(X.float()).double()
    agree(X.mT @ single, X.mT @ P, 2e-4)


def test_next_to_a_singular_matrix_a_root_is_right_to_rounding():
    """The square root of X X* is X P*, down to singular values of 1e-6."""
    X, P = of_rank(6, 7, 6, 1e-6)
    agree(X @ polar_factor(X).mT, X @ P.mT, 1e-9)


@pytest.mark.parametrize("scalar", [False, True])
def test_where_all_singular_values_are_equal_derivatives_turn_and_do_not_stretch(scalar):
    """At X* X = 1 the derivative is d(X (X* X)^(-1/2)) = X skew(X* dX)."""
    X, _ = of_rank(3, 3, 3, 1.0)
    step = torch.randn(X.shape, generator=torch.Generator().manual_seed(0)).double()
    turn = X.mT @ step
    factor = in_form(scalar, polar_factor)
    agree(jvp(factor, (X,), (step,))[1], X @ (turn - turn.mT) / 2, 1e-12)
    X = X[:1].clone().requires_grad_()
    assert gradcheck(factor, X, check_forward_ad=True) and gradgradcheck(factor, X)


def test_a_zero_matrix_has_the_result_zero_and_a_gradient():
    X = torch.zeros(2, 3, 5, dtype=torch.float64, requires_grad=True)
    P = polar_factor(X)
    assert not P.any()
    P.sum().backward()
    assert X.grad is not None and X.grad.isfinite().all()
