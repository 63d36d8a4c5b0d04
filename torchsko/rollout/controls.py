"""Controls of a rollout: tensors, functions and controllers, evaluated as joint forces of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from torchsko.actuation.controller import Controller
from torchsko.actuation.implicit_forces import ImplicitForce
from torchsko.actuation.law import Binding, Law, Named, as_step_series, bind, law_of
from torchsko.errors import ShapeError, TorchskoError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_coordinates, check_state
from torchsko.rollout.series import Series
from torchsko.utils.shapes import broadcast_shapes, is_expandable

Policy = Callable[..., Tensor]
"""Maps time [s], configuration and velocity to joint forces; see `torchsko.actuation.law`."""

StateLaw = Callable[[float, Tensor, Tensor], Tensor]
"""Maps time [s], configuration and velocity to joint forces, with all other arguments bound."""

StepForce = Tensor | StateLaw | ImplicitForce
"""Joint forces over one step."""

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
    """The joint forces of every step of a rollout.

    Attributes:
        mech: the mechanism.
        source: a series `[*batch, steps or 1, num_dof]`, a law, or a controller.
        batch: batch dimensions of the rollout.
        dt: time step [s].
        effort: see `torchsko.rollout`.
        rows: a series split into steps, see `unbound`.
        first: memory at the start in place of the controller's initial memory.
    """

    mech: Mechanism
    source: Tensor | Law | BoundController
    batch: torch.Size
    dt: float
    effort: Effort
    rows: Series | None = None
    first: Tensor | None = None

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
            return self._applied(self.rows.at(step)), memory
        return self.evaluate(t, q, qd, memory, inputs)

    def evaluate(
        self, t: Any, q: Tensor, qd: Tensor, memory: Tensor, inputs: Named
    ) -> tuple[StepForce, Tensor]:
        """Forces at t [s], and the memory after the step."""
        source = self.source
        if isinstance(source, Tensor):  # a series of one row
            return self._applied(source), memory
        if isinstance(source, Law):
            return lambda t, q, qd: self._applied(source(self.mech, t, q, qd, inputs)), memory
        force, memory = source(self.mech, (t, self.dt, q, qd, memory), inputs)
        if isinstance(force, ImplicitForce):
            return replace(force, push=self._applied(force.push)), memory
        return self._applied(force), memory

    def with_memory(self, memory: Any, q: Tensor, qd: Tensor) -> Forces:
        """A copy with another memory at the start."""
        if not isinstance(self.source, BoundController):
            raise TorchskoError(
                "memory= was given with a control that has none.",
                "Only controllers have a memory.",
                "Leave memory out, or derive the control from torchsko.rollout.controls.Controller.",
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

    def series(self) -> Tensor | None:
        """The forces of a series as applied, `[*batch, steps or 1, num_dof]`; otherwise None."""
        if self.effort is None or not isinstance(self.source, Tensor):
            return self.source if isinstance(self.source, Tensor) else None
        limit = self.mech.effort_limit[..., None, :]
        return torch.clamp(self.source, -limit, limit)

    def _applied(self, tau: Tensor) -> Tensor:
        """Check the shape of joint forces, and saturate them if required."""
        if not isinstance(tau, Tensor):
            check_state(self.mech, tau=tau)  # raises an error that names the type
        if not is_expandable(tuple(tau.shape[:-1]), tuple(self.batch)):
            raise ShapeError(
                f"the control returned joint forces of shape {list(tau.shape)}, the state has the "
                f"batch shape {list(self.batch)}.",
                "A rollout keeps its batch shape.",
                "Expand q and qd to the batch of the control before the rollout.",
            )
        if self.effort is None:
            return tau
        limit = self.mech.effort_limit
        return torch.clamp(tau, -limit, limit)


def check_control(
    mech: Mechanism,
    control: Tensor | Policy | Controller | None,
    effort: Effort,
    steps: int,
    dt: float,
    batch: torch.Size,
    names: tuple[str, ...],
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

    Returns:
        The forces; their batch is that of the state, the mechanism and a series.
    """
    if effort not in (None, "clamp"):
        raise TorchskoError(
            f"effort={effort!r} is not a choice.",
            "Joint forces are applied unchanged, or saturate at mech.effort_limit.",
            'Pass effort=None or effort="clamp".',
        )
    if control is None:
        source: Tensor | Law | BoundController = mech.damping.new_zeros(1, mech.num_dof)
    elif isinstance(control, Tensor):
        check_coordinates(mech, control=control)  # the time dimension is not a batch dimension
        source = as_step_series("control", control, (mech.num_dof,), steps, batch)
        batch = broadcast_shapes(batch, source.shape[:-2])
    else:
        source = bind_control(mech, control, names)
    if effort is not None and isinstance(source, BoundController) and source.acts_implicitly:
        raise TorchskoError(
            "effort='clamp' was given with a controller that acts implicitly.",
            "Its forces are known only after the step.",
            "Give the actuators a force_range, and leave effort out.",
        )
    return Forces(mech, source, batch, dt, effort)


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
        "derived from torchsko.rollout.controls.Controller"
    )
    return law_of("control", control, names, "joint forces", example)
