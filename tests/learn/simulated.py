"""Logs of arms simulated by Pinocchio."""

import numpy as np
import pytest
import torch

import torchsko as ts

pin = pytest.importorskip("pinocchio")


def simulated(truth, force, folder, *, seconds=20.0, rate=100.0, seed=0, fine=10):
    """Times, positions, velocities and forces of an arm that is held on a path by forces held for a sample.

    Args:
        truth: the arm.
        force: of joints besides, of positions and velocities.
        folder: to write the robot's file to.
        seconds: length.
        rate: of samples [Hz].
        seed: of the path.
        fine: steps of Runge and Kutta's between two samples.
    """
    far = torch.full_like(truth.lower, 20.0)
    ts.save(truth.replace(lower=-far, upper=far), folder / "truth.urdf", overwrite=True)
    model = pin.buildModelFromUrdf(str(folder / "truth.urdf"))
    data, n = model.createData(), model.nv
    path = ts.identification.exciting_trajectory(
        truth, generator=torch.Generator().manual_seed(seed)
    )
    t = torch.arange(int(seconds * rate), dtype=truth.dtype) / rate
    q, qd, qdd = (x.numpy() for x in path(t))
    h, state, states, forces = 1 / rate / fine, np.concatenate([q[0], qd[0]]), [], []
    for k in range(len(q)):
        off, slip = q[k] - state[:n], qd[k] - state[n:]
        accel = qdd[k] + 100 * off + 14 * slip
        tau = pin.rnea(model, data, q[k], qd[k], accel) + force(q[k], qd[k])
        states, forces = [*states, state], [*forces, tau]

        def slope(x, tau=tau):
            free = tau - force(x[:n], x[n:])
            return np.concatenate([x[n:], pin.aba(model, data, x[:n], x[n:], free)])

        for _ in range(fine):
            a = slope(state)
            b = slope(state + h / 2 * a)
            c = slope(state + h / 2 * b)
            d = slope(state + h * c)
            state = state + h / 6 * (a + 2 * b + 2 * c + d)
    states = np.stack(states)
    return t.numpy(), states[:, :n], states[:, n:], np.stack(forces)
