"""Block patterns predicted from the topology are those of the numbers, node by node and by segment."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from torch import Tensor

import torchsko as ts
from tests.strategies import dense_sko, random_model, sko_models, trees
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.operators.operators import SPO
from torchsko.algebra.topology.packing import Packing
from torchsko.algebra.topology.sparsity import (
    coarsen,
    expand,
    mass_matrix_pattern,
    segment_tree,
    sko_pattern,
    spo_pattern,
)
from torchsko.algebra.topology.subgraph import segment_groups


def generic(tree: ts.algebra.Tree, batch: tuple[int, ...] = ()) -> SKOModel:
    """A model in which no entry is zero by accident."""
    n = range(tree.num_nodes)
    return random_model(tree, [2 + k % 3 for k in n], [1 + k % 2 for k in n], batch)


def block_pattern(matrix: Tensor, rows: Packing, cols: Packing) -> Tensor:
    """Which node blocks of a matrix have a nonzero entry in some sample."""
    nonzero = (matrix != 0).reshape(-1, *matrix.shape[-2:]).any(0)
    return coarsen(nonzero, rows.places, cols.places)


@pytest.mark.shows("Jain 2011, Transformations Part I", "section 7", mass_matrix_pattern)
@given(trees(12))
def test_patterns_of_sko_spo_and_mass_matrix_are_those_of_the_numbers(tree):
    model = generic(tree)
    nodes, dofs = model.layout.nodes, model.layout.dofs
    assert torch.equal(block_pattern(dense_sko(model), nodes, nodes), sko_pattern(tree))
    A = SPO(model.layout, model.edge_weight).to_dense()  # by sweeps: zeros are exact
    assert torch.equal(block_pattern(A, nodes, nodes), spo_pattern(tree))
    MM = ts.algorithms.mass_matrix(model)
    assert torch.equal(block_pattern(MM, dofs, dofs), mass_matrix_pattern(tree))


@given(sko_models(12, mixed=True))
def test_scalar_pattern_of_the_mass_matrix_is_the_expanded_one(model):
    dofs = model.layout.dofs
    MM = ts.algorithms.mass_matrix(model)
    nonzero = (MM != 0).reshape(-1, model.num_dof, model.num_dof).any(0)
    assert torch.equal(nonzero, expand(mass_matrix_pattern(model.tree), dofs, dofs))


@pytest.mark.shows("Jain 2011, Transformations Part I", "section 7", segment_tree)
@given(trees(12))
def test_segments_are_the_serial_chains_of_the_tree(tree):
    coarse, segments = segment_tree(tree), tree.segments
    assert sorted(k for segment in segments for k in segment) == list(range(tree.num_nodes))
    for segment in segments:
        assert all(tree.parent[k] == p for p, k in pairwise(segment))
        assert all(tree.children[k] == (j,) for k, j in pairwise(segment))
    assert all(len(children) != 1 for children in coarse.children)


@pytest.mark.shows("Jain 2011, Transformations Part I", "Eq. 43", sko_pattern)
@given(trees(12))
def test_equation_43_sko_operator_couples_a_segment_to_itself_and_its_parent_segment(tree):
    segments = segment_groups(tree)
    within = torch.diag(torch.tensor([len(segment) > 1 for segment in segments]))
    expected = sko_pattern(segment_tree(tree)) | within
    assert torch.equal(coarsen(sko_pattern(tree), segments), expected)


@given(trees(12))
def test_equation_44_one_edge_joins_a_segment_to_its_parent_segment(tree):
    E = sko_pattern(tree)
    for segment in tree.segments:
        base = segment[0]
        outside = [k for k in range(tree.num_nodes) if k not in segment]
        for k in segment:
            above = [i for i in outside if E[i, k]]
            assert above == ([tree.parent[k]] if k == base and tree.parent[k] >= 0 else [])
            assert all(tree.children[i] != (k,) for i in above)


@pytest.mark.shows("Jain 2011, Transformations Part I", "Eq. 45", spo_pattern)
@given(trees(12))
def test_equation_45_and_the_mass_matrix_couple_related_segments_densely(tree):
    segments, coarse = segment_groups(tree), segment_tree(tree)
    for pattern, expected in (
        (spo_pattern(tree), spo_pattern(coarse)),
        (mass_matrix_pattern(tree), mass_matrix_pattern(coarse)),
    ):
        assert torch.equal(coarsen(pattern, segments), expected)
    for i, rows in enumerate(segments):
        for j, cols in enumerate(segments):
            block = mass_matrix_pattern(tree)[list(rows)][:, list(cols)]
            assert bool(block.all()) == bool(block.any()) == bool(coarse.related(i, j))


@given(trees(12))
def test_pattern_of_the_aggregated_model_is_that_of_its_segment_tree(tree):
    model = generic(tree, (2,))
    coarse, segments = ts.algebra.aggregate_segments(model), segment_groups(tree)
    assert sorted(coarse.layout.hinges) == sorted(segments)
    dofs = model.layout.dofs
    MM = block_pattern(ts.algorithms.mass_matrix(coarse), dofs, dofs)
    assert torch.equal(coarsen(MM, segments), mass_matrix_pattern(segment_tree(tree)))


@given(trees(12))
def test_coarsening_undoes_expansion(tree):
    model = generic(tree)
    nodes, dofs = model.layout.nodes, model.layout.dofs
    pattern = spo_pattern(tree)
    assert torch.equal(coarsen(expand(pattern, dofs, nodes), dofs.places, nodes.places), pattern)
