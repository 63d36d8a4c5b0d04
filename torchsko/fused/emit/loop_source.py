"""Loops of a program as functions of C++ or CUDA.

Each is one of the region of scratch that it has to itself, and of where what stays in all rounds lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial

from torchsko.fused.layout.schedule import Chunk, Schedule
from torchsko.fused.program.product_rounds import is_round_of_products
from torchsko.fused.program.program import Loop

PARAMETERS = "const V* __restrict in, V* __restrict out, V* __restrict s"

Lines = Callable[[Schedule, Chunk, int, str, Callable[[int], str]], Iterator[str]]


def loop_functions(
    cuts: Schedule,
    bits: int,
    name: str,
    lines: Lines,
    known: dict[tuple[object, ...], str] | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """The functions of all loops of a program, those inside of others first: of each its head and statements.

    Args:
        cuts: the program.
        bits: of its numbers.
        name: of the program; those of its loops begin with it.
        lines: the statements of a chunk of a program of that name, from where its inputs stand.
        known: functions that were given before, by what they repeat; an equal one calls the other.
    """
    known = {} if known is None else known
    for value, (_, inner) in cuts.regions.items():
        own = function_name(name, value)
        loop = cuts.program.loop_of(value)
        head = f"void {own}(V* r, const V* w)"
        # Of equal programs there is one schedule.
        what = (id(inner), *(getattr(loop, field.name) for field in fields(loop)[1:]))
        if what in known:
            yield head, [f"  {known[what]}(r, w);"]
            continue
        known[what] = own
        yield from loop_functions(inner, bits, own, lines, known)
        for k, chunk in enumerate(inner.chunks):
            statements = lines(inner, chunk, bits, own, partial(_input, loop))
            kept = "IN_THIS_ORDER " if is_round_of_products(inner.program) else ""
            yield f"{kept}void {own}c{k}({PARAMETERS}, const V* __restrict w)", [*statements]
        yield head, _statements(loop, own, len(inner.chunks))


def function_name(program: str, value: int) -> str:
    """The function of the loop that is this value of a program."""
    return f"{program}l{value}"


def _input(loop: Loop, k: int) -> str:
    """Where a round reads input k of its program: its state lies before ``s``."""
    if k < loop.carry:
        return f"s[{k - loop.carry - loop.num_out}]"
    k -= loop.carry
    return f"in[{k}]" if k < loop.stream else f"w[{k - loop.stream}]"


def _statements(loop: Loop, name: str, num_chunks: int) -> list[str]:
    """The rounds. Their region: what comes anew, what all give, state and results of one, scratch."""
    at_stack = (loop.count + 1) * loop.carry
    at_sums = at_stack + loop.count * loop.stacked
    n, start = loop.count, loop.count * loop.carry if loop.backward else 0
    turned = f"{n - 1} - step" if loop.backward else "step"
    after = "k" if loop.backward else "k + 1"
    at_place = loop.num_out == 0
    body = [
        f"  V *parts = r + {loop.num_moving}, *state = parts + {loop.num_parts};",
        f"  V *out = state + {loop.carry}, *s = out + {loop.num_out};",
        f"  for (int i = 0; i < {loop.carry}; ++i) state[i] = parts[{start} + i] = r[i];",
        f"  for (int i = 0; i < {loop.summed}; ++i) parts[{at_sums} + i] = splat(0);",
        f"  for (int step = 0; step < {n}; ++step) {{",
        f"    const int k = {turned};",
        f"    const V* in = r + {loop.carry} + k * {loop.stream};",
        *([f"    out = parts + k * {loop.stacked};"] if at_place else []),
        *(f"    {name}c{k}(in, out, s, w);" for k in range(num_chunks)),
    ]
    if not at_place:
        body += [
            f"    for (int i = 0; i < {loop.carry}; ++i)",
            f"      state[i] = parts[({after}) * {loop.carry} + i] = out[i];",
            f"    for (int i = 0; i < {loop.stacked}; ++i)",
            f"      parts[{at_stack} + k * {loop.stacked} + i] = out[{loop.carry} + i];",
            f"    for (int i = 0; i < {loop.summed}; ++i)",
            f"      parts[{at_sums} + i] = parts[{at_sums} + i] + out[{loop.carry + loop.stacked} + i];",
        ]
    if loop.halts:  # nothing changes any more: the states to come are this one
        body += [
            f"    if (step + 1 < {n} && in_all_lanes(state[{loop.carry - 1}])) {{",
            f"      for (++step; step < {n}; ++step)",
            f"        for (int i = 0; i < {loop.carry}; ++i)",
            f"          parts[(step + 1) * {loop.carry} + i] = state[i];",
            "      return;",
            "    }",
        ]
    return [*body, "  }"]
