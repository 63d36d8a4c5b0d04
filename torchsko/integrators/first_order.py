r"""Steps of integrators with forward dynamics to first order, from its closed-form derivatives.

Near a trajectory the acceleration is

.. math::
    \ddot q + \partial_q \ddot q\, d + \partial_{\dot q} \ddot q\, u
        + \mathcal{M}^{-1} (\delta\tau - \dot q\, \delta B - \ddot q\, \delta S),

where the damping B and the armature S that a step adds depend on the state. Replacing forward dynamics by
this expression leaves the derivatives of the step unchanged, at a fraction of the cost of differentiating
it row by row.

Reference: J. Carpentier, N. Mansard, *Analytical derivatives of rigid body dynamics algorithms*, Robotics:
Science and Systems 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.integrators.step import Coordinates, Dynamics
from torchsko.mechanism.configuration import subtract, transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.derivatives import forward_dynamics_expanded

Stepping = Callable[[Dynamics], Coordinates]
"""One step as a function of the dynamics."""

Expansion = Callable[[Mechanism, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
"""Maps (mech, q, qd, tau) to accelerations, followed by constraint forces, `[*batch, num_dof + rows]`, and to
their derivatives with respect to q, qd and tau."""


@dataclass(frozen=True, eq=False)
class ExpandedDynamics:
    """First-order expansion of forward dynamics at one state of a step.

    Attributes:
        mech: the mechanism, with the damping and armature of the step.
        q: `[*batch, num_q]`.
        qd: `[*batch, num_dof]`.
        tau: `[*batch, num_dof]`.
        value: accelerations and constraint forces, `[*batch, num_dof + rows]`.
        derivatives: of the value with respect to q, qd and tau, `[*batch, num_dof + rows, num_dof]` each.
    """

    mech: Mechanism
    q: Tensor
    qd: Tensor
    tau: Tensor
    value: Tensor
    derivatives: tuple[Tensor, Tensor, Tensor]

    def evaluate(self, mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
        """The value to first order in the changes of all arguments."""
        damping, armature = mech.damping - self.mech.damping, mech.armature - self.mech.armature
        state = Kinematics.of(mech, self.q, self.qd)
        rates, accels = state.tree_qd, state.tree_accels(self.value[..., : mech.num_dof])
        turning = transport_rate(state.tree, rates, rates)
        accels = accels if turning is None else accels + turning
        loss = rates * damping + accels * armature
        changes = (
            subtract(mech, self.q, q),
            qd - self.qd,
            tau - self.tau - state.independent_forces(loss),
        )
        return self.value + sum(
            matvec(D, x) for D, x in zip(self.derivatives, changes, strict=True)
        )


def expand_step(
    step: Stepping, tau: Tensor, expansion: Expansion = forward_dynamics_expanded
) -> list[ExpandedDynamics]:
    """Expand forward dynamics at each state of a step in which it is evaluated."""
    expansions: list[ExpandedDynamics] = []

    def acceleration(
        mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None
    ) -> Tensor:
        value, to_q, to_qd, to_tau = expansion(mech, q, qd, tau)
        derivatives = to_q, to_qd, to_tau
        expansions.append(ExpandedDynamics(mech, q, qd, tau, value, derivatives))
        return value[..., : mech.num_dof]

    step(Dynamics.constant(tau, acceleration=acceleration))
    return expansions


def first_order_dynamics(expansions: list[ExpandedDynamics], tau: Tensor) -> Dynamics:
    """Dynamics from the expansions of a step, under other joint forces."""
    remaining = iter(expansions)

    def acceleration(
        mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None
    ) -> Tensor:
        return next(remaining).evaluate(mech, q, qd, tau)[..., : mech.num_dof]

    return Dynamics.constant(tau, acceleration=acceleration)
