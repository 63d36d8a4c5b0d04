"""Notes on a log and a fit, a line of text each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.diagnostics.missing_forces import unmeasured
from torchsko.identification.friction import Offset, Spring, Term, Viscous
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.accumulate import ResidualSample
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.least_squares import ParameterUncertainty
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.regression.rigid_model import dof_positions
from torchsko.identification.regression.solution import TermChoice
from torchsko.identification.selection.cross_validation import complete_folds
from torchsko.identification.selection.torque_ripple import RippleComponent
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import (
    CUTOFF_RATIO,
    MIN_CUTOFF_RATIO,
    MIN_RATE_RATIO,
    FilterSettings,
)
from torchsko.identification.signals.preprocess import SATURATED_SHARE, FilteredMotion
from torchsko.identification.uncertainty.measurement_bias import PositionNoise
from torchsko.identification.uncertainty.residuals import CONSTANT_TOLERANCE, Residuals
from torchsko.mechanism.mechanism import Mechanism

NAMED = 12
"""Numbers of a combination that are named at most."""


STILL = 1e-3
"""Standard deviation of positions up to which a joint may be standing still [rad or m]."""


FAR = 0.1
"""Way beyond a limit, over the range between both, from which on one of them is wrong."""


NOISY = 0.01
"""Standard deviation of positions up to which all of them may be noise [rad or m]."""


UNLIKE = 0.5
"""Error over the spread of a force from which on it is not predicted: three quarters of its square are."""


REST = 2.0
"""Times of the cut-off's period that a joint stays in one place for, where it stands."""


BARELY = 1e-3
"""Its way meanwhile over that of the log, at most: what creeps goes further."""


OFTEN = 0.1
"""Share of the time that it stands, from which on that is told."""


SLOW = 0.03
"""Its speed over that of the fastest, likewise: encoders and servos are never quite still."""


def standing(normal: NormalEquations, terms: Sequence[Term]) -> tuple[int, ...]:
    """Dofs that stood still: what they moved is noise, and friction or springs would be fitted to it.

    Args:
        normal: equations of one fold: all.
        terms: that there are, those of `LIBRARY` among them.
    """
    spread, speed = _moved(normal, terms)
    still = (spread <= STILL) & (speed <= SLOW**2 * speed.max())
    return tuple(still.nonzero().flatten().tolist())


def _moved(normal: NormalEquations, terms: Sequence[Term]) -> tuple[Tensor, Tensor]:
    """Standard deviation of positions, and mean square of velocities, `[num_dof]` each."""
    G, at = (
        mean_equations(normal),
        [normal.num_base + terms.index(x) for x in (Spring(), Offset(), Viscous())],
    )
    (position, _, _), (mean, one, _), (_, _, speed) = (G[:, k, at].unbind(-1) for k in at)
    spread = (position - mean.square() / one.clamp_min(1e-300)).clamp_min(0).sqrt()
    return spread, speed


def refuse_standing(
    problem: RegressionProblem, log: Log, settings: FilterSettings, normal: NormalEquations
) -> None:
    """Refuse a log in which all dofs stood still: they moved no further than the noise of their positions.

    Args:
        problem: whose robot and terms they are.
        log: to measure its noise.
        settings: how it was filtered.
        normal: equations of one fold: all.

    Raises:
        FitError: says what to log.
    """
    mech = problem.mech
    spread, _ = _moved(normal, problem.terms)
    if (spread > NOISY).any():
        return
    noise, most = PositionNoise.of(mech, log, settings).q, torch.zeros_like(spread)
    for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        if mech.joints.kinds[k].vector:
            most[mech.dof_slice(name)] = noise[mech.q_slice(name)].to(most)
    # The filter leaves less of noise than there is.
    if (spread <= most).all():
        raise FitError(
            f"{log.name}: no joint moves, but for noise of positions.",
            "Forces of a robot that stands tell one weight, and no inertia or friction.",
            "Log a motion; ts.identification.optimal_trajectory finds one that tells much.",
        )


def beyond(mech: Mechanism, motions: Sequence[FilteredMotion]) -> list[str]:
    """Lines that name joints which moved far beyond their limits: the file's are wrong, or the log's unit."""
    least = torch.stack([motion.q.amin(0) for motion in motions if len(motion)]).amin(0)
    most = torch.stack([motion.q.amax(0) for motion in motions if len(motion)]).amax(0)
    lines = []
    for name in mech.joint_names:
        at = mech.q_slice(name)
        for a, b, lo, hi in torch.stack([least, most, mech.lower, mech.upper])[:, at].mT.tolist():
            slack = FAR * (hi - lo)
            if hi > lo and (a < lo - slack or b > hi + slack):
                lines.append(
                    f"{name} moves from {a:.3g} to {b:.3g}, its limits are {lo:.3g} and {hi:.3g}: "
                    "these, or the unit of the log, are others"
                )
    return lines


def resting(
    mech: Mechanism, motions: Sequence[FilteredMotion], terms: Sequence[Term], choice: TermChoice
) -> list[str]:
    """A line that names dofs of dry friction which stand for a good part of a motion, with what to do.

    Dry friction of a joint at rest holds against whatever pulls, up to its size: no term says how much.

    Args:
        mech: whose joints they are.
        motions: of a log, filtered; what has no weight does not count.
        terms: that there are.
        choice: those of each dof.
    """
    least, most = (
        torch.stack([getattr(dof_positions(mech, x.q), name)(0) for x in motions if len(x)])
        for name in ("amin", "amax")
    )
    way = most.amax(0) - least.amin(0)
    still, total = torch.zeros_like(way), torch.zeros_like(way)
    for motion in motions:
        length = math.ceil(REST * motion.settings.state_rate / motion.settings.cutoff)
        if len(motion) >= length:
            q = dof_positions(mech, motion.q).unfold(0, length, length)
            good = motion.valid.unfold(0, length, length).amin(-1)
            still = still + (good * (q.amax(-1) - q.amin(-1) <= BARELY * way)).sum(0)
            total = total + good.sum(0)
    share = still / total.clamp_min(1)
    dry = [any(terms[k].friction and terms[k].nonnegative for k in some) for some in choice]
    rests = [j for j, x in enumerate(share.tolist()) if dry[j] and x > OFTEN and way[j] > STILL]
    if not rests:
        return []
    names, speed = mech.dof_names, torch.cat([x.qd for x in motions]).square().mean(0).sqrt()
    slow = f"{SLOW * float(speed[rests].min()):.1g}"
    advice = (
        "dataclasses.replace(log, tau=numpy.where(abs(numpy.gradient(log.q, log.t, axis=0)) < "
        f"{slow}, numpy.nan, log.tau))"
        if mech.num_q == mech.num_dof
        else f"nan where a joint is slower than {slow}"
    )
    told = ", ".join(f"{names[j]} {share[j]:.0%}" for j in rests)
    return [
        "stand still at times, where dry friction is anything up to its size, and numbers may lie further "
        f"off than their deviations say: {told} of the time. Leave forces of joints at rest out: {advice}"
    ]


def left_out(mech: Mechanism) -> list[str]:
    """A line that names forces of the robot's file that a log has and the model has not, if there are any."""
    told = [f"{x.element} ({x.reason})" for x in mech.unused if x.affects_forces]
    if not told:
        return []
    return [
        "in the measured forces and not in the model, so that other numbers take their part: "
        f"{'; '.join(told)}. What is known of them is set aside by tau of the log: springs and dampers of "
        "tendons by tau + ts.tendons_of(file, mech).force(mech, q, qd)"
    ]


def noted(mech: Mechanism, terms: Sequence[Term], choice: TermChoice) -> list[str]:
    """What has to be known of terms that were fitted, a line for each `Term.note`, with their joints."""
    told: dict[str, list[str]] = {}
    for name, some in zip(mech.dof_names, choice, strict=True):
        for note in dict.fromkeys(terms[k].report_note for k in some if terms[k].report_note):
            told.setdefault(note, []).append(name)
    return [f"{note}: {', '.join(names)}" for note, names in told.items()]


def unchanging(mech: Mechanism, left: Residuals) -> list[str]:
    """A line that names dofs whose force is the same all along, and not zero as where nothing drives."""
    most = left.tau.abs().amax(0)
    same = (left.spread <= CONSTANT_TOLERANCE * left.spread.max()) & (
        most > CONSTANT_TOLERANCE * most.max()
    )
    names = [name for name, x in zip(mech.dof_names, same.tolist(), strict=True) if x]
    if not names:
        return []
    return [f"the force does not change, as of a sensor that hangs: {', '.join(names)}"]


def unexplained(mech: Mechanism, left: Residuals, errors: Tensor) -> list[str]:
    """A line that names dofs whose force the fit does not predict, with what may be the cause.

    Args:
        mech: whose joints they are.
        left: forces of the log.
        errors: mean square errors in stretches of time left out, `[folds, num_dof]`.
    """
    over = left.relative(errors.mean(0).sqrt()).tolist()
    rows = [(name, x) for name, x in zip(mech.dof_names, over, strict=True) if x > UNLIKE]
    if not rows:
        return []
    told = ", ".join(f"{name} {x:.2g}" for name, x in rows)
    return [
        f"forces that the fit does not predict (error over spread): {told}. Units, signs, times or the order "
        "of columns may be others than said, or the model is without what pulls there"
    ]


def untold_lines(shares: Tensor, labels: Sequence[str], base: int) -> list[str]:
    """Lines that name numbers whose columns cancel each other, a line for each combination.

    Args:
        shares: from `untold`.
        labels: of base parameters and of the terms, in this order.
        base: how many of these are base parameters'.
    """
    alone = (shares > 0).sum(-1) == 1
    unseen = [x for x, one in zip(labels, (shares[alone] > 0).any(0).tolist(), strict=True) if one]
    lines = [f"no force of the log depends on: {', '.join(unseen)}"] if unseen else []
    for share in shares[~alone]:
        order: list[int] = share.argsort(descending=True).tolist()  # type: ignore[assignment]
        some = [k for k in order if share[k] > 0]
        # Terms first: of these one can leave some out.
        names = [labels[k] for k in sorted(some, key=lambda k: k < base)]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        lines.append(f"not told apart by the log: {', '.join(names[:NAMED])}{more}")
    return lines


WEIGHT = 1.5
"""Deviations that the bias of a number amounts to, from which on it is said: truth may be beyond three."""


def biased(
    mech: Mechanism, noise: PositionNoise, motions: Sequence[FilteredMotion], bias: Tensor,
    told: ParameterUncertainty,
    labels: Sequence[str], advice: str,
) -> list[str]:  # fmt: skip
    """A line where noise of positions moves numbers by as much as their deviations, or none.

    Args:
        mech: whose joints they are.
        noise: of the log.
        motions: of it.
        bias: from `noise_bias`.
        told: deviations.
        labels: of base parameters and of the terms, in this order.
        advice: what to do about it.
    """
    deviation = torch.cat([told.covariance.diagonal().clamp_min(0).sqrt(), *told.term_std])
    # What no noise spreads has no deviation to be biased by.
    away = (bias.abs() / deviation).nan_to_num(0.0, posinf=0.0)
    worst = int(away.argmax())
    if not away[worst] > WEIGHT:
        return []
    least, most = (
        torch.stack([getattr(x.q, name)(0) for x in motions if len(x)]) for name in ("amin", "amax")
    )
    size = int((noise.q / (most.amax(0) - least.amin(0)).clamp_min(1e-300)).argmax())
    what = f"{float(noise.q[size]):.2g} at {mech.coordinate_names[size]}"
    return [
        f"noise of positions ({what}) biases numbers by up to about {float(away[worst]):.2g} of their "
        f"deviations ({labels[worst]}): {advice}"
    ]


MISSING = 0.1
"""Share of a joint's forces from which on they are the reason that none is left."""


def enough(log: Log, mech: Mechanism, normal: NormalEquations, settings: FilterSettings) -> None:
    """Refuse a log that says too little.

    Raises:
        FitError: fewer independent forces than parameters, a joint without any, or too few folds. Forces
            where a robot floats may be missing.
    """
    total, blank = normal.count.sum(0).tolist(), unmeasured(mech, log)
    names = mech.dof_names
    quiet = [names[k] for k, n in enumerate(total) if n == 0 and k not in blank]
    if quiet:
        dof = mech.dof_names.index(quiet[0])
        tau = np.asarray(log.tau[:, dof])
        none = float((~np.isfinite(tau)).mean())
        if none > MISSING:
            raise FitError(
                f"{log.name}: {100 * none:.3g} percent of the forces of joint {quiet[0]!r} are missing.",
                "What a filter makes of forces that nobody measured tells nothing.",
                "Keep the samples that have a force: states between them may be missing.",
            )
        limit = mech.effort_limit[dof].item()
        held = float((np.abs(tau) >= SATURATED_SHARE * limit).mean())
        if held > 0:
            raise FitError(
                f"{log.name}: no sample of joint {quiet[0]!r} is left.",
                f"{100 * held:.3g} percent of its forces, up to {np.nanmax(np.abs(tau)):.3g}, are at the "
                f"robot's effort limit of {limit:.3g} or beyond it, where a drive gives what it can, and the "
                f"filter needs {settings.half_width:.3g} s without one on each side.",
                "Pass the robot with the drives' true limits, mech.replace(effort_limit=...), or log motions "
                "that need less.",
            )
        raise FitError(
            f"{log.name}: no sample of joint {quiet[0]!r} is left.",
            f"The filter of {settings.cutoff:.3g} Hz needs {settings.half_width:.3g} s "
            "without a gap on each side, and forces below their limit.",
            "Log more, or pass a higher cutoff.",
        )
    if len(complete_folds(normal.count)) < 2:
        raise FitError(
            f"{log.name}: all samples of a joint lie in one stretch of {len(normal.count)}.",
            "Cross-validation leaves out one stretch and needs another, and the filter of "
            f"{settings.cutoff:.3g} Hz needs {settings.half_width:.3g} s without a gap on each side.",
            "Log more, or pass a higher cutoff: below half of the rate, "
            f"{settings.rate:.4g} Hz, is possible.",
        )


AXIS = 1e-9
"""Inertias over the largest, up to which a body has one about one axis alone."""


def changes_told(mech: Mechanism, names: Sequence[str]) -> list[str]:
    """Lines that name the bodies which `nearest_physical` changed, of the mechanism as given.

    A rotor (`MechanismBuilder.rotor`) is right as it is: its mass is counted with the body that carries it.
    """
    size = torch.linalg.eigvalsh(mech.inertia)
    alone = (mech.mass == 0) & (size[:, 2] > 0) & (size[:, :2].abs() <= AXIS * size[:, 2:]).all(-1)
    rotors = [name for name, x in zip(mech.body_names, alone.tolist(), strict=True) if x]
    return [
        f"{name} is an inertia about one axis, as of a rotor: a body of little mass stands for it"
        if name in rotors
        else f"unphysical nominal inertia of {name}: the nearest physical one is used"
        for name in names
    ]


def waves_told(name: str, waves: Sequence[RippleComponent]) -> str:
    """A line that says which waves a joint's errors have, and what to name for them."""
    each = " and ".join(
        f"{x.periods_per_turn:.4g} times a turn, by {x.amplitude:.2g}" for x in waves
    )
    terms = ", ".join(f"{term!r}" for x in waves for term in x.terms)
    return (
        f"errors of {name} come back with its position, {each}, and spoil other numbers: "
        f"name {terms} besides"
    )


def fault_lines(faults: LogDefects) -> list[str]:
    """Describe the defects of a log, and how each was treated."""
    lines = [f"{faults.gaps} gaps: the parts are filtered separately"] if faults.gaps else []
    if n := faults.short_segments:
        lines.append(f"{n} segments between gaps are shorter than the filter: ignored")
    for joint, n in faults.outliers.items():
        lines.append(f"{n} outliers at {joint}: interpolated, with zero weight")
    for joint, n in faults.replaced_states.items():
        missing = faults.missing_states.get(joint)
        runs = f"; {missing} of them in long runs, where forces are ignored" if missing else ""
        lines.append(
            f"{n} positions and velocities of {joint} missing or outliers: interpolated{runs}"
        )
    for joint, n in faults.repeated_states.items():
        lines.append(
            f"{n} positions and velocities of {joint} repeat the previous sample: interpolated"
        )
    for joint, n in faults.saturated.items():
        lines.append(f"{n} forces of {joint} at their limit: zero weight")
    return lines


def rate_lines(settings: FilterSettings) -> list[str]:
    """Warn of a sampling rate that is too low for the motion."""
    if settings.bandwidth is None or settings.cutoff >= MIN_CUTOFF_RATIO * settings.bandwidth:
        return []
    sufficient = math.ceil(0.5 * CUTOFF_RATIO * MIN_RATE_RATIO * settings.bandwidth)
    return [
        f"the sampling rate of {settings.rate:.3g} Hz is low for a motion of up to {settings.bandwidth:.2g} "
        f"Hz. Forces have frequencies above the cut-off of {settings.cutoff:.3g} Hz, so errors may exceed "
        f"the standard errors. Log at {sufficient} Hz or more, or move more slowly"
    ]


def sample_lines(seen: ResidualSample) -> list[str]:
    """Says of which part of the log they are, where it is not the whole."""
    if len(seen.motions) == seen.num_pieces:
        return []
    return [
        f"residuals, their correlation in time and figures: of {len(seen.motions)} stretches, evenly "
        f"spread, of {seen.num_pieces}; all else is of the whole log"
    ]
