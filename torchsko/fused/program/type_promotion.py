"""Dtypes of traced tensors: bool, int64 or float64, promoted as PyTorch promotes them.

A kernel computes with one floating-point type. The dtypes record where eager operations would
truncate: a number written into a bool tensor becomes a truth value, and a count remains an integer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.program.elementwise import apply_elementwise, truth
from torchsko.fused.program.graph import Graph

_DTYPES = (torch.bool, torch.int64, torch.float64)
_RANKS = {dtype: rank for rank, dtype in enumerate(_DTYPES)}

_PREDICATES = frozenset(
    "lt le gt ge eq ne logical_not logical_and logical_or logical_xor "
    "bitwise_not bitwise_and bitwise_or bitwise_xor".split()
)
_PROMOTING = frozenset(
    "neg abs sign sgn floor ceil trunc round relu add sub rsub mul remainder fmod floor_divide pow "
    "minimum maximum clamp clamp_min clamp_max where amax amin cat stack mm bmm mv dot addmm addmv baddbmm "
    "linalg_cross".split()
)
_COUNTING = frozenset("sum prod cumsum".split())
WRITES_INTO_FIRST = frozenset(
    "masked_fill fill full_like ones_like new_full new_ones constant_pad_nd copy triu tril zero index_add "
    "index_copy index_put scatter scatter_add select_scatter slice_scatter diagonal_scatter".split()
)
"""Operations that write into their first operand, or into a tensor like it, and so have its dtype."""


def leaves(x: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts."""
    if isinstance(x, dict):
        x = x.values()
    elif not isinstance(x, (list, tuple)):
        return [x]
    found = []
    for y in x:
        if isinstance(y, (list, tuple, dict)):
            found += leaves(y)
        else:
            found.append(y)
    return found


def promoted_dtype(*operands: Any) -> torch.dtype:
    """The common dtype of all tensors and numbers among the operands; other objects are ignored."""
    ranks = [_rank(x) for x in leaves(operands)]
    return _DTYPES[max(ranks, default=0)]


def _rank(x: Any) -> int:
    if isinstance(x, Tensor):
        rank = _RANKS.get(x.dtype)
        if rank is not None:
            return rank
        is_float = x.is_floating_point() or x.is_complex()
        return 2 if is_float else int(x.dtype != torch.bool)
    return 2 if type(x) is float else int(type(x) is int)


def are_all_bool(operands: Any) -> bool:
    """True if all tensors and numbers among the operands are bool."""
    return promoted_dtype(operands) == torch.bool


def result_dtype(
    base: str, moves: bool, args: Sequence[Any], kwargs: dict[str, Any]
) -> torch.dtype:
    """The dtype of the result of an operation.

    Args:
        base: name of the operation, without overload and trailing underscore.
        moves: whether the operation only moves entries.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        FusedError: the requested dtype does not exist in kernels.
    """
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return traced_dtype(dtype, promoted_dtype(args[:1]))
    if base in _PREDICATES:
        return torch.bool
    if base in _PROMOTING:
        return promoted_dtype(*_promoted_operands(base, args, kwargs))
    if base in _COUNTING:
        return max(torch.int64, promoted_dtype(args[:1]), key=_DTYPES.index)
    rounds = base == "div" and kwargs.get("rounding_mode") is not None
    if moves or rounds or base in WRITES_INTO_FIRST:
        return promoted_dtype(args[: 2 if rounds else 1])
    return torch.float64


def _promoted_operands(base: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
    """The arguments that determine the dtype of the result; others are dimensions or conditions."""
    if base in ("amax", "amin", "stack", "cat", "round"):
        return args[:1]
    if base == "where":
        return args[1:]
    return args[:2] if base in ("add", "sub", "rsub") else (*args, *kwargs.values())


def traced_dtype(dtype: torch.dtype, source: torch.dtype) -> torch.dtype:
    """The dtype in a trace for a requested dtype, of values that have dtype ``source``.

    Raises:
        FusedError: floating-point values cannot become integers or complex numbers.
    """
    if dtype == torch.bool:
        return dtype
    if dtype.is_floating_point:
        return torch.float64
    if dtype.is_complex or source == torch.float64:
        raise FusedError(
            f"traced values are converted to {dtype}: kernels compute real numbers only.",
            advice="Keep indices and counts as constants outside of the traced values.",
        )
    return torch.int64


def converted(graph: Graph, ids: Tensor, source: torch.dtype, target: torch.dtype) -> Tensor:
    """Expressions of dtype ``source`` converted to ``target``, truncated as PyTorch does on writing."""
    if _DTYPES.index(source) <= _DTYPES.index(target):
        return ids
    convert: Callable[[int], int] = partial(graph.unary, "trunc")
    if target == torch.bool:
        convert = partial(truth, graph)
    return apply_elementwise(convert, graph, ids)


def refuse_bitwise(base: str, operands: Sequence[Any]) -> None:
    """Refuse bitwise operations on integers.

    Raises:
        FusedError: an operand of a bitwise operation is not bool.
    """
    if base.startswith("bitwise_") and not are_all_bool(operands):
        raise FusedError(
            f"{base} of integers has no rule for tracing to a scalar program.",
            "It has one for bool tensors only: & and | of results of comparisons, for example.",
            "Use sums and torch.remainder instead: torch.remainder(n, 2) for n & 1.",
        )
