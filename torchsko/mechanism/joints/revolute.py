"""Revolute joint."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Pose, WeightTerms
from torchsko.spatial.rigid_transform import force_matrix
from torchsko.spatial.rotation import skew


@dataclass(frozen=True)
class Revolute(JointType):
    """Rotation about the axis: q is the angle [rad], qd its rate [rad/s]."""

    name: str = "revolute"
    coordinates: tuple[str, ...] = ("angle",)
    rates: tuple[str, ...] = ("angle",)
    usual_speed: tuple[float, ...] = (math.pi,)
    coordinate_unit: str = "rad"
    has_axis: bool = True
    one_axis: bool = True
    urdf: tuple[str, ...] = ("revolute", "continuous")
    mjcf: str = "hinge"

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Rotation by the angle."""
        return rotation_about(constants["axis"], q), None

    def joint_map(self, constants: Constants) -> Tensor:
        """[axis, 0]."""
        axis = constants["axis"]
        return torch.cat([axis, torch.zeros_like(axis)], -1)[..., None, :]

    def weight_terms(self, constants: Constants, q: Tensor, placement: Tensor) -> WeightTerms:
        """Weights affine in cos q and sin q."""
        axis, angle = constants["axis"], q[..., None]
        along = axis[..., :, None] * axis[..., None, :]
        identity = torch.eye(3, dtype=axis.dtype, device=axis.device)
        across, turning = (
            placement @ force_matrix(part, torch.zeros_like(axis))
            for part in (identity - along, skew(axis))
        )
        return WeightTerms(
            placement @ force_matrix(along, torch.zeros_like(axis)),
            ((angle.cos(), across), (angle.sin(), turning)),
        )


def rotation_about(axis: Tensor, angle: Tensor) -> Tensor:
    """Rotation about unit axes `[*, g, 3]` by angles `[*batch, g, 1]`: `[*batch, g, 3, 3]`.

    Rodrigues' formula with separate constant terms, so that entries 0 and 1 of a coordinate axis stay exact.
    """
    along = axis[..., :, None] * axis[..., None, :]
    identity = torch.eye(3, dtype=axis.dtype, device=axis.device)
    angle = angle[..., None]
    return along + angle.cos() * (identity - along) + angle.sin() * skew(axis)
