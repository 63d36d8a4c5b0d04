"""Print a scheduled program as C++: one vector of samples per value, one function per chunk.

The text consists of value numbers, hexadecimal constants and the fixed files of ``native/``. It
never contains text of a user, such as the names of joints. Every chunk is a function
``c<k>(in, out, s)`` of the input vectors, the output vectors and the scratch slots. The driver
(``native/driver.hpp``, for scans ``native/scan.hpp``) transposes batch-first rows into such vectors and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import accumulate, pairwise

from torchsko.errors import FusedError
from torchsko.fused.emit.literals import literal
from torchsko.fused.emit.loop_source import PARAMETERS, loop_functions
from torchsko.fused.emit.statements import chunk_lines
from torchsko.fused.layout.driver_passes import ResultVectors, defer_scaling, precompute_sincos
from torchsko.fused.layout.schedule import Schedule, schedule
from torchsko.fused.layout.tuning import tuning_for
from torchsko.fused.program.program import BINARY, TERNARY, UNARY, Program
from torchsko.implicit.loop_roles import LoopRoles

ENTRY = "torchsko_kernel"
"""Exported name of a kernel."""

_KNOWN = frozenset(("const", "input", "loop", "part", *UNARY, *BINARY, *TERNARY))

# Times of operations, in additions, to size blocks of work and to decide on the number of threads.
_COST = {
    "div": 8,
    "recip": 8,
    "sqrt": 10,
    "sin": 20,
    "cos": 20,
    "exp": 20,
    "expm1": 20,
    "tanh": 30,
    "log": 25,
} | {name: 100 for name in "pow atan2 fmod tan atan asin acos log1p erf sinh cosh".split()}
_MIN_UNIT_STATEMENTS = 1500
"""Fewest statements of a translation unit, if there are several."""


def cost(program: Program) -> int:
    """Time of a program for one vector of samples, in additions."""
    if program.block is not None:
        return program.block.cost
    straight = sum(
        _COST.get(op, 1) for op, _ in program.code if op not in ("const", "input", "part")
    )
    return straight + sum(loop.count * cost(loop.program) for loop in program.loops)


def plan(program: Program, vector_bytes: int, roles: LoopRoles | None = None) -> Schedule:
    """The schedule of a program for `emit_cpp`; ``roles`` are those of the ports of a scan step."""
    tuning = tuning_for(vector_bytes, is_scan=roles is not None)
    program, factors = (program, {}) if roles is not None else defer_scaling(program)
    program, angles = precompute_sincos(program)
    is_small = program.num_flops <= tuning.max_single_ops
    max_ops = tuning.max_single_ops if is_small else tuning.max_function_ops
    scheduled = schedule(program, max_ops)
    return replace(scheduled, sincos_inputs=angles, result_factors=factors)


def refuse_unknown(program: Program) -> None:
    """Refuse programs with unknown instructions.

    Raises:
        FusedError: an instruction is not one of `torchsko.fused.program.program`.
    """
    for loop in program.loops:
        refuse_unknown(loop.program)
    unknown = sorted({op for op, _ in program.code} - _KNOWN)
    if unknown:
        raise FusedError(
            f"the program contains the unknown instructions {unknown}.",
            advice="Use the instructions listed in torchsko.fused.program.program.",
        )


def emit_cpp(
    scheduled: Schedule,
    *,
    bits: int,
    vector_bytes: int,
    max_units: int = 1,
    roles: LoopRoles | None = None,
) -> list[str]:
    """The C++ source of a kernel.

    Args:
        scheduled: the schedule, from `plan`.
        bits: 64 for float64, 32 for float32.
        vector_bytes: width of the vectors, 16, 32 or 64.
        max_units: number of translation units that can be compiled at a time.
        roles: roles of the ports, if the program is the step of a scan.

    Returns:
        Translation units, to be compiled separately and linked; the first contains the entry. Small
        programs have one unit.

    Raises:
        FusedError: an instruction is not one of `torchsko.fused.program.program`.
    """
    program = scheduled.program
    refuse_unknown(program)
    prelude = _prelude(bits, vector_bytes) + helper_functions(program)
    results = ResultVectors.of(scheduled) if roles is None else ResultVectors.in_order(program)
    functions = [*loop_functions(scheduled, bits, "", chunk_lines)]
    for k, chunk in enumerate(map(results.of_chunk, scheduled.chunks)):
        statements = chunk_lines(scheduled, chunk, bits)
        functions.append((f"void c{k}({PARAMETERS})", [*statements]))
    length = sum(len(statements) for _, statements in functions)
    parts = _in_equal_parts(functions, max(1, min(max_units, length // _MIN_UNIT_STATEMENTS)))
    linkage, declared = "static ", []
    if len(parts) > 1:
        linkage, declared = "", [f"{head};" for head, _ in functions]
    units = []
    for part in parts:
        lines = [prelude, *declared]
        for head, statements in part:
            lines += [f"{linkage}{head} {{", *statements, "}"]
        units.append("\n".join(lines) + "\n")
    units[0] += _driver(scheduled, vector_bytes, bits, results, roles)
    return units


def helper_functions(program: Program) -> str:
    """The text of the functions for dense operations and for skipped iterations, if a program has any."""
    programs = program.distinct_programs()
    has_blocks = any(inner.block is not None for inner in programs)
    has_guards = any(loop.guarded for inner in programs for loop in inner.loops)
    return native("dense.hpp") * has_blocks + native("active_rows.hpp") * has_guards


def native(name: str) -> str:
    """The text of one of the fixed files of ``native/``."""
    return (files("torchsko.fused.emit") / "native" / name).read_text(encoding="ascii")


def _prelude(bits: int, vector_bytes: int) -> str:
    scalar, integer = ("double", "long long") if bits == 64 else ("float", "int")
    return (
        f"typedef {scalar} T;\ntypedef {integer} I;\n"
        f"#define T_BITS {bits}\n#define BYTES {vector_bytes}\n{native('vector.hpp')}"
    )


FunctionText = tuple[str, list[str]]
"""Head and statements of a function."""


def _in_equal_parts(functions: Sequence[FunctionText], num_parts: int) -> list[list[FunctionText]]:
    """Nonempty parts with about the same number of statements."""
    ends = [0, *accumulate(len(statements) for _, statements in functions)]
    targets = [ends[-1] * k / num_parts for k in range(1, num_parts)]
    bounds = [min(range(len(ends)), key=lambda k: abs(ends[k] - target)) for target in targets]
    parts = pairwise([0, *bounds, len(functions)])
    return [[*functions[start:stop]] for start, stop in parts if start < stop]


def _shuffles(width: int, part: int) -> dict[str, str]:
    """Lane permutations of `transpose`, for vectors of one or two parts."""
    lanes, half = range(width), part // 2
    permutations = {
        "LOW": [x for k in lanes if k % part < half for x in (k, k + width)],
        "HIGH": [x for k in lanes if k % part >= half for x in (k, k + width)],
    }
    if part < width:
        permutations |= {
            "FRONT": [*lanes[:part], *range(width, width + part)],
            "BACK": [*lanes[part:], *range(width + part, 2 * width)],
        }
    return {"PART": str(part)} | {name: ", ".join(map(str, x)) for name, x in permutations.items()}


def _driver(
    scheduled: Schedule,
    vector_bytes: int,
    bits: int,
    results: ResultVectors,
    roles: LoopRoles | None,
) -> str:
    program, width = scheduled.program, vector_bytes * 8 // bits
    inputs = [port.size for port in program.inputs]
    if scheduled.sincos_inputs:
        del inputs[-1]
    outputs = [port.size for port in program.outputs]
    defines = {
        "ENTRY": ENTRY,
        "NUM_IN": sum(inputs),
        "NUM_OUT": len(program.results),
        "NUM_IN_PORTS": len(inputs),
        "NUM_OUT_PORTS": len(outputs),
        "NUM_SLOTS": scheduled.num_slots,
        "NUM_ANGLES": len(scheduled.sincos_inputs),
        "COST": max(
            1, cost(program) + len(scheduled.sincos_inputs) * (_COST["sin"] + _COST["cos"])
        ),
    } | _shuffles(width, width // 2 if vector_bytes == 32 else width)
    if roles is not None:
        defines |= _role_sizes(roles, inputs, outputs)
    else:
        read = sum(inputs) + 2 * len(scheduled.sincos_inputs)
        tile_vectors = read + results.num_vectors + scheduled.num_slots
        tiles = tuning_for(vector_bytes).num_tiles(tile_vectors, vector_bytes)
        defines |= {"NUM_READ": read, "TILE_VECTORS": tile_vectors, "TILES": tiles}
    constants = results.constants
    in_order = not results.factors and list(results.vectors) == list(range(len(program.results)))
    defines |= {
        "NUM_CONSTANT": len(constants),
        "NUM_RESULT_VECTORS": results.num_vectors,
        "IN_ORDER": int(in_order),
        "SCALED": int(bool(results.factors)),
    }
    lines = [f"#define {name} {value}" for name, value in defines.items()]
    texts = ", ".join([literal(x, bits) for x in (*constants.values(), 0.0)])
    lines.append(f"static const T CONSTANT[] = {{{texts}}};")
    tables = {
        "CONSTANT_AT": constants,
        "ANGLES": scheduled.sincos_inputs,
        "ZERO": results.zero_blocks(width),
        "RESULT_AT": () if in_order else results.vectors,
        "FACTOR_AT": results.factors,
    }
    tables |= {"IN_SIZE": inputs, "OUT_SIZE": outputs, "IS_READ": _read_ports(scheduled)}
    # The trailing 0 is needed because C++ has no empty array.
    for name, entries in tables.items():
        lines.append(f"static constexpr int {name}[] = {{{', '.join(map(str, [*entries, 0]))}}};")
    lines += _calls(scheduled, by_tile=roles is None)
    loop = native("driver.hpp" if roles is None else "scan.hpp")
    return "\n".join(lines) + "\n" + native("rows.hpp") + loop


def _calls(scheduled: Schedule, *, by_tile: bool) -> list[str]:
    """The function that runs all chunks, for one vector of samples or, by tile, each for several vectors."""
    calls = [f"c{k}(in, out, s);" for k in range(len(scheduled.chunks))]
    lines = []
    if scheduled.sincos_inputs:
        calls.insert(0, "angles_of(in);")
        lines += [
            "static void angles_of(V* in) {",
            "  V* angle = in + NUM_IN;",
            "  for (int k = 0; k < NUM_ANGLES; ++k, angle += 2)",
            "    sincos_of(in[ANGLES[k]], angle, angle + 1);",
            "}",
        ]
    if not by_tile:
        return [*lines, "INLINE void run_tile(V* in, V* out, V* s) {", *calls, "}"]
    lines.append("INLINE void run_tiles(V* tiles, int count) {")
    for call in calls:
        lines += [
            "  for (int t = 0; t < count; ++t) {",
            "    V *in = tiles + t * TILE_VECTORS, *out = in + NUM_READ, *s = out + NUM_RESULT_VECTORS;",
            f"    {call}",
            "  }",
        ]
    return [*lines, "}"]


def _read_ports(scheduled: Schedule) -> list[int]:
    """1 for each input port that is read, else 0; gradients do not read all of their inputs."""
    code = scheduled.program.code
    values = {*scheduled.program.results, *scheduled.result_factors.values()}
    values.update(x for value in range(len(code)) for x in scheduled.program.operands(value))
    read = {*scheduled.sincos_inputs, *(code[x].args[0] for x in values if code[x].op == "input")}
    ends = [0, *accumulate(port.size for port in scheduled.program.inputs)]
    return [int(not read.isdisjoint(range(*bounds))) for bounds in pairwise(ends)]


def _role_sizes(roles: LoopRoles, inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, int]:
    """The macros of `native/scan.hpp` that describe the roles of the ports."""
    stream = inputs[roles.carry :][: roles.stream]
    stacked, summed = (
        outputs[roles.carry :][: roles.stacked],
        outputs[len(outputs) - roles.summed :],
    )
    ports = {"CARRY": inputs[: roles.carry], "STREAM": stream, "STACKED": stacked, "SUMMED": summed}
    return {f"{name}_PORTS": len(sizes) for name, sizes in ports.items()} | {
        name: sum(sizes) for name, sizes in ports.items()
    }
