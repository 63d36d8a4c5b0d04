"""Scans: one kernel repeats a step, and the state stays in vectors from the first step to the last.

A `Scan` repeats a step of one sample, a function (state, streamed, invariant) -> (next state,
stacked, summed); `torchsko.implicit.loop_roles` defines these roles, with the state as carry.
`Scan.of_length` fixes the number of steps and returns a `FusedFunction`. The program of the step is
traced and compiled once for all numbers of steps.

The derivatives of a scan are scans. The VJP goes in the opposite direction: its state is the cotangent of
the state, its streamed inputs include the states before each step, saved by the forward pass, and gradients
of invariant inputs are summed. The JVP is a scan of states and their tangents.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.calls.cuda_kernel import CudaScan, Launch, load_cuda
from torchsko.fused.calls.kernel import broadcast_batch
from torchsko.fused.calls.scan_kernel import ScanKernel, scan_kernels
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.fused.functions.operator import needs_dispatch, new_key
from torchsko.fused.functions.scan_derivatives import jvp_step, vjp_step
from torchsko.fused.program.program import Port
from torchsko.implicit.jacobian_products import Flags, Tensors, covering_flags
from torchsko.implicit.loop_roles import LoopRoles, split_by_sizes

_MAX_LENGTHS = 16
"""Largest number of numbers of steps whose functions are kept; making one takes about 0.1 ms."""


class Scan:
    """A step and the roles of its inputs and outputs.

    Attributes:
        step: the step of one sample; its inputs are ordered (state, streamed, invariant).
        roles: number of inputs and outputs of each role.
        reverse: whether steps go from the last to the first.
    """

    def __init__(self, step: FusedFunction, roles: LoopRoles, *, reverse: bool = False) -> None:
        self.step, self.roles, self.reverse = step, roles, reverse
        self._lock = threading.RLock()
        self._libraries: dict[tuple[torch.dtype, bool], Callable[..., ScanKernel]] = {}
        self._launches: dict[tuple[torch.dtype, torch.device], Launch] = {}
        self._functions: dict[tuple[int, int], ScanFunction] = {}  # used last
        self.key = new_key(self)
        self._derivatives: dict[tuple[Any, ...], Scan] = {}

    def of_length(self, steps: int, every: int = 1) -> ScanFunction:
        """The function that applies a number of steps.

        Args:
            steps: number of steps.
            every: number of steps from one returned state to the next, the start included; 0 to
                return only the last.

        Raises:
            FusedError: ``every > 1`` for a scan that has summed outputs, or that is reversed.
        """
        if every > 1 and (self.reverse or self.roles.summed):
            raise FusedError(
                f"every={every} was given for a scan with summed outputs.",
                "Steps after the last returned state are not computed.",
                "Pass every=1, or stack the outputs.",
            )
        with self._lock:
            found = self._functions.pop((steps, every), None) or ScanFunction(self, steps, every)
            self._functions[steps, every] = found
            if len(self._functions) > _MAX_LENGTHS:
                del self._functions[next(iter(self._functions))]
            return found

    def with_sizes(self, *sizes: int) -> ScanFunction:
        """The function of these steps; see `torchsko.fused.functions.operator.Keyed`."""
        return self.of_length(*sizes)

    @property
    def kernel_roles(self) -> LoopRoles:
        """The roles of the kernel, whose last stacked outputs are the stored solutions of the step."""
        return replace(self.roles, stacked=self.roles.stacked + len(self.step.solutions))

    def kernels(self, dtype: torch.dtype, narrow: bool) -> Callable[..., ScanKernel]:
        """Makes CPU kernels of any number of steps, from one library for narrow or for wide vectors.

        Raises:
            CompilerError: there is no compiler, or it failed.
        """
        with self._lock:
            if (dtype, narrow) not in self._libraries:
                step = self.step
                self._libraries[dtype, narrow] = scan_kernels(
                    lambda: step.program,
                    step.traits.identity,
                    self.kernel_roles,
                    dtype,
                    narrow,
                )
            return self._libraries[dtype, narrow]

    def cuda_launch(self, dtype: torch.dtype, device: torch.device) -> Launch:
        """Launches the CUDA kernel of any number of steps.

        Raises:
            CompilerError: there is no compiler, or it failed.
        """
        with self._lock:
            if (dtype, device) not in self._launches:
                step = self.step
                self._launches[dtype, device] = load_cuda(
                    lambda: step.program, step.traits.identity, dtype, device, self.kernel_roles
                )
            return self._launches[dtype, device]

    def vjp_scan(self, needed: Flags, all_states: bool, at_solutions: bool = False) -> Scan:
        """The scan of cotangents.

        Args:
            needed: flags the streamed and invariant inputs whose gradients are computed.
            all_states: whether every state has a cotangent, not only the last.
            at_solutions: whether the stored solutions of each step are streamed inputs.
        """
        with self._lock:
            key = ("vjp", needed, all_states, at_solutions)
            if key not in self._derivatives:
                step, roles = vjp_step(self.step, self.roles, needed, all_states, at_solutions)
                self._derivatives[key] = Scan(step, roles, reverse=not self.reverse)
            return self._derivatives[key]

    def covering_flags(self, needed: Flags) -> Flags:
        """The streamed and invariant inputs of a VJP that includes the needed ones."""
        built = [key[1] for key in self._derivatives if key[0] == "vjp"]
        return covering_flags(needed, list(dict.fromkeys(built)))

    def jvp_scan(self, moving: Flags) -> Scan:
        """The scan of states and tangents; ``moving`` flags streamed and invariant inputs with a tangent."""
        with self._lock:
            if ("jvp", moving) not in self._derivatives:
                step, roles = jvp_step(self.step, self.roles, moving)
                self._derivatives["jvp", moving] = Scan(step, roles, reverse=self.reverse)
            return self._derivatives["jvp", moving]

    def split(self, inputs: Sequence[Tensor]) -> tuple[Tensors, Tensors, Tensors]:
        """The state, the streamed and the invariant inputs."""
        state, streamed, invariant = split_by_sizes(inputs, (self.roles.carry, self.roles.stream))
        return state, streamed, invariant


class ScanFunction(FusedFunction):
    """A scan with a fixed number of steps; made by `Scan.of_length`.

    Inputs are the state at the start, streamed inputs ``[*batch, steps, *shape]`` and invariant
    inputs. Outputs are the states ``[*batch, steps // every + 1, *shape]`` or the last state,
    stacked outputs ``[*batch, steps // every, *shape]`` of the steps that end in these states, or of all
    steps ``[*batch, steps, *shape]``, and summed outputs.

    Attributes:
        scan: the scan.
        steps: number of steps.
        every: number of steps from one returned state to the next; 0 if only the last state is returned.
    """

    def __init__(self, scan: Scan, steps: int, every: int) -> None:
        self.scan, self.steps, self.every = scan, steps, every
        step, roles = scan.step, scan.roles
        state, streamed, invariant = split_by_sizes(step.inputs, (roles.carry, roles.stream))
        _, stacked, summed = split_by_sizes(step.outputs, (roles.carry, roles.stacked))
        rows = steps // every + 1 if every else 0
        # Steps after the last returned state have no effect.
        self._computed = steps - steps % max(every, 1)
        taken = steps // max(every, 1)
        states = [Port(p.name, (rows, *p.shape)) for p in state] if every else state
        series = [Port(p.name, (taken, *p.shape)) for p in (*stacked, *step.solutions)]
        super().__init__(
            lambda *inputs: self._loop(step.sample, inputs),
            [*state, *(Port(p.name, (steps, *p.shape)) for p in streamed), *invariant],
            replace(
                step.traits,
                batched=lambda *inputs: self._loop(step.eager, inputs),
                outputs=(*states, *series, *summed),
                identity=None,
            ),
        )
        self.saves_outputs = every > 0

    def _new_key(self) -> tuple[str, tuple[int, ...]]:
        return self.scan.key, (self.steps, self.every)

    def _loop(self, step: Callable[..., Tensors], inputs: Sequence[Tensor]) -> Tensors:
        """Apply the steps eagerly, one after another."""
        scan, every = self.scan, self.every
        state, streamed, invariant = scan.split(inputs)
        count, stop = scan.roles.carry, scan.roles.carry + scan.roles.stacked
        ranks = [len(port.shape) for port in scan.step.inputs]
        times = range(self._computed)
        batch = broadcast_batch(self.inputs, [self.batch_of(k, x) for k, x in enumerate(inputs)])
        # Expanded here, since without any step the start keeps its own batch shape.
        pairs = zip(state, self.inputs, strict=False)
        state = tuple(x.expand(*batch, *port.shape) for x, port in pairs)
        states, stacked, summed = [state], [], []
        for k, t in enumerate(reversed(times) if scan.reverse else times):
            entries = [x.select(-1 - r, t) for x, r in zip(streamed, ranks[count:], strict=False)]
            found = step(*state, *entries, *invariant)
            state = tuple(found[:count])
            if every and (k + 1) % every == 0:
                states.append(state)
            if (k + 1) % max(every, 1) == 0:
                stacked.append(found[count:stop])
            sums = zip(summed or found[stop:], found[stop:], strict=True)
            summed = [x + y for x, y in sums] if summed else list(found[stop:])
        outputs = scan.step.outputs
        if not times:
            summed = [state[0].new_zeros((*batch, *port.shape)) for port in outputs[stop:]]
        if scan.reverse:
            states, stacked = states[::-1], stacked[::-1]
        returned = state if not every else _stacked(states, outputs[:count])
        if stacked:
            series = _stacked(stacked, outputs[count:stop])
        else:
            series = tuple(state[0].new_zeros((*batch, 0, *p.shape)) for p in outputs[count:stop])
        return (*returned, *series, *summed)

    def vjp(
        self,
        needed: Flags,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        solutions: Sequence[Tensor] = (),
    ) -> Tensors:
        """Gradients of the needed inputs, each of the shape of its input."""
        count = self.scan.roles.carry
        computed = self.scan.covering_flags(needed[count:])
        if self.every > 1:
            gradients = self._vjp_by_segments(computed, inputs, outputs, cotangents)
        else:
            gradients = self._vjp_in_one_scan(computed, inputs, outputs, cotangents, solutions)
        found = iter(gradients)
        gradients = [(k, next(found)) for k, flag in enumerate((True,) * count + computed) if flag]
        return tuple(g.sum_to_size(inputs[k].shape) for k, g in gradients if needed[k])

    def _vjp_in_one_scan(
        self,
        needed: Flags,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        solutions: Sequence[Tensor],
    ) -> Tensors:
        """Gradients of the start and the needed inputs, with the batch shape of the call."""
        scan, count, steps = self.scan, self.scan.roles.carry, self.steps
        _, streamed, invariant = scan.split(inputs)
        states = outputs[:count]
        if not self.every:
            states, solutions = scan.of_length(steps).states(inputs)
        if needs_dispatch((*inputs, *cotangents)):
            solutions = ()
        of_states, stacked, summed = split_by_sizes(cotangents, (count, scan.roles.stacked))
        first, end = (1, 0) if scan.reverse else (0, steps)
        before = self._states(states, first, steps)
        of_last, of_others = of_states, ()
        if self.every:
            of_last, of_others = self._state(of_states, end), self._states(of_states, first, steps)
        vjp = scan.vjp_scan(needed, bool(self.every), bool(solutions)).of_length(steps, 0)
        series = (*before, *streamed, *of_others, *stacked, *solutions)
        return vjp(*of_last, *series, *invariant, *summed)

    def states(self, inputs: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
        """The states at all steps and, if no transform is active, the stored solutions."""
        count = self.scan.roles.carry
        results = self(*inputs) if needs_dispatch(inputs) else self.run_storing(inputs)
        return results[:count], results[self.num_outputs :]

    def run_storing(self, inputs: Sequence[Tensor]) -> Tensors:
        """The outputs as by `run`, then the stored solutions, if those of all steps are known."""
        results = super().run_storing(inputs)
        return results[: self.num_outputs] if self.every > 1 else results

    def _vjp_by_segments(
        self,
        needed: Flags,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        cotangents: Sequence[Tensor],
    ) -> Tensors:
        """Gradients with the states of each segment recomputed from its first state."""
        scan, every, count = self.scan, self.every, self.scan.roles.carry
        _, streamed, invariant = scan.split(inputs)
        segments = self.steps // every
        chosen = [k for k, flag in enumerate(needed) if flag]
        if not segments:  # the only returned state is the start
            of_start = zip(self._state(cotangents, 0), inputs, strict=False)
            gradients = [x + torch.zeros_like(y) for x, y in of_start]
            return (*gradients, *(torch.zeros_like(inputs[count + k]) for k in chosen))
        forward = scan.of_length(every)
        num_streamed = sum(needed[: len(streamed)])
        ranks = [len(port.shape) for port in scan.step.inputs[count:]]
        of_state = self._state(cotangents, segments)
        of_stacked = cotangents[count:]
        stacked_ranks = [len(port.shape) for port in scan.step.outputs[count:]]
        parts, sums = [], ()
        for k in reversed(range(segments)):
            start = self._state(outputs, k)
            span = _narrowed(streamed, ranks, k * every, every)
            states, solutions = forward.states((*start, *span, *invariant))
            of_last = _narrowed(of_stacked, stacked_ranks, k, 1)
            of_outputs = [
                _last_of(x, r, every) for x, r in zip(of_last, stacked_ranks, strict=True)
            ]
            before = self._states(states, 0, every)
            vjp = scan.vjp_scan(needed, False, bool(solutions)).of_length(every, 0)
            found = vjp(*of_state, *before, *span, *of_outputs, *solutions, *invariant)
            pairs = zip(found[:count], self._state(cotangents, k), strict=True)
            of_state = tuple(x + y for x, y in pairs)
            parts.append(found[count : count + num_streamed])
            terms = found[count + num_streamed :]
            sums = tuple(x + y for x, y in zip(sums, terms, strict=True)) if sums else terms
        rest = self.steps - segments * every  # steps after the last returned state
        series = []
        for k, column in zip(chosen, zip(*reversed(parts), strict=True), strict=False):
            shape = scan.step.inputs[count + k].shape
            zeros = column[0].new_zeros(
                (*column[0].shape[: column[0].dim() - 1 - len(shape)], rest, *shape)
            )
            series.append(torch.cat([*column, zeros], -1 - len(shape)))
        return (*of_state, *series, *sums)

    def _state(self, series: Sequence[Tensor], k: int) -> Tensors:
        """State k of a series of states."""
        ports = self.scan.step.inputs[: self.scan.roles.carry]
        pairs = zip(series, ports, strict=False)
        return tuple(x.select(-1 - len(port.shape), k) for x, port in pairs)

    def _states(self, series: Sequence[Tensor], start: int, length: int) -> Tensors:
        """A range of a series of states."""
        ports = self.scan.step.inputs[: self.scan.roles.carry]
        return _narrowed(series, [len(port.shape) for port in ports], start, length)

    def jvp(self, moving: Flags, inputs: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensors:
        """Tangents of the outputs; ``moving`` flags the inputs that have a tangent in ``tangents``."""
        count, stream = self.scan.roles.carry, self.scan.roles.stream
        state, streamed, invariant = self.scan.split(inputs)
        remaining = iter(tangents)
        of_state = [
            next(remaining) if flag else torch.zeros_like(x)
            for flag, x in zip(moving[:count], state, strict=True)
        ]
        of_streamed = [next(remaining) for flag in moving[count : count + stream] if flag]
        jvp = self.scan.jvp_scan(moving[count:]).of_length(self.steps, self.every)
        found = jvp(*of_state, *state, *streamed, *of_streamed, *invariant, *remaining)
        state_tangents, _, others = split_by_sizes(found, (count, count))
        return *state_tangents, *others

    @cached_property
    def _has_narrow_kernel(self) -> bool:
        return True

    def _cpu_kernel(self, dtype: torch.dtype, narrow: bool = False) -> Callable[..., Tensors]:
        kernel_of = self.scan.kernels(dtype, narrow)
        return kernel_of(self.inputs, self.results, self._computed, self.every, self.scan.reverse)

    def _cuda_kernel(self, dtype: torch.dtype, device: torch.device) -> Callable[..., Tensors]:
        scan = self.scan
        launch = scan.cuda_launch(dtype, device)
        arguments = (self._computed, self.every, scan.reverse)
        return CudaScan(launch, scan.kernel_roles, dtype, self.inputs, self.results, arguments)


def _stacked(rows: Sequence[Sequence[Tensor]], ports: Sequence[Port]) -> Tensors:
    """Series of the tensors of each step, expanded to one batch shape."""
    return tuple(
        torch.stack(torch.broadcast_tensors(*column), -1 - len(port.shape))
        for column, port in zip(zip(*rows, strict=True), ports, strict=True)
    )


def _narrowed(series: Sequence[Tensor], ranks: Sequence[int], start: int, length: int) -> Tensors:
    return tuple(x.narrow(-1 - r, start, length) for x, r in zip(series, ranks, strict=False))


def _last_of(x: Tensor, rank: int, length: int) -> Tensor:
    """A series of this length with one entry at its end and zeros before it."""
    dim = x.dim() - 1 - rank
    shape = (*x.shape[:dim], length - 1, *x.shape[dim + 1 :])
    return torch.cat([x.new_zeros(shape), x], dim)
