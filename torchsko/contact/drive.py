"""Forces on a mechanism during a step: actuators, tendons, controls, external forces and contact."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.actuators.actuator_forces import ActuatorState
from torchsko.actuators.actuators import Actuators
from torchsko.actuators.file_actuators import actuators_of
from torchsko.actuators.implicit_forces import ForceSlopes
from torchsko.actuators.tendons import Tendons
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.soft_state import SoftState
from torchsko.errors import Fields, MechanismError, ShapeError, name_list
from torchsko.mechanism.configuration import advance
from torchsko.mechanism.dispatch import in_traced_dtype
from torchsko.mechanism.file_data.actuator import FileActuators
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.mechanism.state import misfit, shared_batch


class Drive(NamedTuple):
    """A mechanism with the contact model, actuators, controls and external forces that act on it.

    Attributes:
        mech: the mechanism.
        contact: shapes and parameters of contact.
        actuators: None if controls are joint forces.
        tendons: tendons with springs and dampers; None without any.
        ctrl: controls, `[*batch, n]`; None for zero joint forces.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`.
        dt: time step [s]; a tensor `[]` computes like a number.
    """

    mech: Mechanism
    contact: ContactModel
    actuators: Actuators | None
    tendons: Tendons | None
    ctrl: Tensor | None
    f_ext: Tensor | None
    dt: float

    @staticmethod
    def of(
        mech: Mechanism,
        state: State,
        ctrl: Tensor | None,
        actuators: Actuators | None,
        contact: ContactModel,
        f_ext: Tensor | None,
        dt: float,
    ) -> tuple[Drive, State]:
        """The defaults of `torchsko.step` for actuators and controls, and the state with all activations.

        Raises:
            MechanismError: on controls of a robot whose file has actuators of unsupported kinds only.
            ShapeError: when controls or activations do not fit the actuators.
        """
        actuators = default_actuators(mech) if actuators is None else actuators
        if ctrl is not None:
            check_controls(mech, ctrl, actuators)
            shared_batch({"q": state.q.shape[:-1], "ctrl": ctrl.shape[:-1]})
        elif actuators is not None:
            ctrl = state.qd.new_zeros(*state.qd.shape[:-1], len(actuators.names))
        state = state._replace(act=all_activations(mech, state.act, actuators))
        return Drive(mech, contact, actuators, file_tendons(mech), ctrl, f_ext, dt), state

    def at(self, q: Tensor, qd: Tensor) -> Kinematics:
        """The mechanism at a configuration and velocity."""
        return Kinematics.of(in_traced_dtype(self.mech, q), q, qd)

    def constrained(self, state: Kinematics) -> SoftState:
        """The mechanism at a state, with contact and external forces."""
        return SoftState(state, self.contact, self.f_ext)

    def forces(
        self, state: Kinematics, act: Tensor
    ) -> tuple[Tensor, Tensor | None, ForceSlopes | None, Tensor]:
        """Forces of actuators and tendons, rates of activations, slopes, and forces of actuators alone."""
        applied, rate, slopes = self._actuate(state, act)
        if self.tendons is None:
            return applied, rate, slopes, applied
        of_tendons = self.tendons.slopes(state)
        slopes = of_tendons if slopes is None else slopes.concatenate(of_tendons)
        return applied + self.tendons.gen_force(state), rate, slopes, applied

    def _actuate(
        self, state: Kinematics, act: Tensor
    ) -> tuple[Tensor, Tensor | None, ForceSlopes | None]:
        """Joint forces, rates of activations, and derivatives of the forces of actuators."""
        if self.actuators is None:
            assert state.qd is not None
            return torch.zeros_like(state.qd) if self.ctrl is None else self.ctrl, None, None
        assert self.ctrl is not None
        actuated = ActuatorState.at(state, self.actuators, act, self.ctrl, self.dt)
        rate = actuated.rate if self.actuators.activation_names else None
        return actuated.gen_force, rate, actuated.slopes()

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

    def after(self, act: Tensor, rate: Tensor | None) -> Tensor:
        """Activations after the step."""
        if rate is None or self.actuators is None:
            return act
        return self.actuators.next_activation(act, rate, self.dt)


def default_actuators(mech: Mechanism) -> Actuators | None:
    """The actuators of the robot file; None if it has none that are modeled."""
    return None if file_actuators(mech) is None else actuators_of(mech)


def file_tendons(mech: Mechanism) -> Tendons | None:
    """The tendons of the robot file with springs or dampers; None without any."""
    elastic = [t for t in mech.file_metadata.tendons if t.has_spring_or_damper]
    return Tendons.of(mech, elastic) if elastic else None


def file_actuators(mech: Mechanism) -> FileActuators | None:
    """The actuators of the robot file as data; None if it has none that are modeled."""
    data = mech.file_metadata.actuators
    return data if data.actuators else None


def check_controls(
    mech: Mechanism, ctrl: object, actuators: Actuators | FileActuators | None
) -> None:
    """Check that controls have the meaning and the width of the actuators.

    Args:
        mech: the mechanism.
        ctrl: controls, `[*batch, n]`, or joint forces without actuators.
        actuators: those of the step; None if the robot file has none that are modeled.

    Raises:
        MechanismError: when no actuator of the file is modeled; names them.
        ShapeError: when the width, dtype or device does not fit.
    """
    if actuators is None and mech.file_metadata.actuators.unsupported:
        raise MechanismError(*_unmodeled(mech))
    width = mech.num_dof if actuators is None else len(actuators.names)
    if not isinstance(ctrl, Tensor):
        raise ShapeError(
            f"the controls were given as {type(ctrl).__name__}.",
            "Controls are tensors, which have a device and gradients.",
            f"Pass a tensor of shape [*batch, {width}] of {mech.dtype}.",
        )
    if (why := misfit(mech, "ctrl", ctrl, (width,), _meaning(mech, actuators))) is not None:
        raise ShapeError(*why)


def _unmodeled(mech: Mechanism) -> Fields:
    """Fields of the error for controls of actuators that are not modeled."""
    notes = mech.file_metadata.actuators.unsupported
    return (
        f"controls were given, and no actuator of {mech.name!r} is modeled: "
        + "; ".join(f"{note.element} ({note.reason})" for note in notes)
        + ".",
        "Controls have the meaning that the file gives them; they are not joint forces.",
        "Pass actuators=ts.actuators.Actuators.of(mech, "
        "[ts.actuators.Actuator.motor('name', 'joint'), ...]).",
    )


def _meaning(mech: Mechanism, actuators: Actuators | FileActuators | None) -> str:
    """Sentence that explains the width of controls."""
    if actuators is None:
        return (
            f"{mech.name!r} has no actuators: controls are joint forces on its {mech.num_dof} dofs."
        )
    if not actuators.unused:
        return f"The actuators are {name_list(actuators.names)}."
    rest = ", ".join(note.element for note in actuators.unused)
    return f"The actuators are {name_list(actuators.names)}; not modeled: {rest}."


def all_activations(
    mech: Mechanism, act: Tensor, actuators: Actuators | FileActuators | None
) -> Tensor:
    """Activations of all actuators, `[*batch, m]`; one number stands for all."""
    count = 0 if actuators is None else len(actuators.activation_names)
    if act.shape[-1:] == (1,) and count != 1:
        act = act.expand(*act.shape[:-1], count) if count else act[..., :0]
    names = name_list(actuators.activation_names) if actuators and count else "no actuator has one"
    meaning = (
        f"Activations: {names}. Forces are an argument of the step, not of ts.State(q, qd, act)."
    )
    if (why := misfit(mech, "act", act, (count,), meaning)) is not None:
        raise ShapeError(*why)
    return act


def check_activations(mech: Mechanism, state: State) -> None:
    """Check the activations of a state that a step without actuators leaves as they are.

    Raises:
        ShapeError: when they are not those of the robot file, such as forces in their place.
    """
    all_activations(mech, state.act, file_actuators(mech))
