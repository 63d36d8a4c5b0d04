"""Checks of a prepared log before the fit: motion, sampling, limits, and how faulty samples were treated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.friction import Offset, Spring, Term, Viscous
from torchsko.identification.regression.elimination import mean_equations
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import (
    CUTOFF_RATIO,
    MIN_CUTOFF_RATIO,
    MIN_RATE_RATIO,
)
from torchsko.identification.signals.unwrap import TURN
from torchsko.identification.uncertainty.measurement_bias import PositionNoise

STATIC_POSITION = 1e-3
"""Standard deviation of positions up to which a joint may be static [rad or m]."""

STATIC_SPEED = 0.03
"""Root mean square speed of a static joint, at most, over that of the fastest joint.

Encoders are noisy and servos move a little.
"""

NOISE_POSITION = 0.01
"""Standard deviation of positions up to which all motion may be noise [rad or m]."""

MAX_EXCESS = 0.1
"""Tolerated motion beyond a limit, over the range between both limits."""

ROTOR_TOLERANCE = 1e-9
"""Smaller principal moments over the largest, up to which an inertia is about one axis alone."""


def static_dofs(equations: NormalEquations, terms: Sequence[Term]) -> tuple[int, ...]:
    """Dofs that do not move: friction or springs would be fitted to noise.

    Args:
        equations: normal equations of all folds as one.
        terms: of the problem, `CANDIDATE_TERMS` and `CHECK_TERMS` among them.
    """
    spread, speed = _motion(equations, terms)
    static = (spread <= STATIC_POSITION) & (speed <= STATIC_SPEED**2 * speed.max())
    return tuple(static.nonzero().flatten().tolist())


def _motion(equations: NormalEquations, terms: Sequence[Term]) -> tuple[Tensor, Tensor]:
    """Standard deviation of positions, and mean square of velocities, `[num_dof]` each."""
    G = mean_equations(equations)
    at = [equations.num_base + terms.index(x) for x in (Spring(), Offset(), Viscous())]
    (position, _, _), (mean, one, _), (_, _, speed) = (G[:, k, at].unbind(-1) for k in at)
    variance = position - mean.square() / one.clamp_min(1e-300)
    return variance.clamp_min(0).sqrt(), speed


def no_motion(context: FitContext) -> Iterator[Finding]:
    """A joint moves more than the noise of its position sensor."""
    mech = context.problem.mech
    spread, _ = _motion(context.equations.pooled, context.problem.terms)
    if (spread > NOISE_POSITION).any():
        return
    noise = PositionNoise.of(mech, context.log, context.settings).q
    bound = torch.zeros_like(spread)
    for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        if mech.joints.kinds[k].vector:
            bound[mech.dof_slice(name)] = noise[mech.q_slice(name)].to(bound)
    if (spread <= bound).all():
        yield finding(
            "no_motion",
            "No joint moves more than the noise of its position sensor.",
            "Log a motion of each joint, for example a sum of sines with different frequencies.",
            reason="Inertia and friction cannot be identified from a robot at rest.",
        )


def static_joint(context: FitContext) -> Iterator[Finding]:
    """Joints move."""
    static = static_dofs(context.equations.pooled, context.problem.terms)
    names = context.nominal.dof_names
    if found := [names[j] for j in static if j not in context.given_terms]:
        yield finding(
            "static_joint",
            f"Joints that do not move, so that their friction cannot be identified: {', '.join(found)}.",
            joints=found,
        )


def beyond_limits(context: FitContext) -> Iterator[Finding]:
    """Joints stay within their limits."""
    mech, motions = context.nominal, [x for x in context.motions if len(x)]
    least = torch.stack([motion.q.amin(0) for motion in motions]).amin(0)
    most = torch.stack([motion.q.amax(0) for motion in motions]).amax(0)
    for name in mech.joint_names:
        at = mech.q_slice(name)
        for a, b, lo, hi in torch.stack([least, most, mech.lower, mech.upper])[:, at].mT.tolist():
            slack = MAX_EXCESS * (hi - lo)
            if hi > lo and (a < lo - slack or b > hi + slack):
                yield finding(
                    "beyond_limits",
                    f"Joint {name} moves from {a:.3g} to {b:.3g}, its limits are {lo:.3g} and {hi:.3g}.",
                    "Check the limits of the robot's file and the unit of q.",
                    joints=[name],
                )


def low_sample_rate(context: FitContext) -> Iterator[Finding]:
    """The sampling rate is high enough for the motion."""
    settings = context.settings
    if settings.bandwidth is None or settings.cutoff >= MIN_CUTOFF_RATIO * settings.bandwidth:
        return
    needed = math.ceil(0.5 * CUTOFF_RATIO * MIN_RATE_RATIO * settings.bandwidth)
    yield finding(
        "low_sample_rate",
        f"The sampling rate of {settings.rate:.3g} Hz is low for motions up to {settings.bandwidth:.2g} Hz: "
        f"the filter removes forces above {settings.cutoff:.3g} Hz.",
        f"Log at {needed} Hz or more, or move more slowly.",
        reason="Errors may exceed the standard errors.",
    )


def repeated_motion(context: FitContext) -> Iterator[Finding]:
    """The log has no period."""
    period = context.folds.period
    if period is None:
        return
    yield finding(
        "repeated_motion",
        f"The motion repeats every {period:.3g} s. Cross-validation leaves out parts of the period.",
        "Test the fit on another motion, --test LOG, or log a motion that does not repeat.",
        reason="Prediction errors of other motions may be larger.",
    )


def unmodeled_force(context: FitContext) -> Iterator[Finding]:
    """All forces of the robot's file are in the model."""
    missing = [f"{x.element} ({x.reason})" for x in context.nominal.unused if x.affects_forces]
    if missing:
        yield finding(
            "unmodeled_force",
            f"The robot's file has forces that the model does not have: {'; '.join(missing)}.",
            "Subtract known forces from the logged forces: ts.actuators.tendons_of(mech).force(mech, q, qd) "
            "computes those of springs and dampers of tendons.",
            reason="Other parameters compensate for them.",
        )


def nominal_inertia(context: FitContext) -> Iterator[Finding]:
    """Nominal inertias are physical."""
    mech = context.original
    moments = torch.linalg.eigvalsh(mech.inertia)
    single_axis = (moments[:, :2].abs() <= ROTOR_TOLERANCE * moments[:, 2:]).all(-1)
    rotors = (mech.mass == 0) & (moments[:, 2] > 0) & single_axis
    for name in context.replaced_bodies:
        if bool(rotors[mech.body_names.index(name)]):
            yield finding(
                "rotor_body",
                f"{name} is a rotor without mass. A body of small mass replaces it.",
                joints=[name],
            )
        else:
            yield finding(
                "unphysical_inertia",
                f"The nominal inertia of {name} is not physical. The nearest physical inertia replaces it.",
                joints=[name],
            )


def torque_constants(context: FitContext) -> Iterator[Finding]:
    """Forces were measured, and not motor currents."""
    if context.constants is None:
        return
    names, constants = context.nominal.dof_names, context.constants
    rows = [*zip(names, constants.value.tolist(), constants.deviation.tolist(), strict=True)]
    if unknown := [name for name, x, _ in rows if math.isnan(x)]:
        gains = " ".join(f"--gain {name}=..." for name in unknown)
        yield finding(
            "unknown_constant",
            f"The log does not determine the torque constants of {', '.join(unknown)}. Their currents stay "
            "in ampere, and the fit does not use them.",
            f"Pass known constants, {gains}, or move the joints faster or against gravity.",
            joints=unknown,
            reason="The current, without friction, is hardly correlated with the nominal force.",
        )
    found = [(name, x, error) for name, x, error in rows if error > 0]
    values = ", ".join(f"{name} {x:.4g} +- {error:.2g}" for name, x, error in found)
    yield finding(
        "torque_constants",
        f"Torque constants [N m/A or N/A], estimated from the masses of the nominal robot: {values}.",
        joints=[name for name, _, _ in found],
    )


def faulty_samples(context: FitContext) -> Iterator[Finding]:
    """Samples are complete and plausible."""
    faults, sample = context.faults, context.sample
    if context.unwrapped:
        counts = ", ".join(
            f"{name} {count} times by {'a turn' if period == TURN else f'{period:.5g}'}"
            for name, (count, period) in context.unwrapped.items()
        )
        yield finding("unwrapped_angles", f"Positions that jump were unwrapped: {counts}.")
    first, last = float(context.log.t[0]), float(context.log.t[-1])
    gaps = faults.gaps - sum(first < x <= last for x in context.log.joined_at)
    if gaps > 0:
        yield finding(
            "gaps",
            f"{_count(gaps, 'gap')} in time of more than {context.settings.max_gap:.2g} s. The parts are "
            "filtered separately.",
        )
    if faults.short_segments:
        yield finding(
            "short_pieces",
            f"{_count(faults.short_segments, 'piece')} between gaps too short for the filter: not used.",
        )
    for code, joint, text in _faults_of_joints(faults):
        yield finding(code, text, joints=[joint])
    if len(sample.motions) < sample.num_pieces:
        yield finding(
            "residual_sample",
            f"Residuals, their autocorrelation and figures use {len(sample.motions)} of {sample.num_pieces} "
            "pieces, evenly spread. Estimates use the whole log.",
        )


def _count(number: int, noun: str) -> str:
    """A number and a noun, in the plural unless the number is 1."""
    return f"{number} {noun}{'s' * (number != 1)}"


def _faults_of_joints(faults: LogDefects) -> Iterator[tuple[str, str, str]]:
    """Code, joint and message of faulty samples of single joints."""
    for joint, count in faults.outliers.items():
        text = f"{_count(count, 'outlier')} in forces of {joint}: interpolated, without weight."
        yield "outliers", joint, text
    for joint, count in faults.replaced_states.items():
        long = faults.missing_states.get(joint)
        unused = f"; {long} of them are in long runs, where no force is used" if long else ""
        text = f"{count} missing or outlying positions and velocities of {joint} were interpolated{unused}."
        yield "invalid_positions", joint, text
    for joint, count in faults.repeated_states.items():
        text = (
            f"{count} positions and velocities of {joint} repeat the previous one of a slow sensor"
        )
        yield "repeated_samples", joint, f"{text} and were interpolated."
    for joint, count in faults.saturated.items():
        text = f"{count} forces of {joint} are at the limit of the drive and have no weight."
        yield "saturated_forces", joint, text
