"""Checks of forces against those of the nominal robot: their scale, their sign, and the sign of friction."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.diagnostics.log_states import States
from torchsko.identification.friction import Coulomb, Offset, Viscous
from torchsko.identification.logs.units import CURRENT_UNITS, LINEAR_UNITS, QUANTITY_UNITS, SI_SCALE
from torchsko.identification.regression.elimination import mean_equations, schur_complement
from torchsko.identification.regression.least_squares import fit_base_parameters
from torchsko.identification.selection.model_selection import least_squares_structure
from torchsko.identification.uncertainty.residuals import CONSTANT_TOLERANCE
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.regressors import inertial_parameters

MAX_SCALE = 30.0
"""Ratio of measured to nominal forces that errors of a nominal robot cannot explain."""

MAX_MASS_ERROR = 3.0
"""Ratio of measured to nominal forces of most joints that errors of nominal masses may explain."""

MAX_JOINT_DECREASE = 6.0
"""Ratio of nominal to measured forces of one joint that errors of nominal masses may explain."""

MIN_CORRELATION = 0.8
"""Correlation of measured with nominal forces of a joint above which their ratio is meaningful."""

MIN_JOINT_CORRELATION = 0.9
"""Correlation of measured with nominal forces above which the ratio of one joint is compared with others."""

MIN_JOINTS = 1 / 3
"""Share of the joints whose ratio must be meaningful to compare units."""

MAX_UNIT_ERROR = 2.0
"""Factor between a ratio and a unit up to which the unit explains the ratio."""

MIN_NEGATIVE_SHARE = 0.25
"""Share of a force's variance, explained by negative friction, that indicates a wrong sign."""


def common_scale(states: States) -> float:
    """Ratio of measured to nominal forces of most joints; 1 or -1 if errors of masses explain its size."""
    ratio, correlation = states.scales()
    scale = _median_scale(ratio, correlation)
    if scale is None:
        return 1.0
    sign = -1.0 if _all_reversed(ratio, correlation) else 1.0
    return sign * (scale if _is_far(scale, MAX_MASS_ERROR) else 1.0)


def _all_reversed(ratio: Tensor, correlation: Tensor) -> bool:
    """True if all meaningful ratios are negative."""
    return bool((ratio[correlation.abs() > MIN_CORRELATION] < 0).all())


def _median_scale(ratio: Tensor, correlation: Tensor) -> float | None:
    """Median size of meaningful ratios; None if few joints have one."""
    good = correlation.abs() > MIN_CORRELATION
    measured = int(torch.isfinite(ratio).sum())
    if int(good.sum()) < max(1.0, MIN_JOINTS * measured):
        return None
    return float(ratio[good].abs().median())


def _is_far(ratio: float, limit: float) -> bool:
    return not 1 / limit <= ratio <= limit


def force_scale(context: FitContext) -> Iterator[Finding]:
    """Forces are not a multiple of those of the nominal robot, and have no other sign.

    Currents are not checked: their torque constants were estimated from the nominal robot.
    """
    states = States.of(context.lossless, context.motions)
    if context.constants is not None or not len(states.q):
        return
    names, kinds = context.nominal.dof_names, _linear_dofs(context.nominal)
    ratio, correlation = states.scales()
    scale = _median_scale(ratio, correlation)
    if scale is None:
        return
    good = correlation.abs() > MIN_CORRELATION
    common = scale if _is_far(scale, MAX_MASS_ERROR) else 1.0
    if _all_reversed(ratio, correlation):
        yield finding(
            "force_scale",
            f"Measured forces are -{scale:.3g} times those that the nominal robot needs.",
            "Type --sign tau=-1, or pass -tau.",
            reason="Forces are positive in the direction of the joint.",
        )
    elif common != 1:
        unit = _likely_unit(scale, {kinds[k] for k in good.nonzero().flatten().tolist()})
        yield finding(
            "force_scale" if _is_far(scale, MAX_SCALE) else "force_unit",
            f"Measured forces are {scale:.3g} times those that the nominal robot needs. "
            f"Their unit may be {unit}.",
            f'Declare the unit: --unit tau={unit}, or units={{"tau": "{unit}"}}.',
            reason="Forces are in N m or N. A wrong unit scales all masses.",
        )
    for name, x, size, linear in zip(
        names, (ratio / common).tolist(), correlation.tolist(), kinds, strict=True
    ):
        if size > MIN_JOINT_CORRELATION and not 1 / MAX_JOINT_DECREASE <= x <= MAX_SCALE:
            unit = _likely_unit(x, {linear})
            yield finding(
                "joint_force_scale",
                f"Forces of {name} are {x:.3g} times those that the nominal robot needs"
                + (", relative to the other joints." if common != 1 else "."),
                f"If they are in {unit}, declare --unit tau.{name}={unit}; otherwise check the masses that "
                "the joint moves.",
                joints=[name],
            )


def _linear_dofs(mech: Mechanism) -> list[bool]:
    """True for each dof whose force is in N."""
    kinds = zip(mech.joint_names, mech.joint_types, strict=True)
    linear = {name: kind.coordinate_unit == "m" for name, kind in kinds}
    return [
        linear[name] for name in mech.joint_names for _ in range(mech.num_dof)[mech.dof_slice(name)]
    ]


def _likely_unit(ratio: float, linear: set[bool]) -> str:
    """Unit of forces that are a multiple of those in N m or N; a current if no unit is near."""
    units = [
        x
        for x in QUANTITY_UNITS["tau"]
        if x not in CURRENT_UNITS and SI_SCALE[x] != 1 and (x in LINEAR_UNITS) in linear
    ]
    distance = {x: abs(math.log(ratio * SI_SCALE[x])) for x in units}
    best = min(distance, key=lambda x: distance[x], default="A")
    return best if distance.get(best, math.inf) < math.log(MAX_UNIT_ERROR) else "A"


def negative_friction(context: FitContext) -> Iterator[Finding]:
    """Friction opposes the motion, both with the nominal robot and with least squares."""
    problem, normal = context.problem, context.equations
    nominal = problem.base.of(inertial_parameters(problem.mech).flatten())
    plain, whole = least_squares_structure(problem), mean_equations(normal.pooled)
    free, largest = (
        fit_base_parameters(normal.pooled, plain, problem.base).beta,
        whole[:, -1, -1].max(),
    )
    speed = normal.num_base + problem.terms.index(Viscous())
    offset = normal.num_base + problem.terms.index(Offset())
    folds = [mean_equations(normal.of_folds([k])) for k in range(len(normal.count))]
    for j, (name, choice) in enumerate(zip(problem.mech.dof_names, plain.choice, strict=True)):
        friction = [k for k in choice if isinstance(problem.terms[k], (Viscous, Coulomb))]
        columns, places = (
            [normal.num_base + k for k in friction],
            [choice.index(k) for k in friction],
        )

        def power(
            g: Tensor, beta: Tensor, choice=choice, columns=columns, places=places
        ) -> tuple[float, float]:
            """Mean product of friction and speed, and friction's share of the force's variance."""
            size = schur_complement(g, len(beta), choice).coefficients(beta)[places]
            centred = g - torch.outer(g[:, offset], g[offset]) / g[offset, offset].clamp_min(1e-300)
            share = size @ centred[columns][:, columns] @ size / centred[-1, -1].clamp_min(1e-300)
            return float(g[speed, columns] @ size), float(share)

        g = whole[j]
        if not g[-1, -1] > CONSTANT_TOLERANCE**2 * largest:  # no force, as of a robot in flight
            continue
        # A joint that hardly reverses cannot separate friction from an offset: the sign varies over folds.
        steady = all(power(x[j], nominal)[0] < 0 for x in folds if x[j, offset, offset] > 0)
        if steady and all(
            mean < 0 and share > MIN_NEGATIVE_SHARE
            for mean, share in (power(g, beta) for beta in (nominal, free))
        ):
            yield finding(
                "negative_friction",
                f"Friction of joint {name!r} would drive it instead of opposing its motion.",
                f"If its force is reversed, type --sign tau.{name}=-1, and if its position is, --sign "
                f"q.{name}=-1.",
                joints=[name],
            )
