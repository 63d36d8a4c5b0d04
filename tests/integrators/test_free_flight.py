"""A free body moves in a straight line at constant speed, whatever its rotation (Newton's first law)."""

import torch
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import random_mechanism

DT = 2e-3


def ball(com=(0.0, 0.0, 0.0)):
    inertia = (0.1 * torch.eye(3)).tolist()
    builder = ts.MechanismBuilder().link("ball", mass=1.5, com=com, inertia=inertia)
    mech = builder.joint("root", "free", child="ball").build()
    return mech.replace(gravity=torch.zeros_like(mech.gravity))


def thrown():
    """3 m/s, spinning at 10 rad/s about three axes."""
    spins = torch.tensor([[0, 0, 10.0], [6, 0, 8], [5, -5, 50**0.5]], dtype=torch.float64)
    along = torch.tensor([3.0, 0, 0], dtype=torch.float64).expand(3, 3)
    return torch.cat([spins, along], -1)


def test_a_spinning_body_keeps_its_speed_and_energy_for_ten_seconds():
    mech, qd = ball(), thrown()
    step = ts.fuse(mech).advance_tensors
    q, tau = mech.neutral().expand(3, -1), torch.zeros_like(qd)
    speeds, spins = [], []
    for _ in range(5000):
        q, qd = step(q, qd, tau, DT)
        speeds.append(qd[:, 3:].norm(dim=-1))
        spins.append(qd[:, :3].norm(dim=-1))
    speeds, spins = torch.stack(speeds), torch.stack(spins)
    energy = (1.5 * speeds.square() + 0.1 * spins.square()) / 2
    start = (1.5 * 9 + 0.1 * 100) / 2
    assert (speeds - 3).abs().max() < 1e-12
    assert (energy - start).abs().max() < 1e-12 * start
    straight = torch.tensor([30.0, 0, 0], dtype=q.dtype).expand(3, 3)
    assert_close(q[:, :3], straight, rtol=0, atol=1e-11)


def test_the_eager_step_flies_like_the_fused_one():
    mech, qd = ball(), thrown()
    q = mech.neutral().expand(3, -1)
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=50, dt=0.1)  # a radian a step
    assert (qds[..., 3:].norm(dim=-1) - 3).abs().max() < 1e-13
    assert (qs[:, -1, 0] - 15).abs().max() < 1e-12
    step = ts.fuse(mech).advance_tensors
    for _ in range(50):
        q, qd = step(q, qd, torch.zeros_like(qd), 0.1)
    assert_close((q, qd), (qs[:, -1], qds[:, -1]))


def lost_momentum(mech, qs, qds):
    """Relative change of the linear momentum over a rollout of a floating robot."""
    # The first rows of M qd are the momentum about the base's origin, in the base's axes.
    p = (ts.mass_matrix(mech, qs[[0, -1]]) @ qds[[0, -1], :, None])[:, 3:6]
    p = ts.forward_kinematics(mech, qs[[0, -1]]).rotation[:, 0] @ p
    return (p[1] - p[0]).norm() / p[0].norm()


def test_a_floating_robot_keeps_its_linear_momentum_to_first_order():
    mech = random_mechanism(["free", "revolute", "revolute"], [-1, 0, 1], seed=5, passive=False)
    mech = mech.replace(gravity=torch.zeros_like(mech.gravity))
    g = torch.Generator().manual_seed(0)
    q, _ = mech.random_state(generator=g)
    qd = 3 * torch.randn(mech.num_dof, generator=g, dtype=q.dtype)
    lost = []
    for steps in (100, 200):
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=steps, dt=0.2 / steps)
        lost.append(lost_momentum(mech, qs, qds))
    assert lost[1] < 0.6 * lost[0] < 0.05
