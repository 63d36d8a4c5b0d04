"""The pseudo-inverse by Jacobi rotations has the properties of Moore and Penrose, and their derivatives."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from torchsko.implicit.pseudo_inverse import symmetric_pinv
from torchsko.linalg.scalar_form import scalar_form


def matrices(n: int, rank: int, *batch: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Symmetric matrices with positive and negative eigenvalues."""
    g = torch.Generator().manual_seed(n)
    J = torch.randn(*batch, rank, n, generator=g, dtype=dtype)
    signs = torch.where(torch.arange(rank) % 3 == 0, -1.0, 1.0).to(dtype)
    return J.mT @ (signs[:, None] * J)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "rank"), [(1, 1), (2, 1), (3, 0), (7, 6), (8, 8), (13, 9)])
def test_the_conditions_of_moore_and_penrose_hold(n, rank, dtype):
    eps = torch.finfo(dtype).eps
    H = matrices(n, rank, 2, 3, dtype=dtype)
    P = scalar_form()(symmetric_pinv)(H, rank_tolerance=eps**0.6)
    bound = 2000 * eps * float((P.abs().max() * H.abs().max()) ** 2 + 1)
    for found, wanted in ((H @ P @ H, H), (P @ H @ P, P), ((H @ P).mT, H @ P)):
        assert float((found - wanted).abs().max()) <= bound * float(wanted.abs().max() + 1)
    assert torch.equal(P, P.mT)


def test_derivatives_are_those_of_changes_that_keep_the_rank():
    g = torch.Generator().manual_seed(0)
    J = torch.randn(2, 2, 3, generator=g, dtype=torch.float64, requires_grad=True)

    @scalar_form()
    def fn(J: Tensor) -> Tensor:
        return symmetric_pinv(J.mT @ J, rank_tolerance=1e-9)

    assert gradcheck(fn, (J,), check_forward_ad=True)
    assert gradgradcheck(fn, (J,))
    torch.testing.assert_close(torch.vmap(fn)(J), fn(J))
