r"""One step back of a linear-quadratic problem: the value function before a step from that after it.

With :math:`x' = A x + B u`, costs :math:`\tfrac12 z^* H z + g^* z`, z = [x; u], and the value
:math:`\tfrac12 x'^* V x' + v^* x'` after the step,

.. math::
    Q = H + [A\; B]^* V [A\; B], \qquad q = g + [A\; B]^* v, \\
    [k\; K] = -(Q_{uu} + \mu)^{-1} [q_u\; Q_{ux}], \\
    V \leftarrow Q_{xx} + Q_{xu} K - \mu K^* K, \qquad v \leftarrow q_x + Q_{xu} k - \mu K^* k.

Inputs that are not free stay: their rows of k and K are zero.

Reference: Y. Tassa, T. Erez, E. Todorov, *Synthesis and stabilization of complex behaviors through online
trajectory optimization*, IROS 2012, Eqs. 5 and 10-11 (with the regularisation on the inputs). D. Bertsekas,
*Projected Newton methods for optimization problems with simple constraints*, SIAM Journal on Control and
Optimization 20(2), 1982 (inputs that stay).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.mechanism.mechanism import Mechanism
from torchsko.symmetric import ldl, spd_solve, symmetric_part


def riccati_step(
    mech: Mechanism,
    V: Tensor,
    v: Tensor,
    A: Tensor,
    B: Tensor,
    gradient: Tensor,
    hessian: Tensor,
    free: Tensor,
    mu: Tensor,
) -> tuple[Tensor, ...]:
    """One step back.

    Args:
        mech: says whether it is traced to scalars; nothing else of it matters.
        V: `[*batch, x, x]`, symmetric.
        v: `[*batch, x]`.
        A: `[*batch, x, x]`.
        B: `[*batch, x, m]`.
        gradient: g, `[*batch, x + m]`.
        hessian: H, `[*batch, x + m, x + m]`, symmetric.
        free: 1 for inputs that may change, 0 for those that stay, `[*batch, m]`.
        mu: regularisation, `[*batch]`.

    Returns:
        V and v before the step; k `[*batch, m]` and K `[*batch, m, x]`; the slope and the curvature of the
        value along k, the mean of the diagonal of Q_uu + mu, and 1 where that is positive definite, else 0,
        `[*batch]` each.
    """
    scalar, x = mech.scalar, A.shape[-1]
    V, hessian = (symmetric_part(M, scalar=scalar) for M in (V, hessian))
    VA, VB = V @ A, V @ B
    q_x = gradient[..., :x] + (A.mT @ v[..., None])[..., 0]
    q_u = free * (gradient[..., x:] + (B.mT @ v[..., None])[..., 0])
    Q_xx = hessian[..., :x, :x] + A.mT @ VA
    Q_ux = free[..., None] * (hessian[..., x:, :x] + B.mT @ VA)
    held = torch.diag_embed(1 - free + mu[..., None] * free)
    both = free[..., None] * free[..., None, :]
    D = symmetric_part(both * (hessian[..., x:, x:] + B.mT @ VB) + held, scalar=scalar)
    gains = -spd_solve(D, torch.cat([q_u[..., None], Q_ux], -1), scalar=scalar)
    k, K = gains[..., 0], gains[..., 1:]
    V = symmetric_part(Q_xx + Q_ux.mT @ K - mu[..., None, None] * (K.mT @ K), scalar=scalar)
    lost = (Q_ux - mu[..., None, None] * K).mT @ k[..., None]
    slope, square = (q_u * k).sum(-1), k.square().sum(-1)
    size = D.diagonal(dim1=-2, dim2=-1).sum(-1) / D.shape[-1]
    rest = slope, -slope - mu * square, size, _positive(D, scalar)
    return V, q_x + lost[..., 0], k, K, *rest


def _positive(D: Tensor, scalar: bool) -> Tensor:
    """1 where a symmetric matrix is positive definite, else 0, `[*batch]`."""
    if scalar:
        good = torch.stack([pivot > 0 for pivot in ldl(D)[0]], -1).all(-1)
    else:
        good = torch.linalg.cholesky_ex(D).info == 0
    return torch.where(good, torch.ones_like(D[..., 0, 0]), torch.zeros_like(D[..., 0, 0]))
