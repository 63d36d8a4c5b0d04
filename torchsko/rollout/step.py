"""Interface of integrators, and implicit damping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from torchsko.mechanism.coordinates import tree_q, tree_rates
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.passive.damping import damping_slope
from torchsko.verbs.passive.friction import smooth_speeds

State = tuple[Tensor, Tensor]
"""Configuration and velocity."""


class Accelerate(Protocol):
    """Forward dynamics under the forces of a rollout."""

    def __call__(
        self, mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
    ) -> Tensor:
        """Acceleration `[*batch, num_dof]`; `force` is added to the joint forces."""
        ...


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Forward dynamics under the forces of a rollout, and these forces, for steps that accelerate themselves.

    Attributes:
        accelerate: the accelerations.
        force: joint forces at a time and a state, `[*batch, num_dof]` [N m or N].
        wrenches: external forces on all bodies there, `[*batch, num_bodies, 6]`; None for zero.
    """

    accelerate: Accelerate
    force: Callable[[float, Tensor, Tensor], Tensor]
    wrenches: Callable[[float, Tensor, Tensor], Tensor | None]

    def __call__(
        self, mech: Mechanism, t: float, q: Tensor, qd: Tensor, force: Tensor | None = None
    ) -> Tensor:
        """Acceleration `[*batch, num_dof]`; `force` is added to the joint forces."""
        return self.accelerate(mech, t, q, qd, force)


Step = Callable[[Mechanism, Accelerate, float, Tensor, Tensor, float], State]
"""Maps (mech, accelerate, t, q, qd, dt) to the next q and qd."""

StepWithResults = Callable[
    [Mechanism, Accelerate, float, Tensor, Tensor, float],
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
    """

    order: int
    input_names: ClassVar[tuple[str, ...]] = ()
    implicit_damping: ClassVar[bool] = False
    single_evaluation: ClassVar[bool] = False

    @abstractmethod
    def __call__(
        self, mech: Mechanism, accelerate: Accelerate, t: float, q: Tensor, qd: Tensor, dt: float
    ) -> State:
        """The next configuration and velocity."""


def implicit_losses(mech: Mechanism, q: Tensor, qd: Tensor, dt: float, creep: float) -> Mechanism:
    """The mechanism whose acceleration takes damping and dry friction implicitly.

    Dry friction is treated as a linear damping f / sqrt(v^2 + eps^2), with eps the creep speed, and smooth
    friction as a linear damping f tanh(v / s) / v. h B is added to the armature. Nonlinear damping is
    linearised about the velocity before the step.
    """
    rates = tree_rates(mech, tree_q(mech, q), qd)
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
