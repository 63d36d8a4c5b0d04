"""Loops over the rows of arrays at indices from constant tables.

A function of rows, such as the distance of a pair of shapes, is evaluated for all rows at once in eager mode.
A trace would contain it once for each row; `table_loop` makes it a loop of the kernel, whose text does not
grow with the number of rows. The indices are the same for all samples, so that no lane gathers.

An *access* is a table with the row of an array for each iteration. Inputs are read and outputs written by
accesses; rows that several iterations write are sums. The VJP of a loop is a loop that reads cotangents by
the accesses of the outputs and writes gradients by those of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.errors import ShapeError
from torchsko.implicit.jacobian_products import Flags, Tensors, jvp_of, vjp_of
from torchsko.implicit.traced_inputs import first_traced, with_float_inputs
from torchsko.utils.traced_tensor import TracedTensor, is_traced

MIN_ITERATIONS = 9
"""Iterations below which a trace contains the body once for each of them."""

Indices = Sequence[int] | Sequence[Sequence[int]]
"""Row of each iteration, or several rows of each."""


@dataclass(frozen=True)
class Access:
    """Rows of an array that the iterations of a loop read or write.

    Attributes:
        rows: number of rows.
        entries: the row of each iteration and slot.
        slots: number of rows of one iteration; None for one row without a dimension.
        is_sparse: see `Write`.
    """

    rows: int
    entries: tuple[int, ...]
    slots: int | None
    is_sparse: bool = field(default=False, compare=False)

    @property
    def num_slots(self) -> int:
        """Number of rows of one iteration."""
        return 1 if self.slots is None else self.slots

    @property
    def is_identity(self) -> bool:
        """True if iteration k accesses row k alone."""
        return self.slots is None and self.entries == tuple(range(self.rows))


@dataclass(frozen=True, eq=False)
class Table:
    """A table that is an array, for loops that run at each step: a list takes longer than the loop.

    An array is a constant of any trace, where a tensor may be wrapped by a transform.

    Attributes:
        index: the rows, `[iterations]`, or `[iterations, slots]` for several rows of each, int64.
        rows: number of rows of the arrays that are read or written.
    """

    index: np.ndarray
    rows: int

    def tensor(self, device: torch.device) -> Tensor:
        """The rows of all iterations and slots, int64."""
        return torch.tensor(self.index.reshape(-1), device=device)


class Read(NamedTuple):
    """Rows of a tensor that the iterations read.

    Attributes:
        x: a tensor.
        dim: its dimension of rows, negative.
        table: indices; by default iteration k reads row k. With several rows of each iteration, they are a
            further dimension behind that of the iterations.
        is_sparse: whether the tensor is a sparse result of an equally guarded loop; see `Write`.
    """

    x: Tensor
    dim: int
    table: Indices | Table | None = None
    is_sparse: bool = False


class Write(NamedTuple):
    """Rows of a result that the iterations write.

    Attributes:
        dim: the dimension of rows of the result, negative.
        table: indices, as in `Read`; rows that occur several times are sums. By default iteration k writes
            row k.
        rows: number of rows, with a table.
        is_total: whether the result is the sum over all iterations, without a dimension of rows.
        is_sparse: whether only equally guarded loops read the result, so that a kernel need not write zeros
            for iterations that it skips.
    """

    dim: int
    table: Indices | Table | None = None
    rows: int = 0
    is_total: bool = False
    is_sparse: bool = False


def table_loop(
    body: Callable[..., Sequence[Tensor]],
    reads: Sequence[Read],
    writes: Sequence[Write],
    *,
    guarded: bool = False,
) -> Tensors:
    """Evaluate a function of rows: at once in eager mode, by a loop in a kernel.

    Args:
        body: maps the rows of all reads to those of all writes, for any number of iterations, which are a
            dimension of each tensor. It may capture tensors, which are the same in each iteration.
        reads: the inputs; the tensors and tables of at least one depend on the iteration.
        writes: the outputs.
        guarded: whether the outputs of an iteration are zero or have no effect where the first input, one
            number or bool, is zero. A kernel skips iterations in which it is zero in all lanes.

    Returns:
        The results of all writes.

    Raises:
        ShapeError: an index is out of range, tables have different lengths, a table depends on traced values,
            or the body returns another number of tensors or of rows.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> reads = [Read(x, -2, [0, 1, 1])]
        >>> table_loop(lambda row: (2 * row,), reads, [Write(-2, [0, 0, 1], rows=2)])[0]
        tensor([[ 8., 12.],
                [ 6.,  8.]])
    """
    lengths = {x.x.shape[x.dim] if x.table is None else _count(x.table) for x in reads}
    lengths |= {_count(x.table) for x in writes if x.table is not None}
    if len(lengths) != 1:
        raise ShapeError(
            f"the tables of a loop have the lengths {sorted(lengths)}.",
            "A table has an entry for each iteration.",
            "Pass tables of equal lengths.",
        )
    (count,) = lengths
    traced = None if count < MIN_ITERATIONS else first_traced([x.x for x in reads])
    if traced is None:
        return _at_once(body, reads, writes)
    return _traced(traced, body, reads, writes, count, guarded)


def _count(table: Indices | Table) -> int:
    """Number of iterations of a table."""
    return len(table.index if isinstance(table, Table) else table)


def is_looped(x: Tensor, count: int) -> bool:
    """True if `table_loop` with this number of iterations traces a loop of the tensor."""
    return count >= MIN_ITERATIONS and is_traced(x)


def _access(name: str, table: Indices | Table | None, rows: int, is_sparse: bool = False) -> Access:
    """The access by a table, checked; by default row by row."""
    if table is None:
        return Access(rows, tuple(range(rows)), None, is_sparse)
    given: Any = table.index if isinstance(table, Table) else table
    if isinstance(given, Tensor) and is_traced(given):
        raise ShapeError(
            f"the table of {name} of a loop depends on traced values.",
            "The rows that a kernel reads are the same for all samples.",
            "Select entries by torch.where.",
        )
    found: Any = given.tolist() if isinstance(given, (Tensor, np.ndarray)) else given
    has_slots = len(found) > 0 and isinstance(found[0], Sequence)
    lists = found if has_slots else (found,)
    entries = tuple(chain.from_iterable(lists))
    slots = len(lists[0]) if has_slots else None
    is_even = slots is None or all(len(x) == slots for x in lists)
    if not is_even or (entries and not 0 <= min(entries) <= max(entries) < rows):
        wrong = next((k for k in entries if not 0 <= k < rows), None)
        what = "rows of different lengths" if wrong is None else f"the index {wrong}"
        raise ShapeError(
            f"the table of {name} of a loop has {what}.",
            f"The tensor has {rows} rows, and each iteration accesses the same number of them.",
            "Pass indices from 0 to the number of rows less one.",
        )
    return Access(rows, entries, slots, is_sparse)


def _table(name: str, table: Indices | Table, rows: int) -> Table:
    """The table, checked."""
    if isinstance(table, Table) and table.rows == rows:
        return table
    access = _access(name, table, rows)
    shape = (-1,) if access.slots is None else (-1, access.slots)
    return Table(np.array(access.entries, dtype=np.int64).reshape(shape), rows)


def _at_once(
    body: Callable[..., Sequence[Tensor]],
    reads: Sequence[Read],
    writes: Sequence[Write],
) -> Tensors:
    """The results by operations on all rows."""
    rows = []
    for k, (x, dim, table, _) in enumerate(reads):
        if table is not None:
            of_input = _table(f"input {k}", table, x.shape[dim])
            x = x.index_select(dim, of_input.tensor(x.device))
            if of_input.index.ndim > 1:
                x = x.unflatten(dim, of_input.index.shape)
        rows.append(x)
    results = []
    for k, (y, write) in enumerate(zip(_checked(body(*rows), writes), writes, strict=True)):
        if write.is_total:
            y = y.sum(write.dim)
        elif write.table is not None:
            of_output = _table(f"output {k}", write.table, write.rows)
            if of_output.index.ndim > 1:
                y = y.flatten(write.dim - 1, write.dim)
            shape = list(y.shape)
            shape[write.dim] = write.rows
            y = y.new_zeros(shape).index_add(write.dim, of_output.tensor(y.device), y)
        results.append(y)
    return tuple(results)


def _checked(found: Any, writes: Sequence[Write]) -> Sequence[Tensor]:
    if not isinstance(found, (list, tuple)) or len(found) != len(writes):
        num = len(found) if isinstance(found, (list, tuple)) else type(found).__name__
        raise ShapeError(
            f"the body of a loop returns {num} instead of {len(writes)} tensors.",
            "It returns one tensor for each write.",
            "Return a tuple of tensors.",
        )
    return found


def _traced(
    traced: Any,
    body: Callable[..., Sequence[Tensor]],
    reads: Sequence[Read],
    writes: Sequence[Write],
    count: int,
    guarded: bool,
) -> Tensors:
    """The results by a loop of the traced program."""
    dims = [x.dim for x in reads]
    tables = [
        _access(f"input {k}", x.table, x.x.shape[x.dim], x.is_sparse) for k, x in enumerate(reads)
    ]
    out_tables = [
        None
        if y.is_total
        else _access(f"output {k}", y.table, count if y.table is None else y.rows, y.is_sparse)
        for k, y in enumerate(writes)
    ]

    def of_iteration(*rows: Tensor) -> Tensors:
        own = [
            x.unsqueeze(dim) if access.slots is None else x.movedim(0, dim).unsqueeze(dim - 1)
            for x, dim, access in zip(rows, dims, tables, strict=False)
        ]
        results = []
        for y, write, access in zip(_checked(body(*own), writes), writes, out_tables, strict=True):
            has_slots = access is not None and access.slots is not None
            place = write.dim - has_slots
            num_slots = 1 if access is None else access.slots
            if y.shape[place] != 1 or (has_slots and y.shape[write.dim] != num_slots):
                raise ShapeError(
                    f"the body of a loop returns a tensor of shape {tuple(y.shape)} for one iteration.",
                    f"Its dimension {place} is that of the iterations, its dimension {write.dim} that of "
                    "the rows.",
                    "Return rows for each iteration.",
                )
            row = y.select(place, 0)
            results.append(row.movedim(write.dim, 0) if has_slots else row)
        return tuple(results)

    converted, captured = traced.convert_closure(of_iteration)
    inputs = [*(x.x.movedim(x.dim, 0) for x in reads), *captured]
    are_bool = [x.dtype == torch.bool for x in inputs]
    converted = with_float_inputs(converted, are_bool)
    floats = [
        torch.where(x, 1.0, 0.0) if flag else x.clone()
        for x, flag in zip(inputs, are_bool, strict=True)
    ]
    accesses = (*tables, *(None for _ in captured))
    loop = TableLoop(converted, count, accesses, tuple(out_tables), guarded)
    found = TableLoopFunction.apply(loop, *floats)
    return tuple(
        y if access is None else y.movedim(0, write.dim)
        for y, write, access in zip(found, writes, out_tables, strict=True)
    )


@dataclass(frozen=True)
class TableLoop:
    """A body that is evaluated for rows of arrays, whose first dimension is that of the rows.

    Attributes:
        body: maps the inputs of one iteration to its outputs.
        count: number of iterations.
        reads: accesses of the inputs; None for one that is the same in all iterations.
        writes: accesses of the outputs; None for one that is summed over all iterations.
        guarded: see `table_loop`.
    """

    body: Callable[..., Tensors]
    count: int
    reads: tuple[Access | None, ...]
    writes: tuple[Access | None, ...]
    guarded: bool

    def guarded_body(self, *tensors: Tensor) -> Tensors:
        """The body, with zeros where the guard does not hold."""
        found = self.body(*tensors)
        if not self.guarded:
            return tuple(found)
        return tuple(torch.where(tensors[0] != 0, y, 0.0) for y in found)

    def run(self, *tensors: Tensor) -> Tensors:
        """The results, one iteration after another."""
        results: list[Tensor] = []
        for k in range(self.count):
            rows = [_rows(x, access, k) for x, access in zip(tensors, self.reads, strict=True)]
            found = self.guarded_body(*rows)
            if not k:
                results = [_zeros(y, access) for y, access in zip(found, self.writes, strict=True)]
            results = [
                total + y if access is None else _added(total, access, k, y)
                for total, y, access in zip(results, found, self.writes, strict=True)
            ]
        return tuple(results)

    def vjp_loop(self, needed: Flags) -> TableLoop:
        """The loop of gradients, from the inputs and the cotangents of the outputs."""
        body = vjp_of(self.body, needed, len(self.writes), False)
        writes = tuple(x for x, flag in zip(self.reads, needed, strict=True) if flag)
        return replace(self, body=body, reads=(*self.reads, *self.writes), writes=writes)

    def jvp_loop(self, moving: Flags) -> TableLoop:
        """The loop of tangents, from the inputs and the tangents of the moving ones."""
        reads = (*self.reads, *(x for x, flag in zip(self.reads, moving, strict=True) if flag))
        return replace(self, body=jvp_of(self.body, moving), reads=reads)


def _rows(x: Tensor, access: Access | None, k: int) -> Tensor:
    if access is None:
        return x
    num = access.num_slots
    rows = x[list(access.entries[k * num : (k + 1) * num])]
    return rows[0] if access.slots is None else rows


def _zeros(y: Tensor, access: Access | None) -> Tensor:
    if access is None:
        return torch.zeros_like(y)
    return y.new_zeros(access.rows, *y.shape[access.slots is not None :])


def _added(total: Tensor, access: Access, k: int, y: Tensor) -> Tensor:
    num = access.num_slots
    index = torch.tensor(access.entries[k * num : (k + 1) * num])
    return total.index_add(0, index, y[None] if access.slots is None else y)


class TableLoopFunction(torch.autograd.Function):
    """`TableLoop.run` of tensors, some of which are traced: one instruction of the program."""

    @staticmethod
    def forward(loop: TableLoop, *tensors: Tensor) -> Tensors:
        """Trace the loop as one instruction, or run it if no tensor is traced."""
        traced = next((x for x in tensors if isinstance(x, TracedTensor)), None)
        return loop.run(*tensors) if traced is None else traced.record_table_loop(loop, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        """Save the inputs."""
        ctx.loop, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.shapes = [x.shape for x in output]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        """Gradients, by a loop with the accesses of inputs and outputs exchanged."""
        tensors = [x.view_as(x) for x in ctx.saved_tensors]
        needed = tuple(ctx.needs_input_grad[1:])
        cotangents = [
            tensors[0].new_zeros(shape) if y is None else y
            for y, shape in zip(grad_outputs, ctx.shapes, strict=True)
        ]
        found = TableLoopFunction.apply(ctx.loop.vjp_loop(needed), *tensors, *cotangents)
        gradients = iter(found)
        return None, *(next(gradients) if flag else None for flag in needed)

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensors:
        """Tangents, by a loop of the JVP of the body."""
        with forward_ad._set_fwd_grad_enabled(True):  # for outer levels
            tensors = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            tangents = [dx for dx in grad_inputs[1:] if dx is not None]
            jvp_loop = ctx.loop.jvp_loop(tuple(dx is not None for dx in grad_inputs[1:]))
            return TableLoopFunction.apply(jvp_loop, *tensors, *tangents)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[Tensors, tuple[int, ...]]:
        """Run the loop of the mapped body; rows remain the first dimension."""
        loop, *tensors = arguments
        dims, moved, body_dims = in_dims[1:], [], []
        for x, d, access in zip(tensors, dims, loop.reads, strict=True):
            place = 0 if access is None else 1
            moved.append(x if d is None else x.movedim(d, place))
            has_slots = access is not None and access.slots is not None
            body_dims.append(None if d is None else int(has_slots))
        out_dims = tuple(int(x is not None and x.slots is not None) for x in loop.writes)
        # The guard of a mapped loop would have one entry for each sample.
        is_mapped = loop.guarded and dims[0] is not None
        mapped = replace(loop, body=loop.guarded_body if is_mapped else loop.body)
        body = torch.vmap(mapped.body, tuple(body_dims), out_dims, randomness=info.randomness)
        mapped = replace(loop, body=body, guarded=loop.guarded and not is_mapped)
        found = TableLoopFunction.apply(mapped, *moved)
        return found, tuple(0 if x is None else 1 for x in loop.writes)
