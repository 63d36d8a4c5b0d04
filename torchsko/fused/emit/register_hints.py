"""The statements of a round of products, with what is in registers said to the compiler.

A round multiplies some rows of a matrix with some columns, so that each number that is read serves several
products. A compiler that may read a number again instead of keeping it does so, at every product, and such a
round then takes as long as its reads. Here each read is one that cannot be repeated, and what makes room
for others is chosen by knowing all that follows: whatever is needed last.

Reference: L. Belady, *A study of replacement algorithms for a virtual-storage computer*, IBM Systems Journal
5(2), 1966.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchsko.fused.layout.schedule import Chunk
from torchsko.fused.program.program import Program


def held(program: Program, chunk: Chunk, registers: int) -> tuple[dict[int, list[int]], set[int]]:
    """What is read before each instruction of a chunk, and which of its values are read so.

    Args:
        program: the program.
        chunk: one of its functions.
        registers: how many values are in registers at most.

    Returns:
        For each computed value what is to be read for it, in order, and values of the chunk that
        leave the registers before they are used up, and have to be kept elsewhere.
    """
    steps = [v for v in chunk.instrs if program.code[v].op not in ("const", "input")]
    operands = {v: [x for x in program.operands(v) if program.code[x].op != "const"] for v in steps}
    uses: dict[int, list[int]] = {}
    for at, value in enumerate(steps):
        for x in operands[value]:
            uses.setdefault(x, []).append(at)
    # The product of a fused multiply-add is never in a register.
    passing = {
        v for at, v in enumerate(steps) if program.code[v].op == "mul" and uses.get(v) == [at + 1]
    }
    computed = set(steps)
    inside: set[int] = set()
    left: set[int] = set()
    reads: dict[int, list[int]] = {}

    def hold(x: int, now: list[int]) -> None:
        inside.add(x)
        if len(inside) > registers:
            last = max(inside.difference(now), key=lambda y: uses[y][0])
            inside.discard(last)
            if last in computed:
                left.add(last)

    for value in steps:
        now = operands[value]
        for x in dict.fromkeys(now):
            if x not in inside and x not in passing:
                reads.setdefault(value, []).append(x)
                hold(x, now)
        for x in now:
            uses[x].pop(0)
            if not uses[x]:
                inside.discard(x)
        if uses.get(value) and value not in passing:
            hold(value, [value])
    return reads, left


def held_lines(
    program: Program,
    chunk: Chunk,
    places: Callable[[int], str],
    expression: Callable[[int, Callable[[int], str]], str],
    settled: Callable[[int], Iterator[str]],
    registers: int,
) -> Iterator[str]:
    """The statements of a chunk that is a round of products.

    Args:
        program: the program.
        chunk: one of its functions.
        places: where inputs and what earlier chunks computed are read.
        expression: the text of a value's expression, from names of others.
        settled: the statements by which a value is stored where others read it.
        registers: how many values are in registers at most.
    """
    reads, left = held(program, chunk, registers)
    kept = {value: f"kept[{k}]" for k, value in enumerate(sorted(left))}
    if kept:
        yield f"V kept[{len(kept)}];"
    names: dict[int, str] = {}
    times: dict[int, int] = {}
    for value in chunk.instrs:
        op = program.code[value].op
        if op == "input":
            continue
        for x in reads.get(value, ()):
            times[x] = times.get(x, 0) + 1
            names[x] = f"v{x}_{times[x]}"
            yield f"const V {names[x]} = READ({kept[x] if x in kept else places(x)});"
        names[value] = f"v{value}"
        yield f"const V v{value} = {expression(value, names.__getitem__)};"
        if value in kept:
            yield f"{kept[value]} = v{value};"
        yield from settled(value)
