r"""Induced and path-induced subgraphs of a tree, and the split of a tree at one.

===================== ===================================================== =====================
paper                 meaning                                               function
===================== ===================================================== =====================
S_I, induced          the nodes of S and every edge between two of them     `induced_subgraph`
S_P, path-induced     with every path between two of them                   `path_induced_nodes`
C, child subgraph     outside S, below some node of S                       `split_nodes`
P, parent subgraph    the rest                                              `split_nodes`
===================== ===================================================== =====================

Nodes are given by number or by name; sets come back as sorted numbers.

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*,
Nonlinear Dynamics, 2011, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchsko.algebra.topology.subgraph import given_below, leaving_path, node_numbers, quoted_names
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import TreeError


def induced_subgraph(tree: Tree, nodes: Iterable[int | str]) -> Tree:
    """The forest on a set of nodes with all edges of the tree between them.

    Args:
        tree: the tree.
        nodes: numbers or names.

    Returns:
        A tree or forest numbered as the nodes were, in order; names are kept. Nodes whose parent is
        outside the set become bases.

    Raises:
        TreeError: when the set is empty or has an unknown node.

    Reference: Jain 2011, Transformations Part I, section 3 (induced subgraph).
    """
    kept = node_numbers(tree, nodes)
    number = {k: i for i, k in enumerate(kept)}
    parents = [number.get(tree.parent[k], -1) for k in kept]
    return Tree.from_parents(parents, [tree.names[k] for k in kept])


def path_induced_nodes(tree: Tree, nodes: Iterable[int | str]) -> tuple[int, ...]:
    """The smallest path-induced set that contains these nodes: it has every path between them.

    Args:
        tree: the tree.
        nodes: numbers or names.

    Returns:
        Sorted node numbers.

    Raises:
        TreeError: when the set is empty or has an unknown node.

    Example:
        >>> chain = Tree.from_parents([-1, 0, 1, 2])
        >>> path_induced_nodes(chain, [1, 3])
        (1, 2, 3)

    Reference: Jain 2011, Transformations Part I, section 3 (path-induced subgraph).
    """
    given = set(node_numbers(tree, nodes))
    below, hung = given_below(tree, given), set(given)
    for k in tree.order:
        if tree.parent[k] in hung:
            hung.add(k)
    return tuple(k for k in range(tree.num_nodes) if k in hung and below[k])


def is_path_induced(tree: Tree, nodes: Iterable[int | str]) -> bool:
    """True if the set contains every path between its nodes.

    Raises:
        TreeError: when the set is empty or has an unknown node.

    Reference: Jain 2011, Transformations Part I, section 3 (path-induced subgraph).
    """
    given = node_numbers(tree, nodes)
    return path_induced_nodes(tree, given) == given


def split_nodes(
    tree: Tree, nodes: Iterable[int | str]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The partition (C, S, P) of a tree by a path-induced set S.

    Args:
        tree: the tree.
        nodes: S, numbers or names.

    Returns:
        C, the nodes outside S below some node of S; S; and P, all the others. C and P may be empty;
        both are path-induced.

    Raises:
        TreeError: when S is empty, has an unknown node, or is not path-induced: the message names
            the path that leaves it.

    Reference: Jain 2011, Transformations Part I, Lemma 1.
    """
    S = node_numbers(tree, nodes)
    if obstacle := leaving_path(tree, S):
        raise TreeError(
            f"the nodes {quoted_names(tree, S)} are not path-induced: {obstacle}.",
            "Cut there, the nodes between would lie both below and above the set, and the parts "
            "would have no order.",
            f"Partition by torchsko.algebra.path_induced_nodes(tree, {list(S)}) = "
            f"{list(path_induced_nodes(tree, S))} instead.",
        )
    C = sorted({j for k in S for j in tree.descendants(k)}.difference(S))
    P = sorted(set(range(tree.num_nodes)).difference(S, C))
    return tuple(C), S, tuple(P)
