"""Path-induced subgraphs of any digraph, for mechanisms with loops.

A tree has at most one path between two nodes. In a digraph with cycles, or with nodes that have several
parents, a path-induced subgraph contains each loop entirely or not at all, so contracting it leaves no part
of a loop.

Reference: A. Jain, *Multibody graph transformations and analysis, Part I: Tree topology systems*,
Nonlinear Dynamics, 2011, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchsko.errors import TreeError

Edge = tuple[str, str]
"""Parent and child, by name."""


def path_induced_subgraph(
    edges: Iterable[Edge], nodes: Iterable[str]
) -> tuple[tuple[str, ...], tuple[Edge, ...]]:
    """The smallest path-induced subgraph of a digraph that contains these nodes.

    Args:
        edges: all edges of the digraph, (parent, child).
        nodes: names of nodes; each is an end of some edge.

    Returns:
        Its nodes, in the order in which the edges name them, and its edges: those on every path between
        two different nodes of it. A path may pass a node more than once, as paths around a cycle do.

    Raises:
        TreeError: when a node belongs to no edge.

    Example:
        Two bodies of a four-bar linkage and what lies between them:

        >>> bars = [("ground", "crank"), ("crank", "coupler"), ("ground", "rocker"), ("rocker", "coupler")]
        >>> path_induced_subgraph(bars, ["ground", "coupler"])[0]
        ('ground', 'crank', 'coupler', 'rocker')

    Reference: Jain 2011, Transformations Part I, section 3 and Corollary 3.1.
    """
    edges, given = list(edges), set(nodes)
    names = list(dict.fromkeys(end for edge in edges for end in edge))
    if strange := sorted(given - set(names)):
        raise TreeError(
            f"the digraph has no node {strange[0]!r}.",
            "Its nodes are the ends of its edges.",
            f"Use one of {', '.join(map(repr, names[:8]))}.",
        )
    children: dict[str, set[str]] = {name: set() for name in names}
    parents: dict[str, set[str]] = {name: set() for name in names}
    for parent, child in edges:
        children[parent].add(child)
        parents[child].add(parent)
    below = {name: _reachable(name, children) for name in given}
    above = {name: _reachable(name, parents) for name in given}
    between = (below[i] & above[k] for i in given for k in given if i != k and k in below[i])
    kept = given.union(*between)
    return (
        tuple(name for name in names if name in kept),
        tuple(edge for edge in edges if kept.issuperset(edge)),
    )


def _reachable(start: str, neighbors: dict[str, set[str]]) -> set[str]:
    """The set of nodes reachable from a node, itself included."""
    found, front = {start}, [start]
    while front:
        new = neighbors[front.pop()] - found
        found |= new
        front.extend(new)
    return found
