r"""Implicit methods of order 2 solved by Newton's method: the midpoint rule, and a variational integrator.

Both move by one tangent step u, and evaluate the forces at its midpoint.

The midpoint rule finds the new velocity w of

.. math::
    w = v + h\, \ddot q(t + \tfrac h2,\; q \oplus \tfrac u2,\; \tfrac{v + w}2), \qquad u = h \tfrac{v + w}2.

The variational integrator finds the u at which the discrete Lagrangian

.. math:: L_d(q, q \oplus u) = h\, L(q \oplus \tfrac u2, \tfrac uh), \qquad L = T - U,

satisfies the discrete Lagrange-d'Alembert equations in momentum form:

.. math::
    \mathcal M(q) v = -D_1 L_d - \tfrac h2 f, \qquad \mathcal M(q') v' = D_2 L_d + \tfrac h2 f,

with all non-conservative forces f at the midpoint. Gravity has a potential, and so have springs except some
of spherical and free joints (`torchsko.potential_energy`). Without f the map is symplectic: its energy stays
near the initial one for exponentially long times, and momenta of symmetries are conserved to rounding.

Reference: J. Marsden, M. West, *Discrete mechanics and variational integrators*, Acta Numerica 10, 2001,
sections 2.6.2 and 3.2; E. Hairer, C. Lubich, G. Wanner, *Geometric Numerical Integration*, 2nd edition,
Springer 2006, sections VI.6 and IX.8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.integrators.step import Coordinates, Dynamics, Integrator
from torchsko.linalg.symmetric import spd_solve
from torchsko.linalg.unpivoted import solve_without_pivots
from torchsko.mechanism.configuration import add_step, subtract
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.dynamics import inverse_dynamics, mass_matrix
from torchsko.verbs.momenta import kinetic_energy, potential_energy
from torchsko.verbs.passive.springs import spring_energy
from torchsko.verbs.passive_forces import passive_force

Residual = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ImplicitMidpoint(Integrator):
    """The implicit midpoint rule, as a `Step`: order 2, symmetric, stable on stiff linear systems.

    Each iteration needs the derivatives of the dynamics, in eager mode at ten or more times the cost of an
    evaluation. The method is meant for kernels:
    ``ts.rollout(ts.fuse(mech), ..., method=ImplicitMidpoint(), fused=True)`` with a function as control.

    Attributes:
        iterations: of Newton's method, from the velocity before the step. Each takes an evaluation and its
            Jacobian. The number is fixed, so that a step can be traced and differentiated.
    """

    iterations: int = 3
    order: int = field(default=2, init=False)

    def __call__(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> Coordinates:
        """The next state."""

        def residual(w: Tensor) -> Tensor:
            rate = (qd + w) / 2
            qdd = accelerate(mech, t + dt / 2, add_step(mech, q, dt / 2 * rate), rate)
            return w - qd - dt * qdd

        w = newton(residual, qd, self.iterations)
        return add_step(mech, q, dt * (qd + w) / 2), w


@dataclass(frozen=True)
class Variational(Integrator):
    """The variational midpoint method with forces, as a `Step`: order 2, symplectic without them.

    Under gravity and springs alone it conserves momenta exactly and energy nearly, for any number of steps.
    Each iteration needs second derivatives of the energies. The method is meant for kernels:
    ``ts.rollout(ts.fuse(mech), ..., method=Variational(), fused=True)`` with a function as control.

    Attributes:
        iterations: of Newton's method; see `ImplicitMidpoint`.
    """

    iterations: int = 3
    order: int = field(default=2, init=False)

    def __call__(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> Coordinates:
        """The next state."""
        p = matvec(mass_matrix(mech, q), qd)

        def action(start: Tensor, end: Tensor) -> Tensor:
            u = subtract(mech, start, end)
            middle = add_step(mech, start, u / 2)
            lagrangian = kinetic_energy(mech, middle, u / dt) - potential_energy(mech, middle)
            # A time step per sample is [*batch, 1], a common one a number or [].
            return lagrangian * (dt[..., 0] if isinstance(dt, Tensor) and dt.ndim else dt)

        def impulse(u: Tensor) -> Tensor:
            """Half the impulse of the non-conservative forces."""
            middle, rate = add_step(mech, q, u / 2), u / dt
            qdd = accelerate(mech, t + dt / 2, middle, rate)
            applied = inverse_dynamics(mech, middle, rate, qdd)
            return dt / 2 * (applied - _nonconservative_force(mech, middle, rate))

        def residual(u: Tensor) -> Tensor:
            end = add_step(mech, q, u)
            slope = _slope(lambda a: action(add_step(mech, q, a), end), u)
            return -slope - impulse(u) - p

        u = newton(residual, dt * qd, self.iterations)
        end = add_step(mech, q, u)
        after = _slope(lambda b: action(q, add_step(mech, end, b)), u) + impulse(u)
        M = mass_matrix(mech, end)
        return end, spd_solve(M, after[..., None])[..., 0]


def _nonconservative_force(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Passive forces without those of the Lagrangian, `[*batch, num_dof]`."""
    mech = mech.replace(has_gravcomp=False, has_armature=False)
    if all(kind.vector for kind in mech.joints.kinds):
        none = {
            name: torch.zeros_like(getattr(mech, name)) for name in ("stiffness", "modal_stiffness")
        }
        without = mech.replace(**none)
        return passive_force(without.replace(has_higher_stiffness=False), q, qd)
    return passive_force(mech, q, qd) - _slope(
        lambda step: spring_energy(Kinematics.of(mech, add_step(mech, q, step))), qd
    )


def _slope(fn: Residual, like: Tensor) -> Tensor:
    """The gradient of a number with respect to a tangent step at zero, `[*batch, n]`."""
    value, pull = torch.func.vjp(fn, torch.zeros_like(like))[:2]
    return pull(torch.ones_like(value))[0]


def newton(residual: Residual, x: Tensor, iterations: int) -> Tensor:
    """Newton's method with a fixed number of iterations."""
    n = x.shape[-1]
    rows = torch.eye(n, dtype=x.dtype, device=x.device)
    rows = rows.reshape(n, *[1] * (x.ndim - 1), n).expand(n, *x.shape)
    for _ in range(iterations):
        value, pull = torch.func.vjp(residual, x)[:2]
        J = torch.func.vmap(lambda row, pull=pull: pull(row)[0])(rows).movedim(0, -2)
        x = x - solve_without_pivots(J, value)
    return x
