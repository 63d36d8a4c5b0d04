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
from torchsko.fused.calls.kernel import common_batch, rows
from torchsko.fused.program.program import Port, Program
from torchsko.implicit.step_roles import Roles

# Of one scalar of all samples: up to here a scan is compiled for vectors of no more. Wider ones would be
# mostly copies: with 64 bytes a step of one humanoid takes longer by a third, one of an arm by a fifth.
FEW_BYTES = 16


def scan_kernels(
    program: Callable[[], Program],
    identity: str | None,
    roles: Roles,
    dtype: torch.dtype,
    few: bool,
) -> Callable[..., ScanKernel]:
    """Compile a step that repeats, or load it from the disk cache; gives what makes kernels of it.

    Args:
        program: gives the step's program.
        identity: a digest of all that the program depends on, by which its library is found without it.
        roles: of the step's ports.
        dtype: float32 or float64.
        few: whether for samples of `FEW_BYTES`, not for any number.

    Raises:
        CompilerError: no compiler, or it failed.
    """
    toolchain = find_toolchain()
    width = FEW_BYTES if few else None
    known = identity and load_library(identity, dtype, toolchain, roles, width)
    compiled = known or build_library(program(), dtype, toolchain, identity, roles, width)
    return partial(ScanKernel, compiled, roles, dtype)


class ScanKernel:
    """So many steps of a compiled scan.

    Attributes:
        inputs: the ports of the state, of series, and of what stays.
        outputs: the ports of the state or its series, of series, and of sums.
        dtype: float32 or float64.
    """

    def __init__(
        self,
        compiled: Compiled,
        roles: Roles,
        dtype: torch.dtype,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        steps: int,
        every: int,
        backward: bool,
    ) -> None:
        self.inputs, self.outputs, self.dtype = tuple(inputs), tuple(outputs), dtype
        self._compiled, self._roles = compiled, roles
        self._head = (steps, every, int(backward))
        self._steps = steps
        self._pack = struct.Struct(f"@{5 + 3 * (len(inputs) + len(outputs))}q").pack
        cost = max(1, steps) * compiled.cost
        self._block_rows = compiled.width * max(1, min(64, BLOCK_COST // cost))
        self._threaded_batch = max(1, THREADED_COST * compiled.width // cost)

    def __call__(
        self, inputs: Sequence[Tensor], summed: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """Run all steps on a batch; see `ScanFunction` for inputs and results.

        Raises:
            ShapeError: shape, dtype or device of an input does not fit.
        """
        batch = common_batch(self.inputs, self.dtype, "cpu", inputs)
        total = prod(batch)
        words: list[int] = [total, self._block_rows, *self._head]
        held = []  # until the kernel has run
        for k, (x, port) in enumerate(zip(inputs, self.inputs, strict=True)):
            x, stride, step = step_rows(k, x, port, batch, self._roles, self._steps)
            held.append(x)
            words += (x.data_ptr(), stride, step)
        results = [self._compiled.result(inputs[0], (*batch, *port.shape)) for port in self.outputs]
        for y, port in zip(results, self.outputs, strict=True):
            words += (y.data_ptr(), port.size, 0)
        if total > 0:
            threads = min(torch.get_num_threads(), 1 + total // self._threaded_batch)
            self._compiled.launch(self._pack(*words), threads)
        return tuple(results)


def step_rows(
    k: int, x: Tensor, port: Port, batch: tuple[int, ...], roles: Roles, steps: int
) -> tuple[Tensor, int, int]:
    """Input k of a scan with the same values, how far apart its samples are, and its steps."""
    num_batch = x.dim() - len(port.shape)
    if not 0 <= k - roles.carry < roles.stream or steps == 0:
        return *rows(x, port.shape, num_batch, batch), 0
    shape = port.shape[1:]
    if steps > 1 and x.stride(num_batch) == 0:  # the same at each step
        return *rows(x.select(num_batch, 0), shape, num_batch, batch), 0
    if num_batch > 1 and x.shape[:num_batch] == batch:  # a view, where there is one
        batch = (prod(batch),)  # said, since a memory of nothing leaves it open
        x, num_batch = x.reshape(*batch, *port.shape), 1
    return *rows(x, port.shape, num_batch, batch), prod(shape)
