r"""What actuators do at a state: forces on joints, rates of activations, and how the forces answer motion.

The force of an actuator is, in this order, affine in its length and rate (`torchsko.actuation.actuator`),
within its torque-speed curve and its range, and what passes its gear. A gear of efficiency e passes e f where
f drives, f / e where it is driven back; with the speed's smoothed sign s,

.. math::
    f_{out} = f - s\, (b\, |f| - a s f), \qquad a = \tfrac12 (1/e + e) - 1, \quad
    b = \tfrac12 (1/e - e) \ge a, \quad s = \dot l / \sqrt{\dot l^2 + v_s^2},

so it only ever takes power: :math:`f_{out} \dot l \le f \dot l`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.actuation.actuators import Actuators, saturate
from torchsko.actuation.implicit_forces import ForceSlopes
from torchsko.errors import MechanismError, ShapeError
from torchsko.mechanism.coordinates import all_q, all_rates, own_forces
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.utils.shapes import concatenate, gather_entries, matvec

CREEP = 1e-3
"""Rate of a length v_s below which a gear's loss falls to none [m/s or rad/s]."""


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
    """What actuators do at a state: joint forces, and the rates of their activations.

    Differentiable in everything; where a control or force saturates, its derivative is zero.

    Args:
        mech: the mechanism.
        actuators: of it.
        q: `[*batch, num_q]`.
        qd: `[*batch, num_dof]`.
        activation: `[*batch, m]`; may be left out where there is none.
        ctrl: controls, `[*batch, n]`.
        dt: time step [s], needed where the force comes from the activation after it (`early`).

    Returns:
        tau `[*batch, num_dof]` [N m or N], and rates `[*batch, m]` [1/s].

    Raises:
        ShapeError: when a shape does not fit.
        MechanismError: when `dt` is needed and was left out, or the actuators are those of a mechanism with
            other joints, as before `Mechanism.lock`.

    Reference: MuJoCo documentation, "Computation", Actuation model.
    """
    mech = as_mechanism(mech)
    acting = _ActuatorState.at(mech, actuators, q, qd, activation, ctrl, dt)
    joint_force = saturate(acting.joint_force, actuators.joint_range)
    return own_forces(mech, joint_force), acting.rate


def actuate_with_slopes(
    mech: Mechanism,
    actuators: Actuators,
    q: Tensor,
    qd: Tensor,
    activation: Tensor | None,
    ctrl: Tensor,
    dt: float | Tensor,
) -> tuple[Tensor, Tensor, ForceSlopes]:
    """`actuate`, and how the forces answer motion within the step."""
    acting = _ActuatorState.at(mech, actuators, q, qd, activation, ctrl, dt)
    joint_force = saturate(acting.joint_force, actuators.joint_range)
    return own_forces(mech, joint_force), acting.rate, acting.slopes()


def _check_width(mech: Mechanism, actuators: Actuators) -> None:
    """Refuse actuators that push another number of dofs than the mechanism has.

    Raises:
        MechanismError: names both numbers.
    """
    pushed = actuators.transmission.shape[-1]
    if pushed != mech.num_tree_dof:
        raise MechanismError(
            f"the actuators are of a mechanism with {pushed} dofs of all joints, {mech.name!r} has "
            f"{mech.num_tree_dof}.",
            "With lock and append joints change, and with them what each actuator pushes.",
            "Make them of this one: ts.Actuators.of(mech, [...]).",
        )


@dataclass(frozen=True, eq=False)
class _ActuatorState:
    """Actuators at a state, from their inputs to what passes their gears; all `[*batch, n]`."""

    actuators: Actuators
    rate: Tensor
    u: Tensor
    speed: Tensor
    raw: Tensor
    curved: Tensor
    force: Tensor

    @staticmethod
    def at(
        mech: Mechanism,
        actuators: Actuators,
        q: Tensor,
        qd: Tensor,
        activation: Tensor | None,
        ctrl: Tensor,
        dt: float | Tensor | None,
    ) -> _ActuatorState:
        check_state(mech, q=q, qd=qd)
        _check_width(mech, actuators)
        activation = ctrl[..., :0] if activation is None else activation
        _check("ctrl", ctrl, len(actuators.names))
        _check("activation", activation, len(actuators.activation_names))
        control = saturate(ctrl, actuators.control_range)
        rate = _activation_rate(actuators, activation, gather_entries(control, actuators.states))
        acting = activation
        if dt is not None:
            after = actuators.next_activation(activation, rate, dt)
            acting = torch.where(actuators.early, after, activation)
        elif actuators.any_early:
            raise MechanismError(
                "an actuator acts by its activation after the time step, and no dt was given.",
                "Its force depends on the length of the step.",
                "Pass dt=..., in seconds.",
            )
        u = gather_entries(concatenate((control, acting)), actuators.inputs)
        length, speed = lengths(mech, actuators.transmission, actuators.q_of_dof, q, qd)
        raw = _affine(actuators.gain, length, speed) * u + _affine(actuators.bias, length, speed)
        curved = raw
        if actuators.has_curves:
            fall = actuators.droop * speed
            curved = torch.clamp(raw, -actuators.stall - fall, actuators.stall - fall)
        force = saturate(curved, actuators.force_range)
        return _ActuatorState(actuators, rate, u, speed, raw, curved, force)

    @property
    def joint_force(self) -> Tensor:
        """On all joints of the tree, before it saturates there, `[*batch, num_tree_dof]`."""
        out = self.force
        if self.actuators.has_gears:
            out = out - self.speed * self._loss
        return matvec(self.actuators.transmission.mT, out)

    @property
    def _loss(self) -> Tensor:
        """What the gear takes, over the speed."""
        a, b = _gear(self.actuators.efficiency)
        root = _smooth(self.speed)
        return (b * self.force.abs() - a * self.speed / root * self.force) / root

    def slopes(self) -> ForceSlopes:
        """How the forces fall with length and speed; not at all where they saturated.

        Of a gear's loss the secant is taken, as of dry friction in a step, which so never reverses.
        """
        of = self.actuators
        stiffness, damping = (
            -(of.gain[..., i] * self.u + of.bias[..., i]).expand_as(self.force) for i in (1, 2)
        )
        zero = torch.zeros_like(self.force)
        if of.has_curves:
            within = self.raw == self.curved
            stiffness = torch.where(within, stiffness, zero)
            damping = torch.where(within, damping, of.droop)
        within = (self.curved > of.force_range[..., 0]) & (self.curved < of.force_range[..., 1])
        stiffness, damping = (torch.where(within, x, zero) for x in (stiffness, damping))
        if of.has_gears:
            (a, b), s = _gear(of.efficiency), self.speed / _smooth(self.speed)
            share = 1 - s * (b * torch.sign(self.force) - a * s)
            stiffness = share * stiffness
            damping = share * damping + self._loss
        joint = self.joint_force
        free = (joint > of.joint_range[..., 0]) & (joint < of.joint_range[..., 1])
        B = torch.where(free[..., None, :], of.transmission, torch.zeros_like(of.transmission))
        return ForceSlopes(B, stiffness, damping, of.alone, of.several)


def lengths(
    mech: Mechanism, transmission: Tensor, q_of_dof: Tensor, q: Tensor, qd: Tensor
) -> tuple[Tensor, Tensor]:
    """Lengths of transmissions `[n, num_tree_dof]` and their rates, each `[*batch, n]`."""
    coordinates = all_q(mech, q).index_select(-1, q_of_dof)
    length, speed = (matvec(transmission, x) for x in (coordinates, all_rates(mech, qd)))
    return length, speed


def _gear(efficiency: Tensor) -> tuple[Tensor, Tensor]:
    """A and b of the module."""
    return (1 / efficiency + efficiency) / 2 - 1, (1 / efficiency - efficiency) / 2


def _smooth(speed: Tensor) -> Tensor:
    return (speed * speed + CREEP**2).sqrt()


def _activation_rate(actuators: Actuators, activation: Tensor, control: Tensor) -> Tensor:
    follows = (control - activation) / actuators.time_constant
    return torch.where(actuators.filtered, follows, control)


def _affine(coefficients: Tensor, length: Tensor, speed: Tensor) -> Tensor:
    constant, slope, damping = coefficients.unbind(-1)
    return constant + slope * length + damping * speed


def _check(name: str, x: Tensor, size: int) -> None:
    if not isinstance(x, Tensor) or x.shape[-1:] != (size,):
        shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ShapeError(
            f"{name} of the actuators has shape {shape}.",
            "It has a number for each of actuators.names, or of actuators.activation_names.",
            f"Pass a tensor of shape [*batch, {size}].",
        )
