"""Unwrapping of angles that a log keeps within one turn."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.finding_codes import texts
from torchsko.identification.friction import Coulomb, Viscous
from torchsko.identification.signals.unwrap import TURN, unwrap_angles


def wheels():
    """Two links with continuous joints, and a prismatic one that is coupled to the second joint."""
    builder = ts.MechanismBuilder("wheels")
    for name, mass in (("a", 2.0), ("b", 1.0)):
        builder.link(
            name, mass=mass, com=(0.1, 0, 0.02), inertia=np.diag([0.02, 0.03, 0.03]).tolist()
        )
    builder.link("rack", mass=0.5, inertia=np.diag([0.002, 0.003, 0.003]).tolist())
    builder.joint("j1", "revolute", child="a", axis=(0, 1, 0))
    builder.joint("j2", "revolute", parent="a", child="b", position=(0.3, 0, 0), axis=(0, 1, 0))
    builder.joint("slide", "prismatic", parent="b", child="rack", axis=(0, 0, 1))
    builder.couple("slide", {"j2": 0.02})
    return builder.build()


def turning(mech, noise=1e-4):
    """A log of several turns of both joints in both directions."""
    t = torch.arange(3000, dtype=mech.dtype) / 150
    w, a = torch.tensor([0.31, 0.23]).to(t), torch.tensor([14.0, 17.0]).to(t)
    fast, b = torch.tensor([4.1, 5.3]).to(t), torch.tensor([0.5, 0.4]).to(t)
    slow, quick = w * t[:, None], fast * t[:, None]
    q = a * slow.sin() + b * quick.sin()
    qd = a * w * slow.cos() + b * fast * quick.cos()
    qdd = -a * w**2 * slow.sin() - b * fast**2 * quick.sin()
    tau = ts.inverse_dynamics(mech, q, qd, qdd) + 0.2 * qd + 0.5 * qd.sign()
    rng = np.random.default_rng(0)
    q, tau = (x.numpy() + y * rng.standard_normal(x.shape) for x, y in ((q, noise), (tau, 0.02)))
    return ts.identification.Log(t.numpy(), q, tau, qd.numpy())


def wrap(q, low=-np.pi):
    """Wrap angles to the turn that begins at `low`."""
    return (q - low) % TURN + low


@pytest.mark.parametrize("velocities", [True, False])
def test_wrapped_and_unwrapped_angles_give_the_same_fit(velocities):
    mech = wheels()
    log = turning(mech)
    log = log if velocities else replace(log, qd=None)
    options = {"joint_terms": [Viscous(), Coulomb()], "method": "ols"}
    whole = ts.identification.identify(mech, log, **options)
    found = ts.identification.identify(mech, replace(log, q=wrap(log.q)), **options)
    np.testing.assert_allclose(found.value, whole.value, rtol=1e-9)
    np.testing.assert_allclose(found.deviation, whole.deviation, rtol=1e-9)
    (line,) = texts(found, "unwrapped_angles")
    assert "unwrapped" in line and "j1" in line and "j2" in line


@pytest.mark.parametrize("low", [-np.pi, 0.0])
def test_unwrapping_is_robust_to_missing_samples_and_outliers(low):
    q = turning(wheels(), noise=2e-3).q
    t = np.arange(len(q)) / 150
    rng = np.random.default_rng(1)
    x = wrap(q, low)
    x[rng.choice(len(x), 60, replace=False), 0] = np.nan
    x[rng.choice(np.arange(5, 2900), 20, replace=False), 1] = 1.7e3
    found, _ = unwrap_angles(ts.identification.Log(t, x, 0 * q))
    off = (found.q - q) / TURN
    for j in range(2):
        mine = off[np.isfinite(x[:, j]) & (np.abs(x[:, j]) < 10), j]
        np.testing.assert_allclose(mine, mine[0], atol=1e-9)


def test_positions_that_are_not_wrapped_are_unchanged():
    """Fast continuous angles, outliers, and jumps by other angles."""
    t = np.arange(2000) / 100
    fast, swing = 450.0 * t, 2.0 * np.sin(t)
    spikes, jumps = swing.copy(), swing.copy()
    spikes[[300, 900, 1500]] += TURN
    jumps[1000:] += 4.0
    q = np.stack([fast, swing, spikes, jumps], -1)
    log = ts.identification.Log(t, q, 0 * q)
    found, lines = unwrap_angles(log)
    assert found is log and not lines


def test_ambiguous_turns_are_refused():
    t = np.arange(2000) / 100
    q = wrap(20 * np.cumsum(10 + np.sin(t))[:, None] / 100)
    with pytest.raises(ts.FitError, match="positions of wheel wrap around at one turn"):
        unwrap_angles(ts.identification.Log(t, q, 0 * q), ("wheel",))
