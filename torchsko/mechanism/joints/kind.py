r"""What a joint is: the one interface that every kind of joint fills in, one file a kind.

A joint moves its child frame, which coincides with the joint frame at its neutral configuration. With
V_J = H* qd the velocity of the child relative to the joint frame, in the child frame at its origin,

.. math::
    a(k) = \dot H^* \dot q + V(k) \times_m H^* \dot q ,

so a kind says its pose, H and, where H is not constant, :math:`\dot H^* \dot q`. Everything else
(assembly, kinematics, rollouts, layers, kernels) follows from these: no other file compares a kind.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.joints.weights import WeightTerms
from torchsko.spatial.rigid_transform import force_matrix

Constants = Mapping[str, Tensor]
"""Constants of g joints of one kind by name: "axis" `[*, g, 3]`, and what `parameters` lists."""

Pose = tuple[Tensor | None, Tensor | None]
"""Rotation (child to joint coordinates) and position [m]; None for the identity and for zero."""


@dataclass(frozen=True)
class Parameter:
    """Numbers of a kind of joint besides placement and axis; they lie in `Mechanism.joint_parameters`.

    Attributes:
        name: as the builder takes it.
        shape: for one joint.
        unit: whether they are directions, which stay unit vectors: learned by no plain number.
    """

    name: str
    shape: tuple[int, ...] = ()
    unit: bool = False

    @property
    def size(self) -> int:
        """Number of entries for one joint."""
        return math.prod(self.shape)


def range_of(lower: Tensor, upper: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Where coordinates of a vector move at random or on purpose: their limits, where they have any.

    A limit on one side only leaves a range of the usual width on the other.

    Args:
        lower: `[*, num_q]` [rad or m], infinite where there is none.
        upper: likewise.
        reach: half of the usual width.
    """
    low = torch.where(
        lower.isfinite(), lower, torch.where(upper.isfinite(), upper - 2 * reach, -reach)
    )
    high = torch.where(
        upper.isfinite(), upper, torch.where(lower.isfinite(), lower + 2 * reach, reach)
    )
    return low, high


@dataclass(frozen=True)
class JointType(ABC):
    """A kind of joint. All methods take all g joints of the kind together, in any batch shape.

    The defaults are those of a joint whose coordinates are a vector and whose rates are their time
    derivatives; joints on another manifold override what moves and compares configurations.

    Attributes:
        name: of the kind.
        coordinates: names of the entries of q.
        rates: names of the entries of qd.
        usual_speed: largest rate of a random state where there is no limit, one per dof [rad/s, m/s];
            in rad and m also the range of a random coordinate of a vector.
        vector: whether q is a vector and qd its rate.
        has_axis: whether it has a unit axis of its own.
        parameters: what it needs to know besides.
        orthonormal: whether the rows of H are orthonormal.
        unit_rows: whether they are unit vectors where the axis is a coordinate axis.
        one_axis: whether the child turns about the axis only, if at all.
        urdf: names of the type in URDF.
        mjcf: name of the type in MJCF; empty where it has none.
    """

    name: str
    coordinates: tuple[str, ...]
    rates: tuple[str, ...]
    usual_speed: tuple[float, ...]
    vector: bool = True
    has_axis: bool = False
    parameters: tuple[Parameter, ...] = ()
    orthonormal: bool = True
    unit_rows: bool = True
    one_axis: bool = False
    urdf: tuple[str, ...] = ()
    mjcf: str = ""

    @property
    def num_q(self) -> int:
        """Number of coordinates."""
        return len(self.coordinates)

    @property
    def num_dof(self) -> int:
        """Number of degrees of freedom."""
        return len(self.rates)

    @property
    def num_parameters(self) -> int:
        """Number of entries of all parameters of one joint."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def keywords(self) -> tuple[str, ...]:
        """What a description of such a joint holds besides placement and axis."""
        return tuple(parameter.name for parameter in self.parameters)

    def specialised(self, joint: str, given: Mapping[str, Any]) -> JointType:
        """The kind of the joint of this name and data: itself, unless its sizes depend on them."""
        return self

    def values(self, joint: str, axis: Sequence[float], given: Mapping[str, Any]) -> list[float]:
        """Entries of all parameters of the joint of this name, axis and data, one after the other.

        Raises:
            MechanismError: when one is missing or has another shape, or is not finite.
        """
        flat: list[float] = []
        for parameter in self.parameters:
            value = np.array(given.get(parameter.name, math.nan), dtype=np.float64)
            if value.shape != parameter.shape or not np.isfinite(value).all():
                what = given.get(parameter.name, "missing")
                wanted = (
                    f"numbers of shape {list(parameter.shape)}" if parameter.shape else "a number"
                )
                raise MechanismError(
                    f"the {parameter.name} of joint {joint!r} is {what}.",
                    f"A {self.name} joint needs it: {wanted}, finite.",
                    f"Pass {parameter.name}=... to the joint.",
                )
            flat += value.ravel().tolist()
        return flat

    @property
    def constant_map(self) -> bool:
        """Whether H is the same in every configuration: where `joint_map_at` is not overridden."""
        return type(self).joint_map_at is JointType.joint_map_at

    @property
    def plain_advance(self) -> bool:
        """Whether a step is the usual one: where `advance` is not overridden."""
        return type(self).advance is JointType.advance

    @property
    def turning_axes(self) -> bool:
        """Whether rates are taken in axes that turn with the child: where `turning` is overridden."""
        return type(self).turning is not JointType.turning

    @abstractmethod
    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Pose of the child frame in the joint frame.

        Args:
            constants: of the joints.
            q: `[*batch, g, num_q]`.

        Returns:
            Rotation `[*batch, g, 3, 3]` and position `[*batch, g, 3]` [m].
        """

    @abstractmethod
    def joint_map(self, constants: Constants) -> Tensor:
        """H in the child frame, `[*, g, d, 6]`: everywhere, or in the neutral configuration."""

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        """H in the child frame at a configuration, `[*batch, g, d, 6]`."""
        return self.joint_map(constants)

    def bias_accel(self, constants: Constants, q: Tensor, qd: Tensor) -> Tensor:
        """Hdot* qd, `[*batch, g, 6]`; read where H is not constant."""
        return torch.cat([torch.zeros_like(constants["axis"])] * 2, -1)

    def weight_terms(self, constants: Constants, q: Tensor, placement: Tensor) -> WeightTerms:
        """The edge weight, placement `[*, g, 6, 6]` times that of the joint; see `WeightTerms`."""
        turn, shift = self.pose(constants, q)
        axis = constants["axis"]
        turn = torch.eye(3, dtype=axis.dtype, device=axis.device) if turn is None else turn
        shift = torch.zeros_like(axis) if shift is None else shift
        return WeightTerms(placement @ force_matrix(turn, shift))

    def neutral(self) -> tuple[float, ...]:
        """The configuration in which the child frame is the joint frame, num_q numbers."""
        return (0.0,) * self.num_q

    def random(
        self,
        lower: Tensor,
        upper: Tensor,
        size: tuple[int, ...],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Random configurations within limits `[*, g, num_q]`: `[*size, num_q]`, size = (*batch, g)."""
        like = {"dtype": lower.dtype, "device": lower.device}
        reach = torch.tensor(self.usual_speed, **like)
        low, high = range_of(lower, upper, reach)
        uniform = torch.rand(*size, self.num_q, generator=generator, **like)
        return low + (high - low) * uniform

    def integrate(self, q: Tensor, step: Tensor) -> Tensor:
        """Coordinates `[*batch, g, num_q]` moved along a tangent step `[*batch, g, d]`."""
        return q + step

    def difference(self, start: Tensor, end: Tensor) -> Tensor:
        """The tangent step from one configuration to another, inverse of `integrate`."""
        return end - start

    def bracket(self, u: Tensor, v: Tensor) -> Tensor:
        """Lie bracket of two tangent vectors `[*batch, g, d]`; zero on a vector space."""
        return torch.zeros_like(v)

    def turning(self, qd: Tensor, x: Tensor) -> Tensor:
        """What the turning of the axes of the rates adds to the rate of rates x, `[*batch, g, d]`.

        With x = qd, and added to qdd, the acceleration of the child in the joint frame's axes, seen from
        the child's.
        """
        return torch.zeros_like(x)

    def carried(self, step: Tensor, x: Tensor) -> Tensor:
        """Rates x that stay as they are in the joint frame's axes, after a tangent step `[*batch, g, d]`."""
        return x

    def advance(
        self, q: Tensor, qd: Tensor, qdd: Tensor, dt: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Semi-implicit step of order 1: the rates at its end, and the coordinates moved by them.

        Args:
            q: `[*batch, g, num_q]`.
            qd: `[*batch, g, d]`.
            qdd: `[*batch, g, d]`.
            dt: time step [s], a number or a tensor that broadcasts with qd.

        Returns:
            q and qd at the end of the step.
        """
        qd = qd + dt * qdd
        return self.integrate(q, dt * qd), qd
