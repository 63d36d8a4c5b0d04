"""SKO models from blocks: what they hold, and what they refuse by the node's name."""

import pytest
import torch
from hypothesis import given

from tests.strategies import BATCHES, agree, dense_mass_matrix, random_model, sko_models
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.topology.tree import Tree
from torchsko.algorithms import bias_force, mass_matrix
from torchsko.errors import ShapeError


@given(sko_models(mixed=True, min_dofs=0))
def test_the_batch_shape_is_that_of_all_fields_together(model):
    assert mass_matrix(model).shape[:-2] == model.batch_shape
    assert len(model.batch_shape) in {len(b) for b in BATCHES}


def test_biases_and_armature_left_out_are_zero():
    tree, one = Tree.from_parents([-1, 0]), torch.ones(1, 1, dtype=torch.float64)
    model = SKOModel.from_blocks(tree, [None, one], [one, one], [one, one])
    assert model.armature is None
    assert not bias_force(model).any()
    assert mass_matrix(model).tolist() == [[2.0, 1.0], [1.0, 1.0]]


def test_blocks_with_batch_dimensions_of_their_own_broadcast():
    tree, one = Tree.from_parents([-1, 0]), torch.ones(1, 1, dtype=torch.float64)
    weight = torch.arange(3.0, dtype=torch.float64).reshape(3, 1, 1)
    inertia = torch.tensor([1.0, 2.0], dtype=torch.float64).reshape(2, 1, 1, 1)
    model = SKOModel.from_blocks(tree, [None, weight], [one, one], [inertia, one])
    assert model.batch_shape == (2, 3)
    agree(mass_matrix(model), dense_mass_matrix(model))


def test_a_model_without_any_freedom_has_an_empty_mass_matrix():
    model = random_model(Tree.from_parents([-1, 0, 0]), [2, 3, 2], [0, 0, 0])
    assert mass_matrix(model).shape == (0, 0) and bias_force(model).shape == (0,)


def blocks(**changes):
    tree = Tree.from_parents([-1, 0], names=["hip", "knee"])
    eye = torch.eye(3)
    fields = {
        "edge_weight": [None, eye],
        "joint_map": [torch.ones(1, 3)] * 2,
        "inertia": [eye, eye],
    }
    return SKOModel.from_blocks(tree, **(fields | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inertia": [torch.eye(3)]}, ["inertia has 1 blocks for 2 nodes"]),
        ({"inertia": [torch.eye(3), torch.eye(2)]}, ["inertia", "'knee'", "[3, 3]"]),
        ({"edge_weight": [None, None]}, ["'knee'", "'hip'", "no edge weight"]),
        ({"edge_weight": [None, torch.ones(3, 2)]}, ["edge_weight", "'knee'", "[3, 3]"]),
        ({"gyro_force": [torch.ones(3), torch.ones(4)]}, ["gyro_force", "'knee'", "[3]"]),
        ({"coriolis_accel": [torch.ones(1), torch.ones(3)]}, ["coriolis_accel", "'hip'"]),
        ({"armature": [torch.ones(1), torch.ones(2)]}, ["armature", "'knee'", "[1]"]),
        ({"armature": [torch.ones(1)]}, ["armature has 1 blocks for 2 nodes"]),
        ({"joint_map": [torch.ones(3), torch.ones(1, 3)]}, ["joint_map", "'hip'"]),
        ({"joint_map": [torch.ones(4, 3), torch.ones(1, 3)]}, ["'hip'", "no more rows"]),
    ],
)
def test_blocks_that_do_not_fit_are_refused_by_name(changes, words):
    with pytest.raises(ShapeError) as error:
        blocks(**changes)
    assert all(word in str(error.value) for word in words), str(error.value)
