"""Interface of steps: forces and dynamics, integrators, and implicit damping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.implicit.loop import subprogram
from torchsko.linalg.unpivoted import solve_without_pivots
from torchsko.mechanism.dispatch import in_traced_dtype
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.dynamics import forward_dynamics, mass_matrix
from torchsko.verbs.held import held_dynamics
from torchsko.verbs.held.held_dynamics import HeldConstraints
from torchsko.verbs.passive.damping import damping_slope
from torchsko.verbs.passive.friction import smooth_speeds

Coordinates = tuple[Tensor, Tensor]
"""Configuration and velocity."""


Acceleration = Callable[[Mechanism, Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Maps (mech, q, qd, tau, f_ext) to accelerations `[*batch, num_dof]`."""

ForceLaw = Callable[[float, Tensor, Tensor], Tensor]
"""Maps time [s], configuration and velocity to joint forces `[*batch, num_dof]` [N m or N]."""

WrenchLaw = Callable[[float, Tensor, Tensor], Tensor | None]
"""Maps time [s], configuration and velocity to forces on all bodies `[*batch, num_bodies, 6]`, or None."""


@dataclass(frozen=True, eq=False)
class RowDamping:
    """Damping of combinations of joint rates, such as tendons, at the velocity after a step.

    Attributes:
        rows: R, the rates of the combinations are R qd, `[*batch, r, num_dof]`.
        damping: d, `[*batch, r]`.
        dt: time step h [s].
    """

    rows: Tensor
    damping: Tensor
    dt: float | Tensor

    def damped(
        self, mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, nullspace: Tensor | None
    ) -> Tensor:
        """Add it to an acceleration: (M + h D) change = -D (qd + h qdd), with D = R* d R.

        Under constraints with the projector N of `torchsko.constraints.HeldMechanism.nullspace`, the change
        is within its
        range: D is replaced by N* D N, and the right-hand side multiplied by N*.
        """
        h = self.dt[..., None] if isinstance(self.dt, Tensor) else self.dt
        D = self.rows.mT @ (self.damping[..., None] * self.rows)
        loss = matvec(D, qd + self.dt * qdd)
        if nullspace is not None:
            D, loss = nullspace.mT @ D @ nullspace, matvec(nullspace.mT, loss)
        return qdd - solve_without_pivots(mass_matrix(mech, q) + h * D, loss)


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Forces at a time and a state, and the acceleration that they cause; the ``accelerate`` of a step.

    Attributes:
        force: the joint forces.
        wrenches: the external forces.
        acceleration: the acceleration without constraints.
        constraints: constraints that hold in the motion; None for free motion.
        row_damping: damping that is implicit in the velocity; None without any.
    """

    force: ForceLaw
    wrenches: WrenchLaw
    acceleration: Acceleration = forward_dynamics
    constraints: HeldConstraints | None = None
    row_damping: RowDamping | None = None

    @staticmethod
    def constant(
        tau: Tensor, f_ext: Tensor | None = None, acceleration: Acceleration = forward_dynamics
    ) -> Dynamics:
        """Dynamics under forces that are constant over a step."""
        return Dynamics(lambda t, q, qd: tau, lambda t, q, qd: f_ext, acceleration)

    @property
    def shared(self) -> Dynamics:
        """The dynamics whose acceleration a kernel contains once, for all stages but the first.

        The first stage has the configuration from which a step starts, with which it shares operations.
        """
        is_free = self.acceleration is forward_dynamics and self.constraints is None
        return replace(self, acceleration=_shared_acceleration) if is_free else self

    def __call__(
        self, mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
    ) -> Tensor:
        """Acceleration `[*batch, num_dof]`; `force` is added to the joint forces."""
        tau, f_ext = self.force(t, q, qd), self.wrenches(t, q, qd)
        tau = tau if force is None else tau + force
        held, nullspace = self.constraints, None
        if held is None:
            qdd = self.acceleration(mech, q, qd, tau, f_ext)
        else:
            qdd, _ = held_dynamics.forward_dynamics(held, mech, q, qd, tau, f_ext=f_ext)
        if self.row_damping is None:
            return qdd
        if held is not None:
            nullspace = held_dynamics.nullspace(held, mech, q)
        return self.row_damping.damped(mech, q, qd, qdd, nullspace)


def _shared_acceleration(
    mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None
) -> Tensor:
    """Forward dynamics, a function of the kernel if it is large."""
    if mech.closing is None or not mech.closing.is_shared:
        return forward_dynamics(mech, q, qd, tau, f_ext)

    def accelerate(*inputs: Tensor) -> tuple[Tensor]:
        return (forward_dynamics(in_traced_dtype(mech, inputs[0]), *inputs),)

    wrenches = () if f_ext is None else (f_ext,)
    return subprogram(accelerate, (q, qd, tau, *wrenches), 1)[0]


Step = Callable[[Mechanism, Dynamics, float, Tensor, Tensor, float], Coordinates]
"""Maps (mech, accelerate, t, q, qd, dt) to the next q and qd."""

StepWithResults = Callable[
    [Mechanism, Dynamics, float, Tensor, Tensor, float],
    tuple[Tensor, Tensor, *tuple[Tensor, ...]],
]
"""A `Step` that also returns results of each sample, such as forces, residuals or rewards."""


class Integrator(ABC):
    """A `Step` that declares its properties and depends on its arguments and fields only.

    Attributes:
        order: order of accuracy.
        input_names: names of the tensors of ``params`` and ``series`` of a rollout that it takes.
        implicit_damping: whether damping acts at the velocity after the step.
        single_evaluation: whether forces are evaluated once, at the start of the step.
        evaluates_start: whether forces are evaluated at the start of the step first.
    """

    order: int
    input_names: ClassVar[tuple[str, ...]] = ()
    implicit_damping: ClassVar[bool] = False
    single_evaluation: ClassVar[bool] = False
    evaluates_start: ClassVar[bool] = False

    @abstractmethod
    def __call__(
        self, mech: Mechanism, accelerate: Dynamics, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> Coordinates:
        """The next configuration and velocity."""


def implicit_losses(state: Kinematics, dt: float, creep: float) -> Mechanism:
    """The mechanism whose acceleration takes damping and dry friction implicitly.

    Dry friction is treated as a linear damping f / sqrt(v^2 + eps^2), with eps the creep speed, and smooth
    friction as a linear damping f tanh(v / s) / v. h B is added to the armature. Nonlinear damping is
    linearized about the velocity before the step.
    """
    mech, rates = state.mech, state.tree_qd
    secant = 1 / (rates * rates + creep**2).sqrt()
    if mech.has_smooth_friction:
        smooth, speed = smooth_speeds(mech)
        ratio = rates / speed
        moves = ratio.abs() > 1e-4
        ratio = torch.where(moves, ratio, torch.ones_like(ratio))
        tangent = torch.where(moves, torch.tanh(ratio) / ratio, torch.ones_like(ratio)) / speed
        secant = torch.where(smooth, tangent, secant)
    B, slope = (x + mech.friction * secant for x in (mech.damping, damping_slope(mech, rates)))
    if mech.has_higher_damping:
        powers = torch.stack([rates.abs(), rates * rates], -1)
        B = B + (mech.higher_damping * powers).sum(-1)
    return mech.replace(
        damping=B,
        friction=torch.zeros_like(mech.friction),
        armature=mech.armature + dt * slope,
        has_higher_damping=False,
        has_smooth_friction=False,
    )
