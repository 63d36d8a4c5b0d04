"""Rotations, their exponential and logarithm, and their derivatives where quotients are 0 / 0."""

import hypothesis.strategies as st
import pytest
import scipy.linalg
import torch
from hypothesis import given
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from torchsko.spatial import rotation as rot

seeds = st.integers(0, 2**31)
ANGLES = (0.0, 1e-12, 1e-6, 1e-3, 0.03, 0.1, 1.0, 3.0)


def vectors(seed: int, *shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def turning_by(angle: float) -> torch.Tensor:
    direction = torch.nn.functional.normalize(vectors(0, 3), dim=0)
    return angle * direction


def exponential(matrix: torch.Tensor) -> torch.Tensor:
    # torch.linalg.matrix_exp (2.13) is off by 1e-11 for matrices of norm 0.03.
    return torch.from_numpy(scipy.linalg.expm(matrix.numpy()))


def quotients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        rot.quaternion_exp(x),
        rot.quaternion_log(rot.quaternion_exp(x)),
        rot.translation_jacobian(x),
        rot.translation_jacobian_inverse(x),
    )


@given(seeds)
def test_skew_is_the_cross_product(seed):
    v, w = vectors(seed, 2, 4, 3)
    assert_close((rot.skew(v) @ w[..., None])[..., 0], torch.linalg.cross(v, w))
    assert_close(rot.cross(v, w[0]), torch.linalg.cross(v, w[0].expand_as(v)))


@given(seeds)
def test_quaternions_multiply_as_rotations_do(seed):
    p, q = torch.nn.functional.normalize(vectors(seed, 2, 5, 4), dim=-1)
    R = rot.quaternion_to_matrix
    assert_close(R(rot.quaternion_multiply(p, q)), R(p) @ R(q))
    assert_close(R(rot.quaternion_conjugate(p)), R(p).mT)
    assert_close(torch.linalg.det(R(p)), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("angle", ANGLES)
def test_the_quaternion_exponential_is_that_of_the_matrix(angle):
    x = turning_by(angle)
    R = rot.quaternion_to_matrix(rot.quaternion_exp(x))
    assert_close(R, exponential(rot.skew(x)), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("angle", ANGLES)
def test_the_logarithm_inverts_the_exponential(angle):
    x = turning_by(angle)
    assert_close(rot.quaternion_log(rot.quaternion_exp(x)), x, rtol=1e-12, atol=0)


def test_a_matrix_is_that_of_its_quaternion_also_at_exact_half_turns():
    R = torch.diag_embed(2 * torch.eye(3, dtype=torch.float64) - 1)
    assert_close(rot.quaternion_to_matrix(rot.matrix_to_quaternion(R)), R)


@pytest.mark.parametrize("angle", ANGLES)
def test_the_translation_jacobian_is_that_of_the_exponential(angle):
    x, v = turning_by(angle), vectors(1, 3)
    twist = torch.cat([torch.cat([rot.skew(x), v[:, None]], -1), torch.zeros(1, 4).double()])
    moved = exponential(twist)[:3, 3]
    V = rot.translation_jacobian(x)
    assert_close(V @ v, moved, rtol=1e-14, atol=1e-14)
    inverse = rot.translation_jacobian_inverse(x) @ V
    assert_close(inverse, torch.eye(3, dtype=x.dtype), rtol=1e-14, atol=1e-14)


@pytest.mark.some(3)
@pytest.mark.parametrize("angle", ANGLES)
def test_first_and_second_derivatives_hold_at_every_angle(angle):
    x = turning_by(angle).requires_grad_()
    assert gradcheck(quotients, x, check_forward_ad=True)
    assert gradgradcheck(quotients, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_series_and_quotient_meet_where_one_hands_over_to_the_other(dtype):
    switch = 1e-2 if dtype == torch.float32 else 1e-3
    direction = turning_by(1.0).to(dtype)
    below, above = ((switch * (1 + s)) ** 0.5 * direction for s in (-1e-4, 1e-4))
    tolerance = 1e-3 * switch**0.5 + 8 * torch.finfo(dtype).eps
    for low, high in zip(quotients(below), quotients(above), strict=True):
        assert (low - high).abs().max() < tolerance


@pytest.mark.parametrize("angle", ANGLES)
def test_float32_quotients_keep_single_precision(angle):
    x = turning_by(angle)
    for single, double in zip(quotients(x.float()), quotients(x), strict=True):
        assert_close(single.double(), double, rtol=3e-6, atol=1e-7)
