"""Logs without noise: what is left is rounding, which no weight may make larger than the prior."""

import pytest
import torch

import torchsko as ts


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("measured", "moved"),
    [
        (True, [6]),
        (False, [1, 3]),
        pytest.param(False, [6], marks=pytest.mark.nightly),
        pytest.param(True, [1, 3], marks=pytest.mark.nightly),
    ],
)
def test_a_log_without_noise_of_few_moved_joints_is_fitted(moved, measured):
    mech = ts.load(ts.robots.panda)
    g = torch.Generator().manual_seed(1)
    t = torch.arange(3000, dtype=mech.dtype)[:, None] / 200
    q = torch.linspace(0.1, 0.5, 7, dtype=mech.dtype).repeat(len(t), 1)
    qd, qdd = torch.zeros_like(q), torch.zeros_like(q)
    w = 2 * torch.pi * torch.arange(1, 5) / 10
    for j in moved:
        a, b = (
            0.4 * torch.randn(2, 4, generator=g, dtype=mech.dtype) / torch.arange(1, 5)
        ).unbind()
        sin, cos = (w * t).sin(), (w * t).cos()
        q[:, j] += a @ sin.mT + b @ cos.mT
        qd[:, j] = (a * w) @ cos.mT - (b * w) @ sin.mT
        qdd[:, j] = -(a * w * w) @ sin.mT - (b * w * w) @ cos.mT
    zero = torch.zeros_like(mech.damping)
    mass = mech.mass * (1 + 0.2 * torch.rand(mech.mass.shape, generator=g, dtype=mech.dtype))
    truth = mech.replace(mass=mass, damping=zero, friction=zero)
    tau = ts.inverse_dynamics(truth, q, qd, qdd)
    log = ts.identification.Log(
        t[:, 0].numpy(), q.numpy(), tau.numpy(), qd=qd.numpy() if measured else None
    )
    fit = ts.identification.identify(mech, log)
    assert (fit.errors["physical"] < 1e-5 * tau.abs().max()).all()
    assert (fit.inverse_dynamics(q, qd, qdd) - tau).abs().max() < 1e-3
