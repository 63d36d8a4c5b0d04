"""Whether velocities of joints that turn by a quaternion are those of its positions, or of others' habits.

Programs differ in where the real part of a quaternion stands, in which of angular and linear velocity is
first, and in the axes that each is in. All of these make a log that can be fitted, by a robot that is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.logs.log import Array, Log
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import quaternion_to_matrix
from torchsko.utils.shapes import matvec

CLEAR = 0.1
"""Share of a motion that does not go on as it began, up to which it is no noise."""

BAD = 0.02
"""Share of the motion that velocities leave over, from which on one asks why."""

BETTER = 10.0
"""Times less that they leave over in the way that is why: what noise leaves, it leaves in all."""

OTHER = 0.5
"""The same from which on they are another's."""


@dataclass(frozen=True)
class Habit:
    """How a log writes the motion of such a joint.

    Attributes:
        last: whether the real part of the quaternion is the last.
        exchanged: whether linear velocities come before angular ones.
        angular: whether angular velocities are in axes of the joint frame, not of the child.
        linear: the same of linear ones.
    """

    last: bool = False
    exchanged: bool = False
    angular: bool = False
    linear: bool = False

    def states(self, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates and rates as the joint has them, of those that are written so."""
        if self.last:
            q = torch.cat([q[..., :-4], q[..., -1:], q[..., -4:-1]], -1)
        turn = quaternion_to_matrix(q[..., -4:]).mT
        parts = list(qd.split(3, -1))
        if self.exchanged:
            parts.reverse()
        world = (self.angular, self.linear)
        parts = [matvec(turn, x) if w else x for x, w in zip(parts, world, strict=False)]
        return q, torch.cat(parts, -1)

    def told(self, q: slice, dof: slice) -> tuple[str, str]:
        """What is so, and what to type about it, of a joint with these columns."""
        w, first = q.stop - 4, dof.start
        each = [
            (self.last, "its quaternion were x y z w",
             f"q[:, {w}:{w + 4}] = q[:, [{w + 3}, {w}, {w + 1}, {w + 2}]]"),
            (self.exchanged, "linear velocities came first",
             f"qd[:, {first}:{first + 6}] = numpy.roll(qd[:, {first}:{first + 6}], 3, 1), forces likewise"),
            (self.angular, "angular velocities were in axes of the world", "omega = R.T @ omega"),
            (self.linear, "linear velocities were in axes of the world", "v = R.T @ v"),
        ]  # fmt: skip
        some = [(what, advice) for so, what, advice in each if so]
        what, advice = (
            x.join(y) for x, y in zip((", and ", ", then "), zip(*some, strict=True), strict=True)
        )
        where = ", R from axes of the body to the world's" if self.angular or self.linear else ""
        return what, f"{advice}{where}"


def habits(kind: JointType) -> Iterator[Habit]:
    """All ways to write the motion of a kind of joint, the fewest changes first."""
    free = kind.num_dof == 6
    ways = itertools.product((False, True), {False, free}, (False, True), {False, free})
    yield from (Habit(*x) for x in sorted(ways, key=lambda x: (sum(x), x)))


def refuse_other_habits(mech: Mechanism, log: Log, t: Array, q: Array, qd: Array) -> None:
    """Refuse velocities that are not those of quaternions, or of positions beside one.

    Args:
        mech: the robot.
        log: what messages name.
        t: of blocks of samples in a row, `[blocks, samples]` [s].
        q: likewise, `[blocks, samples, num_q]`.
        qd: likewise, `[blocks, samples, num_dof]`.

    Raises:
        FitError: names the joint, and in which other way of writing them they would be.
    """
    for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        kind, at, dof = mech.joints.kinds[k], mech.q_slice(name), mech.dof_slice(name)
        if "qw" not in kind.coordinates:
            continue
        fine = np.isfinite(q[..., at]).all((1, 2)) & np.isfinite(qd[..., dof]).all((1, 2))
        parts = [
            torch.from_numpy(np.asarray(x[fine], np.float64)) for x in (t, q[..., at], qd[..., dof])
        ]
        if fine.any():
            _refuse(log, name, kind, (at, dof), *parts)


def _refuse(
    log: Log, name: str, kind: JointType, places: tuple[slice, slice], t: Tensor, q: Tensor, qd: Tensor
) -> None:  # fmt: skip
    found = [(_left_over(kind, t, *habit.states(q, qd)), habit) for habit in habits(kind)]
    as_is, (left, best) = found[0][0], min(found, key=lambda x: x[0])
    if as_is < BAD:
        return
    own = ", ".join(kind.coordinates) + "; " + ", ".join(kind.rates)
    if BETTER * left < as_is:
        what, advice = best.told(*places)
        raise FitError(
            f"{log.name}: velocities of joint {name!r} are not those of its positions, and would be if "
            f"{what}.",
            f"Its columns are {own}, rates in axes of the body; they leave {100 * as_is:.2g} % of the motion "
            f"over, and {100 * left:.2g} % so.",
            f"Write {advice}.",
        )
    if as_is > OTHER and _turns_back(kind, q) < CLEAR:
        raise FitError(
            f"{log.name}: velocities of joint {name!r} are not those of its positions: they leave "
            f"{100 * as_is:.0f} % of the motion over.",
            f"Its columns are {own}, rates in axes of the body and at its origin.",
            "Look for another order, axes, or a sensor that sits elsewhere, and write them so.",
        )


def _shares(a: Tensor, b: Tensor) -> Tensor:
    """Mean square of what differs, of the larger of both, angular and linear parts apart: the worst."""
    rest, one, other = (
        torch.stack([y.square().sum() for y in x.split(3, -1)]) for x in (a - b, a, b)
    )
    return (rest / one.maximum(other).clamp_min(1e-300)).max()


def _left_over(kind: JointType, t: Tensor, q: Tensor, qd: Tensor) -> float:
    """Share of the motion over blocks that velocities leave over."""
    # The middle of velocities: outliers are none.
    told = (t[:, -1:] - t[:, :1]) * qd.quantile(0.5, dim=1)
    return float(_shares(kind.difference(q[:, 0], q[:, -1]), told))


def _turns_back(kind: JointType, q: Tensor) -> float:
    """Share of the motion over blocks that does not go on as it began: noise turns back."""
    middle = q[:, q.shape[1] // 2]
    return float(_shares(kind.difference(q[:, 0], middle), kind.difference(middle, q[:, -1]))) / 2
