r"""One step back of a linear-quadratic problem: the value function before a step from that after it.

With :math:`x' = A x + B u`, costs :math:`\tfrac12 z^* H z + g^* z`, z = [x; u], and the value
:math:`\tfrac12 x'^* V x' + v^* x'` after the step,

.. math::
    Q = H + [A\; B]^* V [A\; B], \qquad q = g + [A\; B]^* v, \\
    [k\; K] = -(Q_{uu} + \mu)^{-1} [q_u\; Q_{ux}], \\
    V \leftarrow Q_{xx} + Q_{xu} K - \mu K^* K, \qquad v \leftarrow q_x + Q_{xu} k - \mu K^* k.

Inputs that would leave their bounds are held there, one after another: the rest of k minimises what is left,
and their rows of K are zero. So the value counts what inputs can do, and no more.

Reference: Y. Tassa, T. Erez, E. Todorov, *Synthesis and stabilization of complex behaviors through online
trajectory optimization*, IROS 2012, Eqs. 5 and 10-11 (with the regularisation on the inputs). Y. Tassa,
N. Mansard, E. Todorov, *Control-limited differential dynamic programming*, ICRA 2014, section IV (bounds;
inputs once held are not let go within a step, where that paper solves the quadratic program).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.linalg.symmetric import ldl, spd_solve, symmetric_part
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec


class _Quadratic(NamedTuple):
    """The value before a step by x and u, regularised: D is Q_uu + mu."""

    q_x: Tensor
    q_u: Tensor
    Q_xx: Tensor
    Q_ux: Tensor
    D: Tensor
    mu: Tensor


def riccati_step(
    mech: Mechanism,
    V: Tensor,
    v: Tensor,
    A: Tensor,
    B: Tensor,
    gradient: Tensor,
    hessian: Tensor,
    mu: Tensor,
) -> tuple[Tensor, ...]:
    """One step back, of inputs without bounds.

    Args:
        mech: says whether it is traced to scalars; nothing else of it matters.
        V: `[*batch, x, x]`, symmetric.
        v: `[*batch, x]`.
        A: `[*batch, x, x]`.
        B: `[*batch, x, m]`.
        gradient: g, `[*batch, x + m]`.
        hessian: H, `[*batch, x + m, x + m]`, symmetric.
        mu: regularisation, `[*batch]`.

    Returns:
        V and v before the step; k `[*batch, m]` and K `[*batch, m, x]`; the slope and the curvature of the
        value along k, the mean of the diagonal of Q_uu + mu, and 1 where that is positive definite, else 0,
        `[*batch]` each.
    """
    Q = _quadratic(mech, V, v, A, B, gradient, hessian, mu)
    gains = -spd_solve(Q.D, torch.cat([Q.q_u[..., None], Q.Q_ux], -1), scalar=mech.scalar)
    k, K = gains[..., 0], gains[..., 1:]
    slope = (Q.q_u * k).sum(-1)
    curvature = -slope - mu * k.square().sum(-1)
    return *_value(mech, Q, k, K), k, K, slope, curvature, _size(Q), _positive(Q.D, mech.scalar)


def bounded_step(
    mech: Mechanism,
    V: Tensor,
    v: Tensor,
    A: Tensor,
    B: Tensor,
    gradient: Tensor,
    hessian: Tensor,
    low: Tensor,
    high: Tensor,
    mu: Tensor,
) -> tuple[Tensor, ...]:
    """One step back, of inputs that may change between bounds.

    Args:
        mech: as in `riccati_step`, as for V, v, A, B, gradient, hessian and mu.
        V: likewise.
        v: likewise.
        A: likewise.
        B: likewise.
        gradient: likewise.
        hessian: likewise.
        low: least change of the inputs, `[*batch, m]`.
        high: largest change, `[*batch, m]`.
        mu: likewise.

    Returns:
        What `riccati_step` does; 1 where Q_uu + mu of those inputs is positive definite that are not at a
        bound which q_u pushes against.
    """
    Q = _quadratic(mech, V, v, A, B, gradient, hessian, mu)
    one = torch.ones_like(low)
    pushed = ((low >= 0) & (Q.q_u > 0)) | ((high <= 0) & (Q.q_u < 0))
    free, k = torch.where(pushed, torch.zeros_like(one), one), torch.zeros_like(one)
    good = _positive(_of_free(mech, Q.D, free), mech.scalar)
    for _ in range(k.shape[-1]):  # each time one more is held, or none has to be
        rest = free * (Q.q_u + matvec(Q.D, (1 - free) * k))
        moved = -spd_solve(_of_free(mech, Q.D, free), rest[..., None], scalar=mech.scalar)[..., 0]
        asked = torch.where(free > 0, moved, k)
        k = torch.minimum(torch.maximum(asked, low), high)
        free = torch.where((asked < low) | (asked > high), torch.zeros_like(one), free)
    K = -spd_solve(_of_free(mech, Q.D, free), free[..., None] * Q.Q_ux, scalar=mech.scalar)
    slope = (Q.q_u * k).sum(-1)
    curvature = (k * matvec(Q.D, k)).sum(-1) - mu * k.square().sum(-1)
    return *_value(mech, Q, k, K), k, K, slope, curvature, _size(Q), good


def _quadratic(
    mech: Mechanism,
    V: Tensor,
    v: Tensor,
    A: Tensor,
    B: Tensor,
    gradient: Tensor,
    hessian: Tensor,
    mu: Tensor,
) -> _Quadratic:
    scalar, x = mech.scalar, A.shape[-1]
    V, hessian = (symmetric_part(M, scalar=scalar) for M in (V, hessian))
    VA, VB = V @ A, V @ B
    q_x = gradient[..., :x] + matvec(A.mT, v)
    q_u = gradient[..., x:] + matvec(B.mT, v)
    Q_xx = hessian[..., :x, :x] + A.mT @ VA
    Q_ux = hessian[..., x:, :x] + B.mT @ VA
    more = torch.diag_embed(mu[..., None].expand_as(q_u))
    D = symmetric_part(hessian[..., x:, x:] + B.mT @ VB + more, scalar=scalar)
    return _Quadratic(q_x, q_u, Q_xx, Q_ux, D, mu)


def _value(mech: Mechanism, Q: _Quadratic, k: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
    """V and v before the step: k and K solve for the inputs that are not held."""
    mu = Q.mu[..., None, None]
    V = symmetric_part(Q.Q_xx + Q.Q_ux.mT @ K - mu * (K.mT @ K), scalar=mech.scalar)
    return V, Q.q_x + matvec((Q.Q_ux - mu * K).mT, k)


def _of_free(mech: Mechanism, D: Tensor, free: Tensor) -> Tensor:
    """D of the inputs that are free, and the identity of those that are not."""
    both = free[..., None] * free[..., None, :]
    return symmetric_part(both * D + torch.diag_embed(1 - free), scalar=mech.scalar)


def _size(Q: _Quadratic) -> Tensor:
    return Q.D.diagonal(dim1=-2, dim2=-1).sum(-1) / Q.D.shape[-1]


def _positive(D: Tensor, scalar: bool) -> Tensor:
    """1 where a symmetric matrix is positive definite, else 0, `[*batch]`."""
    if scalar:
        good = torch.stack([pivot > 0 for pivot in ldl(D)[0]], -1).all(-1)
    else:
        good = torch.linalg.cholesky_ex(D).info == 0
    return torch.where(good, torch.ones_like(D[..., 0, 0]), torch.zeros_like(D[..., 0, 0]))
