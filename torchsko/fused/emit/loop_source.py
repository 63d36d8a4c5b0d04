"""Loops of a program as functions of C++ or CUDA.

A loop function has two arguments: its region of the scratch array, and the slots of its invariant inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial

from torchsko.fused.layout.register_order import has_only_products
from torchsko.fused.layout.schedule import Chunk, Schedule
from torchsko.fused.program.program import Loop

PARAMETERS = "const V* __restrict in, V* __restrict out, V* __restrict s"
"""Parameters of the function of a chunk: inputs, outputs, scratch slots."""

Lines = Callable[[Schedule, Chunk, int, str, Callable[[int], str]], Iterator[str]]
"""Prints a chunk, from (schedule, chunk, bits, name of the program, location of inputs)."""


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
        head = f"void {own}(V* r, const V* w)"
        # Equal bodies share one schedule object.
        key = (id(inner), *(getattr(loop, field.name) for field in fields(loop)[1:]))
        if key in emitted:
            yield head, [f"  {emitted[key]}(r, w);"]
            continue
        emitted[key] = own
        yield from loop_functions(inner, bits, own, lines, emitted)
        for k, chunk in enumerate(inner.chunks):
            statements = lines(inner, chunk, bits, own, partial(_input, loop))
            attribute = "IN_THIS_ORDER " if has_only_products(inner.program) else ""
            yield f"{attribute}void {own}c{k}({PARAMETERS}, const V* __restrict w)", [*statements]
        yield head, _statements(loop, own, len(inner.chunks))


def function_name(program: str, value: int) -> str:
    """The name of the function of a loop, from the name of its program and its value."""
    return f"{program}l{value}"


def _input(loop: Loop, k: int) -> str:
    """The location of input k of a loop body; the carry lies before ``s``."""
    if k < loop.carry:
        return f"s[{k - loop.carry - loop.num_copied}]"
    k -= loop.carry
    return f"in[{k}]" if k < loop.stream else f"w[{k - loop.stream}]"


def _statements(loop: Loop, name: str, num_chunks: int) -> list[str]:
    """The iterations; `torchsko.fused.layout.schedule.Schedule` describes the region ``r`` of the loop."""
    first_stacked = (loop.count + 1) * loop.carry
    first_summed = first_stacked + loop.count * loop.stacked
    n, start = loop.count, loop.count * loop.carry if loop.reverse else 0
    index = f"{n - 1} - step" if loop.reverse else "step"
    after = "k" if loop.reverse else "k + 1"
    writes_directly = loop.num_copied == 0
    body = [
        f"  V *parts = r + {loop.num_variable}, *state = parts + {loop.num_parts};",
        f"  V *out = state + {loop.carry}, *s = out + {loop.num_copied};",
        f"  for (int i = 0; i < {loop.carry}; ++i) state[i] = parts[{start} + i] = r[i];",
        f"  for (int i = 0; i < {loop.summed}; ++i) parts[{first_summed} + i] = splat(0);",
        f"  for (int step = 0; step < {n}; ++step) {{",
        f"    const int k = {index};",
        f"    const V* in = r + {loop.carry} + k * {loop.stream};",
        *([f"    out = parts + k * {loop.stacked};"] if writes_directly else []),
        *(f"    {name}c{k}(in, out, s, w);" for k in range(num_chunks)),
    ]
    if not writes_directly:
        body += [
            f"    for (int i = 0; i < {loop.carry}; ++i)",
            f"      state[i] = parts[({after}) * {loop.carry} + i] = out[i];",
            f"    for (int i = 0; i < {loop.stacked}; ++i)",
            f"      parts[{first_stacked} + k * {loop.stacked} + i] = out[{loop.carry} + i];",
            f"    for (int i = 0; i < {loop.summed}; ++i)",
            f"      parts[{first_summed} + i] = parts[{first_summed} + i]"
            f" + out[{loop.carry + loop.stacked} + i];",
        ]
    if loop.stops_early:  # all later states equal this one
        body += [
            f"    if (step + 1 < {n} && in_all_lanes(state[{loop.carry - 1}])) {{",
            f"      for (++step; step < {n}; ++step)",
            f"        for (int i = 0; i < {loop.carry}; ++i)",
            f"          parts[(step + 1) * {loop.carry} + i] = state[i];",
            "      return;",
            "    }",
        ]
    return [*body, "  }"]
