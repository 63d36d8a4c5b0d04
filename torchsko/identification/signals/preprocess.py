"""A log made ready for a fit: evenly sampled, filtered without phase, its faults marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.logs.log import Log
from torchsko.identification.logs.memmap import forget
from torchsko.identification.signals.cleaning import (
    BURST,
    Faults,
    count,
    even_samples,
    in_rows,
    in_runs,
    repaired,
    without_flips,
)
from torchsko.identification.signals.duplicate_samples import repeats, without
from torchsko.identification.signals.filter_settings import Settings
from torchsko.mechanism.mechanism import Mechanism

Array = NDArray[np.floating[Any]]

PIECE = 200_000
"""Samples of a log that are read at once."""

AT_LIMIT = 0.999
"""Part of a drive's limit from which on a force is at it, where it tells nothing."""

REACHED = 1e-4
"""Share of a filter's weight on positions that are missing, up to which a state counts."""


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


@dataclass(frozen=True)
class Piece:
    """A part of a stretch without gaps that is filtered at once.

    Attributes:
        stretch: samples of the log between two gaps.
        start: of the stretch [s].
        rows: even samples from there on.
    """

    stretch: tuple[int, int]
    start: float
    rows: tuple[int, int]


def pieces(log: Log, settings: Settings, faults: Faults, piece: int | None = None) -> list[Piece]:
    """The parts of a log, which overlap: forces filtered are those of the whole.

    Args:
        log: only its times are read.
        settings: from `settings_of`.
        faults: gaps, and stretches too short for the filter, are counted here.
        piece: samples of each; `PIECE` when left out.
    """
    kernel, again = settings.states, settings.laws
    # A stride that both filters keep, so that pieces meet.
    every = kernel.every * again.every
    stride = max((PIECE if piece is None else piece) // every, 1) * every
    lap = 2 * kernel.reach + 2 * again.reach * kernel.every
    out: list[Piece] = []
    for start, stop in stretches(log, settings):
        faults.gaps += start > 0
        first = float(log.t[start])
        total = int(np.floor((float(log.t[stop - 1]) - first) * settings.rate * (1 + 1e-9))) + 1
        if total <= lap:
            faults.short += 1
            continue
        last = -(-(total - lap) // stride)  # what is left after it is shorter than the filters
        out += [
            Piece((start, stop), first, (k * stride, min((k + 1) * stride + lap, total)))
            for k in range(last)
        ]
    return out


def motions(
    mech: Mechanism, log: Log, settings: Settings, faults: Faults, piece: int | None = None
) -> Iterator[Motion]:
    """A log, filtered piece by piece.

    Args:
        mech: whose joints the columns are.
        log: read from its arrays piece by piece.
        settings: from `settings_of`.
        faults: what is found wrong is counted here.
        piece: samples read at once; `PIECE` when left out.

    Yields:
        Motions, in order of time.
    """
    check_columns(mech, log)
    for part in pieces(log, settings, faults, piece):
        yield filtered(mech, log, settings, faults, part)


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
                f"{log.name}: {name} has {x.shape[1]} columns, {mech.name!r} has {size}.",
                f"Columns are those of the joints {', '.join(_columns(mech, name)[:8])}, in this order.",
                "Leave the others out, or lock joints that were not logged: mech.lock({...}).",
            )
    odd = turning(mech)
    if odd and log.qd is None:
        raise FitError(
            f"joint {odd[0]!r} turns by a quaternion, and the log has no velocities.",
            "Velocities come from positions only where these are a vector.",
            "Log qd as well.",
        )


def _columns(mech: Mechanism, name: str) -> list[str]:
    """Joints with the names of their columns of q, qd or tau, where these are several."""
    out = []
    for joint, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        kind = mech.joints.kinds[k]
        own = kind.coordinates if name == "q" else kind.rates
        out.append(joint if len(own) == 1 else f"{joint} ({', '.join(own)})")
    return out


def turning(mech: Mechanism) -> list[str]:
    """Names of joints whose coordinates are no vector."""
    named = zip(mech.joint_names, mech.independent_joints, strict=True)
    return [name for name, k in named if not mech.joints.kinds[k].vector]


def filtered(mech: Mechanism, log: Log, settings: Settings, faults: Faults, piece: Piece) -> Motion:
    """A piece of a log at even times; what is wrong in it is counted in `faults`."""
    bank = settings.states
    start, stop = piece.stretch
    even = piece.start + np.arange(*piece.rows) / settings.rate
    times = log.t[start:stop]
    # One sample more on each side, so that the ends of a piece are interpolated as its middle.
    rows = slice(
        start + max(int(np.searchsorted(times, even[0])) - 1, 0),
        start + min(int(np.searchsorted(times, even[-1])) + 2, stop - start),
    )
    t = np.asarray(log.t[rows], np.float64)
    measured = [log.q, log.tau] if log.qd is None else [log.q, log.tau, log.qd]
    parts = [in_rows(x[rows]) for x in measured]
    forget(log)
    limit = mech.effort_limit.detach().cpu().numpy()[:, None]
    held = np.abs(parts[1]) >= AT_LIMIT * limit
    if settings.ends is not None:
        least, most = settings.ends[..., None]
        held |= (parts[1] <= least) | (parts[1] >= most)
    for marks, force, values in zip(held, parts[1], settings.levels, strict=False):
        marks |= np.isin(force, values)
    held &= np.isfinite(parts[1])  # what is infinite no drive gave: an outlier
    count(faults.saturated, mech, held)
    parts[0] = without_flips(mech, parts[0])
    old = [repeats(x) for x in parts[::2]]
    none = np.zeros(parts[1].shape, np.bool_)
    new = map(without, [old[0], none, *old[1:]], parts)
    mended = [repaired(t, x) for x in new]
    parts, bad = [x for x, _ in mended], mended[1][1]
    count(faults.outliers, mech, bad)
    held |= bad
    lost = _lost(mech, settings, faults, [bad for _, bad in mended[::2]], old)
    q, tau, *qd = (torch.from_numpy(x) for x in even_samples(t, even, parts))
    if qd:
        (at,), (rate, accel) = bank(q, 0), bank(qd[0], 0, 1)
    else:
        at, rate, accel = bank(q, 0, 1, 2)
    force, slope = bank(tau, 0, 1)

    def share(marks: NDArray[np.bool_]) -> Tensor:
        """What part of each state is of samples that are marked."""
        (evenly,) = even_samples(t, even, [marks.astype(np.float64)])
        return bank(torch.from_numpy(evenly), 0)[0]

    good = torch.ones_like(force)
    if held.any():
        good = (share(held) < 0.02).to(force)
    if lost.any():
        # What stands there is made up: nothing that it reaches counts, as beside a gap.
        good = good * (share(lost).abs() < REACHED).to(force)
    times = torch.from_numpy(even)[bank.reach :: bank.every][: force.shape[1]]
    at, rate, accel, force, slope, good = (
        x.mT.contiguous() for x in (at, rate, accel, force, slope, good)
    )
    return Motion(times, at, rate, accel, force, slope, good, settings)


def _lost(
    mech: Mechanism, settings: Settings, faults: Faults, bad: Sequence[NDArray[np.bool_]],
    old: Sequence[NDArray[np.bool_]],
) -> NDArray[np.bool_]:  # fmt: skip
    """Samples at which no force counts: a position or velocity is missing too long, `[1, samples]`.

    Args:
        mech: whose joints they are.
        settings: what is a gap.
        faults: where they are counted.
        bad: positions `[num_q, samples]`, and velocities `[num_dof, samples]` if there are, that were
            replaced.
        old: of these, that repeated the one before.
    """
    none = np.zeros((1, bad[0].shape[1]), np.bool_)
    if not any(x.any() for x in bad):
        return none
    longest = max(BURST, round(settings.gap * settings.rate))
    for marks, again, slices in zip(bad, old, (mech.q_slice, mech.dof_slice), strict=False):
        long = in_runs(marks, longest)
        none |= long.any(0)
        for joint in mech.joint_names:
            own = slices(joint)
            for into, x in (
                (faults.positions, marks & ~again), (faults.missing, long), (faults.repeated, again),
            ):  # fmt: skip
                if n := int(x[own].any(0).sum()):
                    into[joint] = into.get(joint, 0) + n
    return none
