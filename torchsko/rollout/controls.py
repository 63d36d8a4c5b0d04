"""Controls of a rollout: tensors, functions and controllers, evaluated as joint forces of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from torchsko.actuation.controller import Controller
from torchsko.actuation.implicit_forces import ImplicitForce
from torchsko.errors import ShapeError, TorchskoError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_coordinates, check_state
from torchsko.rollout.argument_checks import accepts_arguments
from torchsko.rollout.series import Series
from torchsko.utils.shapes import are_broadcastable, broadcast_shapes, is_expandable

Policy = Callable[[float, Tensor, Tensor], Tensor]
"""Maps time [s], configuration and velocity to joint forces."""

Effort = Literal["clamp"] | None
"""Treatment of forces beyond ``mech.effort_limit``: none (None), or saturation."""


@dataclass(frozen=True, eq=False)
class Forces:
    """The joint forces of every step of a rollout.

    Attributes:
        mech: the mechanism.
        source: a series `[*batch, steps or 1, num_dof]`, a function, or a controller.
        batch: batch dimensions of the rollout.
        dt: time step [s].
        effort: see `torchsko.rollout`.
        rows: a series split into steps, see `unbound`.
        first: memory at the start in place of the controller's initial memory.
    """

    mech: Mechanism
    source: Tensor | Policy | Controller
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
        return source.initial_memory(q, qd) if isinstance(source, Controller) else q[..., :0]

    def at_step(
        self, step: int, t: float, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor | Policy | ImplicitForce, Tensor]:
        """Forces over a step from t [s], q, qd, and the memory after it."""
        if self.rows is not None:
            return self._applied(self.rows.at(step)), memory
        return self.evaluate(t, q, qd, memory)

    def evaluate(
        self, t: float | Tensor, q: Tensor, qd: Tensor, memory: Tensor
    ) -> tuple[Tensor | Policy | ImplicitForce, Tensor]:
        """Forces of a function or a controller at t [s], and the memory after the step."""
        source = cast("Policy | Controller", self.source)
        if not isinstance(source, Controller):
            return lambda t, q, qd: self._applied(source(t, q, qd)), memory
        arguments = cast(float, t), self.dt, q, qd, memory
        if source.acts_implicitly:
            force, memory = source.act_implicitly(*arguments)
            return replace(force, push=self._applied(force.push)), memory
        tau, memory = source.act(*arguments)
        return self._applied(tau), memory

    def with_memory(self, memory: Any, q: Tensor, qd: Tensor) -> Forces:
        """A copy with another memory at the start."""
        if not isinstance(self.source, Controller):
            raise TorchskoError(
                "memory= was given with a control that has none.",
                "Only controllers have a memory.",
                "Leave memory out, or derive the control from torchsko.rollout.controls.Controller.",
            )
        like = self.source.initial_memory(q, qd)
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
) -> Forces:
    """Check a control, and convert it to forces.

    Returns:
        The forces; their batch is that of the state, the mechanism and a series.
    """
    if effort not in (None, "clamp"):
        raise TorchskoError(
            f"effort={effort!r} is not a choice.",
            "Joint forces are applied unchanged, or saturate at mech.effort_limit.",
            'Pass effort=None or effort="clamp".',
        )
    source = _source(mech, control, steps, batch)
    if effort is not None and isinstance(source, Controller) and source.acts_implicitly:
        raise TorchskoError(
            "effort='clamp' was given with a controller that acts implicitly.",
            "Its forces are known only after the step.",
            "Give the actuators a force_range, and leave effort out.",
        )
    if isinstance(source, Tensor):
        batch = broadcast_shapes(batch, source.shape[:-2])
    return Forces(mech, source, batch, dt, effort)


def _source(
    mech: Mechanism, control: Tensor | Policy | Controller | None, steps: int, batch: torch.Size
) -> Tensor | Policy | Controller:
    """Check a control; a tensor becomes `[*batch, steps or 1, num_dof]`."""
    if control is None:
        return mech.damping.new_zeros(1, mech.num_dof)
    if isinstance(control, Controller):
        return control
    if callable(control):
        if not accepts_arguments(control, 3):
            raise TorchskoError(
                f"control is {getattr(control, '__name__', control)}, which cannot be called with t, q "
                "and qd.",
                "A control maps time [s], configuration and velocity to joint forces.",
                "Pass a function such as lambda t, q, qd: net(torch.cat([q, qd], -1)), or an instance "
                "of a class derived from torchsko.rollout.controls.Controller.",
            )
        return control
    check_coordinates(mech, control=control)  # the time dimension is not a batch dimension
    shape = tuple(control.shape[:-1])
    constant = shape in ((), tuple(batch))
    series = bool(shape) and shape[-1] in (1, steps) and are_broadcastable(shape[:-1], tuple(batch))
    if constant and series and shape[-1] != 1:
        raise ShapeError(
            f"control has shape {list(control.shape)}: a constant for each of {shape[-1]} samples, or "
            f"a series of {steps} steps.",
            "The batch is as long as the rollout, so the shape is ambiguous.",
            "Pass control[..., None, :] for constants, control[None] for one series.",
        )
    if not (constant or series):
        raise ShapeError(
            f"control has shape {list(control.shape)} for {steps} steps and the batch {list(batch)}.",
            "It is constant for each sample, or its dimension before the last is time.",
            f"Pass [*batch, {mech.num_dof}] or [*batch, {steps}, {mech.num_dof}].",
        )
    return control[..., None, :] if constant else control
