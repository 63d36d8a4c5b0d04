"""Prismatic joint."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Pose, WeightTerms
from torchsko.spatial.rotation import skew


@dataclass(frozen=True)
class Prismatic(JointType):
    """Translation along the axis: q is the displacement [m], qd its rate [m/s]."""

    name: str = "prismatic"
    coordinates: tuple[str, ...] = ("displacement",)
    rates: tuple[str, ...] = ("displacement",)
    usual_speed: tuple[float, ...] = (1.0,)
    coordinate_unit: str = "m"
    has_axis: bool = True
    one_axis: bool = True
    urdf: tuple[str, ...] = ("prismatic",)
    mjcf: str = "slide"

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Translation by the displacement."""
        return None, constants["axis"] * q

    def joint_map(self, constants: Constants) -> Tensor:
        """[0, axis]."""
        axis = constants["axis"]
        return torch.cat([torch.zeros_like(axis), axis], -1)[..., None, :]

    def weight_terms(self, constants: Constants, q: Tensor, placement: Tensor) -> WeightTerms:
        """Weights affine in q."""
        sliding = torch.nn.functional.pad(skew(constants["axis"]), (3, 0, 0, 3))
        return WeightTerms(placement, ((q[..., None], placement @ sliding),))
