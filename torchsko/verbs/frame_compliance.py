r"""Dynamics as felt at named frames: operational space compliance and inertia of a mechanism.

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
from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.verbs.dynamics import refuse_singular
from torchsko.verbs.frame import Frames, listed, with_frames
from torchsko.verbs.frames import frame_jacobian


@verb
def operational_space_compliance(mech: Mechanism, q: Tensor, frames: Frames) -> Tensor:
    """Accelerations of frames per unit forces on them, J M^-1 J*.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        frames: names from ``mech.frame_names``, `Frame` of your own, or one of these.

    Returns:
        `[*batch, 6 F, 6 F]`, frame by frame, [angular; linear]: accelerations [rad/s^2; m/s^2] per moment
        [N m] and force [N]; positive semi-definite, of full rank only where the frames can accelerate in
        every direction.

    Raises:
        MechanismError: on an unknown frame, or none, or when a joint's hinge inertia vanishes.
        ShapeError: when q does not fit the mechanism.

    Reference: Jain 2011, Part II, Eq. 59.
    """
    J = _jacobian(mech, q, frames)
    return reflected_compliance(innovations(model_at(mech, q)), J)


@verb
def operational_space_inertia(
    mech: Mechanism,
    q: Tensor,
    frames: Frames,
    singular: Singular = "nan",
    rank_tolerance: float | None = None,
) -> Tensor:
    """Inertia felt at frames, Lambda = (J M^-1 J*)^-1: forces on them per unit accelerations.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        frames: names from ``mech.frame_names``, `Frame` of your own, or one of these.
        singular: what a configuration gives in which the rows of J depend on one another: "nan" (the
            default), "raise", "pinv" or ("damped", d). Other samples of the batch never notice. See
            `torchsko.algorithms.invert_compliance`.
        rank_tolerance: see there. Angular and linear rows are divided by their sizes first, so that the rank
            is the same in metres and in millimetres; those of "pinv" by 1 and by the length of the robot's
            levers.

    Returns:
        `[*batch, 6 F, 6 F]`, frame by frame, [angular; linear] [kg m^2, kg m, kg].

    Raises:
        MechanismError: on an unknown frame, or none, or when a joint's hinge inertia vanishes.
        ShapeError: when q does not fit the mechanism, the frames have more rows than the mechanism has
            dofs and `singular` is "nan" or "raise", or `singular` or `rank_tolerance` is none.
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
    singular: Singular = "nan",
    rank_tolerance: float | None = None,
) -> Tensor:
    """The dynamically consistent inverse of the Jacobian of frames, M^-1 J* Lambda.

    Of all right inverses of J it is the one whose joint forces (I - J* Jbar*) tau move no frame.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        frames: names from ``mech.frame_names``, `Frame` of your own, or one of these.
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
    fac = innovations(model_at(mech, q))
    compliance = reflected_compliance(fac, J)
    inertia = _inverted(mech, frames, compliance, singular, rank_tolerance)
    return fac.solve(J.mT, columns=True) @ inertia


@verb
def manipulability(
    mech: Mechanism, q: Tensor, frames: Frames, reference: str = "mixed", part: str = "whole"
) -> Tensor:
    """Yoshikawa's measure of how freely frames move: the product of the singular values of J.

    Where J has no more rows than columns it is the root of det(J J*), and vanishes where the frames cannot
    move in some direction. It has a kink there, as |x| has: the gradient is one that leads away from it, or
    zero, and there is no second derivative. It mixes metres and radians, unless a part is chosen.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        frames: names from ``mech.frame_names``, `Frame` of your own, or one of these.
        reference: as in `torchsko.frame_velocity`; the measure is the same in "body" and "mixed".
        part: "whole", "rotation" or "position".

    Returns:
        `[*batch]`, of all frames together.

    Raises:
        MechanismError: on an unknown frame, or none, an unknown reference or part.
        ShapeError: when q does not fit the mechanism.

    Reference: T. Yoshikawa, *Manipulability of robotic mechanisms*, International Journal of Robotics
    Research 4(2), 1985.
    """
    rows = {"whole": slice(0, 6), "rotation": slice(0, 3), "position": slice(3, 6)}
    if part not in tuple(rows):  # a list has no place in a dict
        raise MechanismError(*unknown_name("part of a Jacobian", part, tuple(rows)))
    J = frame_jacobian(mech, q, listed(frames), reference)[..., rows[part], :].flatten(-3, -2)
    return _volume(J)


def _volume(J: Tensor) -> Tensor:
    """The product of the singular values of matrices `[*batch, m, n]`, `[*batch]`.

    It is that of the lengths that columns have beside those before them, by the modified method of Gram and
    Schmidt, whose operations are the same for every matrix. At full rank it has all derivatives; those of
    singular values have none where two are equal (torch gives nan there, or any number).
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
    check_state(mech, q=q)
    refuse_singular(mech)
    return frame_jacobian(mech, q, listed(frames)).flatten(-3, -2)


def _inverted(
    mech: Mechanism,
    frames: Frames,
    compliance: Tensor,
    singular: Singular,
    rank_tolerance: float | None,
) -> Tensor:
    """The inertia of frames, whose rank no unit of length decides."""
    length = lever_length(mech, frames)
    if singular == "pinv":  # its value depends on sizes, so these have derivatives
        sizes = sizes_by(length, len(listed(frames)))
    else:
        sizes = sizes_of_kinds(compliance.detach(), length.detach())
    return invert_compliance(compliance, singular, rank_tolerance, sizes=sizes, scalar=mech.scalar)


def lever_length(mech: Mechanism, frames: Frames) -> Tensor:
    """How long a robot's levers are, `[*batch]` [m]; where it stands, and how far it has gone, is none.

    The offsets of links alone are too short where rigid ones were merged: a way out and back is none.
    The radius of gyration about the links' origins is left then.

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
    """What makes rows of frames, [angular; linear] one after another, of one unit, `[*batch, 6 count]`.

    Args:
        length: `[*batch]` [m]; 0 is taken for 1.
        count: of frames.
    """
    linear = torch.where(length > 0, length, 1.0)
    each = torch.stack([torch.ones_like(linear), linear], -1)[..., None, :, None]
    return each.expand(*length.shape, count, 2, 3).flatten(-3)


def _refuse_too_many_rows(mech: Mechanism, count: int, singular: Singular) -> None:
    if 6 * count > mech.num_dof and singular in ("nan", "raise"):
        raise ShapeError(
            f"{count} frames have {6 * count} rows, {mech.name!r} has {mech.num_dof} dofs.\n"
            "More rows than dofs depend on one another in every configuration.\n"
            'Pass singular="pinv" or ("damped", 1e-4)'
            + (", or fewer frames." if count > 1 else ", or compose it from rows of your own.")
        )
