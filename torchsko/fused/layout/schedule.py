"""Order a scalar program for few live values and split it into functions of bounded size.

A compiler's time grows faster than the size of a function, and a straight-line program of ten
thousand operations spills whatever it does. So a large program is cut into chunks, each a function of
its own; values that cross a cut travel through numbered slots of a scratch array (one vector of samples
a slot), as in any linear-scan register allocator.

Rules that a code generator can rely on:

* Inputs and constants are read where they are needed: they appear in ``instrs`` of every chunk that
  reads them and never occupy a slot.
* Every value that an instruction reads is, in that chunk, either loaded or computed before.
* Within one chunk no slot is both loaded and stored, so loads and stores may be printed anywhere
  between the ends of the chunk; a load is best printed just before its first reader (``loads`` is
  listed in that order) and a store just after its value.
* Output scalars are written in the chunk that computes them (``outputs``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from math import prod

from torchsko.fused.layout.register_order import in_registers
from torchsko.fused.program.product_rounds import by_sums, is_round_of_products
from torchsko.fused.program.program import Program

_FREE = ("const", "input")


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
    """A program with the order and the cuts in which it is to be printed.

    Attributes:
        program: the program.
        order: all arithmetic values in order of computation (no ``const``, no ``input``).
        chunks: the functions, in calling order.
        num_slots: size of the scratch array, in vectors.
        regions: for the value of each loop, where its region of the scratch array begins, behind the slots,
            and the schedule of its program. There lie what it reads anew, what it gives, state and results
            of one round, and scratch of its program, in this order.
        stays: for the value of each loop, where in the scratch array what it reads in every round begins.
        given: for a computed value that loops read, where they do, and it is to be written at once.
        angles: inputs whose sines and cosines are the last input port, in turn; see
            `torchsko.fused.layout.angles`.
        factors: by the positions of results, the values that they are still to be multiplied with; see
            `torchsko.fused.layout.multiples`.
    """

    program: Program
    order: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    num_slots: int
    regions: Mapping[int, tuple[int, Schedule]]
    stays: Mapping[int, int]
    given: Mapping[int, Sequence[int]]
    angles: tuple[int, ...] = ()
    factors: Mapping[int, int] = field(default_factory=dict)

    def place_of_part(self, value: int) -> int:
        """Where in the scratch array lies what a loop gives, for the value of a ``part``."""
        loop, k = self.program.code[value].args
        return self.regions[loop][0] + self.program.loop_of(loop).num_moving + k

    def places_of_arguments(self, loop: int) -> Iterator[tuple[int, int]]:
        """What the value of a loop reads, each with where in the scratch array."""
        args, moving = self.program.code[loop].args[1:], self.program.loop_of(loop).num_moving
        yield from zip(args[:moving], count(self.regions[loop][0]), strict=False)
        yield from zip(args[moving:], count(self.stays[loop]), strict=False)


@dataclass(frozen=True)
class _Split:
    """An order cut into chunks, and the slots that they share."""

    chunks: tuple[Chunk, ...]
    num_slots: int


def schedule(program: Program, max_ops: int, sums: int = 0) -> Schedule:
    """Order a program and cut it into chunks of at most ``max_ops`` operations.

    The order is depth first, its results as they come or outermost first, whichever needs values less long;
    what can be computed in registers then moves forward.

    Args:
        program: the program.
        max_ops: bound on the arithmetic instructions of one chunk.
        sums: how many sums of a round of products grow at once; 0: as many as are written so.

    Returns:
        The schedule; a program of at most ``max_ops`` operations is one chunk without scratch.
    """
    orders = [depth_first(program, outermost_first=way) for way in (False, True)]
    order = in_registers(program, min(orders, key=lambda order: _time_kept(program, order)))
    return _scheduled(program, order, _split(program, order, max_ops), _Rounds(max_ops, sums))


class _Rounds:
    """Schedules of the programs of loops; of equal programs there is one."""

    def __init__(self, max_ops: int, sums: int) -> None:
        self._max_ops, self._sums = max_ops, sums
        self._known: dict[Program, Schedule] = {}

    def of(self, program: Program) -> Schedule:
        """The schedule: depth first or as written, whichever needs values less long.

        A product of matrices is written so that an entry is read once for all columns of a round. Depth
        first it would be column by column, and all entries would wait in memory for the next one.
        """
        if program not in self._known:
            written = [v for v, instr in enumerate(program.code) if instr.op not in _FREE]
            if self._sums and is_round_of_products(program):
                written = by_sums(program, written, self._sums)
            order = min(depth_first(program), written, key=lambda order: _time_kept(program, order))
            split = _split(program, order, self._max_ops)
            self._known[program] = _scheduled(program, order, split, self)
        return self._known[program]


def _time_kept(program: Program, order: Sequence[int]) -> int:
    """How many instructions all values are kept for, those of inputs and constants from their first use."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, value in enumerate(order):
        for x in (value, *_read(program, value)):
            first.setdefault(x, k)
            last[x] = k
    return sum(last.values()) - sum(first.values())


def _scheduled(
    program: Program,
    order: list[int],
    split: _Split,
    rounds: _Rounds,
) -> Schedule:
    num_slots = split.num_slots
    regions: dict[int, tuple[int, Schedule]] = {}
    stays: dict[int, int] = {}
    shared: dict[tuple[int, ...], int] = {}
    for value in order:
        if program.code[value].op == "loop":
            loop = program.loop_of(value)
            inner = rounds.of(loop.program)
            regions[value] = num_slots, inner
            num_slots += loop.region_size + inner.num_slots
            # What stays is only read: loops that read the same share it.
            stay = program.code[value].args[1 + loop.num_moving :]
            if stay not in shared:
                shared[stay], num_slots = num_slots, num_slots + len(stay)
            stays[value] = shared[stay]
    cuts = Schedule(program, tuple(order), split.chunks, num_slots, regions, stays, {})
    given: dict[int, dict[int, None]] = {}
    for value in regions:
        for x, place in cuts.places_of_arguments(value):
            if program.code[x].op not in _FREE:
                given.setdefault(x, {})[place] = None
    return replace(cuts, given={x: tuple(places) for x, places in given.items()})


def _read(program: Program, value: int) -> tuple[int, ...]:
    """Values that this one reads as vectors; what a loop reads and gives lies in its region of scratch."""
    op, args = program.code[value]
    if op == "loop":
        return tuple(x for x in args[1:] if program.code[x].op in _FREE)
    return () if op == "part" else program.operands(value)


def depth_first(program: Program, *, outermost_first: bool = False) -> list[int]:
    """Arithmetic values in depth-first postorder from the outputs, first output first.

    Each value then stands as close to its first reader as it can. Of two operands the one with the
    longer path to the inputs comes first: the other one waits for it in a register if it is cheap.

    Args:
        program: the program.
        outermost_first: whether entries of matrices, as results and as what loops read, come by pairs of
            nodes, from the tips of a tree, whose numbers are highest, to its base. What travels inboard from
            a node is then used up before that of the next one begins.
    """
    depth: list[int] = []
    for value in range(len(program.code)):
        depth.append(1 + max((depth[x] for x in program.operands(value)), default=-1))
    order: list[int] = []
    seen: set[int] = set()
    for result in _outermost_results(program) if outermost_first else program.results:
        pending = [(result, False)]
        while pending:
            value, is_ready = pending.pop()
            if is_ready:
                order.append(value)
            elif value not in seen and program.code[value].op not in _FREE:
                seen.add(value)
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
    """What a loop reads: first what stays, then what comes anew by pairs of nodes, outermost first."""
    loop = program.loop_of(value)
    operands = program.operands(value)
    start = loop.carry
    anew = operands[start : start + loop.count * loop.stream]
    rest = [*operands[:start], *operands[start + len(anew) :]]
    first = loop.program.inputs[loop.ports[0]].shape if loop.ports[1] else ()
    rows = max(1, (1, *first)[-1])
    keyed = []
    for k, x in enumerate(anew):
        column, row = divmod(k, rows)
        of_block = column % rows
        keyed.append(((-max(row, of_block), -min(row, of_block), column), x))
    return [*rest, *(x for _, x in sorted(keyed, key=lambda item: item[0]))]


def num_live(program: Program, order: Sequence[int]) -> list[int]:
    """Number of values that must be kept behind each position of an order."""
    position = {value: k for k, value in enumerate(order)}
    last_use = dict(position)
    for k, value in enumerate(order):
        last_use.update((x, k) for x in _read(program, value) if x in position)
    change = [0] * (len(order) + 1)
    for value, k in position.items():
        change[k] += 1
        change[last_use[value]] -= 1
    return list(accumulate(change[:-1]))


def _cut(program: Program, order: list[int], max_ops: int) -> list[list[int]]:
    """Pieces of equal size, each cut moved back to where the fewest values cross it."""
    if len(order) <= max_ops:
        return [order]
    live = num_live(program, order)
    pieces, start = [], 0
    while start < len(order):
        stop = len(order)
        if stop - start > max_ops:
            window = range(start + max_ops - 1 - max_ops // 4, start + max_ops)
            stop = 1 + min(window, key=lambda k: (live[k], -k))
        pieces.append(order[start:stop])
        start = stop
    return pieces


def _split(program: Program, order: list[int], max_ops: int) -> _Split:
    """The chunks of an order, with a scratch slot for every value that a later chunk reads."""
    pieces = _cut(program, order, max_ops)
    home = {value: k for k, piece in enumerate(pieces) for value in piece}
    last_reader = dict(home)
    for k, piece in enumerate(pieces):
        last_reader.update((x, k) for v in piece for x in _read(program, v) if x in home)
    writes: list[list[tuple[int, int]]] = [[] for _ in pieces]
    for scalar, value in enumerate(program.results):
        writes[home.get(value, 0)].append((scalar, value))
    slot: dict[int, int] = {}
    free: list[int] = []
    num_slots, chunks = 0, []
    for k, piece in enumerate(pieces):
        loads, instrs = _reads(program, piece, writes[k], home, k)
        stores = []
        for value in piece:
            if last_reader[value] > k:
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
        # Freed only now: no chunk may store to a slot that it loads.
        for value in loads:
            if last_reader[value] == k:
                free.append(slot[value])
    return _Split(tuple(chunks), num_slots)


def _reads(
    program: Program,
    piece: list[int],
    writes: list[tuple[int, int]],
    home: dict[int, int],
    chunk: int,
) -> tuple[list[int], list[int]]:
    """Values of earlier chunks that a piece reads, and the piece with its inputs and constants."""
    loads: dict[int, None] = {}
    instrs: dict[int, None] = {}
    for value in piece:
        for x in _read(program, value):
            if x not in home:
                instrs[x] = None
            elif home[x] != chunk:
                loads[x] = None
        instrs[value] = None
    instrs.update((value, None) for _, value in writes if value not in home)
    return list(loads), list(instrs)
