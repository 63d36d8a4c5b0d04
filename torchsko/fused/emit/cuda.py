"""Print a scheduled program as CUDA, one sample per thread and one warp per block.

The statements are those of the C++ generator, with scalars in place of vectors. Chunks are inlined
and keep their values in registers if there are enough. The largest programs keep chunks as
functions, which bounds the compile time, and pass values through local memory. In a scan the state
stays in registers or local memory from the first step to the last. The threads of a warp read and write
the rows of their samples together, through tiles of shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchsko.fused.emit.cpp import ENTRY, helper_functions, native, refuse_unknown
from torchsko.fused.emit.loop_source import loop_functions
from torchsko.fused.emit.statements import chunk_lines
from torchsko.fused.layout.schedule import Schedule, schedule
from torchsko.fused.program.program import Port, Program
from torchsko.implicit.loop_roles import LoopRoles

_MAX_FUNCTION_OPS = 4000
_MAX_INLINED_OPS = {32: 12_000, 64: 8000}
"""Largest programs whose chunks are inlined, by the bits of a scalar, and largest chunks.

Measured on an H200: forward dynamics of a humanoid (10,200 operations) in float32 takes 3.5 ns a sample
inlined and 4.2 ns in three functions. In float64 the compiler runs out of registers at this size."""

_PARAMETERS = "In in, Out out, V* __restrict__ s"

WARP = 32
"""Threads of a block."""

_PITCH = WARP + 1  # as in native/lane.cuh

_TILE_BYTES = 2**15
"""Largest total size of the tiles of inputs, so that at least six warps fit on a multiprocessor."""


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
        in scalars, ..., data of output 0, whether it is summed, ...)``. A summed output has a row for each
        block, with the sums over the samples of the block. The kernel of a scan is
        ``torchsko_kernel(batch, steps, every, backward, data of input 0, its stride, its stride between
        steps, ..., data of output 0, ...)``; `torchsko.fused.functions.scan.Scan.of_length` describes
        ``every``. All arguments have 8 bytes.

    Raises:
        FusedError: an instruction is not one of `torchsko.fused.program.program`.
    """
    program = plan.program
    refuse_unknown(program)
    carry = 0 if roles is None else roles.carry
    tiles = _tiles(program.inputs, carry, _TILE_BYTES * 8 // bits)
    inline = "__forceinline__" if len(plan.order) <= _MAX_INLINED_OPS[bits] else "__noinline__"
    lines = [f"typedef {'double' if bits == 64 else 'float'} T;", f"#define T_BITS {bits}"]
    lines += [native("lane.cuh"), helper_functions(program)]
    sizes = [port.size for port in program.inputs]
    lines.extend(_accessor("In", "const T*", "T", sizes, tiles))
    lines.extend(_accessor("Out", "T*", "T&", [p.size for p in program.outputs], {}))
    for head, statements in loop_functions(plan, bits, "", chunk_lines):
        lines += [f"static __device__ __noinline__ {head} {{", *statements, "}"]
    for k, chunk in enumerate(plan.chunks):
        lines.append(f"static __device__ {inline} void c{k}({_PARAMETERS}) {{")
        lines.extend(chunk_lines(plan, chunk, bits))
        lines.append("}")
    lines.extend(_entry(plan, tiles) if roles is None else _scan(plan, roles, tiles))
    return "\n".join(lines) + "\n"


def _tiles(inputs: Sequence[Port], carry: int, max_scalars: int) -> dict[int, int]:
    """The inputs that are read through tiles, the smallest first, each with the row where its tile begins.

    Args:
        inputs: the input ports.
        carry: number of the first inputs, which are the state of a scan.
        max_scalars: largest number of scalars of all tiles.
    """
    rows, first = {}, 0
    for k in sorted(range(carry, len(inputs)), key=lambda k: inputs[k].size):
        if inputs[k].size and (first + inputs[k].size) * _PITCH <= max_scalars:
            rows[k] = first
            first += inputs[k].size
    return rows


def _accessor(
    name: str, pointer: str, element: str, sizes: Sequence[int], tiles: dict[int, int]
) -> list[str]:
    """A struct whose ``[k]`` is scalar k of all ports; every k in the source is a constant."""
    lines = [f"struct {name} {{"]
    lines.extend(f"  {pointer} p{k};" for k in range(len(sizes)))
    lines.append(f"  __device__ __forceinline__ {element} operator[](int k) const {{")
    start = 0
    for k, size in enumerate(sizes):
        pitch = " * PITCH" if k in tiles else ""
        lines.append(f"    if (k < {start + size}) return p{k}[(k - {start}){pitch}];")
        start += size
    lines.append(f"    return p{len(sizes) - 1}[0];")
    return [*lines, "  }", "};"]


def _entry(plan: Schedule, tiles: dict[int, int]) -> list[str]:
    inputs, outputs = plan.program.inputs, plan.program.outputs
    reads = [f"const T* __restrict__ i{k}, long long n{k}" for k in range(len(inputs))]
    writes = [f"T* __restrict__ o{k}, long long sum{k}" for k in range(len(outputs))]
    rows_in = [_row(k, tiles) for k in range(len(inputs))]
    arrays = ", ".join(f"y{k}" for k in range(len(outputs)))
    return [
        _head(", ".join(["long long batch", *reads, *writes])),
        *_samples(inputs, tiles),
        *(_read(k, port, f"i{k} + n{k} * first", tiles) for k, port in enumerate(inputs)),
        *(f"  T y{k}[{max(1, port.size)}];" for k, port in enumerate(outputs)),
        f"  const In in = {{{', '.join(rows_in)}}};",
        f"  const Out out = {{{arrays}}};",
        *_run(plan),
        *(
            _write(f"y{k}", port.size, f"o{k} + {port.size} * (sum{k} ? blockIdx.x : first)",
                   str(port.size), f"sum{k}")
            for k, port in enumerate(outputs)
        ),
        "}",
    ]  # fmt: skip


def _head(arguments: str) -> str:
    return f'extern "C" __global__ void __launch_bounds__(WARP) {ENTRY}({arguments}) {{'


def _samples(inputs: Sequence[Port], tiles: dict[int, int]) -> list[str]:
    """Shared memory, and the samples of the warp; threads without a sample repeat the last one."""
    scalars = _PITCH * (WARP + sum(inputs[k].size for k in tiles))
    return [
        f"  __shared__ T tile[{scalars}];",
        f"  T* const tiles = tile + {_PITCH * WARP};",
        "  const long long first = WARP * (long long)blockIdx.x;",
        "  const int count = batch - first < WARP ? batch - first : WARP;",
        "  const int thread = threadIdx.x, repeated = thread < count ? thread : count - 1;",
        "  const long long sample = first + repeated;",
    ]


def _row(k: int, tiles: dict[int, int], step: str = "") -> str:
    """The scalars of input k of the sample of a thread, in a tile or in memory."""
    if k in tiles:
        return f"tiles + {tiles[k]} * PITCH + thread"
    return f"i{k} + n{k} * sample{step}"


def _read(k: int, port: Port, rows: str, tiles: dict[int, int]) -> str:
    """Reads of input k into its tile, if it has one."""
    if k not in tiles:
        return ""
    return f"  read_rows<{port.size}>({rows}, n{k}, count, tiles + {tiles[k]} * PITCH);"


def _write(array: str, size: int, rows: str, stride: str, summed: str = "false") -> str:
    """Writes of an array of each thread to the rows of the samples."""
    if not size:
        return ""
    return f"  write_rows<{size}>({array}, {rows}, {stride}, count, {summed}, tile);"


def _run(plan: Schedule) -> Iterator[str]:
    """Calls of all chunks."""
    yield f"  V s[{max(1, plan.num_slots)}];"
    yield from (f"  c{k}(in, out, s);" for k in range(len(plan.chunks)))


class _ScanPorts(NamedTuple):
    """Ports of a step of a scan.

    Attributes:
        carry: inputs of the state, and outputs of the next state.
        series: inputs with a row for each step.
        stacked: outputs with a row for each step.
        summed: outputs that are summed over the steps.
    """

    carry: range
    series: range
    stacked: range
    summed: range

    @staticmethod
    def of(roles: LoopRoles) -> _ScanPorts:
        """The ports by their numbers."""
        first = roles.carry
        summed = range(first + roles.stacked, first + roles.stacked + roles.summed)
        series, stacked = range(first, first + roles.stream), range(first, summed.start)
        return _ScanPorts(range(first), series, stacked, summed)


def _scan(plan: Schedule, roles: LoopRoles, tiles: dict[int, int]) -> list[str]:
    """The kernel of a scan: ``x`` is the state, ``y`` the next state and the other outputs of a step."""
    inputs, outputs = plan.program.inputs, plan.program.outputs
    ports = _ScanPorts.of(roles)
    reads = [
        f"const T* __restrict__ i{k}, long long n{k}, long long m{k}" for k in range(len(inputs))
    ]
    writes = [f"T* __restrict__ o{k}" for k in range(len(outputs))]
    numbers = [f"long long {name}" for name in ("batch", "steps", "every", "backward")]
    constants = range(ports.series.stop, len(inputs))
    return [
        _head(", ".join([*numbers, *reads, *writes])),
        *_samples(inputs, tiles),
        "  const long long rows = every > 0 ? steps / every + 1 : 1, stride = every > 1 ? every : 1;",
        "  const long long taken = steps / stride;  // each row is written by its last step at last",
        *(f"  T x{k}[{max(1, inputs[k].size)}];" for k in ports.carry),
        *(f"  T y{k}[{max(1, port.size)}];" for k, port in enumerate(outputs)),
        *(f"  T total{k}[{max(1, outputs[k].size)}];" for k in ports.summed),
        *(_each(inputs[k].size, f"x{k}[i] = i{k}[n{k} * sample + i];") for k in ports.carry),
        *(_each(outputs[k].size, f"total{k}[i] = 0;") for k in ports.summed),
        *_reads_of_scan(plan, tiles, constants),
        "  if (every > 0) {",
        "    const long long row = backward ? rows - 1 : 0;",
        *_store_state(plan, ports, "row"),
        "  }",
        "#pragma unroll 1",
        "  for (int step = 0; step < steps; ++step) {",
        *_step_of_scan(plan, ports, tiles),
        "  }",
        "  if (every == 0) {",
        *_store_state(plan, ports, "0"),
        "  }",
        *(
            _write(f"total{k}", size, f"o{k} + {size} * first", str(size))
            for k, size in ((k, outputs[k].size) for k in ports.summed)
        ),
        "}",
    ]


def _step_of_scan(plan: Schedule, ports: _ScanPorts, tiles: dict[int, int]) -> list[str]:
    """One step, with the rows that it writes."""
    inputs, outputs = plan.program.inputs, plan.program.outputs
    rows_in = [
        f"x{k}" if k in ports.carry else _row(k, tiles, f" + m{k} * t" * (k in ports.series))
        for k in range(len(inputs))
    ]
    return [
        "    const long long t = backward ? steps - 1 - step : step;",
        *_reads_of_scan(plan, tiles, ports.series, " + m{} * t"),
        f"    const In in = {{{', '.join(rows_in)}}};",
        f"    const Out out = {{{', '.join(f'y{k}' for k in range(len(outputs)))}}};",
        *_run(plan),
        *(_each(inputs[k].size, f"x{k}[i] = y{k}[i];") for k in ports.carry),
        *(_each(outputs[k].size, f"total{k}[i] += y{k}[i];") for k in ports.summed),
        *(
            _write(
                f"y{k}", size, f"o{k} + {size} * (first * taken + t / stride)", f"{size} * taken"
            )
            for k, size in ((k, outputs[k].size) for k in ports.stacked)
        ),
        "    if (every > 0 && (step + 1) % every == 0) {",
        "      const long long done = (step + 1) / every, row = backward ? rows - 1 - done : done;",
        *_store_state(plan, ports, "row"),
        "    }",
    ]


def _reads_of_scan(
    plan: Schedule, tiles: dict[int, int], ports: range, step: str = ""
) -> Iterator[str]:
    """Read inputs of the samples, at a row of each step."""
    for k in ports:
        place = f"i{k} + n{k} * first{step.format(k)}"
        yield _read(k, plan.program.inputs[k], place, tiles)


def _store_state(plan: Schedule, ports: _ScanPorts, row: str) -> Iterator[str]:
    """Write the state into a row of its series."""
    for k in ports.carry:
        size = plan.program.inputs[k].size
        yield _write(f"x{k}", size, f"o{k} + {size} * (first * rows + {row})", f"{size} * rows")


def _each(size: int, statement: str) -> str:
    """A statement for each scalar of a port; the loop is unrolled, so that arrays can be registers."""
    return f"#pragma unroll\n    for (int i = 0; i < {size}; ++i) {statement}"
