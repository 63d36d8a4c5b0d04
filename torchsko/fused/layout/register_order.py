"""An order of a program in which values are used while they are in registers.

Depth first, a value that several others read is computed for the first of them, and waits in memory for the
next ones. Most of these could be computed at once: what they read is in registers, and one of these registers
becomes free for the result. This module moves such instructions forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from torchsko.fused.program.program import Program

REGISTERS = 24
"""How many values are taken to be in registers, those used last: of 32 some hold what waits for nothing."""


def in_registers(program: Program, order: Sequence[int]) -> list[int]:
    """The order, but each instruction as soon as it needs no load and no further register.

    Args:
        program: the program.
        order: its arithmetic values, each behind those that it reads.
    """
    return _Moving(program, order).run()


class _Moving:
    """The state of `in_registers`: what waits for its turn, and what is in registers."""

    def __init__(self, program: Program, order: Sequence[int]) -> None:
        operands, hosts = program.operands, _fused_products(program, order)
        self._products: dict[int, list[int]] = {}
        for product, host in hosts.items():
            self._products.setdefault(host, []).append(product)
        self._reads: dict[int, tuple[int, ...]] = {}
        self._readers: dict[int, dict[int, None]] = {}  # those that wait
        for value in order:
            if value in hosts:
                continue
            own = [y for x in operands(value) for y in (operands(x) if x in hosts else (x,))]
            reads = tuple(x for x in dict.fromkeys(own) if program.code[x].op != "const")
            self._reads[value] = reads
            for x in reads:
                self._readers.setdefault(x, {})[value] = None
        self._rank = {value: k for k, value in enumerate(self._reads)}
        self._absent = {value: len(reads) for value, reads in self._reads.items()}
        # What loops read and give lies in memory.
        self._loops = {v for v in self._reads if program.code[v].op == "loop"}
        self._registers: dict[int, None] = {}  # those used last at the end
        self._next: list[tuple[int, int]] = []
        self._order: list[int] = []
        self._done: set[int] = set()

    def run(self) -> list[int]:
        """All that waits, in turn, but first whatever is near."""
        for value in self._reads:
            while value not in self._done:
                self._compute(self._near(value))
        return self._order

    def _near(self, otherwise: int) -> int:
        """The first of those that need neither a load nor a further register, if there is one."""
        while self._next:
            value = heappop(self._next)[1]
            if value not in self._done and self._is_near(value):
                return value
        return otherwise

    def _is_near(self, value: int) -> bool:
        if self._absent[value] or value in self._loops:
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
            self._hold(x)
        if value in self._readers:
            self._hold(value)

    def _hold(self, x: int) -> None:
        """A value in a register, as the one used last; out of it if nothing reads it any more."""
        held, readers = x in self._registers, self._readers[x]
        if held:
            del self._registers[x]
        if not readers:
            return
        self._registers[x] = None
        for reader in readers if not held or len(readers) == 1 else ():
            self._absent[reader] -= not held
            if self._is_near(reader):
                heappush(self._next, (self._rank[reader], reader))
        if len(self._registers) > REGISTERS:
            oldest = next(iter(self._registers))
            del self._registers[oldest]
            for reader in self._readers[oldest]:
                self._absent[reader] += 1


def _fused_products(program: Program, order: Sequence[int]) -> dict[int, int]:
    """Products that one sum alone reads, one for each such sum: an instruction together with it."""
    readers: dict[int, list[int]] = {}
    for value in order:
        for x in program.operands(value):
            readers.setdefault(x, []).append(value)
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
