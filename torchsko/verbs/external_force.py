r"""External forces on frames, and their derivatives.

A force f = [moment; force] on a frame with the pose (R, r) has in the frame's own axes the components

.. math::
    f_{body} = X^* f, \qquad X_{mixed} = \begin{bmatrix} R & 0 \\ 0 & R \end{bmatrix}, \qquad
    X_{world} = \begin{bmatrix} R & 0 \\ \tilde r R & R \end{bmatrix}.

Where f is constant in axes other than the frame's, they change with q. With m the moment and F the force
about the origin of the frame, in inertial axes, and the rows J = [J_w; J_v] of the frame,

.. math::
    J^* \frac{d f}{d q} = J^* \begin{bmatrix} \tilde m J_w \\ \tilde F J_w \end{bmatrix}
    + J_w^* \tilde F J_v \; (\text{"world" only}).

Reference: R. Featherstone, *Rigid Body Dynamics Algorithms*, Springer 2008, section 2.11.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rigid_transform import force_matrix
from torchsko.spatial.rotation import cross, skew
from torchsko.utils.shapes import matvec
from torchsko.verbs.frame import Frame, with_frames
from torchsko.verbs.frames import check_reference, frame_jacobian, frame_pose


@verb(shapes={"force": (6,)})
def external_force(
    mech: Mechanism, q: Tensor, frame: str | Frame, force: Tensor, *, reference: str = "world"
) -> Tensor:
    """External forces on bodies, from a moment and a force on one frame.

    Forces on several frames are summed. Derivatives of inverse and forward dynamics (in closed form) hold
    f_ext in the axes of the bodies; `external_force_derivative` is what they lack.

    Args:
        frame: a name of ``mech.frame_names``, or a `Frame`, on a body that moves.
        force: [moment; force], `[*batch, 6]` [N m, N].
        reference: "world", in inertial axes about the inertial origin; "mixed", in inertial axes about the
            origin of the frame; "body", in the axes of the frame.

    Returns:
        f_ext, `[*batch, num_bodies, 6]` [N m, N].

    Raises:
        MechanismError: on an unknown frame or reference, or a frame that does not move.

    Reference: Featherstone 2008, section 2.11.

    Example:
        >>> import torch, torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state()
        >>> push = torch.tensor([0.0, 0, 0, 0, 0, -10], dtype=q.dtype)
        >>> f_ext = ts.external_force(arm, q, "flange", push, reference="mixed")
        >>> ts.forward_dynamics(arm, q, qd, torch.zeros_like(qd), f_ext).shape
        torch.Size([7])
    """
    check_reference(reference)
    placed, (k,) = with_frames(mech, frame, q=q)
    body = placed.frame_body[k]
    if body < 0:
        raise MechanismError(
            f"the frame {frame!r} does not move.",
            "A force on it acts on the inertial frame.",
            f"Choose a frame of a body: {', '.join(map(repr, mech.body_names[:3]))}, say.",
        )
    if reference != "body":
        R, r = frame_pose(mech, q, frame)
        moment, push = force.split(3, -1)
        if reference == "world":
            moment = moment - cross(r, push)
        force = torch.cat(torch.broadcast_tensors(matvec(R.mT, moment), matvec(R.mT, push)), -1)
    X = force_matrix(placed.frame_rotation[..., k, :, :], placed.frame_position[..., k, :])
    on_body = matvec(X, force)
    zero = torch.zeros_like(on_body)
    return torch.stack([on_body if i == body else zero for i in range(mech.num_bodies)], -2)


@verb(shapes={"force": (6,)})
def external_force_derivative(
    mech: Mechanism, q: Tensor, frame: str | Frame, force: Tensor, *, reference: str = "world"
) -> Tensor:
    """Derivative of the joint forces of an external force to q, as far as it turns with the frame.

    With f_ext from `external_force`, the derivative of inverse dynamics to q is
    ``inverse_dynamics_derivatives(...)[0] - external_force_derivative(...)``.

    Args:
        frame: a name of ``mech.frame_names``, or a `Frame`.
        force: [moment; force], `[*batch, 6]` [N m, N].
        reference: as in `external_force`; "body" gives zero.

    Returns:
        `[*batch, num_dof, num_dof]`.

    Reference: Featherstone 2008, section 2.11.
    """
    check_reference(reference)
    J = frame_jacobian(mech, q, frame, reference="mixed")
    if reference == "body":
        return torch.zeros_like(J.mT @ J)
    angular, linear = J[..., :3, :], J[..., 3:, :]
    moment, push = force.split(3, -1)
    if reference == "world":
        moment = moment - cross(frame_pose(mech, q, frame).position, push)
    turned = angular.mT @ skew(moment) @ angular + linear.mT @ skew(push) @ angular
    return turned + angular.mT @ skew(push) @ linear if reference == "world" else turned
