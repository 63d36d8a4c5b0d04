"""Results that are multiples of other values, multiplied where results become rows.

The matrices of a step are, but for few entries, the derivatives of the accelerations times the step and times
its square. As operations of their own these multiples are one vector more for each entry, written and read
again, of a humanoid more than a second-level cache holds. Where vectors become rows each is read anyway.
"""

from __future__ import annotations

from dataclasses import replace

from torchsko.fused.program.program import Instr, Program

# Of how many results one at least has to be such a multiple: the others are then multiplied by one.
_ONE_OF = 4


def with_multiples(program: Program) -> tuple[Program, dict[int, int]]:
    """A program that gives what its results are multiples of, and for these results by which value.

    Returns:
        The program, and by the positions of results the values, constants or inputs, that they are still to
        be multiplied with; the program as it is and none where such results are few.
    """
    read = {x for value in range(len(program.code)) for x in program.operands(value)}
    code, results = [*program.code], [*program.results]
    factors: dict[int, int] = {}
    for at, value in enumerate(program.results):
        if value in read or program.code[value].op != "mul":
            continue
        given = [_is_given(program.code[x]) for x in program.code[value].args]
        if sum(given) == 1:
            by, x = program.code[value].args if given[0] else program.code[value].args[::-1]
            factors[at], results[at] = by, x
            code[value] = program.code[by]  # read by nobody
    if _ONE_OF * len(factors) < len(results):
        return program, {}
    return replace(program, code=tuple(code), results=tuple(results)), factors


def _is_given(instr: Instr) -> bool:
    return instr.op in ("const", "input")
