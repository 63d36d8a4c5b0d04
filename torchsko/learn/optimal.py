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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.learn.base_parameters import base_parameters
from torchsko.learn.excitation import Trajectory, exciting_trajectory
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.verb import MechanismLike, as_mechanism
from torchsko.verbs.dynamics import inverse_dynamics
from torchsko.verbs.frames import frame_pose
from torchsko.verbs.regressors import torque_regressor

RATE = 0.02
"""Of Adam: parts of the range of a joint's amplitude at each step."""

TRIED = 7
"""Random trajectories besides the first, of which the best is where the ascent begins."""

HARD = 2e3
"""Of the penalty, for each base parameter: what a limit costs that is passed by all of its range."""

Box = Mapping[str, tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True, eq=False)
class Course:
    """What a trajectory does at some moments of its period.

    Attributes:
        information: log det of what base parameters are told.
        over: how far each limit is passed, over its range: negative inside.
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
    """

    mech: Mechanism
    lead: Tensor
    size: Tensor
    effort: Tensor
    reach: float
    workspace: Box
    t: Tensor

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
        return cls(mech, lead, size, effort, reach, workspace, t)

    def __call__(self, trajectory: Trajectory) -> Course:
        """What a trajectory tells, and how far it passes limits."""
        q, qd, qdd = trajectory(self.t)
        Y = torque_regressor(self.mech, q, qd, qdd).flatten(-2)[..., self.lead]
        W = (Y / self.effort[:, None] / self.size).flatten(0, 1)
        return Course(torch.logdet(W.mT @ W), self._over(q, qd, qdd))

    def cost(self, course: Course) -> Tensor:
        """What is made small: pushed back from a little before a limit, so that iterates stay inside."""
        passed = (course.over + 0.02).clamp_min(0)
        hard = HARD * len(self.lead) / len(self.t)
        return hard * passed.square().sum() - course.information

    def _over(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        mech, parts = self.mech, []
        middle, half = (mech.lower + mech.upper) / 2, (mech.upper - mech.lower) / 2
        force = inverse_dynamics(mech, q, qd, qdd)
        for x, limit in (
            (q - middle, half), (qd, mech.velocity_limit), (force, mech.effort_limit),
        ):  # fmt: skip
            # Infinite limits are passed by nothing; where they are, x may be no number.
            known = limit.isfinite()
            size = torch.where(known, limit, 1.0)
            inside = torch.where(known, x.abs() / size - self.reach, -1.0)
            parts.append(inside.flatten())
        for frame, (low, high) in self.workspace.items():
            at = frame_pose(mech, q, (frame,)).position[:, 0]
            box = torch.tensor([list(low), list(high)]).to(at)
            span = box[1] - box[0]
            parts += [((box[0] - at) / span).flatten(), ((at - box[1]) / span).flatten()]
        return torch.cat(parts)


def optimal_trajectory(
    mech: MechanismLike,
    *,
    period: float = 10.0,
    harmonics: int = 5,
    reach: float = 0.8,
    workspace: Box | None = None,
    steps: int = 100,
    moments: int = 60,
    generator: torch.Generator | None = None,
    tell: Callable[[int, float], None] | None = None,
) -> Trajectory:
    """A periodic motion within limits that tells most about base parameters.

    Self-collision is not looked at: watch the motion before the robot does it.

    Args:
        mech: the nominal robot, no batch, all joints of one coordinate each.
        period: [s].
        harmonics: number of terms.
        reach: part of the limits of positions, velocities and forces that may be used, in (0, 1].
        workspace: boxes that frames stay in, by name: lowest and highest corner, in the inertial frame [m].
        steps: of gradient ascent.
        moments: of the period at which the motion is looked at; more for many harmonics.
        generator: source of the start, on the mechanism's device.
        tell: called after each step with its number and the best log determinant so far.

    Returns:
        The trajectory; `Trajectory.write` makes a CSV file of it.

    Raises:
        FitError: when no motion within the limits is found.
    """
    mech = as_mechanism(mech)
    start = exciting_trajectory(
        mech, period=period, harmonics=harmonics, reach=reach, generator=generator
    )
    judge = Judge.of(mech, start, reach, workspace or {}, moments)
    start = _best_of(mech, judge, start, generator)
    # A little inside of the limits that it touches, so that it is one to be kept.
    start = Trajectory(start.center, 0.97 * start.cosine, 0.97 * start.sine, period)
    # In parts of what each joint may do, so that one rate fits all.
    scale = torch.cat([start.cosine, start.sine]).abs().amax(0).clamp_min(1e-3)
    rows = torch.cat([start.center[None], start.cosine, start.sine]) / scale
    rows = rows.detach().requires_grad_()
    optimizer = torch.optim.Adam([rows], lr=RATE, betas=(0.8, 0.9))  # limits are soon forgotten
    best, found = float("-inf"), None
    for step in range(steps + 1):
        center, cosine, sine = (scale * rows).split([1, harmonics, harmonics])
        now = Trajectory(center[0], cosine, sine, period)
        course = judge(now)
        inside = float(course.over.detach().max()) <= 1e-6
        if inside and float(course.information.detach()) > best:
            best = float(course.information.detach())
            found = Trajectory(center[0].detach(), cosine.detach(), sine.detach(), period)
        if tell is not None:
            tell(step, best)
        optimizer.zero_grad()
        judge.cost(course).backward()
        optimizer.step()
    if found is None:
        raise FitError(
            f"no motion of {mech.name!r} within its limits is found in {steps} steps.\n"
            f"Positions, velocities, forces and boxes of {len(workspace or {})} frames limit it.\n"
            "Pass a larger period or box, a larger reach, or more steps."
        )
    return found


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
