"""Loops over rows as functions of C++ or CUDA.

Such a function has the arguments of all loops (`torchsko.fused.emit.loop_source`) and a pointer to each array
that it reads in place. Its tables are constants of the code, so that all samples access the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchsko.fused.emit.literals import literal
from torchsko.fused.layout.row_sources import CONSTANT, LoopSources
from torchsko.fused.layout.schedule import Schedule
from torchsko.fused.program.program import Loop, RowAccess

Lines = Callable[..., Iterator[str]]
"""Prints a chunk; see `torchsko.fused.emit.statements.chunk_lines`."""


def table_functions(
    loop: Loop,
    sources: LoopSources,
    inner: Schedule,
    name: str,
    head: str,
    bits: int,
    lines: Lines,
) -> Iterator[tuple[str, list[str]]]:
    """The functions of a loop over rows, each as its head and its statements.

    Args:
        loop: the loop.
        sources: memory of its inputs.
        inner: its body.
        name: name of its function.
        head: head of its function.
        bits: bits of a scalar.
        lines: prints a chunk.
    """
    text = _TableText(loop, sources)
    arguments = ["V* __restrict s", "const V* __restrict w"]
    arguments += [f"const {kind}* __restrict {row}" for row, kind, _ in text.rows]
    arguments += [f"V* {row}" for row, _ in text.outputs]
    for k, chunk in enumerate(inner.chunks):
        statements = lines(inner, chunk, bits, name, text.location, text.written)
        yield f"void {name}c{k}({', '.join(arguments)})", [*statements]
    yield head, [*text.statements(name, len(inner.chunks), bits)]


class _TableText:
    """Names of the rows of a loop over rows.

    Attributes:
        rows: name, scalar type and address of each row that an iteration reads.
        outputs: name and address of each row that it writes.
    """

    def __init__(self, loop: Loop, sources: LoopSources) -> None:
        self._loop, self._sources = loop, sources
        self.rows: list[tuple[str, str, str]] = []
        self.outputs: list[tuple[str, str]] = []
        self._inputs: list[str] = []
        self._targets: list[tuple[str, bool]] = []
        pointer = 0
        for j, (access, of_array) in enumerate(zip(loop.reads, sources.arrays, strict=True)):
            first = pointer
            for slot in range(access.slots):
                pointer, places = first, [""] * access.width
                for g, source in enumerate(of_array):
                    is_constant = source.kind == CONSTANT
                    row, array = f"p{j}_{slot}_{g}", f"k{j}" if is_constant else f"a{pointer}"
                    pointer += not is_constant
                    address = f"{array} + {_index(access, f'i{j}', slot)} * {source.stride}"
                    self.rows.append((row, "T" if is_constant else "V", address))
                    for column, offset in zip(source.columns, source.offsets, strict=True):
                        place = f"{row}[{offset}]"
                        places[column] = f"splat({place})" if is_constant else place
                self._inputs += places
        first = 0
        for j, access in enumerate(loop.writes):
            for slot in range(access.slots):
                row = f"o{j}_{slot}"
                index = _index(access, f"j{j}", slot)
                self.outputs.append((row, f"r + {first} + {index} * {access.width}"))
                adds = not access.is_identity
                self._targets += [(f"{row}[{k}]", adds) for k in range(access.width)]
            first += access.size

    def location(self, k: int) -> str:
        """The location of input k of the body."""
        if k < len(self._inputs):
            return self._inputs[k]
        return f"w[{k - len(self._inputs) + self._sources.num_in_arrays}]"

    def written(self, k: int, value: str) -> str:
        """The statement that writes output k of the body."""
        target, adds = self._targets[k]
        return f"{target} = {f'{target} + ' * adds}{value};"

    def statements(self, name: str, num_chunks: int, bits: int) -> Iterator[str]:
        """The tables and the iterations."""
        loop = self._loop
        for j, access in enumerate(loop.reads):
            yield from _table(access, f"i{j}")
        for j, access in enumerate(loop.writes):
            yield from _table(access, f"j{j}")
        for j, of_array in enumerate(self._sources.arrays):
            for source in of_array:
                if source.kind == CONSTANT:
                    yield _array("T", f"k{j}", [literal(x, bits) for x in source.constants])
        first = 0
        for access in loop.writes:
            if not access.is_identity or (loop.guarded and not access.is_sparse):
                stop = first + access.size
                yield f"  for (int i = {first}; i < {stop}; ++i) r[i] = splat(0);"
            first += access.size
        if loop.guarded:
            yield "  for (int i = 1; i <= list[0]; ++i) {"
            yield "    const int k = list[i];"
        else:
            yield f"  for (int k = 0; k < {loop.count}; ++k) {{"
        for row, kind, address in self.rows:
            yield f"    const {kind}* {row} = {address};"
        for row, address in self.outputs:
            yield f"    V* {row} = {address};"
        names = ["s", "w", *(row for row, *_ in self.rows), *(row for row, _ in self.outputs)]
        for k in range(num_chunks):
            yield f"    {name}c{k}({', '.join(names)});"
        yield "  }"


def _index(access: RowAccess, table: str, slot: int) -> str:
    """The row of a slot in iteration k."""
    if access.is_identity:
        return "k"
    if access.rows == 1:
        return "0"
    return f"{table}[k]" if access.slots == 1 else f"{table}[{access.slots} * k + {slot}]"


def _table(access: RowAccess, name: str) -> Iterator[str]:
    if access.rows > 1 and not access.is_identity:
        yield _array("int", name, access.table)


def _array(kind: str, name: str, values: Any) -> str:
    return f"  static const {kind} {name}[] = {{{', '.join(map(str, values))}}};"
