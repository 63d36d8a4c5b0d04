"""Statements of chunks, one for each instruction, in the common subset of C++ and CUDA."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator

from torchsko.fused.emit.loop_source import function_name
from torchsko.fused.layout.schedule import Chunk, Schedule
from torchsko.fused.program.program import Program

# All other operations call the function `v<name>` of native/vector.hpp.
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def chunk_lines(
    scheduled: Schedule,
    chunk: Chunk,
    bits: int,
    name: str = "",
    location: Callable[[int], str] = "in[{}]".format,
) -> Iterator[str]:
    """The statements of one chunk, with each load before its first reader and each store after its value.

    Args:
        scheduled: the program.
        chunk: one of its functions.
        bits: bits of its scalars.
        name: name of the program; the names of its loops begin with it.
        location: where an input of the program is read.
    """
    program, loads, stores = scheduled.program, dict(chunk.loads), _stores(scheduled, chunk)
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
            yield f"const V v{value} = {location(args[0])};"
        elif op == "part":
            yield f"const V v{value} = s[{scheduled.slot_of_part(value)}];"
        elif op == "loop":
            yield from _loop_lines(scheduled, value, name)
            continue  # its outputs are in the scratch array already
        else:
            yield from first_read(args)
            if value in done:
                continue
            if value in pairs:
                sine, cosine = pairs[value]
                yield f"V v{sine}, v{cosine}; vsincos(v{args[0]}, &v{sine}, &v{cosine});"
                done.update((sine, cosine))
                yield from stores(sine)
                yield from stores(cosine)
                continue
            yield f"const V v{value} = {_expression(op, [f'v{x}' for x in args])};"
        yield from stores(value)


def _loop_lines(scheduled: Schedule, value: int, name: str) -> Iterator[str]:
    """Stores of the inputs and constants that a loop reads, and the call of its function."""
    code = scheduled.program.code
    for x, slot in scheduled.slots_of_arguments(value):
        if code[x].op in ("input", "const"):
            yield f"s[{slot}] = v{x};"
    region, invariant = scheduled.regions[value][0], scheduled.invariant_slots[value]
    slots = f"s + {region}, s + {invariant}, s + {scheduled.work_slot}"
    yield f"{function_name(name, value)}({slots});"


def _stores(scheduled: Schedule, chunk: Chunk) -> Callable[[int], Iterator[str]]:
    """The statements that store a value of a chunk to its slots and outputs."""
    slots = dict(chunk.stores)
    outputs: dict[int, list[int]] = {}
    for scalar, value in chunk.outputs:
        outputs.setdefault(value, []).append(scalar)

    def stores(value: int) -> Iterator[str]:
        if value in slots:
            yield f"s[{slots[value]}] = v{value};"
        for slot in scheduled.loop_slots.get(value, ()):
            yield f"s[{slot}] = v{value};"
        for scalar in outputs.get(value, ()):
            yield f"out[{scalar}] = v{value};"

    return stores


def _sine_cosine_pairs(program: Program, chunk: Chunk) -> dict[int, tuple[int, int]]:
    """Pairs (sine, cosine) of one argument in one chunk, keyed by both values."""
    value_of: dict[tuple[str, int], int] = {}
    for value in chunk.instrs:
        op, args = program.code[value]
        if op in ("sin", "cos"):
            value_of[op, args[0]] = value
    pairs: dict[int, tuple[int, int]] = {}
    for (op, x), sine in value_of.items():
        if op == "sin" and ("cos", x) in value_of:
            cosine = value_of["cos", x]
            pairs[sine] = pairs[cosine] = (sine, cosine)
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
    """A constant as hexadecimal text, exact in double precision and rounded once in single precision."""
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
