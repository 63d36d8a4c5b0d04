"""Rollouts of which all steps are one kernel."""

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
    """Whether all steps are one kernel by themselves: what no function decides on."""
    own = simulation
    plain = own.limits is None and not callable(own.f_ext) and own.truncate != 1
    known = isinstance(own.method, str) and plain and steps > 1
    given = known and isinstance(own.forces.source, Tensor)
    return (
        given and "trajectory" in fused_methods_of(own.given) and not torch.compiler.is_compiling()
    )


def run_fused(
    simulation: Simulation, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
) -> tuple[Tensor, Tensor, Tensor]:
    """All states, from one kernel; of those that a checkpoint keeps for it every so many are given.

    Where gradients are truncated, each window is a call of that kernel. The last memory comes third.

    Args:
        simulation: what steps.
        q: configuration at the start, `[*batch, num_q]`.
        qd: velocity there, `[*batch, num_dof]`.
        steps: their number.
        checkpoint: see `torchsko.rollout`.

    Raises:
        FusedError: on what no kernel of all steps knows.
    """
    window, every = simulation.truncate or max(steps, 1), simulation.every
    if isinstance(checkpoint, int):
        every = gcd(checkpoint, every)
    if window < steps:
        every = gcd(window, every)  # each window is to give its end
    memory = simulation.forces.memory(q, qd)
    ends, parts = simulation.ending(q, qd, memory).ends, []
    for first in range(0, max(steps, 1), window):
        if first:
            q, qd, memory = q.detach(), qd.detach(), memory.detach()
        span = (first, min(first + window, steps))
        qs, qds, memory = _window(simulation, q, qd, memory, span, every, ends)
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
    ends: EarlyTermination | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """States from one step to another, each so many, and the memory at the last of them."""
    forces, method, limits = simulation.forces, simulation.method, simulation.limits
    given, series, (first, last) = cast(Any, simulation.given), forces.series(), span
    choices = {
        "every": every,
        "ends": ends and replace(ends, lengths=ends.lengths - first),
        "f_ext": _part(simulation.f_ext, span) if isinstance(simulation.f_ext, Tensor) else None,
    }
    law = simulation.f_ext.asked if isinstance(simulation.f_ext, CheckedWrenches) else None
    if series is None:
        step = ControlledStep(
            cast("Policy | Controller", forces.source),
            forces.effort,
            simulation.dt,
            method,
            simulation.step,
            limits,
            law,
        )
        return given.driven(step, q, qd, memory, span, t0=simulation.t0, **choices)
    if isinstance(method, str) and limits is None and law is None:
        series = series if series.shape[-2] == 1 else series[..., first:last, :]
        choices |= {"method": method}
        return *given.trajectory(q, qd, series, last - first, simulation.dt, **choices), memory
    raise FusedError(_NOT_GIVEN)  # limits, or a step or external forces of the user's own


def _part(f_ext: Tensor, span: tuple[int, int]) -> Tensor:
    """A series over some steps; what is held over all of them stays one, and has no gradient of a series."""
    first, last = span
    return f_ext if f_ext.shape[-3] == 1 else f_ext[..., first:last, :, :]


@dataclass(frozen=True, eq=False)
class IdentityKey:
    """In the place of what cannot be a key, such as a dataclass that may change: equal to itself alone.

    Attributes:
        of: what it stands for.
    """

    of: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


def is_hashable(x: object) -> bool:
    """Whether a dict takes it as a key; a frozen dataclass that holds a list is none."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class ControlledStep:
    """A step under a control, of one sample: what a kernel repeats.

    Attributes:
        control: what decides on the forces.
        effort: see `rollout`.
        dt: time step [s].
        method: see `rollout`.
        step: of the method.
        limits: see `rollout`.
        f_ext: see `rollout`, where a function gives it.
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
        """Equal for steps that do the same: those under one control, with the same choices."""
        own = (self.control, self.effort, self.dt, self.method, self.limits, self.f_ext)
        return tuple(x if is_hashable(x) else IdentityKey(x) for x in own)

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
        """The same of a sample that may have ended: going is 0 then, and else 1; see `EarlyTermination`."""
        goes, before = going > 0, (q, qd, memory)
        seen = select_running(goes, before, (q_rest, qd_rest, memory_rest))
        return select_running(goes, self._after(mech, seen, t, f_ext, goes), before)

    def _after(
        self,
        mech: Mechanism,
        state: tuple[Tensor, Tensor, Tensor],
        t: Tensor,
        f_ext: Tensor | None,
        goes: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, qd, memory = state
        wrenches = with_checks(mech, f_ext if f_ext is not None else self.f_ext, torch.Size())
        forces = Forces(mech, self.control, torch.Size(), self.dt, self.effort)
        once = Simulation(mech, mech, forces, self.dt, self.method, self.step, self.limits)
        control, memory = forces.asked(t, q, qd, memory)
        if goes is not None:
            control, wrenches = mask_forces(goes, control), mask_forces(goes, wrenches, 2)
        return *once.advance(cast(float, t), q, qd, control, wrenches), memory


_NOT_GIVEN = (
    "fused=True was given with forces as a tensor, and limits, or a method or an f_ext of your own.\n"
    "Which kernel that is depends on a function.\n"
    "Pass the control as a function, such as lambda t, q, qd: tau, or leave fused out."
)
