"""Elastic joint: motion of a point of a flexible body with its modal coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.joints.kind import Constants, JointType, Parameter, Pose
from torchsko.spatial.rotation import (
    angular_accel_bias,
    angular_velocity,
    cross,
    matrix_exp,
)
from torchsko.utils.shapes import matvec


@dataclass(frozen=True)
class Elastic(JointType):
    r"""A point of a flexible body relative to its undeformed place, a function of modal coordinates q.

    .. math::
        r = \Phi q + \tfrac12 q^* \Gamma q, \qquad R = \exp(\Psi q)

    with the shapes Phi, the second-order shapes Gamma (foreshortening) and the slopes Psi, in the axes of the
    joint frame. All points of a body share q: their joints have one `leader` (`JointDescription`).

    Attributes:
        turning: whether the point turns; without slopes it is a translation.

    Reference: A. A. Shabana, *Dynamics of Multibody Systems*, 3rd ed., 2005, chapter 5 (floating frame of
    reference); T. R. Kane, R. R. Ryan, A. K. Banerjee, *Dynamics of a cantilever beam attached to a moving
    base*, Journal of Guidance, Control, and Dynamics 10(2), 1987 (second-order shapes).
    """

    name: str = "elastic"
    coordinates: tuple[str, ...] = ()
    rates: tuple[str, ...] = ()
    usual_speed: tuple[float, ...] = ()
    orthonormal: bool = False
    unit_rows: bool = False
    elastic: bool = True
    turning: bool = False

    @property
    def keywords(self) -> tuple[str, ...]:
        """Shapes and slopes of the point; names of the modes and their usual size."""
        return ("shape", "second_order", "slope", "modes", "reach")

    def specialize(self, joint: str, data: Mapping[str, Any]) -> JointType:
        """The joint type for this number of modes."""
        shape = np.array(data.get("shape", ()), dtype=np.float64)
        if shape.ndim != 2 or shape.shape[0] != 3 or not shape.size:
            raise MechanismError(
                f"joint {joint!r} has a shape of {list(shape.shape)}.",
                "The shapes of a point are 3 rows with one column for each mode.",
                "Pass shape=..., [3, num_modes].",
            )
        n = shape.shape[1]
        names = tuple(data.get("modes", (f"mode{k}" for k in range(n))))
        turning = "slope" in data
        slopes = (Parameter("slope", (3, n)),) if turning else ()
        return Elastic(
            coordinates=names,
            rates=names,
            usual_speed=tuple(data.get("reach", (1.0,) * n)),
            parameters=(Parameter("shape", (3, n)), Parameter("second_order", (3, n, n)), *slopes),
            one_axis=not turning,
            turning=turning,
        )

    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Exponential of the slopes, and displacement to second order."""
        shift = matvec(constants["shape"], q) + matvec(_slopes_of_shapes(constants, q), q) / 2
        if not self.turning:
            return None, shift
        rotvec = matvec(constants["slope"], q)
        return matrix_exp(rotvec), shift

    def joint_map(self, constants: Constants) -> Tensor:
        """Slopes and shapes."""
        shape = constants["shape"]
        slope = constants["slope"] if self.turning else torch.zeros_like(shape)
        return torch.cat([slope, shape], -2).mT

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        """Angular and linear velocity per rate of each mode, in the child's axes."""
        shape = constants["shape"] + _slopes_of_shapes(constants, q)
        if not self.turning:
            return torch.cat([torch.zeros_like(shape), shape], -2).mT
        slope = constants["slope"]
        rotvec = matvec(slope, q)
        turn = matrix_exp(rotvec)
        angular = angular_velocity(rotvec[..., None, :], slope.mT)
        return torch.cat([angular, shape.mT @ turn], -1)

    def bias_accel(self, constants: Constants, q: Tensor, qd: Tensor) -> Tensor:
        """Acceleration at constant rates."""
        linear = matvec(_slopes_of_shapes(constants, qd), qd)
        if not self.turning:
            return torch.cat([torch.zeros_like(linear), linear], -1)
        slope = constants["slope"]
        rotvec, rate = matvec(slope, q), matvec(slope, qd)
        turn = matrix_exp(rotvec)
        velocity = matvec(constants["shape"] + _slopes_of_shapes(constants, q), qd)
        spin = angular_velocity(rotvec, rate)
        linear, velocity = (matvec(turn.mT, x) for x in (linear, velocity))
        angular = angular_accel_bias(rotvec, rate)
        return torch.cat([angular, linear - cross(spin, velocity)], -1)


def _slopes_of_shapes(constants: Constants, q: Tensor) -> Tensor:
    """Gamma q, `[*batch, g, 3, num_modes]`; of Gamma the symmetric part."""
    second = constants["second_order"]
    return ((second + second.mT) / 2 * q[..., None, None, :]).sum(-1)
