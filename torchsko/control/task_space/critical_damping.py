r"""Critical damping of springs on an inertia that couples their axes.

A spring K and a damper D on the inertia :math:`C^{-1}` move by :math:`\ddot x = -C (K x + D \dot x)`. With
the roots S of the stiffnesses and y = S x,

.. math::
    D = 2 S (S C S)^{-1/2} S: \qquad \ddot y = - B y - 2 B^{1/2} \dot y, \quad B = S C S,

so that all modes are critically damped. For a factor C = Y Y*, C D = 2 Y P* S with the polar factor P of
X = S Y, which is :math:`B^{-1/2} X`. P exists also where B is singular, as at singular poses and with more
rows than dofs: singular values of zero stay zero. P has derivatives of all orders where the rank is constant,
also at equal singular values.

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
    """Square roots of stiffnesses, 0 where they are not positive; derivatives are finite."""
    positive = stiffness > 0
    return torch.where(positive, torch.where(positive, stiffness, 1.0).sqrt(), 0.0)


def critical_damping_acceleration(
    stiffness: Tensor, Y: Tensor, X: Tensor, velocity_error: Tensor
) -> Tensor:
    """Acceleration by critical damping, 2 Y P* S velocity, `[*batch, r, 1]`.

    A row without a spring is not damped.

    Args:
        stiffness: K, `[*batch, r, 1]`.
        Y: `[*batch, r, m]`.
        X: a factor of the compliance of the springs, C = X X* `[*batch, r, m]`. It differs from Y where
            damped inverses change the accelerations.
        velocity_error: velocity of the target less that of the frame, `[*batch, r, 1]`.
    """
    S = stiffness_roots(stiffness)
    return 2 * Y @ (polar_factor(S * X).mT @ (S * velocity_error))


def polar_factor(X: Tensor) -> Tensor:
    """U V* of X = U s V*, `[*batch, r, m]`: its singular vectors with singular values of 1.

    Singular values whose squares are zero to rounding, relative to the sum of squares, become less than 1.
    Zero stays zero.

    Args:
        X: `[*batch, r, m]`.

    Reference: Nakatsukasa, Bai, Gygi 2010, section 3.
    """
    # The polar factor and its derivatives do not depend on the scale of X.
    square = (X * X).sum((-2, -1), keepdim=True).detach()
    P = X / torch.where(square > 0, square, 1.0).sqrt()
    one = torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)
    weights = _halley_weights(rounding_of_rank(X.shape[-2], compute_dtype(X)) ** 0.5)
    for a, b, c in weights:
        P = b / c * P + (a - b / c) * spd_solve(one + c * P @ P.mT, P)
    return P


def _halley_weights(least: float) -> list[tuple[float, float, float]]:
    """Weights of Halley's steps x (a + b x^2) / (1 + c x^2) that map [least, 1] to 1 the fastest."""
    weights = []
    while least < 1 - 1e-15:
        d = (4 * (1 - least**2) / least**4) ** (1 / 3)
        root = math.sqrt(1 + d)
        a = root + math.sqrt(8 - 4 * d + 8 * (2 - least**2) / (least**2 * root)) / 2
        b = (a - 1) ** 2 / 4
        weights.append((a, b, a + b - 1))
        least = min(least * (a + b * least**2) / (1 + (a + b - 1) * least**2), 1.0)
    return weights
