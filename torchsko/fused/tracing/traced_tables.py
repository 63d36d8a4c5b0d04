"""Loops over rows in a traced function: one instruction, whose body is a program that is traced once.

The instruction reads the scalars of arrays by rows, array after array, then single scalars. Its parts are the
scalars of the arrays that it writes, by rows. `torchsko.implicit.table_loop` defines the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from torchsko.fused.program.elementwise import flat_list, id_array, ids_tensor, input_ids
from torchsko.fused.program.graph import Graph
from torchsko.fused.program.program import Loop, Port, Program, RowAccess
from torchsko.fused.tracing.traced_loops import TracedGraph
from torchsko.implicit.table_loop import Access, TableLoop


@dataclass
class _Columns:
    """Scalars of the inputs of a loop body.

    Attributes:
        arrays: for each access, its columns: the expressions of all rows, the first one positive.
        single: expressions that are the same in all iterations, positive.
    """

    arrays: dict[Access, dict[tuple[int, ...], None]] = field(default_factory=dict)
    single: dict[int, None] = field(default_factory=dict)


Place = tuple[Access | None, tuple[int, ...], int]
"""An access, the key of a column in it, and a sign; without access, a constant or single expression."""


def traced_table_loop(
    trace: Callable[..., Program], graph: TracedGraph, loop: TableLoop, tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Expressions of the outputs of `TableLoop.run`, from those of its inputs.

    Entries that are the same in all rows are constants or single inputs of the body, and equal columns are
    one. Outputs that are constant in the body, or equal, are so outside of it. The body of a guarded loop,
    which skips most rows, adds the terms of sums of outputs of other loops, such as gradients.

    Args:
        trace: makes a program of the loop body; `torchsko.fused.tracing.tracer.trace`.
        graph: the graph that contains the loop.
        loop: the loop.
        tensors: expressions of its inputs, rows first.
    """
    columns = _Columns()
    places = [
        _places(graph, columns, access, x, adds=loop.guarded and k > 0)
        for k, (access, x) in enumerate(zip(loop.reads, tensors, strict=True))
    ]
    reads = tuple(
        RowAccess(access.rows, len(of_access), access.entries, access.num_slots)
        for access, of_access in columns.arrays.items()
    )
    ports = [Port(f"rows{k}", (x.slots, x.width)) for k, x in enumerate(reads)]
    ports.append(Port("single", (len(columns.single),)))

    def arguments(body: TracedGraph) -> list[Tensor]:
        *rows, single = input_ids(body, ports)
        number: dict[Access, dict[tuple[int, ...], int]] = {
            access: {key: j for j, key in enumerate(keys)}
            for access, keys in columns.arrays.items()
        }
        of_array = dict(zip(columns.arrays, (id_array(x).tolist() for x in rows), strict=True))
        of_single = dict(zip(columns.single, flat_list(single), strict=True))

        def entry(place: Place, slot: int) -> int:
            access, key, sign = place
            if access is not None:
                return sign * of_array[access][slot][number[access][key]]
            value = graph.value(key[0])
            return body.const(value) if value is not None else sign * of_single[key[0]]

        found = []
        for access, of_tensor, x in zip(loop.reads, places, tensors, strict=True):
            shape = x.shape if access is None else x.shape[1:]
            slots = 1 if access is None else access.num_slots
            ids = [
                body.sum(entry(place, slot) for place in terms)
                for slot in range(slots)
                for terms in of_tensor
            ]
            has_slots = access is not None and access.slots is not None
            found.append(ids_tensor(ids, (slots, *shape) if has_slots else shape))
        return found

    program = trace(loop.guarded_body, ports, graph.dtype, arguments)
    shapes = [
        port.shape if access is None else (access.rows, *port.shape[access.slots is not None :])
        for access, port in zip(loop.writes, program.outputs, strict=True)
    ]
    program, writes, kept = _distinct_outputs(program, loop)
    args = [
        key[row]
        for access, keys in columns.arrays.items()
        for row in range(access.rows)
        for key in keys
    ]
    # A guard that is known, or the same in all iterations, is not tested.
    access, key, _ = places[0][0][0] if loop.guarded else (None, (), 1)
    is_guarded = access is not None and access.is_identity
    is_guarded = is_guarded and any(graph.value(x) is None for x in key)
    num_inputs = len(args) + len(columns.single)
    instruction = Loop.over_rows(program, loop.count, reads, writes, num_inputs, is_guarded)
    node = graph.table_loop(instruction, [*args, *columns.single])
    return _outputs(graph, node, writes, kept, shapes)


def _places(
    graph: Graph, columns: _Columns, access: Access | None, x: Tensor, *, adds: bool
) -> list[list[Place]]:
    """The places of the terms of all scalars of a row of an input, which are added to the columns.

    Args:
        graph: the graph that contains the loop.
        columns: those of all inputs.
        access: the rows that iterations read; None if they are the same in all of them.
        x: expressions of the input.
        adds: whether the body adds the terms of sums.
    """
    num_rows = 1 if access is None else x.shape[0]
    rows = id_array(x).reshape(num_rows, x.numel() // num_rows)
    found: list[list[Place]] = []
    for column in zip(*rows.tolist(), strict=True):
        first = column[0]
        if all(y == first for y in column):
            if graph.value(first) is None:
                columns.single.setdefault(abs(first))
                found.append([(None, (abs(first),), 1 if first > 0 else -1)])
            else:
                found.append([(None, (first,), 1)])
            continue
        assert access is not None
        terms = _columns_of_terms(graph, column) if adds and access.is_identity else [column]
        found.append([])
        for term in terms:
            sign = -1 if term[0] < 0 else 1
            key = tuple(sign * y for y in term)
            columns.arrays.setdefault(access, {}).setdefault(key)
            found[-1].append((access, key, sign))
    return found


def _columns_of_terms(graph: Graph, column: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Columns whose sum is a column, each of outputs of one loop over rows; otherwise the column itself."""
    rows = [_terms(graph, x) for x in column]
    owners = {tuple(graph.nodes[abs(x)][1] for x in terms) for terms in rows}
    return [*zip(*rows, strict=True)] if len(owners) == 1 and rows[0] else [column]


def _terms(graph: Graph, x: int) -> list[int]:
    """The terms of a sum of outputs of loops over rows, sorted by loops; none for another expression."""
    pending, terms = [x], []
    while pending:
        y = pending.pop()
        op, *args = graph.nodes[abs(y)]
        if op in ("add", "sub"):
            sign = 1 if y > 0 else -1
            pending += [sign * args[0], sign * args[1] * (1 if op == "add" else -1)]
        elif op == "part" and graph.loops[graph.nodes[args[0]][1]].writes:
            terms.append(y)
        else:
            return []
    return sorted(terms, key=lambda y: graph.nodes[abs(y)][1])


Kept = list[float | int]
"""For each scalar of an output, the constant as a float, or the number of its column."""


def _distinct_outputs(
    program: Program, loop: TableLoop
) -> tuple[Program, tuple[RowAccess, ...], list[Kept]]:
    """The body without constant and equal outputs, the accesses of the others, and what replaces them."""
    results: list[int] = []
    ports: list[Port] = []
    writes: list[RowAccess] = []
    places: list[Kept] = []
    start = 0
    for access, port in zip(loop.writes, program.outputs, strict=True):
        slots = 1 if access is None else access.num_slots
        width = port.size // slots
        of_port = program.results[start : start + port.size]
        start += port.size
        numbers: dict[tuple[int, ...], int] = {}
        kept: Kept = []
        for j in range(width):
            column = tuple(of_port[j::width])
            values = {
                program.constants[program.code[x].args[0]]
                if program.code[x].op == "const"
                else None
                for x in column
            }
            value = values.pop() if len(values) == 1 else None
            is_constant = value is not None and (
                value == 0 or (access is not None and access.is_identity)
            )
            kept.append(float(value) if is_constant else numbers.setdefault(column, len(numbers)))  # type: ignore[arg-type]
        results += [column[slot] for slot in range(slots) for column in numbers]
        ports.append(Port(port.name, (slots, len(numbers))))
        entries = (0,) * loop.count if access is None else access.entries
        rows = 1 if access is None else access.rows
        is_sparse = access is not None and access.is_sparse
        writes.append(RowAccess(rows, len(numbers), entries, slots, is_sparse))
        places.append(kept)
    found = replace(program, outputs=tuple(ports), results=tuple(results))
    return found, tuple(writes), places


def _outputs(
    graph: Graph,
    node: int,
    writes: Sequence[RowAccess],
    kept: Sequence[Kept],
    shapes: Sequence[tuple[int, ...]],
) -> list[Tensor]:
    """Expressions of all outputs; rows that no iteration writes are zero."""
    outputs, first = [], 0
    for write, columns, shape in zip(writes, kept, shapes, strict=True):
        written = set(write.table)
        ids = []
        for row in range(write.rows):
            for x in columns:
                if isinstance(x, float):
                    ids.append(graph.const(x))
                else:
                    at = first + row * write.width + x
                    ids.append(graph.part(node, at) if row in written else 0)
        first += write.rows * write.width
        outputs.append(ids_tensor(ids, shape))
    return outputs
