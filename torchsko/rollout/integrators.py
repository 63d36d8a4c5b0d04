r"""Integrators: how a state moves over one time step, on the manifold of configurations.

A step is a function of (mech, accelerate, t, q, qd, dt) that returns the next q and qd, where
``accelerate(mech, t, q, qd)`` gives qdd: of the mechanism given, which a step may have changed (implicit
damping is an armature more). dt is a number, or a tensor `[*batch, 1]`. `INTEGRATORS` lists them by name.
Configurations move on their manifold, never by addition, so quaternions stay unit quaternions.

`SemiImplicitEuler` and `ImplicitEuler` take damping and dry friction implicitly. In the others they are
forces like any other: damping that is stiff for the step (h B above about twice the inertia it acts on) blows
up. `ImplicitEuler` takes Coriolis forces implicitly, too.

Runge-Kutta methods work in the tangent space at q (Munthe-Kaas): q(t) = integrate(q, u(t)), and u
obeys

.. math::
    \dot u = v + \tfrac12 [u, v] + \tfrac1{12} [u, [u, v]] + O(u^4),

v the body-frame velocity and [., .] the bracket of SO(3) or SE(3), zero on ordinary joints. The
first two corrections suffice for order 4.

Reference: H. Munthe-Kaas, *High order Runge-Kutta methods on manifolds*, Applied Numerical
Mathematics 29(1), 1999.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.coordinates import among_all_dofs, own_forces
from torchsko.mechanism.joints.configuration import advance, bracket, integrate, transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.implicit import ImplicitEuler
from torchsko.rollout.step import Accelerate, State, Step, implicit_losses


@dataclass(frozen=True)
class SemiImplicitEuler:
    r"""Velocity first, then position with the new velocity, as a `Step`: order 1, one evaluation.

    Damping and dry friction act on the new velocity, so no step is too long for them:

    .. math::
        (\mathcal M + h B)\, \ddot q = \tau - \mathcal C - B \dot q, \quad
        B = d + f / \sqrt{\dot q^2 + v_s^2},

    with h the step, d the damping, f the dry friction and C the Coriolis, gravity and spring forces. The
    diagonal h B enters as armature does, at the cost of one forward dynamics. Dry friction by its secant
    opposes motion, and never reverses it: held by f a joint creeps at v_s tau / sqrt(f^2 - tau^2), and takes
    some log(v / v_s) / log(tau / f) steps to break loose. The linear velocity of a free joint is carried over
    in the axes of the joint frame, so what no force acts on flies straight on, at constant speed.

    This is MuJoCo's "Euler" (with its implicit damping), whose dry friction is a soft constraint instead.
    Energy is kept to O(h) over times that depend on the motion; see ``benchmarks/energy.py``. Coriolis forces
    are those of the old velocity, which can feed energy to light links that damping hardly slows: there
    `ImplicitEuler`.

    Attributes:
        creep: speed v_s below which dry friction acts like damping [rad/s or m/s].

    Reference: MuJoCo documentation, Computation, "Numerical integration" (Euler with implicit damping).
    """

    creep: float = 1e-4

    def __call__(
        self, mech: Mechanism, accelerate: Accelerate, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> State:
        """The next state."""
        if not mech.has_losses:
            return advance(mech, q, qd, accelerate(mech, t, q, qd), dt)
        opposed, turning = implicit_losses(mech, qd, dt, self.creep), transport_rate(mech, qd, qd)
        held = None
        if turning is not None:
            held = own_forces(mech, -dt * opposed.damping * among_all_dofs(mech, turning))
        qdd = accelerate(opposed, t, q, qd, held)
        return advance(mech, q, qd, qdd, dt)


@dataclass(frozen=True)
class RungeKutta:
    """An explicit Runge-Kutta method, as a `Step`.

    Attributes:
        rows: coefficients of each later stage on the stages before it.
        weights: of the stages in the step.
    """

    rows: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]

    def __call__(
        self, mech: Mechanism, accelerate: Accelerate, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> State:
        """The next state; order at most 4 where a joint is spherical or free."""
        rates: list[State] = [(qd, accelerate(mech, t, q, qd))]
        for row in self.rows:
            u, change = _combine(row, rates, dt)
            v = qd + change
            qdd = accelerate(mech, t + dt * sum(row), integrate(mech, q, u), v)
            rates.append((_tangent_rate(mech, u, v), qdd))
        u, change = _combine(self.weights, rates, dt)
        return integrate(mech, q, u), qd + change


def _combine(coefficients: tuple[float, ...], rates: list[State], dt: float) -> State:
    used = [(dt * c, rate) for c, rate in zip(coefficients, rates, strict=True) if c]
    u = torch.stack([c * rate[0] for c, rate in used]).sum(0)
    return u, torch.stack([c * rate[1] for c, rate in used]).sum(0)


def _tangent_rate(mech: Mechanism, u: Tensor, v: Tensor) -> Tensor:
    """Rate of the tangent step u at which the body-frame velocity is v, `[*batch, num_dof]`."""
    if all(kind.vector for kind in mech.joints.kinds):
        return v
    once = bracket(mech, u, v)
    return v + once / 2 + bracket(mech, u, once) / 12


@dataclass(frozen=True)
class NewmarkBeta:
    """Newmark's implicit method, as a `Step`.

    beta 1/4 and delta 1/2 is the average acceleration method, the same as the trapezoidal rule: order 2,
    unconditionally stable on linear systems, whose energy it keeps. Each correction puts the latest
    acceleration into both formulas and evaluates it again; the number is fixed, so that a step can be
    traced and differentiated. What is left of the equation after `corrections` of them is of order
    h^(2 corrections) (h^corrections under damping): they converge while h^2 |da/dq| / 4 + h |da/dv| / 2
    is below 1, so stiffness that explicit methods cannot follow is not for this one either.

    Attributes:
        beta: weight of the new acceleration in the displacement.
        delta: weight of the new acceleration in the velocity; other values than 1/2 give order 1.
        corrections: evaluations of the new acceleration, one at least.

    Reference: Isobe and Yagi (undated), General-purpose expression, section II.A.
    """

    beta: float = 0.25
    delta: float = 0.5
    corrections: int = 3

    def __call__(
        self, mech: Mechanism, accelerate: Accelerate, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> State:
        """The next state."""
        before = after = accelerate(mech, t, q, qd)
        moved = self._move(mech, q, qd, before, after, dt)
        for _ in range(self.corrections):
            after = accelerate(mech, t + dt, *moved)
            moved = self._move(mech, q, qd, before, after, dt)
        return moved

    def rates(self, u: Tensor, qd: Tensor, qdd: Tensor, dt: float) -> State:
        """Velocity and acceleration at the end of a step from its displacement.

        Args:
            u: displacement over the step, `[*batch, num_dof]` [rad or m].
            qd: velocity at its start.
            qdd: acceleration at its start.
            dt: time step [s].

        Returns:
            Velocity and acceleration at its end, each `[*batch, num_dof]`. With delta 1/2 errors made at
            the start of a motion are not damped: start from its true rates.

        Reference: Isobe and Yagi (undated), General-purpose expression, Eq. 3.
        """
        after = (u / dt - qd) / (self.beta * dt) - (1 / (2 * self.beta) - 1) * qdd
        return qd + dt * ((1 - self.delta) * qdd + self.delta * after), after

    def _move(
        self, mech: Mechanism, q: Tensor, qd: Tensor, before: Tensor, after: Tensor, dt: float
    ) -> State:
        u = dt * qd + dt**2 * ((0.5 - self.beta) * before + self.beta * after)
        v = qd + dt * ((1 - self.delta) * before + self.delta * after)
        return integrate(mech, q, u), v


SEMI_IMPLICIT_EULER = SemiImplicitEuler()
"""The default: one evaluation a step, any damping."""

IMPLICIT_EULER = ImplicitEuler()
"""Coriolis forces on the new velocity, too: for light links that spin."""

RK4 = RungeKutta(rows=((0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), weights=(1 / 6, 1 / 3, 1 / 3, 1 / 6))
"""The classical method of order 4: four evaluations a step."""

NEWMARK = NewmarkBeta()
"""The average acceleration method of order 2: three corrections, four evaluations a step."""

INTEGRATORS: dict[str, Step] = {
    "semi_implicit_euler": SEMI_IMPLICIT_EULER,
    "implicit": IMPLICIT_EULER,
    "rk4": RK4,
    "newmark": NEWMARK,
}
"""The methods that `torchsko.rollout` knows by name."""
