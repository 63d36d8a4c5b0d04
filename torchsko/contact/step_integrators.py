"""Integrators of steps with contact, of `torchsko.step` and `torchsko.ContactStep`: see `INTEGRATORS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.contact.contact_dynamics import (
    ConstrainedDynamics,
    dynamics_with_inertia,
    tendon_inertia,
)
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.drive import Drive
from torchsko.contact.implicit_steps import (
    constrained_dofs,
    damping_of_forces,
    end_of_step_inertia,
    euler_acceleration,
    implicit_acceleration,
    standalone_bodies,
)
from torchsko.contact.rows import constraint_rows
from torchsko.contact.smooth_contact import SmoothContact, smooth_acceleration
from torchsko.implicit.loop import subprogram
from torchsko.mechanism.joints.configuration import advance, transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.spatial.rotation import translation_jacobian_inverse
from torchsko.utils.shapes import matvec
from torchsko.utils.traced_tensor import can_be_nonzero, is_traced

RK4_ROWS, RK4_WEIGHTS = (0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)
"""Coefficients of the classical Runge-Kutta method, each stage from the one before it."""


class StepResult(NamedTuple):
    """Result of a step.

    Attributes:
        state: after the step.
        forces: generalised forces of all constraints at its start, `[*batch, num_dof]` [N m or N].
    """

    state: State
    forces: Tensor


def _warmstart(state: State) -> Tensor | None:
    """The acceleration from which the solver starts; None where a trace knows that the field is zero."""
    start = state.warmstart
    return start if not is_traced(start) or bool(can_be_nonzero(start).any()) else None


def _euler(fixed: Drive, state: State, all_forces: bool) -> StepResult:
    """Semi-implicit Euler step with implicit damping of joints, or of all forces."""
    mech, dt = fixed.mech, fixed.dt
    q, qd, act = state.q, state.qd, state.act
    tau, rate, slopes = fixed.forces(q, qd, act)
    found = fixed.accelerate(q, qd, tau, _warmstart(state))
    qdd = euler_acceleration(
        mech, fixed.contact, q, qd, found.qdd, dt, slopes, all_forces=all_forces
    )
    after = fixed.advance(state, qdd, rate, found.qdd, found.residual)
    return StepResult(after, found.forces)


def smooth_step(fixed: Drive, state: State, contact: SmoothContact) -> StepResult:
    """Linearly implicit step with smooth contact."""
    mech, dt = fixed.mech, fixed.dt
    q, qd, act = state.q, state.qd, state.act
    tau, rate, slopes = fixed.forces(q, qd, act)
    damping = damping_of_forces(mech, q, qd, slopes, joints=True, fluid=False)
    qdd = smooth_acceleration(mech, contact, q, qd, tau, fixed.f_ext, damping, dt)
    after = fixed.advance(state, qdd, rate, qdd, torch.zeros_like(qdd[..., 0]).detach())
    return StepResult(after, torch.zeros_like(qdd))


def end_of_step_dynamics(
    fixed: Drive, state: State
) -> tuple[ConstrainedDynamics, ContactModel, Tensor, Tensor | None]:
    """Accelerations with constraints, springs and dampers at the end of a step, in one equation.

    Returns:
        The accelerations, the constraints at the end of the step, the matrix h D + h^2 K of springs and
        dampers, `[*batch, num_dof, num_dof]`, and rates of activations.
    """
    mech, (q, qd, act, *_) = fixed.mech, state
    tau, rate, slopes = fixed.forces(q, qd, act)
    added, push = end_of_step_inertia(mech, q, qd, slopes, fixed.dt)
    turning = transport_rate(mech, qd, qd)
    force = tau + push if turning is None else tau + push - matvec(added, turning)
    options = replace(fixed.contact.options, end_of_step=True)
    contact = replace(fixed.contact, options=options)
    start = _warmstart(state)
    found = dynamics_with_inertia(mech, q, qd, force, fixed.f_ext, contact, start, added)
    return found, contact, added, rate


def _discrete(fixed: Drive, state: State) -> StepResult:
    """Step whose constraints, springs and dampers act at its end, in one equation."""
    mech, dt = fixed.mech, fixed.dt
    q, qd = state.q, state.qd
    found, contact, added, rate = end_of_step_dynamics(fixed, state)
    qdd = found.qdd
    if standalone_bodies(mech):
        rows = constraint_rows(mech, contact, q, qd)
        of_tendons = tendon_inertia(mech, contact, q)
        added = added if of_tendons is None else added + of_tendons
        free = implicit_acceleration(mech, q, qd, qdd, None, dt, gyroscopic=True, added=added)
        qdd = torch.where(constrained_dofs(rows), qdd, free)
    after = fixed.advance(state, qdd, rate, found.qdd, found.residual)
    return StepResult(after, found.forces)


def _runge_kutta(fixed: Drive, state: State) -> StepResult:
    """The classical Runge-Kutta method in MuJoCo's coordinates, whose linear velocities are inertial.

    Rotation vectors of ball and free joints follow the method of Munthe-Kaas (1999).
    """
    # An import of torchsko loads rollouts, and no readers of files.
    from torchsko.io.conventions.conversion import conventions

    mech, dt = fixed.mech, fixed.dt
    mujoco = conventions("mujoco", mech)
    q0, act0 = state.q, state.act
    v0 = mujoco.qd_to(q0, state.qd)
    changes: list[Tensor] = []
    accelerations: list[Tensor] = []
    rates: list[Tensor] = []
    residuals: list[Tensor] = []
    q, qd, act = q0, state.qd, act0
    first: ConstrainedDynamics | None = None
    warmstart, u = _warmstart(state), None
    for stage in range(4):
        if stage:
            h = dt * RK4_ROWS[stage - 1]
            u = h * changes[-1]
            q = _displaced(mech, q0, u)
            qd = mujoco.qd_from(q, v0 + h * accelerations[-1])
            act = act0 + h * rates[-1] if rates else act0
        tau, rate, _ = fixed.forces(q, qd, act)
        inputs = (q, qd, tau) if warmstart is None else (q, qd, tau, warmstart)
        # In a kernel the stages share one function.
        found = ConstrainedDynamics(*subprogram(fixed.accelerate, inputs, 3))
        first, warmstart = found if first is None else first, found.qdd.detach()
        residuals.append(found.residual)
        changes.append(_rate_of_change(mech, u, mujoco.qd_from(q0, mujoco.qd_to(q, qd))))
        accelerations.append(mujoco.qdd_to(q, qd, found.qdd))
        if rate is not None:
            rates.append(rate)
    assert first is not None
    q = _displaced(mech, q0, dt * _weighted(changes))
    act = fixed.after(act0, _weighted(rates)) if rates else act0
    qd = mujoco.qd_from(q, v0 + dt * _weighted(accelerations))
    residual = torch.stack(residuals).amax(0)
    after = State(q, qd, act, state.t + dt, first.qdd.detach(), residual)
    return StepResult(after, first.forces)


def _weighted(parts: list[Tensor]) -> Tensor:
    return torch.stack([w * x for w, x in zip(RK4_WEIGHTS, parts, strict=True)]).sum(0)


def _displaced(mech: Mechanism, q: Tensor, u: Tensor) -> Tensor:
    """Configuration after a displacement, of free joints a translation and a rotation vector."""
    turning = transport_rate(mech, u, u)
    return advance(mech, q, u, torch.zeros_like(u) if turning is None else -turning, 1.0)[0]


def _rate_of_change(mech: Mechanism, u: Tensor | None, speed: Tensor) -> Tensor:
    """Rate of a displacement u for velocities, those of rotations in the axes of the moved body."""
    if u is None:
        return speed
    for k in mech.independent_joints:
        if not mech.joints.kinds[k].vector:
            name = mech.tree_joint_names[k]
            at = mech.dof_slice(name).start
            turn = translation_jacobian_inverse(-u[..., at : at + 3])
            parts = speed[..., :at], matvec(turn, speed[..., at : at + 3]), speed[..., at + 3 :]
            speed = torch.cat(parts, -1)
    return speed


INTEGRATORS: dict[str, Callable[[Drive, State], StepResult]] = {
    "Euler": partial(_euler, all_forces=False),
    "implicitfast": partial(_euler, all_forces=True),
    "RK4": _runge_kutta,
    "discrete": _discrete,
}
"""Integrators by MuJoCo's names."""
