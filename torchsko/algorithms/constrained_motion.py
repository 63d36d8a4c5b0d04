r"""Multipliers of constraint rows on an SKO model, through the compliance of the rows.

.. math::
    W = G \mathcal{M}^{-1} G^* = V^* V, \qquad V = D^{-1/2} [I - H \psi K] G^*, \qquad
    \mathcal{M}^{-1} G^* f = [I - H \psi K]^* D^{-*/2} V f .

======== ======================================== =====================
symbol   meaning                                  code
======== ======================================== =====================
G        rows, inactive ones zero                 ``G``
E        1 for active rows, 0 for others          ``mask``
W        compliance of the rows, + 1 - E          ``compliance_solve``
S        G G* + 1 - E                             ``norms``
======== ======================================== =====================

References: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System Dynamics
26(3), 2011, section 6.2; J. Carpentier, R. Budhiraja, N. Mansard, *Proximal and sparse resolution of
constrained dynamic equations*, Robotics: Science and Systems 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.algebra.recursions.innovations import Innovations
from torchsko.implicit.proximal import proximal_solve
from torchsko.linalg.symmetric import spd_solve
from torchsko.utils.shapes import broadcast_shapes, matvec


def psd_solve(W: Tensor, B: Tensor, *, redundant: bool) -> Tensor:
    """W^-1 B, or the solution of least norm if rows are redundant, `[*, r, m]`."""
    solve = proximal_solve if redundant else spd_solve
    return solve(W, B)


@dataclass(frozen=True, eq=False)
class Multipliers:
    """The factored rows of one state.

    Attributes:
        factors: the innovations factorization of the mass matrix.
        G: rows times the mask, `[*batch, r, n]`.
        mask: D, `[*batch, r]`.
        redundant: whether rows are linearly dependent.
    """

    factors: Innovations
    G: Tensor
    mask: Tensor
    redundant: bool
    V: Tensor

    @staticmethod
    def of(factors: Innovations, jacobian: Tensor, mask: Tensor, redundant: bool) -> Multipliers:
        """Factor the rows `[*batch, r, n]`."""
        G = mask[..., None] * jacobian
        return Multipliers(factors, G, mask, redundant, factors.whiten(G.mT, columns=True))

    def compliance_solve(self, B: Tensor) -> Tensor:
        """W^+ B, with W = D G M^-1 G* D + 1 - D, `[*batch, r, m]`."""
        W = self.V.mT @ self.V + torch.diag_embed(1 - self.mask)
        return psd_solve(W, B, redundant=self.redundant)

    def norm_solve(self, B: Tensor) -> Tensor:
        """S^+ B, with S = D G G* D + 1 - D, `[*batch, r, m]`."""
        return psd_solve(self.norms(), B, redundant=True)

    def norms(self) -> Tensor:
        """S, `[*batch, r, r]`."""
        return self.G @ self.G.mT + torch.diag_embed(1 - self.mask)

    def accelerate(self, forces: Tensor) -> Tensor:
        """M^-1 G* D f, `[*batch, n, m]` for `[*batch, r, m]`."""
        return self.factors.whiten_transpose(self.V @ forces, columns=True)

    def solve(self, rhs: Tensor, *, transposed: bool) -> Tensor:
        """The Jacobian of the equation, or its transpose, solved for columns `[*batch, n + r, m]`."""
        n = self.G.shape[-1]
        first, second = rhs[..., :n, :], rhs[..., n:, :]
        free = self.factors.solve(first, columns=True)
        along = self.G @ free
        if not transposed:
            f = self.compliance_solve(second - along)
            y = self.norm_solve(f) if self.redundant else f
            return stacked_rows(free + self.accelerate(f), y)
        second = self.norm_solve(second) if self.redundant else second
        b = self.compliance_solve(second + along)
        return stacked_rows(free - self.accelerate(b), b)


def stacked_rows(x: Tensor, y: Tensor) -> Tensor:
    """Rows of both matrices `[*, k, m]`, one above the other; batch dimensions broadcast."""
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return torch.cat([x.expand(*batch, *x.shape[-2:]), y.expand(*batch, *y.shape[-2:])], -2)


def forces_of(y: Tensor, G: Tensor, mask: Tensor, redundant: bool) -> Tensor:
    """The multipliers f of the unknowns y; G are rows times the mask."""
    return matvec(G, matvec(G.mT, y)) + (1 - mask) * y if redundant else y
