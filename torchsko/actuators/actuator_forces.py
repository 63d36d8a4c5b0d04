r"""Evaluation of actuators at a state: joint forces, rates of activations, and force derivatives.

The force of an actuator is computed in this order: the affine function of length and rate
(`torchsko.mechanism.file_data.actuator`), the torque-speed curve, the force range, and the gear. A gear of
efficiency e transmits e f where f drives, and f / e where it is back-driven. With the smoothed sign s of the
speed,

.. math::
    f_{out} = f - s\, (b\, |f| - a s f), \qquad a = \tfrac12 (1/e + e) - 1, \quad
    b = \tfrac12 (1/e - e) \ge a, \quad s = \dot l / \sqrt{\dot l^2 + v_s^2},

so it only dissipates power: :math:`f_{out} \dot l \le f \dot l`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.actuators.actuators import Actuators, saturate
from torchsko.actuators.implicit_forces import ForceSlopes
from torchsko.bridge.body_momenta import compensating_forces
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import MechanismError, ShapeError
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.utils.shapes import concatenate, gather_entries, matvec

GEAR_CREEP = 1e-3
"""Rate of length v_s below which the loss of a gear vanishes [m/s or rad/s]."""


def actuate(
    mech: MechanismLike,
    actuators: Actuators,
    q: Tensor,
    qd: Tensor,
    activation: Tensor | None = None,
    *,
    ctrl: Tensor,
    dt: float | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Joint forces of actuators at a state, and the rates of their activations.

    Differentiable in all arguments; where a control or force saturates, its derivative is zero.

    Args:
        mech: the mechanism.
        actuators: of the mechanism.
        q: `[*batch, num_q]`.
        qd: `[*batch, num_dof]`.
        activation: `[*batch, m]`; optional without activations.
        ctrl: controls, `[*batch, n]`.
        dt: time step [s], required if a force is computed from the activation after it (`early`).

    Returns:
        tau `[*batch, num_dof]` [N m or N], and rates `[*batch, m]` [1/s].

    Raises:
        ShapeError: when a shape does not fit.
        MechanismError: when `dt` is required and missing, or the actuators belong to a mechanism with other
            joints, as before `Mechanism.lock`.

    Reference: MuJoCo documentation, "Computation", Actuation model.
    """
    mech = as_mechanism(mech)
    check_state(mech, q=q, qd=qd)
    state = ActuatorState.at(Kinematics.of(mech, q, qd), actuators, activation, ctrl, dt)
    return state.gen_force, state.rate


def _check_actuators(mech: Mechanism, actuators: Actuators) -> None:
    """Check that the actuators belong to a mechanism with as many dofs, of the same dtype."""
    count = actuators.transmission.shape[-1]
    if count != mech.num_tree_dof:
        raise MechanismError(
            f"the actuators belong to a mechanism with {count} dofs of all joints, {mech.name!r} has "
            f"{mech.num_tree_dof}.",
            "lock and append change the joints on which actuators act.",
            "Make new ones for this mechanism: ts.actuators.Actuators.of(mech, [...]).",
        )
    dtype = actuators.transmission.dtype
    if dtype != mech.dtype and not is_scalar_form():
        raise MechanismError(
            f"the actuators are {dtype}, the mechanism {mech.dtype}.",
            "Dtypes are not converted implicitly.",
            "Make new ones for this mechanism: ts.actuators.actuators_of(mech), or "
            "ts.actuators.Actuators.of(mech, [...]).",
        )


@dataclass(frozen=True, eq=False)
class ActuatorState:
    """Intermediate values of actuators at a state, from their inputs to their gears; see `actuate`.

    Attributes:
        kinematics: the mechanism at the state.
        actuators: of the mechanism.
        rate: rates of the activations, `[*batch, m]` [1/s].
        u: inputs of the gains, `[*batch, n]`, like all that follow.
        length: of each transmission [m or rad].
        speed: rate of length [m/s or rad/s].
        raw: affine function of length and speed [N or N m].
        on_curve: `raw` within the torque-speed curve.
        force: of each actuator before its gear.
        lift: gravity compensation by actuators on each dof of the tree; None if there is none.
    """

    kinematics: Kinematics
    actuators: Actuators
    rate: Tensor
    u: Tensor
    length: Tensor
    speed: Tensor
    raw: Tensor
    on_curve: Tensor
    force: Tensor
    lift: Tensor | None

    @staticmethod
    def at(
        state: Kinematics,
        actuators: Actuators,
        activation: Tensor | None,
        ctrl: Tensor,
        dt: float | Tensor | None,
    ) -> ActuatorState:
        """Evaluate actuators; arguments and errors are those of `actuate`."""
        _check_actuators(state.mech, actuators)
        activation = ctrl[..., :0] if activation is None else activation
        activation = actuators.spread_activation(activation)
        check_width("ctrl", ctrl, len(actuators.names))
        check_width("activation", activation, len(actuators.activation_names))
        control = saturate(ctrl, actuators.control_range)
        rate = _activation_rate(actuators, activation, gather_entries(control, actuators.states))
        effective = activation
        if dt is not None:
            after = actuators.next_activation(activation, rate, dt)
            effective = torch.where(actuators.early, after, activation)
        elif actuators.any_early:
            raise MechanismError(
                "an actuator uses its activation after the time step, and dt is missing.",
                "Its force depends on the time step.",
                "Pass dt=..., in seconds.",
            )
        u = gather_entries(concatenate((control, effective)), actuators.inputs)
        coordinates = state.tree_q.index_select(-1, actuators.q_of_dof)
        length = matvec(actuators.transmission, coordinates)
        speed = matvec(actuators.transmission, state.tree_qd)
        raw = _affine(actuators.gain, length, speed) * u + _affine(actuators.bias, length, speed)
        on_curve = raw
        if actuators.has_curves:
            loss = actuators.droop * speed
            on_curve = torch.clamp(raw, -actuators.stall - loss, actuators.stall - loss)
        force = saturate(on_curve, actuators.force_range)
        lift = None
        if actuators.any_lifting:
            lift = compensating_forces(state)
            lift = torch.where(actuators.lifting, lift, 0.0)
        return ActuatorState(state, actuators, rate, u, length, speed, raw, on_curve, force, lift)

    @property
    def gen_force(self) -> Tensor:
        """Joint forces tau besides passive forces, `[*batch, num_dof]` [N m or N]."""
        return self.kinematics.independent_forces(self.applied_force)

    @property
    def applied_force(self) -> Tensor:
        """Force on the tree besides passive forces, `[*batch, num_tree_dof]` [N m or N]."""
        return self.joint_force if self.lift is None else self.joint_force - self.lift

    @property
    def joint_force(self) -> Tensor:
        """Force on the tree, `[*batch, num_tree_dof]`, with gravity compensation by actuators."""
        return saturate(self._unsaturated, self.actuators.joint_range)

    @property
    def _unsaturated(self) -> Tensor:
        """Force on all joints of the tree before saturation, `[*batch, num_tree_dof]`."""
        out = self.force
        if self.actuators.has_gears:
            out = out - self.speed * self._loss
        out = matvec(self.actuators.transmission.mT, out)
        return out if self.lift is None else out + self.lift

    @property
    def _loss(self) -> Tensor:
        """Loss of the gear divided by the speed."""
        a, b = _gear(self.actuators.efficiency)
        root = _smooth_abs(self.speed)
        return (b * self.force.abs() - a * self.speed / root * self.force) / root

    def slopes(self) -> ForceSlopes:
        """Negative derivatives of the forces with respect to length and speed; zero where they saturate.

        The loss of a gear is treated as a linear damping, like dry friction in a step, so it never reverses
        motion.
        """
        actuators = self.actuators
        stiffness, damping = (
            -(actuators.gain[..., i] * self.u + actuators.bias[..., i]).expand_as(self.force)
            for i in (1, 2)
        )
        zero = torch.zeros_like(self.force)
        if actuators.has_curves:
            within = self.raw == self.on_curve
            stiffness = torch.where(within, stiffness, zero)
            damping = torch.where(within, damping, actuators.droop)
        within = (self.on_curve > actuators.force_range[..., 0]) & (
            self.on_curve < actuators.force_range[..., 1]
        )
        stiffness, damping = (torch.where(within, x, zero) for x in (stiffness, damping))
        if actuators.has_gears:
            (a, b), s = _gear(actuators.efficiency), self.speed / _smooth_abs(self.speed)
            transmitted = 1 - s * (b * torch.sign(self.force) - a * s)
            stiffness = transmitted * stiffness
            damping = transmitted * damping + self._loss
        joint = self._unsaturated
        free = (joint > actuators.joint_range[..., 0]) & (joint < actuators.joint_range[..., 1])
        B = torch.where(
            free[..., None, :], actuators.transmission, torch.zeros_like(actuators.transmission)
        )
        return ForceSlopes(B, stiffness, damping, actuators.single_joint, actuators.multi_joint)


def _gear(efficiency: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients a and b of the loss, see the module."""
    return (1 / efficiency + efficiency) / 2 - 1, (1 / efficiency - efficiency) / 2


def _smooth_abs(speed: Tensor) -> Tensor:
    return (speed * speed + GEAR_CREEP**2).sqrt()


def _activation_rate(actuators: Actuators, activation: Tensor, control: Tensor) -> Tensor:
    follows = (control - activation) / actuators.time_constant
    return torch.where(actuators.filtered, follows, control)


def _affine(coefficients: Tensor, length: Tensor, speed: Tensor) -> Tensor:
    constant, slope, damping = coefficients.unbind(-1)
    return constant + slope * length + damping * speed


def check_width(name: str, x: Tensor, size: int) -> None:
    """Check that a tensor has one number per actuator, or per activation."""
    if not isinstance(x, Tensor) or x.shape[-1:] != (size,):
        shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ShapeError(
            f"{name} of the actuators has shape {shape}.",
            "It has one number per actuator, or per activation.",
            f"Pass a tensor of shape [*batch, {size}].",
        )
