"""The statements of the functions of a kernel, one for each instruction, in what C++ and CUDA share."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator

from torchsko.fused.emit.loop_source import function_name
from torchsko.fused.emit.register_hints import held_lines
from torchsko.fused.layout.schedule import Chunk, Schedule
from torchsko.fused.program.product_rounds import is_round_of_products
from torchsko.fused.program.program import Program

# `v<name>` is a function of native/vector.hpp.
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def chunk_lines(
    cuts: Schedule,
    chunk: Chunk,
    bits: int,
    name: str = "",
    place: Callable[[int], str] = "in[{}]".format,
    *,
    constants: bool = True,
) -> Iterator[str]:
    """The statements of one chunk: each load before its first reader, each store at once.

    Args:
        cuts: the program.
        chunk: one of its functions.
        bits: of its numbers.
        name: of the program; those of its loops begin with it.
        place: where the program's inputs stand.
        constants: whether constants that loops read are written here, not once for all samples.
    """
    program, loads, settle = cuts.program, dict(chunk.loads), _settling(cuts, chunk)
    pairs = _sine_cosine_pairs(program, chunk)
    loaded: set[int] = set()
    done: set[int] = set()

    def first_read(args: Iterable[int]) -> Iterator[str]:
        for x in args:
            if x in loads and x not in loaded:
                loaded.add(x)
                yield f"const V v{x} = s[{loads[x]}];"

    for value in chunk.instrs:
        op, args = program.code[value]
        if op == "const":
            yield f"const V v{value} = splat({literal(program.constants[args[0]], bits)});"
        elif op == "input":
            yield f"const V v{value} = {place(args[0])};"
        elif op == "part":
            yield f"const V v{value} = s[{cuts.place_of_part(value)}];"
        elif op == "loop":
            yield from _loop_lines(cuts, value, name, constants)
            continue  # what it gives stands in the scratch already
        else:
            yield from first_read(args)
            if value in done:
                continue
            if value in pairs:
                sine, cosine = pairs[value]
                yield f"V v{sine}, v{cosine}; vsincos(v{args[0]}, &v{sine}, &v{cosine});"
                done.update((sine, cosine))
                yield from settle(sine)
                yield from settle(cosine)
                continue
            yield f"const V v{value} = {_expression(op, [f'v{x}' for x in args])};"
        yield from settle(value)


def _loop_lines(cuts: Schedule, value: int, name: str, constants: bool) -> Iterator[str]:
    """Stores of what a loop reads and no other statement stores, and its call."""
    code = cuts.program.code
    stored = ("input", "const") if constants else ("input",)
    for x, at in cuts.places_of_arguments(value):
        if code[x].op in stored:
            yield f"s[{at}] = v{x};"
    yield f"{function_name(name, value)}(s + {cuts.regions[value][0]}, s + {cuts.stays[value]});"


def lines_in_registers(
    cuts: Schedule,
    chunk: Chunk,
    bits: int,
    name: str,
    place: Callable[[int], str],
    *,
    registers: int,
) -> Iterator[str]:
    """As `chunk_lines`, but rounds of products say what is in registers, and in how many."""
    program, loads = cuts.program, dict(chunk.loads)
    if not is_round_of_products(program):
        return chunk_lines(cuts, chunk, bits, name, place)

    def places(value: int) -> str:
        op, args = program.code[value]
        return place(args[0]) if op == "input" else f"s[{loads[value]}]"

    def expression(value: int, names: Callable[[int], str]) -> str:
        op, args = program.code[value]
        if op == "const":
            return f"splat({literal(program.constants[args[0]], bits)})"
        return _expression(op, [names(x) for x in args])

    return held_lines(program, chunk, places, expression, _settling(cuts, chunk), registers)


def _settling(cuts: Schedule, chunk: Chunk) -> Callable[[int], Iterator[str]]:
    """The statements that store a value of a chunk where others read it."""
    stores = dict(chunk.stores)
    outputs: dict[int, list[int]] = {}
    for scalar, value in chunk.outputs:
        outputs.setdefault(value, []).append(scalar)

    def settle(value: int) -> Iterator[str]:
        if value in stores:
            yield f"s[{stores[value]}] = v{value};"
        for at in cuts.given.get(value, ()):
            yield f"s[{at}] = v{value};"
        for scalar in outputs.get(value, ()):
            yield f"out[{scalar}] = v{value};"

    return settle


def _sine_cosine_pairs(program: Program, chunk: Chunk) -> dict[int, tuple[int, int]]:
    """For sines and cosines of one argument in one chunk: both values, keyed by each."""
    of: dict[tuple[str, int], int] = {}
    for value in chunk.instrs:
        op, args = program.code[value]
        if op in ("sin", "cos"):
            of[op, args[0]] = value
    pairs: dict[int, tuple[int, int]] = {}
    for (op, x), sine in of.items():
        if op == "sin" and ("cos", x) in of:
            pairs[sine] = pairs[of["cos", x]] = (sine, of["cos", x])
    return pairs


def _expression(op: str, args: list[str]) -> str:
    if op in _INFIX:
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if op in _COMPARE:
        return f"truth({args[0]} {_COMPARE[op]} {args[1]})"
    if op == "where":
        return f"select({args[0]} != 0, {args[1]}, {args[2]})"
    if op == "neg":
        return f"-{args[0]}"
    if op == "recip":
        return f"1 / {args[0]}"
    return f"v{op}({', '.join(args)})"


def literal(x: float, bits: int) -> str:
    """A constant as exact hexadecimal text, rounded once if the kernel is single precision."""
    if math.isnan(x):
        return "NOT_A_NUMBER"
    if bits == 32:
        try:
            x = struct.unpack("f", struct.pack("f", x))[0]
        except OverflowError:
            x = math.copysign(math.inf, x)
    if math.isinf(x):
        return "-INFINITE" if x < 0 else "INFINITE"
    return x.hex() + ("f" if bits == 32 else "")
