"""A mechanism is frozen data with names: what replace, to and random_state promise."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import mechanisms, random_mechanism
from torchsko.mechanism.fields import PARAMETERS

KINDS = ["free", "revolute", "prismatic", "spherical"]


def tree(**options) -> ts.Mechanism:
    return random_mechanism(KINDS, [-1, 0, 1, 0], seed=1, **options)


def limited(**limits: float) -> ts.Mechanism:
    builder = ts.MechanismBuilder()
    for k, kind in enumerate(("revolute", "prismatic")):
        builder.link(f"l{k}", mass=1.0, com=(0.1, 0.0, 0.0))
        builder.joint(f"j{k}", kind, child=f"l{k}", parent=f"l{k - 1}" if k else None, **limits)
    return builder.build()


def test_a_mechanism_cannot_be_assigned_to():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree().mass = torch.ones(4)


@pytest.mark.parametrize("name", PARAMETERS)
def test_replace_changes_one_parameter_and_leaves_the_original(name):
    mech = tree()
    before = getattr(mech, name).clone()
    doubled = mech.replace(**{name: 2 * before})
    assert_close(getattr(doubled, name), 2 * before)
    assert_close(getattr(mech, name), before, rtol=0, atol=0)
    for other in set(PARAMETERS) - {name}:
        assert getattr(doubled, other) is getattr(mech, other)


def test_replaced_damping_acts():
    mech = tree()
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))
    more = mech.replace(damping=mech.damping + 1)
    assert_close(ts.bias_force(more, q, qd) - ts.bias_force(mech, q, qd), qd)


def test_replaced_armature_acts_on_a_robot_that_had_none():
    mech = tree()
    q, _ = mech.random_state(generator=torch.Generator().manual_seed(0))
    rotors = mech.replace(armature=torch.full_like(mech.armature, 0.3))
    extra = ts.mass_matrix(rotors, q) - ts.mass_matrix(mech, q)
    assert_close(extra, 0.3 * torch.eye(mech.num_dof, dtype=q.dtype))


def test_parameters_carry_batch_dimensions():
    mech = tree().replace(mass=torch.ones(5, 1, 4).double(), gravity=torch.ones(2, 3).double())
    assert mech.batch_shape == (5, 2)
    q, qd = mech.random_state()
    assert ts.bias_force(mech, q, qd).shape == (5, 2, mech.num_dof)


def test_to_changes_every_parameter_and_back():
    mech = tree()
    single = mech.to(torch.float32)
    assert single.dtype == torch.float32 and mech.dtype == torch.float64
    assert all(getattr(single, name).dtype == torch.float32 for name in PARAMETERS)
    assert_close(single.to(torch.float64).mass, mech.mass, rtol=1e-6, atol=0)


@pytest.mark.cuda
def test_to_moves_everything_a_call_needs_to_the_device():
    mech = tree(armature=True).to("cuda")
    assert all(getattr(mech, name).is_cuda for name in PARAMETERS)
    q, qd = mech.random_state(3, generator=torch.Generator("cuda").manual_seed(0))
    tau = ts.inverse_dynamics(mech, q, qd, qd)
    assert_close(ts.forward_dynamics(mech, q, qd, tau), qd)
    back = mech.to("cpu")
    assert_close(ts.inverse_dynamics(back, q.cpu(), qd.cpu(), qd.cpu()), tau.cpu())


@given(mechanisms())
def test_random_states_are_reproduced_by_their_generator(mech):
    first, again = (
        mech.random_state(2, 3, generator=torch.Generator().manual_seed(7)) for _ in range(2)
    )
    assert_close(first, again, rtol=0, atol=0)
    assert first[0].shape == (2, 3, mech.num_q) and first[1].shape == (2, 3, mech.num_dof)


@given(mechanisms())
def test_random_orientations_are_unit_quaternions(mech):
    q, _ = mech.random_state(50, generator=torch.Generator().manual_seed(0))
    for name, kind in zip(mech.joint_names, mech.joint_kinds, strict=True):
        if kind in ("spherical", "free"):
            quat = q[:, mech.q_slice(name)][:, -4:]
            assert_close(quat.norm(dim=-1), torch.ones(50, dtype=q.dtype))


def test_random_states_keep_their_limits_and_use_their_range():
    mech = limited(lower=-0.3, upper=0.9, velocity=2.0)
    q, qd = mech.random_state(500, generator=torch.Generator().manual_seed(0))
    assert ((q >= -0.3) & (q <= 0.9)).all() and (qd.abs() <= 2.0).all()
    assert q.min() < -0.25 and q.max() > 0.85 and qd.min() < -1.9 and qd.max() > 1.9


def test_random_states_without_limits_have_the_documented_range():
    q, qd = limited().random_state(500, generator=torch.Generator().manual_seed(0))
    for x, reach in zip((*q.T, *qd.T), (math.pi, 1.0, math.pi, 1.0), strict=True):
        assert 0.9 * reach < x.abs().max() <= reach


def test_a_limit_on_one_side_is_kept():
    q, _ = limited(lower=1.0).random_state(500, generator=torch.Generator().manual_seed(0))
    assert (q >= 1.0).all() and q.isfinite().all()


def test_the_neutral_configuration_is_that_of_identity_orientations():
    mech = tree()
    assert_close(mech.neutral(), ts.integrate(mech, mech.neutral(), torch.zeros(11).double()))
    R = ts.forward_kinematics(mech, mech.neutral()).rotation
    assert_close(R[0], mech.joint_rotation[0])


def test_names_find_their_numbers():
    mech = tree()
    assert [mech.body_index(name) for name in mech.body_names] == [0, 1, 2, 3]
    assert [mech.joint_index(name) for name in mech.joint_names] == [0, 1, 2, 3]
    assert [mech.frame_index(name) for name in mech.frame_names] == [0, 1, 2, 3]
    assert mech.dof_slice("joint2") == slice(7, 8) and mech.q_slice("joint3") == slice(9, 13)


def test_a_motion_of_a_compound_joint_is_found_by_its_own_name():
    builder = ts.MechanismBuilder()
    builder.link("hips", mass=1.0).link("thigh", mass=1.0, inertia=torch.eye(3).tolist())
    builder.joint("root", "free", child="hips")
    motions = [ts.Turn((1.0, 0.0, 0.0)), ts.Slide((0.0, 0.0, 1.0)), ts.Turn((0.0, 1.0, 0.0))]
    builder.joint("hip_x+leg+hip_y", "compound", parent="hips", child="thigh", motions=motions)
    mech = builder.build()
    assert mech.q_slice("leg") == mech.tree_q_slice("leg") == slice(8, 9)
    assert mech.dof_slice("hip_y") == mech.tree_dof_slice("hip_y") == slice(8, 9)
    assert mech.joint_place("hip_x") == (1, 0)
    assert mech.q_slice("hip_x+leg+hip_y") == slice(7, 10)
    with pytest.raises(ts.MechanismError, match="no moving joint is named 'knee'"):
        mech.dof_slice("knee")


def test_repr_is_one_line_with_the_name_and_sizes():
    assert repr(tree()) == (
        "Mechanism('random': 4 bodies, 11 dofs, 1 free, 1 revolute, 1 prismatic, 1 spherical; "
        "torch.float64, cpu)"
    )


def test_float_and_double_are_to():
    mech = tree()
    assert mech.float().dtype == torch.float32 and mech.float().double().dtype == torch.float64
    assert_close(mech.double().mass, mech.mass, rtol=0, atol=0)


@given(st.floats(-5, 5), st.floats(0, 5))
def test_the_middle_lies_between_the_limits_at_equal_distance(lower, width):
    mech = limited(lower=lower, upper=lower + width)
    q = mech.middle()
    assert_close(q - mech.lower, mech.upper - q)
    assert ((mech.lower <= q) & (q <= mech.upper)).all()


def test_the_middle_without_limits_is_neutral_and_one_limit_is_kept():
    assert_close(tree().middle(), tree().neutral())
    assert_close(limited(lower=1.0).middle(), torch.ones(2).double())
    assert_close(limited(lower=-1.0).middle(), torch.zeros(2).double())
    assert_close(limited(upper=-2.0).middle(), torch.full((2,), -2.0).double())


def test_the_middle_has_the_batch_of_the_limits():
    mech = limited(lower=-1.0, upper=1.0)
    upper = torch.tensor([[1.0, 1.0], [3.0, 5.0]]).double()
    assert_close(mech.replace(upper=upper).middle(), (upper - 1) / 2)
