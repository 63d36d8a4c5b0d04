"""Print a scheduled program as CUDA, one sample per thread.

The statements are those of the C++ generator, with scalars in place of vectors. Chunks are inlined
and keep their values in registers if there are enough. The largest programs keep chunks as
functions, which bounds the compile time, and pass values through local memory. In a scan the state
stays in registers or local memory from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsko.fused.emit.cpp import ENTRY, dense_source, native, refuse_unknown
from torchsko.fused.emit.loop_source import loop_functions
from torchsko.fused.emit.statements import chunk_lines
from torchsko.fused.layout.schedule import Schedule, schedule
from torchsko.fused.program.program import Program
from torchsko.implicit.loop_roles import LoopRoles

# Chosen from machine code for sm_90: smaller bounds cause more accesses to local memory and compile
# no faster. Forward dynamics of a humanoid, inlined, has a fifth of the accesses that functions of
# 500 operations have.
_MAX_FUNCTION_OPS = 4000
_MAX_INLINED_OPS = 12_000
_BOUNDS = "__launch_bounds__(128)"  # the block size of `torchsko.fused.calls.cuda_kernel`
_PARAMETERS = "In in, Out out, V* __restrict__ s"


def cuda_plan(program: Program) -> Schedule:
    """The schedule of a program for `emit_cuda`."""
    return schedule(program, _MAX_FUNCTION_OPS)


def emit_cuda(plan: Schedule, *, bits: int, roles: LoopRoles | None = None) -> str:
    """The CUDA source of a kernel.

    Args:
        plan: the schedule, from `cuda_plan`.
        bits: 64 for float64, 32 for float32.
        roles: roles of the ports, if the program is the step of a scan.

    Returns:
        One translation unit, which defines the kernel ``torchsko_kernel(batch, data of input 0, its stride
        in scalars, ..., data of output 0, ...)``. The kernel of a scan is ``torchsko_kernel(batch, steps,
        every, backward, data of input 0, its stride, its stride between steps, ..., data of output 0,
        ...)``; `torchsko.fused.functions.scan.Scan.of_length` describes ``every``.

    Raises:
        FusedError: an instruction is not one of `torchsko.fused.program.program`.
    """
    program = plan.program
    refuse_unknown(program)
    inline = "__forceinline__" if len(plan.order) <= _MAX_INLINED_OPS else "__noinline__"
    lines = [f"typedef {'double' if bits == 64 else 'float'} T;", f"#define T_BITS {bits}"]
    lines += [native("lane.cuh"), dense_source(program)]
    lines.extend(_accessor("In", "const T*", "T", [p.size for p in program.inputs]))
    lines.extend(_accessor("Out", "T*", "T&", [p.size for p in program.outputs]))
    for head, statements in loop_functions(plan, bits, "", chunk_lines):
        lines += [f"static __device__ __noinline__ {head} {{", *statements, "}"]
    for k, chunk in enumerate(plan.chunks):
        lines.append(f"static __device__ {inline} void c{k}({_PARAMETERS}) {{")
        lines.extend(chunk_lines(plan, chunk, bits))
        lines.append("}")
    lines.extend(_entry(plan) if roles is None else _scan(plan, roles))
    return "\n".join(lines) + "\n"


def _accessor(name: str, pointer: str, element: str, sizes: Sequence[int]) -> list[str]:
    """A struct whose ``[k]`` is scalar k of all ports; every k in the source is a constant."""
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
        f'extern "C" __global__ void {_BOUNDS} {ENTRY}(int batch, {", ".join([*inputs, *outputs])}) {{',
        *_SAMPLE,
        f"  const In in = {{{rows_in}}};",
        f"  const Out out = {{{rows_out}}};",
        *_run(plan),
        "}",
    ]


_SAMPLE = (
    "  const long long sample = blockIdx.x * (long long)blockDim.x + threadIdx.x;",
    "  if (sample >= batch) return;",
)


def _run(plan: Schedule) -> Iterator[str]:
    """Calls of all chunks."""
    yield f"  V s[{max(1, plan.num_slots)}];"
    yield from (f"  c{k}(in, out, s);" for k in range(len(plan.chunks)))


def _scan(plan: Schedule, roles: LoopRoles) -> list[str]:
    """The kernel of a scan: ``x`` is the state, ``y`` the next state, ``g`` the summed outputs of a step."""
    sizes_in = [port.size for port in plan.program.inputs]
    sizes_out = [port.size for port in plan.program.outputs]
    carry, series = range(roles.carry), range(roles.carry, roles.carry + roles.stream)
    stacked = range(roles.carry, roles.carry + roles.stacked)
    summed = range(stacked.stop, stacked.stop + roles.summed)
    reads = [f"const T* __restrict__ i{k}, int n{k}, int m{k}" for k in range(len(sizes_in))]
    writes = [f"T* __restrict__ o{k}" for k in range(len(sizes_out))]
    rows_in = [
        f"x{k}" if k in carry else f"i{k} + n{k} * sample" + f" + m{k} * t" * (k in series)
        for k in range(len(sizes_in))
    ]
    rows_out = [
        f"y{k}"
        if k in carry
        else f"g{k}"
        if k in summed
        else f"o{k} + {size} * (sample * taken + t / stride)"
        for k, size in enumerate(sizes_out)
    ]
    arguments = ", ".join(["int batch", "int steps", "int every", "int backward", *reads, *writes])

    def store_state(row: str) -> Iterator[str]:
        """Write the state into a row of its series."""
        for k in carry:
            target = f"o{k}[{sizes_in[k]} * (sample * rows + {row}) + i]"
            yield _each(sizes_in[k], f"{target} = x{k}[i];")

    return [
        f'extern "C" __global__ void {_BOUNDS} {ENTRY}({arguments}) {{',
        *_SAMPLE,
        "  const long long rows = every > 0 ? steps / every + 1 : 1, stride = every > 1 ? every : 1;",
        "  const long long taken = steps / stride;  // each row is written by its last step at last",
        *(f"  T x{k}[{max(1, sizes_in[k])}], y{k}[{max(1, sizes_in[k])}];" for k in carry),
        *(f"  T g{k}[{max(1, sizes_out[k])}], sum{k}[{max(1, sizes_out[k])}];" for k in summed),
        *(_each(sizes_in[k], f"x{k}[i] = i{k}[n{k} * sample + i];") for k in carry),
        *(_each(sizes_out[k], f"sum{k}[i] = 0;") for k in summed),
        "  if (every > 0) {",
        "    const long long row = backward ? rows - 1 : 0;",
        *store_state("row"),
        "  }",
        "#pragma unroll 1",
        "  for (int step = 0; step < steps; ++step) {",
        "    const long long t = backward ? steps - 1 - step : step;",
        f"    const In in = {{{', '.join(rows_in)}}};",
        f"    const Out out = {{{', '.join(rows_out)}}};",
        *_run(plan),
        *(_each(sizes_in[k], f"x{k}[i] = y{k}[i];") for k in carry),
        *(_each(sizes_out[k], f"sum{k}[i] += g{k}[i];") for k in summed),
        "    if (every > 0 && (step + 1) % every == 0) {",
        "      const long long done = (step + 1) / every, row = backward ? rows - 1 - done : done;",
        *store_state("row"),
        "    }",
        "  }",
        "  if (every == 0) {",
        *store_state("0"),
        "  }",
        *(_each(sizes_out[k], f"o{k}[{sizes_out[k]} * sample + i] = sum{k}[i];") for k in summed),
        "}",
    ]


def _each(size: int, statement: str) -> str:
    """A statement for each scalar of a port; the loop is unrolled, so that arrays can be registers."""
    return f"#pragma unroll\n    for (int i = 0; i < {size}; ++i) {statement}"
