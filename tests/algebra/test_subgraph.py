"""Subgraphs and contraction, against their definitions by brute force over node sets."""

from __future__ import annotations

from itertools import combinations

import hypothesis.strategies as st
import pytest
from hypothesis import given

import torchsko as ts
from tests.strategies import many, trees
from torchsko.algebra.theory.path_induced import (
    induced_subgraph,
    is_path_induced,
    path_induced_nodes,
    split_nodes,
)
from torchsko.algebra.topology.subgraph import (
    aggregation_obstacle,
    aggregation_subgraph,
    coarse_tree,
    contract,
    segment_groups,
)

FRAME = "inertial frame"


@st.composite
def trees_with_nodes(
    draw: st.DrawFn, max_nodes: int = 12
) -> tuple[ts.algebra.Tree, tuple[int, ...]]:
    tree = draw(trees(max_nodes))
    nodes = draw(st.sets(st.integers(0, tree.num_nodes - 1), min_size=1))
    return tree, tuple(sorted(nodes))


def contains_its_paths(tree: ts.algebra.Tree, nodes: tuple[int, ...]) -> bool:
    return all(set(tree.path(i, k)) <= set(nodes) for i in nodes for k in nodes)


def contracts_to_a_tree(tree: ts.algebra.Tree, nodes: tuple[int, ...]) -> bool:
    """Lemma 5 by construction: contract the standard digraph, inertial frame included."""
    image = {k: "S" if k in nodes else tree.names[k] for k in range(tree.num_nodes)} | {-1: FRAME}
    edges = {(image[p], image[k]) for k, p in enumerate(tree.parent)} - {("S", "S")}
    try:
        ts.algebra.Tree.from_edges(sorted(edges))
    except ts.TreeError:
        return False
    return True


def supersets(tree: ts.algebra.Tree, nodes: tuple[int, ...]):
    others = [k for k in range(tree.num_nodes) if k not in nodes]
    for size in range(len(others) + 1):
        for extra in combinations(others, size):
            yield tuple(sorted([*nodes, *extra]))


def of_any_nodes(test):
    """Run a test on sets of nodes of trees."""
    return many(given(trees_with_nodes())(test))


@pytest.mark.shows("Jain 2011, Transformations Part I", "section 3", induced_subgraph)
@of_any_nodes
def test_induced_subgraph_has_the_edges_between_its_nodes_and_no_others(case):
    tree, nodes = case
    forest = induced_subgraph(tree, nodes)
    edges = {(p, k) for k, p in enumerate(tree.parent) if p in nodes and k in nodes}
    named = {(tree.names[p], tree.names[k]) for p, k in edges}
    assert forest.names == tuple(tree.names[k] for k in nodes)
    assert {
        (forest.names[p], forest.names[k]) for k, p in enumerate(forest.parent) if p >= 0
    } == named


@pytest.mark.shows(
    "Jain 2011, Transformations Part I", "section 3", path_induced_nodes, is_path_induced
)
@many
@given(trees_with_nodes(max_nodes=8))
def test_path_induced_set_is_the_smallest_superset_with_its_paths(case):
    tree, nodes = case
    assert is_path_induced(tree, nodes) == contains_its_paths(tree, nodes)
    smallest = next(s for s in supersets(tree, nodes) if contains_its_paths(tree, s))
    assert path_induced_nodes(tree, nodes) == smallest


@pytest.mark.shows("Jain 2011, Transformations Part I", "Lemma 1", split_nodes)
@of_any_nodes
def test_lemma_1_a_path_induced_set_splits_a_tree_into_path_induced_parts(case):
    tree, nodes = case
    S = path_induced_nodes(tree, nodes)
    C, selected, P = split_nodes(tree, S)
    assert selected == S
    assert sorted(C + S + P) == list(range(tree.num_nodes))
    assert all(any(tree.is_ancestor(i, k) for i in S) for k in C)
    assert not any(tree.is_ancestor(i, k) for i in S for k in P)
    assert contains_its_paths(tree, C) and contains_its_paths(tree, P)


@pytest.mark.shows(
    "Jain 2011, Transformations Part I", "Assumption 1 and Lemma 4", aggregation_obstacle
)
@pytest.mark.shows("Jain 2011, Transformations Part I", "Lemma 5", contract)
@of_any_nodes
def test_lemmas_4_and_5_a_set_contracts_to_a_tree_just_when_it_meets_the_condition(case):
    tree, nodes = case
    met = aggregation_obstacle(tree, nodes) is None
    assert met == contracts_to_a_tree(tree, nodes)
    assert not met or is_path_induced(tree, nodes)
    if met:
        contract(tree, nodes)
    else:
        with pytest.raises(ts.TreeError):
            contract(tree, nodes)


def test_a_path_induced_set_need_not_contract_to_a_tree():
    """DEPARTS: the conclusion of Part I says it does."""
    tree = ts.algebra.Tree.from_parents([-1, 0, 0, 1, 2])
    assert is_path_induced(tree, [3, 4]) and not contracts_to_a_tree(tree, (3, 4))


@pytest.mark.shows("Jain 2011, Transformations Part I", "Lemma 6", aggregation_subgraph)
@many
@given(trees_with_nodes(max_nodes=8))
def test_lemma_6_aggregation_subgraph_is_the_smallest_superset_that_contracts(case):
    tree, nodes = case
    S_A = aggregation_subgraph(tree, nodes)
    good = [set(s) for s in supersets(tree, nodes) if contracts_to_a_tree(tree, s)]
    assert set(S_A) in good and all(set(S_A) <= s for s in good)
    assert set(nodes) <= set(path_induced_nodes(tree, nodes)) <= set(S_A)


def test_aggregation_subgraph_of_one_node_is_that_node():
    """DEPARTS: its smallest subtree is itself, and Lemma 6 would take the root away."""
    assert aggregation_subgraph(ts.algebra.Tree.from_parents([-1, 0]), [1]) == (1,)


@pytest.mark.shows("Jain 2011, Transformations Part I", "Lemma 3", contract)
@of_any_nodes
def test_lemma_3_contraction_takes_away_every_edge_between_members_and_no_other(case):
    tree, nodes = case
    S = aggregation_subgraph(tree, nodes)
    small = contract(tree, S, "S")
    image = {k: "S" if k in S else name for k, name in enumerate(tree.names)} | {-1: FRAME}
    name = dict(enumerate(small.names)) | {-1: FRAME}
    left = {(image[p], image[k]) for k, p in enumerate(tree.parent)} - {("S", "S")}
    assert {(name[p], name[k]) for k, p in enumerate(small.parent)} == left


@of_any_nodes
def test_contraction_keeps_who_is_above_whom(case):
    tree, nodes = case
    S = aggregation_subgraph(tree, nodes)
    small = contract(tree, S, "S")
    image = {k: small.index("S" if k in S else tree.names[k]) for k in range(tree.num_nodes)}
    for i in range(tree.num_nodes):
        for k in range(tree.num_nodes):
            if image[i] != image[k] and tree.is_ancestor(i, k):
                assert small.is_ancestor(image[i], image[k])
    assert small.num_nodes == tree.num_nodes - len(S) + 1
    assert image[min(S)] == sum(k not in S for k in range(min(S)))


@pytest.mark.shows("Jain 2011, Transformations Part I", "Lemma 5", coarse_tree)
@many
@given(trees(12))
def test_lemma_5_segments_contract_at_once_as_they_do_one_by_one(tree):
    groups = segment_groups(tree)
    small = tree
    for group in groups:
        small = contract(small, [tree.names[k] for k in group])
    assert small == coarse_tree(tree, groups)


LETTERS = ["base", "arm", "leg", "hand", "foot", "toe"]
BODY = ts.algebra.Tree.from_parents([-1, 0, 0, 1, 2, 4], LETTERS)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (["base", "foot"], ["'foot'", "'base'", "leaves the set at 'leg'", "[0, 2, 4]"]),
        (["hand", "toe"], ["'hand' on 'arm'", "'toe' on 'foot'", "[1, 2, 3, 4, 5]"]),
        (["base", "hand", "leg"], ["'hand'", "leaves the set at 'arm'"]),
    ],
)
def test_refused_contraction_names_the_reason_and_what_to_type(nodes, words):
    with pytest.raises(ts.TreeError) as error:
        contract(BODY, nodes)
    assert all(word in str(error.value) for word in [*words, "aggregation_subgraph("])


def test_parents_in_the_inertial_frame_are_named():
    forest = ts.algebra.Tree.from_parents([-1, -1, 1], ["a", "b", "c"])
    assert contract(forest, ["a", "b"]).parent == (-1, 0)
    with pytest.raises(ts.TreeError, match="'a' on the inertial frame, 'c' on 'b'"):
        contract(forest, ["a", "c"])


def test_refused_partition_names_the_path():
    with pytest.raises(ts.TreeError, match="'toe' up to 'leg' leaves the set at 'foot'"):
        split_nodes(BODY, ["toe", "leg"])


@pytest.mark.parametrize(
    ("nodes", "words"), [([], "empty"), ([9], "9 is no node"), (["fot"], "'foot'")]
)
def test_invalid_sets_of_nodes_are_refused(nodes, words):
    with pytest.raises(ts.TreeError, match=words):
        contract(BODY, nodes)


@pytest.mark.shows("Jain 2011, Part II", "section 8.2", ts.algebra.Tree.from_edges)
@pytest.mark.parametrize(
    ("edges", "words"),
    [
        (
            [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")],
            "'d' has two parents, 'b' and 'c'(?s:.*)not independent",
        ),
        ([("a", "b"), ("b", "c"), ("c", "a")], "cycle(?s:.*)not nilpotent"),
        ([("a", "a")], "its own parent"),
    ],
)
def test_digraph_that_is_no_tree_is_refused_with_the_reason(edges, words):
    """Jain 2011 Part II, section 8.2: rates over two parents are not independent; cycles never end."""
    with pytest.raises(ts.TreeError, match=words):
        ts.algebra.Tree.from_edges(edges)
