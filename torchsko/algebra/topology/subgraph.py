r"""Subgraphs of a tree that contract into one node; see also `torchsko.algebra.theory.path_induced`.

===================== ===================================================== =====================
paper                 meaning                                               function
===================== ===================================================== =====================
S_A, aggregation      with what it takes to hang on one parent              `aggregation_subgraph`
===================== ===================================================== =====================

A set is contracted into one node without losing the tree just when it meets the *aggregation
condition*: those of its nodes whose parent is outside share that parent. The inertial frame counts
as a parent, so the bases of a forest hang on a common one. Nodes are given by number or by name;
sets come back as sorted numbers.

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*,
Nonlinear Dynamics, 2011, sections 3 and 5.
DEPARTS: the paper's conclusion calls the path-induced property sufficient for contraction to leave
a tree; it is only necessary. Two nodes on different parents, neither above the other, are
path-induced and would give a node with two parents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from torchsko.algebra.topology.tree import Tree
from torchsko.errors import TreeError


def node_numbers(tree: Tree, nodes: Iterable[int | str]) -> tuple[int, ...]:
    """The nodes of a set as sorted numbers.

    Raises:
        TreeError: when the set is empty, or a number or name is no node's.
    """
    numbers = {tree.index(k) if isinstance(k, str) else int(k) for k in nodes}
    for k in sorted(numbers):
        if not 0 <= k < tree.num_nodes:
            raise TreeError(
                f"{k} is no node.",
                f"The nodes are numbered 0..{tree.num_nodes - 1}.",
                f"Use one of these numbers, or a name: {', '.join(map(repr, tree.names[:8]))}.",
            )
    if not numbers:
        raise TreeError(
            "the set of nodes is empty.",
            "There is nothing to cut out or to contract.",
            f"Name one node at least, for example [{tree.names[0]!r}].",
        )
    return tuple(sorted(numbers))


def node_number(tree: Tree, node: int | str) -> int:
    """The number of one node.

    Raises:
        TreeError: when the number or name is no node's.
    """
    return node_numbers(tree, (node,))[0]


def aggregation_obstacle(tree: Tree, nodes: Iterable[int | str]) -> str | None:
    """The reason why a set violates the aggregation condition; None if it satisfies it.

    Returns:
        A clause that names the path which leaves the set and returns, or the different parents its
        nodes hang on.

    Raises:
        TreeError: when the set is empty or has an unknown node.

    Reference: Jain 2011, Transformations Part I, Assumption 1 and Lemma 4.
    """
    S = node_numbers(tree, nodes)
    if obstacle := leaving_path(tree, S):
        return obstacle
    members = set(S)
    tops = [k for k in S if tree.parent[k] not in members]
    parents = sorted({tree.parent[k] for k in tops})
    if len(parents) == 1:
        return None
    hangs = [
        f"{quoted_names(tree, [k for k in tops if tree.parent[k] == p])} on {_parent_name(tree, p)}"
        for p in parents
    ]
    return f"they hang on {len(parents)} different parents: {', '.join(hangs)}"


def aggregation_subgraph(tree: Tree, nodes: Iterable[int | str]) -> tuple[int, ...]:
    """The smallest set that contains these nodes and contracts into one node of a tree.

    With j the closest node that is a proper ancestor of all of them (or the inertial frame), it
    holds every node on the paths from them up to j, j excluded.

    Args:
        tree: the tree.
        nodes: numbers or names.

    Returns:
        Sorted node numbers.

    Raises:
        TreeError: when the set is empty or has an unknown node.

    Example:
        >>> fork = Tree.from_parents([-1, 0, 0, 1, 2])
        >>> aggregation_subgraph(fork, [3, 4]), aggregation_subgraph(fork, [3])
        ((1, 2, 3, 4), (3,))

    Reference: Jain 2011, Transformations Part I, Lemma 6.
    DEPARTS: the lemma has "the smallest subtree containing S, less its root". Its root must be a
    proper ancestor of all of S: a single node is its own smallest subtree, and would leave nothing.
    """
    given = set(node_numbers(tree, nodes))
    below = given_below(tree, given)
    # A proper ancestor of all has all of them below it.
    return tuple(
        k for k in range(tree.num_nodes) if below[k] and below[k] - (k in given) < len(given)
    )


def contract(tree: Tree, nodes: Iterable[int | str], name: str | None = None) -> Tree:
    """The tree with a set of nodes contracted into one.

    Args:
        tree: the tree.
        nodes: numbers or names; they must meet the aggregation condition.
        name: name of the new node; by default its members' names joined by "+".

    Returns:
        A tree in which the new node stands where its lowest-numbered member stood, among the other
        nodes in their old order.

    Raises:
        TreeError: when the condition is not met; the message gives the reason, the nodes and
            the `aggregation_subgraph` to use instead.

    Example:
        >>> contract(Tree.from_parents([-1, 0, 1, 1, 3]), [1, 3]).parent
        (-1, 0, 1, 1)

    Reference: Jain 2011, Transformations Part I, Lemmas 3 and 5.
    """
    S = node_numbers(tree, nodes)
    if obstacle := aggregation_obstacle(tree, S):
        raise TreeError(
            f"the nodes {quoted_names(tree, S)} do not contract into one node: {obstacle}.",
            "The contracted graph would have a cycle or a node with two parents, and only trees "
            "have SKO models.",
            f"Aggregate torchsko.algebra.aggregation_subgraph(tree, {list(S)}) = "
            f"{list(aggregation_subgraph(tree, S))} instead.",
        )
    groups = contracted_groups(tree, S)
    joined = "+".join(tree.names[k] for k in S) if name is None else name
    return coarse_tree(tree, groups, [joined if g == S else tree.names[g[0]] for g in groups])


def contracted_groups(tree: Tree, members: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The nodes that each node of `contract(tree, members)` stands for, in its order."""
    S = tuple(sorted(members))
    others = [(k,) for k in sorted(set(range(tree.num_nodes)).difference(S))]
    return tuple(sorted([*others, S]))


def segment_groups(tree: Tree) -> tuple[tuple[int, ...], ...]:
    """The serial-chain segments as sorted groups, ordered by their lowest-numbered nodes."""
    return tuple(sorted(tuple(sorted(segment)) for segment in tree.segments))


def coarse_tree(
    tree: Tree, groups: Sequence[Sequence[int]], names: Sequence[str] | None = None
) -> Tree:
    """The tree whose node i stands for groups[i].

    Args:
        tree: the tree.
        groups: disjoint, of all nodes together; each meets the aggregation condition.
        names: one per group; by default its members' names joined by "+".

    Reference: Jain 2011, Transformations Part I, Lemma 5.
    """
    number = {k: i for i, group in enumerate(groups) for k in group}
    # A group hangs where the first of its nodes with a parent outside hangs: they share the parent.
    tops = [
        next(k for k in group if number.get(tree.parent[k], -1) != i)
        for i, group in enumerate(groups)
    ]
    joined = ["+".join(tree.names[k] for k in group) for group in groups]
    parents = [number.get(tree.parent[k], -1) for k in tops]
    return Tree.from_parents(parents, joined if names is None else names)


def given_below(tree: Tree, given: Collection[int]) -> list[int]:
    """For each node the number of the given nodes at or below it."""
    count = [int(k in given) for k in range(tree.num_nodes)]
    for k in reversed(tree.order):
        if tree.parent[k] >= 0:
            count[tree.parent[k]] += count[k]
    return count


def leaving_path(tree: Tree, S: Sequence[int]) -> str | None:
    """A path that leaves the set and comes back to it, in words; None for a path-induced set."""
    members = set(S)
    for k in S:
        if tree.parent[k] in members:
            continue  # its path leaves, if at all, further up
        above = tree.ancestors(k)
        returns = next((n for n, i in enumerate(above) if i in members), 0)
        if returns > 0:
            ends = f"{tree.names[k]!r} up to {tree.names[above[returns]]!r}"
            return f"the path from {ends} leaves the set at {quoted_names(tree, above[:returns])}"
    return None


def quoted_names(tree: Tree, nodes: Iterable[int]) -> str:
    """Names of nodes for messages."""
    return ", ".join(repr(tree.names[k]) for k in nodes)


def _parent_name(tree: Tree, p: int) -> str:
    return "the inertial frame" if p < 0 else repr(tree.names[p])
