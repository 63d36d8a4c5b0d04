"""A compiled program as a function of CPU tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import combinations
from math import prod

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.fused.build.kernel_library import (
    BITS,
    BLOCK_COST,
    FRESH_BYTES,
    THREADED_COST,
    Compiled,
    build_library,
    load_library,
)
from torchsko.fused.build.toolchain import Toolchain, find_toolchain
from torchsko.fused.calls.quick import Quick, quick_call
from torchsko.fused.program.program import Port, Program
from torchsko.mechanism.state import apart
from torchsko.utils.shapes import are_broadcastable, broadcast_shapes

# Tiles of a block at least: drawing one costs nothing then.
_BLOCKS = 16


def build_kernel(
    program: Program,
    dtype: torch.dtype,
    toolchain: Toolchain | None = None,
    identity: str | None = None,
    vector_bytes: int | None = None,
) -> Kernel:
    """Compile a program, or load it from the disk cache.

    Args:
        program: the program.
        dtype: float32 or float64.
        toolchain: the compiler; by default `find_toolchain()`.
        identity: a hexadecimal digest of all that the program depends on; given, `load_kernel` finds
            the kernel without the program.
        vector_bytes: width of its vectors; by default the widest of the toolchain.

    Raises:
        CompilerError: no compiler, or it failed.
        FusedError: another dtype, or an instruction without a rule.
    """
    compiled = build_library(
        program, dtype, toolchain or find_toolchain(), identity, vector_bytes=vector_bytes
    )
    return Kernel(program.inputs, program.outputs, dtype, compiled)


def load_kernel(
    identity: str, inputs: Sequence[Port], outputs: Sequence[Port], dtype: torch.dtype
) -> Kernel | None:
    """The kernel that `build_kernel` stored under an identity, or None.

    Raises:
        CompilerError: no compiler.
    """
    compiled = load_library(identity, dtype, find_toolchain())
    return compiled and Kernel(inputs, outputs, dtype, compiled)


class Kernel:
    """One program in one dtype, compiled.

    Attributes:
        inputs: the input ports.
        outputs: the output ports.
        dtype: float32 or float64.
    """

    def __init__(
        self,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        dtype: torch.dtype,
        compiled: Compiled,
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.dtype = dtype
        self._compiled = compiled
        num_ports = len(self.inputs) + len(self.outputs)
        self._pack = struct.Struct(f"@{2 + 2 * num_ports}q").pack
        self._shapes = tuple((p.shape, len(p.shape), p.size) for p in self.inputs)
        shapes = [p.shape for p in self.inputs]
        self._sizes = tuple(
            (p.shape, p.size, shapes.index(p.shape) if p.shape in shapes else None)
            for p in self.outputs
        )
        widest = max([1, *(p.size for p in self.outputs)])
        self._fresh_batch = FRESH_BYTES // (widest * BITS[dtype] // 8)
        self._width, cost = compiled.width, compiled.cost
        self._threaded_batch = max(1, THREADED_COST * self._width // cost)
        self._rows_of_tiles = self._width * _BLOCKS
        together = compiled.tiles
        self._most_tiles = max(1, min(64, BLOCK_COST // cost) // together) * together

    def quick(self, one_lead: bool) -> Quick | None:
        """The kernel's call for usual inputs of small batches; see `torchsko.fused.calls.quick`.

        Args:
            one_lead: whether all inputs must have the same batch shape, none of them without.
        """
        words = [
            BITS[self.dtype],
            len(self.inputs),
            len(self.outputs),
            min(self._threaded_batch, self._fresh_batch),
            self._width,
            self._rows_of_tiles,
            self._most_tiles,
            int(one_lead),
        ]
        ports = [(port.shape, port.size, -1) for port in self.inputs]
        ports += [(shape, size, -1 if k is None else k) for shape, size, k in self._sizes]
        return quick_call(self._compiled, words, ports)

    def __call__(
        self, inputs: Sequence[Tensor], summed: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """Run the program on a batch.

        Args:
            inputs: for each port a CPU tensor ``[*batch, *port.shape]`` of the kernel's dtype; the
                batch shapes broadcast. One without batch dimensions is read once for all samples.
            summed: for each output, whether it is to be summed over the whole batch.

        Returns:
            For each output port a tensor ``[*batch, *port.shape]``, or ``port.shape`` if summed
            (in a fixed order of summation: the same result from call to call).

        Raises:
            ShapeError: shape, dtype or device of an input does not fit.
        """
        words, batch, held = self._usual_words(inputs) or self._words(inputs)
        total = words[0]
        # By the batch alone: sums over blocks must not depend on the threads.
        tiles = total // self._rows_of_tiles or 1
        block_rows = words[1] = self._width * (
            tiles if tiles < self._most_tiles else self._most_tiles
        )
        results = []
        for k, (shape, size, like) in enumerate(self._sizes):
            if summed is not None and summed[k]:
                y, stride = inputs[0].new_empty((-(-total // block_rows), *shape)), 0
            elif total >= self._fresh_batch:
                y, stride = self._compiled.result(inputs[0], (*batch, *shape)), size
            elif like is not None and not held:
                y, stride = torch.empty_like(inputs[like]), size  # sooner made than by its shape
            else:
                y, stride = inputs[0].new_empty((*batch, *shape)), size
            results.append(y)
            words += (y.data_ptr(), stride)
        if total > 0:
            threads = min(torch.get_num_threads(), 1 + total // self._threaded_batch)
            self._compiled.launch(self._pack(*words), threads)
        if summed is not None:
            results = [y.sum(0) if s else y for y, s in zip(results, summed, strict=True)]
        return tuple(results)

    def _usual_words(
        self, inputs: Sequence[Tensor]
    ) -> tuple[list[int], tuple[int, ...], Sequence[Tensor]] | None:
        """`_words` where all inputs are contiguous and have one batch shape, else None.

        At small batches the time of a call is that of these lines.
        """
        dtype, words = self.dtype, [0, 0]
        lead = tuple(inputs[0].shape)
        lead = lead[: len(lead) - self._shapes[0][1]]
        for x, (shape, _, size) in zip(inputs, self._shapes, strict=True):
            if x.shape != lead + shape or x.dtype is not dtype:
                return None
            place = x.data_ptr()
            if not place or not x.is_contiguous() or not x.is_cpu or x.is_neg():
                return None
            words += (place, size)
        words[0] = lead[0] if len(lead) == 1 else prod(lead)
        return words, lead, ()

    def _words(
        self, inputs: Sequence[Tensor]
    ) -> tuple[list[int], tuple[int, ...], Sequence[Tensor]]:
        """The words of a call up to its inputs; the batch shape; what to keep alive.

        Words: the batch size, a place for the block size, address and stride of each input.
        """
        batch = common_batch(self.inputs, self.dtype, "cpu", inputs)
        words, held = [prod(batch), 0], []
        for x, (shape, rank, _) in zip(inputs, self._shapes, strict=True):
            x, stride = rows(x, shape, x.dim() - rank, batch)
            held.append(x)
            words += (x.data_ptr(), stride)
        return words, batch, held


def common_batch(
    ports: Sequence[Port], dtype: torch.dtype, device: str, inputs: Sequence[Tensor]
) -> tuple[int, ...]:
    """The common batch shape of a call, after a check of every input.

    Raises:
        ShapeError: shape, dtype or device of an input does not fit.
    """
    shapes = []
    for x, port in zip(inputs, ports, strict=True):
        num_batch = x.dim() - len(port.shape)
        if num_batch < 0 or tuple(x.shape[num_batch:]) != port.shape:
            raise ShapeError(
                f"{port.name} has shape {tuple(x.shape)}.",
                f"The kernel takes one {port.shape} per sample.",
                f"Pass a tensor [*batch{''.join(f', {n}' for n in port.shape)}].",
            )
        if x.dtype is not dtype or x.device.type != device:
            raise ShapeError(
                f"{port.name} is {x.dtype} on {x.device}; this kernel takes {dtype} on {device}.",
                "Nothing is cast or moved in silence.",
                f"Convert all inputs to one dtype and device: {port.name}.to({device!r}, {dtype}).",
            )
        shapes.append(x.shape[:num_batch])
    return broadcast_batch(ports, shapes)


def broadcast_batch(ports: Sequence[Port], shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The common batch shape of inputs.

    Raises:
        ShapeError: there is none; names two that do not fit.
    """
    try:
        return broadcast_shapes(*shapes)
    except RuntimeError:
        pairs = combinations(zip(ports, shapes, strict=True), 2)
        (a, first), (b, second) = next(x for x in pairs if not are_broadcastable(x[0][1], x[1][1]))
    raise ShapeError(apart(a.name, first, b.name, second, len(b.shape)))


def rows(
    x: Tensor, shape: tuple[int, ...], num_batch: int, batch: tuple[int, ...]
) -> tuple[Tensor, int]:
    """A tensor with the same values, and how far apart its samples are; 0 if there is only one."""
    # The imaginary part of a conjugate may be contiguous, its sign yet to be changed.
    x = x.resolve_neg()
    # A derivative of a derivative may get zeros of no memory as cotangents.
    if not x.data_ptr():
        x = torch.zeros_like(x)
    if prod(x.shape[:num_batch]) == 1:
        return x.contiguous(), 0
    is_row = num_batch == 1 == len(batch) and x.stride(0) > 0
    if is_row and len(x) > 0 and x[0].is_contiguous():  # a slice of wider rows
        return x, x.stride(0)
    return x.expand(*batch, *shape).contiguous(), prod(shape)
