"""Integrators of steps with contact, of `torchsko.step` and `torchsko.ContactStep`: see `INTEGRATORS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.conventions.conversion import conventions
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.drive import Drive
from torchsko.contact.implicit_steps import (
    constrained_dofs,
    damping_of_forces,
    end_of_step_inertia,
    euler_acceleration,
    implicit_acceleration,
    standalone_bodies,
)
from torchsko.contact.smooth_contact import SmoothContact, smooth_acceleration
from torchsko.contact.soft_dynamics import solve_dynamics
from torchsko.contact.soft_state import SoftState
from torchsko.implicit.loop import subprogram
from torchsko.mechanism.configuration import advance, transport_rate
from torchsko.mechanism.dispatch import in_traced_dtype
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.spatial.rotation import translation_jacobian_inverse
from torchsko.utils.dtype import without_autocast
from torchsko.utils.runge_kutta import RK4_ROWS, RK4_WEIGHTS, Rates, combine, stage_rates
from torchsko.utils.shapes import matvec
from torchsko.utils.traced_tensor import can_be_nonzero, is_traced


class StepResult(NamedTuple):
    """Result of a step, with the equations of motion at its start.

    Attributes:
        state: after the step.
        start: the mechanism at the start of the step; None without constraints that solve equations.
        qdd: acceleration at the start, `[*batch, num_dof]`.
        tau: joint forces at the start, `[*batch, num_dof]`.
        applied: part of them that the controls exert, `[*batch, num_dof]`.
        last: state at which the accelerations were evaluated last, such as the fourth stage of a Runge-Kutta
            step.
        last_qdd: acceleration at ``last``, `[*batch, num_dof]`.
    """

    state: State
    start: SoftState | None
    qdd: Tensor
    tau: Tensor
    applied: Tensor
    last: State
    last_qdd: Tensor

    @without_autocast
    def forces(self) -> Tensor:
        """Generalized forces of all constraints at the start, `[*batch, num_dof]` [N m or N]."""
        if self.start is None:
            return torch.zeros_like(self.qdd)
        return self.start.balance_error(self.qdd, self.tau)


def _warmstart(state: State) -> Tensor | None:
    """The acceleration from which the solver starts; None where a trace knows that the field is zero."""
    start = state.warmstart
    if start is None or (is_traced(start) and not bool(can_be_nonzero(start).any())):
        return None
    return start.detach()  # the solution does not depend on it


@without_autocast
def _euler(fixed: Drive, state: State, all_forces: bool) -> StepResult:
    """Semi-implicit Euler step with implicit damping of joints, or of all forces."""
    start = fixed.constrained(fixed.at(state.q, state.qd))
    tau, rate, slopes, applied = fixed.forces(start.kinematics, state.act)
    qdd, residual = solve_dynamics(start, tau, _warmstart(state))
    damped = euler_acceleration(start, qdd, fixed.dt, slopes, all_forces=all_forces)
    after = fixed.advance(state, damped, rate, qdd, residual)
    return StepResult(after, start, qdd, tau, applied, state, qdd)


@without_autocast
def smooth_step(fixed: Drive, state: State, contact: SmoothContact) -> StepResult:
    """Linearly implicit step with smooth contact."""
    start = SoftState(fixed.at(state.q, state.qd), contact.shapes, fixed.f_ext)
    tau, rate, slopes, applied = fixed.forces(start.kinematics, state.act)
    damping = damping_of_forces(start.kinematics, slopes, joints=True, fluid=False)
    qdd = smooth_acceleration(start, contact, tau, damping, fixed.dt)
    after = fixed.advance(state, qdd, rate, qdd, torch.zeros_like(qdd[..., 0]).detach())
    return StepResult(after, None, qdd, tau, applied, state, qdd)


class EndOfStep(NamedTuple):
    """Dynamics with constraints, springs and dampers at the end of a step, in one equation.

    Attributes:
        start: the mechanism at the start, whose inertia includes h D + h^2 K of springs and dampers.
        tau: joint forces with those of springs and dampers, `[*batch, num_dof]`.
        qdd: acceleration, `[*batch, num_dof]`.
        residual: see `State`.
        rate: rates of activations.
        applied: joint forces of the controls, `[*batch, num_dof]`.
    """

    start: SoftState
    tau: Tensor
    qdd: Tensor
    residual: Tensor
    rate: Tensor | None
    applied: Tensor


@without_autocast
def end_of_step_dynamics(fixed: Drive, state: State) -> EndOfStep:
    """Accelerations with constraints, springs and dampers at the end of a step."""
    kinematics, qd = fixed.at(state.q, state.qd), state.qd
    tau, rate, slopes, applied = fixed.forces(kinematics, state.act)
    added, push = end_of_step_inertia(kinematics, slopes, fixed.dt)
    turning = transport_rate(kinematics.mech, qd, qd)
    force = tau + push if turning is None else tau + push - matvec(added, turning)
    options = replace(fixed.contact.options, end_of_step=True)
    contact = replace(fixed.contact, options=options)
    start = SoftState(kinematics, contact, fixed.f_ext, added)
    return EndOfStep(start, force, *solve_dynamics(start, force, _warmstart(state)), rate, applied)


@without_autocast
def _discrete(fixed: Drive, state: State) -> StepResult:
    """Step whose constraints, springs and dampers act at its end, in one equation."""
    start, tau, qdd, residual, rate, applied = end_of_step_dynamics(fixed, state)
    found = qdd
    if standalone_bodies(start.mech):
        free = implicit_acceleration(start, qdd, None, fixed.dt, gyroscopic=True)
        found = torch.where(constrained_dofs(start.rows), qdd, free)
    after = fixed.advance(state, found, rate, qdd, residual)
    return StepResult(after, start, qdd, tau, applied, state, qdd)


@without_autocast
def _runge_kutta(fixed: Drive, state: State) -> StepResult:
    """The classical Runge-Kutta method in MuJoCo's coordinates, whose linear velocities are inertial.

    Rotation vectors of ball and free joints follow the method of Munthe-Kaas (1999).
    """
    mech, dt = fixed.mech, fixed.dt
    mujoco = conventions("mujoco", mech)
    q0, act0 = state.q, state.act
    v0 = mujoco.qd_to(q0, state.qd)
    first: tuple[Kinematics, Tensor, Tensor, Tensor] | None = None
    last: tuple[State, Tensor] | None = None
    warmstart, residuals = _warmstart(state), []

    def rate(span: object, changes: Rates | None) -> Rates:
        """Rates of the displacement and of the velocity in MuJoCo's coordinates, and of activations."""
        nonlocal first, last, warmstart
        u, q, qd, act = None, q0, state.qd, act0
        if changes is not None:
            u, v, *rest = changes
            q = _displaced(mech, q0, u)
            qd = mujoco.qd_from(q, v0 + v)
            act = act0 + rest[0] if rest else act0
        at = fixed.at(q, qd)
        tau, act_rate, _, applied = fixed.forces(at, act)
        inputs = (at.tree_q, qd, tau, *at.loop_motion)
        inputs = inputs if warmstart is None else (*inputs, warmstart)
        # In a kernel the stages share one function.
        qdd, residual = subprogram(partial(_accelerate, fixed), inputs, 2)
        first, warmstart = first or (at, qdd, tau, applied), qdd.detach()
        last = State(q, qd, act), qdd
        residuals.append(residual)
        speed = _rate_of_change(mech, u, mujoco.qd_from(q0, mujoco.qd_to(q, qd)))
        rates = speed, mujoco.qdd_to(q, qd, qdd)
        return rates if act_rate is None else (*rates, act_rate)

    rates = stage_rates(RK4_ROWS, rate, dt)
    u, v, *_ = combine(RK4_WEIGHTS, rates, dt)
    of_act = combine(RK4_WEIGHTS, [x[2:] for x in rates], 1.0)
    q = _displaced(mech, q0, u)
    act = fixed.after(act0, *of_act) if of_act else act0
    assert first is not None and last is not None
    start, qdd, tau, applied = first
    residual = torch.stack(residuals).amax(0)
    after = State(q, mujoco.qd_from(q, v0 + v), act, state.t + dt, qdd.detach(), residual)
    return StepResult(after, fixed.constrained(start), qdd, tau, applied, *last)


def _accelerate(
    fixed: Drive, tree_q: Tensor, qd: Tensor, tau: Tensor, *rest: Tensor
) -> tuple[Tensor, Tensor]:
    """Acceleration and residual for inputs (tree_q, qd, tau, [X, xi], [warmstart])."""
    mech = in_traced_dtype(fixed.mech, qd)
    num_loop_inputs = 0 if mech.closing is None else 2
    state = Kinematics(mech, tree_q, qd).with_loop_motion(*rest[:num_loop_inputs])
    return solve_dynamics(fixed.constrained(state), tau, *rest[num_loop_inputs:] or (None,))


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
