"""Falling robots with tiny and huge inertias, damping and friction remain stable."""

import pytest
import torch

import torchsko as ts
from tests.strategies import ill_scaled_mechanism


def energies(mech, q, qd):
    """Kinetic energy, and total energy with gravity and springs of one-dof joints."""
    kinetic = (qd * (ts.mass_matrix(mech, q) @ qd[..., None])[..., 0]).sum(-1) / 2
    pose = ts.forward_kinematics(mech, q)
    com = pose.position + (pose.rotation @ mech.com[..., None])[..., 0]
    stretch = ts.difference(mech, mech.spring_reference, q)
    springs = (mech.stiffness * stretch.square()).sum(-1) / 2
    return kinetic, kinetic + springs - (mech.mass[..., None] * com * mech.gravity).sum((-1, -2))


# Explicit Coriolis forces add energy to links this light, also in MuJoCo's Euler; see `GAINING` in
# `tests/oracles/test_passive_robots.py`, where "implicit" satisfies the law.
GAINING = (12, 39)


def fall(seed, robots, steps, method="semi_implicit_euler"):
    mech = ill_scaled_mechanism(seed, robots)
    q, qd = mech.random_state(robots, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=steps, method=method)
        found = [energies(mech, qs[:, k], qds[:, k]) for k in range(0, steps + 1, 4)]
    kinetic, total = (torch.stack(x) for x in zip(*found, strict=True))
    assert qs.isfinite().all() and qds.isfinite().all()
    # The energy of Euler steps oscillates to first order in the step of 2 ms.
    assert ((total - total[0]).amax(0) <= 0.02 * kinetic.amax(0)).all()


def test_the_generator_puts_inertias_of_ratio_a_million_side_by_side():
    ratios = []
    for seed in range(5):
        mech = ill_scaled_mechanism(seed, 64)
        size = torch.linalg.eigvalsh(mech.inertia)[..., -1].log10()
        pairs = [(k, p) for k, p in enumerate(mech.parents) if p >= 0]
        ratios += [(size[:, k] - size[:, p]).abs().max().item() for k, p in pairs]
    assert max(ratios) > 6


@pytest.mark.parametrize("seed", [0, 1])
def test_robots_of_uneven_links_fall_without_blowing_up(seed):
    fall(seed, robots=6, steps=60)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(40))
def test_robots_of_uneven_links_fall_for_most_of_a_second(seed):
    fall(
        seed, robots=16, steps=400, method="implicit" if seed in GAINING else "semi_implicit_euler"
    )
