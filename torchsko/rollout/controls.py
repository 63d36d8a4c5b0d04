"""Controls of a rollout: tensors, functions, and controllers that remember, all as joint forces of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from torchsko.actuation.implicit_forces import ImplicitController, ImplicitForce
from torchsko.errors import ShapeError, TorchskoError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_coordinates, check_state
from torchsko.rollout.argument_checks import accepts_arguments
from torchsko.rollout.series import Series
from torchsko.utils.shapes import are_broadcastable, broadcast_shapes, is_expandable

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Policy = Callable[[float, Tensor, Tensor], Tensor]

Effort = Literal["clamp"] | None
"""What becomes of forces beyond ``mech.effort_limit``: nothing (None), or they saturated."""


@runtime_checkable
class Controller(Protocol):
    """A control with a memory (an integral, a hidden state), sampled once a step and held over it."""

    def start(self, q: Tensor, qd: Tensor) -> Tensor:
        """The memory at the start, `[*batch, ...]`."""
        ...

    def act(
        self, t: float, dt: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Joint forces `[*batch, num_dof]` from t [s] to t + dt, and the memory at t + dt."""
        ...


@dataclass(frozen=True, eq=False)
class Forces:
    """The joint forces of every step of one rollout.

    Attributes:
        mech: the mechanism that they move.
        source: a series `[*batch, steps or 1, num_dof]`, a function, or a controller.
        batch: batch dimensions of the rollout.
        dt: time step [s].
        effort: see `torchsko.rollout`.
        rows: of a series, its steps; `by_steps` takes it apart.
        first: what a controller remembers at the start, in the place of what it gives itself.
    """

    mech: Mechanism
    source: Tensor | Policy | Controller
    batch: torch.Size
    dt: float
    effort: Effort
    rows: Series | None = None
    first: Tensor | None = None

    def by_steps(self) -> Forces:
        """The same, a series taken apart."""
        rows = Series.of(self.source, -2) if isinstance(self.source, Tensor) else None
        return replace(self, rows=rows)

    def memory(self, q: Tensor, qd: Tensor) -> Tensor:
        """What is remembered at the start; nothing, but by a controller."""
        if self.first is not None:
            return self.first
        source = self.source
        return source.start(q, qd) if is_controller(source) else q[..., :0]

    def over(
        self, step: int, t: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor | Policy | ImplicitForce, Tensor]:
        """Forces over a step from t [s], q, qd: held, a function, or what answers; and the memory then."""
        if self.rows is not None:
            return self._applied(self.rows.at(step)), memory
        return self.asked(t, q, qd, memory)

    def asked(
        self, t: float | Tensor, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor | Policy | ImplicitForce, Tensor]:
        """The same of forces that a function or a controller gives."""
        source = cast("Policy | Controller", self.source)
        if is_implicit(source):
            answer, memory = cast(ImplicitController, source).answer(
                cast(float, t), self.dt, q, qd, memory
            )
            return replace(answer, push=self._applied(answer.push)), memory
        if is_controller(source):
            tau, memory = source.act(cast(float, t), self.dt, q, qd, memory)
            return self._applied(tau), memory
        return lambda t, q, qd: self._applied(source(t, q, qd)), memory

    def remembering(self, memory: Any, q: Tensor, qd: Tensor) -> Forces:
        """The same from another memory at the start.

        Args:
            memory: `[*batch, ...]`, as the controller's own.
            q: configuration at the start.
            qd: velocity there.

        Raises:
            TorchskoError: when nothing remembers.
            ShapeError: a memory unlike the controller's own.
        """
        if not is_controller(self.source):
            raise TorchskoError(
                "memory= was given with a control that has none.",
                "A controller, an object with start and act, hands its memory on from step to step.",
                "Leave memory out, or write the control as torchsko.rollout.controls.Controller says.",
            )
        own = self.source.start(q, qd)
        if not isinstance(memory, Tensor) or (memory.shape, memory.dtype) != (own.shape, own.dtype):
            given = (
                f"{list(memory.shape)} of {memory.dtype}"
                if isinstance(memory, Tensor)
                else f"a {type(memory).__name__}"
            )
            raise ShapeError(
                f"memory is {given}, the controller's own {list(own.shape)} of {own.dtype}.",
                "It is what start(q, qd) gives, or the memory that another rollout ended with.",
                "Pass memory=control.start(q, qd) to begin with.",
            )
        return replace(self, first=memory)

    def series(self) -> Tensor | None:
        """Forces that no state decides on, `[*batch, steps or 1, num_dof]`, as they act; else None."""
        if self.effort is None or not isinstance(self.source, Tensor):
            return self.source if isinstance(self.source, Tensor) else None
        limit = self.mech.effort_limit[..., None, :]
        return torch.clamp(self.source, -limit, limit)

    def _applied(self, tau: Tensor) -> Tensor:
        """Forces that keep the batch shape, saturated where that was asked for."""
        if not isinstance(tau, Tensor):
            check_state(self.mech, tau=tau)  # says what it is instead
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
) -> Forces:
    """A control of a rollout, checked.

    Args:
        mech: the mechanism.
        control: as in `torchsko.rollout`.
        effort: as in `torchsko.rollout`.
        steps: number of steps.
        dt: time step [s].
        batch: batch dimensions of state and mechanism.

    Returns:
        The forces; their batch is that of the state, the mechanism and a series.

    Raises:
        ShapeError: when a tensor does not fit, or could be both constant and a series.
        TorchskoError: on an unknown `effort`, or a function of other arguments.
    """
    if effort not in (None, "clamp"):
        raise TorchskoError(
            f"effort={effort!r} is not a choice.",
            "Joint forces are applied as the control gives them, or saturated at mech.effort_limit.",
            'Pass effort=None or effort="clamp".',
        )
    source = _source(mech, control, steps, batch)
    if effort is not None and is_implicit(source):
        raise TorchskoError(
            "effort='clamp' was given with forces that act at the velocity after the step.",
            "How large they become is known only after it.",
            "Give the actuators a force_range, which holds there too, and leave effort out.",
        )
    if isinstance(source, Tensor):
        batch = broadcast_shapes(batch, source.shape[:-2])
    return Forces(mech, source, batch, dt, effort)


def is_controller(source: object) -> TypeIs[Controller]:
    """Whether a control has the methods of `Controller`; ``isinstance`` of a Protocol is ten times slower."""
    return callable(getattr(source, "start", None)) and callable(getattr(source, "act", None))


def is_implicit(source: object) -> bool:
    """Whether a control's forces act at the velocity after the step."""
    return isinstance(source, ImplicitController) and source.is_implicit


def _source(
    mech: Mechanism, control: Tensor | Policy | Controller | None, steps: int, batch: torch.Size
) -> Tensor | Policy | Controller:
    """A control as a function, or as a tensor `[*batch, steps or 1, num_dof]`."""
    if control is None:
        return mech.damping.new_zeros(1, mech.num_dof)
    if is_controller(control) and not isinstance(control, type):
        return control
    if callable(control):
        if not accepts_arguments(control, 3):
            raise TorchskoError(_NO_LAW.format(name=getattr(control, "__name__", control)))
        return control
    check_coordinates(mech, control=control)  # a series has time where robots have their number
    shape = tuple(control.shape[:-1])
    constant = shape in ((), tuple(batch))
    series = bool(shape) and shape[-1] in (1, steps) and are_broadcastable(shape[:-1], tuple(batch))
    if constant and series and shape[-1] != 1:
        raise ShapeError(
            f"control has shape {list(control.shape)}: a constant for each of {shape[-1]} samples, or "
            f"a series of {steps} steps.",
            "The batch is as long as the rollout, so its shape does not tell.",
            "Pass control[..., None, :] for constants, control[None] for one series.",
        )
    if not (constant or series):
        raise ShapeError(
            f"control has shape {list(control.shape)} for {steps} steps and the batch {list(batch)}.",
            "It is constant for each sample, or its dimension before the last is time.",
            f"Pass [*batch, {mech.num_dof}] or [*batch, {steps}, {mech.num_dof}].",
        )
    return control[..., None, :] if constant else control


_NO_LAW = (
    "control is {name}, which cannot be called with t, q and qd.\n"
    "A control gives joint forces at a time [s], a configuration and a velocity.\n"
    "Pass a function such as lambda t, q, qd: net(torch.cat([q, qd], -1)); an object, not its class."
)
