"""Articulated-body forward dynamics (Jain Part II, Lemma 12, Alg. 6.1) against its definition."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import (
    BATCHES,
    agree,
    dense_bias,
    dense_mass_matrix,
    dense_riccati,
    sko_models,
)
from torchsko.algorithms import forward_dynamics

ANY = sko_models(mixed=True, min_dofs=0)


def force(model, batch=()):
    g = torch.Generator().manual_seed(0)
    return torch.randn(*batch, model.num_dof, generator=g, dtype=torch.float64)


@pytest.mark.shows("Jain 2011, Part II", "Algorithm 6.1", forward_dynamics)
@given(ANY, st.sampled_from(BATCHES))
def test_accelerations_solve_the_equations_of_motion(model, batch):
    """MM qdd + C = T."""
    T = force(model, batch)
    qdd = forward_dynamics(model, T)
    assert qdd.shape == (*torch.broadcast_shapes(model.batch_shape, batch), model.num_dof)
    left = dense_mass_matrix(model) @ qdd[..., None] + dense_bias(model)[..., None]
    agree(left, T[..., None], 1e-9)


@given(ANY)
def test_lemma_12_gives_the_accelerations_in_closed_form(model):
    """qdd = [I - H psi K]* D^-1 [T - H psi (K T + P a + b)] - K* psi* a."""
    x, T = dense_riccati(model), force(model)[:, None]
    a, b = (model.layout.nodes.unpack(v) for v in (model.coriolis_accel, model.gyro_force))
    nu = torch.linalg.inv(x.D) @ (T - x.H @ x.psi @ (x.K @ T + x.P @ a + b))
    closed = nu - x.K.mT @ x.psi.mT @ (x.H.mT @ nu + a)
    agree(forward_dynamics(model, T[:, 0])[..., None], closed, 1e-9)


@given(sko_models(max_nodes=1, min_dofs=1))
def test_one_free_node_obeys_newton(model):
    """A tree of one node: D = H M H* + S and nothing else."""
    x = dense_riccati(model)
    T = force(model)[:, None]
    a, b = (model.layout.nodes.unpack(v) for v in (model.coriolis_accel, model.gyro_force))
    qdd = torch.linalg.solve(x.H @ x.M @ x.H.mT + x.S, T - x.H @ (x.M @ a + b))
    agree(forward_dynamics(model, T[:, 0])[..., None], qdd, 1e-9)
