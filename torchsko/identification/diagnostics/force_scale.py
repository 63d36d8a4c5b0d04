"""Checks of forces against those of the nominal robot: their scale, their sign, and the sign of friction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import FitContext
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.identification.friction import Coulomb, Offset, Viscous
from torchsko.identification.regression.elimination import mean_equations, schur_complement
from torchsko.identification.regression.least_squares import fit_base_parameters
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.selection.model_selection import least_squares_structure
from torchsko.identification.uncertainty.residuals import CONSTANT_TOLERANCE
from torchsko.verbs.regressors import inertial_parameters

MAX_SCALE = 30.0
"""Ratio of measured to nominal forces that errors of a nominal robot cannot explain."""

MIN_CORRELATION = 0.5
"""Correlation of measured with nominal forces, over all joints, above which their ratio is meaningful."""

MIN_JOINT_CORRELATION = 0.9
"""Correlation of measured with nominal forces of one joint above which their ratio is meaningful."""

MIN_NEGATIVE_SHARE = 0.25
"""Share of a force's variance, explained by negative friction, that indicates a wrong sign."""


def force_scale(context: FitContext) -> Iterator[Finding]:
    """Forces are not a multiple of those of the nominal robot, and have no other sign."""
    squares, products = (
        [x for x in values if not math.isnan(x)]
        for values in _nominal_products(context.problem, context.equations)
    )
    if not sum(squares) > 0:
        return
    ratio = sum(products) / sum(squares)
    correlation = sum(products) / math.sqrt(sum(squares) * len(squares))
    if abs(correlation) <= MIN_CORRELATION or 1 / MAX_SCALE < ratio < MAX_SCALE:
        return
    unit = "kNm" if abs(ratio) < 1 else "mNm"
    advice = f'Declare the unit: units={{"tau": "{unit}"}} or --unit tau={unit} (A for currents).'
    if 1 / MAX_SCALE < -ratio < MAX_SCALE:
        advice = "Change the sign of tau."
    yield finding(
        "force_scale",
        f"Measured forces are {ratio:.3g} times those that the nominal robot needs.",
        advice,
        reason="Forces are in N m or N, positive in the direction of the joint.",
    )


def joint_force_scale(context: FitContext) -> Iterator[Finding]:
    """The forces of each joint are not a multiple of those of the nominal robot.

    Currents are not checked: their torque constants were estimated from the nominal robot.
    """
    if context.constants is not None:
        return
    names = context.nominal.dof_names
    rows = zip(names, *_nominal_products(context.problem, context.equations), strict=True)
    for name, square, product in rows:
        ratio = product / square if square > 0 else 1.0
        correlated = product > MIN_JOINT_CORRELATION * math.sqrt(max(square, 0.0))
        if correlated and not 1 / MAX_SCALE < ratio < MAX_SCALE:
            unit = "kNm or kN" if ratio < 1 else "mNm"
            yield finding(
                "joint_force_scale",
                f"Forces of {name} are {ratio:.3g} times those that the nominal robot needs.",
                f"If they are in {unit}, declare --unit tau.{name}=...; otherwise check the masses that the "
                "joint moves.",
                joints=[name],
            )


def _nominal_products(
    problem: RegressionProblem, normal: NormalEquations
) -> tuple[Sequence[float], Sequence[float]]:
    """Mean square of nominal forces, and mean product of nominal and measured forces, of each dof.

    Friction is eliminated, and forces are scaled so that the mean square of measured ones is 1; nan for
    a force that does not vary.
    """
    beta = problem.base.of(inertial_parameters(problem.mech).flatten())
    squares, products = [], []
    for g, choice in zip(
        mean_equations(normal.pooled), least_squares_structure(problem).choice, strict=True
    ):
        part = schur_complement(g, len(beta), choice)
        friction = [len(beta) + k for k in choice]
        size = float(g[-1, -1] - g[friction, -1] @ part.start)
        squares.append(float(beta @ part.A @ beta) / size if size > 0 else math.nan)
        products.append(float(beta @ part.c) / size if size > 0 else math.nan)
    return squares, products


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
                "Check the sign of its tau, and that of its q and qd.",
                joints=[name],
            )
