"""Lyapunov products (Jain Part II, Lemmas 3, 5, 6 and Algorithm 4.3) against their dense definitions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.batteries import CountOperations, branched_model
from tests.strategies import (
    BATCHES,
    agree,
    dense_blocks,
    dense_sko,
    dense_spo,
    random_model,
    seeds,
    trees,
)
from torchsko.algebra.recursions.lyapunov import (
    backward_diag_of,
    backward_terms,
    forward_diag,
    forward_terms,
)
from torchsko.algebra.recursions.lyapunov_blocks import backward_block, forward_block
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.tree import Tree

STAR, ONE, FOREST = ([-1, 0, 0, 0, 0], [-1], [-1, -1, 1, 0])
FORK = Tree.from_parents([-1, 0, 0])


class Product:
    """Two SPOs A, B on one tree and blocks X between them, packed and dense."""

    def __init__(self, tree, sizes, batch=(), seed=0):
        first, second = (
            random_model(tree, sizes, [1] * len(sizes), batch, seed + i) for i in (0, 1)
        )
        g = torch.Generator().manual_seed(seed + 2)
        W = first.layout.nodes.width
        inside = (~first.layout.nodes.padding).double()
        blocks = torch.randn(*batch, tree.num_nodes, W, W, generator=g, dtype=torch.float64)
        self.layout, self.tree, self.sizes = first.layout, tree, sizes
        self.A, self.B = first.edge_weight, second.edge_weight
        self.X = blocks * inside[:, :, None] * inside[:, None, :]
        self.model = first
        self.dense_A, self.dense_B = dense_spo(first), dense_spo(second)
        self.E_A, self.E_B = dense_sko(first), dense_sko(second)
        self.dense_X = self.dense(self.X)

    def dense(self, blocks):
        return dense_blocks(self.model, blocks, "nodes", "nodes")

    def block(self, Z, i, j):
        start = [sum(self.sizes[:k]) for k in range(len(self.sizes) + 1)]
        return Z[..., start[i] : start[i + 1], start[j] : start[j + 1]]

    def pairs(self):
        return [(i, j) for i in range(self.tree.num_nodes) for j in range(self.tree.num_nodes)]

    def diag_of(self, Z):
        """The block diagonal of a dense matrix."""
        return Z * self.dense(torch.ones_like(self.X))

    @property
    def forward(self):
        return forward_diag(self.layout, self.A, self.X, self.B)

    @property
    def backward(self):
        return backward_diag_of(self.layout, self.A, self.X, self.B)


@st.composite
def products(draw, chains=False):
    tree = draw(trees(12))
    if chains:
        order = draw(st.permutations(range(draw(st.integers(1, 8)))))
        above = dict(zip(order[1:], order, strict=False))
        tree = Tree.from_parents([above.get(k, -1) for k in range(len(order))])
    sizes = [draw(st.integers(1, 4)) for _ in range(tree.num_nodes)]
    return Product(tree, sizes, draw(st.sampled_from(BATCHES)), draw(seeds))


@pytest.mark.shows("Jain 2011, Part II", "Lemma 3, Eq. 11", forward_terms)
@given(products())
def test_forward_terms_sum_to_a_x_b_transposed(p):
    terms = forward_terms(p.layout, p.A, p.B, p.forward)
    agree(terms.total(), p.dense_A @ p.dense_X @ p.dense_B.mT)


@given(products())
def test_forward_terms_are_y_and_a_tilde_y_and_y_b_tilde_transposed(p):
    diagonal, below, above = forward_terms(p.layout, p.A, p.B, p.forward)
    Y, one = p.dense(join(list(p.forward))), torch.eye(sum(p.sizes), dtype=torch.float64)
    agree(diagonal, Y)
    agree(below, (p.dense_A - one) @ Y)
    agree(above, Y @ (p.dense_B - one).mT)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 3", forward_diag)
@given(products())
def test_forward_diagonal_solves_x_equals_y_less_e_a_y_e_b_transposed(p):
    Y = p.dense(join(list(p.forward)))
    agree(Y - p.E_A @ Y @ p.E_B.mT, p.dense_X)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 3, Eq. 15", forward_block)
@given(products())
def test_every_forward_block_is_that_of_the_product(p):
    Z = p.dense_A @ p.dense_X @ p.dense_B.mT
    for i, j in p.pairs():
        agree(forward_block(p.layout, p.A, p.B, p.forward, i, j), p.block(Z, i, j))


@given(products())
def test_forward_blocks_of_unrelated_nodes_are_zero(p):
    for i, j in p.pairs():
        if not p.tree.related(i, j):
            assert not forward_block(p.layout, p.A, p.B, p.forward, i, j).any()


@given(products())
def test_one_weight_and_symmetric_x_need_no_second_weight(p):
    X = p.X + p.X.mT
    for diag in (forward_diag, backward_diag_of):
        agree(join(list(diag(p.layout, p.A, X))), join(list(diag(p.layout, p.A, X, p.A))))


@pytest.mark.shows("Jain 2011, Part II", "Lemma 5", backward_terms)
@given(products())
def test_backward_terms_sum_to_a_transposed_x_b(p):
    terms = backward_terms(p.layout, p.A, p.B, p.backward)
    agree(terms.total(), p.dense_A.mT @ p.dense_X @ p.dense_B)


@given(products())
def test_backward_terms_are_disjoint(p):
    terms = backward_terms(p.layout, p.A, p.B, p.backward)
    ones = [(term != 0).int() for term in terms]
    assert int(sum(ones[1:], start=ones[0]).max()) <= 1


@pytest.mark.shows("Jain 2011, Part II", "Lemma 5", backward_diag_of)
@given(products())
def test_backward_diagonal_solves_only_the_diagonal_blocks_of_its_equation(p):
    Y = p.dense(join(list(p.backward)))
    agree(Y - p.diag_of(p.E_A.mT @ Y @ p.E_B), p.dense_X)


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 4.3", backward_block)
@given(products())
def test_every_backward_block_is_that_of_the_product(p):
    Z = p.dense_A.mT @ p.dense_X @ p.dense_B
    for i, j in p.pairs():
        agree(backward_block(p.layout, p.A, p.B, p.backward, i, j), p.block(Z, i, j))


@pytest.mark.shows("Jain 2011, Part II", "Lemma 6", backward_terms)
@given(products(chains=True))
def test_on_a_serial_chain_the_backward_equation_holds_undiagonalized(p):
    Y, one = p.dense(join(list(p.backward))), torch.eye(sum(p.sizes), dtype=torch.float64)
    agree(Y - p.E_A.mT @ Y @ p.E_B, p.dense_X)
    agree(
        Y + (p.dense_A - one).mT @ Y + Y @ (p.dense_B - one), p.dense_A.mT @ p.dense_X @ p.dense_B
    )
    assert not backward_terms(p.layout, p.A, p.B, p.backward).unrelated.any()


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("parents", [STAR, ONE, FOREST], ids=str)
def test_star_one_body_and_forest(parents, batch):
    p = Product(Tree.from_parents(parents), [2, 3, 1, 2, 2][: len(parents)], batch)
    Z = forward_terms(p.layout, p.A, p.B, p.forward).total()
    agree(Z, p.dense_A @ p.dense_X @ p.dense_B.mT)
    Z = backward_terms(p.layout, p.A, p.B, p.backward).total()
    agree(Z, p.dense_A.mT @ p.dense_X @ p.dense_B)
    for i, j in p.pairs():
        block = backward_block(p.layout, p.A, p.B, p.backward, i, j)
        assert block.shape == (*batch, p.sizes[i], p.sizes[j])


def test_departs_siblings_break_the_backward_equation_without_diag_of():
    p = Product(FORK, [2, 2, 2])
    Y, one = p.dense(join(list(p.backward))), torch.eye(6, dtype=torch.float64)
    coupled = p.E_A.mT @ Y @ p.E_B
    assert p.block(coupled, 1, 2).abs().max() > 0.01
    without_R = Y + (p.dense_A - one).mT @ Y + Y @ (p.dense_B - one)
    missing = p.dense_A.mT @ p.dense_X @ p.dense_B - without_R
    assert p.block(missing, 1, 2).abs().max() > 0.01
    agree(missing, backward_terms(p.layout, p.A, p.B, p.backward).unrelated)


def test_departs_equal_operators_give_a_symmetric_product_only_for_symmetric_x():
    p = Product(FORK, [2, 2, 2])
    Z = forward_terms(p.layout, p.A, p.A, forward_diag(p.layout, p.A, p.X, p.A)).total()
    assert (Z - Z.mT).abs().max() > 0.1
    agree(Z, p.dense_A @ p.dense_X @ p.dense_A.mT)


def test_departs_the_backward_product_of_a_forest_is_not_fully_populated():
    p = Product(Tree.from_parents([-1, -1, 0]), [2, 2, 2])
    Z = backward_terms(p.layout, p.A, p.B, p.backward).total()
    assert not p.block(Z, 0, 1).any() and not p.block(Z, 2, 1).any()


def test_departs_y_of_a_serial_chain_is_neither_symmetric_nor_definite_in_general():
    p = Product(Tree.from_parents([-1, 0]), [2, 2])
    tip = backward_diag_of(p.layout, p.A, p.X, p.B)[-1][0]
    assert (tip - tip.mT).abs().max() > 0.1
    negative = backward_diag_of(p.layout, p.A, -torch.eye(2, dtype=torch.float64).expand(2, 2, 2))
    assert torch.linalg.eigvalsh(negative[-1]).max() < 0


def test_operations_grow_with_levels_and_not_with_nodes():
    def operations(width):
        p = Product(
            Tree.from_parents([-1] + [0] * width + list(range(1, width + 1))), [2] * (2 * width + 1)
        )
        with CountOperations() as count:
            backward_terms(p.layout, p.A, p.B, p.backward)
            forward_terms(p.layout, p.A, p.B, p.forward)
        return count.total

    assert operations(3) == operations(30)


def test_unbatched_blocks_meet_batched_weights():
    batch = branched_model((2, 3), tree=FORK)
    layout = batch.layout
    X = torch.eye(4, dtype=torch.float64) * (~layout.nodes.padding).double()[:, None, :]
    Y = backward_diag_of(layout, batch.edge_weight, X)
    assert backward_block(layout, batch.edge_weight, batch.edge_weight, Y, 1, 1).shape[:2] == (2, 3)
