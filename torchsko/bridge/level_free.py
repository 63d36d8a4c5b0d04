r"""The bridge without levels: a mechanism at a state as an SKO model, in O(log depth) operations.

Rotations multiply along the tree by pointer doubling, everything else is computed for all bodies at once.
Accelerations are classical ones, alpha = [dw/dt; d^2 p/dt^2] in body axes, p the body origin, which
differ from the spatial ones of `assemble` by w x v. With r the child origin in the parent and
H* qd = [w_J; v_J] the joint's own rates,

.. math::
    a(k) = \begin{bmatrix} w_k \times w_J \\
           R^* [w_p \times (w_p \times r)] + (R^* w_p + w_k) \times v_J \end{bmatrix}
           + \dot H^* \dot q, \quad
    b(k) = \begin{bmatrix} w \times I_o w \\ w \times (w \times m c) \end{bmatrix} - f_{ext}.

E_A, H, M and all results are the same. The linear velocity, which accumulates along a chain and cancels in
the end, does not occur: float32 forward dynamics of 1024 moving links is ten times more accurate.

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, section 2; D. Isobe, A. Yagi, *General-purpose expression of structural
connectivity in the parallel solution scheme of inverse dynamics*, section II.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.algebra.operators import logdepth
from torchsko.algebra.operators.edges import DenseEdges
from torchsko.algebra.operators.hinge import spread
from torchsko.algebra.operators.model import SKOModel
from torchsko.bridge.assemble import aligned_joints, straight_rows
from torchsko.bridge.joint_motion import joint_bias_accels, joint_poses
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rigid_transform import force_matrix
from torchsko.spatial.rotation import cross
from torchsko.utils.dtype import without_autocast
from torchsko.utils.shapes import matvec


@without_autocast
def assemble_level_free(state: Kinematics, f_ext: Tensor | None = None) -> SKOModel:
    """The SKO model of the tree of a mechanism at a state, in classical accelerations.

    Args:
        state: the mechanism at a configuration and velocity.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body's frame at its origin,
            [moment; force] [N m, N].

    Returns:
        A model of the same H, A, M and armature as `tree_model` gives, whose a and b lead to the same
        forces and accelerations.

    Reference: Jain 2011, Part II, section 2.
    """
    mech, q, qd = state.tree, state.tree_q, state.tree_qd
    layout = mech.layout
    R, r = relative_poses(mech, q)
    H, M = state.joint_map, state.inertia
    rate = spread(H, layout.dofs.pack(qd[..., None]))[..., 0]
    turning, sliding = rate[..., :3], rate[..., 3:]
    weights = logdepth.powers(layout.jumps, R)
    w = logdepth.scatter(layout.jumps, weights, turning[..., None])
    carried = logdepth.step_down(layout.jumps, weights, w)[..., 0]  # R* w_p
    w = w[..., 0]
    swung = cross(carried, cross(carried, matvec(R.mT, r)))
    base = matvec(R.mT, base_accel(mech))
    linear = swung + cross(carried + w, sliding) + base
    turned = matvec(M[..., :3], w)  # [I_o w; w x m c]
    moment, force = cross(w, turned[..., :3]), cross(w, turned[..., 3:])
    a, b = stacked(cross(w, turning), linear), stacked(moment, force)
    bias = joint_bias_accels(mech, q, qd)
    a = a if bias is None else a + bias[..., None]
    if f_ext is not None:
        b = b - layout.breadth_first(f_ext, -2)[..., None]
    return SKOModel(
        layout,
        DenseEdges(force_matrix(R, r)),
        H,
        M,
        a,
        b,
        armature=layout.dofs.pack_once(mech.armature[..., None]) if mech.has_armature else None,
        straight=straight_rows(mech, H),
        aligned=aligned_joints(mech),
    )


def relative_poses(mech: Mechanism, q: Tensor) -> tuple[Tensor, Tensor]:
    """Pose of every body in its parent, breadth first: `[*batch, n, 3, 3]` and `[*batch, n, 3]` [m]."""
    layout = mech.layout
    R = layout.breadth_first(mech.joint_rotation, -3)
    r = layout.breadth_first(mech.joint_position, -2)
    turn, shift = joint_poses(mech, q)
    r = r if shift is None else r + matvec(R, shift)
    return R if turn is None else R @ turn, r


def base_accel(mech: Mechanism) -> Tensor:
    """Acceleration -g of the inertial frame at base bodies, zero at the others, `[*batch, n, 3]`."""
    count = len(mech.layout.tree.bases)
    g = mech.gravity[..., None, :].expand(*mech.gravity.shape[:-1], count, 3)
    return torch.nn.functional.pad(-g, (0, 0, 0, mech.num_bodies - count))


def stacked(upper: Tensor, lower: Tensor) -> Tensor:
    """Spatial columns `[*, n, 6, 1]` from their halves `[*, n, 3]`, batch dimensions broadcast."""
    return torch.cat(torch.broadcast_tensors(upper, lower), -1)[..., None]
