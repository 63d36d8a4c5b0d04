"""Programs written by hand or at random, for tests of the code generators."""

import math
import random

import torch
from torch import Tensor

from torchsko.fused.program.program import BINARY, UNARY, Instr, Port, Program
from torchsko.implicit.loop import iterate
from torchsko.utils.traced_tensor import mark_rare

ALL_UNARY = tuple(UNARY)
ALL_BINARY = tuple(BINARY)


def every_operation() -> Program:
    """One output for each operation, of inputs x, y and c."""
    code = [Instr("input", (k,)) for k in range(3)]
    results = []
    for op in ALL_UNARY:
        results.append(len(code))
        code.append(Instr(op, (0,)))
    for op in ALL_BINARY:
        results.append(len(code))
        code.append(Instr(op, (0, 1)))
    results.append(len(code))
    code.append(Instr("where", (2, 0, 1)))
    inputs = tuple(Port(name, ()) for name in "xyc")
    outputs = (Port("out", (len(results),)),)
    return Program(inputs, outputs, tuple(code), (), tuple(results))


def special_constants() -> Program:
    """Infinities, NaN, a subnormal number and an ordinary one; times the input x."""
    constants = (math.inf, -math.inf, math.nan, 5e-324, 0.1)
    size = len(constants)
    code = [Instr("input", (0,)), *(Instr("const", (k,)) for k in range(size))]
    code += [Instr("mul", (0, 1 + k)) for k in range(size)]
    results = tuple(range(1 + size, 1 + 2 * size))
    return Program((Port("x", ()),), (Port("y", (size,)),), tuple(code), constants, results)


def random_program(seed: int, num_ops: int = 60) -> Program:
    """A random program with three input ports and two output ports.

    Every value stays within [-1, 1], so that rounding is not amplified.
    """
    draw = random.Random(seed)
    inputs = (Port("a", (3,)), Port("b", (2, 2)), Port("c", ()))
    code = [Instr("input", (k,)) for k in range(8)]
    constants = (0.5, draw.uniform(-1, 1), draw.uniform(-1, 1))
    code += [Instr("const", (k,)) for k in range(3)]
    half, bounded = 8, [9, 10]
    for k in range(8):
        code.append(Instr("sin", (k,)))
        bounded.append(len(code) - 1)
    for _ in range(num_ops):
        x, y = draw.choice(bounded[-25:]), draw.choice(bounded[-25:])
        op = draw.choice(("add", "sub", "mul", "neg", "where"))
        if op == "where":  # a comparison of inputs: rounding cannot turn it over
            code.append(Instr("lt", (draw.randrange(8), half)))
            code.append(Instr("where", (len(code) - 1, x, y)))
        else:
            code.append(Instr(op, (x,) if op == "neg" else (x, y)))
        if op in ("add", "sub"):
            code.append(Instr("mul", (half, len(code) - 1)))
        bounded.append(len(code) - 1)
    code += [Instr("sin", (len(code) - 1,)), Instr("cos", (len(code) - 1,))]
    results = draw.sample(bounded[-10:], 3)
    results += [len(code) - 1, 0, half]
    outputs = (Port("p", (2, 2)), Port("r", (2,)))
    return Program(inputs, outputs, tuple(code), constants, tuple(results))


def random_program_with_inputs(seed: int, num_ops: int) -> tuple[Program, list[Tensor]]:
    """`random_program`, and inputs of five samples."""
    program, g = random_program(seed, num_ops), torch.Generator().manual_seed(seed)
    shapes = [(5, *port.shape) for port in program.inputs]
    return program, [torch.randn(x, generator=g, dtype=torch.float64) for x in shapes]


def with_rare_conditions(x: Tensor, y: Tensor) -> Tensor:
    """Sums of long terms, each under one of three conditions on x, within a loop and after it."""

    def term(k: int, y: Tensor) -> Tensor:
        for j in range(12):
            y = 0.5 * torch.sin(y + 0.1 * j + (k + 1) * x[3]) + 0.3 * y.flip(0)
        return torch.exp(y) * (1 + k)

    def total(y: Tensor) -> Tensor:
        rare = x[:3] > 1
        mark_rare(rare)
        terms = [torch.where(rare[k % 3], term(k, y), 0.0) for k in range(6)]
        return 0.1 * sum(terms, y) + torch.where(rare[0], term(7, y), -y)

    return total(total(iterate(lambda y: total(y).tanh(), y, 3)).tanh())
