"""Programs as functions of tensors on an NVIDIA GPU: compiled once, kept on disk, one launch a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from torchsko.errors import CompilerError
from torchsko.fused.build.file_lock import locked
from torchsko.fused.build.kernel_library import BITS, WRITERS, cache_key, program_digest
from torchsko.fused.build.libraries import cache_directory, read_cached, write_cached
from torchsko.fused.build.nvrtc import find_nvrtc
from torchsko.fused.calls.kernel import common_batch, rows
from torchsko.fused.calls.scan_kernel import step_rows
from torchsko.fused.emit.cpp import ENTRY
from torchsko.fused.emit.cuda import cuda_plan, emit_cuda
from torchsko.fused.program.program import Port, Program
from torchsko.implicit.step_roles import Roles

_GENERATOR = (*WRITERS, "emit/cuda.py", "emit/native/lane.cuh")

_WARP, _BLOCK = 32, 128

_FULL = 16
"""Warps that a multiprocessor has to have before blocks get larger: few samples are spread over all."""

Launch = Callable[[int, Sequence[Tensor | int]], None]
"""Runs a kernel on so many samples, with these arguments after their number."""


def load_cuda(
    program: Callable[[], Program],
    identity: str | None,
    dtype: torch.dtype,
    device: torch.device,
    roles: Roles | None = None,
) -> Launch:
    """A program on a device, from the disk cache where it is there.

    Args:
        program: gives it.
        identity: a digest of all that it depends on, by which it is found without tracing.
        dtype: float32 or float64.
        device: where it is to run.
        roles: of its ports, if it is a step to be repeated.

    Raises:
        CompilerError: NVRTC is missing or failed, or the driver did not take what it made.
    """
    try:
        with torch.cuda.device(device):
            major, minor = torch.cuda.get_device_capability()
            module = cubin(program, identity, dtype, f"sm_{major}{minor}", roles)
            # PyTorch's own loader, since the driver's context is PyTorch's.
            kernel = getattr(torch.cuda._utils._cuda_load_module(module), ENTRY)
    except CompilerError:
        raise
    except (AttributeError, OSError, RuntimeError) as error:
        raise CompilerError(
            f"a fused kernel could not be loaded on {device}: {error}",
            "Its machine code is for this device, the driver may be older than PyTorch's CUDA.",
            "Renew the driver, or use the eager functions.",
        ) from error
    count = torch.cuda.get_device_properties(device).multi_processor_count

    def launch(samples: int, arguments: Sequence[Tensor | int]) -> None:
        size = block_size(samples, count)
        grid = (-(-samples // size), 1, 1)
        with torch.cuda.device(device):
            kernel(grid=grid, block=(size, 1, 1), args=[samples, *arguments])

    return launch


def block_size(samples: int, multiprocessors: int) -> int:
    """Lanes of a block: one warp, as long as warps are too few to fill the multiprocessors."""
    return _WARP if samples <= _FULL * _WARP * multiprocessors else _BLOCK


def cubin(
    program: Callable[[], Program],
    identity: str | None,
    dtype: torch.dtype,
    architecture: str,
    roles: Roles | None = None,
) -> bytes:
    """Machine code of a program, compiled if the cache has none; once, however many ask for it at a time.

    Args:
        program: gives it.
        identity: as for `load_cuda`; None: the program tells it from others.
        dtype: float32 or float64.
        architecture: ``"sm_90"``, say.
        roles: as for `load_cuda`.

    Raises:
        CompilerError: NVRTC is missing or failed.
    """
    compiler = find_nvrtc()
    depends_on = identity or program_digest(program())
    name = cache_key(_GENERATOR, depends_on, dtype, architecture, compiler.version, roles)
    found = read_cached(f"{name}.cubin")
    if found is not None:
        return found
    with locked(cache_directory() / f"{name}.lock"):
        found = read_cached(f"{name}.cubin")
        if found is None:
            text = emit_cuda(cuda_plan(program()), bits=BITS[dtype], roles=roles)
            found = compiler.compile(text, architecture)
            write_cached(f"{name}.cubin", found)
    return found


class CudaKernel:
    """One program in one dtype on one device: one launch a call, on the current stream.

    Attributes:
        inputs: the input ports.
        outputs: the output ports.
        dtype: float32 or float64.
    """

    def __init__(
        self, inputs: Sequence[Port], outputs: Sequence[Port], dtype: torch.dtype, launch: Launch
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.dtype = dtype
        self._launch = launch

    def __call__(
        self, inputs: Sequence[Tensor], summed: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """Run the program on a batch; arguments and results as for `torchsko.fused.calls.kernel.Kernel`."""
        batch = common_batch(self.inputs, self.dtype, inputs[0].device.type, inputs)
        held, arguments = [], []
        for x, port in zip(inputs, self.inputs, strict=True):
            x, stride = rows(x, port.shape, x.dim() - len(port.shape), batch)
            held.append(x)  # the kernel reads its memory
            arguments += [x, stride]
        results = [inputs[0].new_empty((*batch, *p.shape)) for p in self.outputs]
        if prod(batch) > 0:
            self._launch(prod(batch), [*arguments, *results])
        if summed is not None:
            dims = tuple(range(len(batch)))
            pairs = zip(results, summed, strict=True)
            results = [y.sum(dims) if flag and batch else y for y, flag in pairs]
        return tuple(results)


class CudaScan:
    """So many steps of a program in one launch; see `torchsko.fused.functions.scan.ScanFunction`.

    Attributes:
        inputs: the ports of the state, of series, and of what stays.
        outputs: the ports of the state or its series, of series, and of sums.
        dtype: float32 or float64.
    """

    def __init__(
        self,
        launch: Launch,
        roles: Roles,
        dtype: torch.dtype,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        times: tuple[int, int, bool],
    ) -> None:
        self.inputs, self.outputs, self.dtype = tuple(inputs), tuple(outputs), dtype
        self._launch, self._roles = launch, roles
        self._head = list(map(int, times))  # steps, every, backward

    def __call__(
        self, inputs: Sequence[Tensor], summed: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """Run all steps on a batch; see `torchsko.fused.calls.scan_kernel.ScanKernel`."""
        batch = common_batch(self.inputs, self.dtype, inputs[0].device.type, inputs)
        held, arguments = [], []
        for k, (x, port) in enumerate(zip(inputs, self.inputs, strict=True)):
            x, stride, step = step_rows(k, x, port, batch, self._roles, self._head[0])
            held.append(x)  # the kernel reads its memory
            arguments += [x, stride, step]
        results = [inputs[0].new_empty((*batch, *p.shape)) for p in self.outputs]
        if prod(batch) > 0:
            self._launch(prod(batch), [*self._head, *arguments, *results])
        return tuple(results)
