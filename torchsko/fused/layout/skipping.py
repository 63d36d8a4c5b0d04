"""Instructions that a vector of samples skips: those that `where` reads under a rare condition alone.

A ``rare`` instruction is a condition that few samples fulfil, such as that two limbs of a robot touch. Values
that are read only by ``where`` instructions of one such condition, in its first case, have no effect on other
samples. The code generators print them in a block that is executed if the condition holds in any lane. An
instruction order that keeps these values together makes the blocks large, and their results are added to sums
at once, so that few of them wait in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchsko.fused.program.program import Program

MIN_SKIPPED = 12
"""Fewest instructions of a block; to test a condition costs a few of them."""

_ALWAYS = -1

Group = tuple[int, int]
"""A condition, and the largest number of blocks on a path to the values of the group."""


def conditions_of(program: Program) -> dict[int, int]:
    """For each value that is read under one rare condition alone, the value of this condition."""
    found = dict.fromkeys(program.results, _ALWAYS)

    def read(x: int, condition: int) -> None:
        if found.setdefault(x, condition) != condition:
            found[x] = _ALWAYS

    for value in reversed(range(len(program.code))):
        if value not in found:
            continue
        own, (op, args) = found[value], program.code[value]
        if op == "where" and own == _ALWAYS and program.code[args[0]].op == "rare":
            for x, condition in zip(args, (_ALWAYS, args[0], _ALWAYS), strict=True):
                read(x, condition)
        else:
            for x in program.operands(value):
                read(x, _ALWAYS if op == "loop" else own)
    return {x: condition for x, condition in found.items() if condition != _ALWAYS}


def group_by_condition(
    program: Program, order: Sequence[int]
) -> tuple[Sequence[int], dict[int, int]]:
    """An order in which values under one condition follow each other, and the conditions of values.

    Args:
        program: the program.
        order: its arithmetic values, operands before readers.

    Returns:
        The order, and the condition of each value in a block. Both are unchanged and empty for a program
        without rare conditions.
    """
    conditions = conditions_of(program)
    conditions = {x: conditions[x] for x in order if x in conditions}
    if not conditions:
        return order, {}
    found = _groups(program, order, conditions)
    groups = {key: members for key, members in found.items() if len(members) >= MIN_SKIPPED}
    conditions = {x: key[0] for key, members in groups.items() for x in members}
    return _Grouping(program, order, groups).run(), conditions


def _groups(
    program: Program, order: Sequence[int], conditions: Mapping[int, int]
) -> dict[Group, list[int]]:
    """Values of equal conditions that no value outside of the group separates."""
    level: dict[int, int] = {}
    groups: dict[Group, list[int]] = {}
    for value in order:
        own = conditions.get(value)
        read = [*program.operands(value), *([own] if own is not None else [])]
        level[value] = max(
            (level[x] + (x in conditions and conditions[x] != own) for x in read if x in level),
            default=0,
        )
        if own is not None:
            groups.setdefault((own, level[value]), []).append(value)
    return groups


class _Grouping:
    """State of `group_by_condition`: the values to order."""

    def __init__(
        self, program: Program, order: Sequence[int], groups: Mapping[Group, list[int]]
    ) -> None:
        self._program, self._given, self._groups = program, order, groups
        self._group_of = {x: key for key, members in groups.items() for x in members}
        self._computed = frozenset(order)
        self._readers: dict[int, list[int]] = {}
        for value in order:
            for x in program.operands(value):
                self._readers.setdefault(x, []).append(value)
        self._order: list[int] = []
        self._done: set[int] = set()

    def run(self) -> list[int]:
        """The values in the given order, with the members of a group at its first reader."""
        for value in self._given:
            pending = [(self._group_of.get(value, value), False)]
            while pending:
                node, is_ready = pending.pop()
                if is_ready:
                    self._append(node)
                elif not self._is_done(node):
                    pending.append((node, True))
                    pending += [(x, False) for x in self._before(node) if not self._is_done(x)]
        return self._order

    def _members(self, node: int | Group) -> Sequence[int]:
        return self._groups[node] if isinstance(node, tuple) else (node,)

    def _is_done(self, node: int | Group) -> bool:
        return self._members(node)[-1] in self._done

    def _before(self, node: int | Group) -> list[int | Group]:
        """Values and groups that a node reads, the last one first."""
        read = [x for value in self._members(node) for x in self._program.operands(value)]
        read += [node[0]] if isinstance(node, tuple) else []
        nodes = (self._group_of.get(x, x) for x in read if x in self._computed)
        return [x for x in dict.fromkeys(nodes) if x != node][::-1]

    def _append(self, node: int | Group) -> None:
        if self._is_done(node):
            return
        members = self._members(node)
        self._order += members
        self._done.update(members)
        if isinstance(node, tuple):
            self._append_sums(members)

    def _append_sums(self, members: Sequence[int]) -> None:
        """Append the cases of the results of a block, and the sums that can be formed with them."""
        pending = [x for value in members[::-1] for x in self._readers.get(value, ())]
        while pending:
            value = pending.pop()
            read = self._program.operands(value)
            if (
                value not in self._done
                and value not in self._group_of
                and self._program.code[value].op in ("where", "add", "sub")
                and all(x in self._done for x in read if x in self._computed)
            ):
                self._order.append(value)
                self._done.add(value)
                pending += self._readers.get(value, ())
