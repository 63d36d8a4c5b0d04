"""Checks that a log has enough data for a fit, and columns for the forces of a floating base."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchsko.errors import FitError
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.normal_equations import NormalEquations, complete_folds
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import (
    MAX_SPECTRUM_SAMPLES,
    FilterSettings,
    cutoff_for_gaps,
)
from torchsko.identification.signals.saturation import at_effort_limit
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.mechanism import Mechanism

CHUNK = 200_000
"""Number of samples of a log that are in memory at once."""

MIN_CUTOFF_PERIODS = 20.0
"""Smallest cut-off that is advised, in periods over the log."""

MAX_MISSING = 0.1
"""Share of missing forces above which they are the likely reason that no filtered sample is left."""


def add_base_forces(mech: Mechanism, log: Log) -> Log:
    """Add columns of nan for the forces of a floating base to a log of the other joints' forces.

    Args:
        mech: the robot.
        log: forces of all joints, or of all joints but the floating base.
    """
    floating = [k for name in free_joints(mech) for k in range(mech.num_dof)[mech.dof_slice(name)]]
    if not floating or log.tau.shape[1] != mech.num_dof - len(floating):
        return log
    tau = np.full((len(log), mech.num_dof), np.nan)
    tau[:, np.delete(np.arange(mech.num_dof), floating)] = log.tau
    return replace(log, tau=tau)


def unmeasured_dofs(mech: Mechanism, log: Log) -> tuple[int, ...]:
    """Dofs whose force is never a finite number.

    Args:
        mech: the robot.
        log: forces of all dofs.

    Raises:
        FitError: when no force was measured.
    """
    dofs = list(range(mech.num_dof))
    for at in range(0, len(log), CHUNK):
        if not dofs:
            return ()
        finite = np.any(np.isfinite(np.asarray(log.tau[at : at + CHUNK])), axis=0)
        log.release_pages()
        dofs = [k for k in dofs if not finite[k]]
    if len(dofs) == mech.num_dof:
        raise FitError(
            f"{log.name}: no force is a finite number.",
            "Inertial parameters cannot be identified without forces.",
            "Check the columns of tau. Put zeros if the robot is in free flight.",
        )
    return tuple(dofs)


def without_unmeasured(mech: Mechanism, faults: LogDefects, dofs: tuple[int, ...]) -> LogDefects:
    """Remove forces that were not measured from the counts of outliers."""
    whole = {
        name
        for name in mech.joint_names
        if set(range(mech.num_dof)[mech.dof_slice(name)]) <= set(dofs)
    }
    return replace(faults, outliers={k: n for k, n in faults.outliers.items() if k not in whole})


def check_sufficient_data(
    log: Log, mech: Mechanism, normal: NormalEquations, settings: FilterSettings
) -> None:
    """Check that each joint has filtered forces, in at least two folds of time.

    Raises:
        FitError: names the joint, and the likely reason.
    """
    total, unmeasured = normal.count.sum(0).tolist(), unmeasured_dofs(mech, log)
    names = mech.dof_names
    empty = [k for k, n in enumerate(total) if n == 0 and k not in unmeasured]
    if empty:
        raise _no_sample(log, mech, settings, empty[0], names[empty[0]])
    if len(complete_folds(normal.count)) < 2:
        raise FitError(
            f"{log.name}: all samples of a joint lie in one of {len(normal.count)} time intervals.",
            f"Cross-validation needs samples in two intervals. The filter of {settings.cutoff:.3g} Hz needs "
            f"{settings.half_width:.3g} s without a gap on each side of a sample.",
            _gap_advice(log, settings),
        )


def _no_sample(
    log: Log, mech: Mechanism, settings: FilterSettings, dof: int, name: str
) -> FitError:
    """The error of a joint without any filtered force."""
    tau = np.asarray(log.tau[:, dof])
    missing = float((~np.isfinite(tau)).mean())
    if missing > MAX_MISSING:
        return FitError(
            f"{log.name}: {100 * missing:.3g} percent of the forces of joint {name!r} are missing.",
            "Filtered forces near a missing sample are not used, and no other is left.",
            "Keep only samples that have a force.",
        )
    limit = mech.effort_limit[dof].item()
    saturated = float(at_effort_limit(tau[None], np.array([limit])).mean())
    if saturated > 0:
        return FitError(
            f"{log.name}: no sample of joint {name!r} is left.",
            f"{100 * saturated:.3g} percent of its forces, up to {np.nanmax(np.abs(tau)):.3g}, reach the "
            f"effort limit of {limit:.3g}. The filter needs {settings.half_width:.3g} s below it on each "
            "side.",
            f"If they are in another unit, declare it, such as --unit tau.{name}=mNm or --unit tau.{name}=A. "
            "Otherwise correct the limit in the robot's file, or by mech.replace(effort_limit=...).",
        )
    return FitError(
        f"{log.name}: no sample of joint {name!r} is left.",
        f"The filter of {settings.cutoff:.3g} Hz needs {settings.half_width:.3g} s without a gap on each "
        "side of a sample.",
        _gap_advice(log, settings),
    )


def _gap_advice(log: Log, settings: FilterSettings) -> str:
    """Advice for a log of which gaps or its length leave too little: another cut-off, or a longer log."""
    t = np.asarray(log.t[:MAX_SPECTRUM_SAMPLES], np.float64)
    gap, duration = float(np.diff(t).max()), float(t[-1] - t[0])
    text = ""
    if gap > settings.max_gap:
        text = (
            f"Samples may be {settings.max_gap:.2g} s apart at this cut-off, and the longest gap is "
            f"{gap:.2g} s. "
        )
        lower = cutoff_for_gaps(t, settings.rate, settings.cutoff, MIN_CUTOFF_PERIODS / duration)
        if lower is not None:
            return f"{text}Pass a lower cutoff: --cutoff {lower:.2g} or cutoff={lower:.2g}."
    higher = min(settings.cutoff * duration / (4 * settings.half_width), settings.rate / 2)
    if duration > 0 and settings.half_width > duration / 4 and higher > settings.cutoff:
        return f"{text}Log for a longer time, or pass a higher cutoff, at least {higher:.2g} Hz."
    return f"{text}Log for a longer time without gaps."
