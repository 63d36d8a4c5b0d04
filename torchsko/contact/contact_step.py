"""One time step of a mechanism with actuators, contact and other soft constraints: `torchsko.step`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.actuation.actuator_forces import ActuatorState
from torchsko.actuation.actuators import Actuators
from torchsko.actuation.implicit_forces import ForceSlopes
from torchsko.actuation.tendons import Tendons
from torchsko.contact.contact_dynamics import (
    ConstrainedDynamics,
    constrained_dynamics,
    dynamics_with_inertia,
    tendon_inertia,
)
from torchsko.contact.contact_model import ContactModel
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
from torchsko.errors import MechanismError, unknown_name
from torchsko.implicit.loop import subprogram
from torchsko.io.conventions.conversion import conventions
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.joints.configuration import advance, transport_rate
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.spatial.rotation import translation_jacobian_inverse
from torchsko.utils.shapes import matvec

RK4_ROWS, RK4_WEIGHTS = (0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)
"""Coefficients of the classical Runge-Kutta method, each stage from the one before it."""


class State(NamedTuple):
    """State of a simulation.

    Attributes:
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        act: activations of actuators, `[*batch, m]`; None stands for zeros.
        t: time [s], a number or `[*batch]`.
        warmstart: acceleration from which the solver starts, `[*batch, num_dof]`; without gradients.
        residual: largest error of the equations of motion in the last step, `[*batch]` [N m or N].
    """

    q: Tensor
    qd: Tensor
    act: Tensor | None = None
    t: Tensor | float = 0.0
    warmstart: Tensor | None = None
    residual: Tensor | None = None


class Drive(NamedTuple):
    """A mechanism with the contact model, actuators, controls and external forces that act on it.

    Attributes:
        mech: the mechanism.
        contact: shapes and parameters of contact.
        actuators: None if controls are joint forces.
        tendons: tendons with springs and dampers; None without any.
        ctrl: controls, `[*batch, n]`; None for zero joint forces.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`.
        dt: time step [s].
    """

    mech: Mechanism
    contact: ContactModel
    actuators: Actuators | None
    tendons: Tendons | None
    ctrl: Tensor | None
    f_ext: Tensor | None
    dt: float

    @staticmethod
    def at(
        mech: Mechanism,
        state: State,
        ctrl: Tensor | None,
        actuators: Actuators | None,
        contact: ContactModel,
        f_ext: Tensor | None,
        dt: float,
    ) -> tuple[Drive, State]:
        """The defaults of `step` for actuators and controls, and the state with activations."""
        data = mech.file_metadata.actuators
        if actuators is None and data.actuators:
            actuators = Actuators.of_file(mech, data)
        if actuators is not None and ctrl is None:
            ctrl = state.qd.new_zeros(*state.qd.shape[:-1], len(actuators.names))
        if actuators is not None and actuators.activation_names and state.act is None:
            zero = state.qd.new_zeros(*state.qd.shape[:-1], len(actuators.activation_names))
            state = state._replace(act=zero)
        elastic = [t for t in mech.file_metadata.tendons if t.has_spring_or_damper]
        tendons = Tendons.of(mech, elastic) if elastic else None
        return Drive(mech, contact, actuators, tendons, ctrl, f_ext, dt), state

    def forces(
        self, q: Tensor, qd: Tensor, act: Tensor | None
    ) -> tuple[Tensor, Tensor | None, ForceSlopes | None]:
        """Forces of actuators and tendons, rates of activations, and derivatives of the forces."""
        tau, rate, slopes = self._actuate(q, qd, act)
        if self.tendons is None:
            return tau, rate, slopes
        of_tendons = self.tendons.slopes(self.mech, q, qd)
        slopes = of_tendons if slopes is None else slopes.concatenate(of_tendons)
        return tau + self.tendons.force(self.mech, q, qd), rate, slopes

    def _actuate(
        self, q: Tensor, qd: Tensor, act: Tensor | None
    ) -> tuple[Tensor, Tensor | None, ForceSlopes | None]:
        """Joint forces, rates of activations, and derivatives of the forces of actuators."""
        if self.actuators is None:
            return torch.zeros_like(qd) if self.ctrl is None else self.ctrl, None, None
        assert self.ctrl is not None
        at = ActuatorState.at(self.mech, self.actuators, q, qd, act, self.ctrl, self.dt)
        return at.gen_force, at.rate, at.slopes()

    def accelerate(
        self, q: Tensor, qd: Tensor, tau: Tensor, warmstart: Tensor | None = None
    ) -> ConstrainedDynamics:
        """Constrained accelerations under joint forces."""
        return constrained_dynamics(
            self.mech, q, qd, tau, self.f_ext, contact=self.contact, warmstart=warmstart
        )

    def advance(
        self, state: State, qdd: Tensor, rate: Tensor | None, start: Tensor, residual: Tensor
    ) -> State:
        """The state after a semi-implicit Euler step.

        Args:
            state: at the start of the step.
            qdd: acceleration of the step.
            rate: rates of activations.
            start: acceleration from which the solver of the next step starts.
            residual: error of the equations of motion.
        """
        q, qd = advance(self.mech, state.q, state.qd, qdd, self.dt)
        act = self.after(state.act, rate)
        return State(q, qd, act, state.t + self.dt, start.detach(), residual)

    def after(self, act: Tensor | None, rate: Tensor | None) -> Tensor | None:
        """Activations after the step."""
        if act is None or rate is None or self.actuators is None:
            return act
        return self.actuators.next_activation(act, rate, self.dt)


def step(
    mech: MechanismLike,
    state: State,
    ctrl: Tensor | None = None,
    *,
    actuators: Actuators | None = None,
    contact: ContactModel | SmoothContact | None = None,
    f_ext: Tensor | None = None,
    dt: float | None = None,
    integrator: str | None = None,
    substeps: int = 1,
) -> State:
    """Advance a mechanism with contact by one control step, as MuJoCo does.

    Contacts beyond ``max_contacts`` of their pair exert no force. A step does not count them:
    `torchsko.contacts` at its start returns their number, ``dropped``.

    Args:
        mech: the mechanism.
        state: at the start.
        ctrl: controls of the actuators, `[*batch, n]`, constant over the step; zero by default. Without
            actuators joint forces, `[*batch, num_dof]` [N m or N].
        actuators: by default those of the robot file.
        contact: shapes and parameters of contact; by default `ContactModel.of` of the mechanism.
            `SmoothContact` selects smooth forces and a linearly implicit step.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body frame at its origin.
        dt: time step of the integrator [s]; by default that of the robot file.
        integrator: "Euler" (implicit in the damping of joints), "implicitfast" (implicit in the velocity of
            passive and actuator forces), "discrete" (constraints, springs and dampers at the end of the step)
            or "RK4"; by default that of the robot file.
        substeps: number of time steps.

    Returns:
        The state after the steps, with gradients to all inputs.

    Raises:
        MechanismError: on an unknown integrator, or one with smooth contact.
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: MuJoCo documentation, "Computation", Numerical integration.

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.1"><freejoint/>
        ...   <geom size="0.1"/></body></worldbody></mujoco>'''
        >>> ball = ts.load(text)
        >>> state = ts.State(ball.file_metadata.initial, ball.gravity.new_zeros(6))
        >>> for _ in range(5):
        ...     state = ts.step(ball, state)
        >>> round(float(state.q[2]), 3)
        0.1
    """
    mech = as_mechanism(mech)
    check_state(mech, q=state.q, qd=state.qd)
    smooth = contact if isinstance(contact, SmoothContact) else None
    if smooth is not None:
        contact = smooth.shapes
    elif contact is None:
        contact = ContactModel.of(mech)
    assert isinstance(contact, ContactModel)
    options = contact.options
    dt = options.timestep if dt is None else dt
    name = options.integrator if integrator is None else integrator
    if name not in INTEGRATORS:
        raise MechanismError(*unknown_name("integrator of a step", name, tuple(INTEGRATORS)))
    if smooth is not None and integrator is not None:
        raise MechanismError(
            f"the integrator {integrator!r} was passed with smooth contact.",
            "Smooth contact has one integrator, the linearly implicit step.",
            "Leave integrator out, or pass a ContactModel.",
        )
    contact = contact.at_timestep(dt)
    fixed, state = Drive.at(mech, state, ctrl, actuators, contact, f_ext, dt)
    advance_once = INTEGRATORS[name] if smooth is None else partial(_smooth, contact=smooth)
    for _ in range(substeps):
        state = advance_once(fixed, state)
    return state


def _euler(fixed: Drive, state: State, all_forces: bool) -> State:
    """Semi-implicit Euler step with implicit damping of joints, or of all forces."""
    mech, dt = fixed.mech, fixed.dt
    q, qd, act = state.q, state.qd, state.act
    tau, rate, slopes = fixed.forces(q, qd, act)
    found = fixed.accelerate(q, qd, tau, state.warmstart)
    qdd = euler_acceleration(
        mech, fixed.contact, q, qd, found.qdd, dt, slopes, all_forces=all_forces
    )
    return fixed.advance(state, qdd, rate, found.qdd, found.residual)


def _smooth(fixed: Drive, state: State, contact: SmoothContact) -> State:
    """Linearly implicit step with smooth contact."""
    mech, dt = fixed.mech, fixed.dt
    q, qd, act = state.q, state.qd, state.act
    tau, rate, slopes = fixed.forces(q, qd, act)
    damping = damping_of_forces(mech, q, qd, slopes, joints=True, fluid=False)
    qdd = smooth_acceleration(mech, contact, q, qd, tau, fixed.f_ext, damping, dt)
    return fixed.advance(state, qdd, rate, qdd, torch.zeros_like(qdd[..., 0]).detach())


def _discrete(fixed: Drive, state: State) -> State:
    """Step whose constraints, springs and dampers act at its end, in one equation."""
    mech, dt = fixed.mech, fixed.dt
    q, qd, act = state.q, state.qd, state.act
    tau, rate, slopes = fixed.forces(q, qd, act)
    added, push = end_of_step_inertia(mech, q, qd, slopes, dt)
    turning = transport_rate(mech, qd, qd)
    force = tau + push if turning is None else tau + push - matvec(added, turning)
    options = replace(fixed.contact.options, end_of_step=True)
    contact = replace(fixed.contact, options=options)
    found = dynamics_with_inertia(mech, q, qd, force, fixed.f_ext, contact, state.warmstart, added)
    qdd = found.qdd
    if standalone_bodies(mech):
        rows = constraint_rows(mech, contact, q, qd)
        of_tendons = tendon_inertia(mech, contact, q)
        added = added if of_tendons is None else added + of_tendons
        free = implicit_acceleration(mech, q, qd, qdd, None, dt, gyroscopic=True, added=added)
        qdd = torch.where(constrained_dofs(rows), qdd, free)
    return fixed.advance(state, qdd, rate, found.qdd, found.residual)


def _runge_kutta(fixed: Drive, state: State) -> State:
    """The classical Runge-Kutta method in MuJoCo's coordinates, whose linear velocities are inertial.

    Rotation vectors of ball and free joints follow the method of Munthe-Kaas (1999).
    """
    mech, dt = fixed.mech, fixed.dt
    mujoco = conventions("mujoco", mech)
    q0, act0 = state.q, state.act
    v0 = mujoco.qd_to(q0, state.qd)
    changes: list[Tensor] = []
    accelerations: list[Tensor] = []
    rates: list[Tensor] = []
    residuals: list[Tensor] = []
    q, qd, act = q0, state.qd, act0
    first = warmstart = u = None
    for stage in range(4):
        if stage:
            h = dt * RK4_ROWS[stage - 1]
            u = h * changes[-1]
            q = _displaced(mech, q0, u)
            qd = mujoco.qd_from(q, v0 + h * accelerations[-1])
            act = act0 if act0 is None else act0 + h * rates[-1]
        guess = state.warmstart if warmstart is None else warmstart
        tau, rate, _ = fixed.forces(q, qd, act)
        inputs = (q, qd, tau) if guess is None else (q, qd, tau, guess)
        # In a kernel the stages share one function.
        found = ConstrainedDynamics(*subprogram(fixed.accelerate, inputs, 3))
        first, warmstart = found.qdd if first is None else first, found.qdd.detach()
        residuals.append(found.residual)
        changes.append(_rate_of_change(mech, u, mujoco.qd_from(q0, mujoco.qd_to(q, qd))))
        accelerations.append(mujoco.qdd_to(q, qd, found.qdd))
        if rate is not None:
            rates.append(rate)
    assert first is not None
    q = _displaced(mech, q0, dt * _weighted(changes))
    act = act0 if act0 is None or not rates else fixed.after(act0, _weighted(rates))
    qd = mujoco.qd_from(q, v0 + dt * _weighted(accelerations))
    residual = torch.stack(residuals).amax(0)
    return State(q, qd, act, state.t + dt, first.detach(), residual)


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


INTEGRATORS: dict[str, Callable[[Drive, State], State]] = {
    "Euler": partial(_euler, all_forces=False),
    "implicitfast": partial(_euler, all_forces=True),
    "RK4": _runge_kutta,
    "discrete": _discrete,
}
"""Integrators of `step` by MuJoCo's names."""
