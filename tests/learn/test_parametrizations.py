"""Parametrizations: every number gives a physical value, every physical value has a number."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.nn.utils import parametrize
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import seeds
from torchsko.learn import Bounded, Free, InertiaLogCholesky, Positive, Rotation
from torchsko.spatial.inertia import pack_inertial, pseudo_inertia, unpack_inertial
from torchsko.spatial.rotation import quaternion_exp, quaternion_to_matrix

BATCHES = ((), (1,), (2, 3))


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@given(seeds, st.floats(0.1, 3.0), st.sampled_from(BATCHES))
def test_any_ten_numbers_give_a_positive_definite_pseudo_inertia(seed, size, batch):
    theta = size * randn(*batch, 10, seed=seed)
    J = pseudo_inertia(*unpack_inertial(InertiaLogCholesky()(theta)))
    # Scaled to a unit diagonal, so that rounding cannot hide a sign.
    scale = J.diagonal(dim1=-2, dim2=-1).rsqrt()
    assert (torch.linalg.cholesky_ex(scale[..., None] * J * scale[..., None, :]).info == 0).all()


@given(seeds, st.sampled_from(BATCHES))
def test_log_cholesky_is_the_factor_of_rucker_and_wensing(seed, batch):
    theta = 0.5 * randn(*batch, 10, seed=seed)
    alpha, d1, d2, d3, s12, s13, s23, t1, t2, t3 = theta.unbind(-1)
    o, i = torch.zeros_like(alpha), torch.ones_like(alpha)
    rows = [[d1.exp(), s12, s13, t1], [o, d2.exp(), s23, t2], [o, o, d3.exp(), t3], [o, o, o, i]]
    U = alpha.exp()[..., None, None] * torch.stack([torch.stack(row, -1) for row in rows], -2)
    value = InertiaLogCholesky()(theta)
    assert_close(pseudo_inertia(*unpack_inertial(value)), U @ U.mT)


@given(seeds, st.sampled_from(BATCHES))
def test_log_cholesky_inverts_both_ways(seed, batch):
    chart = InertiaLogCholesky()
    theta = randn(*batch, 10, seed=seed)
    value = chart(theta)
    assert_close(chart.right_inverse(value), theta, rtol=1e-7, atol=1e-7)
    assert_close(chart(chart.right_inverse(value)), value, rtol=1e-12, atol=1e-12)


@given(seeds)
def test_a_far_away_frame_costs_no_accuracy(seed):
    theta = torch.cat([0.3 * randn(7, seed=seed), 1e3 * randn(3, seed=seed + 1)])
    chart = InertiaLogCholesky()
    near = chart(theta * torch.tensor(7 * [1.0] + 3 * [0.0], dtype=theta.dtype))
    assert_close(chart(theta)[4:], near[4:], rtol=0, atol=0)
    assert_close(chart(theta)[1:4], theta[7:], rtol=0, atol=0)


@given(seeds, st.sampled_from(BATCHES))
def test_packing_inertial_parameters_is_one_to_one(seed, batch):
    value = randn(*batch, 10, seed=seed)
    assert torch.equal(pack_inertial(*unpack_inertial(value)), value)


@pytest.mark.parametrize("chart", [Free(), Positive(), Bounded(-1.0, 2.0)])
@given(seed=seeds, size=st.floats(0.1, 5.0))
def test_elementwise_charts_reproduce_values_of_their_domain(chart, seed, size):
    value = chart(size * randn(2, 3, seed=seed))
    assert_close(chart(chart.right_inverse(value)), value, rtol=1e-12, atol=1e-12)


@given(seeds, st.floats(0.1, 30.0))
def test_positive_and_bounded_values_stay_in_their_domains(seed, size):
    theta = size * randn(50, seed=seed)
    assert (Positive()(theta) > 0).all()
    bounded = Bounded(-1.0, 2.0)(theta)
    assert ((bounded >= -1.0) & (bounded <= 2.0)).all()


@given(seeds, st.sampled_from(BATCHES))
def test_any_four_numbers_give_a_rotation(seed, batch):
    R = Rotation()(randn(*batch, 4, seed=seed))
    assert_close(R @ R.mT, torch.eye(3, dtype=R.dtype).expand_as(R))
    assert_close(torch.linalg.det(R), torch.ones(batch, dtype=R.dtype))


@given(seeds, st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 3.1415926, 3.141592653589793]))
def test_every_rotation_has_a_quaternion_half_turns_included(seed, angle):
    axis = torch.nn.functional.normalize(randn(3, seed=seed), dim=-1)
    R = quaternion_to_matrix(quaternion_exp(angle * axis))
    chart = Rotation()
    assert_close(chart(chart.right_inverse(R)), R, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("chart", "value"),
    [
        (Positive(), torch.tensor([0.3, 2.0])),
        (Bounded(0.0, 3.0), torch.tensor([0.3, 2.0])),
        (Free(), torch.tensor([0.3, -2.0])),
        (Rotation(), torch.eye(3)),
        (InertiaLogCholesky(), torch.tensor([2.0, 0.1, 0.2, 0.3, 1.0, 1.1, 1.2, 0.1, 0.0, -0.1])),
    ],
)
def test_parametrizations_serve_torch_parametrize(chart, value):
    module = torch.nn.Module()
    module.register_parameter("x", torch.nn.Parameter(value.clone()))
    parametrize.register_parametrization(module, "x", chart)
    assert_close(module.x, value)
    (theta,) = module.parameters()
    assert theta.dtype == torch.float32
    module.x.sum().backward()
    assert theta.grad is not None and theta.grad.isfinite().all()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_positive_refuses_a_start_that_is_not_positive(value):
    with pytest.raises(ts.MechanismError, match=r"Positive\(init=0.01\)"):
        Positive().right_inverse(torch.tensor([1.0, value]))


def test_bounded_refuses_a_start_on_or_beyond_its_bounds():
    for value in (0.0, 1.0, 2.0, float("nan")):
        with pytest.raises(ts.MechanismError, match="strictly between"):
            Bounded(0.0, 1.0).right_inverse(torch.tensor([0.5, value]))
    with pytest.raises(ts.MechanismError, match="empty range"):
        Bounded(1.0, 1.0)


def flat(mass, moments):
    return torch.tensor([mass, 0.1, 0.2, 0.3, *moments, 0.0, 0.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("moments", [(0, 0, 0), (1, 1, 0), (1, 2, 3), (0.1, 0.2, 0.3)])
def test_points_rods_and_plates_need_a_stated_spread(moments):
    with pytest.raises(ts.MechanismError, match=r"spread=0.01"):
        InertiaLogCholesky().right_inverse(flat(1.0, moments))
    chart = InertiaLogCholesky(spread=0.05)
    start = chart.start(flat(1.0, moments))
    # A spread of s in every direction is a ball of inertia 2 m s^2 about every axis.
    assert_close(
        start - flat(1.0, moments), flat(0.0, (5e-3, 5e-3, 5e-3)) * (flat(1, (1, 1, 1)) == 1)
    )
    assert_close(chart(chart.right_inverse(start)), start)


def test_a_massless_body_has_no_log_cholesky_numbers():
    with pytest.raises(ts.MechanismError, match="massless"):
        InertiaLogCholesky().right_inverse(flat(0.0, (1, 1, 1)))
