"""Statements of matrix-product loop bodies with explicit register allocation.

An iteration multiplies some rows of a matrix with some columns, so each entry serves several
products. A compiler may reload an entry for every product, and the iteration then takes as long as
its loads. Here loads are volatile, so that the compiler cannot repeat them. The evicted value is
the one whose next use is latest, as in Belady's algorithm.

Reference: L. Belady, *A study of replacement algorithms for a virtual-storage computer*, IBM Systems Journal
5(2), 1966.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchsko.fused.layout.schedule import Chunk
from torchsko.fused.program.program import Program


def allocate(
    program: Program, chunk: Chunk, registers: int
) -> tuple[dict[int, list[int]], set[int]]:
    """Decide which values are loaded before each instruction of a chunk.

    Args:
        program: the program.
        chunk: one of its functions.
        registers: largest number of values in registers.

    Returns:
        The values to load before each computed value, in order, and the computed values that leave
        the registers before their last use, which must be spilled.
    """
    order = [v for v in chunk.instrs if program.code[v].op not in ("const", "input")]
    operands = {v: [x for x in program.operands(v) if program.code[x].op != "const"] for v in order}
    uses: dict[int, list[int]] = {}
    for position, value in enumerate(order):
        for x in operands[value]:
            uses.setdefault(x, []).append(position)
    # The product of a fused multiply-add never occupies a register.
    fused = {
        v for k, v in enumerate(order) if program.code[v].op == "mul" and uses.get(v) == [k + 1]
    }
    computed = set(order)
    in_registers: set[int] = set()
    spilled: set[int] = set()
    loads: dict[int, list[int]] = {}

    def insert(x: int, needed: list[int]) -> None:
        in_registers.add(x)
        if len(in_registers) > registers:
            evicted = max(in_registers.difference(needed), key=lambda y: uses[y][0])
            in_registers.discard(evicted)
            if evicted in computed:
                spilled.add(evicted)

    for value in order:
        needed = operands[value]
        for x in dict.fromkeys(needed):
            if x not in in_registers and x not in fused:
                loads.setdefault(value, []).append(x)
                insert(x, needed)
        for x in needed:
            uses[x].pop(0)
            if not uses[x]:
                in_registers.discard(x)
        if uses.get(value) and value not in fused:
            insert(value, [value])
    return loads, spilled


def allocated_lines(
    program: Program,
    chunk: Chunk,
    location: Callable[[int], str],
    expression: Callable[[int, Callable[[int], str]], str],
    stores: Callable[[int], Iterator[str]],
    registers: int,
) -> Iterator[str]:
    """The statements of one chunk of a matrix-product loop body.

    Args:
        program: the program.
        chunk: one of its functions.
        location: where inputs and values of earlier chunks are read.
        expression: the text of the expression of a value, from the names of its operands.
        stores: the statements that store a value.
        registers: largest number of values in registers.
    """
    loads, spilled = allocate(program, chunk, registers)
    spill_slots = {value: f"spilled[{k}]" for k, value in enumerate(sorted(spilled))}
    if spill_slots:
        yield f"V spilled[{len(spill_slots)}];"
    names: dict[int, str] = {}
    num_loads: dict[int, int] = {}
    for value in chunk.instrs:
        op = program.code[value].op
        if op == "input":
            if stored := list(stores(value)):  # an input that is an output
                yield f"const V v{value} = READ({location(value)});"
                yield from stored
            continue
        for x in loads.get(value, ()):
            num_loads[x] = num_loads.get(x, 0) + 1
            names[x] = f"v{x}_{num_loads[x]}"
            source = spill_slots[x] if x in spill_slots else location(x)
            yield f"const V {names[x]} = READ({source});"
        names[value] = f"v{value}"
        yield f"const V v{value} = {expression(value, names.__getitem__)};"
        if value in spill_slots:
            yield f"{spill_slots[value]} = v{value};"
        yield from stores(value)
