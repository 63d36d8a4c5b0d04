"""Compiled programs as functions of tensors on an NVIDIA GPU, one launch for each call."""

from __future__ import annotations

import ctypes
import struct
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
from torchsko.fused.calls.kernel import common_batch, input_rows
from torchsko.fused.calls.scan_kernel import step_rows
from torchsko.fused.emit.cpp import ENTRY
from torchsko.fused.emit.cuda import WARP, cuda_plan, emit_cuda
from torchsko.fused.program.program import Port, Program
from torchsko.implicit.loop_roles import LoopRoles

_GENERATOR = (
    *WRITERS,
    "emit/native/lane.cuh",
    "emit/native/dense.hpp",
    "emit/native/active_rows.hpp",
)

Launch = Callable[[int, Sequence[int]], None]
"""Runs a kernel, from the number of samples and the other arguments: addresses and integers."""

_BUFFER, _BUFFER_SIZE = 1, 2
"""Options of CUDA's `cuLaunchKernel` by which all arguments are passed in one buffer."""


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
    index = torch.cuda.current_device() if device.index is None else device.index
    threads, run = threading.local(), cuda_launcher(kernel)

    def launch(samples: int, arguments: Sequence[int]) -> None:
        try:
            if not getattr(threads, "has_context", False):
                with torch.cuda.device(index):
                    _make_context_current()
                threads.has_context = True
            if torch.cuda.current_device() == index:
                run(index, samples, arguments)
            else:
                with torch.cuda.device(index):
                    run(index, samples, arguments)
        except RuntimeError as error:
            raise LaunchError(
                f"a fused kernel could not be launched on {device}: {error}",
                "The device may lack memory for the scratch of all of its threads.",
                "Pass fewer samples at a time, or use the eager functions.",
            ) from error

    return launch


def cuda_launcher(kernel: Any) -> Callable[[int, int, Sequence[int]], None]:
    """A function of the index of the current device, of the number of samples and of the other arguments.

    The call of PyTorch's kernel object opens the library of the driver at each launch.
    """
    launch = torch.cuda._utils._get_gpu_runtime_library().cuLaunchKernel

    def run(index: int, samples: int, arguments: Sequence[int]) -> None:
        content = struct.pack(f"@{1 + len(arguments)}q", samples, *arguments)
        buffer, size = ctypes.c_char_p(content), ctypes.c_size_t(len(content))
        address = ctypes.cast(buffer, ctypes.c_void_p).value
        extra = (_BUFFER, address, _BUFFER_SIZE, ctypes.addressof(size), None)
        extra = (ctypes.c_void_p * len(extra))(*extra)
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(index))
        blocks = -(-samples // WARP)
        result = launch(kernel.func, blocks, 1, 1, WARP, 1, 1, 0, stream, None, extra)
        torch.cuda._utils._check_cuda(result)

    return run


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
        self._shapes = tuple((p.shape, len(p.shape), p.size) for p in self.inputs)

    def __call__(
        self, inputs: Sequence[Tensor], summed: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """Apply the program to a batch; arguments and results as for `torchsko.fused.calls.kernel.Kernel`."""
        device = inputs[0].device
        batch, words, _alive = input_rows(inputs, self.inputs, self._shapes, self.dtype, device)
        total, flags = prod(batch), summed or (False,) * len(self.outputs)
        results = []
        for port, flag in zip(self.outputs, flags, strict=True):
            lead = (-(-total // WARP),) if flag else batch
            results.append(inputs[0].new_empty((*lead, *port.shape)))
            words += (results[-1].data_ptr(), flag)
        if total > 0:
            self._launch(total, words)
        return tuple(y.sum(0) if flag else y for y, flag in zip(results, flags, strict=True))


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
            arguments += [x.data_ptr(), stride, step]
        results = [inputs[0].new_empty((*batch, *p.shape)) for p in self.outputs]
        if prod(batch) > 0:
            addresses = [y.data_ptr() for y in results]
            self._launch(prod(batch), [*self._head, *arguments, *addresses])
        return tuple(results)
