"""A kind of joint that the library does not know: a slider driven by a crank, one file, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType, Parameter, Pose


@dataclass(frozen=True)
class Crank(JointType):
    """Slides along its axis by radius * sin(angle): q is the crank's angle [rad]."""

    name: str = "crank"
    coordinates: tuple[str, ...] = ("angle",)
    rates: tuple[str, ...] = ("angle",)
    usual_speed: tuple[float, ...] = (1.0,)
    parameters: tuple[Parameter, ...] = (Parameter("radius"),)
    has_axis: bool = True
    orthonormal: bool = False
    unit_rows: bool = False
    one_axis: bool = True

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        return None, self._row(constants, q.sin())

    def joint_map(self, constants: Constants) -> Tensor:
        return self.joint_map_at(constants, torch.zeros_like(constants["radius"][..., None]))

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        return torch.nn.functional.pad(self._row(constants, q.cos()), (3, 0))[..., None, :]

    def bias_accel(self, constants: Constants, q: Tensor, qd: Tensor) -> Tensor:
        return torch.nn.functional.pad(self._row(constants, -q.sin() * qd * qd), (3, 0))

    def _row(self, constants: Constants, factor: Tensor) -> Tensor:
        return constants["axis"] * constants["radius"][..., None] * factor
