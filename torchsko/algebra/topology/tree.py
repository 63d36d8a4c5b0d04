"""Rooted trees and forests: the topology of an SKO model.

A tree is the tuple of its parents. Nodes may be numbered in any way; the breadth-first order in which
sweeps visit them is derived here, once, and a level (all nodes of one depth) is a slice of it. The
inertial frame is no node: base bodies have parent -1, and several of them make a forest.

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*,
Nonlinear Dynamics, 2011 (trees, related nodes, serial-chain segments).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import SupportsIndex

from torchsko.errors import TreeError, unknown_name


@dataclass(frozen=True)
class Tree:
    """An immutable, hashable tree or forest.

    Two trees are equal when parents and names are.

    Attributes:
        parent: parent of each node; -1 for a base node.
        names: one distinct name per node.
        levels: the nodes of each depth, breadth first, siblings side by side.
        children: the children of each node, in node order.

    Example:
        >>> tree = Tree.from_parents([-1, 0, 0, 1], names=["hip", "knee", "tail", "foot"])
        >>> tree.levels
        ((0,), (1, 2), (3,))
        >>> tree.ancestors(3), tree.closest_common_ancestor(3, 2)
        ((1, 0), 0)
    """

    parent: tuple[int, ...]
    names: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    children: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _refuse_bad_names(self.names, len(self.parent))
        _refuse_bad_parents(self.parent, self.names)
        children: list[list[int]] = [[] for _ in self.parent]
        for k, p in enumerate(self.parent):
            if p >= 0:
                children[p].append(k)
        levels, level = [], [k for k, p in enumerate(self.parent) if p < 0]
        while level:
            levels.append(tuple(level))
            level = [c for k in level for c in children[k]]
        if sum(map(len, levels)) < len(self.parent):
            _refuse_cycle(self.parent, self.names)
        object.__setattr__(self, "levels", tuple(levels))
        object.__setattr__(self, "children", tuple(map(tuple, children)))

    @staticmethod
    def from_parents(parents: Sequence[int], names: Sequence[str] | None = None) -> Tree:
        """Tree from the parent of each node (-1 for a base node), in any numbering.

        Args:
            parents: parent of node k at position k.
            names: a distinct name per node; "0", "1", ... when left out.

        Raises:
            TreeError: on a cycle, a self-loop, an unknown parent, duplicate names or an empty tree.
        """
        names = [str(k) for k in range(len(parents))] if names is None else names
        return Tree(tuple(_as_integer(k, p) for k, p in enumerate(parents)), tuple(names))

    @staticmethod
    def from_names(parents: Mapping[str, str | None]) -> Tree:
        """Tree from a mapping of node name to parent name (None for a base node).

        Raises:
            TreeError: on a cycle, a self-loop or a parent that is no node.
        """
        number = {name: k for k, name in enumerate(parents)}
        for child, p in parents.items():
            if p is not None and p not in number:
                raise TreeError(
                    f"node {child!r} has the unknown parent {p!r}.",
                    "Every parent is itself a node, or None for the inertial frame.",
                    f"Add {p!r} to the mapping, or write {{{child!r}: None}}.",
                )
        return Tree(tuple(-1 if p is None else number[p] for p in parents.values()), tuple(parents))

    @staticmethod
    def from_edges(edges: Iterable[tuple[str, str]], nodes: Sequence[str] | None = None) -> Tree:
        """Tree from directed edges (parent, child); refuses any other digraph.

        Args:
            edges: pairs (parent name, child name).
            nodes: all node names in the numbering wanted; by default in order of appearance.

        Raises:
            TreeError: when a node has two parents, on a cycle or a self-loop (the SKO operator
                is not nilpotent and has no SPO), or an edge to an unlisted node.

        Reference: Jain 2011, Part II, section 8.2.
        """
        edges = list(edges)
        names = list(dict.fromkeys(n for e in edges for n in e) if nodes is None else nodes)
        parents: dict[str, str | None] = dict.fromkeys(names)
        for p, child in edges:
            for end in (p, child):
                if end not in parents:
                    raise TreeError(
                        f"edge {p!r} -> {child!r} names the unknown node {end!r}.",
                        "Every end of an edge is one of the nodes.",
                        f"Add {end!r} to nodes=[...], or leave nodes out.",
                    )
            if (first := parents[child]) == p:
                raise TreeError(
                    f"edge {p!r} -> {child!r} is given twice.",
                    "One hinge joins two bodies; a second one would be a loop.",
                    "Leave one of them out.",
                )
            if first is not None:
                raise TreeError(
                    f"node {child!r} has two parents, {first!r} and {p!r}.",
                    "Its velocity would have to follow from both at once, so the rates of its two "
                    "hinges are not independent, as those of an SKO model must be.",
                    f"Leave out one of the edges ({first!r}, {child!r}), ({p!r}, {child!r}), or joints; "
                    "what is left has no loop.",
                )
            parents[child] = p
        _refuse_bad_names(tuple(names), len(names))
        return Tree.from_names(parents)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.parent)

    @property
    def num_levels(self) -> int:
        """Number of levels: nodes on the longest path from a base to a tip."""
        return len(self.levels)

    @property
    def nilpotency(self) -> int:
        """Smallest p with E^p = 0 for every SKO operator E of this tree: the number of levels."""
        return len(self.levels)

    @property
    def order(self) -> tuple[int, ...]:
        """All nodes, breadth first: the order of packed tensors."""
        return tuple(k for level in self.levels for k in level)

    @property
    def bases(self) -> tuple[int, ...]:
        """Nodes on the inertial frame."""
        return self.levels[0]

    @property
    def tips(self) -> tuple[int, ...]:
        """Nodes without children."""
        return tuple(k for k, c in enumerate(self.children) if not c)

    def index(self, name: str) -> int:
        """Number of the node with this name.

        Raises:
            TreeError: when no node has it; the message lists near names.
        """
        if name in self.names:
            return self.names.index(name)
        raise TreeError(*unknown_name("node", name, self.names))

    def depth(self, k: int) -> int:
        """Number of proper ancestors of k."""
        return len(self.ancestors(k))

    def ancestors(self, k: int) -> tuple[int, ...]:
        """Proper ancestors of k, nearest first."""
        path = []
        while (k := self.parent[k]) >= 0:
            path.append(k)
        return tuple(path)

    def descendants(self, k: int) -> tuple[int, ...]:
        """Proper descendants of k, breadth first."""
        found, level = [], list(self.children[k])
        while level:
            found += level
            level = [c for j in level for c in self.children[j]]
        return tuple(found)

    def is_ancestor(self, i: int, j: int) -> bool:
        """True if i is a proper ancestor of j (i > j in Jain's notation)."""
        return i in self.ancestors(j)

    def related(self, i: int, j: int) -> bool:
        """True if i and j are equal or one is an ancestor of the other."""
        return i == j or self.is_ancestor(i, j) or self.is_ancestor(j, i)

    def closest_common_ancestor(self, i: int, j: int) -> int | None:
        """Deepest node at or above both i and j; None when they hang on different bases."""
        above_i = {i, *self.ancestors(i)}
        return next((k for k in (j, *self.ancestors(j)) if k in above_i), None)

    def path(self, i: int, j: int) -> tuple[int, ...]:
        """Nodes from j up to its ancestor i, both included; empty when i is not at or above j."""
        up = (j, *self.ancestors(j))
        return up[: up.index(i) + 1] if i in up else ()

    @property
    def segments(self) -> tuple[tuple[int, ...], ...]:
        """Serial-chain segments: the maximal unbranched runs, each base to tip.

        They partition the nodes; a segment starts at a base or below a branching node.
        """
        # No `:=` in here: Dynamo does not trace one inside a comprehension.
        starts = [
            k for k in self.order if self.parent[k] < 0 or len(self.children[self.parent[k]]) != 1
        ]
        found = []
        for k in starts:
            run = [k]
            while len(self.children[run[-1]]) == 1:
                run.append(self.children[run[-1]][0])
            found.append(tuple(run))
        return tuple(found)


def _as_integer(k: int, parent: SupportsIndex) -> int:
    try:
        return index(parent)
    except TypeError:
        raise TreeError(
            f"node {k} has the parent {parent!r}.",
            "Parents are node numbers, -1 for the inertial frame.",
            "Pass whole numbers here, or a mapping of names to Tree.from_names.",
        ) from None


def _refuse_bad_names(names: tuple[str, ...], count: int) -> None:
    if count == 0:
        raise TreeError(
            "the tree has no node.",
            "A model needs one at least.",
            "Add a base: [-1].",
        )
    if len(names) != count:
        raise TreeError(
            f"{len(names)} names were given for {count} nodes.",
            "Every node has exactly one name.",
            "Pass one name per node, or none at all.",
        )
    if len(set(names)) < count:
        twice = next(n for n in names if names.count(n) > 1)
        where = [k for k, n in enumerate(names) if n == twice]
        raise TreeError(
            f"the name {twice!r} is given to nodes {where}.",
            "Names identify nodes in every public call.",
            "Rename all but one of them.",
        )


def _refuse_bad_parents(parent: tuple[int, ...], names: tuple[str, ...]) -> None:
    for k, p in enumerate(parent):
        if p == k:
            raise TreeError(
                f"node {k} ({names[k]!r}) is its own parent.",
                "A tree has no loops.",
                "Give it another parent, or -1 for the inertial frame.",
            )
        if not -1 <= p < len(parent):
            raise TreeError(
                f"node {k} ({names[k]!r}) has the unknown parent {p}.",
                f"Parents are node numbers 0..{len(parent) - 1}, or -1 for the inertial frame.",
                f"Correct parents[{k}].",
            )


def _refuse_cycle(parent: tuple[int, ...], names: tuple[str, ...]) -> None:
    cleared: set[int] = set()  # paths from these end at a base
    for start in range(len(parent)):
        place, p = {}, start
        while p >= 0 and p not in cleared and p not in place:
            place[p] = len(place)
            p = parent[p]
        if p in place:
            loop = [*list(place)[place[p] :], p]
            raise TreeError(
                f"the parents form a cycle: {_arrows([names[k] for k in loop])}.",
                "Around it paths never end: the SKO operator is not nilpotent, so the SPO "
                "(I - E_A)^-1 does not exist and no sweep can start.",
                f"Cut it: leave out the edge, or joint, that leads to {names[loop[0]]!r}, whose parent is "
                f"then the inertial frame (by number: parents[{loop[0]}] = -1).",
            )
        cleared |= place.keys()


def _arrows(names: Sequence[str]) -> str:
    """The names of a path, the middle of a long one left out."""
    if len(names) > 12:
        names = [*names[:6], f"... {len(names) - 12} more ...", *names[-6:]]
    return " -> ".join(names)
