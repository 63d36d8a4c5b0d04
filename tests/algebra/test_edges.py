"""Edge weights: what they promise to the recursions, whichever way they are held."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import agree, random_mechanism, sko_models
from torchsko.algebra.operators.edges import DenseEdges, LevelEdges, ProductEdges
from torchsko.algebra.recursions.innovations import swept_innovations
from torchsko.algorithms import inverse_dynamics, mass_matrix
from torchsko.bridge.joint_motion import edge_weights
from torchsko.bridge.rigid_edges import RigidEdges
from torchsko.linalg.scalar_form import scalar_form

KINDS = {
    "dense": lambda edges, sizes: edges,
    "by levels": lambda edges, sizes: LevelEdges(tuple(edges.split(sizes)), tuple(sizes)),
    "a product": lambda edges, sizes: ProductEdges(
        (edges, DenseEdges(second_factor(edges.dense())))
    ),
}


def second_factor(weight):
    return 2 * weight + weight.mT


def matrices(kind, model):
    weight = model.edge_weight.dense()
    return weight @ second_factor(weight) if kind == "a product" else weight


@pytest.mark.parametrize("kind", KINDS)
@given(model=sko_models(mixed=True))
def test_edges_do_what_their_matrices_do(kind, model):
    weight = matrices(kind, model)
    edges = KINDS[kind](model.edge_weight, model.layout.level_sizes)
    x, P = torch.randn_like(model.gyro_force), model.inertia
    assert edges.batch_shape == weight.shape[:-3]
    agree(edges.dense(), weight)
    agree(edges.up(x), weight @ x)
    agree(edges.down(x), weight.mT @ x)
    agree(edges.congruence(P), weight @ P @ weight.mT)


@pytest.mark.parametrize("kind", KINDS)
@given(model=sko_models(), data=st.data())
def test_splitting_and_selecting_edges_is_slicing_their_matrices(kind, model, data):
    weight, n = matrices(kind, model), model.tree.num_nodes
    edges = KINDS[kind](model.edge_weight, model.layout.level_sizes)
    first = data.draw(st.integers(0, n))
    for sizes in (model.layout.level_sizes, (first, n - first)):
        runs = [run.dense() for run in edges.split(sizes) if run.dense().shape[-3]]
        agree(torch.cat(runs, -3), weight)
    nodes = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5)))
    agree(edges.select(nodes).dense(), weight.index_select(-3, nodes))


@given(sko_models(mixed=True))
def test_algorithms_give_the_same_on_edges_held_by_levels(model):
    sizes = model.layout.level_sizes
    split = LevelEdges(tuple(model.edge_weight.split(sizes)), sizes)
    by_levels = replace(model, edge_weight=split)
    x = torch.randn(model.num_dof, dtype=torch.float64)
    agree(mass_matrix(by_levels), mass_matrix(model))
    for run in (inverse_dynamics, lambda m, x: swept_innovations(m).forward_dynamics(x)):
        agree(run(by_levels, x)[..., None], run(model, x)[..., None], 1e-9)


@pytest.mark.parametrize(
    "kinds", [["revolute"] * 4, ["prismatic", "spherical", "free", "revolute"]]
)
def test_rigid_edges_kept_as_transforms_do_what_dense_ones_do(kinds):
    mech = random_mechanism(kinds, [-1, 0, 0, 2], seed=3)
    q, _ = mech.random_state(2, generator=torch.Generator().manual_seed(0))
    dense = edge_weights(mech, q)
    rigid = scalar_form()(edge_weights)(mech, q)
    assert isinstance(rigid, RigidEdges) and not isinstance(dense, RigidEdges)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, 4, 6, 1, generator=g, dtype=torch.float64)
    root = torch.randn(2, 4, 6, 6, generator=g, dtype=torch.float64)
    P = root @ root.mT
    order = torch.tensor([3, 0, 2])
    agree(rigid.dense(), dense.dense())
    agree(rigid.up(x), dense.up(x))
    agree(rigid.down(x), dense.down(x))
    agree(rigid.congruence(P), dense.congruence(P))
    agree(rigid.select(order).dense(), dense.select(order).dense())
