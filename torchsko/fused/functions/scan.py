"""A step repeated within one kernel: the state stays in vectors from the first step to the last.

A `Scan` takes a step of one sample, (state, what comes anew, what stays) to (next state, what is stacked,
what is summed), and repeats it; `Scan.over` fixes how often and gives a `FusedFunction`. The step's program
is traced and compiled once, whatever the number of steps.

Scans are closed under differentiation. The VJP of a scan is a scan in the other direction, of the step's
VJP: its state is the cotangent of the state, what comes anew are the states before each step, of which
the forward pass gave all, and the gradients of what stays are summed. The JVP is a scan of states with their
tangents.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.calls.cuda_kernel import CudaScan, Launch, load_cuda
from torchsko.fused.calls.kernel import broadcast_batch
from torchsko.fused.calls.scan_kernel import ScanKernel, scan_kernels
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.scan_derivatives import pulled_step, pushed_step
from torchsko.fused.program.program import Port
from torchsko.implicit.jacobians import Flags, Tensors
from torchsko.implicit.step_roles import Roles, parted


class Scan:
    """A step to be repeated.

    Attributes:
        step: of one sample; its inputs are the state, what comes anew, what stays, in this order.
        roles: how many of each.
        backward: whether steps go from the last to the first.
    """

    def __init__(self, step: FusedFunction, roles: Roles, *, backward: bool = False) -> None:
        self.step, self.roles, self.backward = step, roles, backward
        self._lock = threading.RLock()
        self._libraries: dict[tuple[torch.dtype, bool], Callable[..., ScanKernel]] = {}
        self._launches: dict[tuple[torch.dtype, torch.device], Launch] = {}
        self._made: dict[tuple[int, int], ScanFunction] = {}
        self._derivatives: dict[tuple[object, ...], Scan] = {}

    def over(self, steps: int, every: int = 1) -> ScanFunction:
        """The function of so many steps.

        Args:
            steps: their number.
            every: give the state after each so many steps, the start included; 0: the last one alone.

        Raises:
            FusedError: when states are to be thinned of a scan that stacks or sums, or goes backward.
        """
        if every > 1 and (self.backward or self.roles.stacked or self.roles.summed):
            raise FusedError(
                "states are to be thinned of a scan that gives something else at every step.",
                "What lies between them is computed again in the backward pass, from the states alone.",
                "Pass every=1, or stack and sum nothing.",
            )
        with self._lock:
            if (steps, every) not in self._made:
                self._made[steps, every] = ScanFunction(self, steps, every)
            return self._made[steps, every]

    def kernel(self, dtype: torch.dtype, few: bool) -> Callable[..., ScanKernel]:
        """Makes the kernel of so many steps; compiled once for few samples, once for many.

        Raises:
            CompilerError: no compiler, or it failed.
        """
        with self._lock:
            if (dtype, few) not in self._libraries:
                step = self.step
                self._libraries[dtype, few] = scan_kernels(
                    lambda: step.program, step.traits.identity, self.roles, dtype, few
                )
            return self._libraries[dtype, few]

    def on_gpu(self, dtype: torch.dtype, device: torch.device) -> Launch:
        """Launches any number of steps; compiled once.

        Raises:
            CompilerError: no compiler, or it failed.
        """
        with self._lock:
            if (dtype, device) not in self._launches:
                step = self.step
                self._launches[dtype, device] = load_cuda(
                    lambda: step.program, step.traits.identity, dtype, device, self.roles
                )
            return self._launches[dtype, device]

    def pulled(self, needed: Flags, all_states: bool) -> Scan:
        """The scan that carries cotangents back, for the needed ones of what comes anew and what stays.

        Args:
            needed: of the step's inputs after the state.
            all_states: whether every state has a cotangent, not the last alone.
        """
        with self._lock:
            key = ("vjp", needed, all_states)
            if key not in self._derivatives:
                step, roles = pulled_step(self.step, self.roles, needed, all_states)
                self._derivatives[key] = Scan(step, roles, backward=not self.backward)
            return self._derivatives[key]

    def pushed(self, given: Flags) -> Scan:
        """The scan of states with their tangents, for the given ones of what comes anew and what stays."""
        with self._lock:
            if ("jvp", given) not in self._derivatives:
                step, roles = pushed_step(self.step, self.roles, given)
                self._derivatives["jvp", given] = Scan(step, roles, backward=self.backward)
            return self._derivatives["jvp", given]

    def split(self, inputs: Sequence[Tensor]) -> tuple[Tensors, Tensors, Tensors]:
        """The state, what comes anew and what stays."""
        state, streams, stay = parted(inputs, (self.roles.carry, self.roles.stream))
        return state, streams, stay


class ScanFunction(FusedFunction):
    """So many steps as one function; `Scan.over` makes it.

    Inputs are the state at the start, what comes anew as series ``[*batch, steps, *shape]``, and what
    stays; outputs the states ``[*batch, steps / every + 1, *shape]``, or the last one, what is stacked
    ``[*batch, steps, *shape]``, and what is summed.

    Attributes:
        scan: what is repeated.
        steps: how often.
        every: see `Scan.over`.
    """

    def __init__(self, scan: Scan, steps: int, every: int) -> None:
        self.scan, self.steps, self.every = scan, steps, every
        step, roles = scan.step, scan.roles
        state, streams, stay = parted(step.inputs, (roles.carry, roles.stream))
        _, stacked, summed = parted(step.outputs, (roles.carry, roles.stacked))
        rows = steps // every + 1 if every else 0
        states = [Port(p.name, (rows, *p.shape)) for p in state] if every else state
        super().__init__(
            lambda *inputs: self._loop(step.sample, inputs),
            [*state, *(Port(p.name, (steps, *p.shape)) for p in streams), *stay],
            replace(
                step.traits,
                batched=lambda *inputs: self._loop(step.eager, inputs),
                outputs=(*states, *(Port(p.name, (steps, *p.shape)) for p in stacked), *summed),
                identity=None,
            ),
        )
        self.saves_outputs = every > 0

    def _loop(self, step: Callable[..., Tensors], inputs: Sequence[Tensor]) -> Tensors:
        """The steps one by one, by ordinary tensor operations."""
        scan, every = self.scan, self.every
        state, streams, stay = scan.split(inputs)
        count, stop = scan.roles.carry, scan.roles.carry + scan.roles.stacked
        ranks = [len(port.shape) for port in scan.step.inputs]
        times = range(self.steps)
        batch = broadcast_batch(self.inputs, [self.batch_of(k, x) for k, x in enumerate(inputs)])
        # At once: where no step follows, nothing else brings the start into the batch.
        pairs = zip(state, self.inputs, strict=False)
        state = tuple(x.expand(*batch, *port.shape) for x, port in pairs)
        states, stacked, summed = [state], [], []
        for t in reversed(times) if scan.backward else times:
            now = [x.select(-1 - r, t) for x, r in zip(streams, ranks[count:], strict=False)]
            found = step(*state, *now, *stay)
            state = tuple(found[:count])
            if every and (len(stacked) + 1) % every == 0:
                states.append(state)
            stacked.append(found[count:stop])
            sums = zip(summed or found[stop:], found[stop:], strict=True)
            summed = [x + y for x, y in sums] if summed else list(found[stop:])
        outputs = scan.step.outputs
        if not self.steps:
            summed = [state[0].new_zeros((*batch, *port.shape)) for port in outputs[stop:]]
        if scan.backward:
            states, stacked = states[::-1], stacked[::-1]
        kept = state if not every else _stacked(states, outputs[:count])
        if self.steps:
            series = _stacked(stacked, outputs[count:stop])
        else:
            series = tuple(state[0].new_zeros((*batch, 0, *p.shape)) for p in outputs[count:stop])
        return (*kept, *series, *summed)

    def pull(
        self,
        needed: Flags,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        by: Sequence[Tensor],
    ) -> Tensors:
        """VJP: the gradients of the needed inputs, each of the shape of its input."""
        count = self.scan.roles.carry
        flags = (True,) * count + needed[count:]
        pull = self._pull_thinned if self.every > 1 else self._pull_at_once
        found = iter(pull(needed[count:], inputs, outputs, by))
        both = [(k, next(found)) for k, flag in enumerate(flags) if flag]
        return tuple(g.sum_to_size(inputs[k].shape) for k, g in both if needed[k])

    def _pull_at_once(
        self,
        needed: Flags,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        by: Sequence[Tensor],
    ) -> Tensors:
        """Gradients of the state at the start, and of what is needed else, each of the whole batch."""
        scan, count, steps = self.scan, self.scan.roles.carry, self.steps
        _, streams, stay = scan.split(inputs)
        states = outputs[:count] if self.every else scan.over(steps)(*inputs)[:count]
        stop = count + scan.roles.stacked
        marks, stacked, summed = by[:count], by[count:stop], by[stop:]
        shift, end = (1, 0) if scan.backward else (0, steps)
        before = self._span(states, shift, steps)
        last, marked = marks, ()
        if self.every:
            last, marked = self._row(marks, end), self._span(marks, shift, steps)
        back = scan.pulled(needed, bool(self.every)).over(steps, 0)
        return back(*last, *before, *streams, *marked, *stacked, *stay, *summed)

    def _pull_thinned(
        self,
        needed: Flags,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        by: Sequence[Tensor],
    ) -> Tensors:
        """Likewise, the states between those that are kept computed again, from one to the next."""
        scan, every, count = self.scan, self.every, self.scan.roles.carry
        _, streams, stay = scan.split(inputs)
        kept = self.steps // every
        chosen = [k for k, flag in enumerate(needed) if flag]
        if not kept:  # the start is all that is given
            own = [x + torch.zeros_like(y) for x, y in zip(self._row(by, 0), inputs, strict=False)]
            return (*own, *(torch.zeros_like(inputs[count + k]) for k in chosen))
        forth, back = scan.over(every), scan.pulled(needed, False).over(every, 0)
        num_streams = sum(needed[: len(streams)])
        ranks = [len(port.shape) for port in scan.step.inputs[count:]]
        state_by = self._row(by, kept)
        parts, sums = [], ()
        for row in reversed(range(kept)):
            start = self._row(outputs, row)
            span = _spans(streams, ranks, row * every, every)
            states = forth(*start, *span, *stay)
            found = back(*state_by, *self._span(states, 0, every), *span, *stay)
            state_by = tuple(x + y for x, y in zip(found[:count], self._row(by, row), strict=True))
            parts.append(found[count : count + num_streams])
            new = found[count + num_streams :]
            sums = tuple(x + y for x, y in zip(sums, new, strict=True)) if sums else new
        rest = self.steps - kept * every  # steps after the last state that is kept
        series = []
        for k, column in zip(chosen, zip(*reversed(parts), strict=True), strict=False):
            shape = scan.step.inputs[count + k].shape
            zeros = column[0].new_zeros(
                (*column[0].shape[: column[0].dim() - 1 - len(shape)], rest, *shape)
            )
            series.append(torch.cat([*column, zeros], -1 - len(shape)))
        return (*state_by, *series, *sums)

    def _row(self, series: Sequence[Tensor], row: int) -> Tensors:
        """The states of one row."""
        ports = self.scan.step.inputs[: self.scan.roles.carry]
        pairs = zip(series, ports, strict=False)
        return tuple(x.select(-1 - len(port.shape), row) for x, port in pairs)

    def _span(self, series: Sequence[Tensor], start: int, length: int) -> Tensors:
        """The states of some rows."""
        ports = self.scan.step.inputs[: self.scan.roles.carry]
        return _spans(series, [len(port.shape) for port in ports], start, length)

    def push(self, given: Flags, inputs: Sequence[Tensor], by: Sequence[Tensor]) -> Tensors:
        """JVP: the tangents of the outputs for the tangents ``by`` of the given inputs."""
        count, stream = self.scan.roles.carry, self.scan.roles.stream
        state, streams, stay = self.scan.split(inputs)
        tangents = iter(by)
        turn = [
            next(tangents) if flag else torch.zeros_like(x)
            for flag, x in zip(given[:count], state, strict=True)
        ]
        moving = [next(tangents) for flag in given[count : count + stream] if flag]
        along = self.scan.pushed(given[count:]).over(self.steps, self.every)
        found = along(*turn, *state, *streams, *moving, *stay, *tangents)
        states, _, more = parted(found, (count, count))
        return *states, *more

    @cached_property
    def _narrows(self) -> bool:
        return True

    def _cpu_kernel(self, dtype: torch.dtype, few: bool = False) -> Callable[..., Tensors]:
        made = self.scan.kernel(dtype, few)
        return made(self.inputs, self.outputs, self.steps, self.every, self.scan.backward)

    def _cuda_kernel(self, dtype: torch.dtype, device: torch.device) -> Callable[..., Tensors]:
        launch, scan = self.scan.on_gpu(dtype, device), self.scan
        times = (self.steps, self.every, scan.backward)
        return CudaScan(launch, scan.roles, dtype, self.inputs, self.outputs, times)


def _stacked(rows: Sequence[Sequence[Tensor]], ports: Sequence[Port]) -> Tensors:
    """Series of what each step gave, of one batch shape."""
    return tuple(
        torch.stack(torch.broadcast_tensors(*column), -1 - len(port.shape))
        for column, port in zip(zip(*rows, strict=True), ports, strict=True)
    )


def _spans(series: Sequence[Tensor], ranks: Sequence[int], start: int, length: int) -> Tensors:
    return tuple(x.narrow(-1 - r, start, length) for x, r in zip(series, ranks, strict=False))
