"""Rollout kernels of a fused mechanism agree with eager rollouts, with gradients."""

import gc
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck

import torchsko as ts
from tests.strategies import random_mechanism

STEPS = 6


@pytest.fixture(scope="module")
def robot():
    """A free body with a hinged arm, springs, damping, friction and armature."""
    return random_mechanism(["free", "revolute"], [-1, 0], seed=3, armature=True)


@pytest.fixture(scope="module")
def fast(robot):
    return ts.fuse(robot, inputs=("mass", "damping"))


def states(robot, *batch):
    g = torch.Generator().manual_seed(1)
    q, qd = robot.random_state(*batch, generator=g)
    tau = torch.randn((*batch, STEPS, robot.num_dof), generator=g, dtype=q.dtype)
    return q, qd, tau


def assert_close(mine, theirs, tolerance=1e-10):
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.some(1)
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_states_are_those_of_the_eager_rollout(robot, fast, batch):
    q, qd, tau = states(robot, *batch)
    assert_close(
        ts.rollout(fast, ts.State(q, qd), tau, steps=STEPS)[:2],
        ts.rollout(robot, ts.State(q, qd), tau, steps=STEPS)[:2],
    )
    held = tau[..., :1, :]
    assert_close(
        ts.rollout(fast, ts.State(q, qd), held, steps=STEPS)[:2],
        ts.rollout(robot, ts.State(q, qd), held, steps=STEPS)[:2],
    )
    assert_close(
        ts.rollout(fast, ts.State(q, qd), None, steps=STEPS)[:2],
        ts.rollout(robot, ts.State(q, qd), None, steps=STEPS)[:2],
    )


@pytest.mark.some(1)
@pytest.mark.parametrize("method", ["rk4", "newmark", "implicit"])
def test_every_method(method):
    arm = ts.load(ts.robots.panda)
    q, qd, tau = states(arm, 3)
    mine = ts.rollout(ts.fuse(arm), ts.State(q, qd), tau, steps=STEPS, dt=1e-3, method=method)[:2]
    assert_close(
        mine, ts.rollout(arm, ts.State(q, qd), tau, steps=STEPS, dt=1e-3, method=method)[:2]
    )


def test_gradients_reach_states_forces_and_parameters(robot, fast):
    q, qd, tau = (x.requires_grad_() for x in states(robot, 3))
    mass, damping = (getattr(robot, n).clone().requires_grad_() for n in ("mass", "damping"))
    leaves = [q, qd, tau, mass, damping]
    found = []
    for given in (fast, robot):
        qs, qds, *_ = ts.rollout(
            given.replace(mass=mass, damping=damping), ts.State(q, qd), tau, steps=STEPS
        )
        found.append(torch.autograd.grad((qs**2).sum() + qds.sin().sum(), leaves))
    for mine, theirs in zip(*found, strict=True):
        assert (mine - theirs).abs().max() <= 1e-9 * theirs.abs().max()


@pytest.mark.nightly
@pytest.mark.some(1)
@pytest.mark.parametrize("every", [1, 3])
def test_the_gradient_by_constant_forces_is_the_sum_of_that_by_a_series(robot, fast, every):
    q, qd, tau = states(robot, 2, 3)
    held = tau[:1, :, 0].clone().requires_grad_()  # one value for several samples

    def gradient(given, forces):
        qs, qds, *_ = ts.rollout(given, ts.State(q, qd), forces, steps=STEPS, every=every)
        return torch.autograd.grad((qs**2).sum() + qds.sin().sum(), held)[0]

    constant = gradient(fast, held[..., None, :])
    series = gradient(fast, held[..., None, :].expand(1, 3, STEPS, -1))
    torch.testing.assert_close(constant, series, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(constant, gradient(robot, held[..., None, :]), rtol=1e-9, atol=1e-11)


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [STEPS, 1], ids=["series", "constant"])
def test_forward_mode_and_differences_agree(rows):
    arm = ts.load(ts.robots.panda)
    fast = ts.fuse(arm)
    q, qd, tau = states(arm, 1)
    leaves = [x.requires_grad_() for x in (q, qd, tau[..., :rows, :].clone())]
    assert gradcheck(
        lambda q, qd, tau: ts.rollout(fast, ts.State(q, qd), tau, steps=STEPS)[:2],
        leaves,
        check_forward_ad=True,
        fast_mode=True,
    )


def test_forces_saturate(robot, fast):
    q, qd, tau = states(robot, 2)
    tau = 1e3 * tau
    limited = robot.replace(effort_limit=torch.full_like(robot.effort_limit, 5.0))
    mine = ts.rollout(ts.fuse(limited), ts.State(q, qd), tau, steps=STEPS, effort="clamp")[:2]
    assert_close(mine, ts.rollout(robot, ts.State(q, qd), tau.clamp(-5, 5), steps=STEPS)[:2])


@pytest.mark.some(2)
@pytest.mark.parametrize("every", [2, 4, 7])
def test_thinned_states_are_those_of_the_whole(robot, fast, every):
    leaves = [x.requires_grad_() for x in states(robot, 2)]
    found = []
    for given, kept in ((fast, every), (robot, every), (robot, 1)):
        qs, qds, *_ = ts.rollout(given, ts.State(*leaves[:2]), leaves[2], steps=STEPS, every=kept)
        qs, qds = (x[:, :: every // kept] for x in (qs, qds))
        loss = (qs**2).sum() + qds.sin().sum() + 0 * leaves[2].sum()
        found.append((qs, qds, *torch.autograd.grad(loss, leaves)))
    assert_close(found[0], found[2], 1e-9)
    assert_close(found[1], found[2], 1e-12)


def test_a_checkpoint_between_thinned_states(robot):
    q, qd, tau = states(robot)
    mine = ts.rollout(
        robot, ts.State(q, qd), tau.requires_grad_(), steps=STEPS, every=4, checkpoint=2
    )[:2]
    assert_close(mine, ts.rollout(robot, ts.State(q, qd), tau, steps=STEPS, every=4)[:2], 1e-14)


def test_a_kernel_keeps_what_a_checkpoint_says_between_thinned_states(robot, fast):
    """States stored for the backward pass, which recomputes the others; the result is unchanged."""
    leaves, found, kept = [x.requires_grad_() for x in states(robot, 2)], [], []

    def keep(x):
        kept[-1] = max(kept[-1], x.shape[-2] if x.ndim == 3 else 0)
        return x

    for checkpoint in (None, 2, 3):
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            tau = leaves[2][:, 0]  # not a series, which would be stored as well
            qs, qds, *_ = ts.rollout(
                fast, ts.State(*leaves[:2]), tau, steps=14, every=6, checkpoint=checkpoint, dt=1e-3
            )
        assert qs.shape[-2] == qds.shape[-2] == 3
        loss = (qs**2).sum() + qds.sin().sum()
        found.append((qs, qds, *torch.autograd.grad(loss, [*leaves[:2], tau])))
    assert kept == [3, 8, 5]
    for other in found[1:]:
        assert_close(other, found[0], 1e-11)


def test_what_is_kept_for_the_backward_pass_are_inputs_and_states(robot, fast):
    q, qd, tau = (x.requires_grad_() for x in states(robot, 4))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        qs, qds, *_ = ts.rollout(fast, ts.State(q, qd), tau, steps=STEPS)
    own = {x.untyped_storage().data_ptr() for x in (q, qd, tau, qs, qds, robot.mass, robot.damping)}
    assert len(kept) >= 5
    assert all(x.untyped_storage().data_ptr() in own or x.numel() == 1 for x in kept)


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_memory_does_not_grow_with_the_number_of_rollouts_of_different_lengths():
    """Of 5000 rollouts, with gradients, the second half adds less than 4 MiB: 1 KiB each."""
    arm = random_mechanism(["prismatic", "revolute"], [-1, 0], seed=4, passive=False)
    fast = ts.fuse(arm)
    gain = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    q, qd = arm.random_state(generator=torch.Generator().manual_seed(0))

    def law(t, q, qd):
        return -gain * qd

    resident = []
    for k in range(5000):
        steps = 1 + k
        qs = ts.rollout(fast, ts.State(q, qd), law, steps=steps, dt=1e-5, fused=True, every=steps).q
        qs.sum().backward()
        if k in (2499, 4999):
            gc.collect()
            resident.append(4096 * int(Path("/proc/self/statm").read_text().split()[1]))
    assert resident[1] - resident[0] < 4 << 20
