"""What trajectories are judged by: what they tell, and the limits that they keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.dof_names import dof_names
from torchsko.identification.excitation.fourier import FINE, Trajectory, usual_of
from torchsko.mechanism.joints.kind import sampling_range
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.base_parameters import base_parameters
from torchsko.verbs.dynamics import inverse_dynamics
from torchsko.verbs.frames import frame_pose
from torchsko.verbs.regressors import torque_regressor

HARD = 2e3
"""Of the penalty, for each base parameter: what a limit costs that is passed by all of its range."""

SHRUNK = 8
"""Times that a motion is made smaller that passes a limit between the moments."""

Box = Mapping[str, tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True, eq=False)
class Course:
    """What a trajectory does at some moments of its period.

    Attributes:
        information: log det of what base parameters are told.
        over: how far each limit is passed, over its range: negative inside, `[moments, limits]`.
    """

    information: Tensor
    over: Tensor


@dataclass(frozen=True, eq=False)
class Judge:
    """What trajectories of one robot are judged by.

    Attributes:
        mech: the nominal robot.
        lead: numbers that lead base parameters.
        size: of the columns, `[base]`.
        effort: size of each dof's force.
        reach: part of the limits that may be used.
        workspace: boxes of frames.
        t: moments.
        ranges: of positions, least and most, `[2, num_dof]`.
    """

    mech: Mechanism
    lead: Tensor
    size: Tensor
    effort: Tensor
    reach: float
    workspace: Box
    t: Tensor
    ranges: Tensor

    @classmethod
    def of(
        cls, mech: Mechanism, start: Trajectory, reach: float, workspace: Box, moments: int
    ) -> Judge:
        """The judge of a robot; sizes are those of a first trajectory."""
        t = torch.linspace(0, start.period, moments + 1).to(start.center)[:-1]
        lead = base_parameters(mech).independent
        state = start(t)
        Y = torque_regressor(mech, *state).flatten(-2)[..., lead]
        used = inverse_dynamics(mech, *state).square().mean(0).sqrt().clamp_min(1e-9)
        effort = torch.where(mech.effort_limit.isfinite(), mech.effort_limit, 3 * used)
        size = (Y / effort[:, None]).square().sum((0, 1)).sqrt().clamp_min(1e-12)
        ranges = torch.stack(sampling_range(mech.lower, mech.upper, usual_of(mech)))
        return cls(mech, lead, size, effort, reach, workspace, t, ranges)

    def __call__(self, trajectory: Trajectory) -> Course:
        """What a trajectory tells, and how far it passes limits."""
        q, qd, qdd = trajectory(self.t)
        Y = torque_regressor(self.mech, q, qd, qdd).flatten(-2)[..., self.lead]
        W = (Y / self.effort[:, None] / self.size).flatten(0, 1)
        return Course(torch.logdet(W.mT @ W), self._over(q, qd, qdd))

    def passed(self, trajectory: Trajectory) -> Tensor:
        """How far each limit is passed at any time of the period, over its range, `[limits]`.

        Limits are looked at `FINE` times in a period of the fastest harmonic. Between these a signal may go
        beyond by an eighth of its second difference, if it is a parabola there; twice that is added, which
        is enough for harmonics of a force eleven times as fast as the motion's.
        """
        t = torch.linspace(0, trajectory.period, FINE * len(trajectory.sine) + 1).to(self.t)[:-1]
        with torch.no_grad():
            over = self._over(*trajectory(t))
        bend = over.roll(1, 0) - 2 * over + over.roll(-1, 0)
        return (over + bend.abs() / 4).amax(0)

    def held(self, trajectory: Trajectory) -> Trajectory | None:
        """The trajectory, smaller where it passes limits at any time; None where that does not help."""
        for _ in range(SHRUNK):
            over = float(self.passed(trajectory).max())
            if over <= 0:
                return trajectory
            part = max(0.5, 1 - 2 * over)
            trajectory = replace(
                trajectory, cosine=part * trajectory.cosine, sine=part * trajectory.sine
            )
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """Of limits."""
        joints = [
            f"{what} of joint {name!r}"
            for what in ("position", "velocity", "force")
            for name in dof_names(self.mech)
        ]
        sides = [
            f"{axis} of frame {frame!r}" for frame in self.workspace for axis in ("x", "y", "z") * 2
        ]
        return (*joints, *sides)

    def information(self, trajectory: Trajectory) -> float:
        """What a trajectory tells."""
        with torch.no_grad():
            return float(self(trajectory).information)

    def cost(self, course: Course) -> Tensor:
        """What is made small: pushed back from a little before a limit, so that iterates stay inside."""
        passed = (course.over + 0.02).clamp_min(0)
        hard = HARD * len(self.lead) / len(self.t)
        return hard * passed.square().sum() - course.information

    def _over(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        mech = self.mech
        force = inverse_dynamics(mech, q, qd, qdd)
        parts = [self._beyond(q)]
        for x, limit in ((qd, mech.velocity_limit), (force, mech.effort_limit)):
            # Infinite limits are passed by nothing; where they are, x may be no number.
            known = limit.isfinite()
            size = torch.where(known, limit, 1.0)
            parts.append(torch.where(known, x.abs() / size - self.reach, -1.0))
        for frame, (low, high) in self.workspace.items():
            at = frame_pose(mech, q, (frame,)).position[:, 0]
            box = torch.tensor([list(low), list(high)]).to(at)
            span = box[1] - box[0]
            parts += [(box[0] - at) / span, (at - box[1]) / span]
        return torch.cat(parts, -1)

    def _beyond(self, q: Tensor) -> Tensor:
        """How far positions pass their limits, over half of their range; a side may have none."""
        mech = self.mech
        lower, upper = self.ranges
        place = (q - (lower + upper) / 2) / ((upper - lower) / 2)
        sides = zip((-place, place), (mech.lower, mech.upper), strict=True)
        under, over = (torch.where(x.isfinite(), y - self.reach, -1.0) for y, x in sides)
        return torch.maximum(under, over)
