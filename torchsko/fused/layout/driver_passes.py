"""Work of the driver around the chunks: sines of inputs, scaling of results, location of results.

The driver is the fixed C++ code that moves samples between tensors and vectors (`native/driver.hpp`).

Sines and cosines of inputs are computed before the first chunk, in one loop. In the middle of other
arithmetic each call would spill all registers.

Results that are another value times a constant or an input are scaled when the driver writes rows.
Most entries of the matrices of an integrator step are derivatives of the accelerations times the
step or its square. As instructions these products would take one more vector each; for a humanoid
that exceeds a second-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchsko.fused.layout.schedule import Chunk, Schedule
from torchsko.fused.program.program import Instr, Port, Program

_MIN_SCALED_SHARE = 1 / 4
"""Smallest share of results for which scaling is deferred: all other results are then multiplied by one."""


def precompute_sincos(program: Program) -> tuple[Program, tuple[int, ...]]:
    """Replace sines and cosines of inputs by additional inputs.

    Returns:
        The program and the numbers of these inputs. The last input port holds the sine and the
        cosine of each of them in turn. A program without any is returned unchanged.
    """
    size = sum(port.size for port in program.inputs)
    angles: dict[int, int] = {}
    code = []
    for op, args in program.code:
        instr = Instr(op, args)
        if op in ("sin", "cos") and program.code[args[0]].op == "input":
            index = angles.setdefault(program.code[args[0]].args[0], len(angles))
            instr = Instr("input", (size + 2 * index + (op == "cos"),))
        code.append(instr)
    if not angles:
        return program, ()
    inputs = (*program.inputs, Port("sines and cosines", (2 * len(angles),)))
    return replace(program, inputs=inputs, code=tuple(code)), tuple(angles)


def defer_scaling(program: Program) -> tuple[Program, dict[int, int]]:
    """Remove the last product of results that are another value times a constant or an input.

    Returns:
        The program, and for the position of each such result the value of its factor. If few
        results qualify, the program is returned unchanged.
    """
    read = {x for value in range(len(program.code)) for x in program.operands(value)}
    code, results = [*program.code], [*program.results]
    factors: dict[int, int] = {}
    for position, value in enumerate(program.results):
        if value in read or program.code[value].op != "mul":
            continue
        x, y = program.code[value].args
        is_leaf, other_is_leaf = (program.code[z].op in ("const", "input") for z in (x, y))
        if is_leaf != other_is_leaf:
            factor, scaled = (x, y) if is_leaf else (y, x)
            factors[position], results[position] = factor, scaled
            code[value] = program.code[factor]  # dead code from now on
    if len(factors) < _MIN_SCALED_SHARE * len(results):
        return program, {}
    return replace(program, code=tuple(code), results=tuple(results)), factors


@dataclass(frozen=True)
class ResultVectors:
    """The vectors that hold the results of a program before the driver writes them as rows.

    The driver numbers vectors from the first result: inputs lie before it, scratch slots behind all results.

    Attributes:
        program: the program.
        num_vectors: number of vectors for results, without the slots.
        vectors: the vector of each result.
        factors: the vector of the factor of each result; empty if no result is scaled.
        factor_constants: values of the vectors that hold constant factors.
    """

    program: Program
    num_vectors: int
    vectors: Sequence[int]
    factors: Sequence[int] = ()
    factor_constants: Mapping[int, float] = field(default_factory=dict)

    @staticmethod
    def in_order(program: Program) -> ResultVectors:
        """One vector for each result, in order."""
        return ResultVectors(program, len(program.results), range(len(program.results)))

    @staticmethod
    def of(scheduled: Schedule) -> ResultVectors:
        """Equal results share a vector; results of loops stay in their region of the slots."""
        vector_of: dict[int, int] = {}
        for value in scheduled.program.results:
            if scheduled.program.code[value].op != "part":
                vector_of.setdefault(value, len(vector_of))
        constants, factors = _factor_vectors(scheduled, len(vector_of))
        num_vectors = len(vector_of) + len(constants)
        vectors = [
            vector_of[value] if value in vector_of else num_vectors + scheduled.slot_of_part(value)
            for value in scheduled.program.results
        ]
        return ResultVectors(scheduled.program, num_vectors, vectors, factors, constants)

    @property
    def constants(self) -> dict[int, float]:
        """Values of the vectors that are constant: the driver fills them once, no chunk writes them.

        A torque regressor is mostly zeros, and a function with ten thousand stores takes a minute to compile.
        """
        numbered = zip(self.vectors, self.program.results, strict=True)
        found = ((vector, self.program.code[value]) for vector, value in numbered)
        own = {k: self.program.constants[x.args[0]] for k, x in found if x.op == "const"}
        return {**own, **self.factor_constants}

    def of_chunk(self, chunk: Chunk) -> Chunk:
        """A chunk whose outputs are numbered by the vectors that it writes."""
        numbered = ((self.vectors[k], value) for k, value in chunk.outputs)
        written = (
            (vector, value)
            for vector, value in numbered
            if vector < self.num_vectors and self.program.code[value].op != "const"
        )
        return replace(chunk, outputs=tuple(dict.fromkeys(written)))

    def zero_blocks(self, width: int) -> Iterator[int]:
        """1 for each whole block of ``width`` scalars of a port that is zero for all samples, else 0."""
        zeros = {vector for vector, x in self.constants.items() if x == 0}
        first = 0
        for port in self.program.outputs:
            for k in range(first, first + port.size // width * width, width):
                yield int(zeros.issuperset(self.vectors[k : k + width]))
            first += port.size


def _factor_vectors(scheduled: Schedule, first: int) -> tuple[dict[int, float], list[int]]:
    """Values of the vectors that hold constant factors, and for each result the vector of its factor.

    The first vector is one, for unscaled results. Factors that are inputs are read from the input vectors.
    """
    if not scheduled.result_factors:
        return {}, []
    program = scheduled.program
    num_inputs = sum(port.size for port in program.inputs)
    constants, vector_of = {first: 1.0}, dict[int, int]()
    for value in dict.fromkeys(scheduled.result_factors.values()):
        op, (k,) = program.code[value]
        if op == "input":
            vector_of[value] = k - num_inputs
        else:
            vector_of[value] = first + len(constants)
            constants[vector_of[value]] = program.constants[k]
    factors = [
        vector_of[scheduled.result_factors[k]] if k in scheduled.result_factors else first
        for k in range(len(program.results))
    ]
    return constants, factors
