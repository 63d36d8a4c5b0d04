"""Scratch slots of loops: blocks for their inputs and outputs, which loops use one after another.

The block of a loop is its region (`torchsko.fused.program.program.Loop.region_size`). Arguments are
stored as soon as they are computed; outputs of other loops are copied when the loop is called. Invariant
inputs have separate blocks: they are never overwritten, so loops with equal ones share a block. Values that
wait in a block for later chunks need no other slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchsko.fused.layout.row_sources import OUTPUT, LoopSources, Pieces, sources_of
from torchsko.fused.program.program import Loop, Program

_MIN_WAITING_SHARE = 1 / 2
"""Smallest share of a block that waits for later chunks for which the whole block is kept for them."""


Key = int | tuple[Any, ...]
"""A loop, or what its block holds."""


class RowList(NamedTuple):
    """List of the iterations of a loop over rows that are not skipped.

    Attributes:
        slot: its first slot.
        is_new: whether no loop before reads it.
        flag: for a list that is kept from one iteration of the program, a loop body, to the next: the input
            that is nonzero for samples which later iterations do not change. Their rows leave the list.
    """

    slot: int
    is_new: bool
    flag: int | None


@dataclass(frozen=True)
class LoopSlots:
    """Slots of the loops of a program.

    Attributes:
        regions: for each loop, the first slot of its region.
        invariants: for each loop, the first slot of its copied invariant inputs.
        works: for each loop, the first slot of its scratch, which is in use while it runs.
        sources: for each loop, the memory of its invariant inputs.
        lists: for each guarded loop, the list of its iterations that are not skipped.
        waiting: slots of values that later chunks read from a block.
        size: number of slots of all blocks.
    """

    regions: Mapping[int, int]
    invariants: Mapping[int, int]
    works: Mapping[int, int]
    sources: Mapping[int, LoopSources]
    lists: Mapping[int, RowList]
    waiting: Mapping[int, int]
    size: int


@dataclass
class _Block:
    """Consecutive slots, in use from one position of the order to another, both included.

    Attributes:
        size: number of slots.
        first: the first position.
        last: the last position.
        values: values that lie in the block from their computation to its end, with their places in it.
    """

    size: int
    first: int
    last: int
    values: dict[int, int]


def allocate_loop_slots(
    program: Program,
    order: Sequence[int],
    sources: Mapping[int, LoopSources],
    works: Mapping[int, int],
    last_reads: Mapping[int, int],
    outer: Loop | None,
) -> LoopSlots:
    """Allocate the blocks of all loops.

    Args:
        program: the program.
        order: its arithmetic values in order of computation.
        sources: for each loop, the memory of its invariant inputs.
        works: for each loop, the number of slots that are in use while it runs.
        last_reads: the position in the order of the last reader of each value that a later chunk reads.
        outer: the loop of which the program is the body, if it is one.
    """
    loops = [value for value in order if program.code[value].op == "loop"]
    flags = {x: _flag_of_list(program, x, outer) for x in loops if program.loop_of(x).guarded}
    blocks = _blocks(program, order, sources, flags)
    position = {value: k for k, value in enumerate(order)}
    for value in loops:
        blocks["work", value] = _Block(works[value], position[value], position[value], {})
    homes: dict[int, _Block] = {}
    for block in blocks.values():
        reads = [last_reads[x] for x in block.values if x in last_reads]
        if reads and len(reads) >= _MIN_WAITING_SHARE * block.size:
            block.last = max(block.last, *reads)
        for x in block.values:
            if x in last_reads and last_reads[x] <= block.last:
                homes.setdefault(x, block)
    offsets, size = _place(blocks.values())
    first = dict(zip(blocks, offsets, strict=True))
    first_of = {id(block): first[key] for key, block in blocks.items()}
    return LoopSlots(
        {value: first[value] - _num_in_place(program, value, sources) for value in loops},
        {value: first[sources[value].copied] for value in loops},
        {value: first["work", value] for value in loops},
        sources,
        _lists(program, first, flags),
        {x: first_of[id(block)] + block.values[x] for x, block in homes.items()},
        size,
    )


def _num_in_place(program: Program, value: int, sources: Mapping[int, LoopSources]) -> int:
    """Number of scalars at the start of the region of a loop that are read elsewhere and have no slots."""
    return 0 if sources[value].variable is None else program.loop_of(value).num_variable


def loop_sources(program: Program, pieces: Pieces) -> dict[int, LoopSources]:
    """The memory of the invariant inputs of all loops; see `torchsko.fused.layout.row_sources`."""
    loops = [value for value, instr in enumerate(program.code) if instr.op == "loop"]
    return {value: sources_of(program, value, pieces) for value in loops}


def _guard(program: Program, value: int) -> tuple[int, ...]:
    """The guards of all iterations of a loop."""
    access = program.loop_of(value).reads[0]
    args = program.code[value].args[1 : 1 + access.size : access.width]
    return tuple(args[row] for row in access.table)


def _flag_of_list(program: Program, value: int, outer: Loop | None) -> int | None:
    """`RowList.flag`; None if the guards change from iteration to iteration, or all samples do."""
    if outer is None or outer.flags != 1:
        return None
    first_invariant = outer.carry + outer.stream
    guards = [program.code[x] for x in _guard(program, value)]
    is_fixed = all(op == "input" and args[0] >= first_invariant for op, args in guards)
    return outer.carry - 1 if is_fixed else None


def _lists(
    program: Program, first: Mapping[Key, int], flags: Mapping[int, int | None]
) -> dict[int, RowList]:
    """`LoopSlots.lists`, from the first slots of blocks and the flags of guarded loops."""
    found: dict[int, RowList] = {}
    known: set[object] = set()
    for value, flag in flags.items():
        key: Key = ("list", _guard(program, value))
        found[value] = RowList(first[key], key not in known, flag)
        known.add(key)
    return found


def _blocks(
    program: Program,
    order: Sequence[int],
    sources: Mapping[int, LoopSources],
    flags: Mapping[int, int | None],
) -> dict[Key, _Block]:
    """Blocks of regions by loop, and of copied invariant inputs by these inputs.

    Results of the program may stay in a region until its end, and lists with a flag until the next iteration.
    """
    position = {value: k for k, value in enumerate(order)}
    results = set(program.results)
    blocks: dict[Key, _Block] = {}

    def stored(arguments: Sequence[int]) -> list[int]:
        """Arguments that are stored when they are computed."""
        return [x for x in arguments if x in position and program.code[x].op != "part"]

    def first_of(loop: int, arguments: Sequence[int]) -> int:
        return min([position[loop], *(position[x] for x in stored(arguments))])

    for value, at in position.items():
        op, args = program.code[value]
        if op == "loop":
            loop, invariant = program.loop_of(value), sources[value].copied
            variable = sources[value].copied_variable(loop, args)
            size = loop.region_size - _num_in_place(program, value, sources)
            blocks[value] = _Block(size, first_of(value, variable), at, {})
            kept = {*stored(invariant)}
            places = {x: k for k, x in enumerate(invariant) if x in kept}
            new = _Block(len(invariant), first_of(value, invariant), at, places)
            block = blocks.setdefault(invariant, new)
            block.first, block.last = min(block.first, new.first), at
            if loop.guarded:  # a slot has room for an int
                is_kept = flags[value] is not None
                new = _Block(loop.count + 1, 0 if is_kept else at, at, {})
                block = blocks.setdefault(("list", _guard(program, value)), new)
                block.last = len(order) if is_kept else at
            for x in {*variable, *invariant}:
                if program.code[x].op == "part":  # it is copied when the loop is called
                    owner = blocks[program.code[x].args[0]]
                    owner.last = max(owner.last, at)
            for source in sources[value].pointers:
                if source.kind == OUTPUT:  # it is read where it is
                    blocks[source.owner].last = max(blocks[source.owner].last, at)
        elif op == "part":
            block = blocks[args[0]]
            place = program.loop_of(args[0]).position_of_part(args[1])
            block.values[value] = place - _num_in_place(program, args[0], sources)
            block.last = len(order) if value in results else max(block.last, at)
    return blocks


def _place(blocks: Iterable[_Block]) -> tuple[list[int], int]:
    """First slots of blocks, so that blocks in use at a time do not overlap, and the number of slots."""
    blocks = list(blocks)
    offsets = [0] * len(blocks)
    placed: list[tuple[int, _Block]] = []
    for k in sorted(range(len(blocks)), key=lambda k: (blocks[k].first, -blocks[k].size)):
        block, offset = blocks[k], 0
        for start, other in sorted(placed, key=lambda item: item[0]):
            if other.last >= block.first and start < offset + block.size:
                offset = max(offset, start + other.size)
        offsets[k] = offset
        placed.append((offset, block))
    return offsets, max((start + block.size for start, block in placed), default=0)
