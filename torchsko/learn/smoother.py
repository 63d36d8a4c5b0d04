r"""Positions, velocities and accelerations from noisy positions: Kalman's filter and smoother, as scans.

The acceleration is a random walk: x = (q, qd, qdd) moves by F(h) with the covariance s Q(h) of white jerk,
and q is seen with noise r. Times may be uneven. Filter and smoother are products of elements that may be
taken in any grouping, so a log of n samples takes log2(n) passes over all of it, and all joints go together.

Reference: S. Sarkka, A. Garcia-Fernandez, *Temporal parallelization of Bayesian smoothers*, IEEE Trans.
Automatic Control 66(1), 2021, Lemmas 7 to 10; H. Rauch, F. Tung, C. Striebel, *Maximum likelihood estimates
of linear dynamic systems*, AIAA Journal 3(8), 1965.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchsko.errors import FitError

Array = NDArray[np.floating[Any]]
Parts = tuple[Tensor, ...]

JERKS = tuple(10.0**k for k in range(-8, 3))
"""Standard deviations of the jerk over one step, in units of the noise, of which the likeliest is taken."""

VAGUE = 1e5
"""Standard deviation of the first velocity and acceleration, in units of the noise and the step."""


@dataclass(frozen=True, eq=False)
class Smoothed:
    """What positions tell of the motion.

    Attributes:
        q: `[samples, joints]` [rad or m].
        qd: `[samples, joints]` [rad/s or m/s].
        qdd: `[samples, joints]` [rad/s^2 or m/s^2].
        deviation: of the three, `[3, samples, joints]`.
        jerk: the random walk's: standard deviation of the acceleration after a second, `[joints]`.
    """

    q: Array
    qd: Array
    qdd: Array
    deviation: Array
    jerk: Array


def smoothed(
    t: Array, q: Array, noise: float | Array, jerk: float | Array | None = None
) -> Smoothed:
    """Smooth positions with a known noise.

    Args:
        t: ascending, `[samples]` [s].
        q: `[samples, joints]`, coordinates of a vector each.
        noise: standard deviation of q, of all joints or of each.
        jerk: of the random walk, as `Smoothed.jerk`; of a grid the likeliest when left out.

    Raises:
        FitError: on a noise that is not positive.
    """
    r = np.broadcast_to(np.asarray(noise, np.float64), q.shape[1:])
    if not (r > 0).all():
        raise FitError(
            f"the noise is {noise}.\nA smoother weighs positions by it.\n"
            "Pass the standard deviation of q: an encoder's step over 3.5, say."
        )
    step = float(np.median(np.diff(t)))
    h = torch.from_numpy(np.diff(t) / step)
    # In units of the noise and the step all numbers are near one.
    y = torch.from_numpy(np.ascontiguousarray(((q - q[:1]) / r).T))
    unit = r / step**2 / np.sqrt(step)
    if jerk is None:
        scores = torch.stack([_likelihood(h, y, y.new_full((len(y),), s)) for s in JERKS])
        s = torch.tensor(JERKS, dtype=y.dtype)[scores.argmax(0)]
    else:
        s = torch.from_numpy(np.broadcast_to(np.asarray(jerk, np.float64), r.shape) / unit)
    m, P = _backward(h, s, *_forward(h, y, s))
    scale = r * np.array([1.0, 1 / step, 1 / step**2])[:, None]
    states = m[..., 0].permute(2, 1, 0).numpy() * scale[:, None]
    wide = (
        P.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().permute(2, 1, 0).numpy() * scale[:, None]
    )
    return Smoothed(states[0] + q[:1], states[1], states[2], wide, s.numpy() * unit)


def _motion(h: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """F of each step, `[steps, 3, 3]`, and the covariance of its jerk, `[joints, steps, 3, 3]`."""
    one, none = torch.ones_like(h), torch.zeros_like(h)
    F = torch.stack([one, h, h**2 / 2, none, one, h, none, none, one], -1).reshape(-1, 3, 3)
    rows = [h**5 / 20, h**4 / 8, h**3 / 6, h**4 / 8, h**3 / 3, h**2 / 2, h**3 / 6, h**2 / 2, h]
    return F, s.square()[:, None, None, None] * torch.stack(rows, -1).reshape(-1, 3, 3)


def _forward(h: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Kalman's filter of `[joints, samples]`: means `[*, 3, 1]` and covariances `[*, 3, 3]`."""
    F, Q = _motion(h, s)
    S = Q[..., :1, :1] + 1
    K = Q[..., :, :1] / S
    seen = y[:, 1:, None, None]
    eye = torch.eye(3).to(y)
    keep = eye - torch.cat([K, torch.zeros_like(K), torch.zeros_like(K)], -1)
    row = F[:, :1, :]  # H F
    A, b, C = keep @ F, K * seen, keep @ Q
    eta, J = row.mT * seen / S, row.mT @ row / S
    first = torch.diag(torch.tensor([1.0, VAGUE**2, VAGUE**2])).to(y).expand(len(y), 1, 3, 3)
    start = torch.cat([y[:, :1, None, None], torch.zeros(len(y), 1, 2, 1).to(y)], -2)
    none = torch.zeros_like(first)
    parts = tuple(
        torch.cat([x, rest], 1)
        for x, rest in zip(
            (none, start, first, torch.zeros_like(start), none), (A, b, C, eta, J), strict=True
        )
    )
    _, m, P, _, _ = scanned(_then, parts)
    return m, P


def _then(first: Parts, second: Parts) -> Parts:
    """One filtering element and the next, as one (Lemma 8)."""
    A1, b1, C1, eta1, J1 = first
    A2, b2, C2, eta2, J2 = second
    eye = torch.eye(3).to(A1)
    D = torch.linalg.solve(eye + C1 @ J2, torch.cat([A1, b1 + C1 @ eta2, C1 @ A2.mT], -1))
    A, b, C = (A2 @ D).split([3, 1, 3], -1)
    back = torch.linalg.solve(eye + J2 @ C1, torch.cat([eta2 - J2 @ b1, J2 @ A1], -1))
    eta, J = (A1.mT @ back).split([1, 3], -1)
    return A, b + b2, C + C2, eta + eta1, J + J1


def _backward(h: Tensor, s: Tensor, m: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
    """Rauch, Tung and Striebel's smoother of what the filter gave."""
    F, Q = _motion(h, s)
    ahead = F @ P[:, :-1] @ F.mT + Q
    E = torch.linalg.solve(ahead, F @ P[:, :-1]).mT
    g = m[:, :-1] - E @ F @ m[:, :-1]
    L = P[:, :-1] - E @ F @ P[:, :-1]
    parts = tuple(
        torch.cat([x, last], 1).flip(1)
        for x, last in ((E, torch.zeros_like(P[:, -1:])), (g, m[:, -1:]), (L, P[:, -1:]))
    )
    _, m, P = scanned(lambda later, x: (x[0] @ later[0], x[0] @ later[1] + x[1],
                                        x[0] @ later[2] @ x[0].mT + x[2]), parts)  # fmt: skip
    return m.flip(1), P.flip(1)


def _likelihood(h: Tensor, y: Tensor, s: Tensor) -> Tensor:
    """Log likelihood of each joint's positions, up to a constant."""
    m, P = _forward(h, y, s)
    F, Q = _motion(h, s)
    row = F[:, :1, :]
    S = (row @ P[:, :-1] @ row.mT + Q[..., :1, :1])[..., 0, 0] + 1
    miss = y[:, 1:] - (row @ m[:, :-1])[..., 0, 0]
    late = slice(3, None)  # before, the start is still found
    return -(miss.square() / S + S.log())[:, late].sum(1)


def scanned(combine: Callable[[Parts, Parts], Parts], parts: Parts) -> Parts:
    """All prefixes of an associative product along the second dimension."""
    reach, count = 1, parts[0].shape[1]
    while reach < count:
        done = combine(tuple(x[:, :-reach] for x in parts), tuple(x[:, reach:] for x in parts))
        parts = tuple(torch.cat([x[:, :reach], y], 1) for x, y in zip(parts, done, strict=True))
        reach *= 2
    return parts
