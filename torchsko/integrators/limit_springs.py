r"""Position limits in a rollout: one-sided springs with damping at the ends of each joint.

A step of length h that would end beyond a limit, :math:`q + h\dot q > q_u`, is subject to the force

.. math::
    f = -k\,(q + h \dot q^+ - q_u) - d\,\dot q^+,

taken at the new velocity like damping, so that k and d may be arbitrarily large at any step. It is split into
the constant :math:`-k (q - q_u)` and the damping d + h k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import TorchskoError
from torchsko.integrators.step import Integrator, Step
from torchsko.mechanism.coordinates import independent_rates, refuse_loops, scatter_dofs, scatter_q
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.numbers import as_number

Number = float | Tensor
"""One value for all joints, or one per degree of freedom, `[*batch, num_dof]`."""


@dataclass(frozen=True, eq=False)
class LimitSprings:
    """One-sided springs that hold joints within ``mech.lower`` and ``mech.upper``, for `torchsko.rollout`.

    Spherical and free joints have no limits. A joint that is pressed against its limit by a force f rests
    f / stiffness beyond it: with the defaults 0.2 mrad under 200 N m. After an impact it stops at the
    limit and is released within damping / stiffness, 20 ms.

    Active limits are determined at the start of each step from its velocity. A joint that a force or an
    impact drives beyond a limit within the step penetrates by one step's motion before it is returned. This
    is small for short steps and large for light links: a Panda without dry friction, driven into its limits
    with all its effort limits from 0.05 rad before them, penetrates by 9 mrad at steps of 2 ms and by 0.2 rad
    at 10 ms. Shorter steps or armature reduce it (0.1 kg m^2: 15 mrad at 10 ms). Gradients include the
    contact with limits.

    Attributes:
        stiffness: k [N m/rad or N/m].
        damping: d, while a limit is active [N m s/rad or N s/m].
    """

    stiffness: Number = 1e6
    damping: Number = 2e4

    def forces(self, mech: Mechanism, q: Tensor, qd: Tensor, dt: float) -> tuple[Tensor, Tensor]:
        """Damping and joint force of the active limits over one step.

        Args:
            mech: the mechanism.
            q: configuration at the start of the step, `[*batch, num_q]`.
            qd: velocity there, `[*batch, num_dof]`.
            dt: time step [s].

        Returns:
            Damping [N m s/rad or N s/m] and joint force [N m or N], each `[*batch, num_dof]`.
        """
        depth, active = _penetration(mech, q, qd, dt)
        damping = torch.where(active, self.damping + dt * self.stiffness, torch.zeros_like(qd))
        return damping, -self.stiffness * depth


def _penetration(mech: Mechanism, q: Tensor, qd: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Signed distance of each dof beyond its active limit, zero without one; and whether one is active."""
    if mech.closing is not None:
        refuse_loops(mech)
    low, high, tree_rates = [], [], scatter_dofs(mech, qd)
    position, lower, upper = (scatter_q(mech, x) for x in (q, mech.lower, mech.upper))
    for group in mech.joints.groups:
        rates = group.rates(tree_rates)
        if group.kind.vector:
            x = group.coordinates(position)
            low.append(x - group.coordinates(lower))
            high.append(x - group.coordinates(upper))
        else:
            low.append(torch.full_like(rates, torch.inf))
            high.append(torch.full_like(rates, -torch.inf))
    place = mech.joints.dof_place
    to_upper, to_lower = (
        independent_rates(mech, mech.joints.vector(x, place)) for x in (high, low)
    )
    step = dt * qd
    above, below = to_upper + step > 0, to_lower + step < 0
    zero = torch.zeros_like(step)
    return torch.where(above, to_upper, torch.where(below, to_lower, zero)), above | below


def check_limits(mech: Mechanism, limits: object) -> None:
    """Check limits; values of tensors where they can be read for free."""
    if not isinstance(limits, LimitSprings):
        raise TorchskoError(
            f"limits is {limits!r}.",
            "Limits are springs at mech.lower and mech.upper.",
            "Pass limits=ts.integrators.LimitSprings().",
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
                "Negative values would push joints beyond their limits.",
                "Pass limits=LimitSprings(stiffness=1e6, damping=2e4), the defaults.",
            )


def require_implicit_damping(step: Step, argument: str) -> None:
    """Check that the integrator supports forces that are implicit in the velocity."""
    if not takes_damping_implicitly(step):
        raise TorchskoError(
            f"{argument} with a method that takes damping explicitly.",
            "Stiff forces are stable only in implicit methods.",
            'Pass method="semi_implicit_euler" or "implicit", or softer forces as a function.',
        )


def takes_damping_implicitly(step: Step) -> bool:
    """True if an integrator takes damping at the velocity after the step."""
    return isinstance(step, Integrator) and step.implicit_damping
