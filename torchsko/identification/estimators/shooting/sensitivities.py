"""Simulation of windows, and sensitivities to initial states and parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.identification.estimators.shooting.integrator import ForwardModel
from torchsko.identification.estimators.shooting.windows import Windows

MAX_CHUNK_STEPS = 4096
"""Windows times steps whose sensitivities are in memory at once."""


@dataclass(frozen=True, eq=False)
class WindowTrajectories:
    """Simulated windows.

    Attributes:
        states: states before each step and after the last, `[chains, windows, steps + 1, 2 num_dof]`.
        steps: number of steps between two samples.
        error: measured minus predicted, `[chains, windows, N, seen]`; 0 for missing measurements.
        gap: whitened difference of the next initial state from the final state,
            `[chains, windows - 1, 2 num_dof]`.
    """

    states: Tensor
    steps: int
    error: Tensor
    gap: Tensor


def simulate_windows(
    forward: ForwardModel, windows: Windows, x: Tensor, steps: int
) -> WindowTrajectories:
    """Simulate all windows from initial states `[chains, windows, 2 num_dof]`."""
    q, qd = x.chunk(2, -1)
    states = [x]
    for k in range(windows.t.shape[-1] - 1):
        h = ((windows.t[..., k + 1] - windows.t[..., k]) / steps)[..., None]
        for s in range(steps):
            tau, middle = windows.force(k, s / steps), windows.force(k, (s + 0.5) / steps)
            q, qd = forward.step(q, qd, tau, middle, h)
            states.append(torch.cat([q, qd], -1))
    path = torch.stack(states, 2)
    shown = forward.shown(path[:, :, :-1:steps, : windows.seen.shape[-1]])
    error = torch.where(windows.good, windows.seen - shown, 0.0)
    apart = whiten(
        (x[:, 1:] - path[:, :-1, -1])[..., None], windows.length[:, :-1], windows.mass[:, 1:]
    )[..., 0]
    gap = torch.where(windows.linked[..., None], apart, 0.0)
    return WindowTrajectories(path, steps, error, gap)


@dataclass(frozen=True, eq=False)
class LinearizedMotion:
    """Linearized motion; columns are the initial state, the parameters, and last the residual.

    Attributes:
        seen: rows of measurements, `[chains, windows, N * seen, 2 num_dof + parameters + 1]`.
        end: whitened rows of gaps, `[chains, windows - 1, 2 num_dof, 2 num_dof + parameters + 1]`.
        next: derivatives of gaps with respect to the next initial state,
            `[chains, windows - 1, 2 num_dof, 2 num_dof]`.
    """

    seen: Tensor
    end: Tensor
    next: Tensor


def linearize(
    forward: ForwardModel, windows: Windows, path: WindowTrajectories
) -> LinearizedMotion:
    """Linearize the motion of windows."""
    chains, many, _, size = path.states.shape
    S, error = _sensitivities(forward, windows, path), path.error.flatten(2)
    obs = path.error.shape[-1]
    good = windows.good.flatten(2)[..., None]
    states = path.states[:, :, : -1 : path.steps, :obs]
    # Outputs depend on parameters through states, and directly through scale errors of sensors.
    scale = forward.shown(torch.ones_like(states))[..., None]
    own = torch.nn.functional.pad(forward.shown_by(states), (size, 0))
    rows = scale * S[:, :, :-1, :obs] + own
    seen = torch.cat([rows.flatten(2, 3), error[..., None]], -1)
    length, mass = windows.length[:, :-1], windows.mass[:, 1:]
    unit = torch.eye(size).to(S).expand(chains, many - 1, -1, -1)
    tied = windows.linked[..., None, None]
    return LinearizedMotion(
        torch.where(good, seen, 0.0),
        torch.where(
            tied, torch.cat([whiten(S[:, :-1, -1], length, mass), path.gap[..., None]], -1), 0.0
        ),
        torch.where(tied, -whiten(unit, length, mass), 0.0),
    )


def whiten(rows: Tensor, length: Tensor, mass: Tensor) -> Tensor:
    """Whiten position and velocity errors that white joint forces accumulate over a window.

    At unit density and unit mass these have variances T^3 / 3 and T, and the covariance T^2 / 2.

    Args:
        rows: `[*batch, 2 num_dof, columns]`.
        length: length T of the window, `[*batch]` [s].
        mass: mass matrices, `[*batch, num_dof, num_dof]`.
    """
    q, v = (mass @ x for x in rows.chunk(2, -2))
    T = length[..., None, None]
    return torch.cat([3**0.5 / T**1.5 * q, 2 / T.sqrt() * (v - 1.5 / T * q)], -2)


def _sensitivities(forward: ForwardModel, windows: Windows, path: WindowTrajectories) -> Tensor:
    """Sensitivities of states at samples, `[chains, windows, N + 1, 2 num_dof, 2 num_dof + parameters]`."""
    flat = path.states.flatten(0, 1)
    steps, total = path.steps, path.states.shape[2] - 1
    h = (torch.diff(windows.t) / steps).repeat_interleave(steps, -1).flatten(0, 1)[..., None]
    q, qd = ((flat[:, 1:] + flat[:, :-1]) / 2).chunk(2, -1)
    qdd = torch.diff(flat, dim=1).chunk(2, -1)[1] / h
    some = max(1, MAX_CHUNK_STEPS // total)
    found = []
    for a in range(0, len(flat), some):
        now, rate, accel, dt = (x[a : a + some] for x in (q, qd, qdd, h))
        found.append(_accumulate_sensitivities(forward, now, rate, accel, dt, steps))
    return torch.cat(found).unflatten(0, path.states.shape[:2])


def _accumulate_sensitivities(
    forward: ForwardModel, q: Tensor, qd: Tensor, qdd: Tensor, h: Tensor, steps: int
) -> Tensor:
    by_state, by_numbers = forward.changes(q, qd, qdd, h)
    size, count = by_state.shape[-1], by_numbers.shape[-1]
    S = torch.cat([torch.eye(size), torch.zeros(size, count)], -1).to(q).expand(len(q), -1, -1)
    out = [S]
    for k in range(by_state.shape[1]):
        S = by_state[:, k] @ S + torch.nn.functional.pad(by_numbers[:, k], (size, 0))
        if (k + 1) % steps == 0:
            out.append(S)
    return torch.stack(out, 1)
