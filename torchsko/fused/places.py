"""Where the results of a program stand as vectors, before the driver makes rows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchsko.fused.program import Program
from torchsko.fused.schedule import Chunk, Schedule


@dataclass(frozen=True)
class Places:
    """Where results stand as vectors, before they become rows.

    Attributes:
        program: whose results.
        own: how many vectors there are for results alone; the slots are behind them.
        at: for each result its vector.
    """

    program: Program
    own: int
    at: Sequence[int]

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
        at = [
            own[value] if value in own else len(own) + cuts.place_of_part(value)
            for value in cuts.program.results
        ]
        return Places(cuts.program, len(own), at)

    @property
    def constants(self) -> dict[int, float]:
        """Vectors that no chunk writes, since they are the same for all samples.

        A torque regressor is mostly zeros: ten thousand stores in one function take a compiler a minute.
        """
        numbered = zip(self.at, self.program.results, strict=True)
        found = ((at, self.program.code[value]) for at, value in numbered)
        return {at: self.program.constants[x.args[0]] for at, x in found if x.op == "const"}

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
