"""A log made ready for a fit: evenly sampled, filtered without phase, its faults marked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchsko.errors import FitError
from torchsko.learn.filtering import Kernel, bandwidth, derivative, low_pass, widened
from torchsko.learn.log import Log
from torchsko.mechanism.mechanism import Mechanism

Array = NDArray[np.floating[Any]]

ROOM = 10.0
"""Cut-off over the bandwidth of the motion: forces have harmonics of the motion (Gautier 1997)."""

GAP = 0.25
"""Time without samples that is a gap, over the cut-off's period: what lies on its sides is filtered apart."""

LONG = 100.0
"""Missing samples in a row across which no spectrum is taken."""

OUTLIER = 30.0
"""Deviation from neighbours over the usual one beyond which a sample is no measurement."""

BURST = 3
"""Longest run of outliers that is found [samples]."""

FINE = 16.0
"""Rate of filtered states over the cut-off: forces are computed of states, and have higher frequencies."""

COARSE = 5.0
"""Rate of filtered forces over the cut-off."""

PIECE = 200_000
"""Samples of a log that are read at once."""


@dataclass(frozen=True, eq=False)
class Settings:
    """How a log is filtered; the same for every piece.

    Attributes:
        rate: of the even samples [Hz].
        cutoff: [Hz].
        chosen: whether the data chose the cut-off.
        states: takes samples to states.
        rates: the same and its derivative.
        accels: the second derivative.
        forces: takes forces at the rate of the states to forces filtered.
    """

    rate: float
    cutoff: float
    chosen: bool
    states: Kernel
    rates: Kernel
    accels: Kernel
    forces: Kernel

    @classmethod
    def of(cls, rate: float, cutoff: float, chosen: bool = False) -> Settings:
        """Kernels of a rate and a cut-off."""
        every = max(1, int(rate / (FINE * cutoff)))
        low = low_pass(cutoff, rate, every)
        first = derivative(low, rate)
        second = derivative(first, rate)
        low, first = (widened(kernel, second.reach) for kernel in (low, first))
        again = max(1, int(rate / every / (COARSE * cutoff)))
        return cls(rate, cutoff, chosen, low, first, second, low_pass(cutoff, rate / every, again))

    @property
    def fine(self) -> float:
        """Rate of the states [Hz]."""
        return self.rate / self.states.every

    @property
    def gap(self) -> float:
        """Time between two samples that is a gap [s]."""
        return max(GAP / self.cutoff, 2.5 / self.rate)

    @property
    def coarse(self) -> float:
        """Rate of the filtered forces [Hz]."""
        return self.fine / self.forces.every


@dataclass(frozen=True, eq=False)
class Motion:
    """Filtered states and forces without a gap.

    Attributes:
        t: `[samples]` [s].
        q: `[samples, num_q]`.
        qd: `[samples, num_dof]`.
        qdd: `[samples, num_dof]`.
        tau: `[samples, num_dof]`.
        rate: of tau, `[samples, num_dof]` [N m/s or N/s].
        good: 0 where a force says nothing (saturated, or made up for one missing), else 1,
            `[samples, num_dof]`.
        settings: how the log was filtered.
    """

    t: Tensor
    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor
    rate: Tensor
    good: Tensor
    settings: Settings

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.t)


@dataclass
class Faults:
    """What was wrong in a log, counted while it is read; lines to read.

    Attributes:
        gaps: number of them.
        outliers: samples replaced, by joint.
        saturated: samples of forces at their limit, by joint.
        short: pieces between gaps that were too short for the filter.
    """

    gaps: int = 0
    short: int = 0
    outliers: dict[str, int] = field(default_factory=dict)
    saturated: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Each fault and what was done about it."""
        out = [f"{self.gaps} gaps: filtered apart"] if self.gaps else []
        if self.short:
            out.append(f"{self.short} pieces between gaps too short for the filter: left out")
        out += [
            f"{n} outliers at {joint}: interpolated, and of no weight"
            for joint, n in self.outliers.items()
        ]
        out += [
            f"{n} forces of {joint} at their limit: of no weight"
            for joint, n in self.saturated.items()
        ]
        return out


def settings_of(log: Log, cutoff: float | None = None) -> Settings:
    """The rate of a log, and the cut-off of its filter, chosen by the motion where none is given.

    The cut-off is ten times the frequency below which 99% of the power of the velocities lies.

    Raises:
        FitError: when nothing moves, times do not grow, or the cut-off does not fit.
    """
    t = np.asarray(log.t[: 4 * PIECE], np.float64)
    if not np.isfinite(t).all():
        raise FitError(
            f"{log.name}: {int((~np.isfinite(t)).sum())} times are not finite.\n"
            "Samples are placed by their time.\nLeave those samples out."
        )
    steps = np.diff(t)
    if (steps <= 0).any():
        k = int(np.flatnonzero(steps <= 0)[0])
        raise FitError(
            f"{log.name}: the time at sample {k + 1} is {t[k + 1]:.6g} s, after {t[k]:.6g} s.\n"
            "Times ascend.\nSort the samples and leave out those that come twice."
        )
    rate = 1 / float(np.median(steps))
    if cutoff is not None:
        return Settings.of(rate, cutoff)
    first = int(np.flatnonzero(np.append(steps > LONG / rate, True))[0]) + 1
    longest = t[:first] if first > len(t) // 2 else t
    even = longest[0] + np.arange(int((longest[-1] - longest[0]) * rate)) / rate
    (q,) = _even(longest, even, [np.asarray(log.q[: len(longest)], np.float64)])
    if not (np.ptp(q, axis=0) > 0).any():
        raise FitError(
            f"{log.name}: no joint moves.\n"
            "Parameters show in forces of motion.\nCheck the columns of q, and its units."
        )
    chosen = ROOM * bandwidth(q, rate)
    # Not so low that the filter is longer than a twentieth of the log.
    least = 20 / (even[-1] - even[0])
    return Settings.of(rate, float(np.clip(chosen, least, rate / 8)), chosen=True)


def motions(
    mech: Mechanism, log: Log, settings: Settings, faults: Faults, piece: int = PIECE
) -> Iterator[Motion]:
    """A log in pieces, each filtered, which overlap: forces filtered are those of the whole.

    Args:
        mech: whose joints the columns are.
        log: read from its arrays piece by piece.
        settings: from `settings_of`.
        faults: what is found wrong is counted here.
        piece: samples read at once.

    Yields:
        Motions, in order of time.
    """
    check_columns(mech, log)
    kernel, again = settings.states, settings.forces
    # A stride that both filters keep, so that pieces meet.
    stride = kernel.every * again.every
    lap = 2 * kernel.reach + 2 * again.reach * kernel.every
    for start, stop in stretches(log, settings):
        faults.gaps += start > 0
        first = float(log.t[start])
        total = int(np.floor((float(log.t[stop - 1]) - first) * settings.rate * (1 + 1e-9))) + 1
        at, made = 0, 0
        while at < total:
            end = min(at + max(piece // stride, 1) * stride + lap, total)
            even = first + np.arange(at, end) / settings.rate
            found = _filtered(mech, log, settings, faults, (start, stop), even)
            if found is not None:
                made += 1
                yield found
            if end == total:
                break
            at += max(piece // stride, 1) * stride
        faults.short += made == 0


def stretches(log: Log, settings: Settings) -> Iterator[tuple[int, int]]:
    """Samples between gaps, as ranges."""
    start, total = 0, len(log)
    for at in range(0, total, 4 * PIECE):
        t = np.asarray(log.t[max(at - 1, 0) : at + 4 * PIECE], np.float64)
        for k in np.flatnonzero(np.diff(t) > settings.gap):
            stop = max(at - 1, 0) + int(k) + 1
            yield start, stop
            start = stop
    yield start, total


def check_columns(mech: Mechanism, log: Log) -> None:
    """Refuse a log that is another robot's.

    Raises:
        FitError: on another number of columns.
    """
    sizes = {"q": mech.num_q, "qd": mech.num_dof, "tau": mech.num_dof}
    for name, size in sizes.items():
        x = getattr(log, name)
        if x is not None and x.shape[1] != size:
            raise FitError(
                f"{log.name}: {name} has {x.shape[1]} columns, {mech.name!r} has {size}.\n"
                f"Columns are the joints {', '.join(mech.joint_names[:8])}, in this order.\n"
                "Leave the others out, or lock joints that were not logged: mech.lock({...})."
            )
    odd = [n for n, k in zip(mech.joint_names, mech.independent_joints, strict=True)
           if not mech.joints.kinds[k].vector]  # fmt: skip
    if odd and log.qd is None:
        raise FitError(
            f"joint {odd[0]!r} turns by a quaternion, and the log has no velocities.\n"
            "Velocities come from positions only where these are a vector.\n"
            "Log qd as well."
        )


def _filtered(
    mech: Mechanism,
    log: Log,
    settings: Settings,
    faults: Faults,
    stretch: tuple[int, int],
    even: Array,
) -> Motion | None:
    """A stretch of a log at even times, or None where they are too few."""
    low, first, second = settings.states, settings.rates, settings.accels
    if low.count(len(even)) == 0 or settings.forces.count(low.count(len(even))) == 0:
        return None
    start, stop = stretch
    times = log.t[start:stop]
    # One sample more on each side, so that the ends of a piece are interpolated as its middle.
    rows = slice(
        start + max(int(np.searchsorted(times, even[0])) - 1, 0),
        start + min(int(np.searchsorted(times, even[-1])) + 2, stop - start),
    )
    t = np.asarray(log.t[rows], np.float64)
    parts = [np.asarray(x[rows], np.float64) for x in (log.q, log.tau)]
    parts += [] if log.qd is None else [np.asarray(log.qd[rows], np.float64)]
    limit = mech.effort_limit.detach().cpu().numpy()
    held = np.abs(parts[1]) >= 0.999 * np.where(np.isfinite(limit), limit, np.inf)
    count(faults.saturated, mech, held)
    mended = [_repaired(t, x) for x in parts]
    parts, bad = [x for x, _ in mended], mended[1][1]
    count(faults.outliers, mech, bad)
    held = held | bad
    parts = _even(t, even, [*parts, held.astype(np.float64)])
    q, tau, *qd, held = (torch.from_numpy(np.ascontiguousarray(x)) for x in parts)
    good = (low(held) < 0.02).to(q)
    states = (low(q), low(qd[0]), first(qd[0])) if qd else (low(q), first(q), second(q))
    at = torch.from_numpy(even)[low.reach :: low.every][: len(good)]
    return Motion(at, *states, low(tau), first(tau), good, settings)


def count(into: dict[str, int], mech: Mechanism, bad: NDArray[np.bool_]) -> None:
    """Add how many samples of each joint are bad."""
    for joint in mech.joint_names:
        n = int(bad[:, mech.dof_slice(joint)].sum())
        if n:
            into[joint] = into.get(joint, 0) + n


def _repaired(t: Array, x: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Samples that stand out of their neighbours, or are not finite, interpolated; and which."""
    bad = ~np.isfinite(x)
    filled = np.where(bad, 0.0, x)
    # The middle one of three: bursts are shorter than what lies between them.
    padded = np.pad(filled, ((BURST, BURST), (0, 0)), mode="edge")
    before, after = padded[: -2 * BURST], padded[2 * BURST :]
    low, high = np.minimum(before, after), np.maximum(before, after)
    off = np.maximum(np.maximum(low - filled, filled - high), 0.0)
    # Noise is the usual deviation; turns of fast motion deviate by a small part of the whole.
    usual = np.maximum(1.4826 * np.median(off, axis=0), off.mean(0))
    bad |= off > np.maximum(OUTLIER * usual, 0.05 * filled.std(0))
    if not bad.any():
        return x, bad
    out = np.array(x, np.float64)
    for j in np.flatnonzero(bad.any(0)):
        keep = ~bad[:, j]
        out[:, j] = np.interp(t, t[keep], x[keep, j]) if keep.any() else np.zeros(len(t))
    return out, bad


def _even(t: Array, even: Array, parts: list[Array]) -> list[Array]:
    """Samples at even times: those there are, or between them on a line."""
    near = np.clip(np.searchsorted(t, even - 0.5 * (even[1] - even[0])), 0, len(t) - 1)
    if np.abs(t[near] - even).max() < 1e-3 * (even[1] - even[0]):
        return [x[near] for x in parts]
    return [np.stack([np.interp(even, t, column) for column in x.T], -1) for x in parts]
