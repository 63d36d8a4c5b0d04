r"""Implicit methods of order 2 whose equations Newton solves: the midpoint rule, and a variational one.

Both move by one tangent step u, and take the forces half way along it.

The midpoint rule finds the new velocity w of

.. math::
    w = v + h\, \ddot q(t + \tfrac h2,\; q \oplus \tfrac u2,\; \tfrac{v + w}2), \qquad u = h \tfrac{v + w}2.

The variational one finds the u at which the discrete Lagrangian

.. math:: L_d(q, q \oplus u) = h\, L(q \oplus \tfrac u2, \tfrac uh), \qquad L = T - U,

obeys the discrete equations of Lagrange and d'Alembert, written with momenta:

.. math::
    \mathcal M(q) v = -D_1 L_d - \tfrac h2 f, \qquad \mathcal M(q') v' = D_2 L_d + \tfrac h2 f,

f all forces without a potential, at the midpoint. Gravity has one, and so have springs, but for some of
spherical and free joints (`torchsko.potential_energy`). Without f the map is symplectic: its energy stays
near that of the start for exponentially long times, and momenta of symmetries stay to rounding.

Reference: J. Marsden, M. West, *Discrete mechanics and variational integrators*, Acta Numerica 10, 2001,
sections 2.6.2 and 3.2; E. Hairer, C. Lubich, G. Wanner, *Geometric Numerical Integration*, 2nd edition,
Springer 2006, sections VI.6 and IX.8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.linalg.symmetric import spd_solve
from torchsko.linalg.unpivoted import solve_without_pivots
from torchsko.mechanism.joints.configuration import add_step, subtract
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.step import Accelerate, State
from torchsko.utils.shapes import matvec
from torchsko.verbs.dynamics import inverse_dynamics, mass_matrix, passive_force
from torchsko.verbs.momenta import kinetic_energy, potential_energy, spring_energy

Residual = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ImplicitMidpoint:
    """The implicit midpoint rule, as a `Step`: order 2, symmetric, stable on stiff linear systems.

    Each iteration takes the derivatives of the dynamics, which eagerly cost ten times an evaluation or more:
    it is meant for kernels, ``ts.rollout(ts.fuse(mech), ..., method=ImplicitMidpoint(), fused=True)`` with a
    control that is a function.

    Attributes:
        iterations: of Newton's method, from the velocity before the step; each takes an evaluation and its
            Jacobian. Their number is fixed, so that a step can be traced and differentiated.
    """

    iterations: int = 3

    def __call__(
        self, mech: Mechanism, accelerate: Accelerate, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> State:
        """The next state."""

        def residual(w: Tensor) -> Tensor:
            rate = (qd + w) / 2
            there = accelerate(mech, t + dt / 2, add_step(mech, q, dt / 2 * rate), rate)
            return w - qd - dt * there

        w = newton(residual, qd, self.iterations, scalar=mech.scalar)
        return add_step(mech, q, dt * (qd + w) / 2), w


@dataclass(frozen=True)
class Variational:
    """The variational midpoint method with forces, as a `Step`: order 2, symplectic without them.

    It keeps the momenta and, nearly, the energy of what only gravity and springs act on, for any number of
    steps. Each iteration takes second derivatives of the energies: it is meant for kernels,
    ``ts.rollout(ts.fuse(mech), ..., method=Variational(), fused=True)`` with a control that is a function.

    Attributes:
        iterations: of Newton's method; see `ImplicitMidpoint`.
    """

    iterations: int = 3

    def __call__(
        self, mech: Mechanism, accelerate: Accelerate, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> State:
        """The next state."""
        p = matvec(mass_matrix(mech, q), qd)

        def action(start: Tensor, end: Tensor) -> Tensor:
            u = subtract(mech, start, end)
            middle = add_step(mech, start, u / 2)
            lagrangian = kinetic_energy(mech, middle, u / dt) - potential_energy(mech, middle)
            # A step for each sample is [*batch, 1], one for all a number or [].
            return lagrangian * (dt[..., 0] if isinstance(dt, Tensor) and dt.ndim else dt)

        def impulse(u: Tensor) -> Tensor:
            """Half of that of all forces without a potential."""
            middle, rate = add_step(mech, q, u / 2), u / dt
            qdd = accelerate(mech, t + dt / 2, middle, rate)
            applied = inverse_dynamics(mech, middle, rate, qdd)
            return dt / 2 * (applied - _without_potential(mech, middle, rate))

        def residual(u: Tensor) -> Tensor:
            end = add_step(mech, q, u)
            slope = _slope(lambda a: action(add_step(mech, q, a), end), u)
            return -slope - impulse(u) - p

        u = newton(residual, dt * qd, self.iterations, scalar=mech.scalar)
        end = add_step(mech, q, u)
        after = _slope(lambda b: action(q, add_step(mech, end, b)), u) + impulse(u)
        M = mass_matrix(mech, end)
        return end, spd_solve(M, after[..., None], scalar=mech.scalar)[..., 0]


def _without_potential(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Passive forces but for the gradient of what `potential_energy` counts, `[*batch, num_dof]`."""
    mech = mech.replace(has_gravcomp=False)
    if all(kind.vector for kind in mech.joints.kinds):
        return passive_force(mech.replace(stiffness=torch.zeros_like(mech.stiffness)), q, qd)
    return passive_force(mech, q, qd) - _slope(
        lambda step: spring_energy(mech, add_step(mech, q, step)), qd
    )


def _slope(fn: Residual, like: Tensor) -> Tensor:
    """The gradient of a number at a tangent step of zero, `[*batch, n]`."""
    value, pull = torch.func.vjp(fn, torch.zeros_like(like))[:2]
    return pull(torch.ones_like(value))[0]


def newton(residual: Residual, x: Tensor, iterations: int, *, scalar: bool) -> Tensor:
    """Newton's method, so many iterations of it.

    Args:
        residual: `[*batch, n]` to `[*batch, n]`; its Jacobian has a positive definite symmetric part.
        x: where to start, `[*batch, n]`.
        iterations: their number.
        scalar: as in `torchsko.linalg.unpivoted`.
    """
    n = x.shape[-1]
    rows = torch.eye(n, dtype=x.dtype, device=x.device)
    rows = rows.reshape(n, *[1] * (x.ndim - 1), n).expand(n, *x.shape)
    for _ in range(iterations):
        value, pull = torch.func.vjp(residual, x)[:2]
        J = torch.func.vmap(lambda row, pull=pull: pull(row)[0])(rows).movedim(0, -2)
        x = x - solve_without_pivots(J, value, scalar=scalar)
    return x
