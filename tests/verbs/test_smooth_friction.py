"""Smooth Coulomb friction and constant joint forces."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import random_mechanism


def with_friction(speed, seed=0, offset=0.0):
    mech = random_mechanism(["revolute", "prismatic", "revolute"], [-1, 0, 1], seed, armature=True)
    n = mech.damping
    return mech.replace(
        friction=torch.full_like(n, 0.7),
        friction_speed=torch.full_like(n, speed),
        force_offset=torch.full_like(n, offset),
    )


def test_the_passive_force_is_friction_times_tanh_of_the_relative_rate_plus_the_offset():
    mech = with_friction(0.3, offset=0.2)
    q, qd = mech.random_state(5)
    plain = mech.replace(friction=0 * mech.friction, force_offset=0 * mech.force_offset)
    difference = ts.passive_force(mech, q, qd) - ts.passive_force(plain, q, qd)
    assert_close(difference, 0.2 + 0.7 * torch.tanh(qd / 0.3))
    parts = ts.passive_force_parts(mech, q, qd)
    assert_close(sum(parts), ts.passive_force(mech, q, qd))


def test_narrow_smooth_friction_is_dry_friction():
    smooth, dry = with_friction(1e-9), with_friction(0.0)
    q, qd = smooth.random_state(5)
    assert_close(
        ts.forward_dynamics(smooth, q, qd, 0 * qd), ts.forward_dynamics(dry, q, qd, 0 * qd)
    )


def test_gradients_to_width_friction_and_offset_are_those_of_the_closed_form():
    mech = with_friction(0.3)
    q, qd = mech.random_state()
    values = [mech.friction, mech.friction_speed, mech.force_offset]
    f, s, o = (x.clone().requires_grad_() for x in values)
    robot = mech.replace(friction=f, friction_speed=s, force_offset=o)
    ts.inverse_dynamics(robot, q, qd, 0 * qd).sum().backward()
    slope = 1 - torch.tanh(qd / 0.3).square()
    assert_close(f.grad, torch.tanh(qd / 0.3))
    assert_close(s.grad, -0.7 * slope * qd / 0.3**2)
    assert_close(o.grad, torch.ones(3, dtype=qd.dtype))


@pytest.mark.parametrize("method", ["semi_implicit_euler", "implicit", "newmark"])
def test_integrators_agree_on_smooth_friction_for_small_steps(method):
    mech = with_friction(0.3, offset=0.1)
    q, qd = mech.random_state(4)
    few, fine = (
        ts.rollout(mech, ts.State(q, qd), steps=20, dt=1e-3, method=x, fused=False).qd[:, -1]
        for x in (method, "rk4")
    )
    assert_close(few, fine, rtol=2e-2, atol=2e-2)


@pytest.mark.nightly
def test_kernels_have_smooth_friction_and_offsets():
    mech = with_friction(0.3, offset=0.1)
    q, qd = mech.random_state(4)
    fused = ts.fuse(mech, inputs=("friction", "friction_speed", "force_offset"))
    other = {"friction_speed": 0.5 * mech.friction_speed, "force_offset": -mech.force_offset}
    for robot, kernels in ((mech, fused), (mech.replace(**other), fused.replace(**other))):
        assert_close(
            kernels.forward_dynamics(q, qd, 0 * qd), ts.forward_dynamics(robot, q, qd, 0 * qd)
        )


def test_a_layer_learns_friction_its_width_and_the_offset():
    truth = with_friction(0.2, offset=0.4)
    nominal = truth.replace(
        friction=0 * truth.friction,
        friction_speed=0 * truth.friction,
        force_offset=0 * truth.friction,
    )
    learn = {}
    for joint in truth.joint_names:
        learn |= {
            f"{joint}.friction": ts.learn.Positive(init=0.3),
            f"{joint}.friction_speed": ts.learn.Positive(init=0.1),
            f"{joint}.offset": ts.learn.Free(),
        }
    layer = ts.Dynamics(nominal, learn, fused=False)
    q, qd = truth.random_state(128, generator=torch.Generator().manual_seed(0))
    tau = ts.inverse_dynamics(truth, q, qd, 0 * qd)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = (layer.inverse_dynamics(q, qd, 0 * qd) - tau).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    found = layer.mechanism()
    for field in ("friction", "friction_speed", "force_offset"):
        assert_close(getattr(found, field), getattr(truth, field), rtol=1e-2, atol=1e-3)
