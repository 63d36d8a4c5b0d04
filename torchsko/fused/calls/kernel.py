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
    MIN_POOLED_BYTES,
    THREADED_COST,
    Compiled,
    build_library,
    load_library,
)
from torchsko.fused.build.toolchain import Toolchain, find_toolchain
from torchsko.fused.calls.native_call import NativeCall, make_native_call
from torchsko.fused.program.program import Port, Program
from torchsko.mechanism.state import batch_mismatch
from torchsko.utils.shapes import are_broadcastable, broadcast_shapes

CPU = torch.device("cpu")

_MIN_TILES_PER_BLOCK = 16
"""Fewest tiles of a block, so that the time to fetch a block is negligible."""


def build_kernel(
    program: Program,
    dtype: torch.dtype,
    toolchain: Toolchain | None = None,
    identity: str | None = None,
    vector_bytes: int | None = None,
) -> Kernel:
    """Load the kernel of a program from the disk cache, or compile it.

    Args:
        program: the program.
        dtype: float32 or float64.
        toolchain: the compiler; by default `find_toolchain()`.
        identity: a hexadecimal digest of everything that the program depends on, by which
            `load_kernel` finds the kernel without the program.
        vector_bytes: width of the vectors; by default the widest of the toolchain.

    Raises:
        CompilerError: there is no compiler, or it failed.
        FusedError: the dtype is not supported, or an instruction is unknown.
    """
    compiled = build_library(
        program, dtype, toolchain or find_toolchain(), identity, vector_bytes=vector_bytes
    )
    return Kernel(program.inputs, program.outputs, dtype, compiled)


def load_kernel(
    identity: str,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    dtype: torch.dtype,
    vector_bytes: int | None = None,
) -> Kernel | None:
    """The kernel that `build_kernel` stored under an identity; None if there is none.

    Raises:
        CompilerError: there is no compiler.
    """
    compiled = load_library(identity, dtype, find_toolchain(), vector_bytes=vector_bytes)
    return compiled and Kernel(inputs, outputs, dtype, compiled)


class Kernel:
    """A compiled program of one dtype, as a function of CPU tensors.

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
        self._pooled_batch = MIN_POOLED_BYTES // (widest * BITS[dtype] // 8)
        self._width, cost = compiled.width, compiled.cost
        self._threaded_batch = max(1, THREADED_COST * self._width // cost)
        self._rows_per_tile = self._width * _MIN_TILES_PER_BLOCK
        tiles = compiled.tiles
        self._max_tiles = max(1, min(64, BLOCK_COST // cost) // tiles) * tiles

    def native_call(self, equal_batches: bool, max_samples: int | None) -> NativeCall | None:
        """The native call of the kernel for small batches; see `torchsko.fused.calls.native_call`.

        Args:
            equal_batches: whether all inputs must have the same batch shape.
            max_samples: largest number of samples of an expensive kernel, which runs without Python's lock;
                None: as many as one thread computes within microseconds.
        """
        most = min(self._threaded_batch, self._pooled_batch)
        if max_samples is not None:
            most = max_samples + 1
        words = [
            BITS[self.dtype],
            len(self.inputs),
            len(self.outputs),
            most,
            self._width,
            self._rows_per_tile,
            self._max_tiles,
            int(equal_batches),
            int(max_samples is not None),
        ]
        ports = [(port.shape, port.size, -1) for port in self.inputs]
        ports += [(shape, size, -1 if k is None else k) for shape, size, k in self._sizes]
        return make_native_call(self._compiled, self.dtype, words, ports)

    def __call__(
        self, inputs: Sequence[Tensor], summed: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """Apply the program to a batch.

        Args:
            inputs: for each port a CPU tensor ``[*batch, *port.shape]`` of the kernel's dtype; the
                batch shapes broadcast. An input without batch dimensions is read once for all samples.
            summed: for each output, whether it is summed over the whole batch.

        Returns:
            For each output port a tensor ``[*batch, *port.shape]``, or ``port.shape`` if summed.
            The order of summation is fixed, so results are reproducible.

        Raises:
            ShapeError: shape, dtype or device of an input does not fit.
        """
        batch, words, alive = input_rows(inputs, self.inputs, self._shapes, self.dtype, CPU)
        total = batch[0] if len(batch) == 1 else prod(batch)
        # The block size depends on the batch alone, so that sums do not depend on the number of threads.
        tiles = total // self._rows_per_tile or 1
        block_rows = self._width * (tiles if tiles < self._max_tiles else self._max_tiles)
        results = []
        for k, (shape, size, like) in enumerate(self._sizes):
            if summed is not None and summed[k]:
                y, stride = inputs[0].new_empty((-(-total // block_rows), *shape)), 0
            elif total >= self._pooled_batch:
                y, stride = self._compiled.result(inputs[0], (*batch, *shape)), size
            elif like is not None and not alive:
                y, stride = torch.empty_like(inputs[like]), size  # faster than new_empty
            else:
                y, stride = inputs[0].new_empty((*batch, *shape)), size
            results.append(y)
            words += (y.data_ptr(), stride)
        if total > 0:
            threads = min(torch.get_num_threads(), 1 + total // self._threaded_batch)
            self._compiled.launch(self._pack(total, block_rows, *words), threads)
        if summed is not None:
            results = [y.sum(0) if s else y for y, s in zip(results, summed, strict=True)]
        return tuple(results)


def input_rows(
    inputs: Sequence[Tensor],
    ports: Sequence[Port],
    shapes: Sequence[tuple[tuple[int, ...], int, int]],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[tuple[int, ...], list[int], Sequence[Tensor]]:
    """The batch shape, address and stride of each input, and tensors that must outlive the call.

    Args:
        inputs: the inputs of a call.
        ports: the input ports.
        shapes: shape, rank and size of each port.
        dtype: dtype of the kernel.
        device: device of the kernel.

    Raises:
        ShapeError: shape, dtype or device of an input does not fit.
    """
    # Contiguous inputs of one batch shape first, since these lines determine the time of small calls.
    lead, words = tuple(inputs[0].shape), []
    lead = lead[: len(lead) - shapes[0][1]]
    for x, (shape, _, size) in zip(inputs, shapes, strict=True):
        if x.shape != lead + shape or x.dtype is not dtype or x.device != device:
            break
        address = x.data_ptr()
        if not address or not x.is_contiguous() or x.is_neg():
            break
        words += (address, size)
    else:
        return lead, words, ()
    batch = common_batch(ports, dtype, device, inputs)
    words, alive = [], []
    for x, (shape, rank, _) in zip(inputs, shapes, strict=True):
        x, stride = rows(x, shape, x.dim() - rank, batch)
        alive.append(x)
        words += (x.data_ptr(), stride)
    return batch, words, alive


def common_batch(
    ports: Sequence[Port], dtype: torch.dtype, device: torch.device, inputs: Sequence[Tensor]
) -> tuple[int, ...]:
    """Check every input of a call; returns the common batch shape.

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
        if x.dtype is not dtype or x.device != device:
            raise ShapeError(
                f"{port.name} is {x.dtype} on {x.device}; this kernel takes {dtype} on {device}.",
                "Kernels do not convert inputs.",
                f"Convert all inputs to one dtype and device: {port.name}.to({str(device)!r}, {dtype}).",
            )
        shapes.append(x.shape[:num_batch])
    return broadcast_batch(ports, shapes)


def broadcast_batch(ports: Sequence[Port], shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The common batch shape of inputs.

    Raises:
        ShapeError: two shapes do not broadcast; the error names them.
    """
    try:
        return broadcast_shapes(*shapes)
    except RuntimeError:
        pairs = combinations(zip(ports, shapes, strict=True), 2)
        (a, first), (b, second) = next(x for x in pairs if not are_broadcastable(x[0][1], x[1][1]))
    raise ShapeError(*batch_mismatch(a.name, first, b.name, second, len(b.shape)))


def rows(
    x: Tensor, shape: tuple[int, ...], num_batch: int, batch: tuple[int, ...]
) -> tuple[Tensor, int]:
    """A tensor of equal values with dense samples, and the stride between samples; 0 for a single sample."""
    # The imaginary part of a conjugate has a negation that is applied lazily.
    x = x.resolve_neg()
    # Second derivatives may have cotangents that are zero tensors without memory.
    if not x.data_ptr():
        x = torch.zeros_like(x)
    if x.numel() and (prod(x.shape[:num_batch]) == 1 or not any(x.stride()[:num_batch])):
        return x[(0,) * num_batch].contiguous(), 0
    is_row = num_batch == 1 == len(batch) and x.stride(0) > 0
    if is_row and len(x) > 0 and x[0].is_contiguous():  # a slice of wider rows
        return x, x.stride(0)
    return x.expand(*batch, *shape).contiguous(), prod(shape)
