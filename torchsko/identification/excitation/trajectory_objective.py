"""Objective of the trajectory optimization: information about base parameters, and violations of limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.excitation.fourier import (
    SAMPLES_PER_PERIOD,
    Trajectory,
    default_limits,
)
from torchsko.mechanism.joints.kind import sampling_range
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.base_parameters import base_parameters
from torchsko.verbs.dynamics import inverse_dynamics
from torchsko.verbs.frames import frame_pose
from torchsko.verbs.regressors import torque_regressor

PENALTY = 2e3
"""Penalty, per base parameter, of violating a limit by its whole range."""

MARGIN = 0.02
"""Distance from a limit, over its range, at which the penalty begins, so that iterates stay inside."""

MAX_SHRINKAGES = 8
"""Number of times that a trajectory is scaled down to satisfy the limits between samples."""

Workspace = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Boxes that frames must stay in, by name: lowest and highest corner, in the inertial frame [m]."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Information and limits of a trajectory at samples of its period.

    Attributes:
        information: log determinant of the information about the scaled base parameters.
        violations: violation of each limit over its range, negative inside, `[samples, limits]`.
    """

    information: Tensor
    violations: Tensor


@dataclass(frozen=True, eq=False)
class TrajectoryObjective:
    """Objective function for trajectories of one robot.

    Attributes:
        mech: the nominal robot.
        independent: indices of the inertial parameters whose regressor columns are independent.
        column_norms: norms of these columns on a first trajectory, `[base]`.
        effort: effort limits, or typical forces of dofs without a limit, `[num_dof]`.
        limit_fraction: fraction of the limits that may be used.
        workspace: boxes of frames.
        t: times of the samples.
        ranges: lower and upper positions, `[2, num_dof]`.
    """

    mech: Mechanism
    independent: Tensor
    column_norms: Tensor
    effort: Tensor
    limit_fraction: float
    workspace: Workspace
    t: Tensor
    ranges: Tensor

    @classmethod
    def of(
        cls,
        mech: Mechanism,
        start: Trajectory,
        limit_fraction: float,
        workspace: Workspace,
        samples: int,
    ) -> TrajectoryObjective:
        """Objective of a robot, scaled by a first trajectory."""
        t = torch.linspace(0, start.period, samples + 1).to(start.center)[:-1]
        independent = base_parameters(mech).independent
        state = start(t)
        Y = torque_regressor(mech, *state).flatten(-2)[..., independent]
        typical = inverse_dynamics(mech, *state).square().mean(0).sqrt().clamp_min(1e-9)
        effort = torch.where(mech.effort_limit.isfinite(), mech.effort_limit, 3 * typical)
        norms = (Y / effort[:, None]).square().sum((0, 1)).sqrt().clamp_min(1e-12)
        ranges = torch.stack(sampling_range(mech.lower, mech.upper, default_limits(mech)))
        return cls(mech, independent, norms, effort, limit_fraction, workspace, t, ranges)

    def evaluate(self, trajectory: Trajectory) -> Evaluation:
        """Evaluate the information and the limits of a trajectory."""
        q, qd, qdd = trajectory(self.t)
        Y = torque_regressor(self.mech, q, qd, qdd).flatten(-2)[..., self.independent]
        W = (Y / self.effort[:, None] / self.column_norms).flatten(0, 1)
        return Evaluation(torch.logdet(W.mT @ W), self._violations(q, qd, qdd))

    def worst_violations(self, trajectory: Trajectory) -> Tensor:
        """Largest violation of each limit over the period, over its range, `[limits]`.

        Limits are checked `SAMPLES_PER_PERIOD` times per period of the fastest harmonic. Between samples a
        parabola exceeds them by at most an eighth of its second difference. Twice that is added, which is
        sufficient for harmonics of the force eleven times as fast as those of the motion.
        """
        samples = SAMPLES_PER_PERIOD * len(trajectory.sine)
        t = torch.linspace(0, trajectory.period, samples + 1).to(self.t)[:-1]
        with torch.no_grad():
            violations = self._violations(*trajectory(t))
        second_difference = violations.roll(1, 0) - 2 * violations + violations.roll(-1, 0)
        return (violations + second_difference.abs() / 4).amax(0)

    def shrink_to_limits(self, trajectory: Trajectory) -> Trajectory | None:
        """Scale a trajectory down until it satisfies the limits at any time; None if that fails."""
        for _ in range(MAX_SHRINKAGES):
            violation = float(self.worst_violations(trajectory).max())
            if violation <= 0:
                return trajectory
            factor = max(0.5, 1 - 2 * violation)
            trajectory = replace(
                trajectory, cosine=factor * trajectory.cosine, sine=factor * trajectory.sine
            )
        return None

    @property
    def limit_names(self) -> tuple[str, ...]:
        """Names of the limits, in the order of the violations."""
        joints = [
            f"{quantity} of joint {name!r}"
            for quantity in ("position", "velocity", "force")
            for name in self.mech.dof_names
        ]
        sides = [
            f"{axis} of frame {frame!r}" for frame in self.workspace for axis in ("x", "y", "z") * 2
        ]
        return (*joints, *sides)

    def information(self, trajectory: Trajectory) -> float:
        """Log determinant of the information of a trajectory."""
        with torch.no_grad():
            return float(self.evaluate(trajectory).information)

    def cost(self, evaluation: Evaluation) -> Tensor:
        """Cost to minimize: a penalty on violations, less the information."""
        excess = (evaluation.violations + MARGIN).clamp_min(0)
        weight = PENALTY * len(self.independent) / len(self.t)
        return weight * excess.square().sum() - evaluation.information

    def _violations(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        mech = self.mech
        force = inverse_dynamics(mech, q, qd, qdd)
        parts = [self._position_violations(q)]
        for x, limit in ((qd, mech.velocity_limit), (force, mech.effort_limit)):
            # Infinite limits are masked before the division, so that gradients are finite.
            finite = limit.isfinite()
            size = torch.where(finite, limit, 1.0)
            parts.append(torch.where(finite, x.abs() / size - self.limit_fraction, -1.0))
        for frame, (low, high) in self.workspace.items():
            at = frame_pose(mech, q, (frame,)).position[:, 0]
            box = torch.tensor([list(low), list(high)]).to(at)
            span = box[1] - box[0]
            parts += [(box[0] - at) / span, (at - box[1]) / span]
        return torch.cat(parts, -1)

    def _position_violations(self, q: Tensor) -> Tensor:
        """Violations of position limits, over half of their range; one side may have no limit."""
        lower, upper = self.ranges
        place = (q - (lower + upper) / 2) / ((upper - lower) / 2)
        sides = zip((-place, place), (self.mech.lower, self.mech.upper), strict=True)
        below, above = (
            torch.where(limit.isfinite(), x - self.limit_fraction, -1.0) for x, limit in sides
        )
        return torch.maximum(below, above)
