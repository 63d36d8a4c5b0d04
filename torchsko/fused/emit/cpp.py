"""Print a scheduled program as C++: one vector of samples per value, one function per chunk.

The text is made of value numbers, constants in hexadecimal and the fixed files of ``native/``;
nothing that a user wrote (names of joints, of inputs) can reach it. Every chunk is a function
``c<k>(in, out, s)`` of the inputs' vectors, the outputs' vectors and the scratch slots; the driver
(``native/driver.hpp``; ``native/scan.hpp`` for programs that are steps) transposes batch-first rows into such
vectors and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from itertools import accumulate, pairwise

from torchsko.errors import FusedError
from torchsko.fused.emit.loop_source import PARAMETERS, loop_functions
from torchsko.fused.emit.statements import chunk_lines, lines_in_registers, literal
from torchsko.fused.layout.angles import with_angles
from torchsko.fused.layout.multiples import with_multiples
from torchsko.fused.layout.result_places import Places
from torchsko.fused.layout.schedule import Schedule, schedule
from torchsko.fused.layout.widths import layout_of
from torchsko.fused.program.program import BINARY, TERNARY, UNARY, Program
from torchsko.implicit.step_roles import Roles

ENTRY = "torchsko_kernel"

_KNOWN = frozenset(("const", "input", "loop", "part", *UNARY, *BINARY, *TERNARY))

# Costs in time of one addition, to size blocks of work and to decide whether threads pay.
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
_UNIT_OPS = 1500


def cost(program: Program) -> int:
    """Time of one vector of samples through a program, in additions."""
    own = sum(_COST.get(op, 1) for op, _ in program.code if op not in ("const", "input", "part"))
    return own + sum(loop.count * cost(loop.program) for loop in program.loops)


def plan(program: Program, vector_bytes: int, roles: Roles | None = None) -> Schedule:
    """The order and the cuts in which a program becomes C++; arguments as for `emit_cpp`."""
    layout = layout_of(vector_bytes, repeated=roles is not None)
    program, factors = (program, {}) if roles is not None else with_multiples(program)
    program, angles = with_angles(program)
    ops = program.num_flops
    max_ops = ops if ops <= layout.whole_ops else layout.function_ops
    cuts = schedule(program, max_ops, layout.sums)
    return replace(cuts, angles=angles, factors=factors)


def refuse_unknown(program: Program) -> None:
    """Refuse instructions that the generators have no rule for.

    Raises:
        FusedError: names them.
    """
    for loop in program.loops:
        refuse_unknown(loop.program)
    unknown = sorted({op for op, _ in program.code} - _KNOWN)
    if unknown:
        raise FusedError(
            f"the program contains {unknown}: the code generators have no rule for that.",
            "A misspelt operation would be a misspelt function.",
            "Use the instructions listed in torchsko.fused.program.program.",
        )


def emit_cpp(
    cuts: Schedule,
    *,
    bits: int,
    vector_bytes: int,
    max_units: int = 1,
    roles: Roles | None = None,
) -> list[str]:
    """The C++ source of a kernel.

    Args:
        cuts: the program, ordered and cut, as by `plan`.
        bits: 64 for float64, 32 for float32.
        vector_bytes: width of the vectors, 16, 32 or 64.
        max_units: number of translation units that can be compiled at a time.
        roles: of the ports, if the program is a step that the kernel repeats.

    Returns:
        Translation units, to be compiled separately and linked; the first has the entry. Small
        programs have one, whatever ``max_units`` says.

    Raises:
        FusedError: an instruction that is none of `torchsko.fused.program.program`.
    """
    program = cuts.program
    refuse_unknown(program)
    prelude = _prelude(bits, vector_bytes)
    places = Places.of(cuts) if roles is None else Places.in_order(program)
    lines_of = partial(lines_in_registers, registers=layout_of(vector_bytes).registers)
    functions = [*loop_functions(cuts, bits, "", lines_of)]
    for k, chunk in enumerate(map(places.of_chunk, cuts.chunks)):
        statements = chunk_lines(cuts, chunk, bits, constants=False)
        functions.append((f"void c{k}({PARAMETERS})", [*statements]))
    length = sum(len(statements) for _, statements in functions)
    groups = _in_equal_parts(functions, max(1, min(max_units, length // _UNIT_OPS)))
    linkage, declared = "static ", []
    if len(groups) > 1:
        linkage, declared = "", [f"{head};" for head, _ in functions]
    units = []
    for group in groups:
        lines = [prelude, *declared]
        for head, statements in group:
            lines += [f"{linkage}{head} {{", *statements, "}"]
        units.append("\n".join(lines) + "\n")
    units[0] += _driver(cuts, vector_bytes, bits, places, roles)
    return units


def native(name: str) -> str:
    """The text of one of the fixed files of ``native/``."""
    return (files("torchsko.fused.emit") / "native" / name).read_text(encoding="ascii")


def _prelude(bits: int, vector_bytes: int) -> str:
    scalar, integer = ("double", "long long") if bits == 64 else ("float", "int")
    return (
        f"typedef {scalar} T;\ntypedef {integer} I;\n"
        f"#define T_BITS {bits}\n#define BYTES {vector_bytes}\n{native('vector.hpp')}"
    )


def _given_constants(cuts: Schedule) -> dict[int, float]:
    """Constants that loops read, by the slots where they do."""
    program = cuts.program
    return {
        at: program.constants[program.code[x].args[0]]
        for value in cuts.regions
        for x, at in cuts.places_of_arguments(value)
        if program.code[x].op == "const"
    }


Texts = tuple[str, list[str]]
"""Head and statements of a function."""


def _in_equal_parts(functions: Sequence[Texts], num_parts: int) -> list[list[Texts]]:
    """Parts of about as many statements each, none of them empty."""
    ends = [0, *accumulate(len(statements) for _, statements in functions)]
    wanted = [ends[-1] * k / num_parts for k in range(1, num_parts)]
    cuts = [min(range(len(ends)), key=lambda k: abs(ends[k] - end)) for end in wanted]
    parts = pairwise([0, *cuts, len(functions)])
    return [[*functions[start:stop]] for start, stop in parts if start < stop]


def _shuffles(width: int, part: int) -> dict[str, str]:
    """Lanes of two vectors that `transpose` puts into one, for vectors of one or two parts."""
    lanes, half = range(width), part // 2
    found = {
        "LOW": [x for k in lanes if k % part < half for x in (k, k + width)],
        "HIGH": [x for k in lanes if k % part >= half for x in (k, k + width)],
    }
    if part < width:
        found |= {
            "FRONT": [*lanes[:part], *range(width, width + part)],
            "BACK": [*lanes[part:], *range(width + part, 2 * width)],
        }
    return {"PART": str(part)} | {name: ", ".join(map(str, x)) for name, x in found.items()}


def _driver(
    cuts: Schedule,
    vector_bytes: int,
    bits: int,
    places: Places,
    roles: Roles | None,
) -> str:
    program, width = cuts.program, vector_bytes * 8 // bits
    inputs = [port.size for port in program.inputs]
    if cuts.angles:
        del inputs[-1]
    outputs = [port.size for port in program.outputs]
    defines = {
        "ENTRY": ENTRY,
        "NUM_IN": sum(inputs),
        "NUM_OUT": len(program.results),
        "NUM_IN_PORTS": len(inputs),
        "NUM_OUT_PORTS": len(outputs),
        "NUM_SLOTS": cuts.num_slots,
        "NUM_ANGLES": len(cuts.angles),
        "COST": max(1, cost(program) + len(cuts.angles) * (_COST["sin"] + _COST["cos"])),
    } | _shuffles(width, width // 2 if vector_bytes == 32 else width)
    if roles is not None:
        defines |= _of_roles(roles, inputs, outputs)
    else:
        read = sum(inputs) + 2 * len(cuts.angles)
        of_tile = read + places.own + cuts.num_slots
        tiles = layout_of(vector_bytes).tiles_of(of_tile, vector_bytes)
        defines |= {"NUM_READ": read, "OF_TILE": of_tile, "TILES": tiles}
    constants, given = places.constants, _given_constants(cuts)
    defines |= {"NUM_CONSTANT": len(constants), "NUM_GIVEN": len(given)}
    in_order = not places.by and list(places.at) == list(range(len(program.results)))
    defines |= {"NUM_OWN": places.own, "IN_ORDER": int(in_order), "MULTIPLES": int(bool(places.by))}
    lines = [f"#define {name} {value}" for name, value in defines.items()]
    for name, values in ("CONSTANT", constants.values()), ("GIVEN", given.values()):
        texts = ", ".join([literal(x, bits) for x in (*values, 0.0)])
        lines.append(f"static const T {name}[] = {{{texts}}};")
    tables = {
        "CONSTANT_AT": constants,
        "GIVEN_AT": given,
        "ANGLES": cuts.angles,
        "ZERO": places.zero_blocks(width),
        "AT": () if in_order else places.at,
        "BY": places.by,
    }
    tables |= {"IN_SIZE": inputs, "OUT_SIZE": outputs, "READ_AT_ALL": _read_ports(cuts)}
    # A trailing 0: C++ has no empty array.
    for name, entries in tables.items():
        lines.append(f"static constexpr int {name}[] = {{{', '.join(map(str, [*entries, 0]))}}};")
    lines += _calls(cuts, by_tile=roles is None)
    loop = native("driver.hpp" if roles is None else "scan.hpp")
    return "\n".join(lines) + "\n" + native("rows.hpp") + loop


def _calls(cuts: Schedule, *, by_tile: bool) -> list[str]:
    """The function that runs all chunks, for one vector of samples, or each for several before the next."""
    calls = [f"c{k}(in, out, s);" for k in range(len(cuts.chunks))]
    lines = []
    if cuts.angles:
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
            "    V *in = tiles + t * OF_TILE, *out = in + NUM_READ, *s = out + NUM_OWN;",
            f"    {call}",
            "  }",
        ]
    return [*lines, "}"]


def _read_ports(cuts: Schedule) -> list[int]:
    """For each input port whether anything of it is read: of what a gradient is given, not all is."""
    code = cuts.program.code
    values = {*cuts.program.results, *cuts.factors.values()}
    values.update(x for value in range(len(code)) for x in cuts.program.operands(value))
    read = {*cuts.angles, *(code[x].args[0] for x in values if code[x].op == "input")}
    ends = [0, *accumulate(port.size for port in cuts.program.inputs)]
    return [int(not read.isdisjoint(range(*bounds))) for bounds in pairwise(ends)]


def _of_roles(roles: Roles, inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, int]:
    """What `native/scan.hpp` asks for, from the sizes of the ports."""
    stream = inputs[roles.carry :][: roles.stream]
    stacked, summed = (
        outputs[roles.carry :][: roles.stacked],
        outputs[len(outputs) - roles.summed :],
    )
    ports = {"CARRY": inputs[: roles.carry], "STREAM": stream, "STACKED": stacked, "SUMMED": summed}
    return {f"{name}_PORTS": len(sizes) for name, sizes in ports.items()} | {
        name: sum(sizes) for name, sizes in ports.items()
    }
