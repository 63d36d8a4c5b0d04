"""Loops of a program as functions of C++ or CUDA: each of the region of scratch that it has to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchsko.fused.program import Loop
from torchsko.fused.schedule import Chunk, Schedule

PARAMETERS = "const V* __restrict in, V* __restrict out, V* __restrict s"

Lines = Callable[[Schedule, Chunk, int, str], Iterator[str]]


def loop_functions(
    cuts: Schedule, bits: int, linkage: str, name: str, lines: Lines
) -> Iterator[str]:
    """The functions of all loops of a program, those inside of others first.

    Args:
        cuts: the program.
        bits: of its numbers.
        linkage: what stands before a function.
        name: of the program; those of its loops begin with it.
        lines: the statements of a chunk of a program of that name.
    """
    for value, (_, inner) in cuts.regions.items():
        own = function_name(name, value)
        yield from loop_functions(inner, bits, linkage, own, lines)
        for k, chunk in enumerate(inner.chunks):
            yield f"{linkage} void {own}c{k}({PARAMETERS}) {{"
            yield from lines(inner, chunk, bits, own)
            yield "}"
        loop = cuts.program.loops[cuts.program.code[value].args[0]]
        yield from _function(loop, linkage, own, len(inner.chunks))


def function_name(program: str, value: int) -> str:
    """The function of the loop that is this value of a program."""
    return f"{program}l{value}"


def _function(loop: Loop, linkage: str, name: str, num_chunks: int) -> list[str]:
    num_in = loop.carry + loop.stream + loop.stay
    num_out = loop.carry + loop.stacked + loop.summed
    at_stack = (loop.count + 1) * loop.carry
    at_sums = at_stack + loop.count * loop.stacked
    n, start = loop.count, loop.count * loop.carry if loop.backward else 0
    turned = f"{n - 1} - step" if loop.backward else "step"
    after = "k" if loop.backward else "k + 1"
    body = [
        f"{linkage} void {name}(V* r) {{",
        f"  V *parts = r + {loop.num_args}, *in = parts + {loop.num_parts}, *out = in + {num_in};",
        f"  V* s = out + {num_out};",
        f"  for (int i = 0; i < {loop.carry}; ++i) in[i] = parts[{start} + i] = r[i];",
        f"  for (int i = 0; i < {loop.stay}; ++i)",
        f"    in[{loop.carry + loop.stream} + i] = r[{loop.carry + n * loop.stream} + i];",
        f"  for (int i = 0; i < {loop.summed}; ++i) parts[{at_sums} + i] = splat(0);",
        f"  for (int step = 0; step < {n}; ++step) {{",
        f"    const int k = {turned};",
        f"    for (int i = 0; i < {loop.stream}; ++i)",
        f"      in[{loop.carry} + i] = r[{loop.carry} + k * {loop.stream} + i];",
        *(f"    {name}c{k}(in, out, s);" for k in range(num_chunks)),
        f"    for (int i = 0; i < {loop.carry}; ++i)",
        f"      in[i] = parts[({after}) * {loop.carry} + i] = out[i];",
        f"    for (int i = 0; i < {loop.stacked}; ++i)",
        f"      parts[{at_stack} + k * {loop.stacked} + i] = out[{loop.carry} + i];",
        f"    for (int i = 0; i < {loop.summed}; ++i)",
        f"      parts[{at_sums} + i] = parts[{at_sums} + i] + out[{loop.carry + loop.stacked} + i];",
    ]
    if loop.halts:  # nothing changes any more: the states to come are this one
        body += [
            f"    if (step + 1 < {n} && in_all_lanes(in[{loop.carry - 1}])) {{",
            f"      for (++step; step < {n}; ++step)",
            f"        for (int i = 0; i < {loop.carry}; ++i)",
            f"          parts[(step + 1) * {loop.carry} + i] = in[i];",
            "      return;",
            "    }",
        ]
    return [*body, "  }", "}"]
