"""Sweeps without levels: equal to their definitions, in a number of operations that grows with log depth."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.batteries import CountOperations
from tests.strategies import (
    agree,
    dense_blocks,
    dense_sko,
    dense_spo,
    random_model,
    sko_models,
    trees,
)
from torchsko.algebra.operators import logdepth
from torchsko.algebra.operators.sweeps import gather, scatter
from torchsko.algebra.recursions.lyapunov import backward_diag_of, forward_diag
from torchsko.algebra.topology.gathering import join
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.tree import Tree
from torchsko.errors import TorchskoError
from torchsko.utils.devices import on_device

ANY = sko_models(max_nodes=12, mixed=True)
CHAIN, STAR, ONE = [-1, 0, 1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 0, 0], [-1]
EQUAL_CHAINS = [-1, -1, 0, 1, 2, 3]


def columns(model, r=2):
    g = torch.Generator().manual_seed(3)
    flat = torch.randn(model.layout.nodes.total, r, generator=g, dtype=torch.float64)
    return flat, model.layout.nodes.pack(flat)


def symmetric_blocks(model):
    return dense_blocks(model, model.inertia, "nodes", "nodes")


def block_diagonal_of(model, Z):
    """The blocks (k, k) of a dense matrix, everything else zero."""
    ones = torch.ones_like(model.inertia[..., :1, :, :]).expand_as(model.inertia)
    return Z * dense_blocks(model, ones, "nodes", "nodes")


@pytest.mark.shows("Jain 2011, Part II", "section 2 and Lemma 1", logdepth.gather)
@given(ANY)
def test_doubling_gathers_the_spo_product(model):
    flat, x = columns(model)
    y = gather(model.layout, model.edge_weight, x, method="doubling")
    agree(model.layout.nodes.unpack(y), dense_spo(model) @ flat)


@pytest.mark.shows("Jain 2011, Part II", "section 2 and Lemma 2", logdepth.scatter)
@given(ANY)
def test_doubling_scatters_the_transposed_spo_product(model):
    flat, x = columns(model)
    y = scatter(model.layout, model.edge_weight, x, method="doubling")
    agree(model.layout.nodes.unpack(y), dense_spo(model).mT @ flat)


@pytest.mark.shows("Jain 2011, Part II", "section 2", logdepth.step_up, logdepth.step_down)
@given(ANY)
def test_one_step_is_the_sko_product(model):
    flat, x = columns(model)
    jumps, unpack = model.layout.jumps, model.layout.nodes.unpack
    weights = logdepth.powers(jumps, model.edge_weight.dense())
    agree(unpack(logdepth.step_up(jumps, weights, x)), dense_sko(model) @ flat)
    agree(unpack(logdepth.step_down(jumps, weights, x)), dense_sko(model).mT @ flat)


@pytest.mark.shows("Jain 2011, Part II", "section 2", logdepth.powers)
@given(ANY)
def test_the_weights_of_jumps_are_the_powers_of_the_sko_operator(model):
    layout, power = model.layout, dense_sko(model)
    weights = logdepth.powers(layout.jumps, model.edge_weight.dense())
    flat, x = columns(model)
    for jump, weight in zip(layout.jumps, weights, strict=True):
        y = jump.sum_at_targets(weight @ jump.jumping(x))
        agree(layout.nodes.unpack(y), power @ flat)
        power = power @ power
    assert not power.any()


def doubled_blocks_are_those_of(product, diagonal, model):
    """Doubling gives the diagonal blocks of a product with one operator twice, and with two."""
    layout, A = model.layout, model.edge_weight
    other = random_model(model.tree, list(layout.nodes.sizes), list(layout.dofs.sizes), (), 5)
    for B, dense_B in ((None, dense_spo(model)), (other.edge_weight, dense_spo(other))):
        Y = join(list(diagonal(layout, A, model.inertia, B, method="doubling")))
        Z = product(dense_spo(model), symmetric_blocks(model), dense_B)
        agree(dense_blocks(model, Y, "nodes", "nodes"), block_diagonal_of(model, Z))


@pytest.mark.shows("Jain 2011, Part II", "Lemma 3", logdepth.forward_diag)
@given(ANY)
def test_doubling_gives_the_diagonal_of_a_x_b_transposed(model):
    doubled_blocks_are_those_of(lambda A, X, B: A @ X @ B.mT, forward_diag, model)


@pytest.mark.shows("Jain 2011, Part II", "Lemma 5", logdepth.backward_diag_of)
@given(ANY)
def test_doubling_gives_the_diagonal_of_a_transposed_x_b(model):
    doubled_blocks_are_those_of(lambda A, X, B: A.mT @ X @ B, backward_diag_of, model)


@pytest.mark.parametrize("parents", [CHAIN, STAR, ONE, EQUAL_CHAINS, [3, 0, -1, -1, 2, 4]])
def test_doubling_equals_the_sweep(parents):
    tree = Tree.from_parents(parents)
    n = tree.num_nodes
    model = random_model(tree, [3] * n, [1] * n, (2, 3))
    _, x = columns(model)
    for sweep in (gather, scatter):
        swept = sweep(model.layout, model.edge_weight, x)
        agree(sweep(model.layout, model.edge_weight, x, method="doubling"), swept)


@given(trees(12))
def test_jumps_lead_two_to_the_i_nodes_up_the_path(tree):
    order = tree.order
    jumps = Layout.of(tree, [1] * len(order), [1] * len(order)).jumps
    assert len(jumps) == (tree.num_levels - 1).bit_length()
    for i, jump in enumerate(jumps):
        far = {k: tree.ancestors(k)[2**i - 1] for k in order if tree.depth(k) >= 2**i}
        jumping = order[jump.first : jump.first + jump.count]
        assert {k: order[t] for k, t in zip(jumping, jump.target.tolist(), strict=True)} == far
        assert jump.slides == (jump.target.tolist() == list(range(jump.count)))


@given(trees(12))
def test_rounds_take_every_node_once_and_halve_the_tips(tree):
    n, left = tree.num_nodes, set(range(tree.num_nodes))
    rounds = Layout.of(tree, [1] * n, [1] * n).rounds
    assert sorted(k for one in rounds for k in one.nodes.tolist()) == list(range(n))
    tips = len(tree.tips)
    for one in rounds:
        nodes = {tree.order[k] for k in one.nodes.tolist()}
        assert all(left.isdisjoint(set(tree.descendants(k)) - nodes) for k in nodes)
        left -= nodes
        remaining = sum(left.isdisjoint(tree.children[k]) for k in left)
        assert remaining <= tips // 2
        tips = remaining


def test_operations_grow_with_the_logarithm_of_the_depth():
    counts = []
    for n in (16, 64, 256):
        tree = Tree.from_parents(range(-1, n - 1))
        layout, one = Layout.of(tree, [2] * n, [1] * n), torch.eye(2).expand(n, 2, 2)
        with CountOperations() as count:
            logdepth.gather(layout.jumps, logdepth.powers(layout.jumps, one), one)
            logdepth.scatter(layout.jumps, logdepth.powers(layout.jumps, one), one)
        counts.append(count.total)
    assert counts[2] - counts[1] == counts[1] - counts[0] < counts[0]


@given(st.sampled_from(["scan", "Doubling", ""]))
def test_an_unknown_method_is_refused(name):
    model = random_model(Tree.from_parents([-1, 0]), [2, 2], [1, 1])
    with pytest.raises(TorchskoError, match=r"no method is named(.|\n)*There are 2: .*'doubling'"):
        gather(model.layout, model.edge_weight, model.coriolis_accel, method=name)


def test_moving_a_layout_moves_its_jumps_and_rounds():
    layout = on_device(Layout.of(Tree.from_parents([-1, 0, 0, 1]), [2] * 4, [1] * 4), "meta")
    tensors = [jump.target for jump in layout.jumps]
    for one in layout.rounds:
        tensors += [one.nodes, one.tops, one.below, *(jump.target for jump in one.jumps)]
    assert len(tensors) > 5 and all(x.device.type == "meta" for x in tensors)
