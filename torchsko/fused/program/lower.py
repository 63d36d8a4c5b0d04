"""Lowering of the expression graph to a program without dead code, with explicit signs and divisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchsko.fused.program.graph import ODD, Graph
from torchsko.fused.program.program import Instr, Loop, Port, Program

_FLIP_DEPTH = 32
_CARRIES_SIGN = ODD | {"add", "mul", "recip"}


def lower(
    graph: Graph, outputs: Sequence[int], inputs: Sequence[Port], output_ports: Sequence[Port]
) -> Program:
    """Convert expressions to a program.

    Args:
        graph: the graph of the expressions.
        outputs: one expression for every output scalar, port after port.
        inputs: ports of the input scalars.
        output_ports: ports of the output scalars.

    Returns:
        The program, with instructions in the order in which the graph was built.
    """
    lowering = _Lowering(graph, outputs)
    return Program(
        inputs=tuple(inputs),
        outputs=tuple(output_ports),
        results=lowering.results,
        code=tuple(lowering.code),
        constants=tuple(lowering.constants),
        loops=tuple(lowering.loops),
    )


def live_nodes(graph: Graph, outputs: Sequence[int]) -> list[int]:
    """Numbers of all nodes that the outputs depend on, in increasing order."""
    needed = {abs(x) for x in outputs}
    pending = list(needed)
    while pending:
        for x in graph.args(pending.pop()):
            if abs(x) not in needed:
                needed.add(abs(x))
                pending.append(abs(x))
    return sorted(needed)


class _Lowering:
    """State of one lowering.

    A node may be computed as its negation where this is free (``flipped``). Readers account for it,
    so that few explicit ``neg`` instructions remain.
    """

    def __init__(self, graph: Graph, outputs: Sequence[int]) -> None:
        self.graph = graph
        live = live_nodes(graph, outputs)
        self.uses = Counter(abs(x) for x in outputs)
        for node in live:
            self.uses.update(abs(x) for x in graph.args(node))
        self.flipped: set[int] = set()
        distinct = dict.fromkeys(outputs)
        for x in distinct:
            if x < 0 and -x not in distinct:
                self._flip(-x, 0)
        self.code: list[Instr] = []
        self.constants: list[float] = []
        self.loops: list[Loop] = []
        self._number: dict[tuple, int] = {}
        self._value_of: dict[int, int] = {}
        self._denominators = self._single_reciprocals(live)
        for node in live:
            if node not in self._denominators and graph.nodes[node][0] not in ("const", "input"):
                self._value_of[node] = self._emit_node(node)
        self.results = tuple(self._signed(x) for x in outputs)

    def _single_reciprocals(self, live: list[int]) -> set[int]:
        """Reciprocals that one product alone reads; the product becomes a division."""
        found = set()
        for node in live:
            op, *factors = self.graph.nodes[node]
            if op == "mul":
                found.update([x for x in factors if self._is_single_reciprocal(x)][:1])
        return found

    def _is_single_reciprocal(self, x: int) -> bool:
        return self.graph.nodes[x][0] == "recip" and self.uses[x] == 1

    def _flip(self, node: int, depth: int) -> bool:
        """Compute the negation of a node instead of the node if this costs nothing; returns whether it does.

        Operands are negated as well only if they have a single reader.
        """
        op = self.graph.nodes[node][0]
        args = self.graph.args(node)
        below = (
            self.uses[x] == 1 and depth < _FLIP_DEPTH and self._flip(x, depth + 1) for x in args
        )
        is_free = (
            op == "sub"
            or (op == "mul" and any(self.graph.constant[x] is not None for x in args))
            or (op in _CARRIES_SIGN and any(below))
        )
        if is_free:
            self.flipped.add(node)
        return is_free

    def _emit(self, op: str, *args: int) -> int:
        key = (op, *args)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.code)
            self.code.append(Instr(op, args))
        return number

    def _const(self, value: float) -> int:
        key = ("value", repr(value))
        index = self._number.get(key)
        if index is None:
            index = self._number[key] = len(self.constants)
            self.constants.append(value)
        return self._emit("const", index)

    def _read(self, node: int) -> int:
        """Value number of a node as computed: of its negation if it is flipped."""
        op, *args = self.graph.nodes[node]
        if op == "input":
            return self._emit("input", *args)
        value = self.graph.constant[node]
        return self._value_of[node] if value is None else self._const(value)

    def _signed(self, x: int) -> int:
        """Value number of an expression, with its sign."""
        value = self.graph.value(x)
        if value is not None:
            return self._const(value)
        number = self._read(abs(x))
        return number if (x < 0) == (abs(x) in self.flipped) else self._emit("neg", number)

    def _emit_node(self, node: int) -> int:
        op, *args = self.graph.nodes[node]
        if op in ("add", "sub"):
            x, y = args
            return self._sum(node, x, y if op == "add" else -y)
        if op == "mul":
            return self._product(node, *args)
        if op == "loop":
            self.loops.append(self.graph.loops[args[0]])
            return self._emit(op, len(self.loops) - 1, *(self._signed(x) for x in args[1:]))
        if op == "part":
            return self._emit(op, self._value_of[args[0]], args[1])
        if node in self.flipped:  # an odd function
            return self._emit(op, self._signed(-args[0]))
        return self._emit(op, *(self._signed(x) for x in args))

    def _sum(self, node: int, x: int, y: int) -> int:
        signs = [(z < 0) ^ (abs(z) in self.flipped) ^ (node in self.flipped) for z in (x, y)]
        a, b = self._read(abs(x)), self._read(abs(y))
        if signs == [False, True]:
            return self._emit("sub", a, b)
        if signs == [True, False]:
            return self._emit("sub", b, a)
        total = self._emit("add", a, b)
        return self._emit("neg", total) if signs == [True, True] else total

    def _product(self, node: int, x: int, y: int) -> int:
        if x in self._denominators or (self.graph.constant[y] is not None):
            x, y = y, x
        is_quotient = y in self._denominators
        if is_quotient:
            (y,) = self.graph.args(y)
        is_negative = (x in self.flipped) ^ (y in self.flipped) ^ (node in self.flipped)
        value = self.graph.constant[x]
        if value is None:
            a = self._read(x)
        else:
            a = self._const(-value if is_negative else value)
            is_negative = False
        number = self._emit("div" if is_quotient else "mul", a, self._read(y))
        return self._emit("neg", number) if is_negative else number
