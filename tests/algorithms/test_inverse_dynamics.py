"""Newton-Euler inverse dynamics (Jain Part II, Alg. 3.1) against the model's operator equations."""

import pytest
import torch
from hypothesis import given

from tests.strategies import (
    agree,
    dense_bias,
    dense_mass_matrix,
    dense_operators,
    random_model,
    sko_models,
)
from torchsko.algebra.recursions.articulated import operators
from torchsko.algebra.topology.tree import Tree
from torchsko.algorithms import bias_force, forward_dynamics, inverse_dynamics
from torchsko.errors import ShapeError

ANY = sko_models(mixed=True, min_dofs=0)


def vector(model, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(model.num_dof, generator=g, dtype=torch.float64)


def biases(model):
    unpack = model.layout.nodes.unpack
    return unpack(model.coriolis_accel), unpack(model.gyro_force)


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 3.1", inverse_dynamics)
@given(ANY)
def test_forces_are_those_of_the_operator_equations(model):
    """alpha = A* (H* qdd + a), f = A (M alpha + b), T = H f + S qdd."""
    ops, (a, b), qdd = operators(model), biases(model), vector(model)
    A, H, M = ops.spo, ops.joint_map, ops.inertia
    alpha = A.T @ (H.T @ qdd[:, None] + a)
    T = H @ (A @ (M @ alpha + b))
    if ops.armature is not None:
        T = T + ops.armature @ qdd[:, None]
    agree(inverse_dynamics(model, qdd)[..., None], T)


@given(ANY)
def test_force_is_mass_matrix_times_acceleration_plus_bias(model):
    qdd = vector(model)
    T = dense_mass_matrix(model) @ qdd[:, None] + dense_bias(model)[..., None]
    agree(inverse_dynamics(model, qdd)[..., None], T)


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 3.1", bias_force)
@given(ANY)
def test_bias_is_the_force_at_zero_acceleration(model):
    """C = H A (M A* a + b)."""
    ops, (a, b) = operators(model), biases(model)
    A, H, M = ops.spo, ops.joint_map, ops.inertia
    C = bias_force(model)
    agree(C[..., None], H @ (A @ (M @ (A.T @ a) + b)))
    agree(C[..., None], inverse_dynamics(model, torch.zeros(model.num_dof).double())[..., None])


@given(ANY)
def test_velocities_are_the_transposed_spo_on_joint_rates(model):
    """V = A* H* qd, by the definition of A."""
    ops, dense, qd = operators(model), dense_operators(model), vector(model)[:, None]
    V = (ops.spo.T @ ops.joint_map.T) @ qd
    agree(V - dense.E.mT @ V, dense.H.mT @ qd)


@given(ANY)
def test_virtual_power_of_node_forces_is_that_of_generalized_forces(model):
    """qd . T = V . (M alpha + b) + qd . S qdd, with V = A* H* qd."""
    ops, (a, b) = operators(model), biases(model)
    qd, qdd = vector(model, 1)[:, None], vector(model, 2)
    V = (ops.spo.T @ ops.joint_map.T) @ qd
    alpha = ops.spo.T @ (ops.joint_map.T @ qdd[:, None] + a)
    power = V.mT @ (ops.inertia @ alpha + b)
    if ops.armature is not None:
        power = power + qd.mT @ (ops.armature @ qdd[:, None])
    agree(qd.mT @ inverse_dynamics(model, qdd)[..., None], power)


@given(ANY)
def test_inverse_dynamics_inverts_forward_dynamics(model):
    T, qdd = vector(model, 1), vector(model, 2)
    agree(inverse_dynamics(model, forward_dynamics(model, T))[..., None], T[:, None], 1e-9)
    agree(forward_dynamics(model, inverse_dynamics(model, qdd))[..., None], qdd[:, None], 1e-9)


def test_a_vector_of_another_length_is_refused():
    model = random_model(Tree.from_parents([-1, 0]), [3, 3], [1, 2])
    for run in (inverse_dynamics, forward_dynamics):
        with pytest.raises(ShapeError, match="length 2 was given where the model has 3"):
            run(model, torch.zeros(2, dtype=torch.float64))
