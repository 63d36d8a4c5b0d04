"""Kernels of mechanisms with configurations on manifolds: derivatives and integration steps."""

import pytest
import torch

import torchsko as ts
from tests.states import usual_state
from tests.strategies import random_mechanism

MECHANISMS = {
    "spherical": (["spherical", "revolute"], [-1, 0]),
    "free": (["free"], [-1]),
    "both": (["free", "spherical", "prismatic"], [-1, 0, 0]),
}
CASES = ["spherical", "free", pytest.param("both", marks=pytest.mark.nightly)]
DYNAMICS = ("forward_dynamics", "inverse_dynamics")


@pytest.fixture(scope="module", params=CASES)
def pair(request):
    mech = random_mechanism(*MECHANISMS[request.param], seed=3, armature=True)
    return mech, ts.fuse(mech)


def of_steps(mech, verb, q):
    """A verb as a function of a step in the tangent space at q."""
    return lambda u, qd, x, f: verb(ts.integrate(mech, q, u), qd, x, f)


def assert_same(mine, theirs, tolerance=1e-10):
    for x, y in zip(mine, theirs, strict=True):
        scale = max(1.0, float(y.detach().abs().max()))
        torch.testing.assert_close(x, y, rtol=0.0, atol=tolerance * scale)


@pytest.mark.some(2)
@pytest.mark.parametrize("verb", DYNAMICS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_gradients_agree_with_eager(pair, verb, batch):
    mech, fast = pair
    q, *others = usual_state(mech, *batch, wrench=True)
    eager = lambda *x: getattr(ts, verb)(mech, *x)  # noqa: E731
    found = []
    for call in (getattr(fast, verb), eager):
        leaves = [x.clone().requires_grad_() for x in (q, torch.zeros_like(others[0]), *others)]
        out = of_steps(mech, call, leaves[0])(*leaves[1:])
        raw = torch.autograd.grad(call(leaves[0], *leaves[2:]).cos().sum(), leaves[0])
        found.append((out, *raw, *torch.autograd.grad(out.sin().sum(), leaves[1:])))
    assert_same(*found)


@pytest.mark.some(1)
@pytest.mark.parametrize("verb", DYNAMICS)
def test_gradients_are_those_of_finite_differences_along_the_manifold(pair, verb):
    mech, fast = pair
    q, *others = usual_state(mech, 2, seed=1, wrench=True)
    leaves = [x.requires_grad_() for x in (torch.zeros_like(others[0]), *others)]
    call = of_steps(mech, getattr(fast, verb), q)
    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True, fast_mode=True)


@pytest.mark.some(1)
def test_second_derivatives_agree_with_eager(pair):
    mech, fast = pair
    q, qd, tau, f = usual_state(mech, seed=2, wrench=True)
    found = []
    for call in (fast.forward_dynamics, lambda *x: ts.forward_dynamics(mech, *x)):
        along = of_steps(mech, call, q)
        loss = lambda u, v, t: along(u, v, t, f).square().sum()  # noqa: B023, E731
        found.append(torch.func.jacrev(torch.func.grad(loss, (0, 1, 2)))(0 * qd, qd, tau))
    assert_same(*found, 1e-9)


@pytest.mark.some(1)
@pytest.mark.parametrize("method", [
    "semi_implicit_euler",
    "newmark",
    pytest.param("implicit", marks=pytest.mark.nightly),
    pytest.param("rk4", marks=pytest.mark.nightly),
])  # fmt: skip
def test_a_step_is_a_rollout_of_one_step_with_its_gradients(pair, method):
    mech, fast = pair
    found = []
    for fused in (True, False):
        q, qd, tau = (x.requires_grad_() for x in usual_state(mech, 3, seed=3, wrench=True)[:3])
        if fused:
            after = fast.advance_tensors(q, qd, tau, 0.01, method=method)
        else:
            qs, qds, *_ = ts.rollout(
                mech, ts.State(q, qd), tau[:, None], steps=1, dt=0.01, method=method
            )
            after = qs[:, 1], qds[:, 1]
        loss = after[0].sin().sum() + after[1].cos().sum()
        found.append((*after, *torch.autograd.grad(loss, (q, qd, tau))))
    assert_same(*found)
