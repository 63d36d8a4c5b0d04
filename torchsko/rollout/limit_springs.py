r"""Limits of position in a rollout: one-sided springs with damping at the ends of each joint.

A step of length h that would end beyond a limit, at :math:`q + h\dot q > q_u`, meets the force

.. math::
    f = -k\,(q + h \dot q^+ - q_u) - d\,\dot q^+,

taken at the new velocity, as damping is: k and d may be as large as one likes, at any step. It is split into
the constant :math:`-k (q - q_u)` and the damping d + h k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import TorchskoError
from torchsko.mechanism.coordinates import among_all_dofs, among_all_q, own_rates
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.argument_checks import as_number
from torchsko.rollout.implicit import ImplicitEuler
from torchsko.rollout.integrators import SemiImplicitEuler
from torchsko.rollout.step import Step
from torchsko.utils.concrete_values import concrete_values

Number = float | Tensor
"""One value for all joints, or one per degree of freedom, `[*batch, num_dof]`."""


@dataclass(frozen=True, eq=False)
class LimitSprings:
    """Springs that hold joints within ``mech.lower`` and ``mech.upper``, for `torchsko.rollout`.

    Joints whose coordinates are no vector (spherical, free) have no limits. A joint pressed against its
    limit by a force f rests f / stiffness beyond it: with the defaults 0.2 mrad under 200 N m. What has run
    into a limit comes to rest there and is let go within damping / stiffness, 20 ms. Which limits act is
    decided at the start of each step, from its velocity: what forces or an impact within the step hurl beyond
    a limit passes it by one step's motion, before it is brought back. That is little where steps are short
    for the forces, and much for light links: a Panda without dry friction, driven into its limits by all of
    its effort limits from 0.05 rad before them, passes them by 9 mrad at steps of 2 ms, and by 0.2 rad at
    10 ms. Shorter steps or armature mend it (0.1 kg m^2: 15 mrad at 10 ms). Gradients are those of the motion
    with these contacts.

    Attributes:
        stiffness: k [N m/rad or N/m].
        damping: d, while a limit acts [N m s/rad or N s/m].
    """

    stiffness: Number = 1e6
    damping: Number = 2e4

    def act(self, mech: Mechanism, q: Tensor, qd: Tensor, dt: float) -> tuple[Tensor, Tensor]:
        """What the limits add to one step.

        Args:
            mech: the mechanism.
            q: configuration at the start of the step, `[*batch, num_q]`.
            qd: velocity there, `[*batch, num_dof]`.
            dt: time step [s].

        Returns:
            Damping [N m s/rad or N s/m] and joint force [N m or N], each `[*batch, num_dof]`.
        """
        beyond, acts = _beyond(mech, q, qd, dt)
        damping = torch.where(acts, self.damping + dt * self.stiffness, torch.zeros_like(qd))
        return damping, -self.stiffness * beyond


def _beyond(mech: Mechanism, q: Tensor, qd: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """How far each dof is beyond the limit that acts on it (less than 0 inside), and whether one does."""
    low, high, all_rates = [], [], among_all_dofs(mech, qd)
    position, lower, upper = (among_all_q(mech, x) for x in (q, mech.lower, mech.upper))
    for group in mech.joints.groups:
        rates = group.rates(all_rates)
        if group.kind.vector:
            x = group.coordinates(position)
            low.append(x - group.coordinates(lower))
            high.append(x - group.coordinates(upper))
        else:
            low.append(torch.full_like(rates, torch.inf))
            high.append(torch.full_like(rates, -torch.inf))
    place = mech.joints.dof_place
    above, under = (own_rates(mech, mech.joints.vector(x, place)) for x in (high, low))
    step = dt * qd
    over, below = above + step > 0, under + step < 0
    zero = torch.zeros_like(step)
    return torch.where(over, above, torch.where(below, under, zero)), over | below


def check_limits(mech: Mechanism, limits: object) -> None:
    """Refuse limits that are none; values of tensors where they are free to read.

    Args:
        mech: the mechanism.
        limits: see `torchsko.rollout`.

    Raises:
        TorchskoError: names the stiffness or damping that is less than 0, or what is no `LimitSprings`.
    """
    if not isinstance(limits, LimitSprings):
        raise TorchskoError(
            f"limits is {limits!r}.",
            "How stiff the ends of joints are is part of them; where they are is mech.lower and mech.upper.",
            "Pass limits=LimitSprings() after from torchsko.rollout.limit_springs import "
            "LimitSprings; or None.",
        )
    for name in ("stiffness", "damping"):
        value = getattr(limits, name)
        if isinstance(value, Tensor):
            read = concrete_values(value)
            fits = read is None or bool((read >= 0).all())
        else:
            number = as_number(value)
            fits = number is not None and 0 <= number < math.inf
        if not fits:
            raise TorchskoError(
                f"{name} of the limits is {value!r}.",
                "What is less than 0 would push joints beyond their limits.",
                "Pass limits=LimitSprings(stiffness=1e6, damping=2e4), which are the defaults.",
            )


def require_implicit_damping(step: Step, given: str) -> None:
    """Refuse what acts at the new velocity in a method that would take it explicitly.

    Args:
        step: the method.
        given: what was given with it.

    Raises:
        TorchskoError: names the method that takes them.
    """
    if not takes_damping_implicitly(step):
        raise TorchskoError(
            f"{given} with a method that takes damping explicitly.",
            "Forces this stiff are stable only where they act on the new velocity.",
            'Pass method="semi_implicit_euler" or "implicit", or softer forces as a function.',
        )


def takes_damping_implicitly(step: Step) -> bool:
    """Whether a method takes damping at the velocity after the step, however stiff."""
    return isinstance(step, (SemiImplicitEuler, ImplicitEuler))
