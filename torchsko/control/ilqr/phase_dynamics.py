"""Dynamics of a phase: an impact, a step of the free or held mechanism, and the forces that hold it.

Perturbations of a state and an input are z = [d; w; u], for the configuration integrate(q, d), the velocity w
and the input u.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.contact.contact_model import ContactModel
from torchsko.integrators.contact_integrator import ContactStep
from torchsko.integrators.first_order import ExpandedDynamics, expand_step
from torchsko.integrators.step import Coordinates, Dynamics, Step
from torchsko.mechanism.configuration import add_step, subtract
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.derivatives import forward_dynamics_expanded
from torchsko.verbs.held import held_derivatives, held_dynamics
from torchsko.verbs.held.held_dynamics import HeldConstraints
from torchsko.verbs.held.impulse_derivatives import impulse_expanded

Evaluate = Callable[[Mechanism, Tensor, Tensor, Tensor], Tensor]
"""Maps (mech, q, qd, tau) to accelerations and constraint forces, `[*batch, num_dof + rows]`."""


class StepResult(NamedTuple):
    """A step of a phase.

    Attributes:
        q: configuration after the step, `[*batch, num_q]`.
        qd: velocity after the step, `[*batch, num_dof]`.
        start: velocity before the step and after an impact, `[*batch, num_dof]`.
        forces: constraint forces at the start of the step, `[*batch, rows]`.
    """

    q: Tensor
    qd: Tensor
    start: Tensor
    forces: Tensor


class Change(NamedTuple):
    """A perturbed step of a phase.

    Attributes:
        state: deviation of the next state, `[*batch, 2 num_dof]`.
        start: see `StepResult`.
        forces: see `StepResult`.
    """

    state: Tensor
    start: Tensor
    forces: Tensor


Perturbed = Callable[[Tensor, Tensor, Tensor], Change]
"""Maps a tangent step of q, a velocity and joint forces to a perturbed step."""


@dataclass(frozen=True, eq=False)
class PhaseDynamics:
    """Dynamics of one step.

    Attributes:
        constraints: constraints that hold in the motion; None for free motion.
        impact: whether an impact with the constraints precedes the step.
        dt: time step [s].
        step: the integrator.
    """

    constraints: HeldConstraints | None
    impact: bool
    dt: float | Tensor
    step: Step

    @property
    def has_forces(self) -> bool:
        """True if costs depend on constraint forces."""
        return self.constraints is not None or isinstance(self.step, ContactStep)

    @property
    def enters_costs(self) -> bool:
        """True if running costs depend on the dynamics, through an impact or constraint forces."""
        return self.impact or self.has_forces

    def with_contact_of(self, mech: Mechanism) -> PhaseDynamics:
        """These dynamics with the contact model of a mechanism, made once, where they have none."""
        if not isinstance(self.step, ContactStep) or self.step.contact is not None:
            return self
        return replace(self, step=replace(self.step, contact=ContactModel.of(mech)))

    def advance(self, mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor) -> StepResult:
        """A step from a state."""
        if self.impact:
            assert self.constraints is not None
            qd, _ = held_dynamics.impulse(self.constraints, mech, q, qd)
        end, rate, forces = self._run(mech, None, q, qd, tau)
        return StepResult(end, rate, qd, forces)

    def exact(self, mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor) -> Perturbed:
        """The perturbed step."""
        end = self.advance(mech, q, qd, tau).q

        def perturbed(d: Tensor, w: Tensor, tau: Tensor) -> Change:
            found = self.advance(mech, add_step(mech, q, d), w, tau)
            state = torch.cat([subtract(mech, end, found.q), found.qd], -1)
            return Change(state, found.start, found.forces)

        return perturbed

    def first_order(self, mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor) -> Perturbed:
        """The perturbed step with the closed-form derivatives of the dynamics, exact to first order."""
        if isinstance(self.step, ContactStep):
            return self.exact(mech, q, qd, tau)
        start, change = qd, None
        if self.impact:
            start, change = self._impact(mech, q, qd)
        step = partial(self._step, mech, q, start)
        expansions = expand_step(step, tau, self._expand)
        end, _, _ = self._run(mech, expansions, q, start, tau)

        def perturbed(d: Tensor, w: Tensor, tau: Tensor) -> Change:
            v = w
            if change is not None:
                v = start + matvec(change, torch.cat([d, w - qd], -1))
            found, rate, forces = self._run(mech, expansions, add_step(mech, q, d), v, tau)
            return Change(torch.cat([subtract(mech, end, found), rate], -1), v, forces)

        return perturbed

    def _step(self, mech: Mechanism, q: Tensor, qd: Tensor, accelerate: Dynamics) -> Coordinates:
        return self.step(mech, accelerate, 0.0, q, qd, self.dt)[:2]  # type: ignore[arg-type]

    def _run(
        self,
        mech: Mechanism,
        expansions: list[ExpandedDynamics] | None,
        q: Tensor,
        qd: Tensor,
        tau: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next state and the forces at the start, from given expansions of the dynamics or exactly."""
        if isinstance(self.step, ContactStep):
            found: Any = self.step(mech, Dynamics.constant(tau), 0.0, q, qd, self.dt)  # type: ignore[arg-type]
            return found[0], found[1], found[2]
        if expansions is None and self.constraints is None:
            return *self._step(mech, q, qd, Dynamics.constant(tau)), qd[..., :0]
        remaining, forces = iter(expansions or ()), []

        def acceleration(
            mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None
        ) -> Tensor:
            if expansions is not None:
                value = next(remaining).evaluate(mech, q, qd, tau)
                forces.append(value[..., mech.num_dof :])
                return value[..., : mech.num_dof]
            assert self.constraints is not None
            qdd, f = held_dynamics.forward_dynamics(self.constraints, mech, q, qd, tau)
            forces.append(f)
            return qdd

        end = self._step(mech, q, qd, Dynamics.constant(tau, acceleration=acceleration))
        return *end, forces[0]

    def _expand(
        self, mech: Mechanism, q: Tensor, qd: Tensor, tau: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `torchsko.integrators.first_order.Expansion`."""
        if self.constraints is None:
            return forward_dynamics_expanded(mech, q, qd, tau)
        qdd, f, *found = held_derivatives.forward_dynamics_expanded(
            self.constraints, mech, q, qd, tau
        )
        to_q, to_qd, to_tau = (torch.cat(x, -2) for x in zip(found[:3], found[3:], strict=True))
        return torch.cat([qdd, f], -1), to_q, to_qd, to_tau

    def _impact(self, mech: Mechanism, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
        """Velocity after the impact, and its derivative to [d; w], `[*batch, num_dof, 2 num_dof]`."""
        assert self.constraints is not None
        after, _, to_q, to_qd, *_ = impulse_expanded(self.constraints, mech, q, qd)
        return after, torch.cat([to_q, to_qd], -1)
