r"""Trajectories that tell most: the log determinant of the information, within limits.

.. math::
    \max \; \log\det \sum_t Y_b(t)^T S^{-2} Y_b(t)

over the coefficients of a Fourier series, with Y_b the regressor's columns that lead base parameters, each
over its size on the first trajectory, and S the size of joint forces. Limits of positions, velocities and
forces, and boxes of frames, are held by a penalty; of all iterates within them the best is kept.

Reference: J. Swevers, C. Ganseman, D. Tukel, J. De Schutter, H. Van Brussel, *Optimal robot excitation and
identification*, IEEE Trans. Robotics and Automation 13(5), 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

import numpy as np
import torch

from torchsko.errors import FitError, unknown_name
from torchsko.identification.diagnostics.zero_limits import refuse_zero_limits
from torchsko.identification.excitation.fourier import (
    Trajectory,
    exciting_trajectory,
    refuse_options,
)
from torchsko.identification.excitation.trajectory_objective import Box, Judge
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism

RATE = 0.02
"""Of Adam: parts of the range of a joint's amplitude at each step."""

TRIED = 7
"""Random trajectories besides the first, of which the best is where the ascent begins."""

MOMENTS = 12
"""For each harmonic at which information is told."""

NEAR = 0.1
"""How far a motion may pass limits that is made smaller, over their range."""


def optimal_trajectory(
    mech: MechanismLike,
    *,
    period: float = 10.0,
    harmonics: int = 5,
    reach: float = 0.8,
    workspace: Box | None = None,
    steps: int = 100,
    moments: int | None = None,
    generator: torch.Generator | None = None,
    tell: Callable[[int, float], None] | None = None,
) -> Trajectory:
    """A periodic motion within limits that tells most about base parameters.

    Limits hold between samples too, see
    `torchsko.identification.excitation.trajectory_objective.Judge.passed`. Self-collision is not looked
    at: watch the motion before the robot does it.

    Args:
        mech: the nominal robot, no batch, all joints of one coordinate each.
        period: [s].
        harmonics: number of terms.
        reach: part of the limits of positions, velocities and forces that may be used, in (0, 1].
        workspace: boxes that frames stay in, by name: lowest and highest corner, in the inertial frame [m].
        steps: of gradient ascent.
        moments: of the period at which information is told and the ascent looks at limits; 12 for each
            harmonic when left out.
        generator: source of the start, on the mechanism's device.
        tell: called after each step with its number and the best log determinant so far.

    Returns:
        The trajectory; `Trajectory.write` makes a CSV file of it.

    Raises:
        FitError: when no motion within the limits is found, or on an option out of range or a limit that is
            0; names it.
        MechanismError: when the coordinates of a joint are no vector; names it.
    """
    mech = as_mechanism(mech)
    refuse_options(period, harmonics, reach)
    _refuse_counts(harmonics, steps, moments)
    for frame, box in (workspace or {}).items():
        _refuse_box(mech, frame, box)
    refuse_zero_limits(mech, "velocity_limit", "effort_limit", "upper")
    start = exciting_trajectory(
        mech, period=period, harmonics=harmonics, reach=reach, generator=generator
    )
    judge = Judge.of(mech, start, reach, workspace or {}, moments or MOMENTS * harmonics)
    start = _best_of(mech, judge, start, generator)
    # A little inside of the limits that it touches, so that it is one to be kept.
    start = Trajectory(start.center, 0.97 * start.cosine, 0.97 * start.sine, period)
    # In parts of what each joint may do, so that one rate fits all.
    scale = torch.cat([start.cosine, start.sine]).abs().amax(0).clamp_min(1e-3)
    rows = torch.cat([start.center[None], start.cosine, start.sine]) / scale
    rows = rows.detach().requires_grad_()
    optimizer = torch.optim.Adam([rows], lr=RATE, betas=(0.8, 0.9))  # limits are soon forgotten
    best, found, now = float("-inf"), None, start
    for step in range(steps + 1):
        center, cosine, sine = (scale * rows).split([1, harmonics, harmonics])
        course = judge(Trajectory(center[0], cosine, sine, period))
        now = Trajectory(center[0].detach(), cosine.detach(), sine.detach(), period)
        if float(course.over.detach().max()) <= NEAR and float(course.information.detach()) > best:
            kept = judge.held(now)
            told = best if kept is None else judge.information(kept)
            if told > best:
                best, found = told, kept
        if tell is not None:
            tell(step, best)
        optimizer.zero_grad()
        judge.cost(course).backward()
        optimizer.step()
    if found is None:
        over = judge.passed(now)
        worst = int(over.argmax())
        raise FitError(
            f"no motion of {mech.name!r} within its limits is found in {steps} steps: the "
            f"{judge.names[worst]} passes its limit by {100 * float(over[worst]):.3g} % of its range.",
            f"Positions, velocities, forces and boxes of {len(workspace or {})} frames limit it.",
            "Pass a larger period or box, a larger reach, or more steps.",
        )
    return found


def _refuse_counts(harmonics: int, steps: int, moments: int | None) -> None:
    if not (isinstance(steps, Integral) and steps >= 0):
        raise FitError(
            f"steps is {steps!r}.",
            "It is a whole number, of steps of an ascent.",
            "Pass steps=100, say.",
        )
    # Fewer show a fast harmonic as a slow one.
    least = 2 * harmonics + 1
    if moments is not None and not (isinstance(moments, Integral) and moments >= least):
        raise FitError(
            f"moments is {moments!r}.",
            f"{harmonics} harmonics are seen at {least} moments or more.",
            f"Leave it out: it is {MOMENTS * harmonics} then.",
        )


def _refuse_box(mech: Mechanism, frame: str, box: tuple[Sequence[float], Sequence[float]]) -> None:
    if frame not in mech.frame_names:
        raise FitError(*unknown_name("frame", frame, mech.frame_names))
    shape = tuple(np.shape(corner) for corner in box)
    corners = np.asarray(box, np.float64) if shape == ((3,), (3,)) else None
    if corners is None or not bool((corners[0] < corners[1]).all()):
        raise FitError(
            f"the box of frame {frame!r} is {box!r}.",
            "A box is its lowest and its highest corner, each x, y and z in the inertial frame, in m.",
            f'Pass workspace={{"{frame}": ((-0.5, -0.5, 0.1), (0.5, 0.5, 1.0))}}, say.',
        )


def _best_of(
    mech: Mechanism, judge: Judge, start: Trajectory, generator: torch.Generator | None
) -> Trajectory:
    """Of some random trajectories like one the best to begin at."""
    reach, harmonics = judge.reach, len(start.sine)
    others = [
        exciting_trajectory(
            mech, period=start.period, harmonics=harmonics, reach=reach, generator=generator
        )
        for _ in range(TRIED)
    ]
    with torch.no_grad():
        return min([start, *others], key=lambda x: float(judge.cost(judge(x))))
