r"""All goals of one call, in order of their priority.

Goals of the lowest priority, that of the largest number, are minimized subject to the errors of the others
being zero, as in hierarchical least squares. Constraints of a held mechanism have the highest priority. The
method of multipliers enforces the constraints: its steps are ordinary damped least squares, without a
null-space projector, whose rank would have to be decided at each step. With the weighted errors :math:`e_1`
of the lowest priority, :math:`e_2` of others, and their scaled multipliers s, a step minimizes

.. math::
    |e_1|^2 + P^2 |e_2 + s|^2, \qquad s \leftarrow s + e_2 \text{ predicted after the step}.

Where goals of higher priorities contradict each other, P grows by `PENALTY` for each priority.

References: A. Escande, N. Mansard, P.-B. Wieber, *Hierarchical quadratic programming*, International Journal
of Robotics Research 33(7), 2014 (lexicographic least squares); J. Nocedal, S. Wright, *Numerical
Optimization*, Springer 2006, section 17.3 (method of multipliers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchsko.control.ik.goal import BoundGoal, Goal, GoalRows, GoalState, join_rows
from torchsko.control.ik.held_goal import bind_held
from torchsko.control.joint_space.gains import Batches, merge_batches
from torchsko.errors import MechanismError
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.validation import check_each
from torchsko.utils.shapes import concatenate
from torchsko.verbs.frame import with_frames
from torchsko.verbs.held.held_rows import HeldRows

PENALTY = 10.0
"""Factor of the weights of goals from one priority to the next. Errors of a higher priority decrease by its
square with each update of the multipliers."""


@dataclass(frozen=True)
class GoalSet:
    """The rows of all goals without their tensors, in ascending priority.

    Attributes:
        goals: rows of each goal.
        levels: for each goal, the number of lower priorities.
        shapes: shapes of the tensors of each goal.
        frames: names of all frames of goals.
        order: for each goal of the caller its index among `goals`.
    """

    goals: tuple[GoalRows, ...]
    levels: tuple[int, ...]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    frames: tuple[str, ...]
    order: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Number of rows of all goals."""
        return sum(goal.num_rows for goal in self.goals)

    @property
    def num_free(self) -> int:
        """Number of rows of the lowest priority; they come first."""
        goals = zip(self.goals, self.levels, strict=True)
        return sum(goal.num_rows for goal, level in goals if level == 0)

    def penalties(self, like: Tensor) -> Tensor:
        """P of each row."""
        goals = zip(self.goals, self.levels, strict=True)
        return like.new_tensor([PENALTY**k for goal, k in goals for _ in range(goal.num_rows)])

    def error(self, mech: MechanismLike, tensors: Sequence[Tensor], q: Tensor) -> Tensor:
        """Weighted errors, `[*batch, num_rows]`."""
        at = GoalState(mech, self.frames, q)
        return join_rows([goal.error(at, *x) * w for goal, x, w in self._split(tensors)])

    def linearized(
        self, mech: MechanismLike, tensors: Sequence[Tensor], q: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weighted errors, and minus their derivative."""
        at, errors, rows = GoalState(mech, self.frames, q), [], []
        for goal, x, w in self._split(tensors):
            errors.append(goal.error(at, *x) * w)
            rows.append(goal.jacobian(at, *x) * w[..., None])
        return join_rows(errors), concatenate(rows, -2)

    def in_given_order(self, rows: Tensor) -> Tensor:
        """Rows in the order in which the caller passed the goals, then those of held frames."""
        parts = rows.split([goal.num_rows for goal in self.goals], -1)
        return torch.cat([parts[k] for k in self.order], -1)

    def _split(
        self, tensors: Sequence[Tensor]
    ) -> list[tuple[GoalRows, tuple[Tensor, ...], Tensor]]:
        """Rows, tensors and weight of each goal."""
        left, found = iter(tensors), []
        for goal, shapes in zip(self.goals, self.shapes, strict=True):
            *x, weight = (next(left) for _ in shapes)
            found.append((goal, tuple(x), weight))
        return found


def parse_goals(
    mech: Mechanism, goals: Any, held: HeldRows | None, q0: Tensor
) -> tuple[Mechanism, GoalSet, list[Tensor], Batches]:
    """Check goals, and convert them to rows and tensors.

    Returns:
        The mechanism with all frames of the goals, the rows, their tensors, and their batch dimensions by
        the names that errors use.
    """
    check_each("goals", goals, Goal, "FrameGoal(frame, target)")
    if not goals:
        raise MechanismError(
            "goals is empty.",
            "Inverse kinematics needs at least one goal.",
            "Pass [FrameGoal(frame, target)], say.",
        )
    several = [frame for goal in goals for frame in goal.frames]
    robot, numbers = with_frames(mech, several) if several else (mech, ())
    names = [robot.frame_names[k] for k in numbers]
    left, bound = iter(names), list[tuple[BoundGoal, int]]()
    for goal in goals:
        own = [next(left) for _ in goal.frames]
        bound.append((goal.bind(robot, own), -int(goal.priority)))
    if held is not None:
        bound.append((bind_held(mech, held, q0), 1 + max(k for _, k in bound)))
    ranks = sorted({k for _, k in bound})
    chosen = sorted(range(len(bound)), key=lambda i: bound[i][1])
    batches: Batches = {}
    for goal, _ in bound:
        batches = merge_batches(batches, goal.batches)
    ordered = [bound[i][0] for i in chosen]
    rows = GoalSet(
        tuple(x.rows for x in ordered),
        tuple(ranks.index(bound[i][1]) for i in chosen),
        tuple(x.shapes for x in ordered),
        tuple(dict.fromkeys(names)),
        tuple(chosen.index(i) for i in range(len(bound))),
    )
    return robot, rows, [x for goal in ordered for x in goal.tensors], batches
