"""Held frames: constrained dynamics against the dense KKT system, differences and laws of impact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradgradcheck

import torchsko as ts
from tests import linkages
from tests.strategies import random_mechanism
from torchsko.errors import MechanismError, ShapeError

DOG = ts.load(ts.robots.quadruped, floating_base=True)
FEET = [name for name in DOG.frame_names if name.endswith("foot")]
MAN = ts.load(ts.robots.humanoid, floating_base=True)
SOLES = [name for name in MAN.frame_names if name.endswith("foot")]
CORNERS = [
    ts.Frame(sole, position=torch.tensor([x, y, -0.03]).double())
    for sole in SOLES
    for x in (-0.05, 0.15)
    for y in (-0.04, 0.04)
]


def state(mech: ts.Mechanism, *batch: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, qd = mech.random_state(*batch, generator=g)
    return q, qd / 3, 10 * torch.randn(*batch, mech.num_dof, generator=g, dtype=q.dtype)


def dense(
    mech: ts.Mechanism, holds: list[ts.HeldFrame], q: Tensor, qd: Tensor, tau: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Accelerations and forces of least norm from the dense KKT system, and its rows."""
    rows, bias = [], []
    at_rest = torch.zeros_like(qd)
    for hold in holds:
        chosen = {"point": slice(3, 6), "weld": slice(0, 6), "planar": slice(3, 5)}[hold.rows]
        rows.append(ts.frame_jacobian(mech, q, hold.frame, reference="mixed")[..., chosen, :])
        drift = ts.frame_acceleration(
            mech, q, qd, at_rest, hold.frame, reference="mixed", classical=True
        )
        bias.append(drift[..., chosen])
    G, gamma = torch.cat(rows, -2), torch.cat(bias, -1)
    M, C = ts.mass_matrix(mech, q), ts.bias_force(mech, q, qd)
    Minv = torch.linalg.inv(M)
    free = (Minv @ (tau - C)[..., None])[..., 0]
    W = G @ Minv @ G.mT
    error = (G @ free[..., None])[..., 0] + gamma
    f = -(torch.linalg.pinv(W, rtol=1e-10, hermitian=True) @ error[..., None])[..., 0]
    return free + (Minv @ G.mT @ f[..., None])[..., 0], f, G


CASES = {
    "feet": (DOG, [ts.HeldFrame(foot) for foot in FEET]),
    "two welded soles": (MAN, [ts.HeldFrame(sole, rows="weld") for sole in SOLES]),
    "eight corners": (MAN, [ts.HeldFrame(corner) for corner in CORNERS]),
    "mixed rows": (DOG, [ts.HeldFrame(FEET[0], rows="weld"), ts.HeldFrame(FEET[1], rows="planar")]),
}


@pytest.mark.parametrize("name", CASES)
def test_dynamics_solve_the_kkt_system(name: str) -> None:
    mech, holds = CASES[name]
    held = ts.constrain(mech, holds)
    q, qd, tau = state(mech, 3)
    qdd, forces = held.forward_dynamics(q, qd, tau)
    expected, f, G = dense(mech, holds, q, qd, tau)
    scale = expected.abs().amax()
    assert (qdd - expected).abs().amax() < 1e-11 * scale
    assert (forces - f).abs().amax() < 1e-8 * f.abs().amax()
    assert ((G.mT @ (forces - f)[..., None]).abs().amax()) < 1e-10 * f.abs().amax()
    found = held.constraint_forces(q, qd, qdd, tau)
    assert (found - f).abs().amax() < 1e-8 * f.abs().amax()
    assert held.constraints.redundant == (name == "eight corners")


def test_masks_switch_constraints_for_each_sample() -> None:
    held = ts.constrain(DOG, [ts.HeldFrame(foot) for foot in FEET], stabilize=10.0)
    q, qd, tau = state(DOG, 3)
    active = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    qdd, forces = held.forward_dynamics(q, qd, tau, active)
    for k, chosen in enumerate(active):
        feet = [foot for foot, on in zip(FEET, chosen, strict=True) if on]
        if not feet:
            assert torch.allclose(qdd[k], ts.forward_dynamics(DOG, q[k], qd[k], tau[k]), rtol=1e-11)
        else:
            alone = ts.constrain(DOG, [ts.HeldFrame(foot) for foot in feet], stabilize=10.0)
            expected, f = alone.forward_dynamics(q[k], qd[k], tau[k])
            torch.testing.assert_close(qdd[k], expected, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(forces[k].unflatten(0, (4, 3))[chosen].flatten(), f)
        assert not forces[k].unflatten(0, (4, 3))[~chosen].any()


def differences(fn, mech: ts.Mechanism, q: Tensor, qd: Tensor, tau: Tensor) -> list[list[Tensor]]:
    """Central differences of qdd and forces along tangent steps of q, along qd and along tau."""
    h, found = 1e-5, []
    unit = torch.eye(mech.num_dof, dtype=q.dtype)[:, None]
    for step in (
        lambda s: fn(ts.integrate(mech, q, s), qd, tau),
        lambda s: fn(q, qd + s, tau),
        lambda s: fn(q, qd, tau + s),
    ):
        ahead, behind = step(h * unit), step(-h * unit)
        found.append(
            [((a - b) / (2 * h)).movedim(0, -1) for a, b in zip(ahead, behind, strict=True)]
        )
    return found


@pytest.mark.parametrize("name", ["feet", "eight corners", "anchored weld", "anchored plane"])
def test_derivatives_are_those_of_differences(name: str) -> None:
    if name in CASES:
        mech, holds = CASES[name]
    else:
        mech = random_mechanism(
            parents=[-1, 0, 1, 1], kinds=["free", "spherical", "revolute", "universal"]
        )
        rows = name.removeprefix("anchored ").replace("plane", "planar")
        pose = ts.frame_pose(mech, state(mech, seed=3)[0], "body2")
        beside = ts.Frame("body3", position=torch.tensor([0.3, 0.2, 0.1]).double())
        holds = [ts.HeldFrame("body2", rows, tuple(pose)), ts.HeldFrame(beside, "planar")]
    held = ts.constrain(mech, holds, stabilize=4.0)
    q, qd, tau = state(mech, 2)
    if held.constraints.redundant:  # rows that contradict one another have no solution
        qd = (held.nullspace(q) @ qd[..., None])[..., 0]
    exact = held.forward_dynamics_derivatives(q, qd, tau)
    near = differences(held.forward_dynamics, mech, q, qd, tau)
    for k, (of_qdd, of_f) in enumerate(near):
        for x, y in ((exact[k], of_qdd), (exact[k + 3], of_f)):
            assert (x - y).abs().amax() < 3e-7 * max(1.0, float(y.abs().amax())), (name, k)


@pytest.mark.parametrize("name", ["feet", "eight corners"])
def test_derivatives_of_impacts_are_those_of_differences(name: str) -> None:
    mech, holds = CASES[name]
    held = ts.constrain(mech, holds)
    q, qd, _ = state(mech, 2)
    for e in (0.0, 0.4):
        v_q, v_qd, f_q, f_qd = held.impulse_derivatives(q, qd, restitution=e)
        near = differences(lambda q, qd, _, e=e: held.impulse(q, qd, e), mech, q, qd, qd)
        for exact, other in zip(((v_q, f_q), (v_qd, f_qd)), near, strict=False):
            for x, y in zip(exact, other, strict=True):
                assert (x - y).abs().amax() < 3e-7 * max(1.0, float(y.abs().amax())), (name, e)


def test_derivatives_of_impacts_follow_the_manifold_of_loops() -> None:
    """A platform on six legs hits a point, against differences along its six coordinates."""
    mech = linkages.stewart()
    hold = ts.HeldFrame(ts.Frame("platform", position=torch.tensor([0.1, 0.0, 0.2]).double()))
    held = ts.constrain(mech, [hold])
    q, qd, _ = linkages.state(mech)
    v_q, v_qd, f_q, f_qd = held.impulse_derivatives(q, qd)
    near = differences(lambda q, qd, _: held.impulse(q, qd), mech, q, qd, qd)
    for exact, other in zip(((v_q, f_q), (v_qd, f_qd)), near, strict=False):
        for x, y in zip(exact, other, strict=True):
            assert (x - y).abs().amax() < 1e-6 * max(1.0, float(y.abs().amax()))


def test_gradients_reach_states_masses_and_placements() -> None:
    mech = random_mechanism(
        parents=[-1, 0, 1], kinds=["free", "revolute", "universal"], passive=False
    )
    q, qd, tau = state(mech)
    pose = ts.frame_pose(mech, q, "body2")

    def motion(q, qd, tau, mass, shift):
        frame = ts.Frame("body2", position=shift)
        holds = [ts.HeldFrame(frame, "point", pose.position), ts.HeldFrame("body1", "planar")]
        return ts.constrain(mech.replace(mass=mass), holds, stabilize=3.0).forward_dynamics(
            q, qd, tau
        )

    inputs = (q, qd, tau, mech.mass, torch.tensor([0.1, 0.2, 0.3]).double())
    inputs = tuple(x.clone().requires_grad_() for x in inputs)
    g = torch.Generator().manual_seed(1)
    along = [torch.randn(x.shape, generator=g, dtype=x.dtype) for x in inputs]
    weights = [torch.randn(x.shape, generator=g, dtype=x.dtype) for x in motion(*inputs)]

    def value(t: float) -> Tensor:
        moved = [x + t * dx for x, dx in zip(inputs, along, strict=True)]
        return sum(
            ((w * y).sum() for w, y in zip(weights, motion(*moved), strict=True)), torch.zeros(())
        )

    gradients = torch.autograd.grad(value(0.0), inputs)
    slope = sum((dx * g).sum() for dx, g in zip(along, gradients, strict=True))
    h = 1e-5
    near = (value(h) - value(-h)) / (2 * h)
    assert abs(slope / near - 1) < 1e-7
    _, tangent = torch.func.jvp(motion, tuple(x.detach() for x in inputs), tuple(along))
    forward = sum((w * y).sum() for w, y in zip(weights, tangent, strict=True))
    assert abs(forward / slope - 1) < 1e-10


@pytest.mark.nightly
def test_second_derivatives_of_redundant_rows() -> None:
    mech = random_mechanism(parents=[-1, 0], kinds=["free", "revolute"], passive=False)
    q, qd, tau = state(mech)
    held = ts.constrain(mech, [ts.HeldFrame("body1", "weld"), ts.HeldFrame("body1", "point")])
    assert held.constraints.redundant
    inputs = tuple(x.clone().requires_grad_() for x in (q, qd, tau))
    assert gradgradcheck(held.forward_dynamics, inputs, fast_mode=True)


def test_an_impact_keeps_momentum_along_the_free_directions() -> None:
    held = ts.constrain(DOG, [ts.HeldFrame(foot) for foot in FEET])
    q, qd, _ = state(DOG, 2)
    J = ts.frame_jacobian(DOG, q, FEET, reference="mixed")[..., 3:, :].flatten(-3, -2)
    for e in (0.0, 0.5):
        after, impulses = held.impulse(q, qd, restitution=e)
        torch.testing.assert_close(J @ after[..., None], -e * (J @ qd[..., None]))
        gained = ts.mass_matrix(DOG, q) @ (after - qd)[..., None]
        torch.testing.assert_close(gained, J.mT @ impulses[..., None])
        lost = ts.kinetic_energy(DOG, q, qd) - ts.kinetic_energy(DOG, q, after)
        work = (impulses * (J @ qd[..., None])[..., 0]).sum(-1)
        torch.testing.assert_close(lost, -(1 - e) / 2 * work)


def test_projection_reaches_the_placements_and_the_nullspace_keeps_them() -> None:
    q, qd, _ = state(DOG, 2)
    poses = ts.frame_pose(DOG, q, FEET)
    held = ts.constrain(
        DOG, [ts.HeldFrame(f, placement=poses.position[:, k]) for k, f in enumerate(FEET)]
    )
    moved = held.project(ts.integrate(DOG, q, 0.05 * qd))
    torch.testing.assert_close(
        ts.frame_pose(DOG, moved, FEET).position, poses.position, rtol=0, atol=1e-12
    )
    N = held.nullspace(q)
    J = ts.frame_jacobian(DOG, q, FEET, reference="mixed")[..., 3:, :].flatten(-3, -2)
    assert (J @ N).abs().amax() < 1e-11
    torch.testing.assert_close(N @ N, N)
    M = ts.mass_matrix(DOG, q)
    torch.testing.assert_close(M @ N, (M @ N).mT)


@pytest.mark.nightly
def test_errors_of_the_constraint_decay_at_the_given_rate() -> None:
    q, _, tau = state(DOG)
    target = ts.frame_pose(DOG, q, FEET[0]).position + 0.01
    held = ts.constrain(DOG, [ts.HeldFrame(FEET[0], placement=target)], stabilize=20.0)
    qd, tau, dt = torch.zeros_like(tau), torch.zeros_like(tau), 1e-3
    for _ in range(100):
        qdd, _ = held.forward_dynamics(q, qd, tau)
        qd = qd + dt * qdd
        q = ts.integrate(DOG, q, dt * qd)
    left = (ts.frame_pose(DOG, q, FEET[0]).position - target) / -0.01
    expected = torch.tensor((1 + 20 * 0.1) * 2.718281828 ** (-20 * 0.1)).double().expand(3)
    torch.testing.assert_close(left, expected, atol=0.02, rtol=0)


def test_a_layer_is_read_at_each_call() -> None:
    layer = ts.Dynamics(DOG, learn={"body": ts.learn.InertiaLogCholesky()})
    held = ts.constrain(layer, [ts.HeldFrame(foot) for foot in FEET])
    q, qd, tau = state(DOG)
    held.forward_dynamics(q, qd, tau)[1].sum().backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in layer.parameters())


def test_invalid_constraints_are_refused_by_name() -> None:
    held = ts.constrain(DOG, [ts.HeldFrame(foot) for foot in FEET])
    q, qd, tau = state(DOG, 2)
    with pytest.raises(ShapeError, match=r"4 constraints"):
        held.forward_dynamics(q, qd, tau, torch.ones(2, 12))
    with pytest.raises(ShapeError, match="active has the batch dimensions"):
        held.forward_dynamics(q, qd, tau, torch.ones(3, 4))
    with pytest.raises(MechanismError, match="point"):
        ts.HeldFrame("body", rows="points")
    with pytest.raises(MechanismError, match="front_left_foot"):
        ts.constrain(DOG, [ts.HeldFrame("front_left_fot")])
    with pytest.raises(MechanismError, match="no moving frame"):
        ts.constrain(DOG, [])
    with pytest.raises(MechanismError, match="without a rotation"):
        ts.HeldFrame("body", "weld", torch.zeros(3))


def test_the_jacobian_is_that_of_the_frames_and_of_the_masked_rows() -> None:
    mech, holds = CASES["mixed rows"]
    held = ts.constrain(mech, holds)
    q, qd, tau = state(mech, 2)
    G = held.jacobian(q)
    torch.testing.assert_close(G, dense(mech, holds, q, qd, tau)[2])
    masked = held.jacobian(q, torch.tensor([0.0, 1.0]).double())
    torch.testing.assert_close(masked[:, 6:], G[:, 6:])
    assert not masked[:, :6].any()


def test_forces_of_one_frame_are_found_by_its_name() -> None:
    mech, holds = CASES["mixed rows"]
    held = ts.constrain(mech, holds)
    _, forces = held.forward_dynamics(*state(mech, 2))
    assert torch.equal(held.forces_of(FEET[0], forces), forces[:, :6])
    assert torch.equal(held.forces_of(FEET[1], forces), forces[:, 6:])
    with pytest.raises(MechanismError, match="no constraint is named 'paw'"):
        held.forces_of("paw", forces)
    with pytest.raises(ShapeError, match=r"forces has shape \[2, 7\]"):
        held.forces_of(FEET[0], forces[:, 1:])
    twice = ts.constrain(mech, [*holds, holds[0]])
    with pytest.raises(MechanismError, match="2 constraints hold"):
        twice.forces_of(FEET[0], torch.zeros(14))
