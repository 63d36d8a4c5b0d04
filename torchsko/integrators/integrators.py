r"""Integrators: one time step of a state on the manifold of configurations.

A step is a function of (mech, accelerate, t, q, qd, dt) that returns the next q and qd, where
``accelerate(mech, t, q, qd)`` returns qdd. The mechanism passed there may differ from the original (implicit
damping is added to the armature). dt is a number, or a tensor `[*batch, 1]`. Configurations move on their
manifold, so quaternions stay unit quaternions.

`INTEGRATORS` lists the integrators by name. To add one, write a class like those below, with an `order`, in a
module, and add an entry: `torchsko.rollout`, the kernels and the test of orders iterate over this table.

`SemiImplicitEuler` and `ImplicitEuler` take damping and dry friction implicitly, and `ImplicitEuler` also
Coriolis forces. The other methods take them explicitly and are unstable for stiff damping, with h B above
about twice the inertia.

Runge-Kutta methods work in the tangent space at q (Munthe-Kaas): q(t) = integrate(q, u(t)), and u obeys

.. math::
    \dot u = v + \tfrac12 [u, v] + \tfrac1{12} [u, [u, v]] + O(u^4),

with the body-frame velocity v and the bracket [., .] of SO(3) or SE(3), zero on other joints. The
first two corrections suffice for order 4.

Reference: H. Munthe-Kaas, *High order Runge-Kutta methods on manifolds*, Applied Numerical
Mathematics 29(1), 1999.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from torchsko.contact.drive import check_activations
from torchsko.errors import TorchskoError, unknown_name
from torchsko.integrators.implicit import ImplicitEuler, SemiImplicitEuler
from torchsko.integrators.step import Coordinates, Dynamics, Integrator
from torchsko.mechanism.configuration import bracket
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, fused_methods_of
from torchsko.mechanism.manifold import integrate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State, check_is_state
from torchsko.mechanism.state import check_state
from torchsko.mechanism.time_step import check_dt
from torchsko.utils.runge_kutta import RK4_ROWS, RK4_WEIGHTS, Rates, combine, stage_rates
from torchsko.utils.shapes import broadcast_shapes
from torchsko.verbs.dynamics import refuse_singular
from torchsko.verbs.held.held_dynamics import HeldConstraints


@dataclass(frozen=True)
class RungeKutta(Integrator):
    """An explicit Runge-Kutta method, as a `Step`.

    Attributes:
        rows: coefficients of each later stage on the stages before it.
        weights: of the stages in the step.
        order: of the method; at most 4 where a joint is spherical or free.
    """

    rows: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    order: int
    evaluates_start: ClassVar[bool] = True

    def __call__(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> Coordinates:
        """The next state."""
        rate = partial(tangent_rates, _tangent_rate, mech, accelerate, t, q, qd)
        u, change = combine(self.weights, stage_rates(self.rows, rate, dt), dt)
        return integrate(mech, q, u), qd + change


def tangent_rates(
    of_step: Callable[[Mechanism, Tensor, Tensor], Tensor],
    mech: Mechanism,
    accelerate: Dynamics,
    t: float,
    q: Tensor,
    qd: Tensor,
    span: Any,
    changes: Rates | None,
) -> Coordinates:
    """Rates of a tangent step at q and of the velocity, after their changes over a time span.

    Args:
        of_step: rate of a tangent step u for the body-frame velocity v: a function of (mech, u, v).
        mech: the mechanism.
        accelerate: its dynamics.
        t: time at the start [s].
        q: configuration there, `[*batch, num_q]`.
        qd: velocity there, `[*batch, num_dof]`.
        span: time since then [s].
        changes: of the tangent step and the velocity since then; None at the start.
    """
    if changes is None:
        return qd, accelerate(mech, t, q, qd)
    u, v = changes[0], qd + changes[1]
    return of_step(mech, u, v), accelerate.shared(mech, t + span, integrate(mech, q, u), v)


def _tangent_rate(mech: Mechanism, u: Tensor, v: Tensor) -> Tensor:
    """Rate of the tangent step u for the body-frame velocity v, `[*batch, num_dof]`."""
    if all(kind.vector for kind in mech.joints.kinds):
        return v
    once = bracket(mech, u, v)
    return v + once / 2 + bracket(mech, u, once) / 12


@dataclass(frozen=True)
class NewmarkBeta(Integrator):
    """Newmark's implicit method, as a `Step`.

    With beta 1/4 and delta 1/2 it is the average acceleration method, equal to the trapezoidal rule: order 2,
    unconditionally stable and energy-conserving on linear systems. The equation is solved by fixed-point
    iterations, whose number is fixed so that a step can be traced and differentiated. After `corrections`
    iterations the error of the equation is of order h^(2 corrections) (h^corrections with damping). They
    converge while h^2 |da/dq| / 4 + h |da/dv| / 2 is below 1, so the method does not suit stiff systems.

    Attributes:
        beta: weight of the new acceleration in the displacement.
        delta: weight of the new acceleration in the velocity; values other than 1/2 give order 1.
        corrections: evaluations of the new acceleration, at least one.

    Reference: Isobe and Yagi (undated), General-purpose expression, section II.A.
    """

    beta: float = 0.25
    delta: float = 0.5
    corrections: int = 3
    order: int = field(init=False)
    evaluates_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", 2 if self.delta == 0.5 else 1)

    def __call__(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> Coordinates:
        """The next state."""
        before = after = accelerate(mech, t, q, qd)
        state = self._move(mech, q, qd, before, after, dt)
        for _ in range(self.corrections):
            after = accelerate(mech, t + dt, *state)
            state = self._move(mech, q, qd, before, after, dt)
        return state

    def rates(self, u: Tensor, qd: Tensor, qdd: Tensor, dt: float) -> Coordinates:
        """Velocity and acceleration at the end of a step from its displacement.

        Args:
            u: displacement over the step, `[*batch, num_dof]` [rad or m].
            qd: velocity at its start.
            qdd: acceleration at its start.
            dt: time step [s].

        Returns:
            Velocity and acceleration at its end, each `[*batch, num_dof]`. With delta 1/2 initial errors are
            not damped: start from the true velocity and acceleration.

        Reference: Isobe and Yagi (undated), General-purpose expression, Eq. 3.
        """
        after = (u / dt - qd) / (self.beta * dt) - (1 / (2 * self.beta) - 1) * qdd
        return qd + dt * ((1 - self.delta) * qdd + self.delta * after), after

    def _move(
        self, mech: Mechanism, q: Tensor, qd: Tensor, before: Tensor, after: Tensor, dt: float
    ) -> Coordinates:
        u = dt * qd + dt**2 * ((0.5 - self.beta) * before + self.beta * after)
        v = qd + dt * ((1 - self.delta) * before + self.delta * after)
        return integrate(mech, q, u), v


@dataclass(frozen=True)
class HeldStep(Integrator):
    """A step of another integrator under the constraints of a `torchsko.constraints.HeldMechanism`.

    Each acceleration is that of the constrained motion under the forces of the rollout. `torchsko.rollout`
    makes this step for a constrained mechanism.

    Attributes:
        constraints: the constraints.
        step: the integrator.

    Reference: Carpentier, Budhiraja, Mansard 2021.
    """

    constraints: HeldConstraints
    step: Integrator

    def __post_init__(self) -> None:
        for name in ("order", "implicit_damping", "single_evaluation", "evaluates_start"):
            object.__setattr__(self, name, getattr(self.step, name))

    def __call__(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> Coordinates:
        """The next state."""
        held = replace(accelerate, constraints=self.constraints)
        return self.step(mech, held, t, q, qd, dt)


SEMI_IMPLICIT_EULER = SemiImplicitEuler()
"""The default: one evaluation per step, stable for any damping."""

IMPLICIT_EULER = ImplicitEuler()
"""With implicit Coriolis forces, for light links that spin."""

RK4 = RungeKutta(RK4_ROWS, RK4_WEIGHTS, order=4)
"""The classical method of order 4: four evaluations per step."""

NEWMARK = NewmarkBeta()
"""The average acceleration method of order 2: three corrections, four evaluations per step."""

INTEGRATORS: dict[str, Integrator] = {
    "semi_implicit_euler": SEMI_IMPLICIT_EULER,
    "implicit": IMPLICIT_EULER,
    "rk4": RK4,
    "newmark": NEWMARK,
}
"""The integrators of `torchsko.rollout` by name."""


def held_step(constraints: HeldConstraints, method: Any) -> HeldStep:
    """The step of a method of `torchsko.rollout` for a constrained mechanism.

    Raises:
        TorchskoError: when the method does not integrate the given accelerations alone.
    """
    names = [name for name, step in INTEGRATORS.items() if not isinstance(step, ImplicitEuler)]
    if method not in names:
        raise TorchskoError(
            f"method is {method!r} in a rollout of a constrained mechanism.",
            "Other steps than those of explicit accelerations do not keep the constraints.",
            f"Pass one of {', '.join(map(repr, names))}.",
        )
    return HeldStep(constraints, INTEGRATORS[method])


def step_of(method: str) -> Callable[..., Coordinates]:
    """The step of an integrator by name, with constant joint forces."""

    def step(
        mech: Mechanism,
        q: Tensor,
        qd: Tensor,
        tau: Tensor,
        dt: float | Tensor,
        f_ext: Tensor | None = None,
        damping: Tensor | None = None,
    ) -> Coordinates:
        if damping is not None:
            mech = mech.replace(damping=damping)
        # A trailing axis, so that time steps of samples broadcast with their vectors.
        h = dt[..., None] if isinstance(dt, Tensor) else dt
        return INTEGRATORS[method](mech, Dynamics.constant(tau, f_ext), 0.0, q, qd, cast(Any, h))

    return step


def check_method_name(method: Any, function: str) -> None:
    """Check that a method is the name of an integrator."""
    if not isinstance(method, str):
        name = getattr(method, "__name__", type(method).__name__)
        raise TorchskoError(
            f"method is {name}, which is not the name of an integrator.",
            f"{function} accepts names only; rollout also accepts functions.",
            f"Pass one of {', '.join(map(repr, INTEGRATORS))}.",
        )
    if method not in INTEGRATORS:
        raise TorchskoError(*unknown_name("method", method, tuple(INTEGRATORS)))


def advance(
    mech: MechanismLike,
    state: State,
    tau: Tensor | None = None,
    *,
    dt: float | Tensor | None = None,
    f_ext: Tensor | None = None,
    method: str = "semi_implicit_euler",
) -> State:
    """One step of an integrator under constant joint forces, without the checks and options of a rollout.

    With a fused mechanism it is one kernel.

    Args:
        mech: the mechanism.
        state: at the start of the step.
        tau: joint forces, `[*batch, num_dof]` [N m or N]; zero by default.
        dt: time step [s]; a tensor `[*batch]` may differ from sample to sample. Negative steps go back. By
            default that of the robot file.
        f_ext: external forces, `[*batch, num_bodies, 6]`, constant in the body frames.
        method: a name in `INTEGRATORS`.

    Returns:
        The state after the step, with gradients to all tensors. Its activations are those before the step.

    Raises:
        ShapeError: a tensor that does not fit, by name.
        MechanismError: when a joint's hinge inertia vanishes; names the joints.
        TorchskoError: on an unknown method, or an invalid time step.

    Example:
        >>> import torch, torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> state = ts.State(*arm.random_state(4))
        >>> tau = ts.gravity_force(arm, state.q)
        >>> after = ts.integrators.advance(arm, state, tau, dt=1e-3)
        >>> torch.equal(after.q, ts.rollout(arm, state, tau, steps=1, dt=1e-3).q[:, 1])
        True
    """
    check_is_state("state", state, "ts.integrators.advance(mech, ts.State(q, qd), tau)")
    check_activations(as_mechanism(mech), state)
    q, qd = state.q, state.qd
    dt = as_mechanism(mech).file_metadata.solver.timestep if dt is None else dt
    tau = torch.zeros_like(qd) if tau is None else tau
    if "advance" in fused_methods_of(mech):
        q, qd = cast(Any, mech).advance_tensors(q, qd, tau, dt, f_ext, method=method)
    else:
        q, qd = _advance_eagerly(as_mechanism(mech), q, qd, tau, dt, f_ext, method)
    return state._replace(q=q, qd=qd, t=state.t + dt)


def _advance_eagerly(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    dt: float | Tensor,
    f_ext: Tensor | None,
    method: str,
) -> Coordinates:
    """Configuration and velocity after one step of `advance`."""
    check_state(mech, q=q, qd=qd, tau=tau, f_ext=f_ext)
    check_method_name(method, "advance")
    check_dt(mech, dt, broadcast_shapes(q.shape[:-1], qd.shape[:-1]), backward=True)
    refuse_singular(mech)
    return step_of(method)(mech, q, qd, tau, dt, f_ext)
