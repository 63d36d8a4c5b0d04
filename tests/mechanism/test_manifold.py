"""Configurations live on a manifold: integrate and difference are its exponential and logarithm."""

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch.func import jacfwd
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import BATCHES, mechanisms, random_mechanism, seeds
from torchsko.spatial.rotation import quaternion_to_matrix, skew


def normal(mech: ts.Mechanism, seed: int, batch: tuple[int, ...] = ()) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*batch, mech.num_dof, generator=g, dtype=mech.dtype)


def same_configuration(mech: ts.Mechanism, q0: torch.Tensor, q1: torch.Tensor) -> None:
    """Equal up to the signs of quaternions."""
    for x, y in zip(ts.forward_kinematics(mech, q0), ts.forward_kinematics(mech, q1), strict=True):
        assert_close(x, y)
    vectors = [kind.vector for kind in mech.joints.kinds]
    for name, is_vector in zip(mech.joint_names, vectors, strict=True):
        if is_vector:
            assert_close(q0[..., mech.q_slice(name)], q1[..., mech.q_slice(name)])


@given(mechanisms(), seeds, st.sampled_from(BATCHES))
def test_integrating_the_difference_leads_to_the_end(mech, seed, batch):
    g = torch.Generator().manual_seed(seed)
    (start, _), (end, _) = (mech.random_state(*batch, generator=g) for _ in range(2))
    same_configuration(mech, ts.integrate(mech, start, ts.difference(mech, start, end)), end)


@given(mechanisms(), seeds, st.sampled_from(BATCHES))
def test_the_difference_of_a_step_is_the_step(mech, seed, batch):
    q, _ = mech.random_state(*batch, generator=torch.Generator().manual_seed(seed))
    step = normal(mech, seed, batch).clamp(-1.5, 1.5)  # rotations by less than half a turn
    assert_close(ts.difference(mech, q, ts.integrate(mech, q, step)), step)


@given(mechanisms(), seeds)
def test_two_steps_in_one_direction_are_one(mech, seed):
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(seed))
    step = normal(mech, seed)
    twice = ts.integrate(mech, ts.integrate(mech, q, 0.3 * step), 0.7 * step)
    assert_close(twice, ts.integrate(mech, q, step))


@given(mechanisms(), seeds)
def test_to_first_order_a_step_is_its_own_difference(mech, seed):
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(seed))
    still = torch.zeros(mech.num_dof, dtype=q.dtype)
    jacobian = jacfwd(lambda s: ts.difference(mech, q, ts.integrate(mech, q, s)))(still)
    assert_close(jacobian, torch.eye(mech.num_dof, dtype=q.dtype))


@given(seeds)
def test_a_free_joint_moves_by_the_exponential_of_its_twist(seed):
    mech = random_mechanism(["free"], [-1], seed=1)
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(seed))
    step = normal(mech, seed)

    def homogeneous(q: torch.Tensor) -> torch.Tensor:
        top = torch.cat([quaternion_to_matrix(q[3:]), q[:3, None]], -1)
        return torch.cat([top, torch.tensor([[0.0, 0, 0, 1]], dtype=q.dtype)])

    twist = torch.zeros(4, 4, dtype=q.dtype)
    twist = torch.cat([torch.cat([skew(step[:3]), step[3:, None]], -1), twist[:1]])
    moved = homogeneous(q) @ torch.linalg.matrix_exp(twist)
    assert_close(homogeneous(ts.integrate(mech, q, step)), moved)


@given(mechanisms(), seeds)
def test_quaternions_stay_unit_over_many_steps(mech, seed):
    mech = mech.to(torch.float32)
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(seed))
    for k in range(30):
        q = ts.integrate(mech, q, normal(mech, seed + k))
    for name, kind in zip(mech.joint_names, mech.joint_kinds, strict=True):
        if kind in ("spherical", "free"):
            assert_close(q[mech.q_slice(name)][-4:].norm(), torch.tensor(1.0))


def test_neither_quaternion_of_an_orientation_is_preferred():
    mech = random_mechanism(["spherical"], [-1], seed=2)
    g = torch.Generator().manual_seed(3)
    (start, _), (end, _) = (mech.random_state(20, generator=g) for _ in range(2))
    assert_close(ts.difference(mech, start, end), ts.difference(mech, start, -end))
    assert ts.difference(mech, start, end).norm(dim=-1).max() <= torch.pi
