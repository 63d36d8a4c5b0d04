"""Hash-consed graph of scalar expressions that simplifies while it is built.

An expression is an integer. Its magnitude numbers a node and its sign is the sign of the
expression, so ``-k`` is the negation of ``k``. Negations therefore cost nothing, move outward through sums
and products, and ``a - b`` and ``b - a`` are one node. Number 0 is the constant 0 and
number 1 the constant 1. Equal expressions get equal numbers, independent of the order of commuting operands.

Simplification keeps every value up to rounding, with three freedoms: the product with a *structural zero* is
0, ``x - x`` is 0, and the sign of a zero is ignored. Structural zeros are entries of constant tensors and of
padding, expression 0. The number 0 as a factor (`Graph.factor`) is a value: its product with nan or infinity
is nan, as in eager mode. ``x * (1 / x)`` is 1 only for an x that is *regular*, that is, declared to be finite
and not zero, such as a pivot of a positive definite matrix. Constants that cancel to within ``SNAP`` of their
size become a structural zero, those within ``SNAP`` of 1 an exact one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from torchsko.fused.program.dense_block import DenseBlock
from torchsko.fused.program.program import Loop, operands_of

SNAP = 1e-15
"""Relative size of rounding noise in constants."""

ODD = frozenset("sin tan tanh atan asin sign sinh erf trunc round".split())
_EVEN = frozenset("cos cosh abs".split())
_COMMUTING = frozenset("min max eq ne".split())
_FOLD = {
    "recip": np.reciprocal,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "sign": np.sign,
    "abs": np.abs,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "erf": math.erf,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "floor": np.floor,
    "trunc": np.trunc,
    "round": np.round,
    "div": np.divide,
    "pow": np.power,
    "atan2": np.arctan2,
    "fmod": np.fmod,
    "min": np.minimum,
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def _snapped(value: float, scale: float) -> float:
    """The value without rounding noise: 0 if small relative to ``scale``, and 1 or -1 if close to it."""
    if abs(value) <= SNAP * scale < math.inf:
        return 0.0
    if abs(abs(value) - 1.0) <= SNAP:
        return math.copysign(1.0, value)
    return value


class Graph:
    """The expressions of a program, numbered as described in `torchsko.fused.program.graph`.

    Attributes:
        nodes: for each number, the operation and its arguments, e.g. ``("add", 4, 7)``; arguments
            are expressions (signed). ``add``, ``sub`` and ``mul`` have positive arguments only.
        loops: the loops; ``loop`` nodes index them.
        constant: for each number, its value if it is a constant, else None.
        dtype: the dtype of the kernel.
    """

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        self.dtype = dtype
        self.nodes: list[tuple] = []
        self.constant: list[float | None] = []
        self._number: dict[tuple, int] = {}
        self._inverse: dict[int, int] = {}
        self._regular: set[int] = set()
        self._rare: set[int] = set()
        self._has_nonfinite = False
        self.loops: list[Loop] = []
        self._blocks: dict[tuple, int] = {}
        self.const(0.0)
        self.const(1.0)
        self._zero_factor = self._const_node("zero", 0.0)

    def _intern(self, key: tuple) -> int:
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.nodes)
            self.nodes.append(key)
            self.constant.append(None)
        return number

    # -- leaves ----------------------------------------------------------------------------------

    def const(self, value: float) -> int:
        """The expression of an exact constant."""
        if value != value:
            self._has_nonfinite = True
            return self._const_node("nan", math.nan)
        if value in (math.inf, -math.inf):
            self._has_nonfinite = True
        number = self._const_node(abs(value), abs(value))
        return -number if value < 0 else number

    def _const_node(self, key: float | str, value: float) -> int:
        number = self._intern(("const", key))
        self.constant[number] = value
        return number

    def factor(self, value: float) -> int:
        """The expression of a number as a factor or a dividend, where 0 is no structural zero."""
        return self.const(value) or self._zero_factor

    def mark_regular(self, xs: Iterable[int]) -> None:
        """Declare that expressions are finite and not zero."""
        self._regular.update(map(abs, xs))

    def mark_rare(self, xs: Iterable[int]) -> None:
        """Declare that few samples fulfil conditions; see `torchsko.fused.layout.skipping`."""
        self._rare.update(map(abs, xs))

    def args(self, node: int) -> tuple[int, ...]:
        """The operands of a node; empty for constants and inputs."""
        op, *args = self.nodes[node]
        return operands_of(op, tuple(args))

    def input(self, index: int) -> int:
        """The expression of input scalar ``index``."""
        return self._intern(("input", index))

    def loop(self, loop: Loop, args: Sequence[int]) -> int:
        """The node of a loop with these inputs; only its parts are read."""
        self.loops.append(loop)
        return self._intern(("loop", len(self.loops) - 1, *args))

    def table_loop(self, loop: Loop, args: Sequence[int]) -> int:
        """The node of a loop over rows; equal loops of equal inputs are one node."""
        key = loop, *args
        if key not in self._blocks:
            self._blocks[key] = self.loop(loop, args)
        return self._blocks[key]

    def block(self, block: DenseBlock, args: Sequence[int]) -> int:
        """The node of a dense operation; equal operations on equal inputs are one node."""
        key = block, *args
        if key not in self._blocks:
            self._blocks[key] = self.loop(Loop.of_block(block), args)
        return self._blocks[key]

    def is_iterated(self, node: int) -> bool:
        """True for a node of a loop that iterates."""
        op, *args = self.nodes[node]
        return op == "loop" and self.loops[args[0]].is_iterated

    def part(self, loop: int, index: int) -> int:
        """The expression of one output scalar of a loop."""
        return self._intern(("part", loop, index))

    def value(self, x: int) -> float | None:
        """The value of an expression if it is constant, else None."""
        v = self.constant[abs(x)]
        return -v if v is not None and x < 0 else v

    # -- sums ------------------------------------------------------------------------------------

    def add(self, x: int, y: int) -> int:
        """Expression x + y."""
        if not x:
            return y
        if not y:
            return x
        joined = self._joined(x, y) if self._rare else 0
        if joined:
            return joined
        if x > 0:
            return self._plus(x, y) if y > 0 else self._minus(x, -y)
        return self._minus(y, -x) if y > 0 else -self._plus(-x, -y)

    def _joined(self, x: int, y: int) -> int:
        """Sum with one case for two terms under the same rare condition, or 0 without such terms."""
        condition, case = self._rare_case(y)
        if not condition:
            return 0
        op, *terms = self.nodes[abs(x)]
        signed = [terms[0], -terms[1] if op == "sub" else terms[1]] if op in ("add", "sub") else []
        signed = [z if x > 0 else -z for z in signed]
        for z, rest in ((x, 0), *zip(signed, signed[::-1], strict=True)):
            other, first_case = self._rare_case(z)
            if other == condition:
                total = self.where(condition, self.add(first_case, case), 0)
                return self.add(rest, total)
        return 0

    def _rare_case(self, x: int) -> tuple[int, int]:
        """The rare condition of an expression that is zero without it, and its value then; else zeros."""
        op, *args = self.nodes[abs(x)]
        if op != "where" or args[2] != 0 or self.nodes[abs(args[0])][0] != "rare":
            return 0, 0
        return args[0], args[1] if x > 0 else -args[1]

    def sub(self, x: int, y: int) -> int:
        """Expression x - y."""
        return self.add(x, -y)

    def _plus(self, x: int, y: int) -> int:
        if x == y:
            return self.mul(self.const(2.0), x)
        if x > y:
            x, y = y, x
        number = self._number.get(("add", x, y))
        if number is not None:
            return number
        v, w = self.constant[x], self.constant[y]
        if v is not None and w is not None:
            return self.const(_snapped(v + w, 0.0))
        return self._intern(("add", x, y))

    def _minus(self, x: int, y: int) -> int:
        if x == y:
            return self.const(math.nan) if self.constant[x] == math.inf else 0
        number = self._number.get(("sub", x, y))
        if number is not None:
            return number
        number = self._number.get(("sub", y, x))
        if number is not None:
            return -number
        v, w = self.constant[x], self.constant[y]
        if v is not None and w is not None:
            return self.const(_snapped(v - w, max(v, w)))
        return self._intern(("sub", x, y))

    def sum(self, xs: Iterable[int]) -> int:
        """Sum of expressions, from the left."""
        total = 0
        for x in xs:
            if x:
                total = self.add(total, x)
        return total

    # -- products --------------------------------------------------------------------------------

    def mul(self, x: int, y: int) -> int:
        """Expression x * y."""
        if not (x and y) and not self._has_nonfinite:
            return 0
        if x < 0:
            return -self._times(-x, y) if y > 0 else self._times(-x, -y)
        return self._times(x, y) if y >= 0 else -self._times(x, -y)

    def _times(self, x: int, y: int) -> int:
        if x > y:
            x, y = y, x
        number = self._number.get(("mul", x, y))
        if number is not None:
            return number
        v, w = self.constant[x], self.constant[y]
        if v is not None and w is not None:
            return self.const(_snapped(v * w, 0.0))
        if x == 1:
            return y
        if x == 0:
            return 0
        if v is not None:
            return self._scaled(v, x, y)
        if w is not None:
            return self._scaled(w, y, x)
        canceled = self._canceled(x, y) or self._canceled(y, x)
        return canceled or self._intern(("mul", x, y))

    def _scaled(self, v: float, x: int, y: int) -> int:
        """Constant x, of value v, times y: c * (d * z) is (c * d) * z."""
        op, *factors = self.nodes[y]
        if op == "mul":
            for c, z in (factors, reversed(factors)):
                w = self.constant[c]
                if w is not None:
                    return self.mul(self.factor(_snapped(v * w, 0.0)), z)
        return self._intern(("mul", min(x, y), max(x, y)))

    def _canceled(self, x: int, y: int) -> int:
        """Simplified x * y if y is 1 / x or has this factor, else 0."""
        inverse = self._inverse.get(x)
        if inverse is None or self._regular.isdisjoint((x, inverse)):
            return 0
        if inverse == y:
            return 1
        op, *factors = self.nodes[y]
        if op == "mul" and inverse in factors:
            return factors[1] if factors[0] == inverse else factors[0]
        return 0

    def recip(self, x: int) -> int:
        """Expression 1 / x."""
        if x < 0:
            return -self.recip(-x)
        if self.constant[x] is not None:
            return self._folded("recip", (x,))
        inverse = self._inverse.get(x)
        if inverse is None:
            inverse = self._intern(("recip", x))
            self._inverse[x], self._inverse[inverse] = inverse, x
        return inverse

    def div(self, x: int, y: int) -> int:
        """Expression x / y, as x * (1 / y): a shared denominator is inverted once."""
        return self.mul(x, self.recip(y))

    def quotient(self, x: int, y: int) -> int:
        """Expression x / y with a single rounding, for tests whether it is an integer."""
        return self._function("div", (x, y))

    def pow(self, x: int, y: int) -> int:
        """Expression x ** y; small integer and half-integer exponents become products and roots."""
        exponent = self.value(y)
        if exponent is None or abs(exponent) > 8 or exponent * 2 != int(exponent * 2):
            return self._function("pow", (x, y))
        if exponent < 0:
            return self.recip(self.pow(x, -y))
        half, integer = math.modf(exponent)
        power = self._integer_power(x, int(integer))
        return self.mul(power, self.sqrt(x)) if half else power

    def _integer_power(self, x: int, n: int) -> int:
        if n <= 1:
            return x if n else 1
        root = self._integer_power(x, n // 2)
        square = self.mul(root, root)
        return self.mul(square, x) if n % 2 else square

    # -- functions -------------------------------------------------------------------------------

    def sqrt(self, x: int) -> int:
        """Square root."""
        return self._function("sqrt", (x,))

    def unary(self, op: str, x: int) -> int:
        """A function of ``UNARY``; a negation moves out of odd functions and is dropped in even ones."""
        if op == "neg":
            return -x
        if op == "recip":
            return self.recip(x)
        if x < 0 and op in ODD:
            return -self._function(op, (-x,))
        return self._function(op, (abs(x) if op in _EVEN else x,))

    def binary(self, op: str, x: int, y: int) -> int:
        """A function of ``BINARY``."""
        if op in ("add", "sub", "mul", "div", "pow"):
            return getattr(self, op)(x, y)
        if op in ("gt", "ge"):
            return self._function("lt" if op == "gt" else "le", (y, x))
        if op in ("min", "max") and x == y:
            return x
        if op in _COMMUTING and x > y:
            x, y = y, x
        return self._function(op, (x, y))

    def where(self, c: int, x: int, y: int) -> int:
        """Expression x if c is not 0, else y."""
        condition = self.value(c)
        if condition is not None:
            return x if condition != 0 else y
        if x == y:
            return x
        if abs(c) in self._rare and self.nodes[abs(c)][0] != "rare":
            c = self._intern(("rare", c))
        if x <= 0 and y <= 0:
            return -self._intern(("where", c, -x, -y))
        return self._intern(("where", c, x, y))

    def _function(self, op: str, args: tuple[int, ...]) -> int:
        if all(self.constant[abs(x)] is not None for x in args):
            return self._folded(op, args)
        return self._intern((op, *args))

    def _folded(self, op: str, args: tuple[int, ...]) -> int:
        values = [np.float64(self.value(x)) for x in args]  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            result = float(_FOLD[op](*values))
        # The rounding error of the argument determines the noise of a sine or cosine.
        scale = max(1.0, abs(values[0])) if op == "cos" else abs(values[0])
        noise = scale if op in ("sin", "cos", "tan") and abs(values[0]) > 1.0 else 0.0
        return self.const(_snapped(result, noise))
