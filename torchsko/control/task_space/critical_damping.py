r"""Critical damping of springs that act on an inertia which couples their axes.

A spring K and a damper D on the inertia :math:`C^{-1}` move by :math:`\ddot x = -C (K x + D \dot x)`. With
the roots S of the stiffnesses and y = S x,

.. math::
    D = 2 S (S C S)^{-1/2} S: \qquad \ddot y = - B y - 2 B^{1/2} \dot y, \quad B = S C S,

so that all motions are critically damped, however axes couple. Of a factor, C = Y Y*, only the polar factor
P of X = S Y is needed, which is :math:`B^{-1/2} X`: then C D = 2 Y P* S. X has one where B has no inverse, at
singular poses and where rows outnumber dofs: directions in which nothing moves have singular values of zero,
which stay zero. It has derivatives of all orders where the rank does not change, also where singular values
are equal.

Reference: Y. Nakatsukasa, Z. Bai, F. Gygi, *Optimizing Halley's iteration for computing the matrix polar
decomposition*, SIAM Journal on Matrix Analysis and Applications 31(5), 2010.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchsko.algorithms.operational_space import rounding_of_rank
from torchsko.linalg.symmetric import spd_solve
from torchsko.utils.dtype import compute_dtype


def stiffness_roots(stiffness: Tensor) -> Tensor:
    """Square roots of stiffnesses, 0 for those that pull nowhere or away; no derivative is nan."""
    pulls = stiffness > 0
    return torch.where(pulls, torch.where(pulls, stiffness, 1.0).sqrt(), 0.0)


def critical_damping_acceleration(
    stiffness: Tensor, Y: Tensor, X: Tensor, off: Tensor, *, scalar: bool
) -> Tensor:
    """What critical damping asks of accelerations, 2 Y P* S off, `[*batch, r, 1]`.

    A row without a spring has none: it moves as the others move it.

    Args:
        stiffness: K, `[*batch, r, 1]`.
        Y: `[*batch, r, m]`.
        X: a factor of the compliance that the springs feel, C = X X* `[*batch, r, m]`; Y itself, but where
            what is asked for is not what is done.
        off: the velocity that is to vanish, `[*batch, r, 1]`.
        scalar: see `torchsko.linalg.symmetric`.
    """
    S = stiffness_roots(stiffness)
    return 2 * Y @ (polar_factor(S * X, scalar=scalar).mT @ (S * off))


def polar_factor(X: Tensor, *, scalar: bool) -> Tensor:
    """U V* of X = U s V*, `[*batch, r, m]`: the matrix with the same directions, whose singular values are 1.

    Those whose squares are zero to rounding, next to the sum of squares, become less than 1, and zero stays
    zero: none is cut.

    Args:
        X: `[*batch, r, m]`.
        scalar: see `torchsko.linalg.symmetric`.

    Reference: Nakatsukasa, Bai, Gygi 2010, section 3.
    """
    # Scaling the whole changes no polar factor, and none of its derivatives.
    square = (X * X).sum((-2, -1), keepdim=True).detach()
    P = X / torch.where(square > 0, square, 1.0).sqrt()
    one = torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)
    weights = _weights(rounding_of_rank(X.shape[-2], compute_dtype(X)) ** 0.5)
    for a, b, c in weights:
        P = b / c * P + (a - b / c) * spd_solve(one + c * P @ P.mT, P, scalar=scalar)
    return P


def _weights(least: float) -> list[tuple[float, float, float]]:
    """Of Halley's steps x (a + b x^2) / (1 + c x^2) that take all of [least, 1] to 1 the soonest."""
    weights = []
    while least < 1 - 1e-15:
        d = (4 * (1 - least**2) / least**4) ** (1 / 3)
        root = math.sqrt(1 + d)
        a = root + math.sqrt(8 - 4 * d + 8 * (2 - least**2) / (least**2 * root)) / 2
        b = (a - 1) ** 2 / 4
        weights.append((a, b, a + b - 1))
        least = min(least * (a + b * least**2) / (1 + (a + b - 1) * least**2), 1.0)
    return weights
