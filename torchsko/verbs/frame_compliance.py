r"""Operational space compliance and inertia of a mechanism at named frames.

.. math::
    \Lambda = (J \mathcal{M}^{-1} J^*)^{-1}, \qquad \bar J = \mathcal{M}^{-1} J^* \Lambda

J stacks the Jacobians of the frames, six rows each, [omega; v] in the frame's own axes at its origin.
For other rows (a position, say) compose `frame_jacobian`, `algorithms.reflected_compliance` and
`algorithms.invert_compliance` in the same way.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, section 6.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algorithms import innovations
from torchsko.algorithms.operational_space import (
    Singular,
    invert_compliance,
    reflected_compliance,
    sizes_of_kinds,
)
from torchsko.bridge.assemble import model_at
from torchsko.bridge.kinematics import Kinematics
from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import refuse_singular
from torchsko.verbs.frame import Frames, listed, with_frames
from torchsko.verbs.frames import frame_jacobian


@verb
def operational_space_compliance(mech: Mechanism, q: Tensor, frames: Frames) -> Tensor:
    """Accelerations of frames per unit forces on them, J M^-1 J*.

    Returns:
        `[*batch, 6 F, 6 F]`, frame by frame, [angular; linear]: accelerations [rad/s^2; m/s^2] per moment
        [N m] and force [N]; positive semi-definite, of full rank only where the frames can accelerate in
        every direction.

    Raises:
        MechanismError: on an unknown frame, or none, or when a joint's hinge inertia vanishes.

    Reference: Jain 2011, Part II, Eq. 59.
    """
    J = _jacobian(mech, q, frames)
    return reflected_compliance(innovations(model_at(Kinematics.of(mech, q))), J)


@verb
def operational_space_inertia(
    mech: Mechanism,
    q: Tensor,
    frames: Frames,
    *,
    singular: Singular = "nan",
    rank_tolerance: float | None = None,
) -> Tensor:
    """Operational space inertia Lambda = (J M^-1 J*)^-1 of frames: forces per unit accelerations.

    Args:
        singular: rule for configurations in which the rows of J are linearly dependent: "nan" (the
            default), "raise", "pinv" or ("damped", d). Other samples of the batch are unaffected. See
            `torchsko.algorithms.invert_compliance`.
        rank_tolerance: see `torchsko.algorithms.invert_compliance`. Angular and linear rows are scaled first,
            so that the rank is the same in meters and in millimeters; for "pinv" by 1 and by the
            characteristic length of the robot.

    Returns:
        `[*batch, 6 F, 6 F]`, frame by frame, [angular; linear] [kg m^2, kg m, kg].

    Raises:
        MechanismError: on an unknown frame, or none, or when a joint's hinge inertia vanishes.
        ShapeError: when q does not fit the mechanism, the frames have more rows than the mechanism has
            dofs and `singular` is "nan" or "raise", or `singular` or `rank_tolerance` is invalid.
        SingularError: with ``singular="raise"``; names the samples.

    Reference: Jain 2011, Part II, section 6.2.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, _ = arm.random_state(5)
        >>> ts.operational_space_inertia(arm, q, [arm.frame_names[-1]]).shape
        torch.Size([5, 6, 6])
    """
    frames = listed(frames)
    _refuse_too_many_rows(mech, len(frames), singular)
    compliance = operational_space_compliance(mech, q, frames)
    return _inverted(mech, frames, compliance, singular, rank_tolerance)


@verb
def consistent_jacobian_inverse(
    mech: Mechanism,
    q: Tensor,
    frames: Frames,
    *,
    singular: Singular = "nan",
    rank_tolerance: float | None = None,
) -> Tensor:
    """The dynamically consistent inverse of the Jacobian of frames, M^-1 J* Lambda.

    Among the right inverses of J it is the one for which joint forces (I - J* Jbar*) tau accelerate no frame.

    Args:
        singular: as in `operational_space_inertia`.
        rank_tolerance: as in `operational_space_inertia`.

    Returns:
        `[*batch, num_dof, 6 F]`, frame by frame: joint velocities per velocity [rad/s; m/s] of frames.

    Raises:
        MechanismError: on an unknown frame, or none, or when a joint's hinge inertia vanishes.
        ShapeError: as `operational_space_inertia`.
        SingularError: with ``singular="raise"``; names the samples.

    Reference: Jain 2011, Part II, section 6.2.
    """
    frames = listed(frames)
    _refuse_too_many_rows(mech, len(frames), singular)
    J = _jacobian(mech, q, frames)
    fac = innovations(model_at(Kinematics.of(mech, q)))
    compliance = reflected_compliance(fac, J)
    inertia = _inverted(mech, frames, compliance, singular, rank_tolerance)
    return fac.solve(J.mT, columns=True) @ inertia


@verb
def manipulability(
    mech: Mechanism, q: Tensor, frames: Frames, *, reference: str = "mixed", part: str = "whole"
) -> Tensor:
    """Yoshikawa's manipulability of frames: the product of the singular values of J.

    Where J has no more rows than columns it is the root of det(J J*), and vanishes where the frames cannot
    move in some direction. It has a kink there, like |x|: the gradient is a subgradient, and there is no
    second derivative. The whole measure mixes meters and radians; a part does not.

    Args:
        reference: as in `torchsko.frame_velocity`; the measure is the same in "body" and "mixed".
        part: "whole", "rotation" or "position".

    Returns:
        `[*batch]`, of all frames together.

    Raises:
        MechanismError: on an unknown frame, or none, an unknown reference or part.

    Reference: T. Yoshikawa, *Manipulability of robotic mechanisms*, International Journal of Robotics
    Research 4(2), 1985.
    """
    rows = {"whole": slice(0, 6), "rotation": slice(0, 3), "position": slice(3, 6)}
    if part not in tuple(rows):  # a list has no place in a dict
        raise MechanismError(*unknown_name("part of a Jacobian", part, tuple(rows)))
    J = frame_jacobian(mech, q, listed(frames), reference=reference)
    return _volume(J[..., rows[part], :].flatten(-3, -2))


def _volume(J: Tensor) -> Tensor:
    """The product of the singular values of matrices `[*batch, m, n]`, `[*batch]`.

    It is the product of the column lengths of the modified Gram-Schmidt orthogonalization, whose operations
    are the same for every matrix. At full rank all its derivatives exist; those of singular values do not
    exist where two are equal (torch returns nan or an arbitrary number).
    """
    rest = J if J.shape[-2] >= J.shape[-1] else J.mT
    volume = rest.new_ones(rest.shape[:-2])
    for _ in range(rest.shape[-1]):
        column, rest = rest[..., 0], rest[..., 1:]
        square = column.square().sum(-1)
        none = square == 0
        length = torch.where(none, 1.0, square).sqrt()
        unit = column / length[..., None]
        volume = volume * torch.where(none, 0.0, length)
        rest = rest - unit[..., None] * (unit[..., None, :] @ rest)
    return volume


def _jacobian(mech: Mechanism, q: Tensor, frames: Frames) -> Tensor:
    """Rows of all frames, `[*batch, 6 F, num_dof]`."""
    refuse_singular(mech)
    return frame_jacobian(mech, q, listed(frames)).flatten(-3, -2)


def _inverted(
    mech: Mechanism,
    frames: Frames,
    compliance: Tensor,
    singular: Singular,
    rank_tolerance: float | None,
) -> Tensor:
    """The inertia of frames, with a rank that is independent of the unit of length."""
    length = lever_length(mech, frames)
    if singular == "pinv":  # its value depends on the scales, so they have derivatives
        sizes = sizes_by(length, len(listed(frames)))
    else:
        sizes = sizes_of_kinds(compliance.detach(), length.detach())
    return invert_compliance(compliance, singular, rank_tolerance, sizes=sizes)


def lever_length(mech: Mechanism, frames: Frames) -> Tensor:
    """Characteristic length of a robot, `[*batch]` [m], independent of its position.

    It is the sum of link offsets, or the radius of gyration about the links' origins where merged rigid links
    leave no offsets.

    Args:
        mech: the mechanism.
        frames: those that it moves.
    """
    mech, numbers = with_frames(mech, frames)
    turning = mech.inertia.diagonal(dim1=-2, dim2=-1).sum(-1)
    moment = (turning + mech.mass * mech.com.square().sum(-1)).sum(-1)
    total = mech.mass.sum(-1)
    square = torch.where(total > 0, moment / torch.where(total > 0, total, 1.0), 0.0)
    hung = [k for k, parent in enumerate(mech.parents) if parent >= 0]
    for offsets in (
        mech.joint_position[..., hung, :],
        mech.frame_position[..., list(numbers), :],
    ):
        square = square + offsets.square().sum((-2, -1))
    return torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)


def sizes_by(length: Tensor, count: int) -> Tensor:
    """Scales that give all rows of frames, [angular; linear] each, one unit, `[*batch, 6 count]`.

    Args:
        length: `[*batch]` [m]; 0 is replaced by 1.
        count: number of frames.
    """
    linear = torch.where(length > 0, length, 1.0)
    each = torch.stack([torch.ones_like(linear), linear], -1)[..., None, :, None]
    return each.expand(*length.shape, count, 2, 3).flatten(-3)


def _refuse_too_many_rows(mech: Mechanism, count: int, singular: Singular) -> None:
    if 6 * count > mech.num_dof and singular in ("nan", "raise"):
        raise ShapeError(
            f"{count} frames have {6 * count} rows, {mech.name!r} has {mech.num_dof} dofs.",
            "More rows than dofs depend on one another in every configuration.",
            'Pass singular="pinv" or ("damped", 1e-4)'
            + (", or fewer frames." if count > 1 else ", or compose it from rows of your own."),
        )
