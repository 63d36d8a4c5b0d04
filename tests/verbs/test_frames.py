"""Laws of named frames: every velocity, acceleration and Jacobian is a derivative of a pose."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

import torchsko as ts
from tests.newton import along, moving, unskew
from tests.states import normal_state
from tests.strategies import agree, any_mechanisms, random_mechanism, seeds

REFERENCES = ("body", "world", "mixed")
any_mechanism = any_mechanisms(3, 3)
each_reference = pytest.mark.parametrize("reference", REFERENCES)


def drawn_frames(mech: ts.Mechanism, seed: int) -> list[str]:
    """Up to three frames, in any order."""
    order = torch.randperm(mech.num_frames, generator=torch.Generator().manual_seed(seed))
    return [mech.frame_names[k] for k in order[:3].tolist()]


@st.composite
def drawn_motions(draw: st.DrawFn) -> tuple[Any, ...]:
    """A mechanism, its state (q, qd, qdd), and up to three of its frames."""
    mech, seed = draw(any_mechanism), draw(seeds)
    return mech, *normal_state(mech, seed=seed), drawn_frames(mech, seed)


def velocity_of_pose(mech: ts.Mechanism, q: Tensor, qd: Tensor, pose, reference: str) -> Tensor:
    """[omega; v] from the derivative of the rotations and positions of a pose alone."""
    R, r = pose(q)
    R_dot, v = (along(mech, q, qd, lambda q, i=i: pose(q)[i]) for i in (0, 1))
    omega = unskew(R_dot @ R.mT)
    if reference == "world":
        v = v - torch.linalg.cross(omega, r)
    if reference == "body":
        omega, v = ((R.mT @ x[..., None])[..., 0] for x in (omega, v))
    return torch.cat([omega, v], -1)


@pytest.mark.some(2)
@each_reference
@given(drawn_motions())
def test_velocity_is_the_derivative_of_the_pose_and_the_jacobian_times_qd(reference, motion):
    mech, q, qd, _, frames = motion
    V = ts.frame_velocity(mech, q, qd, frames, reference=reference)
    agree(
        V, velocity_of_pose(mech, q, qd, lambda q: ts.frame_pose(mech, q, frames), reference), 1e-11
    )
    J = ts.frame_jacobian(mech, q, frames, reference=reference)
    agree(V, (J @ qd[:, None])[..., 0], 1e-12)


@pytest.mark.some(2)
@each_reference
@given(drawn_motions())
def test_the_rate_of_the_jacobian_is_its_derivative(reference, motion):
    mech, q, qd, _, frames = motion
    expected = along(mech, q, qd, lambda q: ts.frame_jacobian(mech, q, frames, reference=reference))
    agree(ts.frame_jacobian_rate(mech, q, qd, frames, reference=reference), expected, 1e-11)


@pytest.mark.some(2)
@each_reference
@given(drawn_motions())
def test_acceleration_is_the_derivative_of_velocity(reference, motion):
    mech, q, qd, qdd, frames = motion
    # In inertial axes at a point that moves along, the rate of the components is the classical one.
    classical = reference == "mixed"
    a = ts.frame_acceleration(mech, q, qd, qdd, frames, reference=reference, classical=classical)

    def velocity(q: Tensor, qd: Tensor) -> Tensor:
        return ts.frame_velocity(mech, q, qd, frames, reference=reference)

    agree(a, moving(mech, q, qd, qdd, velocity), 1e-11)
    J = ts.frame_jacobian(mech, q, frames, reference=reference)
    rate = ts.frame_jacobian_rate(mech, q, qd, frames, reference=reference)
    agree(a, (J @ qdd[:, None] + rate @ qd[:, None])[..., 0], 1e-11)


@given(drawn_motions())
def test_the_classical_acceleration_is_that_of_the_point(motion):
    mech, q, qd, qdd, frames = motion

    def speed(q: Tensor, qd: Tensor) -> Tensor:
        return along(mech, q, qd, lambda q: ts.frame_pose(mech, q, frames).position)

    point = moving(mech, q, qd, qdd, speed)
    mixed = ts.frame_acceleration(mech, q, qd, qdd, frames, reference="mixed", classical=True)
    agree(mixed[..., 3:], point, 1e-11)
    R = ts.frame_pose(mech, q, frames).rotation
    body = ts.frame_acceleration(mech, q, qd, qdd, frames, classical=True)
    agree(body[..., 3:], (R.mT @ point[..., None])[..., 0], 1e-11)


@each_reference
@given(drawn_motions())
def test_classical_is_spatial_and_omega_cross_v(reference, motion):
    mech, q, qd, qdd, frames = motion
    V = ts.frame_velocity(mech, q, qd, frames, reference=reference)
    spatial = ts.frame_acceleration(mech, q, qd, qdd, frames, reference=reference)
    classical = ts.frame_acceleration(mech, q, qd, qdd, frames, reference=reference, classical=True)
    swing = torch.linalg.cross(V[..., :3], V[..., 3:])
    agree(classical - spatial, torch.cat([torch.zeros_like(swing), swing], -1), 1e-12)


def test_a_robot_in_free_fall_accelerates_with_gravity():
    mech = random_mechanism(["free", "revolute"], [-1, 0], seed=1, passive=False)
    q, *_ = normal_state(mech)
    still = torch.zeros(mech.num_dof, dtype=q.dtype)
    qdd = ts.forward_dynamics(mech, q, still, still)
    a = ts.frame_acceleration(mech, q, still, qdd, "body1", reference="mixed")
    agree(a, torch.cat([torch.zeros(3, dtype=q.dtype), mech.gravity]), 1e-12)


# Batches, names, errors.

CALLS = {
    "velocity": lambda m, q, qd, qdd, f, at: ts.frame_velocity(m, q, qd, f, reference=at),
    "acceleration": lambda m, q, qd, qdd, f, at: ts.frame_acceleration(
        m, q, qd, qdd, f, reference=at
    ),
    "jacobian": lambda m, q, qd, qdd, f, at: ts.frame_jacobian(m, q, f, reference=at),
    "jacobian rate": lambda m, q, qd, qdd, f, at: ts.frame_jacobian_rate(m, q, qd, f, reference=at),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
COUPLED = random_mechanism(
    ["revolute", "universal", "revolute", "free", "fixed", "fixed"],
    [-1, 0, 1, 0, 1, -1],
    seed=3,
    couplings={2: {0: -1.5}},
)


@each_call
@each_reference
def test_every_sample_is_computed_on_its_own(call, reference):
    q, qd, qdd = normal_state(COUPLED, 2, 3, seed=5)
    g = torch.Generator().manual_seed(6)
    fields = {
        name: value + 0.1 * torch.randn(3, *value.shape, generator=g, dtype=value.dtype)
        for name in ("joint_position", "coupling_ratio", "coupling_offset", "frame_position")
        for value in (getattr(COUPLED, name),)
    }
    names = COUPLED.frame_names
    found = call(COUPLED.replace(**fields), q, qd[0], qdd[:, :1], names, reference)
    for i in range(2):
        for k in range(3):
            mech = COUPLED.replace(**{name: value[k] for name, value in fields.items()})
            alone = call(mech, q[i, k], qd[0, k], qdd[i, 0], names, reference)
            agree(found[i, k], alone, 1e-13)


@each_call
def test_one_name_drops_the_dimension_of_frames(call):
    inputs = normal_state(COUPLED, 4, seed=5)
    name = COUPLED.frame_names[2]
    one, several = (call(COUPLED, *inputs, f, "world") for f in (name, [name]))
    assert torch.equal(one, several[:, 0])


@each_call
@each_reference
def test_a_frame_fixed_to_the_world_stands_still(call, reference):
    at = COUPLED.frame_names[COUPLED.frame_body.index(-1)]
    assert not call(COUPLED, *normal_state(COUPLED, 2, seed=5), at, reference).any()


@each_call
def test_an_unknown_reference_is_refused_by_name(call):
    with pytest.raises(ts.MechanismError, match="no reference is named 'local'"):
        call(COUPLED, *normal_state(COUPLED, seed=5), COUPLED.frame_names[0], "local")
