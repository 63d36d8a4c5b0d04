"""Order a scalar program for few live values and split it into functions of bounded size.

The time of a compiler grows faster than the size of a function, and a straight-line program of ten
thousand operations spills registers in any case. A large program is therefore split into chunks,
each a function. Values that cross from one chunk to another pass through numbered slots of a
scratch array, one vector of samples for each slot, as in a linear-scan register allocator.

Invariants for code generators:

* Inputs and constants are read where they are needed: they appear in ``instrs`` of every chunk that
  reads them and never occupy a slot.
* Every value that an instruction reads is either loaded or computed earlier in the same chunk.
* Within one chunk no slot is both loaded and stored, so loads and stores may be printed anywhere
  in the chunk. A load is best printed just before its first reader (``loads`` is
  listed in that order) and a store just after its value.
* Output scalars are written in the chunk that computes them (``outputs``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from math import prod

from torchsko.fused.layout.loop_slots import (
    LoopSlots,
    RowList,
    allocate_loop_slots,
    loop_sources,
)
from torchsko.fused.layout.register_order import order_for_registers
from torchsko.fused.layout.row_sources import COPY, INPUT, LoopSources, RowSource
from torchsko.fused.layout.skipping import group_by_condition
from torchsko.fused.program.program import Loop, Program

_FREE = ("const", "input")

COPIED = (*_FREE, "part")
"""Operations whose values a loop copies when it is called; it finds all others in its slots."""


@dataclass(frozen=True)
class Chunk:
    """One function of the generated source.

    Attributes:
        loads: pairs (value, slot) read from scratch, in order of first use.
        instrs: numbers of the values computed here, in order; ``const`` and ``input`` included.
        stores: pairs (value, slot) written to scratch, in order of computation.
        outputs: pairs (output scalar, value): positions in ``Program.results`` written here.
    """

    loads: tuple[tuple[int, int], ...]
    instrs: tuple[int, ...]
    stores: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Schedule:
    """A program with its instruction order and its chunks.

    Attributes:
        program: the program.
        order: all arithmetic values in order of computation (no ``const``, no ``input``).
        chunks: the functions, in calling order.
        num_slots: size of the scratch array, in vectors.
        regions: for the value of each loop, the first slot of its region of the scratch array
            (`torchsko.fused.program.program.Loop.region_size`), and the schedule of its body.
        invariant_slots: for the value of each loop, the first slot of its copied invariant inputs.
        sources: for the value of each loop, the memory of its invariant inputs.
        lists: see `torchsko.fused.layout.loop_slots.LoopSlots`.
        work_slots: for the value of each loop, the first slot of the scratch that is in use while it runs. It
            holds, in this order: the current carry, the outputs of one iteration, scratch of the body.
        copying: loops for which invariant inputs are copied; others read those of an earlier loop.
        loop_slots: for each computed value that loops read, the slots to which it is stored at once.
        sincos_inputs: inputs whose sines and cosines are the last input port; see
            `torchsko.fused.layout.driver_passes.precompute_sincos`.
        conditions: for each value that is computed under a rare condition alone, the value of this
            condition; see `torchsko.fused.layout.skipping`.
        result_factors: the value of the factor of each scaled result, by position; see
            `torchsko.fused.layout.driver_passes.defer_scaling`.
    """

    program: Program
    order: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    num_slots: int
    regions: Mapping[int, tuple[int, Schedule]]
    invariant_slots: Mapping[int, int]
    sources: Mapping[int, LoopSources]
    lists: Mapping[int, RowList]
    work_slots: Mapping[int, int]
    copying: frozenset[int]
    loop_slots: Mapping[int, Sequence[int]]
    conditions: Mapping[int, int]
    sincos_inputs: tuple[int, ...] = ()
    result_factors: Mapping[int, int] = field(default_factory=dict)

    def slot_of_part(self, value: int) -> int:
        """The slot of the loop output that a ``part`` instruction reads."""
        loop, part = self.program.code[value].args
        return self.regions[loop][0] + self.program.loop_of(loop).position_of_part(part)

    def slots_of_arguments(self, loop: int) -> Iterator[tuple[int, int]]:
        """Pairs (value, slot) of all inputs of a loop that are stored for it, not for an earlier one."""
        variable = self.sources[loop].copied_variable(
            self.program.loop_of(loop), self.program.code[loop].args
        )
        yield from zip(variable, count(self.regions[loop][0]), strict=False)
        if loop in self.copying:
            copied = self.sources[loop].copied
            yield from zip(copied, count(self.invariant_slots[loop]), strict=False)

    def slot_of_source(self, loop: int, source: RowSource) -> int | None:
        """The slot of the first scalar of an array that a loop reads; None for inputs of the program."""
        if source.kind == INPUT:
            return None
        if source.kind == COPY:
            return self.invariant_slots[loop] + source.first
        return self.regions[source.owner][0] + source.first


@dataclass(frozen=True)
class _Split:
    """The chunks of an order, the slots and schedules of its loops, and the number of slots."""

    chunks: tuple[Chunk, ...]
    loop_slots: LoopSlots
    inner: Mapping[int, Schedule]
    num_slots: int


@dataclass(frozen=True)
class _Loops:
    """The loops of a program.

    Attributes:
        sources: the memory of their inputs.
        inner: the schedules of their bodies.
    """

    sources: Mapping[int, LoopSources]
    inner: Mapping[int, Schedule]

    def work_sizes(self, program: Program) -> dict[int, int]:
        """Numbers of slots that are in use while a loop runs."""
        return {x: program.loop_of(x).work_size + y.num_slots for x, y in self.inner.items()}


def schedule(program: Program, max_ops: int) -> Schedule:
    """Order a program and split it into chunks of at most ``max_ops`` operations.

    Two depth-first orders are compared, with results in the given order or outermost first. The one
    with the shorter lifetimes of values is then reordered for registers.

    Args:
        program: the program.
        max_ops: bound on the arithmetic instructions of one chunk.

    Returns:
        The schedule; a program of at most ``max_ops`` operations is one chunk without scratch.
    """
    orders = [depth_first(program, outermost_first=flag) for flag in (False, True)]
    shortest = min(orders, key=lambda order: _total_lifetime(program, order))
    order, conditions = group_by_condition(program, order_for_registers(program, shortest))
    loops = _LoopSchedules(max_ops).of_all(program, loop_sources(program, ()))
    split = _split(program, order, conditions, max_ops, loops, None)
    return _with_regions(program, order, conditions, split)


class _LoopSchedules:
    """Schedules of loop bodies; equal bodies share one schedule."""

    def __init__(self, max_ops: int) -> None:
        self._max_ops = max_ops
        self._schedules: dict[tuple[Program, tuple[range, ...], int], Schedule] = {}

    def of(self, loop: Loop, own: LoopSources) -> Schedule:
        """The schedule with the shorter lifetimes, of the depth-first order and the traced order."""
        program, pieces = loop.program, () if loop.writes else tuple(own.pieces(loop))
        key = program, pieces, loop.flags
        if key not in self._schedules:
            traced = [v for v, instr in enumerate(program.code) if instr.op not in _FREE]
            orders = depth_first(program), traced
            shortest = min(orders, key=lambda order: _total_lifetime(program, order))
            order, conditions = group_by_condition(program, shortest)
            loops = self.of_all(program, loop_sources(program, pieces))
            split = _split(program, order, conditions, self._max_ops, loops, loop)
            self._schedules[key] = _with_regions(program, order, conditions, split)
        return self._schedules[key]

    def of_all(self, program: Program, sources: Mapping[int, LoopSources]) -> _Loops:
        """The loops of a program with the memory of their inputs and their schedules."""
        inner = {value: self.of(program.loop_of(value), own) for value, own in sources.items()}
        return _Loops(sources, inner)


def _total_lifetime(program: Program, order: Sequence[int]) -> int:
    """Sum of the lifetimes of all values, in instructions; inputs live from their first use."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, value in enumerate(order):
        for x in (value, *_read(program, value)):
            first.setdefault(x, k)
            last[x] = k
    return sum(last.values()) - sum(first.values())


def _with_regions(
    program: Program,
    order: Sequence[int],
    conditions: Mapping[int, int],
    split: _Split,
) -> Schedule:
    """The schedule with the bodies of loops and the scratch that runs them."""
    slots, loops = split.loop_slots, list(split.loop_slots.regions)
    first: dict[object, int] = {}
    for value in loops:  # in order of computation
        first.setdefault((slots.sources[value].copied, conditions.get(value)), value)
    scheduled = Schedule(
        program,
        tuple(order),
        split.chunks,
        split.num_slots,
        {value: (slots.regions[value], split.inner[value]) for value in loops},
        slots.invariants,
        slots.sources,
        slots.lists,
        slots.works,
        frozenset(first.values()),
        {},
        conditions,
    )
    loop_slots: dict[int, dict[int, None]] = {}
    for value in loops:
        for x, slot in scheduled.slots_of_arguments(value):
            if program.code[x].op not in COPIED:
                loop_slots.setdefault(x, {})[slot] = None
    return replace(scheduled, loop_slots={x: tuple(slots) for x, slots in loop_slots.items()})


def _read(
    program: Program, value: int, conditions: Mapping[int, int] | None = None
) -> Sequence[int]:
    """Values that an instruction reads as vectors, without those that loops read from their region."""
    op, args = program.code[value]
    if op == "loop":
        return [x for x in args[1:] if program.code[x].op in _FREE]
    own = [conditions[value]] if conditions and value in conditions else []
    return own if op == "part" else [*own, *program.operands(value)]


def depth_first(program: Program, *, outermost_first: bool = False) -> list[int]:
    """Arithmetic values in depth-first postorder from the outputs, first output first.

    Each value then stands as close to its first reader as it can. Of two operands the one with the
    longer path to the inputs comes first: the other one waits for it in a register if it is cheap.

    Args:
        program: the program.
        outermost_first: whether entries of matrices, both results and loop inputs, are ordered by pairs of
            nodes from the tips of the tree (highest numbers) to its base. Values that propagate inboard from
            one node are then consumed before those of the next node are computed.
    """
    depth: list[int] = []
    for value in range(len(program.code)):
        depth.append(1 + max((depth[x] for x in program.operands(value)), default=-1))
    order: list[int] = []
    visited: set[int] = set()
    for result in _outermost_results(program) if outermost_first else program.results:
        pending = [(result, False)]
        while pending:
            value, is_ready = pending.pop()
            if is_ready:
                order.append(value)
            elif value not in visited and program.code[value].op not in _FREE:
                visited.add(value)
                pending.append((value, True))
                if outermost_first and program.code[value].op == "loop":
                    operands = _outermost_operands(program, value)[::-1]
                else:
                    operands = sorted(program.operands(value), key=depth.__getitem__)
                pending.extend((x, False) for x in operands)
    return order


def _outermost_results(program: Program) -> list[int]:
    """Results by pairs of nodes, outermost first."""
    keyed = []
    numbers = iter(program.results)
    for port in program.outputs:
        columns, *rest = (*port.shape[1:], 1)
        for k, value in zip(range(port.size), numbers, strict=False):
            row, column = divmod(k // prod(rest), columns)
            keyed.append(((-max(row, column), -min(row, column)), value))
    return [value for _, value in sorted(keyed, key=lambda item: item[0])]


def _outermost_operands(program: Program, value: int) -> list[int]:
    """Inputs of a loop: carry, invariant inputs, then streamed inputs by pairs of nodes, outermost first."""
    loop = program.loop_of(value)
    operands = program.operands(value)
    start = loop.carry
    streamed = operands[start : start + loop.count * loop.stream]
    rest = [*operands[:start], *operands[start + len(streamed) :]]
    first = loop.program.inputs[loop.ports[0]].shape if loop.ports[1] else ()
    rows = max(1, (1, *first)[-1])
    keyed = []
    for k, x in enumerate(streamed):
        column, row = divmod(k, rows)
        node = column % rows
        keyed.append(((-max(row, node), -min(row, node), column), x))
    return [*rest, *(x for _, x in sorted(keyed, key=lambda item: item[0]))]


def num_live(
    program: Program, order: Sequence[int], conditions: Mapping[int, int] | None = None
) -> list[int]:
    """Number of live values after each position of an order."""
    position = {value: k for k, value in enumerate(order)}
    last_use = dict(position)
    for k, value in enumerate(order):
        last_use.update((x, k) for x in _read(program, value, conditions) if x in position)
    change = [0] * (len(order) + 1)
    for value, k in position.items():
        change[k] += 1
        change[last_use[value]] -= 1
    return list(accumulate(change[:-1]))


def _cut(
    program: Program, order: Sequence[int], conditions: Mapping[int, int], max_ops: int
) -> list[Sequence[int]]:
    """Split an order into pieces of equal size, each cut moved back to where the fewest values cross it."""
    if len(order) <= max_ops:
        return [order]
    live = num_live(program, order, conditions)
    pieces: list[Sequence[int]] = []
    start = 0
    while start < len(order):
        stop = len(order)
        if stop - start > max_ops:
            window = range(start + max_ops - 1 - max_ops // 4, start + max_ops)
            stop = 1 + min(window, key=lambda k: (live[k], -k))
        pieces.append(order[start:stop])
        start = stop
    return pieces


def _split(
    program: Program,
    order: Sequence[int],
    conditions: Mapping[int, int],
    max_ops: int,
    loops: _Loops,
    outer: Loop | None,
) -> _Split:
    """The chunks of an order, with a scratch slot for every value that a later chunk reads.

    The program is the body of the loop ``outer``, if there is one.
    """
    pieces, sources = _cut(program, order, conditions, max_ops), loops.sources
    home = {value: k for k, piece in enumerate(pieces) for value in piece}
    last_reader = dict(home)
    for k, piece in enumerate(pieces):
        last_reader.update(
            (x, k) for v in piece for x in _read(program, v, conditions) if x in home
        )
    writes: list[list[tuple[int, int]]] = [[] for _ in pieces]
    for scalar, value in enumerate(program.results):
        writes[home.get(value, 0)].append((scalar, value))
    last_reads: dict[int, int] = {}
    for at, value in enumerate(order):
        last_reads.update(
            (x, at)
            for x in _read(program, value, conditions)
            if last_reader.get(x, 0) > home.get(x, 0)
        )
    works = loops.work_sizes(program)
    loop_slots = allocate_loop_slots(program, order, sources, works, last_reads, outer)
    waiting = loop_slots.waiting
    slot = dict(waiting)
    free: list[int] = []
    num_slots, chunks = loop_slots.size, []
    for k, piece in enumerate(pieces):
        loads, instrs = _reads(program, piece, conditions, sources, writes[k], home, k)
        stores = []
        for value in piece:
            if last_reader[value] > k and value not in waiting:
                if free:
                    slot[value] = free.pop()
                else:
                    slot[value], num_slots = num_slots, num_slots + 1
                stores.append((value, slot[value]))
        chunks.append(
            Chunk(
                loads=tuple((value, slot[value]) for value in loads),
                instrs=tuple(instrs),
                stores=tuple(stores),
                outputs=tuple(writes[k]),
            )
        )
        # Freed after the stores: no chunk may store to a slot that it loads.
        for value in loads:
            if last_reader[value] == k and value not in waiting:
                free.append(slot[value])
    return _Split(tuple(chunks), loop_slots, loops.inner, num_slots)


def _reads(
    program: Program,
    piece: Sequence[int],
    conditions: Mapping[int, int],
    sources: Mapping[int, LoopSources],
    writes: list[tuple[int, int]],
    home: dict[int, int],
    chunk: int,
) -> tuple[list[int], list[int]]:
    """Values of earlier chunks that a piece reads, and its instructions with inputs and constants."""
    loads: dict[int, None] = {}
    instrs: dict[int, None] = {}
    for value in piece:
        own = set()
        if value in sources:
            variable = sources[value].copied_variable(
                program.loop_of(value), program.code[value].args
            )
            own = {*sources[value].copied, *variable}
        for x in _read(program, value, conditions):
            if x not in home:
                if value not in sources or x in own:
                    instrs[x] = None
            elif home[x] != chunk:
                loads[x] = None
        instrs[value] = None
    instrs.update((value, None) for _, value in writes if value not in home)
    return list(loads), list(instrs)
