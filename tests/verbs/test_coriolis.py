"""The Coriolis matrix: dM/dt - 2 C is skew, C qd the Coriolis forces, and Christoffel's symbols make it."""

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.func import jacfwd, vmap

import torchsko as ts
from tests.newton import along
from tests.states import normal_state
from tests.strategies import (
    ALL_KINDS,
    BATCHES,
    agree,
    any_mechanisms,
    mechanisms,
    random_mechanism,
    seeds,
)
from torchsko.mechanism.joints.kind import Constants
from torchsko.mechanism.joints.registry import JOINT_TYPES
from torchsko.mechanism.joints.spherical import Spherical
from torchsko.spatial.rotation import (
    quaternion_conjugate,
    quaternion_exp,
    quaternion_log,
    quaternion_multiply,
    quaternion_to_matrix,
)


def bare(mech):
    """Without gravity and passive forces: what is left of the bias are Coriolis forces."""
    names = ("gravity", "damping", "friction", "stiffness")
    return mech.replace(**{name: torch.zeros_like(getattr(mech, name)) for name in names})


def obeys_the_laws(mech, q, qd):
    C = ts.coriolis_matrix(mech, q, qd)
    agree(C + C.mT, along(mech, q, qd, lambda q: ts.mass_matrix(mech, q)), 1e-12)
    force = ts.bias_force(bare(mech), q, qd) - ts.passive_force(bare(mech), q, qd)
    agree(C @ qd[..., None], force[..., None], 1e-12)


robots = any_mechanisms()


@given(robots, st.sampled_from(BATCHES), seeds)
def test_the_mass_matrix_changes_by_its_symmetric_part_and_it_gives_the_forces(mech, batch, seed):
    obeys_the_laws(mech, *normal_state(mech, *batch, seed=seed, vectors=1))


@given(mechanisms(), st.sampled_from(BATCHES), seeds, st.floats(-9, 9))
def test_the_coriolis_matrix_is_linear_in_the_velocity(mech, batch, seed, factor):
    q, qd = normal_state(mech, *batch, seed=seed, vectors=1)
    _, other = normal_state(mech, *batch, seed=seed + 1, vectors=1)
    one, two = (ts.coriolis_matrix(mech, q, x) for x in (qd, other))
    agree(ts.coriolis_matrix(mech, q, factor * qd + other), factor * one + two, 1e-11)


@given(mechanisms(kinds=tuple({*ALL_KINDS} - {"spherical", "free"})), seeds)
def test_the_coriolis_matrix_of_vector_joints_is_made_of_christoffel_symbols(mech, seed):
    q, qd = normal_state(mech, 3, seed=seed, vectors=1)
    dM = vmap(jacfwd(lambda q: ts.mass_matrix(mech, q)))(q)  # [3, i, j, k] = dM_ij / dq_k
    symbols = (dM + dM.transpose(-1, -2) - dM.movedim(-1, 1)) / 2
    agree(ts.coriolis_matrix(mech, q, qd), (symbols * qd[:, None, None]).sum(-1), 1e-12)


@dataclass(frozen=True)
class Gimbal(Spherical):
    """A ball joint whose rates are the angular velocity in the *joint* frame: H turns with the child."""

    name: str = "gimbal"
    unit_rows: bool = False

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        R = quaternion_to_matrix(q)
        return torch.cat([R, torch.zeros_like(R)], -1)

    def integrate(self, q: Tensor, step: Tensor) -> Tensor:
        return quaternion_multiply(quaternion_exp(step), q)

    def difference(self, start: Tensor, end: Tensor) -> Tensor:
        return quaternion_log(quaternion_multiply(end, quaternion_conjugate(start)))

    def bracket(self, u: Tensor, v: Tensor) -> Tensor:
        return -torch.linalg.cross(u, v)


@pytest.mark.parametrize("batch", BATCHES)
def test_the_laws_hold_for_rates_that_are_no_derivatives_under_a_map_that_turns(batch):
    ts.register_joint(Gimbal())
    try:
        mech = random_mechanism(["gimbal", "planar", "gimbal"], [-1, 0, 1], seed=2)
        obeys_the_laws(mech, *normal_state(mech, *batch, vectors=1))
    finally:
        JOINT_TYPES.pop("gimbal")


def test_bodies_on_different_branches_and_bases_are_not_coupled():
    mech = random_mechanism(["revolute"] * 5, [-1, 0, 0, -1, 3], seed=1)
    C = ts.coriolis_matrix(mech, *normal_state(mech, vectors=1))
    related = torch.block_diag(torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 1]]), torch.ones(2, 2))
    assert (C[related == 0] == 0).all() and (C[0, 1:3] != 0).all()
