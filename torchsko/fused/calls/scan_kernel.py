"""A compiled scan as a function of CPU tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor

from torchsko.fused.build.kernel_library import (
    BLOCK_COST,
    THREADED_COST,
    Compiled,
    build_library,
    load_library,
)
from torchsko.fused.build.toolchain import find_toolchain
from torchsko.fused.calls.kernel import CPU, common_batch, rows
from torchsko.fused.program.program import Port, Program
from torchsko.implicit.loop_roles import LoopRoles

NARROW_VECTOR_BYTES = 16
"""Width of the vectors for batches whose scalars fit into one such vector.

Wider vectors would mostly hold copies: with 64 bytes a step of one humanoid takes a third longer,
of one arm a fifth."""


def scan_kernels(
    program: Callable[[], Program],
    identity: str | None,
    roles: LoopRoles,
    dtype: torch.dtype,
    narrow: bool,
) -> Callable[..., ScanKernel]:
    """Load the library of a scan from the disk cache, or compile it.

    Args:
        program: makes the program of the step.
        identity: a digest of everything that the program depends on, by which the library is found
            without it.
        roles: roles of the ports of the step.
        dtype: float32 or float64.
        narrow: whether vectors have `NARROW_VECTOR_BYTES` instead of the widest width.

    Returns:
        A function of (inputs, outputs, steps, every, reverse) that makes a kernel.

    Raises:
        CompilerError: there is no compiler, or it failed.
    """
    toolchain = find_toolchain()
    width = NARROW_VECTOR_BYTES if narrow else None
    cached = identity and load_library(identity, dtype, toolchain, roles, width)
    compiled = cached or build_library(program(), dtype, toolchain, identity, roles, width)
    return partial(ScanKernel, compiled, roles, dtype)


class ScanKernel:
    """A compiled scan with a fixed number of steps.

    Attributes:
        inputs: ports of the state, the streamed and the invariant inputs.
        outputs: ports of the last state or the states, the stacked and the summed outputs.
        dtype: float32 or float64.
    """

    def __init__(
        self,
        compiled: Compiled,
        roles: LoopRoles,
        dtype: torch.dtype,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        steps: int,
        every: int,
        reverse: bool,
    ) -> None:
        self.inputs, self.outputs, self.dtype = tuple(inputs), tuple(outputs), dtype
        self._compiled, self._roles = compiled, roles
        self._head = (steps, every, int(reverse))
        self._steps = steps
        streams = range(roles.carry, roles.carry + roles.stream)
        self._ports = tuple(
            (port.shape, port.size, port.size // steps if steps and k in streams else 0)
            for k, port in enumerate(self.inputs)
        )
        self._pack = struct.Struct(f"@{5 + 3 * (len(inputs) + len(outputs))}q").pack
        cost = max(1, steps) * compiled.cost
        self._block_rows = compiled.width * max(1, min(64, BLOCK_COST // cost))
        self._threaded_batch = max(1, THREADED_COST * compiled.width // cost)

    def __call__(
        self, inputs: Sequence[Tensor], summed: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """Apply all steps to a batch, as `torchsko.fused.functions.scan.ScanFunction` describes.

        Raises:
            ShapeError: shape, dtype or device of an input does not fit.
        """
        batch, rows_of_inputs, _alive = self._input_rows(inputs)
        total = prod(batch)
        words: list[int] = [total, self._block_rows, *self._head, *rows_of_inputs]
        results = [self._compiled.result(inputs[0], (*batch, *port.shape)) for port in self.outputs]
        for y, port in zip(results, self.outputs, strict=True):
            words += (y.data_ptr(), port.size, 0)
        if total > 0:
            threads = min(torch.get_num_threads(), 1 + total // self._threaded_batch)
            self._compiled.launch(self._pack(*words), threads)
        return tuple(results)

    def _input_rows(
        self, inputs: Sequence[Tensor]
    ) -> tuple[tuple[int, ...], list[int], Sequence[Tensor]]:
        """The batch shape; address, stride and step of each input; and tensors that must outlive the call."""
        # Contiguous inputs of one batch shape first, as in `torchsko.fused.calls.kernel.input_rows`.
        lead, words = tuple(inputs[0].shape), []
        lead = lead[: len(lead) - len(self._ports[0][0])]
        for x, (shape, size, step) in zip(inputs, self._ports, strict=True):
            if x.shape != lead + shape or x.dtype is not self.dtype or x.device != CPU:
                break
            address = x.data_ptr()
            if not address or not x.is_contiguous() or x.is_neg():
                break
            words += (address, size, step)
        else:
            return lead, words, ()
        batch = common_batch(self.inputs, self.dtype, CPU, inputs)
        words, alive = [], []
        for k, (x, port) in enumerate(zip(inputs, self.inputs, strict=True)):
            x, stride, step = step_rows(k, x, port, batch, self._roles, self._steps)
            alive.append(x)
            words += (x.data_ptr(), stride, step)
        return batch, words, alive


def step_rows(
    k: int, x: Tensor, port: Port, batch: tuple[int, ...], roles: LoopRoles, steps: int
) -> tuple[Tensor, int, int]:
    """Input k of a scan with dense samples, its stride between samples, and its stride between steps."""
    num_batch = x.dim() - len(port.shape)
    if not 0 <= k - roles.carry < roles.stream or steps == 0:
        return *rows(x, port.shape, num_batch, batch), 0
    shape = port.shape[1:]
    if steps > 1 and x.stride(num_batch) == 0:  # equal at every step
        return *rows(x.select(num_batch, 0), shape, num_batch, batch), 0
    if num_batch > 1 and x.shape[:num_batch] == batch:  # a view if possible
        batch = (prod(batch),)  # explicit, since reshape cannot infer a size of an empty tensor
        x, num_batch = x.reshape(*batch, *port.shape), 1
    return *rows(x, port.shape, num_batch, batch), prod(shape)
