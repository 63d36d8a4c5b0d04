"""Sines and cosines of inputs, computed before anything else.

Where they are functions that compute, each call in the midst of other operations stores all registers and
loads them again. Before these, in one loop, it takes none.
"""

from __future__ import annotations

from dataclasses import replace

from torchsko.fused.program.program import Instr, Port, Program


def with_angles(program: Program) -> tuple[Program, tuple[int, ...]]:
    """A program that reads sines and cosines of its inputs as inputs, and of which inputs.

    Returns:
        The program, its last input port the sine and the cosine of each of these inputs in turn, or the
        program as it is where it has none.
    """
    size = sum(port.size for port in program.inputs)
    angles: dict[int, int] = {}
    code = []
    for op, args in program.code:
        instr = Instr(op, args)
        if op in ("sin", "cos") and program.code[args[0]].op == "input":
            place = angles.setdefault(program.code[args[0]].args[0], len(angles))
            instr = Instr("input", (size + 2 * place + (op == "cos"),))
        code.append(instr)
    if not angles:
        return program, ()
    inputs = (*program.inputs, Port("sines and cosines", (2 * len(angles),)))
    return replace(program, inputs=inputs, code=tuple(code)), tuple(angles)
