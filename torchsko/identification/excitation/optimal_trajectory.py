r"""Optimal excitation: trajectories that maximize the information about base parameters, within limits.

.. math::
    \max \; \log\det \sum_t Y_b(t)^T S^{-2} Y_b(t)

over the coefficients of a Fourier series. :math:`Y_b` are the independent columns of the regressor, each over
its norm on the first trajectory, and S are the effort limits. A penalty enforces the limits of positions,
velocities and forces, and boxes of frames. The result is the best iterate that satisfies them.

Reference: J. Swevers, C. Ganseman, D. Tukel, J. De Schutter, H. Van Brussel, *Optimal robot excitation and
identification*, IEEE Trans. Robotics and Automation 13(5), 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

import numpy as np
import torch

from torchsko.errors import FitError, unknown_name
from torchsko.identification.diagnostics.robot_checks import check_limits_nonzero
from torchsko.identification.excitation.fourier import (
    Trajectory,
    check_options,
    exciting_trajectory,
)
from torchsko.identification.excitation.trajectory_objective import TrajectoryObjective, Workspace
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism

LEARNING_RATE = 0.02
"""Step size of Adam, over the largest amplitude of each joint."""

RANDOM_STARTS = 7
"""Random trajectories besides the first one, of which the best one is the start."""

SAMPLES_PER_HARMONIC = 12
"""Default number of samples of the period, per harmonic."""

MAX_VIOLATION = 0.1
"""Largest violation of limits, over their range, of an iterate that is scaled down to satisfy them."""

START_SCALE = 0.97
"""Scale of the start, which touches its limits, to satisfy them between samples."""


def optimal_trajectory(
    mech: MechanismLike,
    *,
    period: float = 10.0,
    harmonics: int = 5,
    limit_fraction: float = 0.8,
    workspace: Workspace | None = None,
    steps: int = 100,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> Trajectory:
    """Periodic motion within limits that maximizes the information about base parameters.

    Limits also hold between samples, see
    `torchsko.identification.excitation.trajectory_objective.TrajectoryObjective.worst_violations`.
    Self-collision is not checked: inspect the motion before the robot executes it.

    Args:
        mech: the nominal robot, without a batch, all of whose joints have one coordinate.
        period: [s].
        harmonics: number of harmonics.
        limit_fraction: fraction of the limits of positions, velocities and forces to use, in (0, 1].
        workspace: boxes of frames by name: lowest and highest corner, in the inertial frame [m].
        steps: number of gradient steps.
        samples: samples of the period at which information and limits are evaluated; 12 per harmonic if None.
        generator: random number generator for the start, on the mechanism's device.
        on_step: called after each step with its number and the best log determinant so far.

    Returns:
        The trajectory; `Trajectory.write` writes it as a CSV file.

    Raises:
        FitError: if no motion within the limits is found, an option is out of range, or a limit is 0.
        MechanismError: if the coordinates of a joint are not a vector; names it.
    """
    mech = as_mechanism(mech)
    check_options(period, harmonics, limit_fraction)
    _check_counts(harmonics, steps, samples)
    for frame, box in (workspace or {}).items():
        _check_box(mech, frame, box)
    check_limits_nonzero(mech, "velocity_limit", "effort_limit", "upper")
    start = exciting_trajectory(
        mech, period=period, harmonics=harmonics, limit_fraction=limit_fraction, generator=generator
    )
    samples = samples or SAMPLES_PER_HARMONIC * harmonics
    objective = TrajectoryObjective.of(mech, start, limit_fraction, workspace or {}, samples)
    start = _best_start(mech, objective, start, generator)
    start = Trajectory(start.center, START_SCALE * start.cosine, START_SCALE * start.sine, period)
    # Coefficients over the amplitude of each joint, so that one learning rate suits all.
    scale = torch.cat([start.cosine, start.sine]).abs().amax(0).clamp_min(1e-3)
    rows = torch.cat([start.center[None], start.cosine, start.sine]) / scale
    rows = rows.detach().requires_grad_()
    # A short memory, because the penalty changes the gradient abruptly.
    optimizer = torch.optim.Adam([rows], lr=LEARNING_RATE, betas=(0.8, 0.9))
    best_information, best, current = float("-inf"), None, start
    for step in range(steps + 1):
        center, cosine, sine = (scale * rows).split([1, harmonics, harmonics])
        evaluation = objective.evaluate(Trajectory(center[0], cosine, sine, period))
        current = Trajectory(center[0].detach(), cosine.detach(), sine.detach(), period)
        violation = float(evaluation.violations.detach().max())
        if violation <= MAX_VIOLATION and float(evaluation.information.detach()) > best_information:
            feasible = objective.shrink_to_limits(current)
            if feasible is not None and objective.information(feasible) > best_information:
                best_information, best = objective.information(feasible), feasible
        if on_step is not None:
            on_step(step, best_information)
        optimizer.zero_grad()
        objective.cost(evaluation).backward()
        optimizer.step()
    if best is None:
        violations = objective.worst_violations(current)
        worst = int(violations.argmax())
        raise FitError(
            f"no motion of {mech.name!r} within its limits was found in {steps} steps: the "
            f"{objective.limit_names[worst]} exceeds its limit by {100 * float(violations[worst]):.3g} % of "
            "its range.",
            f"Positions, velocities, forces and the boxes of {len(workspace or {})} frames are limited.",
            "Pass a longer period, a larger box, a larger limit_fraction, or more steps.",
        )
    return best


def _check_counts(harmonics: int, steps: int, samples: int | None) -> None:
    if not (isinstance(steps, Integral) and steps >= 0):
        raise FitError(
            f"steps is {steps!r}.",
            "It must be a non-negative integer, the number of gradient steps.",
            "Pass steps=100, for example.",
        )
    # Fewer samples alias the fastest harmonic.
    minimum = 2 * harmonics + 1
    if samples is not None and not (isinstance(samples, Integral) and samples >= minimum):
        raise FitError(
            f"samples is {samples!r}.",
            f"{harmonics} harmonics need at least {minimum} samples.",
            f"Leave it out to use the default, {SAMPLES_PER_HARMONIC * harmonics}.",
        )


def _check_box(mech: Mechanism, frame: str, box: tuple[Sequence[float], Sequence[float]]) -> None:
    if frame not in mech.frame_names:
        raise FitError(*unknown_name("frame", frame, mech.frame_names))
    shape = tuple(np.shape(corner) for corner in box)
    corners = np.asarray(box, np.float64) if shape == ((3,), (3,)) else None
    if corners is None or not bool((corners[0] < corners[1]).all()):
        raise FitError(
            f"the box of frame {frame!r} is {box!r}.",
            "A box is its lowest and its highest corner, each x, y and z in the inertial frame, in m.",
            f'Pass workspace={{"{frame}": ((-0.5, -0.5, 0.1), (0.5, 0.5, 1.0))}}, for example.',
        )


def _best_start(
    mech: Mechanism,
    objective: TrajectoryObjective,
    first: Trajectory,
    generator: torch.Generator | None,
) -> Trajectory:
    """The trajectory of lowest cost among a first one and random ones."""
    others = [
        exciting_trajectory(
            mech,
            period=first.period,
            harmonics=len(first.sine),
            limit_fraction=objective.limit_fraction,
            generator=generator,
        )
        for _ in range(RANDOM_STARTS)
    ]
    with torch.no_grad():
        return min([first, *others], key=lambda x: float(objective.cost(objective.evaluate(x))))
