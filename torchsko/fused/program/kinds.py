"""Kinds of numbers in a traced function: truth values, whole numbers and real ones, as PyTorch has them.

The kernel computes with one type. The kinds say what eager operations would have rounded: a number that is
written into a tensor of truth values is one of these there, and a count stays a whole number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.program.entries import by_entry, truth
from torchsko.fused.program.graph import Graph

_KINDS = (torch.bool, torch.int64, torch.float64)

_PREDICATES = frozenset(
    "lt le gt ge eq ne logical_not logical_and logical_or logical_xor "
    "bitwise_not bitwise_and bitwise_or bitwise_xor".split()
)
_WIDEST = frozenset(
    "neg abs sign sgn floor ceil trunc round relu add sub rsub mul remainder fmod floor_divide pow "
    "minimum maximum clamp clamp_min clamp_max where amax amin cat stack mm bmm mv dot addmm addmv baddbmm "
    "linalg_cross".split()
)
_COUNTS = frozenset("sum prod cumsum".split())
INTO_FIRST = frozenset(
    "masked_fill fill full_like ones_like new_full new_ones constant_pad_nd copy triu tril zero index_add "
    "index_copy index_put scatter scatter_add select_scatter slice_scatter diagonal_scatter".split()
)
"""Operations that write numbers into their first operand, or a tensor like it, whose kind they take."""


def leaves(x: Any) -> Iterator[Any]:
    """All that lists, tuples and dicts hold."""
    if isinstance(x, dict):
        x = tuple(x.values())
    if not isinstance(x, (list, tuple)):
        yield x
        return
    for y in x:
        yield from leaves(y)


def widest(*operands: Any) -> torch.dtype:
    """The kind of what numbers of these operands are together; whatever is no number counts for nothing."""
    ranks = [_rank(x) for x in leaves(operands)]
    return _KINDS[max(ranks, default=0)]


def _rank(x: Any) -> int:
    if isinstance(x, Tensor):
        real = x.is_floating_point() or x.is_complex()
        return 2 if real else int(x.dtype != torch.bool)
    return 2 if type(x) is float else int(type(x) is int)


def are_truths(operands: Any) -> bool:
    """Whether all tensors and numbers among these are truth values."""
    return widest(operands) == torch.bool


def result_kind(base: str, moves: bool, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.dtype:
    """The kind of the result of an operation.

    Args:
        base: its name, without overload and without trailing underscore.
        moves: whether it only moves entries.
        args: its arguments.
        kwargs: those given by name.

    Raises:
        FusedError: a type that no kernel has was asked for.
    """
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return checked(dtype, widest(args[:1]))
    if base in _PREDICATES:
        return torch.bool
    if base in _WIDEST:
        return widest(*_numbers(base, args, kwargs))
    if base in _COUNTS:
        return max(torch.int64, widest(args[:1]), key=_KINDS.index)
    rounds = base == "div" and kwargs.get("rounding_mode") is not None
    if moves or rounds or base in INTO_FIRST:
        return widest(args[: 2 if rounds else 1])
    return torch.float64


def _numbers(base: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
    """The arguments that are numbers of the result; the others are dimensions, or conditions."""
    if base in ("amax", "amin", "stack", "cat", "round"):
        return args[:1]
    if base == "where":
        return args[1:]
    return args[:2] if base in ("add", "sub", "rsub") else (*args, *kwargs.values())


def checked(dtype: torch.dtype, source: torch.dtype) -> torch.dtype:
    """The kind that a type is of, for numbers of a kind.

    Raises:
        FusedError: real numbers were asked for as whole ones.
    """
    if dtype == torch.bool:
        return dtype
    if dtype.is_floating_point:
        return torch.float64
    if dtype.is_complex or source == torch.float64:
        raise FusedError(
            f"traced values were asked for as {dtype}: programs compute real numbers only.",
            advice="Keep indices and counts as constants outside of the traced values.",
        )
    return torch.int64


def of_kind(graph: Graph, ids: Tensor, source: torch.dtype, kind: torch.dtype) -> Tensor:
    """Expressions of numbers of one kind as those of another, rounded as PyTorch writes them there."""
    if _KINDS.index(source) <= _KINDS.index(kind):
        return ids
    convert: Callable[[int], int] = partial(graph.unary, "trunc")
    if kind == torch.bool:
        convert = partial(truth, graph)
    return by_entry(convert, graph, ids)


def refuse_bits(base: str, operands: Sequence[Any]) -> None:
    """Refuse the bits of whole numbers: programs have truth values, and no others.

    Raises:
        FusedError: an operand is no truth value.
    """
    if base.startswith("bitwise_") and not are_truths(operands):
        raise FusedError(
            f"{base} of whole numbers has no rule for tracing to a scalar program.",
            "Of truth values it has one: & and | of results of comparisons, for example.",
            "Count with sums and torch.remainder instead: n % 2 for n & 1.",
        )
