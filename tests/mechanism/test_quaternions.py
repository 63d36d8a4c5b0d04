"""Quaternions of any length: only their direction counts, and gradients lie on the manifold."""

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import BATCHES, random_mechanism, seeds
from torchsko.spatial.rotation import quaternion_to_matrix


def robot() -> ts.Mechanism:
    """Free base, ball joint, hinge; springs at the ball, so that the reference counts too."""
    mech = random_mechanism(["free", "spherical", "revolute"], [-1, 0, 1], seed=4)
    reference, _ = mech.random_state(generator=torch.Generator().manual_seed(1))
    return mech.replace(stiffness=torch.ones_like(mech.stiffness), spring_reference=reference)


MECH = robot()
QUATERNIONS = [slice(3, 7), slice(7, 11)]


def stretched(q: Tensor, g: torch.Generator) -> Tensor:
    """The same orientations by quaternions of lengths between 1e-3 and 1e3."""
    length = 10 ** (6 * torch.rand(*q.shape[:-1], 2, generator=g, dtype=q.dtype) - 3)
    scale = torch.ones_like(q)
    for k, at in enumerate(QUATERNIONS):
        scale[..., at] = length[..., k : k + 1]
    return scale * q


def verbs(q: Tensor, qd: Tensor) -> dict[str, Tensor]:
    return {
        "bias_force": ts.bias_force(MECH, q, qd),
        "mass_matrix": ts.mass_matrix(MECH, q),
        "forward_dynamics": ts.forward_dynamics(MECH, q, qd, qd),
        "scan": ts.forward_dynamics(MECH, q, qd, qd, method="scan"),
        "parallel": ts.inverse_dynamics(MECH, q, qd, qd, method="parallel"),
        "forward_kinematics": torch.cat([x.flatten() for x in ts.forward_kinematics(MECH, q)]),
        "frame_jacobian": ts.frame_jacobian(MECH, q, MECH.frame_names),
        "integrate": ts.integrate(MECH, q, qd),
        "difference": ts.difference(MECH, MECH.neutral(), q),
        "difference_from": ts.difference(MECH, q, MECH.neutral()),
    }


@given(seeds, st.sampled_from(BATCHES))
def test_the_length_of_a_quaternion_does_not_count(seed, batch):
    g = torch.Generator().manual_seed(seed)
    q, qd = MECH.random_state(*batch, generator=g)
    mine, theirs = verbs(stretched(q, g), qd), verbs(q, qd)
    for name, value in theirs.items():
        assert_close(mine[name], value, rtol=1e-11, atol=1e-11 * float(value.abs().max()))


@given(seeds)
def test_gradients_are_orthogonal_to_the_quaternion(seed):
    g = torch.Generator().manual_seed(seed)
    q, qd = MECH.random_state(5, generator=g)
    q = stretched(q, g).requires_grad_()
    for name, value in verbs(q, qd).items():
        weights = torch.randn(value.shape, generator=g, dtype=value.dtype)
        (grad,) = torch.autograd.grad((weights * value).sum(), q)
        for at in QUATERNIONS:
            along = (grad[:, at] * q.detach()[:, at]).sum(-1).abs()
            size = grad[:, at].norm(dim=-1) * q.detach()[:, at].norm(dim=-1)
            assert (along <= 1e-11 * (1 + size)).all(), name


def test_zero_stands_for_the_identity_and_has_finite_gradients():
    q, qd = MECH.random_state(generator=torch.Generator().manual_seed(0))
    identity, zero = q.clone(), q.clone()
    for at in QUATERNIONS:
        identity[at] = torch.tensor([1.0, 0, 0, 0], dtype=q.dtype)
        zero[at] = 0.0
    expected = verbs(identity, qd)
    zero.requires_grad_()
    for name, value in verbs(zero, qd).items():
        assert_close(value, expected[name])
        (grad,) = torch.autograd.grad(value.square().sum(), zero)
        assert grad.isfinite().all(), name


@given(seeds)
def test_the_matrix_of_any_quaternion_is_a_rotation(seed):
    g = torch.Generator().manual_seed(seed)
    quat = torch.randn(20, 4, generator=g, dtype=torch.float64) * 10 ** torch.linspace(-9, 9, 20)[
        :, None
    ].to(torch.float64)
    R = quaternion_to_matrix(quat)
    assert_close(R @ R.mT, torch.eye(3, dtype=R.dtype).expand(20, 3, 3))
    assert_close(torch.linalg.det(R), torch.ones(20, dtype=R.dtype))
