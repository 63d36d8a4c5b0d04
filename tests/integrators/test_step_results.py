"""Results that a step returns besides the state, over a rollout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.integrators.binomial import Binomial
from torchsko.integrators.integrators import SemiImplicitEuler

ARM = random_mechanism(["prismatic", "revolute"], [-1, 0], seed=4, passive=False)
WEIGHT = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
STEPS, DT = 6, 0.01


def rewarded(
    mech: ts.Mechanism, accelerate: Any, t: Any, q: Tensor, qd: Tensor, dt: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A step that also returns a reward and the momentum after it."""
    q, qd = SemiImplicitEuler()(mech, accelerate, t, q, qd, dt)
    momentum = (ts.mass_matrix(mech, q) @ qd[..., None])[..., 0]
    return q, qd, (WEIGHT * q * q).sum(-1), momentum


def law(t: Any, q: Tensor, qd: Tensor) -> Tensor:
    return torch.cos(q) - WEIGHT * qd


def results(batch: tuple[int, ...], every: int = 1, **options: Any) -> tuple[Tensor, ...]:
    q, qd = ARM.random_state(*batch, generator=torch.Generator().manual_seed(0))
    mech = ts.fuse(ARM) if options.get("fused") else ARM
    found = ts.rollout(
        mech, ts.State(q, qd), law, steps=STEPS, dt=DT, method=rewarded, every=every, **options
    )
    return found.q, found.qd, *found.results


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("fused", [False, True])
def test_results_are_those_of_the_steps_that_end_in_the_states(batch, every, fused):
    qs, qds, rewards, momenta = results(batch, every, fused=fused)
    count = STEPS // every
    assert rewards.shape == (*batch, count) and momenta.shape == (*batch, count, 2)
    q, qd = qs[..., 1:, :], qds[..., 1:, :]
    torch.testing.assert_close(rewards, (WEIGHT * q * q).sum(-1))
    torch.testing.assert_close(momenta, (ts.mass_matrix(ARM, q) @ qd[..., None])[..., 0])


@pytest.mark.parametrize(
    "options",
    [
        {"fused": True},
        {"fused": True, "every": 2},
        {"fused": True, "truncate": 3, "every": 3},
        {"checkpoint": 2},
        {"checkpoint": Binomial(2)},
        {"truncate": 3},
    ],
)
def test_gradients_of_results_are_those_of_the_whole_graph(options):
    every, truncate = options.get("every", 1), options.get("truncate")
    found = results((3,), **options)
    wanted = results((3,), fused=False, every=every, truncate=truncate)
    gradients = [
        torch.autograd.grad(rewards.sum() + momenta.sin().sum(), WEIGHT)[0]
        for _, _, rewards, momenta in (found, wanted)
    ]
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
