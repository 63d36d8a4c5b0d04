"""Checks of forces against those of the nominal robot: their scale, their sign, and the sign of friction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.diagnostics.log_states import States
from torchsko.identification.friction import Coulomb, Offset, Viscous
from torchsko.identification.logs.log import Log
from torchsko.identification.logs.units import CURRENT_UNITS, LINEAR_UNITS, QUANTITY_UNITS, SI_SCALE
from torchsko.identification.regression.elimination import mean_equations, schur_complement
from torchsko.identification.regression.least_squares import fit_base_parameters
from torchsko.identification.selection.model_selection import least_squares_structure
from torchsko.identification.uncertainty.residuals import CONSTANT_TOLERANCE
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics
from torchsko.verbs.regressors import inertial_parameters

MAX_SCALE = 30.0
"""Ratio of measured to nominal forces that errors of a nominal robot cannot explain."""

MAX_MASS_ERROR = 3.0
"""Ratio of measured to nominal forces of most joints that errors of nominal masses may explain."""

MAX_JOINT_DECREASE = 6.0
"""Ratio of nominal to measured forces of one joint that errors of nominal masses may explain.

It bounds measured over nominal forces as well where these exceed the effort limit.
"""

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
    """Median size of meaningful ratios, of two the one nearest to 1; None if few joints have one."""
    good = correlation.abs() > MIN_CORRELATION
    measured = int(torch.isfinite(ratio).sum())
    if int(good.sum()) < max(1.0, MIN_JOINTS * measured):
        return None
    sizes = ratio[good].abs().sort().values
    middle = sizes[(len(sizes) - 1) // 2 : len(sizes) // 2 + 1]  # two of an even number
    return float(middle[middle.log().abs().argmin()])


def _is_far(ratio: float, limit: float) -> bool:
    return not 1 / limit <= ratio <= limit


def force_scale(context: FitContext) -> Iterator[Finding]:
    """Forces are not a multiple of those of the nominal robot, and have no other sign.

    Currents are not checked: their torque constants were estimated from the nominal robot.
    """
    states = States.of(context.lossless, context.motions)
    if not len(states.q):
        return
    kinds = _linear_dofs(context.nominal)
    ratio, correlation = states.scales()
    if context.constants is not None:
        ratio = torch.where(context.constants.deviation == 0, ratio, torch.nan)
        correlation = torch.where(ratio.isnan(), torch.nan, correlation)
    scale = _median_scale(ratio, correlation)
    if scale is None:
        return
    common = scale if _is_far(scale, MAX_MASS_ERROR) else 1.0
    good = correlation.abs() > MIN_CORRELATION
    if _all_reversed(ratio, correlation):
        yield finding(
            "force_scale",
            f"Measured forces are -{scale:.3g} times those that the nominal robot needs.",
            "Type --sign tau=-1, or pass -tau.",
            reason="Forces are positive in the direction of the joint.",
        )
    elif common != 1:
        unit = _likely_unit(common, {kinds[k] for k in good.nonzero().flatten().tolist()})
        yield finding(
            "force_scale" if _is_far(common, MAX_SCALE) else "force_unit",
            f"Measured forces are {common:.3g} times those that the nominal robot needs. "
            f"Their unit may be {unit}.",
            f'Declare the unit: --unit tau={unit}, or units={{"tau": "{unit}"}}.',
            reason="Forces are in N m or N. A wrong unit scales all masses.",
        )
    yield from _joint_units(context, _joint_scales(states, ratio, correlation, common), common)


def _joint_units(context: FitContext, scales: Sequence[float], common: float) -> Iterator[Finding]:
    """Findings about joints whose forces are a multiple of the nominal robot's, relative to the others."""
    mech = context.nominal
    rows = zip(mech.dof_names, scales, mech.effort_limit.tolist(), _linear_dofs(mech), strict=True)
    for k, (name, x, limit, linear) in enumerate(rows):
        if not (x < 1 / MAX_JOINT_DECREASE or x > MAX_JOINT_DECREASE):
            continue
        above_limit = 0 < limit < _largest_force(context.log, k)
        if MAX_JOINT_DECREASE < x <= MAX_SCALE and not above_limit:
            continue
        impossible = x < 1 / MAX_SCALE or (x > MAX_SCALE and above_limit)
        yield finding(
            "joint_force_scale" if impossible else "joint_force_unit",
            f"Forces of {name} are {x:.3g} times those that the nominal robot needs"
            + (", relative to the other joints" if common != 1 else "")
            + (f", and exceed its effort limit of {limit:.3g}." if above_limit else "."),
            _unit_advice(name, x * common, limit, linear=linear),
            joints=[name],
            reason="Another unit of one joint changes the masses that it moves by this factor.",
        )


def _joint_scales(states: States, ratio: Tensor, correlation: Tensor, common: float) -> list[float]:
    """Ratio of measured to nominal forces of each dof, nan where it is not known.

    Without a correlation it is at most the ratio of the whole forces, friction included, which is used if it
    is small and the nominal robot explains most of the other joints.
    """
    needed = inverse_dynamics(states.mech, states.q, states.qd, states.qdd).square().mean(0)
    whole = (states.tau.square().mean(0) / needed.clamp_min(1e-300)).sqrt() / abs(common)
    small = (whole > 0) & (whole < 1 / MAX_JOINT_DECREASE) & (needed > 0)
    good, known = correlation > MIN_JOINT_CORRELATION, ~ratio.isnan()
    if 2 * int(good.sum()) <= int(known.sum()):
        small = torch.zeros_like(good)
    bound = torch.where(small & known, whole, torch.nan)
    return torch.where(good, ratio / common, bound).tolist()


def _largest_force(log: Log, dof: int) -> float:
    """Size of a logged force that one of a hundred samples exceeds."""
    return float(np.nanquantile(np.abs(log.tau[:, dof]), 0.99))


def _unit_advice(joint: str, ratio: float, limit: float, *, linear: bool) -> str:
    """Options for the likely units of one joint's forces."""
    unit, gain = _likely_unit(ratio, {linear}), 1 / ratio
    options = [f"motor currents, type --unit tau.{joint}=A"]
    if unit != "A":
        options.insert(0, f"in {unit}, type --unit tau.{joint}={unit}")
    if limit < math.inf and abs(math.log(ratio * limit / 100)) < math.log(MAX_UNIT_ERROR):
        options.insert(0, f"in percent of the effort limit, type --gain {joint}={limit / 100:.3g}")
    power = 10.0 ** round(math.log10(gain))
    gain = power if abs(math.log(gain / power)) < math.log(MAX_UNIT_ERROR) else gain
    options.append(f"another multiple, type --gain {joint}={gain:.4g}")
    return f"If they are {'; if they are '.join(options)}. If they are right, check the masses that it moves."


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
            centered = g - torch.outer(g[:, offset], g[offset]) / g[offset, offset].clamp_min(
                1e-300
            )
            share = size @ centered[columns][:, columns] @ size / centered[-1, -1].clamp_min(1e-300)
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
