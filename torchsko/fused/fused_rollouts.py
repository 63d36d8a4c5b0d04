"""Whole rollouts of a mechanism as one kernel each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from torch import Tensor

from torchsko.api.rows import Verbs
from torchsko.errors import FusedError, ShapeError, unknown_name
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.scan import Scan
from torchsko.fused.fused_call import FusedCall
from torchsko.fused.fused_object import FusedObject
from torchsko.fused.workshop import Eager, Workshop, check_dtype
from torchsko.implicit.loop_roles import LoopRoles
from torchsko.integrators.early_termination import EarlyTermination, mask_forces, select_running
from torchsko.integrators.fused_rollout import WideControlError
from torchsko.integrators.integrators import INTEGRATORS, step_of
from torchsko.mechanism.mechanism import Mechanism

_log = logging.getLogger("torchsko")


class Controlled(Protocol):
    """A rollout step of one sample under a control; see `FusedMechanism.driven`."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Key of the step; equal keys stand for equal steps."""
        ...

    def __call__(
        self, mech: Mechanism, q: Tensor, qd: Tensor, memory: Tensor, **tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """The next state and memory, and perhaps further results."""
        ...


def _not_for_one_sample(what: str) -> FusedError:
    """Error of a control that cannot be traced for one sample."""
    return FusedError(
        what,
        "A traced control and the tensors that it captures have no batch dimensions.",
        "Leave fused=True out, or write the control for one sample.",
    )


class FusedRollouts(FusedObject, Verbs):
    """Rollouts as kernels, for `torchsko.fused.FusedMechanism`."""

    _positional: dict[tuple[str, int], FusedFunction]
    _verify: bool

    def trajectory(
        self,
        q: Tensor,
        qd: Tensor,
        steps: int,
        *,
        series: Mapping[str, Tensor],
        constant: Mapping[str, Tensor],
        method: str = "semi_implicit_euler",
        every: int = 1,
        ends: EarlyTermination | None = None,
    ) -> tuple[Tensor, Tensor]:
        """All steps of a rollout from one kernel; `torchsko.rollout` calls it.

        The backward pass is one kernel as well. It stores the returned states only; those
        skipped by ``every`` are recomputed.

        Args:
            q: configuration at the start, `[*batch, num_q]`.
            qd: velocity there, `[*batch, num_dof]`.
            steps: number of steps.
            series: tensors of each step: joint forces "tau" `[*batch, steps, num_dof]`, external forces
                "f_ext" `[*batch, steps, num_bodies, 6]`.
            constant: tensors of all steps: "tau" `[*batch, num_dof]`, "f_ext" `[*batch, num_bodies, 6]`, and
                the time step "dt" `[]` [s].
            method: a name in `torchsko.integrators.integrators.INTEGRATORS`.
            every: return every n-th state.
            ends: early termination of samples, which has separate kernels.

        Returns:
            Configurations and velocities, `[*batch, steps / every + 1, ...]`, the start included.
        """
        if method not in INTEGRATORS:
            raise FusedError(*unknown_name("method", method, tuple(INTEGRATORS)))
        self._follow()
        check_dtype(self._mech, q)
        constant = {name: constant[name] for name in ("tau", "dt", "f_ext") if name in constant}
        series = {**series}
        if ends is not None:
            series["going"] = ends.series(steps, q)
            constant |= zip(("q_rest", "qd_rest"), ends.rest, strict=False)
        names = ("q", "qd", *series, *constant)
        step, roles = self._step_over(method, names), LoopRoles(2, len(series), 0, 0)
        scan = self._workshop.get_or_make(
            ("trajectory", method, names, roles), lambda: Scan(step, roles)
        )
        inputs = (*series.values(), *constant.values(), *self._parameters)
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
        step = step_over(method, names)
        return self._workshop.make(key, step, shapes, 2, name=repr(key), label="a step")

    def driven(
        self,
        step: Controlled,
        state: tuple[Tensor, Tensor, Tensor],
        t: Tensor,
        *,
        series: Mapping[str, Tensor],
        constant: Mapping[str, Tensor],
        every: int = 1,
        ends: EarlyTermination | None = None,
    ) -> tuple[Tensor, ...]:
        """All steps of a rollout under a control, from one kernel; `torchsko.rollout` calls it.

        Args:
            step: step of one sample, (mech, q, qd, memory, ...) to the next state and memory, and perhaps
                further results. Its attribute ``key`` identifies the step.
            state: configuration, velocity and memory of the control at the start, `[*batch, ...]`.
            t: time of each step [s], `[steps]`.
            series: tensors of each step by name, `[*batch, steps, ...]`.
            constant: tensors of all steps by name, `[*batch, ...]`.
            every: return every n-th state.
            ends: early termination of samples, counted from the first step; it has separate kernels.

        Returns:
            Configurations and velocities, `[*batch, steps // every + 1, ...]`, the start included; further
            results of the steps that end in the states after the start, `[*batch, steps // every, ...]`; and
            the memory at the last state.

        Raises:
            FusedError: the control cannot be traced, or its result has another shape than the state's.
            WideControlError: the control is faster outside of the kernel; logged once.
        """
        self._follow()
        q, qd, memory = state
        check_dtype(self._mech, q)
        steps, lead = len(t), q.dim() - 1
        series, constant = {"t": t, **series}, {**constant}
        if ends is not None:
            series["going"] = ends.series(steps, q)
            constant |= zip(("q_rest", "qd_rest", "memory_rest"), ends.rest, strict=True)
        carry = {"q": q, "qd": qd, "memory": memory}
        names = (*carry, *series, *constant)
        shapes = _sample_shapes(carry, constant, series, lead)
        # The names alone do not distinguish forces of each step from constant ones.
        key = ("driven", *step.key, tuple(shapes.items()), len(series))
        make = lambda: self._driven(step, shapes, len(series))  # noqa: E731
        found = self._workshop.get_or_make_recent(key, make)
        if isinstance(found, WideControlError):
            raise found.with_traceback(None)
        call, scans = found
        function, captured = call.current(names)
        if function not in scans:  # a captured value has changed
            scans.clear()
            scans[function] = _driven_scan(function, len(series))
        inputs = (
            *carry.values(),
            *series.values(),
            *constant.values(),
            *captured,
            *self._parameters,
        )
        found = scans[function].of_length(steps, every)(*inputs)
        if steps:
            call.verify_scan(names, scans[function], inputs, found)
        qs, qds, kept, *results = found
        return qs, qds, *results, kept.select(lead, -1)

    def _driven(
        self, step: Controlled, shapes: Mapping[str, tuple[int, ...]], num_series: int
    ) -> tuple[FusedCall, dict[FusedFunction, Scan]] | WideControlError:
        own = Workshop(self._mech, *self._workshop.choices)
        try:
            call = FusedCall(self._mech, own, step, shapes, verify=self._verify)
            function = call.function(tuple(shapes))
        except WideControlError as error:
            _log.warning(
                "a rollout with fused=True runs its control outside of the kernel: %s", error
            )
            return error
        except ShapeError as error:
            raise _not_for_one_sample(str(error)) from error
        for port, found in zip(function.inputs[:3], function.outputs, strict=False):
            if port.shape != found.shape:
                what = (
                    f"the next {port.name} has shape {list(found.shape)}, not {list(port.shape)}."
                )
                raise _not_for_one_sample(what)
        return call, {function: _driven_scan(function, num_series)}


def _driven_scan(step: FusedFunction, num_series: int) -> Scan:
    """The scan of a step that returns the next state and memory, and perhaps further results."""
    return Scan(step, LoopRoles(3, num_series, len(step.outputs) - 3, 0))


def _sample_shapes(
    carry: Mapping[str, Tensor],
    constant: Mapping[str, Tensor],
    series: Mapping[str, Tensor],
    lead: int,
) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors for one sample and step, in the order of a scan."""
    ranks = {"tau": 1, "f_ext": 2, "t": 0, "t_rest": 0, "going": 0, "dt": 0}
    shapes = {name: tuple(x.shape[lead:]) for name, x in carry.items()}
    for timed, tensors in ((1, series), (0, constant)):
        for name, x in tensors.items():
            rank = ranks.get(name, x.dim() - lead - timed)
            shapes[name] = tuple(x.shape[x.dim() - rank :])
    return shapes


def step_over(method: str, names: Sequence[str]) -> Eager:
    """The step of an integrator as a function of tensors in a given order.

    Args:
        method: name of the integrator.
        names: arguments of the step; with early termination also "going" (1, or 0 after the end), "q_rest"
            and "qd_rest".
    """
    move = step_of(method)

    def step(mech: Mechanism, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = dict(zip(names, tensors, strict=True))
        q, qd, f_ext = given["q"], given["qd"], given.get("f_ext")
        if "going" not in given:
            return move(mech, q, qd, given["tau"], given["dt"], f_ext)
        goes, none = given["going"] > 0, qd[..., :0]
        seen = select_running(goes, (q, qd, none), (given["q_rest"], given["qd_rest"], none))[:2]
        forces = mask_forces(goes, given["tau"]), given["dt"], mask_forces(goes, f_ext, 2)
        return select_running(goes, (*move(mech, *seen, *forces), none), (q, qd, none))[:2]

    return step
