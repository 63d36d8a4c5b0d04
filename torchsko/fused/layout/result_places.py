"""Where the results of a program stand as vectors, before the driver makes rows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchsko.fused.layout.schedule import Chunk, Schedule
from torchsko.fused.program.program import Program


@dataclass(frozen=True)
class Places:
    """Where results stand as vectors, before they become rows.

    Attributes:
        program: whose results.
        own: how many vectors there are for results alone; the slots are behind them, the inputs before them.
        at: for each result its vector.
        by: for each result the vector that it is still to be multiplied with; empty where there is none.
        numbers: further vectors that are the same for all samples.
    """

    program: Program
    own: int
    at: Sequence[int]
    by: Sequence[int] = ()
    numbers: Mapping[int, float] = field(default_factory=dict)

    @staticmethod
    def in_order(program: Program) -> Places:
        """Each result has a vector of its own."""
        return Places(program, len(program.results), range(len(program.results)))

    @staticmethod
    def of(cuts: Schedule) -> Places:
        """Equal results have one vector; what a loop gives stays in its region of the slots."""
        own: dict[int, int] = {}
        for value in cuts.program.results:
            if cuts.program.code[value].op != "part":
                own.setdefault(value, len(own))
        numbers, by = _multiples(cuts, len(own))
        num_own = len(own) + len(numbers)
        at = [
            own[value] if value in own else num_own + cuts.place_of_part(value)
            for value in cuts.program.results
        ]
        return Places(cuts.program, num_own, at, by, numbers)

    @property
    def constants(self) -> dict[int, float]:
        """Vectors that no chunk writes, since they are the same for all samples.

        A torque regressor is mostly zeros: ten thousand stores in one function take a compiler a minute.
        """
        numbered = zip(self.at, self.program.results, strict=True)
        found = ((at, self.program.code[value]) for at, value in numbered)
        own = {at: self.program.constants[x.args[0]] for at, x in found if x.op == "const"}
        return {**own, **self.numbers}

    def of_chunk(self, chunk: Chunk) -> Chunk:
        """A chunk whose outputs are the vectors that it writes."""
        vectors = ((self.at[k], value) for k, value in chunk.outputs)
        written = (
            (at, value)
            for at, value in vectors
            if at < self.own and self.program.code[value].op != "const"
        )
        return replace(chunk, outputs=tuple(dict.fromkeys(written)))

    def zero_blocks(self, width: int) -> Iterator[int]:
        """For each port's whole blocks of scalars, whether all are zeros."""
        zeros = {at for at, x in self.constants.items() if x == 0}
        first = 0
        for port in self.program.outputs:
            for k in range(first, first + port.size // width * width, width):
                yield int(zeros.issuperset(self.at[k : k + width]))
            first += port.size


def _multiples(cuts: Schedule, first: int) -> tuple[dict[int, float], list[int]]:
    """Numbers that results are still to be multiplied with, by their vectors, and the vector of each result.

    The first is one, for all other results; inputs, which stand before the results, are where they are.
    """
    if not cuts.factors:
        return {}, []
    program = cuts.program
    num_inputs = sum(port.size for port in program.inputs)
    numbers, places = {first: 1.0}, dict[int, int]()
    for value in dict.fromkeys(cuts.factors.values()):
        op, (k,) = program.code[value]
        if op == "input":
            places[value] = k - num_inputs
        else:
            places[value] = first + len(numbers)
            numbers[places[value]] = program.constants[k]
    by = [
        places[cuts.factors[at]] if at in cuts.factors else first
        for at in range(len(program.results))
    ]
    return numbers, by
