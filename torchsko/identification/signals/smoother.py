r"""Positions, velocities and accelerations from noisy positions: Kalman's filter and smoother, as scans.

The acceleration is a random walk: x = (q, qd, qdd) moves by F(h) with the covariance s Q(h) of white jerk,
and q is seen with noise r, but where it is missing or far off. Times may be uneven, and nothing is smoothed
across a break as long as that between logs that are joined. Filter and smoother are products of elements that
may be taken in any grouping, so a log of n samples takes log2(n) passes over all of it, and all joints go
together.

Reference: S. Sarkka, A. Garcia-Fernandez, *Temporal parallelization of Bayesian smoothers*, IEEE Trans.
Automatic Control 66(1), 2021, Lemmas 7 to 10; H. Rauch, F. Tung, C. Striebel, *Maximum likelihood estimates
of linear dynamic systems*, AIAA Journal 3(8), 1965.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.signals.cleaning import in_rows, repaired

Array = NDArray[np.floating[Any]]
Parts = tuple[Tensor, ...]

JERKS = tuple(10.0**k for k in range(-8, 3))
"""Standard deviations of the jerk over one step, in units of the noise, of which the likeliest is taken."""

BREAK = 0.99
"""Time between samples from which on what comes is another motion [s]: a second, but for rounding."""

START = 3
"""Steps after a start whose positions say nothing of the jerk: they tell what it starts with."""

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
        unseen: samples that were missing or stand out of their neighbours, `[samples, joints]`: what the
            others tell is given there.
    """

    q: Array
    qd: Array
    qdd: Array
    deviation: Array
    jerk: Array
    unseen: NDArray[np.bool_]


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
        FitError: on a noise or jerk that is not positive or fits no joint, or times that do not ascend.
    """
    _refuse_times(t)
    r = _of_each("noise", noise, q.shape[1])
    rows, bad = repaired(t, in_rows(q))
    step = float(np.median(np.diff(t)))
    h = torch.from_numpy(np.diff(t) / step)
    # In units of the noise and the step all numbers are near one.
    y = torch.from_numpy((rows - rows[:, :1]) / r[:, None])
    seen = _Seen(y, torch.from_numpy(~bad), torch.from_numpy(np.append(True, np.diff(t) >= BREAK)))
    unit = r / step**2 / np.sqrt(step)
    if jerk is None:
        scores = torch.stack([_likelihood(h, seen, y.new_full((len(y),), s)) for s in JERKS])
        s = torch.tensor(JERKS, dtype=y.dtype)[scores.argmax(0)]
    else:
        s = torch.from_numpy(_of_each("jerk", jerk, q.shape[1]) / unit)
    m, P = _backward(h, seen, s, *_forward(h, seen, s))
    scale = r * np.array([1.0, 1 / step, 1 / step**2])[:, None]
    states = m[..., 0].permute(2, 1, 0).numpy() * scale[:, None]
    wide = (
        P.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().permute(2, 1, 0).numpy() * scale[:, None]
    )
    start = rows[:, 0]
    return Smoothed(states[0] + start, states[1], states[2], wide, s.numpy() * unit, bad.T)


def _refuse_times(t: Array) -> None:
    wrong = np.flatnonzero(~(np.diff(t) > 0))  # also of what is no number
    if len(wrong):
        k = int(wrong[0])
        raise FitError(
            f"the time at sample {k + 1} is {t[k + 1]:.15g} s, after {t[k]:.15g} s.",
            "A smoother goes on from sample to sample: times ascend.",
            "Sort the samples, and leave out those that come twice or without a time.",
        )


def _of_each(name: str, given: float | Array, joints: int) -> NDArray[np.float64]:
    """A positive number of each joint, of one of all or one of each."""
    x = np.asarray(given, np.float64)
    if x.shape not in ((), (1,), (joints,)) or not ((x > 0) & np.isfinite(x)).all():
        advice = {
            "noise": "the standard deviation of q: an encoder's step over 3.5, say",
            "jerk": "the acceleration's standard deviation after a second, or leave it out: it is chosen",
        }
        raise FitError(
            f"the {name} is {given}.",
            f"A smoother weighs positions by it: a positive number, of all joints or of each of {joints}.",
            f"Pass {advice[name]}.",
        )
    return np.broadcast_to(x, joints)


class _Seen(NamedTuple):
    """Positions in units of the noise.

    Attributes:
        y: `[joints, samples]`; any number where there is none.
        there: whether there is one, `[joints, samples]`.
        fresh: samples that nothing before tells of, `[samples]`.
    """

    y: Tensor
    there: Tensor
    fresh: Tensor


def _motion(h: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """F of each step, `[steps, 3, 3]`, and the covariance of its jerk, `[joints, steps, 3, 3]`."""
    one, none = torch.ones_like(h), torch.zeros_like(h)
    F = torch.stack([one, h, h**2 / 2, none, one, h, none, none, one], -1).reshape(-1, 3, 3)
    rows = [h**5 / 20, h**4 / 8, h**3 / 6, h**4 / 8, h**3 / 3, h**2 / 2, h**3 / 6, h**2 / 2, h]
    return F, s.square()[:, None, None, None] * torch.stack(rows, -1).reshape(-1, 3, 3)


def _forward(h: Tensor, seen: _Seen, s: Tensor) -> tuple[Tensor, Tensor]:
    """Kalman's filter: means `[joints, samples, 3, 1]` and covariances `[joints, samples, 3, 3]`."""
    F, Q = _motion(h, s)
    y, there = seen.y[..., None, None], seen.there.to(seen.y)[..., None, None]
    S = Q[..., :1, :1] + 1
    K = there[:, 1:] * Q[..., :, :1] / S
    eye = torch.eye(3).to(y)
    keep = eye - torch.cat([K, torch.zeros_like(K), torch.zeros_like(K)], -1)
    row = F[:, :1, :]  # H F
    moved = (
        keep @ F, K * y[:, 1:], keep @ Q,
        there[:, 1:] * row.mT * y[:, 1:] / S, there[:, 1:] * row.mT @ row / S,
    )  # fmt: skip
    # Where it starts the position is as good as its noise, if it is there; rates are vague.
    none = torch.zeros_like(y)
    first = torch.where(there > 0, torch.ones_like(y), torch.full_like(y, VAGUE**2))
    vague = torch.full_like(y, VAGUE**2)
    wide = torch.diag_embed(torch.cat([first, vague, vague], -2)[..., 0])
    start = torch.cat([y, none, none], -2)
    begun = (0 * wide, start, wide, 0 * start, 0 * wide)
    fresh = seen.fresh[:, None, None]
    parts = tuple(
        torch.where(fresh, x, torch.cat([x[:, :1], rest], 1))
        for x, rest in zip(begun, moved, strict=True)
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


def _backward(h: Tensor, seen: _Seen, s: Tensor, m: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
    """Rauch, Tung and Striebel's smoother of what the filter gave."""
    F, Q = _motion(h, s)
    ahead = F @ P[:, :-1] @ F.mT + Q
    E = torch.linalg.solve(ahead, F @ P[:, :-1]).mT
    # What starts anew tells nothing of what was before.
    E = torch.where(seen.fresh[1:, None, None], torch.zeros_like(E), E)
    g = m[:, :-1] - E @ F @ m[:, :-1]
    # P less E F P, as a sum of squares: a start's P is vague, and that difference its rounding.
    keep = torch.eye(3).to(E) - E @ F
    L = keep @ P[:, :-1] @ keep.mT + E @ Q @ E.mT
    parts = tuple(
        torch.cat([x, last], 1).flip(1)
        for x, last in ((E, torch.zeros_like(P[:, -1:])), (g, m[:, -1:]), (L, P[:, -1:]))
    )
    _, m, P = scanned(lambda later, x: (x[0] @ later[0], x[0] @ later[1] + x[1],
                                        x[0] @ later[2] @ x[0].mT + x[2]), parts)  # fmt: skip
    return m.flip(1), P.flip(1)


def _likelihood(h: Tensor, seen: _Seen, s: Tensor) -> Tensor:
    """Log likelihood of each joint's positions, up to a constant."""
    m, P = _forward(h, seen, s)
    F, Q = _motion(h, s)
    row = F[:, :1, :]
    S = (row @ P[:, :-1] @ row.mT + Q[..., :1, :1])[..., 0, 0] + 1
    miss = seen.y[:, 1:] - (row @ m[:, :-1])[..., 0, 0]
    # At first the start is still found.
    last = torch.where(seen.fresh, torch.arange(len(seen.fresh)), 0).cummax(0).values
    late = torch.arange(len(last)) - last > START
    score = -(miss.square() / S + S.log())
    return torch.where(seen.there[:, 1:] & late[1:], score, torch.zeros_like(score)).sum(1)


def scanned(combine: Callable[[Parts, Parts], Parts], parts: Parts) -> Parts:
    """All prefixes of an associative product along the second dimension."""
    reach, count = 1, parts[0].shape[1]
    while reach < count:
        done = combine(tuple(x[:, :-reach] for x in parts), tuple(x[:, reach:] for x in parts))
        parts = tuple(torch.cat([x[:, :reach], y], 1) for x, y in zip(parts, done, strict=True))
        reach *= 2
    return parts
