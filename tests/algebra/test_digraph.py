"""Path-induced subgraphs of digraphs with cycles and several parents (Part I, Corollary 3.1)."""

from itertools import combinations

import hypothesis.strategies as st
import pytest
from hypothesis import given

import torchsko as ts
from tests.strategies import many, trees
from torchsko.algebra.theory.digraph import path_induced_subgraph
from torchsko.algebra.theory.path_induced import path_induced_nodes

PART_I = "Jain 2011, Transformations Part I"


@st.composite
def digraphs_with_nodes(draw: st.DrawFn, max_nodes: int = 6):
    names = "abcdef"[: draw(st.integers(2, max_nodes))]
    every = [(i, k) for i in names for k in names if i != k]
    edges = draw(st.lists(st.sampled_from(every), min_size=1, max_size=9, unique=True))
    ends = sorted({end for edge in edges for end in edge})
    return edges, draw(st.sets(st.sampled_from(ends), min_size=1))


def walks(edges, start, end, limit=2):
    """Every walk from one node to another that passes no node more than `limit` times, as its edges."""
    stack = [(start, ())]
    while stack:
        at, walk = stack.pop()
        if at == end and walk:
            yield walk
        for edge in edges:
            passed = [start, *(k for _, k in walk)]
            if edge[0] == at and passed.count(edge[1]) < limit:
                stack.append((edge[1], (*walk, edge)))


def paths(edges, start, end):
    return walks(edges, start, end, limit=1)


def cycles(edges):
    for i, k in edges:
        yield from (((i, k), *path) for path in paths(edges, k, i))


@pytest.mark.shows(PART_I, "Corollary 3.1", path_induced_subgraph)
@many
@given(digraphs_with_nodes())
def test_corollary_3_1_a_cycle_with_an_edge_inside_is_inside_whole(case):
    edges, nodes = case
    _, inside = path_induced_subgraph(edges, nodes)
    for cycle in cycles(edges):
        assert not set(cycle) & set(inside) or set(cycle) <= set(inside)


@pytest.mark.shows(PART_I, "Corollary 3.1", path_induced_subgraph)
@many
@given(digraphs_with_nodes())
def test_corollary_3_1_every_path_between_two_nodes_inside_is_inside(case):
    edges, nodes = case
    kept, inside = path_induced_subgraph(edges, nodes)
    assert nodes <= set(kept)
    for i in kept:
        for k in kept:
            if i != k:
                assert all(set(path) <= set(inside) for path in paths(edges, i, k))


@pytest.mark.shows(PART_I, "section 3", path_induced_subgraph)
@many
@given(digraphs_with_nodes(max_nodes=4))
def test_the_path_induced_set_is_the_smallest_that_no_walk_leaves(case):
    edges, nodes = case
    names = sorted({end for edge in edges for end in edge})

    def holds(chosen):
        return all(
            {end for edge in walk for end in edge} <= chosen
            for i in chosen for k in chosen if i != k for walk in walks(edges, i, k)
        )  # fmt: skip

    others = [name for name in names if name not in nodes]
    larger = (nodes | set(c) for n in range(len(others) + 1) for c in combinations(others, n))
    assert set(path_induced_subgraph(edges, nodes)[0]) == next(filter(holds, larger))


@many
@given(trees(8, forests=False), st.data())
def test_the_path_induced_set_of_a_tree_is_that_of_its_digraph(tree, data):
    if tree.num_nodes > 1:
        nodes = data.draw(st.sets(st.sampled_from(tree.names), min_size=1))
        edges = [(tree.names[p], tree.names[k]) for k, p in enumerate(tree.parent) if p >= 0]
        expected = {tree.names[k] for k in path_induced_nodes(tree, nodes)}
        assert set(path_induced_subgraph(edges, nodes)[0]) == expected


def test_an_unknown_node_is_refused():
    with pytest.raises(ts.TreeError, match=r"no node 'd'(?s:.*)'a', 'b'"):
        path_induced_subgraph([("a", "b")], ["d"])
