"""Sweeps against the matrices they stand for, and the law of their cost."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.batteries import CountOperations
from tests.strategies import BATCHES, agree, dense_sko, dense_spo, random_model, sko_models
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.sweeps import (
    gather,
    gather_tilde,
    scatter,
    scatter_tilde,
    step_down,
    step_up,
)
from torchsko.algebra.recursions.innovations import swept_innovations
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.tree import Tree
from torchsko.algorithms import forward_dynamics, inverse_dynamics, mass_matrix

MODELS = sko_models(mixed=True, armature=False)


def columns(model, batch, r=2):
    g = torch.Generator().manual_seed(1)
    return torch.randn(*batch, model.layout.nodes.total, r, generator=g, dtype=torch.float64)


def check(model, batch, sweep, matrix):
    nodes, x = model.layout.nodes, columns(model, batch)
    y = nodes.unpack(sweep(model.layout, model.edge_weight, nodes.pack(x)))
    agree(y, matrix @ x)


def batches():
    return st.sampled_from([*BATCHES, (4, 1, 1)])


@pytest.mark.shows("Jain 2011, Part II", "Lemma 1", gather)
@given(MODELS, batches())
def test_gather_is_the_spo(model, batch):
    check(model, batch, gather, dense_spo(model))


@pytest.mark.shows("Jain 2011, Part II", "Lemma 2", scatter)
@given(MODELS, batches())
def test_scatter_is_the_transposed_spo(model, batch):
    check(model, batch, scatter, dense_spo(model).mT)


@given(MODELS, batches())
def test_one_step_is_the_sko_operator_or_its_transpose(model, batch):
    check(model, batch, step_up, dense_sko(model))
    check(model, batch, step_down, dense_sko(model).mT)


@pytest.mark.shows("Jain 2011, Part II", "Corollary 3.1", gather_tilde, scatter_tilde)
@given(MODELS, batches())
def test_tilde_sweeps_leave_out_the_node_itself(model, batch):
    A = dense_spo(model)
    tilde = A - torch.eye(A.shape[-1], dtype=A.dtype)
    check(model, batch, gather_tilde, tilde)
    check(model, batch, scatter_tilde, tilde.mT)


@pytest.mark.shows("Jain 2011, Part II", "Corollary 3.1", gather_tilde, scatter_tilde)
@given(sko_models(armature=False))
def test_corollary_3_1_holds_edge_by_edge_with_the_parent_s_x_in_the_scatter(model):
    layout, weight = model.layout, model.edge_weight
    x = layout.nodes.pack(columns(model, model.batch_shape))
    up, down = gather_tilde(layout, weight, x), scatter_tilde(layout, weight, x)
    dense = weight.dense()
    for k in range(model.tree.num_nodes):
        here = layout.rank[k]
        p = model.tree.parent[k]
        # y(k) = A*(p, k) [y(p) + x(p)], and zero at a base
        above = (down + x)[..., layout.rank[p], :, :] if p >= 0 else torch.zeros(1, 1).double()
        carried = dense[..., here, :, :].mT @ above if p >= 0 else 0 * x[..., here, :, :]
        agree(down[..., here, :, :], carried)
        # y(k) = sum over children of A(k, j) [y(j) + x(j)]
        terms = [
            dense[..., layout.rank[j], :, :] @ (up + x)[..., layout.rank[j], :, :]
            for j in model.tree.children[k]
        ]
        agree(up[..., here, :, :], sum(terms, start=0 * x[..., here, :, :]))


def test_corollary_3_1_as_printed_fails_on_two_nodes():
    """The paper prints x(k) where the parent's x belongs: wrong on a chain of two scalars."""
    one = torch.ones(1, 1, dtype=torch.float64)
    model_tree = Tree.from_parents([-1, 0])
    layout, weight = Layout.of(model_tree, [1, 1], [1, 1]), DenseEdges(one.expand(2, 1, 1))
    x = torch.tensor([1.0, 0.0], dtype=torch.float64).reshape(2, 1, 1)
    A = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    truth = (A - torch.eye(2, dtype=torch.float64)).mT @ x[:, 0]
    y_base = torch.zeros(1, dtype=torch.float64)
    printed = torch.stack([y_base, y_base + x[1, 0]])
    assert truth.flatten().tolist() == [0.0, 1.0]
    assert printed.flatten().tolist() == [0.0, 0.0]
    assert scatter_tilde(layout, weight, x).flatten().tolist() == [0.0, 1.0]


def operations(parents, run):
    n = len(parents)
    model = random_model(Tree.from_parents(parents), [4] * n, [2] * n)
    with CountOperations() as counter:
        run(model, torch.ones(2 * n, dtype=torch.float64))
    return counter.total


def two_levels_below(n):
    """A base, n children of it, and a child of each of these."""
    return [-1] + [0] * n + list(range(1, n + 1))


COSTED = {
    "spo": lambda model, x: gather(model.layout, model.edge_weight, model.gyro_force),
    "transposed spo": lambda model, x: scatter(model.layout, model.edge_weight, model.gyro_force),
    "inverse dynamics": lambda model, x: inverse_dynamics(model, x),
    "forward dynamics": lambda model, x: forward_dynamics(model, x),
    "mass matrix": lambda model, x: mass_matrix(model),
    "logdet": lambda model, x: swept_innovations(model).logdet(),
    "whiten": lambda model, x: swept_innovations(model).whiten(x),
    "sqrt": lambda model, x: swept_innovations(model).sqrt(x),
}


@pytest.mark.parametrize("name", COSTED)
def test_the_number_of_tensor_operations_does_not_grow_with_the_nodes_of_a_level(name):
    run = COSTED[name]
    assert operations([-1] + [0] * 3, run) == operations([-1] + [0] * 150, run)
    few, many = operations(two_levels_below(3), run), operations(two_levels_below(100), run)
    assert few == many


@pytest.mark.parametrize("name", COSTED)
def test_the_number_of_tensor_operations_grows_by_the_same_amount_with_every_level(name):
    run = COSTED[name]
    chain = [operations(list(range(-1, n - 1)), run) for n in (4, 5, 6, 7)]
    steps = {b - a for a, b in itertools.pairwise(chain)}
    assert len(steps) == 1 and steps.pop() > 0
