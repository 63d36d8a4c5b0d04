r"""Weld as a soft constraint, with the rows of MuJoCo.

The angular rows are the vector part of the quaternion q of the second marker relative to the first, times the
torque scale s,

.. math::
    \phi = s\, q_v, \qquad \dot\phi = \tfrac s2 (q_w\, \omega + \omega \times q_v), \qquad
    \omega = R_1^* (\omega_2 - \omega_1).

Rows of `torchsko.constraints.weld` in the axes of the first marker have other rates, and so another softness.

Reference: MuJoCo documentation, "Computation", Constraint model (equality).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import FrameRows, Marker
from torchsko.spatial.rotation import cross, matrix_to_quaternion, skew
from torchsko.utils.shapes import matvec


@dataclass(frozen=True)
class SoftWeld(FrameRows):
    """Six rows: three angular rows in the axes of the first marker, then x2 - x1 in the shared axes."""

    name: str = "weld"
    num_rows: int = 6
    parameters: tuple[str, ...] = ("torque_scale",)
    angular_rows: tuple[int, ...] = (0, 1, 2)
    mjcf: str = "weld"

    def residual(self, one: Marker, two: Marker, parameters: Tensor) -> Tensor:
        """The torque scale times sin(angle / 2) times the axis of the rotation, then the distance [m]."""
        _, v = _relative_rotation(one, two)
        return torch.cat(torch.broadcast_tensors(parameters * v, two.position - one.position), -1)

    def maps(self, one: Marker, two: Marker, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Angular rows, then point rows."""
        w, v = _relative_rotation(one, two)
        unit = torch.eye(3, dtype=v.dtype, device=v.device)
        turn = parameters[..., None] / 2 * (w[..., None] * unit - skew(v)) @ one.rotation.mT
        zero = torch.zeros_like(turn)
        L2 = torch.cat(
            [torch.cat([turn, zero], -1), torch.cat([zero, unit.expand(turn.shape)], -1)], -2
        )
        return -L2, L2

    def bias(self, one: Marker, two: Marker, V1: Tensor, V2: Tensor, parameters: Tensor) -> Tensor:
        """The maps' rates times the velocities."""
        w, v = _relative_rotation(one, two)
        w1, w2 = V1[..., :3], V2[..., :3]
        spin = matvec(one.rotation.mT, w2 - w1)
        turned = -matvec(one.rotation.mT, cross(w1, w2 - w1))
        w_rate = -(spin * v).sum(-1, keepdim=True) / 2
        v_rate = (w * spin + cross(spin, v)) / 2
        bias = w_rate * spin + cross(spin, v_rate) + w * turned + cross(turned, v)
        bias = parameters / 2 * bias
        return torch.cat([bias, torch.zeros_like(bias)], -1)


def _relative_rotation(one: Marker, two: Marker) -> tuple[Tensor, Tensor]:
    """Scalar `[*, 1]` and vector `[*, 3]` of the quaternion of R1* R2."""
    w, v = matrix_to_quaternion(one.rotation.mT @ two.rotation).split([1, 3], -1)
    return w, v
