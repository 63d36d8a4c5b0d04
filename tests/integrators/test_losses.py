"""Implicit damping and dry friction in the default integrator: stable at any step."""

import math

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.states import normal_state
from tests.strategies import KINDS, random_mechanism
from torchsko.integrators.integrators import SEMI_IMPLICIT_EULER

TREE = (list(KINDS), [-1, 0, 0, 1])


def lossy(kinds=TREE[0], parents=TREE[1], gravity=True):
    mech = random_mechanism(kinds, parents, seed=5, armature=True)
    return mech if gravity else mech.replace(gravity=torch.zeros_like(mech.gravity))


def one_joint(kind, mass=1.0, inertia=0.0, com=0.0, **data):
    builder = ts.MechanismBuilder()
    builder.link("body", mass=mass, com=(com, 0, 0), inertia=(inertia * torch.eye(3)).tolist())
    return builder.joint("joint", kind, child="body", axis=(0, 1, 0), **data).build()


def one_step(mech, q, qd, tau, dt):
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), tau[..., None, :], steps=1, dt=dt)
    return qs[..., 1, :], qds[..., 1, :]


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_losses_act_on_the_new_velocity(batch):
    """The implicit equation M (v - qd) / h + bias = tau - B v, by inverse dynamics without losses."""
    mech = lossy(["revolute", "prismatic", "spherical"], [-1, 0, 0])
    none = torch.zeros_like(mech.damping)
    free = mech.replace(damping=none, friction=none)
    q, qd, tau = normal_state(mech, *batch)
    for h in (1e-4, 0.02, 10.0):
        _, v = one_step(mech, q, qd, tau, h)
        B = mech.damping + mech.friction / (qd.square() + SEMI_IMPLICIT_EULER.creep**2).sqrt()
        spent = ts.inverse_dynamics(free, q, qd, (v - qd) / h) + B * v
        assert_close(spent, tau.expand_as(spent), rtol=1e-9, atol=1e-9)


def test_nonlinear_damping_is_linearized_at_the_velocity_of_the_step():
    mech, h = one_joint("revolute", inertia=0.3, damping=0.4), 0.1
    squared, cubed = 0.7, 0.2
    mech = mech.replace(higher_damping=torch.tensor([[squared, cubed]], dtype=torch.float64))
    q, qd = torch.zeros(1).double(), torch.tensor([-1.5], dtype=torch.float64)
    v = one_step(mech, q, qd, 0 * qd, h)[1]
    force = (0.4 + squared * qd.abs() + cubed * qd**2) * qd
    slope = 0.4 + 2 * squared * qd.abs() + 3 * cubed * qd**2
    assert_close(v, qd - h * force / (ts.mass_matrix(mech, q)[0] + h * slope), rtol=1e-9, atol=1e-9)


def test_losses_of_a_free_joint_act_on_its_velocity_in_the_axes_it_has_before_the_step():
    mech = lossy(["free"], [-1])
    none = torch.zeros_like(mech.damping)
    free = mech.replace(damping=none, friction=none, armature=none, has_armature=False)
    mech = mech.replace(armature=none)
    q, qd, tau = normal_state(mech, 4)
    h, R = 0.02, lambda q: ts.forward_kinematics(mech, q).rotation[..., 0, :, :]
    end, v = one_step(mech, q, qd, tau, h)
    back = R(q).mT @ R(end) @ v[..., 3:, None]  # the new linear velocity in the old axes
    v = torch.cat([v[..., :3], back[..., 0]], -1)
    turned = torch.cat([0 * qd[..., :3], torch.linalg.cross(qd[..., :3], qd[..., 3:])], -1)
    B = mech.damping + mech.friction / (qd.square() + SEMI_IMPLICIT_EULER.creep**2).sqrt()
    spent = ts.inverse_dynamics(free, q, qd, (v - qd) / h - turned) + B * v
    assert_close(spent, tau, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dt", [1e-5, 2e-3, 0.1, 10.0])
def test_losses_never_push_whatever_the_step(dt):
    """Without other forces the speed decreases and keeps its sign, over twelve decades of parameters."""
    g = torch.Generator().manual_seed(1)
    sizes = 10 ** (12 * torch.rand(4, 500, 1, generator=g, dtype=torch.float64) - 6)
    mass, damping, friction, v = sizes
    block = one_joint("prismatic", damping=1.0, friction=1.0)
    block = block.replace(
        mass=mass, damping=damping, friction=friction, gravity=torch.zeros_like(block.gravity)
    )
    qds = ts.rollout(block, ts.State(torch.zeros_like(v), v), steps=5, dt=dt).qd
    before, after = qds[:, :-1].abs(), qds[:, 1:]
    rounding = 4 * torch.finfo(v.dtype).eps * before
    assert (after.abs() <= before + rounding).all()
    assert (after * qds[:, :-1].sign() >= -rounding).all()


def test_dry_friction_holds_what_it_can_hold():
    """20 N m of friction against 2.4 N m of gravity: at most 1e-4 rad in 2 s."""
    arm = one_joint("revolute", mass=2.4 / 9.81, com=1.0, friction=20.0)
    q = torch.zeros(1, dtype=arm.dtype)
    assert ts.bias_force(arm, q, q).abs().item() == pytest.approx(2.4)
    qs, qds, *_ = ts.rollout(arm, ts.State(q, q), steps=1000)
    assert 0 < (qs[-1] - q).abs().item() < 1e-4
    creep = SEMI_IMPLICIT_EULER.creep * 2.4 / math.sqrt(20.0**2 - 2.4**2)
    assert qds[-1].abs().item() == pytest.approx(creep, rel=1e-3)


def test_a_sliding_block_stops_after_v_squared_over_two_a_and_stays():
    """Coulomb: from 3 m/s at 4 N on 2 kg it slides 2.25 m; to first order in the step."""
    block = one_joint("prismatic", mass=2.0, friction=4.0)
    q, qd = torch.zeros(1, dtype=block.dtype), torch.full((1,), 3.0, dtype=block.dtype)
    missed = []
    for dt in (2e-2, 1e-2):
        qs, qds, *_ = ts.rollout(block, ts.State(q, qd), steps=round(2.5 / dt), dt=dt)
        missed.append(abs(qs[-1].item() - 2.25))
        assert qds[-1].abs().item() < 1e-12
    assert 1.7 < missed[0] / missed[1] < 2.3


def test_a_push_above_dry_friction_breaks_loose():
    block = one_joint("prismatic", mass=2.0, friction=4.0)
    q = torch.zeros(1, dtype=block.dtype)
    qds = ts.rollout(block, ts.State(q, q), torch.full_like(q, 8.0), steps=500).qd
    assert qds[-1].item() == pytest.approx((8.0 - 4.0) / 2.0, rel=0.05)


def test_zero_losses_are_no_losses():
    bare = random_mechanism(*TREE, seed=5, passive=False)
    zeros = bare.replace(damping=torch.zeros_like(bare.damping))
    assert (bare.has_losses, zeros.has_losses, lossy().has_losses) == (False, True, True)
    q, qd, tau = normal_state(bare, 2)
    assert_close(one_step(zeros, q, qd, tau, 0.01), one_step(bare, q, qd, tau, 0.01))


def test_learned_damping_counts_as_damping():
    bare = random_mechanism(["revolute"] * 2, [-1, 0], seed=5, passive=False)
    assert not ts.Dynamics(bare).mechanism().has_losses
    layer = ts.Dynamics(bare, {"joint0.damping": ts.learn.Positive(init=50.0)})
    q, qd, tau = normal_state(bare)
    _, v = one_step(layer.mechanism(), q, qd, tau, 1e3)
    assert v.abs()[0] < 1.0  # 50 N m s at steps of 1000 s


def end_of(mech, q, steps=2):
    def final(qd, tau, damping, friction, mass):
        moved = mech.replace(damping=damping, friction=friction, mass=mass)
        qs, qds, *_ = ts.rollout(moved, ts.State(q, qd), tau[..., None, :], steps=steps, dt=0.05)
        return torch.cat([qs[..., -1, :], qds[..., -1, :]], -1)

    return final


def test_gradients_through_losses_pass_gradcheck_in_reverse_and_forward_mode():
    mech = lossy(["free", "revolute"], [-1, 0])
    q, qd, tau = normal_state(mech)
    inputs = (qd, tau, mech.damping, mech.friction, mech.mass)
    leaves = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(end_of(mech, q), leaves, check_forward_ad=True, fast_mode=True)


def test_gradients_at_rest_are_finite():
    """The regularized dry friction is smooth at zero velocity."""
    mech = lossy(["revolute", "prismatic"], [-1, 0])
    q, _, tau = normal_state(mech)
    inputs = (torch.zeros_like(tau), tau, mech.damping, mech.friction, mech.mass)
    jacobians = torch.func.jacrev(end_of(mech, q), argnums=(0, 1, 2, 3, 4))(*inputs)
    forward = torch.func.jacfwd(end_of(mech, q), argnums=(0, 1, 2, 3, 4))(*inputs)
    assert_close(forward, jacobians)
    assert all(J.isfinite().all() for J in jacobians)


@pytest.mark.nightly
def test_steps_vmap_and_compile_in_one_graph():
    mech = lossy(["free"], [-1])
    q, qd, tau = normal_state(mech, 3)
    final = end_of(mech, q[0], steps=1)
    more = (mech.damping, mech.friction, mech.mass)
    expected = torch.stack([final(qd[k], tau[k], *more) for k in range(3)])
    assert_close(torch.vmap(lambda qd, tau: final(qd, tau, *more))(qd, tau), expected)
    compiled = torch.compile(final, fullgraph=True, backend="aot_eager")
    assert_close(compiled(qd[0], tau[0], *more), expected[0])


def test_the_fused_step_is_the_same_with_steps_that_differ():
    mech = lossy(["free", "revolute"], [-1, 0])
    q, qd, tau = normal_state(mech, 3)
    dt = torch.tensor([1e-3, 0.02, 1.0], dtype=q.dtype)
    mine = ts.fuse(mech, inputs=("damping",)).advance_tensors(q, qd, tau, dt)
    theirs = [one_step(mech, q[k], qd[k], tau[k], dt[k].item()) for k in range(3)]
    assert_close(mine, tuple(map(torch.stack, zip(*theirs, strict=True))))
