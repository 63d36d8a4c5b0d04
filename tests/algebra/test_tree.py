"""Trees: every property against brute force on the reachability matrix; every refusal by name."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given

from tests.strategies import many, trees
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import TreeError


def adjacency(tree: Tree) -> torch.Tensor:
    n = tree.num_nodes
    step = torch.zeros(n, n, dtype=torch.int64)
    for k, p in enumerate(tree.parent):
        if p >= 0:
            step[p, k] = 1
    return step


def reach(tree: Tree) -> torch.Tensor:
    """reach[i, j]: i is a proper ancestor of j, by powers of the adjacency matrix."""
    n, step = tree.num_nodes, adjacency(tree)
    return sum(torch.linalg.matrix_power(step, i) for i in range(1, n + 1)) > 0


@many
@given(trees())
def test_levels_partition_the_nodes_by_depth(tree):
    depth = reach(tree).sum(0).tolist()
    assert sorted(tree.order) == list(range(tree.num_nodes))
    for level, nodes in enumerate(tree.levels):
        assert [depth[k] for k in nodes] == [level] * len(nodes)
        assert [tree.depth(k) for k in nodes] == [level] * len(nodes)
    assert tree.num_levels == len(tree.levels) == max(depth) + 1


@many
@given(trees())
def test_breadth_first_order_keeps_siblings_side_by_side(tree):
    parents = [tree.parent[k] for k in tree.order]
    runs = [p for i, p in enumerate(parents) if i == 0 or parents[i - 1] != p]
    assert len(runs) == len(set(runs))


@many
@given(trees())
def test_children_bases_and_tips_follow_from_the_parents(tree):
    nodes = range(tree.num_nodes)
    assert tree.children == tuple(
        tuple(j for j in nodes if tree.parent[j] == k) for k in nodes
    )  # fmt: skip
    assert set(tree.bases) == {k for k in nodes if tree.parent[k] == -1}
    assert tree.tips == tuple(k for k in nodes if k not in tree.parent)


@many
@given(trees())
def test_ancestors_descendants_and_related_nodes_are_reachability(tree):
    above, nodes = reach(tree), range(tree.num_nodes)
    for j in nodes:
        assert set(tree.ancestors(j)) == {i for i in nodes if above[i, j]}
        assert set(tree.descendants(j)) == {i for i in nodes if above[j, i]}
        depths = [tree.depth(i) for i in tree.ancestors(j)]
        assert depths == sorted(depths, reverse=True)
        for i in nodes:
            assert tree.is_ancestor(i, j) == bool(above[i, j])
            assert tree.related(i, j) == (i == j or bool(above[i, j] or above[j, i]))


@many
@given(trees())
def test_closest_common_ancestor_is_the_deepest_node_at_or_above_both(tree):
    nodes = range(tree.num_nodes)
    at_or_above = reach(tree) | torch.eye(tree.num_nodes, dtype=torch.bool)
    for i in nodes:
        for j in nodes:
            common = [k for k in nodes if at_or_above[k, i] and at_or_above[k, j]]
            deepest = max(common, key=tree.depth) if common else None
            assert tree.closest_common_ancestor(i, j) == deepest


@many
@given(trees())
def test_path_climbs_edge_by_edge_from_a_node_to_its_ancestor(tree):
    for i in range(tree.num_nodes):
        for j in range(tree.num_nodes):
            path = tree.path(i, j)
            if i != j and not tree.is_ancestor(i, j):
                assert path == ()
                continue
            assert (path[0], path[-1]) == (j, i)
            assert all(tree.parent[low] == up for low, up in itertools.pairwise(path))


@many
@given(trees())
def test_segments_partition_the_nodes_into_maximal_serial_chains(tree):
    assert sorted(k for run in tree.segments for k in run) == list(range(tree.num_nodes))
    for run in tree.segments:
        for up, low in itertools.pairwise(run):
            assert tree.children[up] == (low,)
        assert len(tree.children[run[-1]]) != 1
        above = tree.parent[run[0]]
        assert above < 0 or len(tree.children[above]) != 1


@many
@given(trees())
def test_nilpotency_is_the_smallest_power_that_annuls_the_adjacency_matrix(tree):
    step, power = adjacency(tree), tree.nilpotency
    assert not torch.linalg.matrix_power(step, power).any()
    assert torch.linalg.matrix_power(step, power - 1).any()


@many
@given(trees())
def test_trees_are_equal_and_hash_alike_exactly_when_parents_and_names_are(tree):
    same = Tree.from_parents(list(tree.parent))
    other = Tree.from_parents(list(tree.parent), [f"n{k}" for k in range(tree.num_nodes)])
    assert same == tree and hash(same) == hash(tree) and len({same, tree}) == 1
    assert other != tree


@many
@given(trees())
def test_parents_names_and_edges_describe_the_same_tree(tree):
    name = tree.names
    by_name = {name[k]: None if p < 0 else name[p] for k, p in enumerate(tree.parent)}
    edges = [(name[p], name[k]) for k, p in enumerate(tree.parent) if p >= 0]
    assert Tree.from_names(by_name) == tree
    assert Tree.from_edges(edges, nodes=name) == tree


def test_a_tree_is_immutable():
    tree = Tree.from_parents([-1, 0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.parent = (-1, -1)


def test_edges_without_a_node_list_number_nodes_by_appearance():
    tree = Tree.from_edges([("hip", "knee"), ("knee", "foot")])
    assert tree.names == ("hip", "knee", "foot") and tree.parent == (-1, 0, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tree.from_parents([1, 2, 0], ["a", "b", "c"]), ["cycle", "a", "b", "c"]),
        (lambda: Tree.from_parents([-1, 2, 1], ["a", "b", "c"]), ["cycle", "b", "c"]),
        (lambda: Tree.from_names({"a": "b", "b": "a"}), ["cycle", "a", "b"]),
        (lambda: Tree.from_parents([-1, 1], ["a", "b"]), ["own parent", "'b'", "-1"]),
        (lambda: Tree.from_edges([("a", "a")]), ["own parent", "'a'"]),
        (lambda: Tree.from_parents([-1, 7], ["a", "b"]), ["unknown parent 7", "'b'"]),
        (lambda: Tree.from_parents([-1, -2], ["a", "b"]), ["unknown parent -2", "'b'"]),
        (lambda: Tree.from_names({"a": None, "b": "z"}), ["unknown parent 'z'", "'b'"]),
        (lambda: Tree.from_edges([("a", "z")], nodes=["a"]), ["unknown node 'z'", "nodes="]),
        (
            lambda: Tree.from_edges([("a", "c"), ("b", "c")]),
            ["'c' has two parents", "'a'", "'b'", "Leave out one"],
        ),
        (lambda: Tree.from_parents([-1, 0], ["a", "a"]), ["'a'", "[0, 1]", "Rename"]),
        (lambda: Tree.from_edges([], nodes=["a", "a"]), ["'a'", "[0, 1]", "Rename"]),
        (lambda: Tree.from_parents([-1, 0], ["a"]), ["1 names", "2 nodes"]),
        (lambda: Tree.from_parents([]), ["no node"]),
        (lambda: Tree.from_parents([-1], ["elbow"]).index("elbw"), ["'elbw'", "'elbow'"]),
    ],
)
def test_graphs_that_are_no_trees_are_refused_with_advice(make, words):
    with pytest.raises(TreeError) as error:
        make()
    message = str(error.value)
    assert all(word in message for word in words), message
    assert len(message.splitlines()) >= 3


def test_the_cycle_refusal_names_the_loop_and_not_the_nodes_that_lead_to_it():
    with pytest.raises(TreeError, match=r"form a cycle: b -> c -> b\."):
        Tree.from_parents([1, 2, 1], ["a", "b", "c"])


def test_parents_are_whole_numbers_of_any_kind_and_never_rounded():
    assert Tree.from_parents(torch.tensor([-1, 0, 1])) == Tree.from_parents([-1, 0, 1])
    with pytest.raises(TreeError, match=r"node 1 has the parent 0\.5"):
        Tree.from_parents([-1, 0.5])


def test_an_edge_given_twice_is_not_called_two_parents():
    with pytest.raises(TreeError, match="edge 'a' -> 'b' is given twice"):
        Tree.from_edges([("a", "b"), ("a", "b")])
