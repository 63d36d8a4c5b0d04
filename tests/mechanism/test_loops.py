"""Closed mechanisms: embedding against dense KKT systems, energy, derivatives along the manifold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.linkages import LINKAGES, four_bar, state
from tests.transforms.verbs import VERBS, sample
from torchsko.errors import MechanismError
from torchsko.mechanism.coordinates import uncoupled


def residual(mech: ts.Mechanism, q: Tensor) -> Tensor:
    assert mech.closing is not None
    return mech.closing.residual(mech, uncoupled(mech), q).abs().amax()


@pytest.mark.some(2)
@pytest.mark.parametrize("name", LINKAGES)
def test_embedding_solves_the_kkt_system(name: str) -> None:
    mech, tree = LINKAGES[name](), LINKAGES[name]("cut")
    q, qd, tau = state(mech, 2)
    assert residual(mech, q) < 1e-9
    assert mech.closing is not None
    own = mech.closing.own
    assert mech.num_dof == len(own) < tree.num_dof
    # An independent oracle: the rows of the cut mechanism, and a dense pseudo-inverse.
    held = ts.constrain(tree, tree.closures)
    rows = held.constraints.rows
    rates = ts.expand_velocity(mech, q, qd)
    at = rows.at(tree, q, rates, rows.numbers(tree))
    G, gamma = at.jacobian, at.bias
    assert gamma is not None
    assert (G @ rates[..., None]).abs().amax() < 1e-8
    M, C = ts.mass_matrix(tree, q), ts.bias_force(tree, q, rates)
    force = torch.zeros_like(C)
    force[..., own] = tau
    zero = torch.zeros(*G.shape[:-2], G.shape[-2], G.shape[-2], dtype=G.dtype)
    K = torch.cat([torch.cat([M, -G.mT], -1), torch.cat([G, zero], -1)], -2)
    right = torch.cat([force - C, -gamma], -1)[..., None]
    expected = (torch.linalg.pinv(K, rtol=1e-11) @ right)[..., : tree.num_dof, 0]
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    found = ts.expand_acceleration(mech, q, qd, qdd)
    scale = expected.abs().amax()
    assert (found - expected).abs().amax() < 1e-9 * scale
    cut = held.forward_dynamics(q, rates, force)[0]
    assert (found - cut).abs().amax() < 1e-9 * scale
    for method in ("newton_euler", "composite"):
        again = ts.inverse_dynamics(mech, q, qd, qdd, method=method)
        torch.testing.assert_close(again, tau, rtol=1e-10, atol=1e-9)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "name", ["four-bar on a floating base", "nested four-bars", "gear, cam and rod"]
)
def test_mass_matrices_agree(name: str) -> None:
    mech, tree = LINKAGES[name](), LINKAGES[name]("cut")
    q, qd, _ = state(mech, 2)
    unit = torch.eye(mech.num_dof, dtype=q.dtype)[:, None].expand(-1, 2, -1)
    X = ts.expand_velocity(mech, q, unit).movedim(0, -1)
    M = ts.mass_matrix(mech, q)
    torch.testing.assert_close(M, X.mT @ ts.mass_matrix(tree, q) @ X, rtol=1e-12, atol=1e-12)
    columns = ts.inverse_dynamics(mech, q, 0 * qd, unit) - ts.bias_force(mech, q, 0 * qd)
    torch.testing.assert_close(columns.movedim(0, -1), M, rtol=1e-10, atol=1e-10)
    factors = ts.innovations(ts.assemble(mech, q))
    torch.testing.assert_close(factors.inverse() @ M, unit[:, 0].expand_as(M), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(factors.logdet(), torch.logdet(M))
    energy = (qd * (M @ qd[..., None])[..., 0]).sum(-1) / 2
    torch.testing.assert_close(ts.kinetic_energy(mech, q, qd), energy)


@pytest.mark.some(1)
@pytest.mark.parametrize("independent", ["crank_j", "coupler_j", "rocker_j"])
def test_partitions_describe_one_motion(independent: str) -> None:
    mech = four_bar(independent=[independent])
    assert mech.dof_names == (independent,)
    other = four_bar()
    q, qd, tau = state(mech, 3)
    rates = ts.expand_velocity(mech, q, qd)
    own = other.closing.own  # type: ignore[union-attr]
    accel = ts.expand_acceleration(mech, q, qd, ts.forward_dynamics(mech, q, qd, 0 * tau))
    qdd = ts.forward_dynamics(other, q, rates[..., own], 0 * tau)
    torch.testing.assert_close(qdd, accel[..., own], rtol=1e-11, atol=1e-11)


def test_integrate_inverts_difference_and_stays_closed() -> None:
    mech = four_bar(base=True)
    q, qd, _ = state(mech, 4)
    q1 = ts.integrate(mech, q, 0.3 * qd)
    assert residual(mech, q1) < 1e-13
    torch.testing.assert_close(ts.difference(mech, q, q1), 0.3 * qd, rtol=1e-10, atol=1e-10)
    again = ts.integrate(mech, q, ts.difference(mech, q, q1))
    torch.testing.assert_close(again, q1, rtol=1e-10, atol=1e-10)
    for q in (mech.neutral(), mech.initial(), mech.middle()):
        assert residual(mech, q) < 1e-9
    far = q + 0.1
    closed, distance = ts.close(mech, far)
    assert residual(mech, closed) < 1e-12 and distance > 1e-3


@pytest.mark.some(1)
@pytest.mark.parametrize("method", ["semi_implicit_euler", "implicit", "rk4", "newmark"])
def test_rollouts_of_every_integrator_stay_closed(method: str) -> None:
    mech = four_bar(base=True)
    q, qd, _ = state(mech)
    qs, _ = ts.rollout(mech, q, 0.3 * qd, steps=5, dt=0.01, method=method, fused=False)
    assert residual(mech, qs) < 1e-12


@pytest.mark.nightly
def test_the_energy_error_of_rk4_falls_with_the_fourth_power_of_the_step() -> None:
    mech = LINKAGES["six-bar"]()
    q, qd, _ = state(mech)
    start = ts.total_energy(mech, q, qd)
    errors = []
    for steps in (20, 40):
        qs, qds = ts.rollout(mech, q, qd, steps=steps, dt=0.2 / steps, method="rk4", fused=False)
        errors.append(float((ts.total_energy(mech, qs[-1], qds[-1]) - start).abs()))
        assert residual(mech, qs[-1]) < 1e-13
    assert errors[0] > 12 * errors[1] > 0


BAR = four_bar(base=True)
SKIPPED = {"manipulability", "operational_space_inertia", "consistent_jacobian_inverse"}
"""Verbs whose result is not defined for all frames of this robot."""


@pytest.mark.some(6)
@pytest.mark.parametrize("verb", [v for v in VERBS if v.name not in SKIPPED], ids=lambda v: v.name)
def test_gradients_of_every_verb_are_slopes_along_the_manifold(verb) -> None:
    g = torch.Generator().manual_seed(1)
    states = {n: sample(BAR, n, (), g) for n in verb.states}
    point = next((n for n in ("q", "start") if n in states), None)
    if point is None:
        return
    direction = torch.randn(BAR.num_dof, generator=g, dtype=torch.float64)

    def at(t: Tensor) -> tuple[Tensor, ...]:
        moved = states | {point: ts.integrate(BAR, states[point], t * direction)}
        found = verb.call(BAR, **moved)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    h = 1e-4
    near = [
        (8 * (a - b) - (c - d)) / (12 * h)
        for a, b, c, d in zip(
            *(at(torch.tensor(k * h)) for k in (1.0, -1.0, 2.0, -2.0)), strict=True
        )
    ]
    weights = [torch.randn(x.shape, generator=g, dtype=x.dtype) for x in near]
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    total = sum((w * x).sum() for w, x in zip(weights, at(t), strict=True))
    slope = sum((w * x).sum() for w, x in zip(weights, near, strict=True))
    size = sum((w * x).abs().sum() for w, x in zip(weights, near, strict=True))
    gradient = torch.zeros(()) if not total.requires_grad else torch.autograd.grad(total, t)[0]
    assert abs(gradient - slope) < 1e-6 * max(1.0, float(size)), (float(gradient), float(slope))


def test_derivative_verbs_hold_the_change_of_x_and_xi() -> None:
    mech = four_bar()
    q, qd, tau = state(mech, 2)
    qdd = ts.forward_dynamics(mech, q, qd, tau)
    h = 1e-5

    def slope(fn) -> Tensor:
        return ((fn(h) - fn(-h)) / (2 * h))[..., None]

    move = lambda t: ts.integrate(mech, q, t * torch.ones_like(qd))  # noqa: E731
    forward = ts.forward_dynamics_derivatives(mech, q, qd, tau)[:2]
    for (to_q, to_qd), fn, last in (
        (ts.inverse_dynamics_derivatives(mech, q, qd, qdd)[:2], ts.inverse_dynamics, qdd),
        (forward, ts.forward_dynamics, tau),
    ):
        near_q = slope(lambda t, fn=fn, last=last: fn(mech, move(t), qd, last))
        near_qd = slope(lambda t, fn=fn, last=last: fn(mech, q, qd + t, last))
        torch.testing.assert_close(to_q, near_q, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(to_qd, near_qd, rtol=1e-6, atol=1e-6)
    C = ts.coriolis_matrix(mech, q, qd)
    M_rate = slope(lambda t: ts.mass_matrix(mech, ts.integrate(mech, q, t * qd)))[..., 0]
    skewed = M_rate - 2 * C
    torch.testing.assert_close(skewed, -skewed.mT, rtol=1e-6, atol=1e-6)
    centrifugal = (
        ts.bias_force(mech, q, qd) - ts.passive_force(mech, q, qd) - ts.gravity_force(mech, q)
    )
    torch.testing.assert_close((C @ qd[..., None])[..., 0], centrifugal, rtol=1e-10, atol=1e-10)
    Gamma = ts.christoffel_symbols(mech, q)
    torch.testing.assert_close((Gamma * qd[..., None, None, :]).sum(-1), C, rtol=1e-9, atol=1e-9)
    A, B = ts.linearize(mech, q, qd, tau)
    torch.testing.assert_close(A[..., 1:, :1], forward[0])
    assert B.shape == (2, 2, 1)


@pytest.mark.nightly
def test_second_derivatives_and_gradients_to_closure_points() -> None:
    mech = four_bar(kind="planar")
    q, qd, tau = state(mech)

    def motion(q, qd, tau, mass, points):
        robot = mech.replace(mass=mass, frame_position=points)
        return ts.forward_dynamics(robot, ts.integrate(robot, q, 0.1 * qd), qd, tau)

    inputs = tuple(x.clone().requires_grad_() for x in (q, qd, tau, mech.mass, mech.frame_position))
    assert torch.autograd.gradcheck(motion, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(motion, inputs, fast_mode=True)


def test_refusals_name_the_loop_and_the_remedy() -> None:
    with pytest.raises(
        MechanismError, match=r"independent=\('coupler_j',\)|independent=\('crank_j',\)"
    ):
        four_bar(independent=["crank_j", "rocker_j"])
    made = ts.MechanismBuilder("open")
    made.link("a", mass=1.0).joint("j", "revolute", child="a")
    made.close("loop", "ball", "a", (1, 0, 0), "world", (3, 0, 0))
    with pytest.raises(MechanismError, match=r"'loop' .* do not close: 2 m"):
        made.build(strict=False)
    mech = four_bar()
    for change in (
        lambda: mech.lock({"crank_j": 0.1}),
        lambda: mech.append(mech, "crank", prefix="b_"),
    ):
        with pytest.raises(MechanismError, match="'loop' are embedded"):
            change()
    dependent = next(n for n in mech.joint_names if n not in mech.dof_names)
    with pytest.raises(MechanismError, match="loops determine its rate"):
        mech.dof_slice(dependent)
    assert mech.q_slice(dependent).stop <= mech.num_q == 3


def test_loops_are_added_to_a_urdf() -> None:
    inertia = "ixx='.1' iyy='.1' izz='.1' ixy='0' ixz='0' iyz='0'"
    body = f"<inertial><mass value='1'/><inertia {inertia}/></inertial>"
    links = "".join(f"<link name='{n}'>{body if n != 'g' else ''}</link>" for n in "gabc")
    joints = "".join(
        f"<joint name='j{c}' type='continuous'><parent link='{p}'/><child link='{c}'/>"
        f"<origin xyz='{x} 0 0'/><axis xyz='0 0 1'/></joint>"
        for c, p, x in (("a", "g", 0), ("b", "a", 0.2), ("c", "g", 0.5))
    )
    loop = ts.Closure("loop", "connect", "b", "c", (0.5, 0, 0), (0.4, 0, 0), method="embed")
    mech = ts.load(f"<robot name='bar'>{links}{joints}</robot>", closures=[loop])
    assert mech.num_dof == 1 and mech.num_q == 3
    assert residual(mech, mech.neutral()) < 1e-12
