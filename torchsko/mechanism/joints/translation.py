"""Translational joint with three degrees of freedom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Pose


@dataclass(frozen=True)
class Translation(JointType):
    """Translation along the three axes of the joint frame: q is `x y z` [m], qd its rate [m/s]."""

    name: str = "translation"
    coordinates: tuple[str, ...] = ("x", "y", "z")
    rates: tuple[str, ...] = ("x", "y", "z")
    usual_speed: tuple[float, ...] = (1.0,) * 3
    coordinate_unit: str = "m"
    one_axis: bool = True

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Translation by q."""
        return None, q

    def joint_map(self, constants: Constants) -> Tensor:
        """The linear half of the identity."""
        axis = constants["axis"]
        rows = torch.eye(6, dtype=axis.dtype, device=axis.device)[3:]
        return rows.expand(*axis.shape[:-1], 3, 6)
