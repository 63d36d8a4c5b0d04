"""Rollouts of constrained mechanisms against dense KKT steps, as kernels, and along the constraints."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.errors import TorchskoError
from torchsko.integrators.step import Dynamics, RowDamping

DT, RATE = 2e-3, 20.0
KINDS = ["revolute", "spherical", "revolute", "revolute"]
ARM = random_mechanism(parents=[-1, 0, 1, 2], kinds=KINDS)
ARM = ARM.replace(friction=0 * ARM.friction)
TIP = ts.Frame("body3", position=torch.tensor([0.3, 0.2, 0.1]).double())
FREE = ts.constrain(ARM, [ts.HeldFrame(TIP)])


def state() -> tuple[Tensor, Tensor, Tensor]:
    """Two states whose velocities keep the tip, and the positions of the tip."""
    q, qd = ARM.random_state(2, generator=torch.Generator().manual_seed(1))
    qd = (FREE.nullspace(q) @ qd[..., None])[..., 0]
    return q, qd, ts.frame_pose(ARM, q, TIP).position


def held(place: Tensor) -> ts.constraints.HeldMechanism:
    return ts.constrain(ARM, [ts.HeldFrame(TIP, placement=place)], stabilize=RATE)


def test_steps_solve_the_kkt_system_with_implicit_damping_and_external_forces() -> None:
    q, qd, place = state()
    f_ext = torch.randn(4, 6, generator=torch.Generator().manual_seed(2), dtype=q.dtype)
    qs, qds, *_ = ts.rollout(held(place), ts.State(q, qd), None, steps=4, dt=DT, f_ext=f_ext)
    for _ in range(4):
        G = ts.frame_jacobian(ARM, q, TIP, reference="mixed")[..., 3:, :]
        drift = ts.frame_acceleration(ARM, q, qd, 0 * qd, TIP, reference="mixed", classical=True)[
            ..., 3:
        ]
        off = ts.frame_pose(ARM, q, TIP).position - place
        gamma = drift + 2 * RATE * (G @ qd[..., None])[..., 0] + RATE**2 * off
        M = ts.mass_matrix(ARM, q) + DT * torch.diag_embed(ARM.damping)
        bias = ts.inverse_dynamics(ARM, q, qd, 0 * qd, f_ext)
        system = torch.zeros(2, 9, 9, dtype=q.dtype)
        system[:, :6, :6], system[:, :6, 6:], system[:, 6:, :6] = M, -G.mT, G
        qdd = torch.linalg.solve(system, -torch.cat([bias, gamma], -1))[..., :6]
        qd = qd + DT * qdd
        q = ts.integrate(ARM, q, DT * qd)
    torch.testing.assert_close(qs[:, -1], q, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(qds[:, -1], qd, rtol=1e-11, atol=1e-11)


def kkt(damping: Tensor, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor) -> Tensor:
    """Accelerations and forces of the held tip, with a matrix added to the mass matrix; stacked."""
    G = ts.frame_jacobian(ARM, q, TIP, reference="mixed")[..., 3:, :]
    drift = ts.frame_acceleration(ARM, q, qd, 0 * qd, TIP, reference="mixed", classical=True)[
        ..., 3:
    ]
    M, bias = ts.mass_matrix(ARM, q) + damping, ts.inverse_dynamics(ARM, q, qd, 0 * qd, f_ext)
    system = torch.zeros(2, 9, 9, dtype=q.dtype)
    system[:, :6, :6], system[:, :6, 6:], system[:, 6:, :6] = M, -G.mT, G
    return torch.linalg.solve(system, torch.cat([tau - bias, -drift], -1))


def test_external_forces_act_on_accelerations_multipliers_and_their_derivatives() -> None:
    q, qd, _ = state()
    f_ext = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(2), dtype=q.dtype)
    tau = torch.linspace(-2, 2, 12, dtype=q.dtype).reshape(2, 6)
    expected = kkt(0 * ts.mass_matrix(ARM, q), q, qd, tau, f_ext)
    fused = ts.fuse(FREE)
    for robot in (FREE, fused):
        found = torch.cat(robot.forward_dynamics(q, qd, tau, f_ext=f_ext), -1)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        f = robot.constraint_forces(q, qd, found[..., :6], tau, f_ext=f_ext)
        torch.testing.assert_close(f, expected[..., 6:], rtol=1e-10, atol=1e-10)
    slopes = FREE.forward_dynamics_derivatives(q, qd, tau, f_ext=f_ext)

    def dynamics(d: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
        found = FREE.forward_dynamics(ts.integrate(ARM, q, d), qd, tau, f_ext=f_ext)
        return torch.cat(found, -1).sum(0)

    exact = torch.func.jacrev(dynamics, (0, 1, 2))(torch.zeros_like(qd), qd, tau)
    for k, x in enumerate(exact):  # d/dq, d/dqd, d/dtau of [qdd, f]
        both = torch.cat([slopes[k], slopes[3 + k]], -2)
        torch.testing.assert_close(both, x.movedim(1, 0), rtol=1e-9, atol=1e-9)


def test_damping_of_combined_rates_is_implicit_under_constraints() -> None:
    q, qd, _ = state()
    tau, f_ext = torch.ones_like(qd), torch.zeros(4, 6, dtype=q.dtype)
    rows, d = torch.linspace(-1, 1, 12, dtype=q.dtype).reshape(2, 6), torch.tensor([1e3, 0.0])
    d = d.to(q)
    dynamics = replace(
        Dynamics.constant(tau), constraints=FREE.constraints, row_damping=RowDamping(rows, d, DT)
    )
    D = rows.mT @ torch.diag(d) @ rows
    expected = kkt(DT * D, q, qd, tau - qd @ D, f_ext)[..., :6]
    torch.testing.assert_close(dynamics(ARM, 0.0, q, qd), expected, rtol=1e-10, atol=1e-10)


def test_the_tip_leaves_its_place_with_the_fourth_power_of_the_step() -> None:
    q, qd, place = state()
    errors = []
    for steps in (10, 20):
        qs = ts.rollout(
            FREE, ts.State(q, qd), lambda t, q, qd: -qd, steps=steps, dt=0.2 / steps, method="rk4"
        ).q
        errors.append(float((ts.frame_pose(ARM, qs[:, -1], TIP).position - place).norm()))
    assert errors[0] > 12 * errors[1] > 0


def test_a_kernel_of_all_steps_has_the_values_and_gradients_of_the_eager_rollout() -> None:
    arm = random_mechanism(parents=[-1, 0, 1], kinds=["revolute", "prismatic", "revolute"])
    q, qd = arm.random_state(2, generator=torch.Generator().manual_seed(1))
    place = ts.frame_pose(arm, q[0], "body2").position.requires_grad_()
    robot = ts.constrain(arm, [ts.HeldFrame("body2", "planar", place)], stabilize=RATE)
    series, found = {"push": qd[:, None] * torch.arange(3)[:, None]}, []

    def law(t: float, q: Tensor, qd: Tensor, *, push: Tensor) -> Tensor:
        return push - 2.0 * qd

    for mech in (robot, ts.fuse(robot)):
        qs, qds, *_ = ts.rollout(
            mech, ts.State(q[:1].expand(2, -1), 0 * qd), law, steps=3, dt=DT, series=series
        )
        (slope,) = torch.autograd.grad(qs.square().sum() + qds.sum(), place)
        found.append((qs, qds, slope))
    for eager, kernel in zip(*found, strict=True):
        torch.testing.assert_close(kernel, eager, rtol=1e-11, atol=1e-11)


def test_steps_that_change_velocities_after_their_acceleration_are_refused() -> None:
    q, qd, _ = state()
    for method in ("implicit", ts.ContactStep()):
        with pytest.raises(TorchskoError, match="constrained mechanism"):
            ts.rollout(FREE, ts.State(q, qd), None, steps=2, dt=DT, method=method)  # type: ignore[call-overload]
