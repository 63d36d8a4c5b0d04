"""Adaptive Runge-Kutta pairs: order, error below the tolerance, independent sub-steps per sample."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.integrators.test_integrators import robot
from tests.states import normal_state
from tests.strategies import KINDS, MORE_KINDS
from torchsko.integrators.adaptive_steps import (
    dormand_prince,
    tangent_rate,
)
from torchsko.spatial.rotation import translation_jacobian_inverse

PAIRS = {"dormand_prince": (dormand_prince, 5)}
ONE_STEP = {"tolerance": 1e9, "substeps": 1}
"""No error is too large: a sub-step is a step."""


def force(t, q, qd):
    """A force that depends on the time, which is a tensor within a step, and the velocity."""
    return torch.sin(3 * torch.as_tensor(t, dtype=qd.dtype)) - 0.3 * qd


def end(mech, method, steps, span=0.1):
    with torch.no_grad():
        start, dt = normal_state(mech, vectors=1), span / steps
        qs, qds, *_ = ts.rollout(mech, ts.State(*start), force, steps=steps, dt=dt, method=method)
    return qs[-1], qds[-1]


def apart(mech, one, other):
    return torch.cat([ts.difference(mech, one[0], other[0]), one[1] - other[1]], -1).norm().item()


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", [*KINDS, *MORE_KINDS])
@pytest.mark.parametrize("pair", PAIRS)
def test_halving_the_step_shows_the_order_on_every_kind_of_joint(pair, kind):
    make, order = PAIRS[pair]
    mech = robot((kind,))
    exact = end(mech, dormand_prince(**ONE_STEP), 48)
    errors = [apart(mech, exact, end(mech, make(**ONE_STEP), n)) for n in (1, 8)]
    # Average over three halvings, since the next error term is visible between two.
    assert errors[1] < max(errors[0] / 8 ** (order - 0.5), 1e-13)


def test_rates_of_rotation_vectors_invert_the_jacobian_of_the_exponential():
    u, v = torch.tensor([[0.06, -0.05, 0.07], [1.0, 2.0, -0.5]]).double()
    exact = translation_jacobian_inverse(-u) @ v
    # The next term of the series is |u|^6 / 30240.
    assert_close(tangent_rate(robot(("spherical",)), u, v), exact, rtol=0, atol=1e-9)


@pytest.mark.some(1)
@pytest.mark.parametrize("pair", PAIRS)
def test_the_error_follows_the_tolerance(pair):
    mech = robot(("revolute", "spherical"))
    exact = end(mech, dormand_prince(**ONE_STEP), 48, 0.4)
    make, _ = PAIRS[pair]
    errors = []
    for tolerance in (1e-3, 1e-6):
        found = end(mech, make(tolerance, 200, stop_early=True), 1, 0.4)
        errors.append(apart(mech, exact, found))
        assert errors[-1] < 30 * tolerance
    assert errors[1] < errors[0] / 30


def test_each_sample_takes_its_own_steps():
    """A batch of a slow and a fast sample equals both alone; only the fast one needs more sub-steps."""
    mech = robot(("revolute", "revolute"))
    q, qd = normal_state(mech, vectors=1)
    qd = torch.stack([0.1 * qd, 20 * qd])
    q = q.expand(2, -1)
    method = dormand_prince(1e-8, 40)
    both = ts.rollout(mech, ts.State(q, qd), steps=1, dt=0.1, method=method)[:2]
    for k in range(2):
        alone = ts.rollout(mech, ts.State(q[k], qd[k]), steps=1, dt=0.1, method=method)[:2]
        assert_close((both[0][k], both[1][k]), alone)
    few = dormand_prince(1e-8, 3)
    with pytest.warns(RuntimeWarning, match="is not finite at"):
        qs = ts.rollout(mech, ts.State(q, qd), steps=1, dt=0.1, method=few).q
    assert qs[0].isfinite().all() and qs[1, -1].isnan().all()


def assert_gradients_are_those_of_differences(steps, method):
    """Of the velocity at the end, to that at the start."""
    mech = robot(("revolute", "revolute"))
    q, qd = normal_state(mech, vectors=1)

    def final(qd):
        return ts.rollout(mech, ts.State(q, qd), steps=steps, dt=0.05, method=method).qd[-1]

    leaf = qd.clone().requires_grad_()
    (mine,) = torch.autograd.grad(final(leaf)[0], leaf)
    d = 1e-4 * torch.eye(2, dtype=qd.dtype)
    differences = [(final(qd + x) - final(qd - x))[0] / 2e-4 for x in d]
    assert_close(mine, torch.stack(differences), rtol=1e-6, atol=1e-7)


def test_gradients_are_those_of_the_motion():
    assert_gradients_are_those_of_differences(1, dormand_prince(1e-11, 12, stop_early=True))


@pytest.mark.parametrize(("samples", "mode"), [(1, "read"), (2, "read"), (1, "mapped")])
def test_a_sub_step_that_overflowed_in_vain_spoils_no_gradient(samples, mode):
    """The force exp(3 qd) overflows in the first sub-step; the second, slow sample accepts all sub-steps."""
    builder = ts.MechanismBuilder("pendulum")
    builder.link("rod", mass=1.0, com=(0, 0, -0.5), inertia=(0.1 * torch.eye(3)).tolist())
    mech = builder.joint("hinge", "revolute", child="rod", axis=(0, 1, 0)).build()
    q = torch.tensor([[0.3], [0.3]]).double()[:samples].requires_grad_()
    qd = torch.tensor([[3.0], [0.0]]).double()[:samples]

    def final(q, qd):
        brake = lambda t, q, qd: -1e-3 * torch.exp(3 * qd.abs()) * qd.sign()  # noqa: E731
        method = dormand_prince(1e-3, 24)
        return ts.rollout(mech, ts.State(q, qd), brake, steps=1, dt=1.0, method=method).q[
            ..., -1, :
        ]

    batched = torch.func.vmap(final) if mode == "mapped" else final
    (mine,) = torch.autograd.grad(batched(q, qd).sum(), q)
    with torch.no_grad():
        differences = (final(q + 1e-3, qd) - final(q - 1e-3, qd)) / 2e-3
    assert_close(mine, differences, rtol=0.03, atol=0)


def test_stopping_early_changes_nothing():
    mech = robot(("revolute", "spherical"))
    blind, early = (end(mech, dormand_prince(1e-6, 6, stop_early=x), 2) for x in (False, True))
    assert_close(blind, early, rtol=0, atol=1e-14)  # quaternions are normalized again
