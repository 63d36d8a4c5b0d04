"""Removal of dead code: values that no result depends on, and scalars of loops that nothing reads.

A loop is traced with all of its outputs: the carry of each iteration, stacked and summed outputs. Which of
them are read is known when the whole program is: a forward loop alone is read at its end, its derivative
reads the carry of each iteration, and a gradient may be needed by some inputs only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import gcd

from torchsko.fused.program.program import Instr, Loop, Port, Program, RowAccess


def prune(program: Program) -> Program:
    """The program without dead code; its loops keep the outputs that are read.

    Args:
        program: a program with these results.

    Returns:
        A program of the same inputs and results; the program itself if it has no dead code.
    """
    return _Pruning().pruned(program, range(len(program.results)), None)


@dataclass(frozen=True)
class _LiveLoop:
    """The live scalars of a loop, each by its position among those of its role.

    Attributes:
        carry: carried scalars.
        stream: streamed scalars of one iteration.
        invariant: invariant scalars.
        stacked: stacked scalars of one iteration.
        summed: summed scalars.
        kept: carried scalars that are read after other iterations than the last.
        every: greatest common divisor of the numbers of these iterations.
    """

    carry: tuple[int, ...]
    stream: tuple[int, ...]
    invariant: tuple[int, ...]
    stacked: tuple[int, ...]
    summed: tuple[int, ...]
    kept: tuple[int, ...]
    every: int

    def arguments(self, loop: Loop) -> list[int]:
        """Positions of the live inputs among those of the loop."""
        rounds = range(loop.carry, loop.num_variable, loop.stream or 1) if loop.stream else ()
        return [
            *self.carry,
            *(start + k for start in rounds for k in self.stream),
            *(loop.num_variable + k for k in self.invariant),
        ]

    def inputs(self, loop: Loop) -> list[int]:
        """Live inputs of the body."""
        first = loop.carry + loop.stream
        return [
            *self.carry,
            *(loop.carry + k for k in self.stream),
            *(first + k for k in self.invariant),
        ]

    def outputs(self, loop: Loop) -> list[int]:
        """Live outputs of the body."""
        first = loop.carry + loop.stacked
        return [
            *self.carry,
            *(loop.carry + k for k in self.stacked),
            *(first + k for k in self.summed),
        ]

    def part(self, loop: Loop, old: int) -> int:
        """The number of an output of the loop among the live ones."""
        first_stacked = (loop.count + 1) * loop.carry
        first_summed = first_stacked + loop.count * loop.stacked
        stacked = (loop.count + 1) * len(self.carry)
        if old < first_stacked:
            k, scalar = divmod(old, loop.carry)
            return k * len(self.carry) + self.carry.index(scalar)
        if old < first_summed:
            k, scalar = divmod(old - first_stacked, loop.stacked)
            return stacked + k * len(self.stacked) + self.stacked.index(scalar)
        summed = stacked + loop.count * len(self.stacked)
        return summed + self.summed.index(old - first_summed)


@dataclass(frozen=True)
class _LiveTable:
    """The live scalars of a loop over rows.

    Attributes:
        reads: live columns of each array that is read.
        single: live invariant scalars behind the arrays, by position among them.
        writes: live columns of each array that is written.
    """

    reads: tuple[tuple[int, ...], ...]
    single: tuple[int, ...]
    writes: tuple[tuple[int, ...], ...]

    def arguments(self, loop: Loop) -> list[int]:
        """Positions of the live inputs among those of the loop."""
        arrays = _entries(loop.reads, self.reads, [x.rows for x in loop.reads])
        first = sum(x.size for x in loop.reads)
        return [*arrays, *(first + k for k in self.single)]

    def inputs(self, loop: Loop) -> list[int]:
        """Live inputs of the body."""
        rows = _entries(loop.reads, self.reads, [x.slots for x in loop.reads])
        first = sum(x.slots * x.width for x in loop.reads)
        return [*rows, *(first + k for k in self.single)]

    def outputs(self, loop: Loop) -> list[int]:
        """Live outputs of the body."""
        return _entries(loop.writes, self.writes, [x.slots for x in loop.writes])

    def part(self, loop: Loop, old: int) -> int:
        """The number of an output of the loop among the live ones."""
        first = 0
        for access, columns in zip(loop.writes, self.writes, strict=True):
            if old < access.size:
                row, column = divmod(old, access.width)
                return first + row * len(columns) + columns.index(column)
            old -= access.size
            first += access.rows * len(columns)
        raise IndexError(old)

    def pruned(self, loop: Loop, program: Program) -> Loop:
        """The loop of the live scalars, with its body."""
        reads, writes = (
            tuple(
                replace(x, width=len(columns))
                for x, columns in zip(every, live, strict=True)
                if columns
            )
            for every, live in ((loop.reads, self.reads), (loop.writes, self.writes))
        )
        num_inputs = len(self.arguments(loop))
        return Loop.over_rows(program, loop.count, reads, writes, num_inputs, loop.guarded)


def _entries(
    accesses: Sequence[RowAccess], live: Sequence[Sequence[int]], rows: Sequence[int]
) -> list[int]:
    """Positions of live columns in consecutive arrays with these numbers of rows."""
    found, first = [], 0
    for access, columns, num in zip(accesses, live, rows, strict=True):
        found += [first + row * access.width + k for row in range(num) for k in columns]
        first += num * access.width
    return found


@dataclass(frozen=True)
class _Live:
    """The live values and inputs of a program, and its loops by their values."""

    values: frozenset[int]
    inputs: frozenset[int]
    loops: dict[int, _LiveLoop | _LiveTable]


class _Pruning:
    """Results of earlier calls, by program and results."""

    def __init__(self) -> None:
        self._live: dict[tuple[int, frozenset[int]], _Live] = {}
        self._pruned: dict[tuple[int, tuple[int, ...], tuple[int, ...] | None], Program] = {}
        self._programs: list[Program] = []  # keeps the ids valid

    def live(self, program: Program, results: Iterable[int]) -> _Live:
        """The values and inputs that these results depend on; a dense operation has all of its ports."""
        if program.block is not None:
            inputs = range(sum(port.size for port in program.inputs))
            return _Live(frozenset(), frozenset(inputs), {})
        key = id(program), frozenset(results)
        if key not in self._live:
            self._programs.append(program)
            self._live[key] = self._find_live(program, key[1])
        return self._live[key]

    def _find_live(self, program: Program, results: frozenset[int]) -> _Live:
        values = {program.results[k] for k in results}
        inputs: set[int] = set()
        parts: dict[int, set[int]] = {}
        loops: dict[int, _LiveLoop | _LiveTable] = {}
        for value in reversed(range(len(program.code))):
            if value not in values:
                continue
            op, args = program.code[value]
            if op == "input":
                inputs.update(args)
            elif op == "loop":
                loop = program.loop_of(value)
                live_of = self._live_table if loop.writes else self._live_loop
                loops[value] = live_of(loop, parts[value])
                values.update(args[1 + k] for k in loops[value].arguments(loop))
            else:
                values.update(program.operands(value))
                if op == "part":
                    parts.setdefault(args[0], set()).add(args[1])
        return _Live(frozenset(values), frozenset(inputs), _sharing_invariants(program, loops))

    def _live_loop(self, loop: Loop, parts: Iterable[int]) -> _LiveLoop:
        rounds: dict[int, set[int]] = {}
        stacked: set[int] = set()
        summed: set[int] = set()
        first_stacked = (loop.count + 1) * loop.carry
        first_summed = first_stacked + loop.count * loop.stacked
        if loop.program.block is not None:
            stacked.update(range(loop.stacked))
        for k in parts:
            if k < first_stacked:
                rounds.setdefault(k % loop.carry, set()).add(loop.round_of(k // loop.carry))
            elif k < first_summed:
                stacked.add((k - first_stacked) % loop.stacked)
            else:
                summed.add(k - first_summed)
        carry = {*rounds, *range(loop.carry - loop.flags, loop.carry)}
        while True:
            outputs = [
                *carry,
                *(loop.carry + k for k in stacked),
                *(loop.carry + loop.stacked + k for k in summed),
            ]
            read = self.live(loop.program, outputs).inputs
            more = {k for k in read if k < loop.carry} - carry
            if not more:
                break
            carry |= more
        kept = [k for k, numbers in rounds.items() if numbers != {loop.count}]
        first = loop.carry + loop.stream
        return _LiveLoop(
            _ordered(carry),
            _ordered(k - loop.carry for k in read if loop.carry <= k < first),
            _ordered(k - first for k in read if k >= first),
            _ordered(stacked),
            _ordered(summed),
            _ordered(kept),
            gcd(*(n for k in kept for n in rounds[k] if n != loop.count)) or 1,
        )

    def _live_table(self, loop: Loop, parts: Iterable[int]) -> _LiveTable:
        columns: list[set[int]] = [set() for _ in loop.writes]
        ends = list(accumulate(x.size for x in loop.writes))
        for k in parts:
            j = bisect_right(ends, k)
            columns[j].add((k - ends[j] + loop.writes[j].size) % loop.writes[j].width)
        writes = tuple(map(_ordered, columns))
        slots = [x.slots for x in loop.writes]
        read = set(self.live(loop.program, _entries(loop.writes, writes, slots)).inputs)
        read |= {0} if loop.guarded else set()
        found, first = [], 0
        for access in loop.reads:
            size = access.slots * access.width
            own = {(k - first) % access.width for k in read if first <= k < first + size}
            found.append(_ordered(own))
            first += size
        return _LiveTable(tuple(found), _ordered(k - first for k in read if k >= first), writes)

    def pruned(
        self, program: Program, results: Sequence[int], inputs: Sequence[int] | None
    ) -> Program:
        """The program of some results, and of some inputs, with ports of the remaining scalars."""
        if program.block is not None:
            return program
        key = id(program), tuple(results), None if inputs is None else tuple(inputs)
        if key not in self._pruned:
            self._programs.append(program)
            self._pruned[key] = self._new_program(program, results, inputs)
        return self._pruned[key]

    def _new_program(
        self, program: Program, results: Sequence[int], inputs: Sequence[int] | None
    ) -> Program:
        live = self.live(program, results)
        number_of_input = None if inputs is None else {k: i for i, k in enumerate(inputs)}
        code: list[Instr] = []
        number: dict[int, int] = {}
        loops: list[Loop] = []
        constants: dict[int, int] = {}
        for value in sorted(live.values):
            op, args = program.code[value]
            if op == "const":
                args = (constants.setdefault(args[0], len(constants)),)
            elif op == "input":
                args = args if number_of_input is None else (number_of_input[args[0]],)
            elif op == "loop":
                old, use = program.loop_of(value), live.loops[value]
                given = [number[args[1 + k]] for k in use.arguments(old)]
                args = (len(loops), *given)
                loops.append(self._loop(old, use))
            elif op == "part":
                old = program.loop_of(args[0])
                args = number[args[0]], live.loops[args[0]].part(old, args[1])
            else:
                args = tuple(number[x] for x in args)
            number[value] = len(code)
            code.append(Instr(op, args))
        found = Program(
            program.inputs if inputs is None else _ports(program.inputs, inputs),
            _ports(program.outputs, results),
            tuple(code),
            tuple(program.constants[k] for k in constants),
            tuple(number[program.results[k]] for k in results),
            tuple(loops),
            stored=program.stored,
        )
        return program if found == program else found

    def _loop(self, loop: Loop, live: _LiveLoop | _LiveTable) -> Loop:
        inputs, outputs = live.inputs(loop), live.outputs(loop)
        program = self.pruned(loop.program, outputs, inputs)
        if isinstance(live, _LiveTable):
            return live.pruned(loop, program)
        carry, stream, stacked = loop.ports
        bounds = (0, carry), (carry, carry + stream)
        of_inputs = [_num_ports(loop.program.inputs, inputs, *x) for x in bounds]
        of_stacked = _num_ports(loop.program.outputs, outputs, carry, carry + stacked)
        place = {k: i for i, k in enumerate(live.carry)}
        return replace(
            loop,
            program=program,
            ports=(*of_inputs, of_stacked),
            carry=len(live.carry),
            stream=len(live.stream),
            invariant=len(live.invariant),
            stacked=len(live.stacked),
            summed=len(live.summed),
            kept=tuple(place[k] for k in live.kept),
            every=live.every,
        )


def _ordered(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))


def _sharing_invariants(
    program: Program, loops: dict[int, _LiveLoop | _LiveTable]
) -> dict[int, _LiveLoop | _LiveTable]:
    """Loops of equal invariant inputs keep the same ones, so that they share one copy of them."""
    read: dict[tuple[int, ...], set[int]] = {}
    for value, live in loops.items():
        if isinstance(live, _LiveLoop):
            read.setdefault(_invariants(program, value), set()).update(live.invariant)
    return {
        value: replace(live, invariant=_ordered(read[_invariants(program, value)]))
        if isinstance(live, _LiveLoop)
        else live
        for value, live in loops.items()
    }


def _invariants(program: Program, value: int) -> tuple[int, ...]:
    return program.code[value].args[1 + program.loop_of(value).num_variable :]


def _sizes(ports: Sequence[Port], scalars: Sequence[int]) -> list[int]:
    """Number of remaining scalars of each port."""
    remaining, sizes, start = set(scalars), [], 0
    for port in ports:
        sizes.append(sum(k in remaining for k in range(start, start + port.size)))
        start += port.size
    return sizes


def _ports(ports: Sequence[Port], scalars: Sequence[int]) -> tuple[Port, ...]:
    """The ports of the remaining scalars; a port of which some are gone is a vector of the others."""
    pairs = zip(ports, _sizes(ports, scalars), strict=True)
    return tuple(
        port if size == port.size else replace(port, shape=(size,))
        for port, size in pairs
        if size or not port.size
    )


def _num_ports(ports: Sequence[Port], scalars: Sequence[int], start: int, stop: int) -> int:
    """The number of remaining ports from ``start`` to ``stop``."""
    pairs = list(zip(ports, _sizes(ports, scalars), strict=True))[start:stop]
    return sum(bool(size) or not port.size for port, size in pairs)
