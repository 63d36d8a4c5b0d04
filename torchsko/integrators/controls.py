"""Controls of a rollout: tensors, functions and controllers, evaluated as joint forces of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from torchsko.actuators.actuated_control import ActuatedControl
from torchsko.actuators.actuators import Actuators
from torchsko.actuators.controller import Controller
from torchsko.actuators.implicit_forces import ImplicitForce
from torchsko.actuators.law import Binding, Law, Named, as_step_series, bind, law_of
from torchsko.actuators.sampled_control import SampledControl
from torchsko.contact.drive import all_activations, check_controls
from torchsko.errors import ShapeError, TorchskoError
from torchsko.integrators.contact_integrator import ContactStep, ResolvedContactStep
from torchsko.integrators.series import Series
from torchsko.mechanism.file_data.actuator import FileActuators
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_coordinates, check_state
from torchsko.utils.shapes import broadcast_shapes, is_expandable

Policy = Callable[..., Tensor]
"""Maps time [s], configuration and velocity to joint forces or controls; see `torchsko.actuators.law`."""

StateLaw = Callable[[float, Tensor, Tensor], Tensor]
"""Maps time [s], configuration and velocity to joint forces, with all other arguments bound."""

JointForce = Tensor | StateLaw | ImplicitForce
"""Joint forces over one step."""

StepForce = JointForce | SampledControl
"""Joint forces over one step, or the controls of a `torchsko.ContactStep`."""

Effort = Literal["clamp"] | None
"""Treatment of forces beyond ``mech.effort_limit``: none (None), or saturation."""


@dataclass(frozen=True, eq=False)
class BoundController:
    """A controller with the arguments that its method takes.

    Attributes:
        controller: the controller.
        binding: arguments of `act`, or of `act_implicitly` if the controller acts implicitly.
    """

    controller: Controller
    binding: Binding

    @property
    def acts_implicitly(self) -> bool:
        """True if forces depend on the velocity after a step."""
        return self.controller.acts_implicitly

    def __call__(
        self, mech: Mechanism, arguments: tuple[Any, ...], inputs: Named
    ) -> tuple[Any, Tensor]:
        """Forces over a step, and the memory after it."""
        controller = self.controller
        act = controller.act_implicitly if self.acts_implicitly else controller.act
        return self.binding.call(act, mech, arguments, inputs)


@dataclass(frozen=True, eq=False)
class Forces:
    """The joint forces of every step of a rollout, or the controls of the steps of a `torchsko.ContactStep`.

    Attributes:
        mech: the mechanism.
        source: a series `[*batch, steps or 1, num_dof]` as applied, a law, or a controller.
        batch: batch dimensions of the rollout.
        dt: time step [s].
        effort: see `torchsko.rollout`.
        rows: a series split into steps, see `unbound`.
        first: memory at the start in place of the controller's initial memory, or activations.
        contact_step: the method of the rollout if it is a `torchsko.ContactStep`, resolved before `evaluate`.
    """

    mech: Mechanism
    source: Tensor | Law | BoundController
    batch: torch.Size
    dt: float
    effort: Effort
    rows: Series | None = None
    first: Tensor | None = None
    contact_step: ContactStep | ResolvedContactStep | None = None

    @property
    def is_series(self) -> bool:
        """True if the joint forces themselves are a tensor."""
        return isinstance(self.source, Tensor) and not self._has_actuators

    @property
    def _has_actuators(self) -> bool:
        """True if the controls of a contact step are those of actuators."""
        step = self.contact_step
        if isinstance(step, ContactStep):
            return step.actuators_for(self.mech) is not None
        return step is not None and step.actuators is not None

    def resolved(self) -> Forces:
        """A copy with a contact step that has the data of the robot file."""
        if not isinstance(self.contact_step, ContactStep):
            return self
        return replace(self, contact_step=self.contact_step.resolve(self.mech))

    def unbound(self) -> Forces:
        """A copy with a series split into steps."""
        rows = Series.of(self.source, -2) if isinstance(self.source, Tensor) else None
        return replace(self, rows=rows)

    def memory(self, q: Tensor, qd: Tensor) -> Tensor:
        """Memory at the start; empty unless the control is a controller."""
        if self.first is not None:
            return self.first
        source = self.source
        if isinstance(source, BoundController):
            return source.controller.initial_memory(q, qd)
        return q[..., :0]

    def at_step(
        self, step: int, t: float, q: Tensor, qd: Tensor, memory: Tensor, inputs: Named
    ) -> tuple[StepForce, Tensor]:
        """Forces over a step from t [s], q, qd, and the memory after it."""
        if self.rows is not None:
            return self._constant(self.rows.at(step), memory), memory
        return self.evaluate(t, q, qd, memory, inputs)

    def evaluate(
        self, t: Any, q: Tensor, qd: Tensor, memory: Tensor, inputs: Named
    ) -> tuple[StepForce, Tensor]:
        """Forces at t [s], and the memory after the step."""
        source = self.source
        if isinstance(source, Tensor):  # a series of one row
            return self._constant(source, memory), memory
        if isinstance(self.contact_step, ResolvedContactStep):
            return self._sampled(t, q, qd, memory, inputs), memory
        if isinstance(source, Law):
            return lambda t, q, qd: self._applied(source(self.mech, t, q, qd, inputs)), memory
        force, memory = source(self.mech, (t, self.dt, q, qd, memory), inputs)
        if isinstance(force, ImplicitForce):
            return replace(force, push=self._applied(force.push)), memory
        return self._applied(force), memory

    def _constant(self, x: Tensor, memory: Tensor) -> Tensor | SampledControl:
        """Forces or controls that are a tensor."""
        step = self.contact_step
        if not isinstance(step, ResolvedContactStep):
            return self._applied(x)
        if step.actuators is None:
            return SampledControl(self._applied(x), None, memory, memory)
        self._check_batch("controls", x)
        return SampledControl(x, step.actuators, memory, memory[..., :0])

    def _sampled(
        self, t: Any, q: Tensor, qd: Tensor, memory: Tensor, inputs: Named
    ) -> SampledControl:
        """Controls of a contact step from a law or a controller."""
        source = self.source
        if isinstance(source, Law):
            ctrl = source(self.mech, t, q, qd, inputs)
            check_controls(self.mech, ctrl, cast(ResolvedContactStep, self.contact_step).actuators)
            return cast(SampledControl, self._constant(ctrl, memory))
        assert isinstance(source, BoundController)
        if isinstance(source.controller, ActuatedControl):
            return source.controller.sample(self.mech, t, q, qd, memory, inputs)
        tau, rest = source(self.mech, (t, self.dt, q, qd, memory), inputs)
        return SampledControl(self._applied(tau), None, q[..., :0], rest)

    def with_activations(self, act: Tensor) -> Forces:
        """A copy whose contact step starts from activations of its actuators, `[*batch, m]`."""
        if isinstance(self.source, BoundController):
            return self
        step = cast(ContactStep, self.contact_step)
        act = all_activations(self.mech, act, step.actuators_for(self.mech))
        return replace(self, first=act.expand(*self.batch, act.shape[-1]))

    def with_memory(self, memory: Any, q: Tensor, qd: Tensor) -> Forces:
        """A copy with another memory at the start."""
        if not isinstance(self.source, BoundController):
            raise TorchskoError(
                "memory= was given with a control that has none.",
                "Only controllers have a memory.",
                "Leave memory out, or derive the control from ts.actuators.Controller.",
            )
        like = self.source.controller.initial_memory(q, qd)
        if not isinstance(memory, Tensor):
            memory_type = f"a {type(memory).__name__}"
        else:
            memory_type = f"{list(memory.shape)} of {memory.dtype}"
            if (memory.shape, memory.dtype) == (like.shape, like.dtype):
                return replace(self, first=memory)
        raise ShapeError(
            f"memory is {memory_type}, that of the controller is {list(like.shape)} of {like.dtype}.",
            "It is the controller's initial memory, or the last memory of another rollout.",
            "Start with memory=control.initial_memory(q, qd).",
        )

    def _applied(self, tau: Tensor) -> Tensor:
        """Check the shape of joint forces, and saturate them if required."""
        if not isinstance(tau, Tensor):
            check_state(self.mech, tau=tau)  # raises an error that names the type
        self._check_batch("joint forces", tau)
        if self.effort is None:
            return tau
        limit = self.mech.effort_limit
        return torch.clamp(tau, -limit, limit)

    def _check_batch(self, what: str, x: Tensor) -> None:
        """Check that the batch of the rollout includes that of a control."""
        if not is_expandable(tuple(x.shape[:-1]), tuple(self.batch)):
            raise ShapeError(
                f"the control returned {what} of shape {list(x.shape)}, the state has the "
                f"batch shape {list(self.batch)}.",
                "A rollout keeps its batch shape.",
                "Expand q and qd to the batch of the control before the rollout.",
            )


def check_control(
    mech: Mechanism,
    control: Tensor | Policy | Controller | None,
    effort: Effort,
    steps: int,
    dt: float,
    batch: torch.Size,
    names: tuple[str, ...],
    contact_step: ContactStep | None = None,
) -> Forces:
    """Check a control, and convert it to forces.

    Args:
        mech: the mechanism.
        control: see `torchsko.rollout`.
        effort: see `torchsko.rollout`.
        steps: number of steps.
        dt: time step [s].
        batch: batch dimensions of the state and the mechanism.
        names: names of the tensors that laws take by name.
        contact_step: the method of the rollout if it is a `torchsko.ContactStep`.

    Returns:
        The forces; their batch is that of the state, the mechanism and a series.
    """
    if effort not in (None, "clamp"):
        raise TorchskoError(
            f"effort={effort!r} is not a choice.",
            "Joint forces are applied unchanged, or saturate at mech.effort_limit.",
            'Pass effort=None or effort="clamp".',
        )
    actuators = None if contact_step is None else contact_step.actuators_for(mech)
    if control is None:
        width = mech.num_dof if actuators is None else len(actuators.names)
        source: Tensor | Law | BoundController = mech.damping.new_zeros(1, width)
    elif isinstance(control, Tensor):
        if contact_step is None:
            check_coordinates(mech, control=control)  # the time dimension is not a batch dimension
        else:
            check_controls(mech, control, actuators)
        source = as_step_series("control", control, tuple(control.shape[-1:]), steps, batch)
        batch = broadcast_shapes(batch, source.shape[:-2])
    else:
        source = bind_control(mech, control, names)
    if contact_step is not None:
        _check_contact_control(mech, source, effort, actuators)
    if effort is not None and isinstance(source, BoundController) and source.acts_implicitly:
        raise TorchskoError(
            "effort='clamp' was given with a controller that acts implicitly.",
            "Its forces are known only after the step.",
            "Give the actuators a force_range, and leave effort out.",
        )
    if effort is not None and isinstance(source, Tensor):
        # All steps at once; a trajectory returns the series as applied.
        limit = mech.effort_limit[..., None, :]
        source, effort = torch.clamp(source, -limit, limit), None
    return Forces(mech, source, batch, dt, effort, contact_step=contact_step)


def _check_contact_control(
    mech: Mechanism,
    source: Tensor | Law | BoundController,
    effort: Effort,
    actuators: Actuators | FileActuators | None,
) -> None:
    """Refuse options of joint forces where a contact step has controls of actuators."""
    controller = source.controller if isinstance(source, BoundController) else None
    if controller is not None and controller.acts_implicitly:
        raise TorchskoError(
            f"{type(controller).__name__} acts implicitly, with the method ContactStep.",
            "The integrator of a ContactStep decides which forces are implicit.",
            'Leave implicit= out, and pass method=ts.ContactStep(integrator="implicitfast").',
        )
    has_actuators = isinstance(controller, ActuatedControl) if controller else actuators is not None
    if effort is not None and has_actuators:
        raise TorchskoError(
            f"effort={effort!r} was given with controls of the actuators of {mech.name!r}.",
            "effort= saturates joint forces; actuators have ranges.",
            "Leave effort out.",
        )


def bind_control(mech: Mechanism, control: Any, names: tuple[str, ...]) -> Law | BoundController:
    """Read the arguments of a law or a controller."""
    if isinstance(control, Controller):
        act = control.act_implicitly if control.acts_implicitly else control.act
        binding = bind(act, 5, names)
        if binding is None:
            raise TorchskoError(
                f"control is a {type(control).__name__} whose {act.__name__} has other arguments.",
                "A controller maps (t, dt, q, qd, memory), or (mech, t, dt, q, qd, memory), to joint forces "
                "and the memory after the step.",
                f"Pass a controller with def {act.__name__}(self, t, dt, q, qd, memory); tensors that it "
                "takes by name are in params= or series=.",
            )
        return BoundController(control, binding)
    if not callable(control):
        check_coordinates(mech, control=control)  # raises an error that names the type
    example = (
        "a function such as lambda t, q, qd: net(torch.cat([q, qd], -1)), or an instance of a class "
        "derived from ts.actuators.Controller"
    )
    return law_of("control", control, names, "joint forces", example)
