"""`ContactStep`: the step of `torchsko.step` as a method of `torchsko.rollout`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.actuators.sampled_control import SampledControl
from torchsko.actuators.tendons import Tendons
from torchsko.contact.contact_fields import PARAMETER_DIMS
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.contact_step import check_contact, integrator_of
from torchsko.contact.drive import Drive, default_actuators, file_actuators, file_tendons
from torchsko.contact.step_integrators import StepResult
from torchsko.integrators.step import Dynamics, Integrator
from torchsko.mechanism.file_data.actuator import FileActuators
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State


@dataclass(frozen=True)
class ContactStep(Integrator):
    """A step of `torchsko.rollout` with actuators, contact and soft constraints: that of `torchsko.step`.

    The control of the rollout has the meaning that it has in `torchsko.step`: controls of the actuators of
    the robot file, `[*batch, n]`, or of ``actuators``; joint forces for a file without actuators. A function
    is evaluated once for each step. `torchsko.actuators.ActuatedControl` has its own actuators, and the
    joint forces of any other controller act unchanged, besides tendons. Integrator and time step are by
    default those of the robot file.

    A `torchsko.Trajectory` of it has ``constraint_forces``, ``residual`` and, for actuators that have them,
    activations ``act``, which start from those of the state. The solver has no warm start, so that a step
    depends on the state alone. Time constants of constraints below two time steps count as two time steps.

    Attributes:
        contact: shapes and parameters of contact; by default `torchsko.ContactModel.of` of the mechanism.
            ``params`` of the rollout replaces its tensors by name, such as ``{"friction": x}``.
        integrator: see `torchsko.step`; by default that of the robot file.
        actuators: by default those of the robot file.

    Reference: see `torchsko.step`.

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.1"><freejoint/>
        ...   <geom size="0.1"/></body></worldbody></mujoco>'''
        >>> ball = ts.load(text)
        >>> trajectory = ts.rollout(ball, ts.initial_state(ball), steps=5, method=ts.ContactStep())
        >>> trajectory.constraint_forces.shape, bool(trajectory.residual.max() < 1e-9)
        (torch.Size([5, 6]), True)
    """

    contact: ContactModel | None = None
    integrator: str | None = None
    actuators: Actuators | None = None
    order: int = field(default=1, init=False)
    single_evaluation: ClassVar[bool] = True
    evaluates_start: ClassVar[bool] = True
    input_names: ClassVar[tuple[str, ...]] = tuple(PARAMETER_DIMS)

    def resolve(self, mech: Mechanism) -> ResolvedContactStep:
        """The step with the contact model, the actuators and the tendons of the robot file."""
        return ResolvedContactStep(
            ContactModel.of(mech) if self.contact is None else self.contact,
            self.integrator,
            default_actuators(mech) if self.actuators is None else self.actuators,
            file_tendons(mech),
        )

    def actuators_for(self, mech: Mechanism) -> Actuators | FileActuators | None:
        """The actuators of the controls of a rollout; None if these are joint forces."""
        return file_actuators(mech) if self.actuators is None else self.actuators

    def __call__(  # type: ignore[override]
        self,
        mech: Mechanism,
        accelerate: Dynamics,
        t: float,
        q: Tensor,
        qd: Tensor,
        dt: float,
        **parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The next state, the forces of the constraints and the residual, under joint forces.

        A method of a rollout that is a function may call it, with the ``accelerate`` that it was given.
        """
        tau, f_ext = accelerate.force(t, q, qd), accelerate.wrenches(t, q, qd)
        control = SampledControl(tau.expand_as(qd), None, qd[..., :0], qd[..., :0])
        step = self.resolve(mech)
        result = step.advance(mech, control, q, qd, dt, f_ext, parameters)
        after = result.state
        return after.q, after.qd, result.forces(), after.residual


@dataclass(frozen=True, eq=False)
class ResolvedContactStep:
    """A `ContactStep` with everything that it takes from a robot file.

    Attributes:
        contact: shapes and parameters of contact.
        integrator: see `torchsko.step`; None for that of the contact model's options.
        actuators: of the controls; None if these are joint forces.
        tendons: tendons with springs and dampers; None without any.
    """

    contact: ContactModel
    integrator: str | None
    actuators: Actuators | None
    tendons: Tendons | None

    def advance(
        self,
        mech: Mechanism,
        control: SampledControl,
        q: Tensor,
        qd: Tensor,
        dt: float,
        f_ext: Tensor | None,
        parameters: Mapping[str, Tensor],
    ) -> StepResult:
        """The result of a step.

        Args:
            mech: the mechanism.
            control: controls of the step.
            q: configuration, `[*batch, num_q]`.
            qd: velocity, `[*batch, num_dof]`.
            dt: time step [s].
            f_ext: external force on each body, `[*batch, num_bodies, 6]`.
            parameters: tensors of the contact model by name.
        """
        contact = self.contact.replace(**parameters) if parameters else self.contact
        check_contact(mech, contact, q.shape[:-1])
        tendons = self.tendons if control.tendons is None else control.tendons
        contact = contact.at_timestep(dt)
        drive = Drive(mech, contact, control.actuators, tendons, control.ctrl, f_ext, dt)
        name = contact.options.integrator if self.integrator is None else self.integrator
        return integrator_of(name)(drive, State(q, qd, control.activation))
