"""Whole rollouts of a mechanism as one kernel each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from torchsko.api.verb_table import Verbs
from torchsko.errors import FusedError, ShapeError, unknown_name
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.scan import Scan
from torchsko.fused.fused_call import FusedCall
from torchsko.fused.integrator_steps import step_over
from torchsko.fused.workshop import Workshop, check_dtype
from torchsko.implicit.loop_roles import LoopRoles
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.early_termination import EarlyTermination
from torchsko.rollout.integrators import INTEGRATORS


class Controlled(Protocol):
    """A rollout step of one sample under a control; see `FusedMechanism.driven`."""

    dt: float

    @property
    def key(self) -> tuple[Any, ...]:
        """Key of the step; equal keys stand for equal steps."""
        ...

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
        ...

    @property
    def ending(self) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        """The step of a sample that may have ended: (..., t, going, final state, f_ext)."""
        ...


def _not_for_one_sample(what: str) -> FusedError:
    """Error of a control that cannot be traced for one sample."""
    return FusedError(
        what,
        "A traced control and the tensors that it captures have no batch dimensions.",
        "Leave fused=True out, or write the control for one sample.",
    )


class FusedRollouts(Verbs):
    """Rollouts as kernels, for `torchsko.FusedMechanism`."""

    _mech: Mechanism
    _workshop: Workshop
    _positional: dict[tuple[str, int], FusedFunction]
    _verify: bool

    @property
    @abstractmethod
    def _parameters(self) -> tuple[Tensor, ...]:
        """The current values of the parameters that are inputs."""

    @abstractmethod
    def _follow(self) -> None:
        """Make kernels again if the mechanism was changed in place."""

    def trajectory(
        self,
        q: Tensor,
        qd: Tensor,
        tau: Tensor,
        steps: int,
        dt: float | Tensor,
        *,
        method: str = "semi_implicit_euler",
        every: int = 1,
        ends: EarlyTermination | None = None,
        f_ext: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """All steps of a rollout from one kernel; `torchsko.rollout` calls it.

        The backward pass is one kernel as well. It stores the returned states only; those
        skipped by ``every`` are recomputed.

        Args:
            q: configuration at the start, `[*batch, num_q]`.
            qd: velocity there, `[*batch, num_dof]`.
            tau: joint forces, constant over each step, `[*batch, steps, num_dof]`, or over the rollout,
                `[*batch, 1, num_dof]`.
            steps: number of steps.
            dt: time step [s], one for all samples: a number, or a tensor `[]`.
            method: a name in `torchsko.rollout.integrators.INTEGRATORS`.
            every: return every n-th state.
            ends: early termination of samples, which has separate kernels.
            f_ext: external forces, constant over each step, `[*batch, steps, num_bodies, 6]`, or over the
                rollout, `[*batch, 1, num_bodies, 6]`.

        Returns:
            Configurations and velocities, `[*batch, steps / every + 1, ...]`, the start included.
        """
        if method not in INTEGRATORS:
            raise FusedError(*unknown_name("method", method, tuple(INTEGRATORS)))
        self._follow()
        check_dtype(self._mech, q)
        constant = tau.shape[-2] != steps
        held = {"tau": tau[..., 0, :] if constant else tau}
        held["dt"] = dt if isinstance(dt, Tensor) else q.new_full((), dt)
        series = {} if constant else {"tau": held.pop("tau")}
        if ends is not None:
            series["going"] = ends.series(steps, q)
            held |= zip(("q_rest", "qd_rest"), ends.rest, strict=False)
        _put_wrenches(f_ext, steps, series, held)
        names = ("q", "qd", *series, *held)
        step, roles = self._step_over(method, names), LoopRoles(2, len(series), 0, 0)
        scan = self._workshop.get_or_make(
            ("trajectory", method, names, roles), lambda: Scan(step, roles)
        )
        inputs = (*series.values(), *held.values(), *self._parameters)
        return cast(tuple[Tensor, Tensor], scan.of_length(steps, every)(q, qd, *inputs))

    def _step_over(self, method: str, names: tuple[str, ...]) -> FusedFunction:
        """The kernel of a step with these tensors."""
        plain = self._positional[method, 4]
        if names == tuple(port.name for port in plain.inputs[:4]):
            return plain
        q, qd = (cast(tuple, self._workshop.shape(name)) for name in ("q", "qd"))
        own = {"going": (), "q_rest": q, "qd_rest": qd}
        shapes = {n: own[n] if n in own else cast(tuple, self._workshop.shape(n)) for n in names}
        key = ("step over", method, names)
        return self._workshop.make(key, step_over(method, names), shapes, 2, name=repr(key))

    def driven(
        self,
        step: Controlled,
        q: Tensor,
        qd: Tensor,
        memory: Tensor,
        span: tuple[int, int],
        every: int = 1,
        ends: EarlyTermination | None = None,
        f_ext: Tensor | None = None,
        *,
        t0: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All steps of a rollout under a control, from one kernel; `torchsko.rollout` calls it.

        Args:
            step: step of one sample, (mech, q, qd, memory, t) to the next state and memory. Its attribute
                ``key`` identifies the step, ``dt`` is the time step [s].
            q: configuration at the start, `[*batch, num_q]`.
            qd: velocity there, `[*batch, num_dof]`.
            memory: memory of the control, `[*batch, ...]`.
            span: number of the first step, which determines its time, and of the step after the last.
            every: return every n-th state.
            ends: early termination of samples, counted from the first step; separate kernels with the step
                ``step.ending``.
            f_ext: external forces, as in `trajectory`.
            t0: time of the step number 0 [s].

        Returns:
            Configurations and velocities, `[*batch, steps // every + 1, ...]`, the start included, and the
            memory at the last of these.

        Raises:
            FusedError: the control cannot be traced, or its result has another shape than the state's.
        """
        self._follow()
        check_dtype(self._mech, q)
        steps, shape = span[1] - span[0], tuple(memory.shape[q.dim() - 1 :])
        series = {"t": t0 + step.dt * torch.arange(*span, dtype=q.dtype, device=q.device)}
        held: dict[str, Tensor] = {}
        if ends is not None:
            series["going"] = ends.series(steps, q)
            held |= zip(("q_rest", "qd_rest", "memory_rest"), ends.rest, strict=True)
        _put_wrenches(f_ext, steps, series, held)
        names = ("q", "qd", "memory", *series, *held)
        # The names alone do not distinguish forces of each step from constant ones.
        key = ("driven", *step.key, shape, names, len(series))
        make = lambda: self._driven(step, shape, names, len(series))  # noqa: E731
        call, scans = self._workshop.get_or_make_recent(key, make)
        function, captured = call.current(names)
        if function not in scans:  # a captured value has changed
            scans.clear()
            scans[function] = Scan(function, LoopRoles(3, len(series), 0, 0))
        scan = scans[function]
        inputs = (*series.values(), *held.values(), *captured, *self._parameters)
        qs, qds, kept = scan.of_length(steps, every)(q, qd, memory, *inputs)
        if steps >= every:
            states = (qs, qds, kept)
            call.verify_scan(names, inputs, states, (len(series), every), q.dim() - 1)
        return qs, qds, kept.select(q.dim() - 1, -1)

    def _driven(
        self, step: Controlled, memory: tuple[int, ...], names: tuple[str, ...], num_series: int
    ) -> tuple[FusedCall, dict[FusedFunction, Scan]]:
        own, ends = Workshop(self._mech, *self._workshop.choices), "going" in names
        q, qd = (cast(tuple, own.shape(name)) for name in ("q", "qd"))
        shapes = {"memory": memory, "t": ()}
        if ends:
            shapes |= {"going": (), "q_rest": q, "qd_rest": qd, "memory_rest": memory}
        try:
            source = step.ending if ends else step
            call = FusedCall(source, own, self._mech, shapes, verify=self._verify)
            function = call.function(names)
        except ShapeError as error:
            raise _not_for_one_sample(str(error)) from error
        for port, found in zip(function.inputs, function.outputs, strict=False):
            if port.shape != found.shape:
                what = (
                    f"the next {port.name} has shape {list(found.shape)}, not {list(port.shape)}."
                )
                raise _not_for_one_sample(what)
        return call, {function: Scan(function, LoopRoles(3, num_series, 0, 0))}


def _put_wrenches(
    f_ext: Tensor | None, steps: int, series: dict[str, Tensor], held: dict[str, Tensor]
) -> None:
    """Add external forces of a rollout to the tensors of each step, or to those constant over all steps."""
    if f_ext is None:
        return
    if f_ext.shape[-3] == steps:
        series["f_ext"] = f_ext
    else:
        held["f_ext"] = f_ext[..., 0, :, :]
