"""Checks of a finished fit: prediction, identifiability, and forces that no term explains."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from torchsko.identification.diagnostics.context import FittedContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.regression.rigid_model import dof_positions
from torchsko.identification.uncertainty.measurement_bias import PositionNoise
from torchsko.identification.uncertainty.residuals import CONSTANT_TOLERANCE

MAX_NAMES = 12
"""Number of parameters of a combination that a message names."""

MAX_ERROR = 0.5
"""Prediction error over the spread of the force above which a force counts as not predicted.

The fit then explains less than three quarters of the variance.
"""

MAX_GAP_RATIO = 1.5
"""Prediction error over that of least squares above which physical bounds contradict the log."""

MIN_GAP = 0.05
"""Smallest difference of the two errors, over the standard deviation of the force, that is reported."""

REST_PERIODS = 2.0
"""Time in one position, in periods of the cut-off frequency, after which a joint is at rest."""

REST_MOTION = 1e-3
"""Motion of a joint at rest, over its motion in the log; creep is larger."""

MIN_MOTION = 1e-3
"""Motion over the log below which a joint is static, and not at rest for a time [rad or m]."""

MIN_REST = 0.1
"""Share of the time at rest that is reported."""

REST_SPEED = 0.03
"""Speed of a joint at rest over its root mean square speed, for advice."""

MIN_BIAS = 1.5
"""Bias over the standard error that is reported: the error may then exceed three standard errors."""


def zero_coefficient(context: FittedContext) -> Iterator[Finding]:
    """Terms that the caller chose have an effect."""
    names = context.nominal.dof_names
    zero: dict[str, list[tuple[str, str]]] = {}
    for j in context.given_terms:
        for k in context.model.choice[j]:
            if k not in context.solution.choice[j]:
                term = context.problem.terms[k]
                zero.setdefault(term.zero_reason, []).append((names[j], term.label))
    for reason, rows in zero.items():
        terms = ", ".join(f"{label} of {name}" for name, label in rows)
        yield finding(
            "zero_coefficient",
            f"The coefficient is 0, because {reason}: {terms}.",
            joints=[name for name, _ in rows],
        )


def unpredicted_force(context: FittedContext) -> Iterator[Finding]:
    """The fit predicts the force of each joint in time intervals that it did not use."""
    errors = context.residuals.relative(context.squared_errors.mean(0).sqrt()).tolist()
    names = zip(context.nominal.dof_names, errors, strict=True)
    if rows := [(name, x) for name, x in names if x > MAX_ERROR]:
        errors_of = ", ".join(f"{name} {x:.2g}" for name, x in rows)
        yield finding(
            "unpredicted_force",
            f"The fit does not predict these forces (prediction error over standard deviation): {errors_of}.",
            "Check the units, signs, times and order of the columns, and unmodeled forces.",
            joints=[name for name, _ in rows],
        )


def physical_gap(context: FittedContext) -> Iterator[Finding]:
    """Physical inertias predict each force about as well as least squares."""
    errors, plain = (
        context.residuals.relative(x.mean(0).sqrt())
        for x in (context.squared_errors, context.least_squares_errors)
    )
    worse = (errors > MAX_GAP_RATIO * plain) & (errors - plain > MIN_GAP)
    rows = [
        (name, float(x), float(y))
        for name, x, y, is_worse in zip(
            context.nominal.dof_names, errors, plain, worse.tolist(), strict=True
        )
        if is_worse
    ]
    if rows:
        listed = ", ".join(f"{name} {x:.2g} and {y:.2g}" for name, x, y in rows)
        yield finding(
            "physical_gap",
            "Prediction errors over standard deviation, of this fit and of least squares without physical "
            f"bounds: {listed}.",
            "Check the robot's kinematics, and the couplings (--couple), zeros (--zero) and signs (--sign) "
            "of these joints and of those before them.",
            joints=[name for name, _, _ in rows],
            reason="No physical robot with this kinematics moves like that.",
        )


def constant_force(context: FittedContext) -> Iterator[Finding]:
    """Forces vary, unless they are zero."""
    residuals = context.residuals
    largest = residuals.tau.abs().amax(0)
    constant = residuals.spread <= CONSTANT_TOLERANCE * residuals.spread.max()
    stuck = (constant & (largest > CONSTANT_TOLERANCE * largest.max())).tolist()
    if names := [
        x for x, is_stuck in zip(context.nominal.dof_names, stuck, strict=True) if is_stuck
    ]:
        yield finding(
            "constant_force",
            f"The force never changes, perhaps because the sensor failed: {', '.join(names)}.",
            joints=names,
        )


def joint_at_rest(context: FittedContext) -> Iterator[Finding]:
    """Joints with dry friction do not rest for a part of the log."""
    mech, motions = context.nominal, [x for x in context.motions if len(x)]
    least, most = (
        torch.stack([getattr(dof_positions(mech, x.q), name)(0) for x in motions])
        for name in ("amin", "amax")
    )
    span = most.amax(0) - least.amin(0)
    rest, total = torch.zeros_like(span), torch.zeros_like(span)
    for motion in motions:
        length = math.ceil(REST_PERIODS * motion.settings.state_rate / motion.settings.cutoff)
        if len(motion) >= length:
            q = dof_positions(mech, motion.q).unfold(0, length, length)
            good = motion.valid.unfold(0, length, length).amin(-1)
            rest = rest + (good * (q.amax(-1) - q.amin(-1) <= REST_MOTION * span)).sum(0)
            total = total + good.sum(0)
    share, terms = (rest / total.clamp_min(1)).tolist(), context.problem.terms
    dry = [
        any(terms[k].friction and terms[k].nonnegative for k in indices)
        for indices in context.solution.choice
    ]
    dofs = [j for j, x in enumerate(share) if dry[j] and x > MIN_REST and span[j] > MIN_MOTION]
    if not dofs:
        return
    names = mech.dof_names
    speed = torch.cat([x.qd for x in motions]).square().mean(0).sqrt()
    slow = f"{REST_SPEED * float(speed[dofs].min()):.1g}"
    shares = ", ".join(f"{names[j]} {share[j]:.0%}" for j in dofs)
    yield finding(
        "joint_at_rest",
        f"Joints with dry friction are at rest for part of the time: {shares}.",
        f"Write nan in place of the force of a joint while it is slower than {slow}.",
        joints=[names[j] for j in dofs],
        reason="Dry friction at rest has any value up to its maximum, so errors may exceed the standard "
        "errors.",
    )


def term_remark(context: FittedContext) -> Iterator[Finding]:
    """Remarks on terms that were fitted."""
    joints: dict[str, list[str]] = {}
    for name, indices in zip(context.nominal.dof_names, context.solution.choice, strict=True):
        remarks = (context.problem.terms[k].report_note for k in indices)
        for remark in dict.fromkeys(x for x in remarks if x):
            joints.setdefault(remark, []).append(name)
    for remark, names in joints.items():
        yield finding("term_remark", f"{', '.join(names)}: {remark}.", joints=names)


def identifiability(context: FittedContext) -> Iterator[Finding]:
    """The log determines each parameter."""
    shares, labels = context.combinations, context.combination_labels
    if shares is None:
        return
    alone = (shares > 0).sum(-1) == 1
    zero = (shares[alone] > 0).any(0).tolist()
    if unobserved := [x for x, is_zero in zip(labels, zero, strict=True) if is_zero]:
        yield finding("unobserved", f"No force in the log depends on: {', '.join(unobserved)}.")
    base = len(context.problem.base)
    for share in shares[~alone]:
        order: list[int] = share.argsort(descending=True).tolist()  # type: ignore[assignment]
        used = [k for k in order if share[k] > 0]
        # Terms first, because the caller can leave them out.
        names = [labels[k] for k in sorted(used, key=lambda k: k < base)]
        rest = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        yield finding(
            "unidentifiable",
            f"The log determines only a combination of: {', '.join(names[:MAX_NAMES])}{rest}.",
            reason="Their values are those nearest to the nominal robot."
            * (context.model.prior_weight > 0),
        )


def position_noise_bias(context: FittedContext) -> Iterator[Finding]:
    """Noise of positions biases no parameter; checked only on request."""
    bias = context.position_bias
    if bias is None:
        return
    mech, log = context.nominal, context.log
    covariance, terms = context.information.covariance, context.information.term_std
    deviation = torch.cat([covariance.diagonal().clamp_min(0).sqrt(), *terms])
    relative = (bias.abs() / deviation).nan_to_num(0.0, posinf=0.0)
    worst = int(relative.argmax())
    if not relative[worst] > MIN_BIAS:
        return
    noise, motions = (
        PositionNoise.of(mech, log, context.settings).q,
        [x for x in context.motions if len(x)],
    )
    least, most = (
        torch.stack([getattr(x.q, name)(0) for x in motions]) for name in ("amin", "amax")
    )
    span = (most.amax(0) - least.amin(0)).clamp_min(1e-300)
    noisiest = int((noise / span).argmax())
    yield finding(
        "position_noise_bias",
        f"Noise of positions ({float(noise[noisiest]):.2g} of {mech.coordinate_names[noisiest]}) biases "
        f"estimates by up to about {float(relative[worst]):.2g} standard errors ({context.labels[worst]}).",
        context.bias_advice,
        reason="Bias and standard errors are conditional on the selected terms."
        if context.selects
        else "",
    )
