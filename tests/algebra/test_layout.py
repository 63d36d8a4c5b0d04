"""Layouts: packing loses nothing, padding is zero, and every index tensor says what it claims."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import BATCHES, trees
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.packing import Packing
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import ShapeError
from torchsko.utils.devices import on_device


@st.composite
def layouts(draw) -> Layout:
    """Any tree; node sizes 1..4, dof sizes 0..3, dofs of a node at any places of a dof vector."""
    tree = draw(trees())
    nodes = [draw(st.integers(1, 4)) for _ in range(tree.num_nodes)]
    dofs = [draw(st.integers(0, 3)) for _ in range(tree.num_nodes)]
    if draw(st.booleans()):
        return Layout.of(tree, nodes, dofs)
    shuffled = draw(st.permutations(range(sum(dofs))))
    start = [sum(dofs[:k]) for k in range(len(dofs))]
    places = [shuffled[s : s + d] for s, d in zip(start, dofs, strict=True)]
    return Layout.of(tree, nodes, dofs, places)


@given(layouts(), st.sampled_from(BATCHES), st.integers(1, 3))
def test_unpack_inverts_pack(layout, batch, r):
    for packing in (layout.nodes, layout.dofs):
        x = torch.randn(*batch, packing.total, r)
        assert torch.equal(packing.unpack(packing.pack(x)), x)


@given(layouts())
def test_pack_puts_each_node_s_components_first_and_zeros_after(layout):
    for packing in (layout.nodes, layout.dofs):
        flat = torch.arange(1.0, packing.total + 1)
        packed = packing.pack(flat[:, None])[..., 0]
        assert packed.shape == (layout.tree.num_nodes, packing.width)
        for position, k in enumerate(layout.tree.order):
            own = [flat[place] for place in packing.places[k]]
            expected = own + [0.0] * (packing.width - len(own))
            assert packed[position].tolist() == expected
        assert torch.equal(packed == 0, packing.padding)


@given(layouts())
def test_packing_of_equal_blocks_is_a_reshape(layout):
    for packing in (layout.nodes, layout.dofs):
        flat = torch.arange(packing.total)
        full = packing.total == layout.tree.num_nodes * packing.width
        in_order = full and torch.equal(packing.source, flat)
        assert packing.trivial == in_order
        assert packing.padded == bool(packing.padding.any())


@given(layouts())
def test_levels_are_slices_and_splitting_loses_nothing(layout):
    x = torch.randn(2, layout.tree.num_nodes, 3, 1)
    levels = layout.split(x)
    assert [level.shape[-3] for level in levels] == [len(nodes) for nodes in layout.tree.levels]
    assert torch.equal(torch.cat(levels, -3), x)
    assert torch.equal(layout.tree_order(layout.breadth_first(x, -3), -3), x)
    ordered = layout.breadth_first(x, -3)
    assert torch.equal(ordered, x[:, list(layout.tree.order)])


@given(layouts())
def test_a_level_is_narrowed_to_its_dofs_and_widened_back_by_zeros(layout):
    x = layout.dofs.pack(torch.randn(layout.dofs.total, 2))
    levels = layout.split_dofs(x, -2)
    for level, nodes in zip(levels, layout.tree.levels, strict=True):
        assert level.shape[-2] == max(1, *(layout.dofs.sizes[k] for k in nodes))
    assert torch.equal(torch.cat([layout.widen_dofs(level) for level in levels], -3), x)


@given(layouts(), st.integers(1, 3))
def test_sum_to_parents_and_to_children_are_adjoint(layout, r):
    for depth in range(1, layout.tree.num_levels):
        link, count = layout.links[depth], layout.level_sizes[depth]
        y = torch.randn(count, 3, r, dtype=torch.float64)
        x = torch.randn(link.num_parents, 3, r, dtype=torch.float64)
        up = (x * link.sum_to_parents(y)).sum()
        torch.testing.assert_close(up, (link.to_children(x) * y).sum())
        parents = [layout.tree.levels[depth - 1][p] for p in link.parent]
        assert parents == [layout.tree.parent[k] for k in layout.tree.levels[depth]]


@given(layouts())
def test_ancestor_rows_give_the_position_of_the_ancestor_at_each_level(layout):
    tree = layout.tree
    for depth, row in enumerate(layout.pairs.ancestor):
        below = [k for level in tree.levels[depth:] for k in level]
        for k, position in zip(below, row.tolist(), strict=True):
            ancestor = tree.levels[depth][position]
            assert ancestor == k or tree.is_ancestor(ancestor, k)


def test_a_vector_of_another_length_is_refused_with_the_length_wanted():
    packing = Packing.of([2, 3], [0, 1])
    with pytest.raises(ShapeError, match=r"length 4 .*5 components(.|\n)*last dimension is 5"):
        packing.pack(torch.zeros(4, 1))


def test_moving_a_layout_moves_every_index_tensor():
    parents, dofs = [-1, -1, *[0] * 20], [1, 2, *[0] * 20]  # too many children to add one by one
    layout = on_device(Layout.of(Tree.from_parents(parents), [2, 3, *[2] * 20], dofs), "meta")
    pairs = layout.pairs
    tensors = [layout.order, layout.rank, pairs.below, pairs.mass_matrix_source, *pairs.ancestor]
    tensors += [x for link in layout.links for x in (link.parent, link.children.slots)]
    for packing in (layout.nodes, layout.dofs):
        tensors += [packing.source, packing.place, packing.padding]
    assert layout.links[1].children.slots is not None
    assert all(x.device.type == "meta" for x in tensors if x is not None)
