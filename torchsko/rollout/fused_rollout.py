"""Rollouts in which all steps are one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.mechanism.dispatch import fused_methods_of
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.binomial import Binomial
from torchsko.rollout.controls import Controller, Effort, Forces, Policy
from torchsko.rollout.early_termination import EarlyTermination, mask_forces, select_running
from torchsko.rollout.external import CheckedWrenches, Wrenches, with_checks
from torchsko.rollout.limit_springs import LimitSprings
from torchsko.rollout.simulation import Simulation
from torchsko.rollout.step import Step


def has_trajectory_kernel(simulation: Simulation, steps: int) -> bool:
    """True if all steps are one kernel by default: no function takes part in the rollout."""
    return (
        steps > 1
        and simulation.truncate != 1
        and simulation.limits is None
        and isinstance(simulation.method, str)
        and isinstance(simulation.forces.source, Tensor)
        and not callable(simulation.f_ext)
        and "trajectory" in fused_methods_of(simulation.fast)
        and not torch.compiler.is_compiling()
    )


def run_fused(
    simulation: Simulation, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
) -> tuple[Tensor, Tensor, Tensor]:
    """All states from one kernel, which recomputes the steps between checkpoints in the backward pass.

    With truncated gradients each window is a call of that kernel. The last memory is the third result.
    """
    window, every = simulation.truncate or max(steps, 1), simulation.every
    if isinstance(checkpoint, int):
        every = gcd(checkpoint, every)
    if window < steps:
        every = gcd(window, every)  # the end of each window is needed
    memory = simulation.forces.memory(q, qd)
    termination, parts = simulation.from_state(q, qd, memory).termination, []
    for first in range(0, max(steps, 1), window):
        if first:
            q, qd, memory = q.detach(), qd.detach(), memory.detach()
        span = (first, min(first + window, steps))
        qs, qds, memory = _window(simulation, q, qd, memory, span, every, termination)
        parts.append((qs, qds) if not first else (qs[..., 1:, :], qds[..., 1:, :]))
        q, qd = qs[..., -1, :], qds[..., -1, :]
    qs, qds = parts[0] if len(parts) == 1 else (torch.cat(x, -2) for x in zip(*parts, strict=True))
    if every == simulation.every:
        return qs, qds, memory
    stride = simulation.every // every
    rows = slice(0, steps // simulation.every * stride + 1, stride)
    return qs[..., rows, :], qds[..., rows, :], memory


def _window(
    simulation: Simulation,
    q: Tensor,
    qd: Tensor,
    memory: Tensor,
    span: tuple[int, int],
    every: int,
    termination: EarlyTermination | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Every so many states of a range of steps, and the memory at its end."""
    forces, method, limits = simulation.forces, simulation.method, simulation.limits
    fast, series, (first, last) = cast(Any, simulation.fast), forces.series(), span
    options = {
        "every": every,
        "ends": termination and replace(termination, lengths=termination.lengths - first),
        "f_ext": _part(simulation.f_ext, span) if isinstance(simulation.f_ext, Tensor) else None,
    }
    wrenches = simulation.f_ext.function if isinstance(simulation.f_ext, CheckedWrenches) else None
    if series is None:
        step = ControlledStep(
            cast("Policy | Controller", forces.source),
            forces.effort,
            simulation.dt,
            method,
            simulation.step,
            limits,
            wrenches,
        )
        return fast.driven(step, q, qd, memory, span, t0=simulation.t0, **options)
    if isinstance(method, str) and limits is None and wrenches is None:
        series = series if series.shape[-2] == 1 else series[..., first:last, :]
        options |= {"method": method}
        return *fast.trajectory(q, qd, series, last - first, simulation.dt, **options), memory
    raise FusedError(
        "fused=True was given with forces as a tensor, and with limits, or a method or f_ext that is a "
        "function.",
        "Such a kernel needs the control as a function.",
        "Pass a function such as lambda t, q, qd: tau as control, or leave fused out.",
    )


def _part(f_ext: Tensor, span: tuple[int, int]) -> Tensor:
    """A series over a range of steps; a constant stays a series of one row."""
    first, last = span
    return f_ext if f_ext.shape[-3] == 1 else f_ext[..., first:last, :, :]


@dataclass(frozen=True, eq=False)
class IdentityKey:
    """Key for an object that is not hashable, such as a mutable dataclass: equal to itself only.

    Attributes:
        of: the object.
    """

    of: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


def is_hashable(x: object) -> bool:
    """True if an object can be a key of a dict; a frozen dataclass that holds a list cannot."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class ControlledStep:
    """A step of one sample under a control: the body of a rollout kernel.

    Attributes:
        control: function or controller.
        effort: see `rollout`.
        dt: time step [s].
        method: see `rollout`.
        step: integrator of the method.
        limits: see `rollout`.
        f_ext: see `rollout`, if it is a function.
    """

    control: Policy | Controller
    effort: Effort
    dt: float
    method: str | Step
    step: Step
    limits: LimitSprings | None
    f_ext: Wrenches | None

    @property
    def key(self) -> tuple[Any, ...]:
        """Cache key: equal for steps with the same control and options."""
        fields = (self.control, self.effort, self.dt, self.method, self.limits, self.f_ext)
        return tuple(x if is_hashable(x) else IdentityKey(x) for x in fields)

    def __call__(
        self,
        mech: Mechanism,
        q: Tensor,
        qd: Tensor,
        memory: Tensor,
        t: Tensor,
        f_ext: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next state and memory."""
        return self._after(mech, (q, qd, memory), t, f_ext)

    def ending(
        self,
        mech: Mechanism,
        q: Tensor,
        qd: Tensor,
        memory: Tensor,
        t: Tensor,
        going: Tensor,
        q_rest: Tensor,
        qd_rest: Tensor,
        memory_rest: Tensor,
        f_ext: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next state and memory of a sample that may have ended; see `EarlyTermination`.

        `going` is 1 for a running sample and 0 for an ended one.
        """
        running, before = going > 0, (q, qd, memory)
        state = select_running(running, before, (q_rest, qd_rest, memory_rest))
        return select_running(running, self._after(mech, state, t, f_ext, running), before)

    def _after(
        self,
        mech: Mechanism,
        state: tuple[Tensor, Tensor, Tensor],
        t: Tensor,
        f_ext: Tensor | None,
        running: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, qd, memory = state
        wrenches = with_checks(mech, f_ext if f_ext is not None else self.f_ext, torch.Size())
        forces = Forces(mech, self.control, torch.Size(), self.dt, self.effort)
        simulation = Simulation(mech, mech, forces, self.dt, self.method, self.step, self.limits)
        control, memory = forces.evaluate(t, q, qd, memory)
        if running is not None:
            control, wrenches = mask_forces(running, control), mask_forces(running, wrenches, 2)
        return *simulation.advance(cast(float, t), q, qd, control, wrenches), memory
