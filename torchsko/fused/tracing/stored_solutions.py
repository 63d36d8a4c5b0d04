"""Solutions of equations that are stored, so that a backward pass does not solve them again.

A derivative is a trace of the source in which the source itself is evaluated first. It calls
`torchsko.implicit.equation.implicit` and loops in the order in which the trace of the source does. The number
of a call therefore identifies a solution in both. Equations and loops within a solver have no number, since a
backward pass does not call the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from torch import Tensor

from torchsko.fused.program.elementwise import flat_list
from torchsko.fused.program.graph import Graph
from torchsko.implicit.tensor_loop import TensorLoop

Solutions = Mapping[tuple[int, ...], Tensor]
"""Expressions of solutions. Keys are the number of an equation, after those of the loops that contain it."""


class StoredSolutions:
    """The solutions of a trace; the loop of a VJP reads those of the iterations that it differentiates.

    Attributes:
        found: the solutions; those of a loop are stacked over its iterations.
        iterated: keys of the solutions that depend on the iterations of a solver. One that depends on them by
            other stored solutions alone is cheap to recompute, so it is not included.
    """

    def __init__(self, graph: Graph) -> None:
        self.found: dict[tuple[int, ...], Tensor] = {}
        self.iterated: set[tuple[int, ...]] = set()
        self._graph = graph
        self._known: Solutions = {}
        self._of_loops: dict[object, Solutions] = {}
        self._count, self._is_solving = 0, False

    def read(self, known: Solutions) -> None:
        """Use stored solutions instead of solving their equations."""
        self._known = known

    def record(self, solve: Callable[[], Tensor]) -> Tensor:
        """The next solution; ``solve`` computes it if it is not stored."""
        if self._is_solving:
            return solve()
        key = (self._next_number(),)
        if key in self._known:
            return self._known[key]
        self._is_solving = True
        try:
            solution = solve()
        finally:
            self._is_solving = False
        if self._depends_on_iterations(solution):
            self.iterated.add(key)
        self.found[key] = solution
        return solution

    def record_loop(
        self,
        loop: TensorLoop,
        trace: Callable[[Solutions], tuple[Solutions, frozenset[tuple[int, ...]]]],
    ) -> None:
        """Trace the next loop, with the stored solutions of its iterations.

        Args:
            loop: the loop.
            trace: traces the loop with known solutions; returns those that it finds, and the keys of
                iterated solutions of the body.
        """
        known = self._of_loops.get(loop.differentiated, {})
        number = None if self._is_solving else self._next_number()
        known = known or {key[1:]: x for key, x in self._known.items() if key[0] == number}
        found, iterated = trace(known)
        self._of_loops[loop.key] = {**known, **found}
        if number is not None:
            self.found |= {(number, *key): x for key, x in found.items()}
            self.iterated |= {(number, *key) for key in iterated.intersection(found)}

    def _next_number(self) -> int:
        self._count += 1
        return self._count - 1

    def _depends_on_iterations(self, solution: Tensor) -> bool:
        visited = set(_nodes([self.found[key] for key in self.iterated]))
        pending = _nodes([solution])
        while pending:
            node = pending.pop()
            if node in visited:
                continue
            visited.add(node)
            if self._graph.is_iterated(node):
                return True
            pending.extend(map(abs, self._graph.args(node)))
        return False


def _nodes(tensors: Iterable[Tensor]) -> list[int]:
    return [abs(x) for x in chain.from_iterable(map(flat_list, tensors))]
