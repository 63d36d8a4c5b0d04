"""The method "implicit": Coriolis forces and losses never add energy, at any step and speed."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

import torchsko as ts
from tests.integrators.test_free_flight import ball, lost_momentum, thrown
from tests.newton import potential_energy
from tests.strategies import (
    any_mechanisms,
    ill_scaled_mechanism,
    mechanisms,
    random_mechanism,
    seeds,
)
from torchsko.integrators.integrators import IMPLICIT_EULER


def without_potential(mech):
    none = torch.zeros_like(mech.stiffness)
    return mech.replace(gravity=torch.zeros_like(mech.gravity), stiffness=none)


def kinetic(mech, q, qd):
    return (qd * (ts.mass_matrix(mech, q) @ qd[..., None])[..., 0]).sum(-1) / 2


def state(mech, *batch, speed=1.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    q, _ = mech.random_state(*batch, generator=g)
    return q, speed * torch.randn(*batch, mech.num_dof, generator=g, dtype=q.dtype)


def rollout(mech, q, qd, *control, **options):
    return ts.rollout(mech, ts.State(q, qd), *control, method="implicit", **options)[:2]


robots = any_mechanisms()


@given(robots, st.floats(-1, 3), st.floats(-4, 0), seeds)
def test_kinetic_energy_never_grows_whatever_the_step_and_the_speed(mech, speed, dt, seed):
    mech = without_potential(mech)
    q, qd = state(mech, 3, speed=10**speed, seed=seed)
    qs, qds = rollout(mech, q, qd, steps=4, dt=10**dt, nonfinite="raise")
    T = kinetic(mech, qs, qds)
    assert (T[..., 1:] <= T[..., :-1] + 1e-11 * T[..., :1]).all()


def test_kinetic_energy_never_grows_with_links_of_ratio_a_million():
    mech = without_potential(ill_scaled_mechanism(seed=0))
    none = torch.zeros_like(mech.damping)
    mech = mech.replace(damping=none, friction=none)
    q, qd = state(mech, 16, speed=5.0)
    gained = []
    for method in ("semi_implicit_euler", "implicit"):
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=50, method=method, nonfinite="ignore")
        T = kinetic(mech, qs[:, -1], qds[:, -1])
        gained.append(~(T <= kinetic(mech, q, qd)))
    assert gained[0].any() and not gained[1].any()


@given(mechanisms(kinds=("revolute", "prismatic", "universal", "planar")), seeds)
def test_energy_grows_by_no_more_than_the_curvature_of_its_potential(mech, seed):
    """The energy gain of a potential U is bounded by U(q') - U(q) - (q' - q) . dU/dq."""
    mech = mech.replace(stiffness=torch.zeros_like(mech.stiffness))
    q, qd = state(mech, 3, speed=3.0, seed=seed)
    qs, qds = rollout(mech, q, qd, steps=1, dt=0.05)
    before, after = (torch.stack(
        [kinetic(mech, x, v) + potential_energy(mech, x), potential_energy(mech, x)]
    ) for x, v in ((q, qd), (qs[:, 1], qds[:, 1])))  # fmt: skip
    slope = ts.bias_force(mech, q, torch.zeros_like(qd))
    gained, curved = after - before
    curved = curved - ((qs[:, 1] - q) * slope).sum(-1)
    assert (gained <= curved + 1e-11 * before.abs().sum(0)).all()


def test_without_coriolis_forces_the_step_is_the_default_one():
    crane = random_mechanism(["prismatic", "translation"], [-1, 0], seed=2)
    for mech in (random_mechanism(["revolute"], [-1], seed=3), crane):
        q, qd = state(mech, 4)
        given = (mech, q, qd, lambda t, q, qd: torch.cos(q))
        assert_close(
            rollout(*given, steps=50, dt=0.02),
            ts.rollout(mech, ts.State(q, qd), given[-1], steps=50, dt=0.02)[:2],
            rtol=1e-12, atol=1e-12,
        )  # fmt: skip


def test_a_body_without_forces_moves_uniformly():
    mech, qd = ball(), thrown()
    q = mech.neutral().expand(3, -1)
    qs, qds = rollout(mech, q, qd, steps=50, dt=0.1)  # a radian a step
    assert (qds[..., 3:].norm(dim=-1) - 3).abs().max() < 1e-13
    assert (qs[:, -1, 0] - 15).abs().max() < 1e-12
    assert (kinetic(mech, qs, qds) - kinetic(mech, q, qd)[:, None]).abs().max() < 1e-12


def test_a_floating_robot_keeps_its_linear_momentum_to_first_order():
    mech = random_mechanism(["free", "revolute", "revolute"], [-1, 0, 1], seed=5, passive=False)
    mech = without_potential(mech)
    q, qd = state(mech, speed=3.0)
    lost = []
    for steps in (40, 80):
        qs, qds = rollout(mech, q, qd, steps=steps, dt=0.1 / steps)
        lost.append(lost_momentum(mech, qs, qds))
    assert lost[1] < 0.6 * lost[0] < 0.05


def test_losses_act_on_the_velocity_that_moves_the_pose():
    """The velocity u between poses satisfies M (u - qd) + h (B u + gravity) = h tau."""
    mech = random_mechanism(["revolute", "prismatic", "spherical"], [-1, 0, 0], 5, armature=True)
    mech = mech.replace(stiffness=torch.zeros_like(mech.stiffness))
    q, qd = state(mech, 4)
    _, tau = state(mech, 4, seed=1)
    for h in (1e-4, 0.02, 0.3):
        qs, _ = rollout(mech, q, qd, tau[:, None], steps=1, dt=h)
        u = ts.difference(mech, q, qs[:, 1]) / h
        B = mech.damping + mech.friction / (qd.square() + IMPLICIT_EULER.creep**2).sqrt()
        gravity = ts.bias_force(mech, q, torch.zeros_like(qd))
        pushed = ts.mass_matrix(mech, q) @ (u - qd)[..., None]
        assert_close(pushed[..., 0] + h * (B * u + gravity), h * tau, rtol=0, atol=1e-10)


@pytest.mark.nightly
def test_compiled_steps_are_the_eager_ones():
    mech = random_mechanism(["free"], [-1], seed=6)
    q, qd = state(mech, 2)

    def end(q, qd):
        qs, qds = rollout(mech, q, qd, steps=1, dt=0.02)
        return qs[:, -1], qds[:, -1]

    torch._dynamo.reset()
    compiled = torch.compile(end, fullgraph=True, backend="aot_eager")
    assert_close(compiled(q, qd), end(q, qd))
    torch._dynamo.reset()


def test_a_fused_step_of_joints_of_several_kinds_is_the_eager_one():
    mech = random_mechanism(["free", "universal", "revolute"], [-1, 0, 0], seed=3)
    q, qd = state(mech, 3)
    tau = torch.ones_like(qd)
    qs, qds = rollout(mech, q, qd, tau[:, None], steps=1, dt=0.02)
    fused = ts.fuse(mech).advance_tensors(q, qd, tau, 0.02, method="implicit")
    assert_close(fused, (qs[:, 1], qds[:, 1]), rtol=1e-12, atol=1e-12)
