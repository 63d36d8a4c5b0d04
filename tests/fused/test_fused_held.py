"""Kernels of constrained dynamics equal the eager functions, with masks, placements and gradients."""

from __future__ import annotations

import pytest
import torch

import torchsko as ts
from tests.strategies import random_mechanism


def robot() -> tuple[ts.Mechanism, torch.Tensor, torch.Tensor, torch.Tensor]:
    mech = random_mechanism(
        parents=[-1, 0, 1], kinds=["prismatic", "revolute", "spherical"], passive=False
    )
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(3, generator=g)
    return mech, q, qd, torch.randn(3, mech.num_dof, generator=g, dtype=q.dtype)


def equal(found, expected) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


ACTIVE = torch.tensor([[1, 1], [0, 1], [0, 0]], dtype=torch.bool)


def test_kernels_of_a_constrained_mechanism_equal_the_eager_functions() -> None:
    mech, q, qd, tau = robot()
    holds = [ts.HeldFrame("body1", "planar"), ts.HeldFrame(ts.Frame("body2", position=q[0, :3]))]
    held = ts.constrain(mech, holds, stabilize=5.0)
    fast = ts.constrain(ts.fuse(mech), holds, stabilize=5.0)
    expected = held.forward_dynamics(q, qd, tau, ACTIVE)
    equal(fast.forward_dynamics(q, qd, tau, ACTIVE), expected)


@pytest.mark.nightly
def test_kernels_of_all_methods_have_gradients_to_placements() -> None:
    mech, q, qd, tau = robot()
    place = ts.frame_pose(mech, q[0], "body1").position.requires_grad_()
    holds = [ts.HeldFrame("body1", "planar", place), ts.HeldFrame("body2", "planar")]
    held = ts.constrain(mech, holds)
    fast = ts.fuse(held)
    equal(fast.impulse(q, qd, 0.3), held.impulse(q, qd, 0.3))
    equal((fast.project(q),), (held.project(q),))
    equal((fast.nullspace(q, ACTIVE),), (held.nullspace(q, ACTIVE),))
    # Redundant rows of other velocities contradict one another.
    qd = (held.nullspace(q).detach() @ qd[..., None])[..., 0]
    expected = held.forward_dynamics_derivatives(q, qd, tau)
    equal(fast.forward_dynamics_derivatives(q, qd, tau), expected)
    tau.requires_grad_()
    sums = (h.forward_dynamics(q, qd, tau)[1].sum() for h in (held, fast))
    equal(*(torch.autograd.grad(x, (tau, place)) for x in sums))


@pytest.mark.nightly
def test_one_kernel_holds_redundant_corners() -> None:
    mech = random_mechanism(parents=[-1, 0], kinds=["free", "revolute"])
    corners = [
        ts.Frame("body1", position=torch.tensor(x).double())
        for x in ([0.1, 0, 0], [0, 0.2, 0], [0, 0, 0.3])
    ]
    held = ts.constrain(mech, [ts.HeldFrame(x) for x in corners])
    assert held.constraints.redundant
    q, _ = mech.random_state(3)
    qd, tau = torch.zeros(3, mech.num_dof).double(), torch.ones(3, mech.num_dof).double()
    for x, y in zip(
        ts.fuse(held).forward_dynamics(q, qd, tau), held.forward_dynamics(q, qd, tau), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)


@pytest.mark.nightly
def test_repeated_calls_without_a_mask_are_direct() -> None:
    mech, q, qd, tau = robot()
    held = ts.constrain(mech, [ts.HeldFrame("body1", "planar"), ts.HeldFrame("body2")])
    fast = ts.fuse(held)
    for state in ((q, qd, tau), (q[0], qd[0], tau[0]), (q[1], qd[1], tau[1])):
        equal(fast.forward_dynamics(*state), held.forward_dynamics(*state))
        assert ("forward_dynamics", 3) in fast.plain
    tau.requires_grad_()
    sums = (h.forward_dynamics(q, qd, tau)[0].sum() for h in (held, fast))
    equal(*(torch.autograd.grad(x, tau) for x in sums))
