"""Print a scheduled program as CUDA, one sample a lane, and run it.

The statements are those of the C++ generator, with scalars for vectors. A program whose chunks are
inlined keeps its values in registers as far as they go; the largest keep their chunks as functions,
which bounds the time of the compiler, and pass values through local memory. NVRTC, which comes with
PyTorch's CUDA builds, compiles at run time; no toolkit is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from torchsko.errors import CompilerError
from torchsko.fused.cpp import ENTRY, chunk_lines, native, refuse_unknown
from torchsko.fused.kernel import common_batch, rows
from torchsko.fused.loop_source import loop_functions
from torchsko.fused.program import Program
from torchsko.fused.schedule import Schedule, schedule

_THREADS = 128
# Read off the machine code for sm_90: fewer accesses to local memory than with smaller bounds, and no
# longer to compile; a humanoid's forward dynamics, inlined, has a fifth of those of 500-operation calls.
_FUNCTION_OPS = 4000
_INLINED_OPS = 12_000
_PARAMETERS = "In in, Out out, V* __restrict__ s"


def emit_cuda(plan: Schedule, *, bits: int) -> str:
    """The CUDA source of a kernel.

    Args:
        plan: the program, ordered and cut.
        bits: 64 for float64, 32 for float32.

    Returns:
        One translation unit, which defines the kernel ``torchsko_kernel(batch, data of input 0, its
        stride in scalars, ..., data of output 0, ...)``.

    Raises:
        FusedError: an instruction that is none of `torchsko.fused.program`.
    """
    program = plan.program
    refuse_unknown(program)
    inline = "__forceinline__" if len(plan.order) <= _INLINED_OPS else "__noinline__"
    lines = [f"typedef {'double' if bits == 64 else 'float'} T;", f"#define T_BITS {bits}"]
    lines.append(native("lane.cuh"))
    lines.extend(_accessor("In", "const T*", "T", [p.size for p in program.inputs]))
    lines.extend(_accessor("Out", "T*", "T&", [p.size for p in program.outputs]))
    lines.extend(loop_functions(plan, bits, "static __device__ __noinline__", "", chunk_lines))
    for k, chunk in enumerate(plan.chunks):
        lines.append(f"static __device__ {inline} void c{k}({_PARAMETERS}) {{")
        lines.extend(chunk_lines(plan, chunk, bits))
        lines.append("}")
    lines.extend(_entry(plan))
    return "\n".join(lines) + "\n"


def _accessor(name: str, pointer: str, element: str, sizes: Sequence[int]) -> list[str]:
    """A type whose ``[k]`` is scalar k of all ports; every k in the source is a constant."""
    lines = [f"struct {name} {{"]
    lines.extend(f"  {pointer} p{k};" for k in range(len(sizes)))
    lines.append(f"  __device__ __forceinline__ {element} operator[](int k) const {{")
    start = 0
    for k, size in enumerate(sizes):
        lines.append(f"    if (k < {start + size}) return p{k}[k - {start}];")
        start += size
    lines.append(f"    return p{len(sizes) - 1}[0];")
    return [*lines, "  }", "};"]


def _entry(plan: Schedule) -> list[str]:
    program = plan.program
    num_in, num_out = len(program.inputs), len(program.outputs)
    inputs = [f"const T* __restrict__ i{k}, int n{k}" for k in range(num_in)]
    outputs = [f"T* __restrict__ o{k}" for k in range(num_out)]
    rows_in = ", ".join(f"i{k} + n{k} * sample" for k in range(num_in))
    rows_out = ", ".join(f"o{k} + {port.size} * sample" for k, port in enumerate(program.outputs))
    return [
        f'extern "C" __global__ void {ENTRY}(int batch, {", ".join([*inputs, *outputs])}) {{',
        "  const long long sample = blockIdx.x * (long long)blockDim.x + threadIdx.x;",
        "  if (sample >= batch) return;",
        f"  const In in = {{{rows_in}}};",
        f"  const Out out = {{{rows_out}}};",
        f"  V s[{max(1, plan.num_slots)}];",
        *(f"  c{k}(in, out, s);" for k in range(len(plan.chunks))),
        "}",
    ]


def build_cuda_kernel(program: Program, dtype: torch.dtype, device: torch.device) -> CudaKernel:
    """Compile a program for a device.

    Args:
        program: the program.
        dtype: float32 or float64.
        device: where it is to run.

    Raises:
        CompilerError: NVRTC is missing or failed.
    """
    source = emit_cuda(schedule(program, _FUNCTION_OPS), bits=64 if dtype == torch.float64 else 32)
    try:
        with torch.cuda.device(device):
            launch = torch.cuda._compile_kernel(source, ENTRY)
    except (AttributeError, OSError, RuntimeError) as error:
        raise CompilerError(
            f"NVRTC could not compile a fused kernel for {device}: {error}\n"
            "It comes with PyTorch's CUDA builds.\nInstall one, or use the eager functions."
        ) from error
    return CudaKernel(program, dtype, launch)


class CudaKernel:
    """One program in one dtype on one device: one launch a call, on the current stream.

    Attributes:
        program: the program.
        dtype: float32 or float64.
    """

    def __init__(self, program: Program, dtype: torch.dtype, launch: Callable[..., None]) -> None:
        self.program = program
        self.dtype = dtype
        self._launch = launch

    def __call__(
        self, inputs: Sequence[Tensor], summed: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """Run the program on a batch; arguments and results as for `torchsko.fused.kernel.Kernel`."""
        batch = common_batch(self.program.inputs, self.dtype, "cuda", inputs)
        total = prod(batch)
        held, arguments = [], [total]
        for x, port in zip(inputs, self.program.inputs, strict=True):
            x, stride = rows(x, port.shape, x.dim() - len(port.shape), batch)
            held.append(x)  # the kernel reads its memory
            arguments += [x, stride]
        results = [inputs[0].new_empty((*batch, *p.shape)) for p in self.program.outputs]
        if total > 0:
            with torch.cuda.device(inputs[0].device):
                grid = (-(-total // _THREADS), 1, 1)
                self._launch(grid=grid, block=(_THREADS, 1, 1), args=[*arguments, *results])
        if summed is not None:
            dims = tuple(range(len(batch)))
            pairs = zip(results, summed, strict=True)
            results = [y.sum(dims) if flag and batch else y for y, flag in pairs]
        return tuple(results)
