"""Instruction orders that use values while they are in registers.

In depth-first order a value with several readers is computed for the first of them and waits in memory for
the others. Most of these readers could run at once: their operands are in registers, and one of these
registers becomes free for the result. `order_for_registers` moves such instructions forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from torchsko.fused.program.program import Program

NUM_REGISTERS = 24
"""Number of values assumed to be in registers; the other 8 of 32 hold temporary values."""


def order_for_registers(program: Program, order: Sequence[int]) -> list[int]:
    """Move each instruction forward to where it needs no load and no additional register.

    Args:
        program: the program.
        order: its arithmetic values, operands before readers.
    """
    return _Reordering(program, order).run()


class _Reordering:
    """State of `order_for_registers`: the values to compute and the values in registers."""

    def __init__(self, program: Program, order: Sequence[int]) -> None:
        operands, hosts = program.operands, _fused_products(program, order)
        self._products: dict[int, list[int]] = {}
        for product, host in hosts.items():
            self._products.setdefault(host, []).append(product)
        self._reads: dict[int, tuple[int, ...]] = {}
        self._readers: dict[int, dict[int, None]] = {}  # not yet computed
        for value in order:
            if value in hosts:
                continue
            own = [y for x in operands(value) for y in (operands(x) if x in hosts else (x,))]
            reads = tuple(x for x in dict.fromkeys(own) if program.code[x].op != "const")
            self._reads[value] = reads
            for x in reads:
                self._readers.setdefault(x, {})[value] = None
        self._rank = {value: k for k, value in enumerate(self._reads)}
        self._num_absent = {value: len(reads) for value, reads in self._reads.items()}
        # Loops read and write memory.
        self._loops = {v for v in self._reads if program.code[v].op == "loop"}
        self._registers: dict[int, None] = {}  # the value used last at the end
        self._candidates: list[tuple[int, int]] = []
        self._order: list[int] = []
        self._done: set[int] = set()

    def run(self) -> list[int]:
        """The values in the given order, preceded at each point by those that cost no load."""
        for value in self._reads:
            while value not in self._done:
                self._compute(self._next_candidate(value))
        return self._order

    def _next_candidate(self, default: int) -> int:
        """The first value that needs neither a load nor an additional register, else ``default``."""
        while self._candidates:
            value = heappop(self._candidates)[1]
            if value not in self._done and self._is_candidate(value):
                return value
        return default

    def _is_candidate(self, value: int) -> bool:
        if self._num_absent[value] or value in self._loops:
            return False
        return value not in self._readers or any(
            len(self._readers[x]) == 1 for x in self._reads[value]
        )

    def _compute(self, value: int) -> None:
        self._order += [*self._products.get(value, ()), value]
        self._done.add(value)
        for x in self._reads[value]:
            del self._readers[x][value]
        if value in self._loops:
            return
        for x in self._reads[value]:
            self._use(x)
        if value in self._readers:
            self._use(value)

    def _use(self, x: int) -> None:
        """Mark a value as used last; free its register if it has no more readers."""
        was_in_register, readers = x in self._registers, self._readers[x]
        if was_in_register:
            del self._registers[x]
        if not readers:
            return
        self._registers[x] = None
        for reader in readers if not was_in_register or len(readers) == 1 else ():
            self._num_absent[reader] -= not was_in_register
            if self._is_candidate(reader):
                heappush(self._candidates, (self._rank[reader], reader))
        if len(self._registers) > NUM_REGISTERS:
            oldest = next(iter(self._registers))
            del self._registers[oldest]
            for reader in self._readers[oldest]:
                self._num_absent[reader] += 1


def _readers_of(program: Program, order: Sequence[int]) -> dict[int, list[int]]:
    readers: dict[int, list[int]] = {}
    for value in order:
        for x in program.operands(value):
            readers.setdefault(x, []).append(value)
    return readers


def _fused_products(program: Program, order: Sequence[int]) -> dict[int, int]:
    """Products that a fused multiply-add computes with the sum that reads them, at most one for each sum."""
    readers = _readers_of(program, order)
    results, hosts = set(program.results), {}
    taken: set[int] = set()
    for value in order:
        of = readers.get(value, ())
        if program.code[value].op != "mul" or len(of) != 1 or value in results or of[0] in taken:
            continue
        if program.code[of[0]].op in ("add", "sub"):
            hosts[value] = of[0]
            taken.add(of[0])
    return hosts
