r"""One step of the Riccati recursion: the value function before a step from that after it.

With :math:`x' = A x + B u`, costs :math:`\tfrac12 z^* H z + g^* z`, z = [x; u], and the value
:math:`\tfrac12 x'^* V x' + v^* x'` after the step,

.. math::
    Q = H + [A\; B]^* V [A\; B], \qquad q = g + [A\; B]^* v, \\
    [k\; K] = -(Q_{uu} + \mu)^{-1} [q_u\; Q_{ux}], \\
    V \leftarrow Q_{xx} + Q_{xu} K - \mu K^* K, \qquad v \leftarrow q_x + Q_{xu} k - \mu K^* k.

Inputs that would leave their bounds are fixed there, one after another. The remaining entries of k minimize
the rest, and the rows of K of fixed inputs are zero, so the value function accounts for the bounds.

Reference: Y. Tassa, T. Erez, E. Todorov, *Synthesis and stabilization of complex behaviors through online
trajectory optimization*, IROS 2012, Eqs. 5 and 10-11 (with the regularization on the inputs). Y. Tassa,
N. Mansard, E. Todorov, *Control-limited differential dynamic programming*, ICRA 2014, section IV (bounds;
inputs once fixed are not released within a step, where that paper solves the quadratic program).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.linalg.symmetric import ldl, spd_solve, symmetric_part
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec


class _Quadratic(NamedTuple):
    """The regularized value before a step as a function of x and u: D is Q_uu + mu."""

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
    """One step backwards, without bounds.

    Args:
        mech: not used; functions of a kernel take a mechanism first.
        V: `[*batch, x, x]`, symmetric.
        v: `[*batch, x]`.
        A: `[*batch, x, x]`.
        B: `[*batch, x, m]`.
        gradient: g, `[*batch, x + m]`.
        hessian: H, `[*batch, x + m, x + m]`, symmetric.
        mu: regularization, `[*batch]`.

    Returns:
        V and v before the step; k `[*batch, m]` and K `[*batch, m, x]`; and `[*batch]` each: the slope and
        the curvature of the value along k, the mean diagonal of Q_uu + mu, and 1 where that is positive
        definite, else 0.
    """
    Q = _quadratic(V, v, A, B, gradient, hessian, mu)
    gains = -spd_solve(Q.D, torch.cat([Q.q_u[..., None], Q.Q_ux], -1))
    k, K = gains[..., 0], gains[..., 1:]
    slope = (Q.q_u * k).sum(-1)
    curvature = -slope - mu * k.square().sum(-1)
    return *_value(Q, k, K), k, K, slope, curvature, _size(Q), _positive(Q.D)


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
    """One step backwards, with bounds `low` and `high`, `[*batch, m]`, on the change of the inputs.

    Arguments and results are those of `riccati_step`. The last result is 1 where Q_uu + mu of the inputs that
    are not at an active bound is positive definite.
    """
    Q = _quadratic(V, v, A, B, gradient, hessian, mu)
    one = torch.ones_like(low)
    active = ((low >= 0) & (Q.q_u > 0)) | ((high <= 0) & (Q.q_u < 0))
    free, k = torch.where(active, torch.zeros_like(one), one), torch.zeros_like(one)
    positive_definite = _positive(_free_block(Q.D, free))
    for _ in range(k.shape[-1]):  # each pass fixes at least one more input, or is the last
        rest = free * (Q.q_u + matvec(Q.D, (1 - free) * k))
        step = -spd_solve(_free_block(Q.D, free), rest[..., None])[..., 0]
        unclamped = torch.where(free > 0, step, k)
        k = torch.minimum(torch.maximum(unclamped, low), high)
        free = torch.where((unclamped < low) | (unclamped > high), torch.zeros_like(one), free)
    K = -spd_solve(_free_block(Q.D, free), free[..., None] * Q.Q_ux)
    slope = (Q.q_u * k).sum(-1)
    curvature = (k * matvec(Q.D, k)).sum(-1) - mu * k.square().sum(-1)
    return *_value(Q, k, K), k, K, slope, curvature, _size(Q), positive_definite


def costate_step(
    mech: Mechanism, p: Tensor, A: Tensor, B: Tensor, gradient: Tensor
) -> tuple[Tensor, ...]:
    """The costate before a step; that after it, and the gradient of the cost with respect to its input."""
    x = A.shape[-1]
    before = gradient[..., :x] + matvec(A.mT, p)
    return before, p, gradient[..., x:] + matvec(B.mT, p)


def backward_step(
    mech: Mechanism, V: Tensor, v: Tensor, s: Tensor, A: Tensor, B: Tensor, gradient: Tensor,
    hessian: Tensor, gap: Tensor, costate: Tensor, descent: Tensor, mu: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One step of the backward pass without bounds; see `torchsko.control.ilqr.backward_pass`.

    Args:
        mech: not used; functions of a kernel take a mechanism first.
        V: Hessian of the value after the step and its gap, `[*batch, x, x]`.
        v: gradient of that value, `[*batch, x]`.
        s: what the policy adds to the costate, `[*batch, x]`.
        A: `[*batch, x, x]`.
        B: `[*batch, x, m]`.
        gradient: g, `[*batch, x + m]`.
        hessian: H, `[*batch, x + m, x + m]`, symmetric.
        gap: gap that follows the step, `[*batch, x]`.
        costate: costate after the step, `[*batch, x]`.
        descent: gradient of the cost with respect to the input, `[*batch, m]`.
        mu: regularization, `[*batch]`.

    Returns:
        V, v and s before the step, k, K, the change of the cost by this step along the policy, first order in
        alpha and at alpha = 1, the mean diagonal of Q_uu, and 1 where Q_uu is positive definite.
    """
    riccati = partial(riccati_step, mech)
    return _backward_step(riccati, V, v, s, A, B, gradient, hessian, gap, costate, descent, mu)


def bounded_backward_step(
    mech: Mechanism, V: Tensor, v: Tensor, s: Tensor, A: Tensor, B: Tensor, gradient: Tensor,
    hessian: Tensor, gap: Tensor, costate: Tensor, descent: Tensor, low: Tensor, high: Tensor,
    mu: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """`backward_step` with bounds on the change of the inputs."""

    def riccati(
        V: Tensor, v: Tensor, A: Tensor, B: Tensor, gradient: Tensor, hessian: Tensor, mu: Tensor
    ) -> tuple[Tensor, ...]:
        return bounded_step(mech, V, v, A, B, gradient, hessian, low, high, mu)

    return _backward_step(riccati, V, v, s, A, B, gradient, hessian, gap, costate, descent, mu)


def _backward_step(
    riccati: Callable[..., tuple[Tensor, ...]], V: Tensor, v: Tensor, s: Tensor, A: Tensor, B: Tensor,
    gradient: Tensor, hessian: Tensor, gap: Tensor, costate: Tensor, descent: Tensor, mu: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    Ve = matvec(V, gap)
    gap_cost = (gap * (Ve / 2 - v)).sum(-1)
    V, v, k, K, slope, curvature, size, positive_definite = riccati(
        V, v - Ve, A, B, gradient, hessian, mu
    )
    full_step = slope + curvature / 2 + gap_cost
    by_input = descent + matvec(B.mT, s)
    slope = (by_input * k).sum(-1) - ((s + costate) * gap).sum(-1)
    s = matvec(A.mT, s) + matvec(K.mT, by_input)
    return V, v, s, k, K, slope, full_step, size, positive_definite


def _quadratic(
    V: Tensor,
    v: Tensor,
    A: Tensor,
    B: Tensor,
    gradient: Tensor,
    hessian: Tensor,
    mu: Tensor,
) -> _Quadratic:
    x = A.shape[-1]
    V, hessian = (symmetric_part(M) for M in (V, hessian))
    VA, VB = V @ A, V @ B
    q_x = gradient[..., :x] + matvec(A.mT, v)
    q_u = gradient[..., x:] + matvec(B.mT, v)
    Q_xx = hessian[..., :x, :x] + A.mT @ VA
    Q_ux = hessian[..., x:, :x] + B.mT @ VA
    regularization = torch.diag_embed(mu[..., None].expand_as(q_u))
    D = symmetric_part(hessian[..., x:, x:] + B.mT @ VB + regularization)
    return _Quadratic(q_x, q_u, Q_xx, Q_ux, D, mu)


def _value(Q: _Quadratic, k: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
    """V and v before the step under the policy k, K."""
    mu = Q.mu[..., None, None]
    V = symmetric_part(Q.Q_xx + Q.Q_ux.mT @ K - mu * (K.mT @ K))
    return V, Q.q_x + matvec((Q.Q_ux - mu * K).mT, k)


def _free_block(D: Tensor, free: Tensor) -> Tensor:
    """D of the free inputs, and the identity for fixed ones."""
    mask = free[..., None] * free[..., None, :]
    return symmetric_part(mask * D + torch.diag_embed(1 - free))


def _size(Q: _Quadratic) -> Tensor:
    return Q.D.diagonal(dim1=-2, dim2=-1).sum(-1) / Q.D.shape[-1]


def _positive(D: Tensor) -> Tensor:
    """1 where a symmetric matrix is positive definite, else 0, `[*batch]`."""
    if is_scalar_form():
        positive_definite = torch.stack([pivot > 0 for pivot in ldl(D)[0]], -1).all(-1)
    else:
        positive_definite = torch.linalg.cholesky_ex(D).info == 0
    return torch.where(
        positive_definite, torch.ones_like(D[..., 0, 0]), torch.zeros_like(D[..., 0, 0])
    )
