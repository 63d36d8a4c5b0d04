"""Rounds of products: programs of nothing but products and sums, and the order of their sums."""

from __future__ import annotations

from collections.abc import Sequence

from torchsko.fused.program.program import Program

_PRODUCTS = frozenset(("const", "input", "mul", "add", "sub", "neg"))
_GROWS = frozenset(("add", "sub", "neg"))


def is_round_of_products(program: Program) -> bool:
    """Whether a program has nothing but products and sums."""
    return all(op in _PRODUCTS for op, _ in program.code)


def by_sums(program: Program, order: Sequence[int], sums: int) -> list[int]:
    """The order, but of sums that grow side by side only so many at once, one after the other the rest.

    Each sum that grows is in a register. Rounds are written for as many as the widest vectors have.

    Args:
        program: a round of products.
        order: its arithmetic values, each behind those that it reads.
        sums: how many.
    """
    readers: dict[int, list[int]] = {}
    for value in order:
        for x in program.operands(value):
            readers.setdefault(x, []).append(value)
    results = set(program.results)
    end: dict[int, int] = {}  # the sum that a value goes into, as its last value
    for value in reversed(order):
        (reader, *others) = readers.get(value, [value])
        grows = not others and value not in results and program.code[reader].op in _GROWS
        end[value] = end.get(reader, value) if grows else value
    rank = {last: k for k, last in enumerate(x for x in order if end[x] == x)}
    return sorted(order, key=lambda value: rank[end[value]] // sums)
