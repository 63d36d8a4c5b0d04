"""Memory from which loops read their invariant inputs.

Arrays of loops over rows are read where they are if their columns lie in memory at equal distances from row
to row: in the outputs of an earlier loop, or among the inputs of the loop body that contains the loop. Long
runs of invariant inputs of other loops are read where they are as well, and so are the matrices of dense
operations. An array of constants is a constant of the code. All other inputs are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchsko.fused.program.program import Loop, Program, RowAccess

COPY, OUTPUT, INPUT, CONSTANT = "copy", "output", "input", "constant"

MIN_RUN = 16
"""Fewest scalars of a run that is read where it is by a loop that is not one over rows."""

Pieces = Sequence[range]
"""Inputs of a program that follow each other in memory."""


@dataclass(frozen=True)
class RowSource:
    """Columns of one array that lie in memory at equal distances from row to row.

    Attributes:
        kind: of the memory.
        owner: the value of the loop of which the columns are outputs, or the number of the piece of inputs.
        first: place of the first scalar in this memory.
        stride: distance between rows.
        columns: columns of the array.
        offsets: places of the columns in the first row, behind the first scalar.
        constants: numbers of constants, by rows.
    """

    kind: str
    owner: int
    first: int
    stride: int
    columns: tuple[int, ...]
    offsets: tuple[int, ...]
    constants: tuple[float, ...] = ()

    @property
    def layout(self) -> tuple[object, ...]:
        """All that determines the text of a loop function."""
        return self.kind == CONSTANT, self.stride, self.columns, self.offsets, self.constants


@dataclass(frozen=True)
class LoopSources:
    """Memory of the invariant inputs of a loop.

    Attributes:
        arrays: the sources of each array that is read by rows, or of each run.
        copied: values that are copied: arrays by rows, then single scalars.
        num_in_arrays: number of copied values of arrays.
        runs: for a loop that is not one over rows, consecutive invariant inputs, each run with the number of
            its source, or None if it is copied.
        variable: the source of the variable matrix of a dense operation; None if it is copied.
    """

    arrays: tuple[tuple[RowSource, ...], ...]
    copied: tuple[int, ...]
    num_in_arrays: int
    runs: tuple[tuple[range, int | None], ...] = ()
    variable: RowSource | None = None

    @property
    def pointers(self) -> list[RowSource]:
        """The sources that are not constants."""
        arrays = [x for sources in self.arrays for x in sources if x.kind != CONSTANT]
        return arrays if self.variable is None else [self.variable, *arrays]

    def copied_variable(self, loop: Loop, args: Sequence[int]) -> Sequence[int]:
        """The inputs of the instruction of a loop that are copied to its region."""
        return args[1 : 1 + loop.num_variable] if self.variable is None else ()

    def pieces(self, loop: Loop) -> list[range]:
        """Inputs of the body of a loop that is not one over rows which follow each other in memory."""
        first = loop.carry + loop.stream
        runs = [range(first + run.start, first + run.stop) for run, _ in self.runs]
        return [range(loop.carry), range(loop.carry, first), *runs]


def sources_of(program: Program, value: int, pieces: Pieces) -> LoopSources:
    """The memory of the invariant inputs of a loop.

    Args:
        program: the program that contains the loop.
        value: the value of the loop.
        pieces: inputs of the program that lie in memory.
    """
    loop = program.loop_of(value)
    args = program.code[value].args[1 + loop.num_variable :]
    if not loop.writes:
        found = _of_runs(program, args, pieces)
        block = loop.program.block
        if block is None:
            return found
        # A dense operation reads each matrix from one place.
        found = LoopSources((), args, 0) if len(found.runs) > 1 else found
        variable = program.code[value].args[1 : 1 + loop.num_variable]
        place = None if block.kind == "store" else _place_of_run(program, variable, pieces)
        return found if place is None else replace(found, variable=place)
    arrays, copied, start = [], [], 0
    for access in loop.reads:
        columns = [
            args[start + k : start + access.size : access.width] for k in range(access.width)
        ]
        start += access.size
        found = _sources(program, access, columns, pieces)
        rest = sorted({*range(access.width)} - {k for x in found for k in x.columns})
        if rest:
            offsets = tuple(range(len(rest)))
            found.append(RowSource(COPY, value, len(copied), len(rest), tuple(rest), offsets))
            copied += [columns[k][row] for row in range(access.rows) for k in rest]
        arrays.append(tuple(found))
    return LoopSources(tuple(arrays), (*copied, *args[start:]), len(copied))


def _of_runs(program: Program, args: Sequence[int], pieces: Pieces) -> LoopSources:
    """The memory of invariant inputs that are no arrays."""
    places = [_place_of(program, x, pieces) for x in args]
    found: list[tuple[range, int | None]] = []
    sources: list[RowSource] = []
    copied: list[int] = []
    start = 0
    while start < len(args):
        stop, place = start + 1, places[start]
        while place and stop < len(args) and places[stop] == (*place[:2], place[2] + stop - start):
            stop += 1
        if place and stop - start >= MIN_RUN:
            found.append((range(start, stop), len(sources)))
            sources.append(RowSource(*place, 1, (), ()))
        else:
            is_continued = bool(found) and found[-1][1] is None
            first = found.pop()[0].start if is_continued else start
            found.append((range(first, stop), None))
            copied += args[start:stop]
        start = stop
    return LoopSources(tuple((x,) for x in sources), tuple(copied), 0, tuple(found))


def _place_of_run(program: Program, args: Sequence[int], pieces: Pieces) -> RowSource | None:
    """The memory of values that follow each other, or None."""
    places = [_place_of(program, x, pieces) for x in args]
    first = places[0]
    if first is None:
        return None
    is_run = all(x == (*first[:2], first[2] + k) for k, x in enumerate(places))
    return RowSource(*first, 1, (), ()) if is_run else None


class _Place(NamedTuple):
    kind: str
    owner: int
    first: int
    stride: int


def _sources(
    program: Program, access: RowAccess, columns: Sequence[Sequence[int]], pieces: Pieces
) -> list[RowSource]:
    """The sources of all columns that need not be copied."""
    groups: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for k, column in enumerate(columns):
        place = _place(program, column, pieces)
        if place is not None:
            key = place.kind, place.owner, place.stride
            groups.setdefault(key, []).append((k, place.first))
    found = []
    for (kind, owner, stride), members in groups.items():
        numbers = tuple(k for k, _ in members)
        if kind == CONSTANT:
            values = tuple(
                program.constants[program.code[columns[k][row]].args[0]]
                for row in range(access.rows)
                for k in numbers
            )
            width = len(numbers)
            found.append(RowSource(kind, owner, 0, width, numbers, tuple(range(width)), values))
            continue
        first = min(place for _, place in members)
        offsets = tuple(place - first for _, place in members)
        found.append(RowSource(kind, owner, first, stride, numbers, offsets))
    return found


def _place(program: Program, column: Sequence[int], pieces: Pieces) -> _Place | None:
    """The memory of a column, or None if its scalars are not at equal distances."""
    if all(program.code[x].op == "const" for x in column):
        return _Place(CONSTANT, 0, 0, 0)
    places = [_place_of(program, x, pieces) for x in column]
    first = places[0]
    if first is None or any(x is None or x[:2] != first[:2] for x in places):
        return None
    at = [x[2] for x in places if x is not None]
    stride = at[1] - at[0] if len(at) > 1 else 0
    is_even = all(x == at[0] + k * stride for k, x in enumerate(at))
    return _Place(*first, stride) if is_even else None


def _place_of(program: Program, value: int, pieces: Pieces) -> tuple[str, int, int] | None:
    """Kind, owner and place of a value that lies in memory."""
    op, args = program.code[value]
    if op == "part":
        return OUTPUT, args[0], program.loop_of(args[0]).position_of_part(args[1])
    if op == "input":
        piece = next((j for j, x in enumerate(pieces) if args[0] in x), None)
        return None if piece is None else (INPUT, piece, args[0])
    return None
