"""Closed configurations: the nearest one and its derivatives, steps along the manifold, linear models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.linkages import LINKAGES, four_bar, state, welded_arm
from tests.mechanism.test_loops import residual
from torchsko.mechanism.closed_chains.embedded_nodes import close_loops

CLOSED = {
    "four-bar": four_bar,
    "four-bar on a floating base": lambda: four_bar(base=True),
    "gear, cam and rod": LINKAGES["gear, cam and rod"],
    "spatial four-bar": LINKAGES["spatial four-bar"],
    "Stewart platform": LINKAGES["Stewart platform, pose"],
}


def open_state(mech: ts.Mechanism, *batch: int, size: float = 0.1) -> Tensor:
    tree, (q, _, _) = mech.tree, state(mech, *batch)
    g = torch.Generator().manual_seed(1)
    step = torch.randn(*batch, mech.num_tree_dof, generator=g, dtype=torch.float64)
    return ts.integrate(replace(tree, closing=None), q, size * step)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", CLOSED)
def test_no_closed_configuration_nearby_is_nearer_than_that_of_close(name: str) -> None:
    mech = CLOSED[name]()
    q = open_state(mech, 20, size=0.2)
    found, distance = ts.close_loops(mech, q)
    assert (distance > 1e-3).all() and residual(mech, found) < 1e-13
    cut = replace(mech, closing=None)
    length = lambda x: ts.difference(cut, q, x).norm(dim=-1)  # noqa: E731
    g = torch.Generator().manual_seed(2)
    for size in (1e-2, 1e-1):
        step = size * torch.randn(20, mech.num_dof, generator=g, dtype=torch.float64)
        beside = ts.integrate(mech, found, step)
        # The other configuration is farther, by a half of the curvature times the square of the step.
        assert (length(beside) > length(found)).all()


@pytest.mark.some(1)
@pytest.mark.parametrize("name", CLOSED)
def test_derivatives_of_close_are_those_of_its_result(name: str) -> None:
    """To q and to the geometry, in both modes, twice, and under vmap."""
    mech = CLOSED[name]()
    q = open_state(mech, 2, size=0.05)
    g = torch.Generator().manual_seed(3)
    names = ("frame_position", "joint_position")
    along = [0.1 * torch.randn(getattr(mech, n).shape, generator=g).double() for n in names]
    step = torch.randn(2, mech.num_tree_dof, generator=g, dtype=torch.float64)
    weight = torch.randn(2, mech.num_q, generator=g, dtype=torch.float64)
    cut = replace(mech, closing=None)

    def value(t: Tensor) -> Tensor:
        moved = {n: getattr(mech, n) + t * x for n, x in zip(names, along, strict=True)}
        found = ts.close_loops(mech.replace(**moved), ts.integrate(cut, q, t * step)).q
        return (weight * found).sum()

    def slope(fn, h: float = 1e-3) -> Tensor:
        near = [fn(torch.tensor(k * h, dtype=torch.float64)) for k in (1, -1, 2, -2)]
        return (8 * (near[0] - near[1]) - (near[2] - near[3])) / (12 * h)

    zero = torch.zeros((), dtype=torch.float64)
    first = torch.func.grad(value)(zero)
    torch.testing.assert_close(first, slope(value), rtol=1e-8, atol=1e-8)
    forward = torch.func.jvp(value, (zero,), (torch.ones_like(zero),))[1]
    torch.testing.assert_close(forward, first, rtol=1e-10, atol=1e-10)
    second = torch.func.grad(torch.func.grad(value))(zero)
    torch.testing.assert_close(second, slope(torch.func.grad(value)), rtol=1e-7, atol=1e-7)
    each = torch.vmap(lambda x: ts.close_loops(mech, x).q)(q)
    torch.testing.assert_close(each, ts.close_loops(mech, q).q, rtol=0, atol=1e-12)


def test_close_projects_the_steps_of_closed_configurations() -> None:
    """The derivative at a closed configuration is the orthogonal projector X (X* X)^-1 X*."""
    mech = four_bar()
    q, _, _ = state(mech)
    X = ts.expand_velocity(mech, q, torch.ones(1, dtype=q.dtype))[:, None]
    found = torch.func.jacrev(lambda q: ts.close_loops(mech, q).q)(q)
    torch.testing.assert_close(found, X @ torch.linalg.pinv(X), rtol=1e-10, atol=1e-10)


def test_steps_from_open_configurations_close_them_or_are_nan() -> None:
    bar = four_bar(independent=["crank_j"])
    g = torch.Generator().manual_seed(0)
    start, _ = bar.random_state(200, generator=g)
    for size, lost in ((0.3, 0), (1.0, 20)):
        change = size * torch.randn(200, 2, generator=g, dtype=torch.float64)
        q = start + torch.nn.functional.pad(change, (1, 0))
        found = ts.integrate(bar, q, torch.zeros(200, 1, dtype=torch.float64))
        is_finite = found.isfinite().all(-1)
        assert residual(bar, found[is_finite]) < 1e-12 and (~is_finite).sum() <= lost
    # A crank of 0.2 m cannot turn a rocker by a full turn; the other sample is as if alone.
    bar = four_bar(independent=["rocker_j"])
    q = bar.neutral().expand(2, -1)
    found = ts.integrate(bar, q, torch.tensor([[2.5], [-0.1]], dtype=torch.float64))
    assert found[0].isnan().any()
    alone = ts.integrate(bar, q[1], torch.tensor([-0.1], dtype=torch.float64))
    assert alone.isfinite().all() and torch.equal(found[1], alone)


@pytest.mark.parametrize("kind", ["weld", "prismatic", "revolute"])
def test_closed_markers_have_one_orientation_and_never_opposite_axes(kind: str) -> None:
    arm = welded_arm("cut")
    (loop,) = arm.closures
    arm = arm.replace(file_metadata=replace(arm.file_metadata, closures=()))
    arm = close_loops(arm, [replace(loop, kind=kind, method="embed")])
    g = torch.Generator().manual_seed(0)
    q, _ = arm.random_state(40, generator=g)
    far = ts.close_loops(arm, q + torch.randn(40, 7, generator=g, dtype=q.dtype)).q
    for found in (q, far):
        R1, R2 = ts.frame_pose(arm, found, [loop.frame1, loop.frame2]).rotation.unbind(-3)
        axes = (R1 * R2).sum(-2)[..., 2 if kind == "revolute" else slice(None)]
        torch.testing.assert_close(axes, torch.ones_like(axes), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rate", [1e200, float("nan")])
def test_rollouts_of_loops_that_are_not_finite_are_reported(rate: float) -> None:
    bar = four_bar(independent=["rocker_j"])
    qd = torch.tensor([rate], dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="is not finite, at joint|is not finite at step 1"):
        ts.rollout(bar, ts.State(bar.initial(), qd), steps=3, dt=1e-3, fused=False)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["semi_implicit_euler", "implicit", "rk4", "newmark"])
def test_linear_models_of_steps_are_their_derivatives_along_the_manifold(method: str) -> None:
    mech = four_bar(base=True)
    q, qd, tau = state(mech)
    n, h = mech.num_dof, 1e-4
    end = ts.rollout(mech, ts.State(q, qd), tau, steps=1, dt=0.01, method=method, fused=False).q[-1]

    def after(change: Tensor) -> Tensor:
        d, rate, force = change.split(n)
        moved = (ts.integrate(mech, q, d), qd + rate, tau + force)
        qs, qds, *_ = ts.rollout(
            mech, ts.State(*moved[:2]), moved[2], steps=1, dt=0.01, method=method, fused=False
        )
        return torch.cat([ts.difference(mech, end, qs[-1]), qds[-1]])

    unit = h * torch.eye(3 * n, dtype=q.dtype)
    near = [(8 * (after(x) - after(-x)) - (after(2 * x) - after(-2 * x))) / (12 * h) for x in unit]
    found = torch.cat(ts.linearize(mech, ts.State(q, qd), tau, dt=0.01, method=method), -1)
    torch.testing.assert_close(found, torch.stack(near, -1), rtol=1e-7, atol=1e-7)


def test_ilqr_moves_a_four_bar_to_a_target() -> None:
    mech = four_bar(independent=["crank_j"])
    q, qd, _ = state(mech)
    target = ts.integrate(mech, q, torch.tensor([0.5], dtype=q.dtype))
    phase = ts.control.Phase(
        mech,
        10,
        0.04,
        lambda mech, q, qd, u: 0.1 * u,
        lambda mech, q, qd: torch.cat([30 * ts.difference(mech, target, q), 3 * qd], -1),
    )
    problem = ts.control.optimal_control([phase])
    found = ts.control.ilqr(problem, q, 0 * qd, torch.zeros(10, 1, dtype=q.dtype))
    assert found.converged and residual(mech, found.q) < 1e-12
    assert (found.q[-1] - target).abs().max() < 0.05
