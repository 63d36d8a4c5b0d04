"""Rollouts of which all steps are one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.verb import kernels_of
from torchsko.rollout.binomial import Binomial
from torchsko.rollout.control import Controller, Effort, Forces, Policy
from torchsko.rollout.ends import chosen, quiet
from torchsko.rollout.limits import LimitSprings
from torchsko.rollout.simulation import Simulation
from torchsko.rollout.step import Step


def has_a_kernel(simulation: Simulation, steps: int) -> bool:
    """Whether all steps are one kernel by themselves: what no function decides on."""
    own = simulation
    plain = own.limits is None and own.f_ext is None and own.truncate is None
    known = isinstance(own.method, str) and plain and steps > 1
    given = known and isinstance(own.forces.source, Tensor)
    return given and "trajectory" in kernels_of(own.given) and not torch.compiler.is_compiling()


def run_at_once(
    simulation: Simulation, q: Tensor, qd: Tensor, steps: int, checkpoint: int | Binomial | None
) -> tuple[Tensor, Tensor]:
    """All states, from one kernel; of those that a checkpoint keeps for it every so many are given.

    Args:
        simulation: what steps.
        q: configuration at the start, `[*batch, num_q]`.
        qd: velocity there, `[*batch, num_dof]`.
        steps: their number.
        checkpoint: see `torchsko.rollout`.

    Raises:
        FusedError: on what no kernel of all steps knows.
    """
    if simulation.f_ext is not None or simulation.truncate is not None:
        raise FusedError(_BY_STEPS)
    forces, method, limits = simulation.forces, simulation.method, simulation.limits
    given, every = cast(Any, simulation.given), simulation.every
    if isinstance(checkpoint, int):
        every = gcd(checkpoint, every)
    series = forces.series()
    if series is None:
        memory = forces.memory(q, qd)
        ends = simulation.ending(q, qd, memory).ends
        step = ControlledStep(
            cast("Policy | Controller", forces.source),
            forces.effort,
            simulation.dt,
            method,
            simulation.step,
            limits,
        )
        qs, qds = given.driven(step, q, qd, memory, steps, every, ends)
    elif isinstance(method, str) and limits is None:
        ends = simulation.ending(q, qd, q[..., :0]).ends
        choices = {"method": method, "every": every, "ends": ends}
        qs, qds = given.trajectory(q, qd, series, steps, simulation.dt, **choices)
    else:  # limits, or a step of the user's own
        raise FusedError(_NOT_GIVEN)
    if every == simulation.every:
        return qs, qds
    stride = simulation.every // every
    rows = slice(0, steps // simulation.every * stride + 1, stride)
    return qs[..., rows, :], qds[..., rows, :]


@dataclass(frozen=True, eq=False)
class ControlledStep:
    """A step under a control, of one sample: what a kernel repeats.

    Attributes:
        source: the control.
        effort: see `rollout`.
        dt: time step [s].
        method: see `rollout`.
        step: of the method.
        limits: see `rollout`.
    """

    source: Policy | Controller
    effort: Effort
    dt: float
    method: str | Step
    step: Step
    limits: LimitSprings | None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for steps that do the same: those under one control, with the same choices."""
        return self.source, self.effort, self.dt, self.method, self.limits

    def __call__(
        self, mech: Mechanism, q: Tensor, qd: Tensor, memory: Tensor, t: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next state and memory."""
        return self._after(mech, (q, qd, memory), t)

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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of a sample that may have ended: going is 0 then, and else 1; see `Ends`."""
        goes, before = going > 0, (q, qd, memory)
        seen = chosen(goes, before, (q_rest, qd_rest, memory_rest))
        return chosen(goes, self._after(mech, seen, t, goes), before)

    def _after(
        self,
        mech: Mechanism,
        state: tuple[Tensor, Tensor, Tensor],
        t: Tensor,
        goes: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, qd, memory = state
        forces = Forces(mech, self.source, torch.Size(), self.dt, self.effort)
        once = Simulation(mech, mech, forces, self.dt, self.method, self.step, self.limits)
        control, memory = forces.asked(t, q, qd, memory)
        control = control if goes is None else quiet(goes, control)
        return *once.advance(cast(float, t), q, qd, control), memory


_NOT_GIVEN = (
    "fused=True was given with forces as a tensor, and limits or a method of your own.\n"
    "Which kernel that is depends on a function.\n"
    "Pass the control as a function, such as lambda t, q, qd: tau, or leave fused out."
)

_BY_STEPS = (
    "fused=True was given with f_ext= or truncate=.\n"
    "These act on single steps; a kernel of all steps knows neither.\n"
    "Leave fused out: each step is a kernel then."
)
