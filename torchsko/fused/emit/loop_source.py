"""Loops of a program as functions of C++ or CUDA.

A loop function has three arguments: its region of the scratch array, the slots of its invariant inputs, and
the scratch of the loop that runs. `torchsko.fused.layout.schedule.Schedule` describes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from itertools import groupby

from torchsko.fused.emit.table_source import Lines, table_functions
from torchsko.fused.layout.row_sources import LoopSources
from torchsko.fused.layout.schedule import Schedule
from torchsko.fused.program.dense_block import DenseBlock
from torchsko.fused.program.program import Loop

PARAMETERS = "const V* __restrict in, V* __restrict out, V* __restrict s"
"""Parameters of the function of a chunk: inputs, outputs, scratch slots."""


def loop_functions(
    scheduled: Schedule,
    bits: int,
    name: str,
    lines: Lines,
    emitted: dict[tuple[object, ...], str] | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """The functions of all loops of a program, inner loops first, each as its head and its statements.

    Args:
        scheduled: the program.
        bits: bits of its scalars.
        name: name of the program; the names of its loops begin with it.
        lines: prints a chunk.
        emitted: functions emitted before, by body and loop parameters; an equal loop calls the
            earlier function.
    """
    emitted = {} if emitted is None else emitted
    for value, (_, inner) in scheduled.regions.items():
        own = function_name(name, value)
        loop = scheduled.program.loop_of(value)
        sources = scheduled.sources[value]
        pointers = [f"a{k}" for k in range(len(sources.pointers))]
        lists = ["const int* list"] if loop.guarded else []
        arrays = [*lists, *(f"const V* {x}" for x in pointers)]
        head = f"void {own}({', '.join(['V* r, const V* w, V* s', *arrays])})"
        # Equal bodies share one schedule object.
        key = (id(inner), *(getattr(loop, field.name) for field in fields(loop)[1:]))
        key += tuple(source.layout for of_array in sources.arrays for source in of_array)
        key += (sources.variable is None,)
        if key in emitted:
            arguments = ["r, w, s", *(["list"] if loop.guarded else []), *pointers]
            yield head, [f"  {emitted[key]}({', '.join(arguments)});"]
            continue
        emitted[key] = own
        if loop.writes:
            yield from loop_functions(inner, bits, own, lines, emitted)
            yield from table_functions(loop, sources, inner, own, head, bits, lines)
            continue
        if (block := inner.program.block) is not None:
            variable = [] if sources.variable is None else pointers[:1]
            fixed = pointers[len(variable) :]
            yield head, [*_block_call(block, *(variable or ["r"]), *(fixed or ["w"]))]
            continue
        yield from loop_functions(inner, bits, own, lines, emitted)
        for k, chunk in enumerate(inner.chunks):
            statements = lines(inner, chunk, bits, own, partial(_input, loop, sources))
            arrays = ", ".join(
                ["const V* __restrict w", *(f"const V* __restrict {x}" for x in pointers)]
            )
            yield f"void {own}c{k}({PARAMETERS}, {arrays})", [*statements]
        arguments = ", ".join(["in", "out", "work", "w", *pointers])
        yield (
            head,
            _statements(
                loop, inner, [f"{own}c{k}({arguments});" for k in range(len(inner.chunks))]
            ),
        )


def _block_call(block: DenseBlock, variable: str, fixed: str) -> Iterator[str]:
    """The call of the function in `native/dense.hpp` for a dense operation on two matrices."""
    if block.kind == "store":
        return
    n, k, columns, unit = block.rows, block.inner, block.columns, int(block.unit)
    sizes = {
        "ldl": (n, f"(T){block.least.hex()}"),
        "cholesky": (n,),
        "lu": (n,),
        "forward": (n, columns, unit),
        "backward": (n, columns, unit),
        "reorder": (n, columns),
        "reorder_back": (n, columns),
        "product": (n, k, columns, k, 1),
        "adjoint_product": (n, k, columns, 1, n),
        "symmetric": (n,),
        "sparse": (k, "table"),
        "sparse_adjoint": (n, "table"),
        "sparse_forward": (n, k, unit, "table"),
        "gram": (n, f"(T){block.shift.hex()}", "table"),
        "qr": (n, k),
        "fit": (n, k, columns),
        "lift": (n, k, columns),
    }[block.kind]
    if "table" in sizes:
        table = [len(block.groups)]
        for places, rows in block.groups:
            table += [len(rows), len(places), *places, *rows]
        yield f"  static const int table[] = {{{', '.join(map(str, table))}}};"
    num_variable, num_fixed, _ = block.sizes
    tensors = [variable, *([fixed] if num_fixed else [])]
    if block.kind == "gram":
        tensors.append(f"{fixed} + {block.num_entries}" if block.adds else "nullptr")
    name = block.kind.removeprefix("adjoint_")
    result = f"r + {num_variable}" if variable == "r" else "r"
    yield f"  dense_{name}({', '.join(map(str, (*sizes, *tensors, result)))});"


def function_name(program: str, value: int) -> str:
    """The name of the function of a loop, from the name of its program and its value."""
    return f"{program}l{value}"


def _input(loop: Loop, sources: LoopSources, k: int) -> str:
    """The location of input k of a loop body; the carry lies before ``s``."""
    if k < loop.carry:
        return f"s[{k - loop.carry - loop.num_copied}]"
    k -= loop.carry
    if k < loop.stream:
        return f"in[{k}]"
    k, num_copied = k - loop.stream, 0
    for run, source in sources.runs:
        if k in run:
            place = k - run.start
            return f"w[{num_copied + place}]" if source is None else f"a{source}[{place}]"
        num_copied += len(run) * (source is None)
    raise IndexError(k)


def _statements(loop: Loop, inner: Schedule, calls: list[str]) -> list[str]:
    """The iterations, from the schedule of the body and the calls of its functions."""
    n, carry, summed = loop.count, loop.carry, loop.first_summed
    writes_directly, stores = loop.num_copied == 0, _stores_of_carry(loop)
    body = [
        f"  V *state = s, *out = state + {carry}, *work = out + {loop.num_copied};",
        f"  for (int i = 0; i < {carry}; ++i) state[i] = r[i];",
        f"  for (int i = 0; i < {loop.summed}; ++i) r[{summed} + i] = splat(0);",
        *(
            f"  *(int*)(work + {rows.slot}) = -1;"
            for rows in inner.lists.values()
            if rows.is_new and rows.flag is not None
        ),
        f"  for (int step = 0; step < {n}; ++step) {{",
    ]
    if loop.flags:  # all later carries equal this one
        body += [
            "    bool is_done = true;",
            f"    for (int i = {carry - loop.flags}; i < {carry}; ++i)",
            "      is_done = is_done && in_all_lanes(state[i]);",
            "    if (is_done) {",
            *([f"      for (int done = step + 1; done < {n}; ++done) {{"] if stores else []),
            *(f"        {line}" for line in stores),
            *(["      }"] if stores else []),
            "      break;",
            "    }",
        ]
    body += [
        f"    const int k = {f'{n - 1} - step' if loop.reverse else 'step'};",
        f"    const V* in = r + {carry} + k * {loop.stream};",
        *([f"    out = r + {loop.first_stacked} + k * {loop.stacked};"] if writes_directly else []),
        *(f"    {call}" for call in calls),
    ]
    if not writes_directly:
        body += [
            f"    for (int i = 0; i < {carry}; ++i) state[i] = out[i];",
            f"    for (int i = 0; i < {loop.stacked}; ++i)",
            f"      r[{loop.first_stacked} + k * {loop.stacked} + i] = out[{carry} + i];",
            f"    for (int i = 0; i < {loop.summed}; ++i)",
            f"      r[{summed} + i] = r[{summed} + i] + out[{carry + loop.stacked} + i];",
            *(["    const int done = step + 1;"] if stores else []),
            *(f"    {line}" for line in stores),
        ]
    return [*body, "  }", f"  for (int i = 0; i < {carry}; ++i) r[i] = state[i];"]


def _stores_of_carry(loop: Loop) -> list[str]:
    """Statements that store the kept scalars of the carry after ``done`` iterations."""
    if not loop.num_rows:
        return []
    lines = [f"if (done < {loop.count} && done % {loop.every} == 0) {{"]
    lines.append(
        f"  V* row = r + {loop.num_variable} + (done / {loop.every} - 1) * {len(loop.kept)};"
    )
    for _, run in groupby(enumerate(loop.kept), lambda pair: pair[1] - pair[0]):
        (first, start), *others = run
        stop = start + 1 + len(others)
        lines.append(
            f"  for (int i = {start}; i < {stop}; ++i) row[i + {first - start}] = state[i];"
        )
    return [*lines, "}"]
