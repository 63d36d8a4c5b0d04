"""What of a log's forces cannot be: another multiple of the nominal robot's, friction that drives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.diagnostics.unit_checks import FOLLOWS, SURE
from torchsko.identification.friction import Coulomb, Offset, Viscous
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.elimination import mean_equations, schur_complement
from torchsko.identification.regression.least_squares import fit_base_parameters
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.selection.model_selection import least_squares_structure
from torchsko.identification.uncertainty.residuals import CONSTANT_TOLERANCE
from torchsko.verbs.regressors import inertial_parameters

MANY = 30.0
"""Ratio of the two that no error of a nominal robot makes."""

DRIVES = 0.25
"""Of a joint's mean square force, that is friction of the wrong sign."""


def refuse_other_forces(problem: RegressionProblem, log: Log, normal: NormalEquations) -> None:
    """Refuse forces that are another multiple of what the nominal robot needs, friction set aside.

    Args:
        problem: what explains forces.
        log: what was measured.
        normal: what it says.

    Raises:
        FitError: where they follow the nominal robot's, and are of the other sign, or `MANY` times as
            large or small.
    """
    explained, both = _by_nominal(problem, normal)
    explained, both = ([x for x in some if not math.isnan(x)] for some in (explained, both))
    if not sum(explained) > 0:
        return
    ratio = sum(both) / sum(explained)
    alike = sum(both) / math.sqrt(sum(explained) * len(explained))
    if abs(alike) > FOLLOWS and not 1 / MANY < ratio < MANY:
        unit = "kNm" if abs(ratio) < 1 else "mNm"
        advice = f'Declare the unit, units={{"tau": "{unit}"}} or --unit tau={unit}, say; A is known, too.'
        if 1 / MANY < -ratio < MANY:
            advice = "Turn the sign of tau: a motor may count against its joint."
        raise FitError(
            f"{log.name}: forces are {ratio:.3g} times those that the nominal robot needs to move so.\n"
            "Both are in N m or N, and drive the joint.\n" + advice
        )


def _by_nominal(
    problem: RegressionProblem, normal: NormalEquations
) -> tuple[list[float], list[float]]:
    """Mean squares of the nominal robot's forces, and of these times what was measured, of each dof.

    Friction is set aside, and the mean square of what was measured is one; nan where it does not vary.
    """
    beta = problem.base.of(inertial_parameters(problem.mech).flatten())
    usual = least_squares_structure(problem).choice
    explained, both = [], []
    for g, choice in zip(mean_equations(normal.pooled), usual, strict=True):
        part = schur_complement(g, len(beta), choice)
        S = [len(beta) + k for k in choice]
        size = float(g[-1, -1] - g[S, -1] @ part.start)
        explained.append(float(beta @ part.A @ beta) / size if size > 0 else math.nan)
        both.append(float(beta @ part.c) / size if size > 0 else math.nan)
    return explained, both


def in_other_units(problem: RegressionProblem, log: Log, normal: NormalEquations) -> list[str]:
    """Lines that name joints whose forces alone are another multiple of what the nominal robot needs.

    They are told, not refused: a file may say any mass of a light link that nobody weighed.

    Args:
        problem: what explains forces.
        log: what was measured.
        normal: what it says.
    """
    if log.current:  # torque constants were found by the nominal robot's weights
        return []
    lines = []
    rows = zip(problem.mech.dof_names, *_by_nominal(problem, normal), strict=True)
    for name, explained, both in rows:
        ratio = both / explained if explained > 0 else 1.0
        if both > SURE * math.sqrt(max(explained, 0.0)) and not 1 / MANY < ratio < MANY:
            unit = "kNm or kN" if ratio < 1 else "mNm"
            lines.append(
                f"forces of {name} are {ratio:.3g} times those that the nominal robot needs to move so: they "
                f"are in {unit} (--unit tau.{name}=...), or the robot's file has another mass behind it"
            )
    return lines


def refuse_driving(problem: RegressionProblem, log: Log, normal: NormalEquations) -> None:
    """Refuse forces of which friction, as the nominal robot and as least squares have it, would drive.

    Args:
        problem: what explains forces.
        log: what was measured.
        normal: what it says.

    Raises:
        FitError: names the joint.
    """
    nominal = problem.base.of(inertial_parameters(problem.mech).flatten())
    plain, whole = least_squares_structure(problem), mean_equations(normal.pooled)
    free, most = (
        fit_base_parameters(normal.pooled, plain, problem.base).beta,
        whole[:, -1, -1].max(),
    )
    speed = normal.num_base + problem.terms.index(Viscous())
    rest = normal.num_base + problem.terms.index(Offset())
    parts = [mean_equations(normal.of_folds([k])) for k in range(len(normal.count))]
    for j, (name, choice) in enumerate(zip(problem.mech.dof_names, plain.choice, strict=True)):
        rubs = [k for k in choice if isinstance(problem.terms[k], (Viscous, Coulomb))]
        at, own = [normal.num_base + k for k in rubs], [choice.index(k) for k in rubs]

        def driven(g: Tensor, beta: Tensor, choice=choice, at=at, own=own) -> tuple[float, float]:
            """Mean power times speed that friction takes out, and its part of the force's variation."""
            size = schur_complement(g, len(beta), choice).coefficients(beta)[own]
            varies = g - torch.outer(g[:, rest], g[rest]) / g[rest, rest].clamp_min(1e-300)
            part = size @ varies[at][:, at] @ size / varies[-1, -1].clamp_min(1e-300)
            return float(g[speed, at] @ size), float(part)

        g = whole[j]
        if (
            not g[-1, -1] > CONSTANT_TOLERANCE**2 * most
        ):  # as of a robot in flight, which nothing pushes
            continue
        # Where a joint hardly turns round, an offset is as good, and chance says which sign friction has.
        steady = all(driven(x[j], nominal)[0] < 0 for x in parts if x[j, rest, rest] > 0)
        if steady and all(
            power < 0 and part > DRIVES
            for power, part in (driven(g, beta) for beta in (nominal, free))
        ):
            raise FitError(
                f"{log.name}: friction of joint {name!r} would drive it.",
                "A part of its force goes with its velocity and has the sign of no friction: "
                "a motor may count against its joint, or a velocity against its position.",
                "Turn the sign of its tau, or that of its q and qd.",
            )
