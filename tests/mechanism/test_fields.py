"""Every tensor of a mechanism, none of them zero, in append, lock, save, learning and all dynamics."""

from dataclasses import fields as attributes

import pytest
import torch
from torch.func import jacfwd
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import random_mechanism, with_fluid
from torchsko.learn.targets import default_parametrization
from torchsko.mechanism.fields import FIELDS, FLAGS, PARAMETERS

MOVING = [name for name, field in FIELDS.items() if field.owner not in ("limit", "frame")]
"""Fields that enter the dynamics."""


def filled(seed: int) -> ts.Mechanism:
    """A branched robot with a coupling, a ball, a screw and a flexible link, without a tensor of zeros."""
    kinds = ["revolute", "spherical", "helical", "prismatic", "revolute"]
    parents = [-1, 0, 1, 0, 3]
    mech = random_mechanism(kinds, parents, seed, armature=True, couplings={4: {0: 0.7}})
    beam = ts.FlexibleBody.beam(0.5, 0.4, EI_y=0.3, EI_z=0.2, shapes=(2, 1)).damped(0.05)
    builder = ts.MechanismBuilder("flexible").flexible_link("beam", beam)
    mech = mech.append(builder.joint("swing", "revolute", child="beam").build(), "body2")
    g = torch.Generator().manual_seed(seed)

    def near(x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 + 0.1 * torch.rand(x.shape, generator=g, dtype=x.dtype)

    names = ("gravcomp", "damping", "higher_damping", "friction", "friction_speed", "force_offset",
             "armature", "stiffness", "higher_stiffness", "gravity", "medium", "wind",
             "coupling_offset", "frame_position", "joint_position",
             "modal_stiffness", "modal_damping")  # fmt: skip
    limits = {"lower": -1.0, "upper": 1.0, "velocity_limit": 2.0, "effort_limit": 9.0}
    changes = {name: near(getattr(mech, name)) for name in names}
    changes |= {name: near(torch.full_like(getattr(mech, name), x)) for name, x in limits.items()}
    changes["spring_reference"] = mech.tree.random_state(generator=g)[0]
    return with_fluid(mech, (1, 3, 4, 4), g).replace(**changes)


@pytest.fixture(scope="module")
def mech():
    return filled(3)


@pytest.fixture(scope="module")
def state(mech):
    g = torch.Generator().manual_seed(5)
    q, qd = mech.random_state(generator=g)
    return q, 0.3 * qd, torch.randn(mech.num_dof, generator=g, dtype=q.dtype)


def test_the_table_has_every_tensor_of_a_mechanism_and_the_robot_has_no_zero_one(mech):
    tensors = {x.name for x in attributes(mech) if isinstance(getattr(mech, x.name), torch.Tensor)}
    assert tensors == set(FIELDS) == set(PARAMETERS), "add the tensor to mechanism/fields.py"
    assert [name for name in FIELDS if not bool(getattr(mech, name).any())] == []
    assert all(getattr(mech, flag) for flag in FLAGS)
    assert {flag for field in FIELDS.values() for flag in field.flags} == set(FLAGS)


@pytest.mark.parametrize("name", MOVING)
def test_a_field_enters_forward_dynamics_and_its_flags_follow_from_replace(name, mech, state):
    value = getattr(mech, name).clone().requires_grad_()
    qdd = ts.forward_dynamics(mech.replace(**{name: value}), *state)
    (gradient,) = torch.autograd.grad(qdd.sin().sum(), value)
    assert bool(gradient.isfinite().all()) and float(gradient.abs().max()) > 1e-9
    plain = mech.replace(**dict.fromkeys(FLAGS, False))
    changed = plain.replace(**{name: value})
    assert {flag for flag in FLAGS if getattr(changed, flag)} == set(FIELDS[name].flags)


def test_append_keeps_every_field_of_both(mech):
    other = filled(4)
    both = mech.append(other, mech.frame_names[0], prefix="b_")
    for name, field in FIELDS.items():
        x, y, whole = (getattr(m, name) for m in (mech, other, both))
        if field.owner == "mechanism":
            assert torch.equal(whole, x)
            continue
        dim = -len(field.shape)
        start, rest = whole.split([x.shape[dim], y.shape[dim]], dim)
        if field.owner == "mode":
            assert torch.equal(whole, torch.block_diag(x, y))
            continue
        assert_close(start, x, rtol=0, atol=0, msg=name)
        placed = name in ("joint_rotation", "joint_position", "frame_rotation", "frame_position")
        if not placed:
            assert_close(rest, y, rtol=0, atol=0, msg=name)
    assert all(getattr(both, flag) for flag in FLAGS)


@pytest.mark.parametrize("joint", ["joint1", "joint2", "joint3"])
def test_a_locked_robot_moves_as_the_whole_with_that_joint_at_rest(joint, mech, state):
    q, qd, qdd = state
    rest = torch.ones_like(qd)
    rest[mech.dof_slice(joint)] = 0
    qd, qdd, own = qd * rest, qdd * rest, rest.bool()
    left = mech.lock({joint: q[mech.q_slice(joint)]})
    at = torch.ones_like(q).bool()
    at[mech.q_slice(joint)] = False
    whole = ts.inverse_dynamics(mech, q, qd, qdd)[own]
    assert_close(ts.inverse_dynamics(left, q[at], qd[own], qdd[own]), whole)
    for name, of in (("lower", at), ("upper", at), ("velocity_limit", own), ("effort_limit", own)):
        assert torch.equal(getattr(left, name), getattr(mech, name)[of])
    poses = ts.frame_pose(left, q[at], left.frame_names), ts.frame_pose(mech, q, mech.frame_names)
    assert_close(tuple(poses[0]), tuple(poses[1]))


PANDA = ts.load(ts.robots.panda)


@pytest.mark.parametrize("name", [name for name in FIELDS if getattr(PANDA, name).numel()])
def test_a_changed_field_is_saved_or_refused_by_name(name, tmp_path):
    value = getattr(PANDA, name)
    if name in ("joint_rotation", "frame_rotation"):
        turn = torch.linalg.matrix_exp(
            torch.tensor([[0, -0.1, 0], [0.1, 0, 0], [0, 0, 0]]).to(value)
        )
        value = value @ turn
    elif name == "inertia":
        value = 1.1 * value
    else:
        value = 1.05 * value + 0.01
    changed, file = PANDA.replace(**{name: value}), tmp_path / "changed.urdf"
    if name == "gravity":
        return  # URDF has none; loading takes it as an argument
    if "urdf" in FIELDS[name].files:
        ts.save(changed, file, like=ts.robots.panda)
        assert_close(getattr(ts.load(file), name), value, rtol=1e-12, atol=1e-12)
    else:
        with pytest.raises(ts.TorchskoError, match=name):
            ts.save(changed, file, like=ts.robots.panda)


def targets():
    for name, field in FIELDS.items():
        owner = {"body": "body3.", "joint": "joint3.", "dof": "joint3.", "mechanism": ""}
        owner["mode"] = "beam_modes."
        if field.target:
            yield pytest.param(owner[field.owner] + field.target, id=name)


@pytest.mark.parametrize("target", targets())
def test_every_field_with_a_target_learns_from_accelerations(target, mech, state):
    parametrization = getattr(ts.learn, default_parametrization(mech, target))()
    layer = ts.Dynamics(mech, {target: parametrization}, fused=False)
    assert_close(layer(*state), ts.forward_dynamics(mech, *state))
    layer(*state).sin().sum().backward()
    (parameter,) = layer.parameters()
    assert parameter.grad is not None and float(parameter.grad.abs().max()) > 1e-9


def test_closed_form_derivatives_are_those_of_the_dynamics(mech, state):
    q, qd, x = state
    step = torch.zeros_like(qd)
    for verb, derivatives in (
        (ts.inverse_dynamics, ts.inverse_dynamics_derivatives),
        (ts.forward_dynamics, ts.forward_dynamics_derivatives),
    ):
        expected = (
            jacfwd(lambda s, verb=verb: verb(mech, ts.integrate(mech, q, s), qd, x))(step),
            jacfwd(lambda qd, verb=verb: verb(mech, q, qd, x))(qd),
            jacfwd(lambda x, verb=verb: verb(mech, q, qd, x))(x),
        )
        assert_close(tuple(derivatives(mech, q, qd, x)), expected, rtol=1e-9, atol=1e-9)


def test_passive_parts_add_up_and_power_is_balanced(mech, state):
    q, qd, tau = state
    assert_close(sum(ts.passive_force_parts(mech, q, qd)), ts.passive_force(mech, q, qd))
    power = ts.power_balance(mech, q, qd, tau)
    assert_close(power.kinetic + power.potential, power.drives + power.external - power.losses)
    still, one = torch.zeros((), dtype=q.dtype), torch.ones((), dtype=q.dtype)
    qdd = ts.forward_dynamics(mech, q, qd, tau)

    def kinetic(t):
        return ts.kinetic_energy(mech, ts.integrate(mech, q, t * qd), qd + t * qdd)

    assert_close(torch.func.jvp(kinetic, (still,), (one,))[1], power.kinetic)
