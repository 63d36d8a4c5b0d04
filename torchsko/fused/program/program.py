"""The scalar program: what the tracer writes and the code generators read.

A program is straight-line but for loops, each one instruction, and in static single assignment: value ``k``
is the result of ``code[k]``, which reads values with smaller numbers only. It computes every output for *one*
sample; a code generator wraps it in one loop over the batch.

======== ============================ ===================================================
op       args                         value
======== ============================ ===================================================
const    (index,)                     ``constants[index]``
input    (index,)                     scalar ``index`` of the concatenated, flattened inputs
add      (x, y)                       x + y
sub      (x, y)                       x - y
mul      (x, y)                       x * y
div      (x, y)                       x / y
neg      (x,)                         -x
recip    (x,)                         1 / x
sqrt     (x,)                         square root
sin cos  (x,)                         sine, cosine
...      (x,) or (x, y)               the further names of ``UNARY`` and ``BINARY``
where    (c, x, y)                    x if c != 0 else y
loop     (index, x, ...)              ``loops[index]`` of these; only its parts are read
part     (loop, index)                one scalar of what a loop gives
======== ============================ ===================================================

Comparisons (``lt le gt ge eq ne``) give 1 or 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from torchsko.errors import FusedError
from torchsko.implicit.step_roles import Roles

UNARY = (
    "neg recip sqrt sin cos tan exp log tanh atan asin acos sign abs expm1 log1p erf sinh cosh "
    "floor trunc round"
).split()
BINARY = "add sub mul div pow atan2 fmod min max lt le gt ge eq ne".split()
TERNARY = ("where",)


MOST_OPERATIONS = 500_000
"""Of a program: the compiler needs some minutes for so many."""


def refuse_size(operations: int) -> None:
    """Refuse a program that would take longer to build than anyone waits.

    Raises:
        FusedError: names the number of operations.
    """
    if operations > MOST_OPERATIONS:
        raise FusedError(
            f"the kernel would have {operations} operations, more than {MOST_OPERATIONS}.",
            "It is a straight line, with every product of every matrix spelt out.",
            "Run large networks eagerly and fuse the step alone, or fuse fewer steps.",
        )


class Instr(NamedTuple):
    """One scalar operation: its name and the numbers of the values that it reads."""

    op: str
    args: tuple[int, ...]


def operands_of(op: str, args: tuple[int, ...]) -> tuple[int, ...]:
    """What an instruction reads of other values: some of its arguments are places in tables."""
    if op in ("const", "input"):
        return ()
    return args[1:] if op == "loop" else args[:1] if op == "part" else args


@dataclass(frozen=True)
class Port:
    """One input or output of a program.

    Attributes:
        name: for messages only; never part of generated source.
        shape: shape for one sample.
        shared: for an input, True when one value serves the whole batch (no batch dimension).
    """

    name: str
    shape: tuple[int, ...]
    shared: bool = False

    @property
    def size(self) -> int:
        """Number of scalars for one sample."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Program:
    """A straight-line scalar program for one sample.

    Attributes:
        inputs: the input ports, in call order; ``input`` instructions number their scalars through.
        outputs: the output ports, in result order.
        code: the instructions; position is value number.
        constants: the table that ``const`` instructions index, exact doubles.
        results: for every output scalar, in port order, the value that it takes.
        loops: the table that ``loop`` instructions index.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    code: tuple[Instr, ...]
    constants: tuple[float, ...]
    results: tuple[int, ...]
    loops: tuple[Loop, ...] = ()

    @property
    def num_flops(self) -> int:
        """Arithmetic instructions, all but ``const`` and ``input``; those of equal loops count once."""
        return sum(
            instr.op not in ("const", "input", "loop", "part")
            for program in self.distinct()
            for instr in program.code
        )

    def operands(self, value: int) -> tuple[int, ...]:
        """Values that are to be computed before this one; none of a constant or an input."""
        return operands_of(*self.code[value])

    def loop_of(self, value: int) -> Loop:
        """The loop that a ``loop`` instruction repeats."""
        return self.loops[self.code[value].args[0]]

    def distinct(self) -> tuple[Program, ...]:
        """This one and those of its loops, each once."""
        inner = (program for loop in self.loops for program in loop.program.distinct())
        return tuple(dict.fromkeys((self, *inner)))


@dataclass(frozen=True)
class Loop:
    """A program that is repeated within another one.

    Attributes:
        program: of one round. Its inputs are the state, what comes anew, what stays; its outputs the next
            state, what is stacked, what is summed.
        count: number of rounds.
        backward: whether what comes anew is taken from its end, and states are numbered from there.
        halts: whether the last scalar of the state says, if it is not 0, that nothing changes any more.
        ports: how many ports are state, anew, stacked.
        carry: scalars of the state.
        stream: scalars that come anew with each round.
        stay: scalars that stay.
        stacked: scalars that are kept round by round.
        summed: scalars that are summed.
    """

    program: Program
    count: int
    backward: bool
    halts: bool
    ports: tuple[int, int, int]
    carry: int
    stream: int
    stay: int
    stacked: int
    summed: int

    @staticmethod
    def of(program: Program, roles: Roles, count: int, backward: bool, halts: bool) -> Loop:
        """The loop of a program whose ports have these roles."""
        inputs, outputs = (
            [port.size for port in ports] for ports in (program.inputs, program.outputs)
        )
        state, anew = roles.carry, roles.carry + roles.stream
        kept = roles.carry + roles.stacked
        return Loop(
            program,
            count,
            backward,
            halts,
            (roles.carry, roles.stream, roles.stacked),
            sum(inputs[:state]),
            sum(inputs[state:anew]),
            sum(inputs[anew:]),
            sum(outputs[state:kept]),
            sum(outputs[kept:]),
        )

    @property
    def num_moving(self) -> int:
        """How many scalars it reads that are not the same in each round."""
        return self.carry + self.count * self.stream

    @property
    def num_parts(self) -> int:
        """How many scalars it gives: states, the start included, what is stacked, what is summed."""
        return (self.count + 1) * self.carry + self.count * self.stacked + self.summed

    @property
    def num_out(self) -> int:
        """How many results of a round are distributed after it; what is stacked alone goes to its place."""
        alone = self.carry == self.summed == 0
        return 0 if alone else self.carry + self.stacked + self.summed

    @property
    def region_size(self) -> int:
        """Vectors of its own, besides the scratch of its program; see `torchsko.fused.emit.loop_source`."""
        return self.num_moving + self.num_parts + self.carry + self.num_out
