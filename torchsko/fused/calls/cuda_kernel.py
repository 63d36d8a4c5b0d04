"""Compiled programs as functions of tensors on an NVIDIA GPU, one launch for each call."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import CompilerError, FusedError
from torchsko.fused.build.file_lock import locked
from torchsko.fused.build.kernel_library import BITS, WRITERS, cache_key, program_digest
from torchsko.fused.build.library_cache import cache_directory, read_cached, write_cached
from torchsko.fused.build.nvrtc import find_nvrtc
from torchsko.fused.calls.kernel import common_batch, rows
from torchsko.fused.calls.scan_kernel import step_rows
from torchsko.fused.emit.cpp import ENTRY
from torchsko.fused.emit.cuda import cuda_plan, emit_cuda
from torchsko.fused.program.program import Port, Program
from torchsko.implicit.loop_roles import LoopRoles

_GENERATOR = (*WRITERS, "emit/cuda.py", "emit/native/lane.cuh", "emit/native/dense.hpp")

_WARP, _BLOCK = 32, 128

_MIN_WARPS = 16
"""Warps for each multiprocessor from which blocks have several warps."""

Launch = Callable[[int, Sequence[Tensor | int]], None]
"""Runs a kernel, from the number of samples and the other arguments."""


class LaunchError(FusedError):
    """The driver refused to launch a kernel."""


def _make_context_current() -> None:
    """Make PyTorch's context current in this thread, as functions of the driver require."""
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().query()


def load_cuda(
    program: Callable[[], Program],
    identity: str | None,
    dtype: torch.dtype,
    device: torch.device,
    roles: LoopRoles | None = None,
) -> Launch:
    """Load the kernel of a program on a device, compiled or from the disk cache.

    Args:
        program: makes the program.
        identity: a digest of everything that the program depends on, by which the kernel is found
            without tracing.
        dtype: float32 or float64.
        device: the device.
        roles: roles of the ports, if the program is the step of a scan.

    Raises:
        CompilerError: NVRTC is not installed or failed, or the driver refused the module.
    """
    try:
        with torch.cuda.device(device):
            major, minor = torch.cuda.get_device_capability()
            module = cubin(program, identity, dtype, f"sm_{major}{minor}", roles)
            # PyTorch's loader, which uses PyTorch's CUDA context.
            kernel = getattr(torch.cuda._utils._cuda_load_module(module), ENTRY)
    except CompilerError:
        raise
    except (AttributeError, OSError, RuntimeError) as error:
        raise CompilerError(
            f"a fused kernel could not be loaded on {device}: {error}",
            "The driver may be older than the CUDA version of PyTorch.",
            "Update the driver, or use the eager functions.",
        ) from error
    count = torch.cuda.get_device_properties(device).multi_processor_count
    threads, run = threading.local(), cuda_launcher(kernel)

    def launch(samples: int, arguments: Sequence[Tensor | int]) -> None:
        size = block_size(samples, count)
        try:
            with torch.cuda.device(device):
                if not getattr(threads, "has_context", False):
                    _make_context_current()
                    threads.has_context = True
                run(-(-samples // size), size, [samples, *arguments])
        except RuntimeError as error:
            raise LaunchError(
                f"a fused kernel could not be launched on {device}: {error}",
                "The device may lack memory for the scratch of all of its threads.",
                "Pass fewer samples at a time, or use the eager functions.",
            ) from error

    return launch


def cuda_launcher(kernel: Any) -> Callable[[int, int, Sequence[Tensor | int]], None]:
    """A function of the numbers of blocks and of threads of a block, and of the arguments of a kernel.

    The call of PyTorch's kernel object opens the library of the driver at each launch.
    """
    launch = torch.cuda._utils._get_gpu_runtime_library().cuLaunchKernel

    def run(blocks: int, size: int, arguments: Sequence[Tensor | int]) -> None:
        values = [
            ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else ctypes.c_int(x)
            for x in arguments
        ]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = torch.cuda.current_stream()._as_parameter_
        result = launch(kernel.func, blocks, 1, 1, size, 1, 1, 0, stream, addresses, None)
        torch.cuda._utils._check_cuda(result)

    return run


def block_size(samples: int, multiprocessors: int) -> int:
    """Threads of a block: one warp if the samples are too few to fill the multiprocessors."""
    return _WARP if samples <= _MIN_WARPS * _WARP * multiprocessors else _BLOCK


def cubin(
    program: Callable[[], Program],
    identity: str | None,
    dtype: torch.dtype,
    architecture: str,
    roles: LoopRoles | None = None,
) -> bytes:
    """Machine code of a program, from the disk cache or compiled once for all processes that request it.

    Args:
        program: makes the program.
        identity: a digest as for `load_cuda`; by default that of the program.
        dtype: float32 or float64.
        architecture: for example ``"sm_90"``.
        roles: roles of the ports, if the program is the step of a scan.

    Raises:
        CompilerError: NVRTC is not installed or failed.
    """
    compiler = find_nvrtc()
    depends_on = identity or program_digest(program())
    name = cache_key(_GENERATOR, depends_on, dtype, architecture, compiler.version, roles)
    code = read_cached(f"{name}.cubin")
    if code is not None:
        return code
    with locked(cache_directory() / f"{name}.lock"):
        code = read_cached(f"{name}.cubin")
        if code is None:
            text = emit_cuda(cuda_plan(program()), bits=BITS[dtype], roles=roles)
            code = compiler.compile(text, architecture)
            write_cached(f"{name}.cubin", code)
    return code


class CudaKernel:
    """A compiled program of one dtype on one device; a call is one launch on the current stream.

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
        """Apply the program to a batch; arguments and results as for `torchsko.fused.calls.kernel.Kernel`."""
        batch = common_batch(self.inputs, self.dtype, inputs[0].device, inputs)
        alive, arguments = [], []
        for x, port in zip(inputs, self.inputs, strict=True):
            x, stride = rows(x, port.shape, x.dim() - len(port.shape), batch)
            alive.append(x)  # the kernel reads its memory
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
    """A scan with a fixed number of steps, in one launch; see `torchsko.fused.functions.scan.ScanFunction`.

    Attributes:
        inputs: ports of the state, the streamed and the invariant inputs.
        outputs: ports of the last state or the states, the stacked and the summed outputs.
        dtype: float32 or float64.
    """

    def __init__(
        self,
        launch: Launch,
        roles: LoopRoles,
        dtype: torch.dtype,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        steps_every_reverse: tuple[int, int, bool],
    ) -> None:
        self.inputs, self.outputs, self.dtype = tuple(inputs), tuple(outputs), dtype
        self._launch, self._roles = launch, roles
        self._head = list(map(int, steps_every_reverse))

    def __call__(
        self, inputs: Sequence[Tensor], summed: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """Apply all steps to a batch; see `torchsko.fused.calls.scan_kernel.ScanKernel`."""
        batch = common_batch(self.inputs, self.dtype, inputs[0].device, inputs)
        alive, arguments = [], []
        for k, (x, port) in enumerate(zip(inputs, self.inputs, strict=True)):
            x, stride, step = step_rows(k, x, port, batch, self._roles, self._head[0])
            alive.append(x)  # the kernel reads its memory
            arguments += [x, stride, step]
        results = [inputs[0].new_empty((*batch, *p.shape)) for p in self.outputs]
        if prod(batch) > 0:
            self._launch(prod(batch), [*self._head, *arguments, *results])
        return tuple(results)
