"""Scalar programs: the intermediate representation between the tracer and the code generators.

A program is straight-line code in static single assignment form: value ``k`` is the result of
``code[k]``, which reads values with smaller numbers only. A loop is one instruction. The program
computes every output for *one* sample; a code generator wraps it in one loop over the batch.

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
...      (x,) or (x, y)               the other names of ``UNARY`` and ``BINARY``
where    (c, x, y)                    x if c != 0 else y
rare     (x,)                         x, a condition that few samples fulfil
loop     (index, x, ...)              ``loops[index]`` of these inputs; only its parts are read
part     (loop, index)                one output scalar of a loop
======== ============================ ===================================================

Comparisons (``lt le gt ge eq ne``) give 1 or 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from torchsko.errors import FusedError
from torchsko.fused.program.dense_block import DenseBlock
from torchsko.implicit.loop_roles import LoopRoles
from torchsko.utils.computed import computed

UNARY = (
    "neg recip sqrt sin cos tan exp log tanh atan asin acos sign abs expm1 log1p erf sinh cosh "
    "floor trunc round rare"
).split()
BINARY = "add sub mul div pow atan2 fmod min max lt le gt ge eq ne".split()
TERNARY = ("where",)


MAX_OPERATIONS = 500_000
"""Largest number of operations of a program; the compiler needs several minutes for this many."""


def refuse_size(operations: int) -> None:
    """Refuse a program that takes too long to compile.

    Raises:
        FusedError: there are more than `MAX_OPERATIONS` operations.
    """
    if operations > MAX_OPERATIONS:
        raise FusedError(
            f"the kernel would have {operations} operations, more than {MAX_OPERATIONS}.",
            "Kernels are straight-line code that contains every product of every matrix.",
            "Run large networks eagerly and fuse the step alone, or fuse fewer steps.",
        )


class Instr(NamedTuple):
    """One scalar operation: its name and the numbers of the values that it reads."""

    op: str
    args: tuple[int, ...]


def operands_of(op: str, args: tuple[int, ...]) -> tuple[int, ...]:
    """The values that an instruction reads; its other arguments are table indices."""
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
        inputs: the input ports, in call order; ``input`` instructions number all their scalars consecutively.
        outputs: the output ports, in result order.
        code: the instructions; position is value number.
        constants: the table that ``const`` instructions index, exact doubles.
        results: for every output scalar, in port order, the value that it takes.
        loops: the table that ``loop`` instructions index.
        block: a dense operation that the program stands for, which then has ports and no code.
        stored: keys of the solutions that are the last output ports; see
            `torchsko.fused.tracing.stored_solutions`.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    code: tuple[Instr, ...]
    constants: tuple[float, ...]
    results: tuple[int, ...]
    loops: tuple[Loop, ...] = ()
    block: DenseBlock | None = None
    stored: tuple[tuple[int, ...], ...] = ()

    @computed
    def _hash(self) -> int:
        return hash((self.inputs, self.outputs, self.code, self.results))

    def __hash__(self) -> int:  # of long programs, which are keys again and again
        return self._hash

    @computed
    def num_flops(self) -> int:
        """Number of arithmetic instructions; those of equal loop bodies count once."""
        return sum(
            instr.op not in ("const", "input", "loop", "part")
            for program in self.distinct_programs()
            for instr in program.code
        )

    def operands(self, value: int) -> tuple[int, ...]:
        """Values that the instruction of a value reads; empty for constants and inputs."""
        return operands_of(*self.code[value])

    def loop_of(self, value: int) -> Loop:
        """The loop of a ``loop`` instruction."""
        return self.loops[self.code[value].args[0]]

    def distinct_programs(self) -> tuple[Program, ...]:
        """This program and the bodies of its loops, each once."""
        # Hashes of long programs take time, and most loops share the object.
        bodies = {id(loop.program): loop.program for loop in self.loops}.values()
        inner = (body for program in bodies for body in program.distinct_programs())
        return tuple(dict.fromkeys((self, *inner)))


@dataclass(frozen=True)
class RowAccess:
    """Rows of an array that the iterations of a loop read or write; see `torchsko.implicit.table_loop`.

    Attributes:
        rows: number of rows of the array.
        width: number of scalars of a row.
        table: the row of each iteration and slot.
        slots: number of rows of one iteration.
        is_sparse: whether rows of iterations that are skipped are not read.
    """

    rows: int
    width: int
    table: tuple[int, ...]
    slots: int
    is_sparse: bool = False

    @property
    def is_identity(self) -> bool:
        """True if iteration k accesses row k alone."""
        return self.slots == 1 and self.table == tuple(range(self.rows))

    @property
    def size(self) -> int:
        """Number of scalars of the array."""
        return self.rows * self.width


@dataclass(frozen=True)
class Loop:
    """A program that is repeated within another one; `torchsko.implicit.loop_roles` defines the terms.

    Attributes:
        program: the loop body. Its inputs are the carry, the streamed and the invariant inputs; its
            outputs the next carry, the stacked and the summed outputs.
        count: number of iterations.
        reverse: whether iterations go from the last entry of the streamed inputs to the first.
        flags: number of scalars at the end of the carry; if all of them are nonzero, no later iteration
            changes the carry.
        ports: number of carried, streamed and stacked ports.
        carry: number of carried scalars.
        stream: number of streamed scalars of one iteration.
        invariant: number of invariant scalars.
        stacked: number of stacked scalars of one iteration.
        summed: number of summed scalars.
        kept: carried scalars, in increasing order, that are stored after each ``every``-th iteration; all
            others are known only at the end.
        every: iterations between stored carries.
        reads: arrays of which iterations read rows by tables: the first invariant scalars, by rows. Inputs of
            the body are the rows of all slots of each array, then the other invariant scalars.
        writes: arrays of which iterations write rows by tables: the summed scalars, by rows.
        guarded: whether iterations are skipped in which the first scalar of the body is zero in all lanes.
    """

    program: Program
    count: int
    reverse: bool
    flags: int
    ports: tuple[int, int, int]
    carry: int
    stream: int
    invariant: int
    stacked: int
    summed: int
    kept: tuple[int, ...]
    every: int
    reads: tuple[RowAccess, ...] = ()
    writes: tuple[RowAccess, ...] = ()
    guarded: bool = False

    @staticmethod
    def of(
        program: Program,
        roles: LoopRoles,
        count: int,
        *,
        reverse: bool = False,
        stops_early: bool = False,
    ) -> Loop:
        """The loop of a body whose ports have these roles; its last carried port may be the flags."""
        inputs, outputs = (
            [port.size for port in ports] for ports in (program.inputs, program.outputs)
        )
        carry, streamed = roles.carry, roles.carry + roles.stream
        stacked = roles.carry + roles.stacked
        return Loop(
            program,
            count,
            reverse,
            inputs[carry - 1] if stops_early else 0,
            (roles.carry, roles.stream, roles.stacked),
            sum(inputs[:carry]),
            sum(inputs[carry:streamed]),
            sum(inputs[streamed:]),
            sum(outputs[carry:stacked]),
            sum(outputs[stacked:]),
            tuple(range(sum(inputs[:carry]))),
            1,
        )

    @staticmethod
    def over_rows(
        program: Program,
        count: int,
        reads: tuple[RowAccess, ...],
        writes: tuple[RowAccess, ...],
        num_inputs: int,
        guarded: bool,
    ) -> Loop:
        """The loop of a body of rows, with this number of input scalars."""
        num_outputs = sum(x.size for x in writes)
        return Loop(
            program, count, False, 0, (0, 0, 0), 0, 0, num_inputs, 0, num_outputs, (), 1,
            reads, writes, guarded,
        )  # fmt: skip

    @staticmethod
    def of_block(block: DenseBlock) -> Loop:
        """The loop of a dense operation; see `torchsko.fused.program.dense_block`."""
        names = ("variable", "fixed", "result")
        *inputs, result = (
            Port(name, (size,)) for name, size in zip(names, block.sizes, strict=True)
        )
        program = Program(tuple(inputs), (result,), (), (), (), block=block)
        return Loop.of(program, LoopRoles(0, 1, 1, 0), 1)

    @property
    def is_iterated(self) -> bool:
        """True if the loop or one in its body has several iterations."""
        iterates = self.count > 1 and not self.writes
        return iterates or any(loop.is_iterated for loop in self.program.loops)

    @property
    def num_variable(self) -> int:
        """Number of input scalars that are not invariant."""
        return self.carry + self.count * self.stream

    @property
    def num_parts(self) -> int:
        """Number of output scalars: the carry before and after each iteration, stacked and summed outputs."""
        return (self.count + 1) * self.carry + self.count * self.stacked + self.summed

    @property
    def num_copied(self) -> int:
        """Number of body outputs copied after an iteration; 0 if all are written directly."""
        writes_directly = bool(self.writes) or self.carry == self.summed == 0
        return 0 if writes_directly else self.carry + self.stacked + self.summed

    @property
    def num_rows(self) -> int:
        """Number of stored carries, without the last one."""
        return (self.count - 1) // self.every if self.kept else 0

    @property
    def first_stacked(self) -> int:
        """Position of the stacked outputs in the region of the loop."""
        block = self.program.block
        if block is not None and block.kind == "store":
            return 0  # the outputs are the inputs
        return self.num_variable + self.num_rows * len(self.kept)

    @property
    def first_summed(self) -> int:
        """Position of the summed outputs in the region of the loop."""
        return self.first_stacked + self.count * self.stacked

    @property
    def region_size(self) -> int:
        """Number of scratch vectors of inputs that are not invariant and of outputs.

        The region holds, in this order: the carry, at first and at last; streamed inputs; stored carries;
        stacked and summed outputs.
        """
        return self.first_summed + self.summed

    @property
    def work_size(self) -> int:
        """Number of scratch vectors in use during an iteration, without those of the body."""
        return self.carry + self.num_copied

    def round_of(self, k: int) -> int:
        """Number of iterations after which the carry is number k of the outputs."""
        return self.count - k if self.reverse else k

    def position_of_part(self, part: int) -> int:
        """Position in the region of an output, which is not the carry before the first iteration."""
        num_carries = (self.count + 1) * self.carry
        if part >= num_carries:
            return self.first_stacked + part - num_carries
        k, scalar = divmod(part, self.carry)
        done = self.round_of(k)
        if done == self.count:
            return scalar
        row = done // self.every - 1
        return self.num_variable + row * len(self.kept) + bisect_left(self.kept, scalar)
