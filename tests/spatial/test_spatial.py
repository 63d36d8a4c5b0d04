"""Spatial vectors, rigid transforms and inertias keep power, energy and mass."""

import hypothesis.strategies as st
import pinocchio as pin
import torch
from hypothesis import given
from torch.testing import assert_close

import torchsko as ts
from torchsko.spatial.inertia import from_pseudo_inertia, pseudo_inertia, spatial_inertia
from torchsko.spatial.motion import cross_force, cross_motion
from torchsko.spatial.rigid_transform import (
    force_matrix,
    rotate_inertia,
    rotate_vector,
    translate_force,
    translate_inertia,
    translate_motion,
)
from torchsko.spatial.rotation import skew

seeds = st.integers(0, 2**31)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(seed: int) -> torch.Tensor:
    return torch.linalg.matrix_exp(skew(normal(seed, 4, 3)))


def body(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Masses, centers and inertias of four clouds of five points each."""
    points, masses = normal(seed, 4, 5, 3), normal(seed + 1, 4, 5).square()
    mass = masses.sum(-1)
    com = (masses[..., None] * points).sum(-2) / mass[..., None]
    S = skew(points - com[:, None])
    return mass, com, (masses[..., None, None] * (S @ S.mT)).sum(-3)


@given(seeds)
def test_a_spatial_inertia_gives_kinetic_energy(seed):
    points, masses = normal(seed, 4, 5, 3), normal(seed + 1, 4, 5).square()
    V = normal(seed + 2, 4, 6, 1)
    velocity = V[:, None, 3:, 0] + torch.linalg.cross(V[:, None, :3, 0].expand(4, 5, 3), points)
    energy = (masses * velocity.square().sum(-1)).sum(-1)
    assert_close((V.mT @ spatial_inertia(*body(seed)) @ V)[..., 0, 0], energy)


@given(seeds)
def test_only_the_symmetric_part_of_an_inertia_counts(seed):
    mass, com, inertia = body(seed)
    skewed = inertia + skew(normal(seed, 4, 3))
    assert_close(spatial_inertia(mass, com, skewed), spatial_inertia(mass, com, inertia))


@given(seeds)
def test_a_pseudo_inertia_holds_the_same_ten_numbers(seed):
    parameters = body(seed)
    J = pseudo_inertia(*parameters)
    assert torch.linalg.eigvalsh(J).min() > 0
    assert_close(from_pseudo_inertia(J), parameters)


@given(seeds)
def test_moving_a_force_and_a_velocity_keeps_their_power(seed):
    A = force_matrix(rotation(seed), normal(seed, 4, 3))
    force, velocity = normal(seed + 1, 2, 4, 6, 1)
    assert_close((A @ force).mT @ velocity, force.mT @ (A.mT @ velocity))


@given(seeds)
def test_factored_transforms_are_the_dense_matrix(seed):
    R, r = rotation(seed), normal(seed, 4, 3)
    A = force_matrix(R, r)
    x, P = normal(seed + 1, 4, 6, 2), spatial_inertia(*body(seed))
    assert_close(translate_force(r, rotate_vector(R, x)), A @ x)
    assert_close(rotate_vector(R.mT, translate_motion(r, x)), A.mT @ x)
    assert_close(translate_inertia(r, rotate_inertia(R, P)), A @ P @ A.mT)


@given(seeds)
def test_cross_products_of_motion_and_force_are_adjoint(seed):
    V, S, F = normal(seed, 3, 4, 6, 1)
    assert_close((cross_motion(V, S).mT @ F), -(S.mT @ cross_force(V, F)))
    assert_close(cross_motion(V, V), torch.zeros_like(V))


@given(seeds)
def test_cross_products_are_rates_of_moving_frames(seed):
    """A force fixed in a frame that moves with V changes, seen from where the frame is now, by V x F."""
    V, F = normal(seed, 2, 4, 6, 1)
    w, v = V[..., :3, 0], V[..., 3:, 0]

    def carried(t: torch.Tensor) -> torch.Tensor:
        return force_matrix(torch.linalg.matrix_exp(t * skew(w)), t * v) @ F

    zero = torch.zeros((), dtype=torch.float64)
    rate = torch.func.jvp(carried, (zero,), (torch.ones_like(zero),))[1]
    assert_close(rate, cross_force(V, F))


def test_logarithms_are_pinocchios_and_invert_exponentials():
    g = torch.Generator().manual_seed(0)
    for scale in (1e-9, 1e-3, 1.0):
        for twist in scale * torch.randn(8, 6, generator=g, dtype=torch.float64):
            R, r = ts.spatial.pose_exp(twist)
            there = pin.exp6(pin.Motion(twist[3:].numpy(), twist[:3].numpy()))
            assert_close(R, torch.tensor(there.rotation))
            assert_close(r, torch.tensor(there.translation))
            found = ts.spatial.pose_log(R, r)
            assert_close(found, torch.tensor(pin.log6(there).vector).roll(3))
            assert_close(found, twist, rtol=1e-9, atol=1e-15)
            assert_close(ts.spatial.matrix_log(R), torch.tensor(pin.log3(R.numpy())))
            assert_close(ts.spatial.matrix_exp(twist[:3]), R)
