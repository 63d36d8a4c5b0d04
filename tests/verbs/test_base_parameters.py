"""Base parameters are all that joint forces depend on, and their names say how."""

import re

import pytest
import torch
from hypothesis import assume, given
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import any_mechanisms, coupled_mechanisms, mechanisms
from torchsko.errors import MechanismError, ShapeError
from torchsko.verbs.base_parameters import NAMES

PANDA = ts.load(ts.robots.panda)


def regressor(mech: ts.Mechanism, armature: bool = False) -> torch.Tensor:
    """Of 40 random states, one row below the other; with columns of armatures behind."""
    g = torch.Generator().manual_seed(1)
    q, qd = mech.random_state(40, generator=g)
    qdd = torch.randn(qd.shape, generator=g, dtype=qd.dtype)
    Y = ts.torque_regressor(mech, q, qd, qdd).flatten(-2)
    if armature:
        Y = torch.cat([Y, ts.friction_regressor(mech, q, qd, qdd)[..., 0]], -1)
    return Y.flatten(0, 1)


def has_clear_rank(mech: ts.Mechanism, armature: bool = False) -> bool:
    """Whether no singular value of the regressor is so small that its rank depends on the tolerance."""
    size = torch.linalg.svdvals(regressor(mech, armature))
    return not ((size > 1e-12 * size[0]) & (size < 1e-7 * size[0])).any()


def check(mech: ts.Mechanism, armature: bool = False) -> ts.verbs.BaseParameters:
    base, Y = ts.base_parameters(mech, armature=armature), regressor(mech, armature)
    size = torch.linalg.svdvals(Y)
    assert len(base) == int((size > 1e-9 * size[0]).sum())
    phi = torch.randn(Y.shape[1], generator=torch.Generator().manual_seed(2), dtype=Y.dtype)
    assert_close(Y @ (base.representative @ base.of(phi)), Y @ phi, rtol=1e-8, atol=1e-8)
    return base


def test_torques_depend_on_base_parameters_alone():
    assert "m of link1" in check(PANDA).unseen


def test_equal_limits_hide_no_base_parameter():
    """Files say 0 of limits that nobody knew; a joint that is held there tells less."""
    zero, free = torch.zeros_like(PANDA.lower), ts.base_parameters(PANDA)
    held = ts.base_parameters(PANDA.replace(lower=zero, upper=zero, velocity_limit=zero))
    assert held.names == free.names
    assert_close(held.matrix, free.matrix, rtol=1e-9, atol=1e-9)


@given(mechanisms(max_bodies=4))
def test_torques_of_all_joint_types_depend_on_base_parameters_alone(mech):
    check(mech)


@given(coupled_mechanisms(max_bodies=4))
def test_torques_of_coupled_joints_depend_on_base_parameters_alone(mech):
    assume(has_clear_rank(mech))
    check(mech)


@given(any_mechanisms(4, 4))
def test_armatures_that_are_collinear_with_inertia_are_in_the_combination(mech):
    assume(has_clear_rank(mech, armature=True))
    with_armature, without = check(mech, armature=True), ts.base_parameters(mech)
    # What leads among inertial numbers is the same: armatures come behind them.
    count = 10 * mech.num_bodies
    inertial = with_armature.independent[with_armature.independent < count]
    assert torch.equal(inertial, without.independent)
    assert_close(with_armature.matrix[: len(without), :count], without.matrix)


def test_of_an_arm_on_an_upright_joint_the_first_two_armatures_are_one_with_inertia():
    base = check(PANDA, armature=True)
    armatures = [f"armature of {joint}" for joint in PANDA.joint_names]
    # Moments of inertia about these two axes are felt by the joints themselves alone.
    for armature in armatures[:2]:
        assert any(re.search(rf"^I.*\+ {armature}$", name) for name in base.names)
    assert list(base.names[43:]) == armatures[2:]


@pytest.mark.parametrize("armature", [False, True])
def test_names_are_the_combinations_written_out(armature):
    base = ts.base_parameters(PANDA, armature=armature)
    labels = [f"{n} of {b}" for b in PANDA.body_names for n in NAMES]
    labels += [f"armature of {joint}" for joint in PANDA.joint_names] * armature
    column = {label: k for k, label in enumerate(labels)}
    for row, name in zip(base.matrix, base.names, strict=True):
        told = torch.zeros_like(row)
        for sign, size, what in re.findall(r"([+-] |^)([\d.e-]+ )?(\w+ of \w+)", name):
            told[column[what]] = float(size or 1.0) * (-1.0 if sign == "- " else 1.0)
        assert_close(told, row, rtol=1e-3, atol=0)
    assert not base.matrix[:, [column[name] for name in base.unseen]].any()


def test_layers_kernels_and_float32_have_the_same_base_parameters():
    base = ts.base_parameters(PANDA)
    for robot in (ts.Dynamics(PANDA), ts.fuse(PANDA), PANDA.float()):
        found = ts.base_parameters(robot)
        assert found.names == base.names
        assert_close(found.matrix.double(), base.matrix, rtol=1e-6, atol=0)
    assert ts.Dynamics(PANDA.float()).base_parameters().matrix.dtype == torch.float32


def test_several_robots_and_what_is_no_share_are_refused():
    several = PANDA.replace(mass=PANDA.mass.expand(3, -1))
    with pytest.raises(MechanismError, match=r"'panda' have the batch dimensions \[3\]"):
        ts.base_parameters(several)
    for wrong in ("x", 0, -1e-9, 1.0, True):
        with pytest.raises(MechanismError, match="tolerance is"):
            ts.base_parameters(PANDA, tolerance=wrong)
    with pytest.raises(ShapeError, match=r"phi has shape \[7, 10\][^$]*flatten\(-2\)"):
        ts.base_parameters(PANDA).of(ts.inertial_parameters(PANDA))


def test_base_parameters_are_the_same_to_the_last_bit_wherever_arrays_lie_in_memory():
    """They differed by 1e-14 from call to call, and two fits of one log with them."""
    mech = ts.load(ts.robots.panda)
    first, kept = ts.base_parameters(mech).matrix, []
    for size in (17, 1003, 77, 2501, 333):
        kept += [bytearray(size), torch.empty(size)]
        assert torch.equal(ts.base_parameters(mech).matrix, first)
