"""A new user's first hour with the library, as one function of a robot file; a script as well.

    python tests/first_hour.py robot.urdf folder

Load, look, simulate, differentiate, fuse, learn, save and load again. Every step checks what it promises.
"""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import torch

import torchsko as ts


def first_hour(robot: str | Path, folder: Path) -> None:
    """All of it; files are written to the folder."""
    mech = ts.load(robot)
    assert mech.name in repr(mech) and len(mech.joint_names) == mech.num_bodies
    assert all(str(entry) for entry in mech.unused)
    g = torch.Generator().manual_seed(0)
    q, qd = (x.to(mech.dtype) for x in mech.random_state(8, generator=g))
    simulate(mech, q, qd)
    differentiate(mech, q, qd)
    fuse(mech, q, qd)
    learn(mech, q, qd, folder)
    kept = pickle.loads(pickle.dumps(mech))
    assert torch.equal(ts.mass_matrix(kept, q), ts.mass_matrix(mech, q))


def simulate(mech: ts.Mechanism, q: torch.Tensor, qd: torch.Tensor) -> None:
    """Half a second under gravity compensation and damping: the arms come to rest, nearly."""

    def control(t, q, qd):
        hold = ts.bias_force(mech, q, torch.zeros_like(qd))
        return hold - 4.0 * (ts.mass_matrix(mech, q) @ qd[..., None])[..., 0]

    with torch.no_grad():
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), control, steps=100, dt=5e-3)
    assert qs.shape == (8, 101, mech.num_q) and bool(qs.isfinite().all())

    def kinetic(q, qd):
        return (qd * (ts.mass_matrix(mech, q) @ qd[..., None])[..., 0]).sum(-1) / 2

    start, end = kinetic(qs[:, 0], qds[:, 0]), kinetic(qs[:, -1], qds[:, -1])
    assert bool((end < 0.2 * start).all())


def differentiate(mech: ts.Mechanism, q: torch.Tensor, qd: torch.Tensor) -> None:
    """Gradients of where the last link goes, to torques and masses, against finite differences."""
    last = [mech.body_names[-1]]

    def reached(tau, mass):
        qs = ts.rollout(mech.replace(mass=mass), ts.State(q, qd), tau, steps=20, dt=5e-3).q
        return ts.frame_pose(mech, qs[:, -1], last).position.square().sum()

    point = torch.zeros_like(qd), mech.mass
    along = torch.cos(3.0 * qd), 0.1 * mech.mass
    leaves = [x.clone().requires_grad_() for x in point]
    gradients = torch.autograd.grad(reached(*leaves), leaves)
    slope = sum((a * b).sum() for a, b in zip(gradients, along, strict=True))
    pairs = [*zip(point, along, strict=True)]
    # Dry friction bends within a creep speed of 1e-4, so steps are small, and extrapolated (Richardson).
    with torch.no_grad():
        coarse, fine = (
            (reached(*(x + h * d for x, d in pairs)) - reached(*(x - h * d for x, d in pairs)))
            / (2 * h)
            for h in (1e-6, 5e-7)
        )
    torch.testing.assert_close(slope, (4 * fine - coarse) / 3, rtol=1e-6, atol=1e-8)


def fuse(mech: ts.Mechanism, q: torch.Tensor, qd: torch.Tensor) -> None:
    """The same accelerations and gradients from one kernel."""
    fast, tau = ts.fuse(mech), torch.sin(qd)
    found = []
    for dynamics in (fast.forward_dynamics, lambda *x: ts.forward_dynamics(mech, *x)):
        leaves = [x.clone().requires_grad_() for x in (q, qd, tau)]
        qdd = dynamics(*leaves)
        found.append((qdd, *torch.autograd.grad(qdd.tanh().sum(), leaves)))
    for mine, theirs in zip(*found, strict=True):
        scale = float(theirs.detach().abs().max())
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-9 * max(scale, 1.0))


def learn(mech: ts.Mechanism, q: torch.Tensor, qd: torch.Tensor, folder: Path) -> None:
    """A layer learns the last link's inertia from torques; its weights go to disk and back."""
    body = mech.body_names[-1]
    mass = torch.cat([mech.mass[:-1], 1.5 * mech.mass[-1:]])
    qdd = torch.cos(2.0 * qd)
    wanted = ts.inverse_dynamics(mech.replace(mass=mass), q, qd, qdd)
    layer = ts.Dynamics(mech, learn={body: ts.learn.InertiaLogCholesky()})
    fresh = copy.deepcopy(layer)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (layer.inverse_dynamics(q, qd, qdd) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    torch.save(layer.state_dict(), folder / "layer.pt")
    fresh.load_state_dict(torch.load(folder / "layer.pt", weights_only=True))
    assert torch.equal(fresh.inverse_dynamics(q, qd, qdd), layer.inverse_dynamics(q, qd, qdd))


if __name__ == "__main__":
    robot = getattr(ts.robots, sys.argv[1], sys.argv[1])
    first_hour(robot, Path(sys.argv[2]))
    print("a good first hour")
