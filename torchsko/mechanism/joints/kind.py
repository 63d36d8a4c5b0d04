r"""Interface of joint types; each type is a subclass of `JointType` in a file of its name.

A joint moves its child frame, which coincides with the joint frame in the neutral configuration. V_J = H* qd
is the velocity of the child relative to the joint frame, in the child frame at its origin. The Coriolis
acceleration of body k is

.. math::
    a(k) = \dot H^* \dot q + V(k) \times_m H^* \dot q .

A joint type defines its pose, the joint map H and, if H depends on q, the bias :math:`\dot H^* \dot q`. All
other code uses these methods and the attributes of the type, and never compares its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.spatial.rigid_transform import force_matrix
from torchsko.utils.shapes import norm

Constants = Mapping[str, Tensor]
"""Constants of g joints of one type by name: "axis" `[*, g, 3]`, and each entry of `parameters`."""

Pose = tuple[Tensor | None, Tensor | None]
"""Rotation from child to joint coordinates and position [m]; None stands for the identity and for zero."""


@dataclass(frozen=True, eq=False)
class WeightTerms:
    """Weights of a group of joints: a constant plus functions of q times constant matrices.

    The weight of a joint with one degree of freedom is affine in (cos q, sin q) or in q. Its coefficients are
    shared by all samples, so the sum takes two passes over memory instead of products of small matrices.

    Attributes:
        constant: constant term, `[*, g, 6, 6]`.
        factors: functions of q, `[*batch, g, 1, 1]`, each with its matrix `[*, g, 6, 6]`.
    """

    constant: Tensor
    factors: tuple[tuple[Tensor, Tensor], ...] = ()

    def split(self, sizes: Sequence[int]) -> list[Tensor]:
        """Weights of consecutive runs of joints, each `[*batch, n, 6, 6]`, contiguous."""
        # One split per tensor: the gradient of each separate slice would have the size of the whole tensor.
        runs = list(self.constant.split(tuple(sizes), -3))
        for coefficient, matrix in self.factors:
            cuts = coefficient.split(tuple(sizes), -3), matrix.split(tuple(sizes), -3)
            runs = [torch.addcmul(*parts) for parts in zip(runs, *cuts, strict=True)]
        return [run.contiguous() for run in runs]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a joint type besides placement and axis, stored in `Mechanism.joint_parameters`.

    Attributes:
        name: keyword of `MechanismBuilder.joint`.
        shape: shape for one joint.
        unit: whether the last dimension is a unit vector.
    """

    name: str
    shape: tuple[int, ...] = ()
    unit: bool = False

    @property
    def size(self) -> int:
        """Number of entries for one joint."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Sampler:
    """Random numbers of one size, dtype and device.

    Attributes:
        size: leading dimensions (*batch, g).
        like: a tensor of the dtype and device.
        generator: random generator; None for that of PyTorch.
    """

    size: tuple[int, ...]
    like: Tensor
    generator: torch.Generator | None

    def uniform(self, count: int) -> Tensor:
        """Uniform numbers in [0, 1), `[*size, count]`."""
        return self._drawn(torch.rand, count)

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers, `[*size, count]`."""
        return self._drawn(torch.randn, count)

    def _drawn(self, draw: Callable[..., Tensor], count: int) -> Tensor:
        like = self.like
        return draw(
            *self.size, count, generator=self.generator, dtype=like.dtype, device=like.device
        )


def sampling_range(lower: Tensor, upper: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Range of random coordinates of a vector: between the limits, or of a default width without limits.

    A coordinate with one limit has a range of the default width beside that limit.

    Args:
        lower: lower limits, `[*, num_q]` [rad or m], -inf for none.
        upper: upper limits, `[*, num_q]` [rad or m], inf for none.
        reach: half of the default width, `[*, num_q]` [rad or m].
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
    """Base class of joint types; `torchsko.register_joint` adds one and compares its methods.

    Every method takes all g joints of the type together, with any batch dimensions. The defaults suit a
    joint whose coordinates are a vector and whose rates are their time derivatives. A joint type on another
    manifold overrides `neutral`, `random`, `integrate`, `difference` and `bracket`.

    Attributes:
        name: name of the type.
        coordinates: names of the entries of q.
        rates: names of the entries of qd.
        usual_speed: largest rate of a random state without velocity limits, one per dof [rad/s, m/s];
            the same numbers in rad and m bound random coordinates without limits.
        vector: whether q is a vector and qd its time derivative.
        has_axis: whether the pose depends on the joint's unit axis.
        parameters: parameters besides placement and axis.
        orthonormal: whether the rows of H are orthonormal.
        unit_rows: whether the rows of H are signed unit vectors for an axis along a coordinate axis.
        one_axis: whether the child rotates about the axis only, or not at all.
        coordinate_unit: unit of all coordinates, "rad" or "m"; empty for mixed units and quaternions.
        is_free: whether the child floats: all six velocity components are independent.
        elastic: whether `Mechanism.modal_stiffness` has a row for each coordinate: for those of flexible
            bodies, and of joints connected by springs.
        urdf: names of the type in URDF.
        mjcf: name of the type in MJCF; empty if it has none.
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
    coordinate_unit: str = ""
    is_free: bool = False
    elastic: bool = False
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
    def rate_unit(self) -> str:
        """Unit of all rates times one second, "rad" or "m"; empty for mixed units."""
        return self.coordinate_unit

    @property
    def num_parameters(self) -> int:
        """Number of entries of all parameters of one joint."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def keywords(self) -> tuple[str, ...]:
        """Keywords of `MechanismBuilder.joint` for this type besides placement and axis."""
        return tuple(parameter.name for parameter in self.parameters)

    def specialize(self, joint: str, data: Mapping[str, Any]) -> JointType:
        """The type of a joint with this name and data; differs from self if its sizes depend on them."""
        return self

    def parameter_values(
        self, joint: str, axis: Sequence[float], data: Mapping[str, Any]
    ) -> list[float]:
        """Entries of all parameters of a joint with this name, axis and data, one after the other.

        Raises:
            MechanismError: when a parameter is missing, has another shape or is not finite.
        """
        flat: list[float] = []
        for parameter in self.parameters:
            value = np.array(data.get(parameter.name, math.nan), dtype=np.float64)
            if value.shape != parameter.shape or not np.isfinite(value).all():
                what = data.get(parameter.name, "missing")
                shape = parameter.shape
                wanted = f"finite numbers of shape {list(shape)}" if shape else "a finite number"
                raise MechanismError(
                    f"the {parameter.name} of joint {joint!r} is {what}.",
                    f"A {self.name} joint needs {wanted}.",
                    f"Pass {parameter.name}=... to the joint.",
                )
            flat += value.ravel().tolist()
        return flat

    @property
    def constant_map(self) -> bool:
        """True if H is the same in every configuration, as without an override of `joint_map_at`."""
        return type(self).joint_map_at is JointType.joint_map_at

    @property
    def has_default_advance(self) -> bool:
        """True if `advance` is not overridden."""
        return type(self).advance is JointType.advance

    @property
    def has_moving_axes(self) -> bool:
        """True if rates are expressed in axes that rotate with the child; see `transport_rate`."""
        return type(self).transport_rate is not JointType.transport_rate

    @abstractmethod
    def pose(self, constants: Constants, q: Tensor) -> Pose:
        """Pose of the child frame in the joint frame.

        Args:
            constants: constants of the joints.
            q: coordinates, `[*batch, g, num_q]`.

        Returns:
            Rotation `[*batch, g, 3, 3]` and position `[*batch, g, 3]` [m].
        """

    @abstractmethod
    def joint_map(self, constants: Constants) -> Tensor:
        """H in the child frame in the neutral configuration, `[*, g, d, 6]`."""

    def joint_map_at(self, constants: Constants, q: Tensor) -> Tensor:
        """H in the child frame at a configuration, `[*batch, g, d, 6]`; override it if H depends on q."""
        return self.joint_map(constants)

    def bias_accel(self, constants: Constants, q: Tensor, qd: Tensor) -> Tensor:
        """Hdot* qd, `[*batch, g, 6]`; override it together with `joint_map_at`."""
        return torch.cat([torch.zeros_like(constants["axis"])] * 2, -1)

    def weight_terms(self, constants: Constants, q: Tensor, placement: Tensor) -> WeightTerms:
        """Edge weights: placement `[*, g, 6, 6]` times the force transform of the pose."""
        turn, shift = self.pose(constants, q)
        axis = constants["axis"]
        turn = torch.eye(3, dtype=axis.dtype, device=axis.device) if turn is None else turn
        shift = torch.zeros_like(axis) if shift is None else shift
        return WeightTerms(placement @ force_matrix(turn, shift))

    def neutral(self) -> tuple[float, ...]:
        """Coordinates for which the child frame coincides with the joint frame, num_q numbers."""
        return (0.0,) * self.num_q

    def random(self, lower: Tensor, upper: Tensor, sampler: Sampler) -> Tensor:
        """Random configurations within limits `[*, g, num_q]`: `[*size, num_q]`, size = (*batch, g)."""
        reach = torch.tensor(self.usual_speed, dtype=lower.dtype, device=lower.device)
        low, high = sampling_range(lower, upper, reach)
        return low + (high - low) * sampler.uniform(self.num_q)

    def integrate(self, q: Tensor, step: Tensor) -> Tensor:
        """Coordinates `[*batch, g, num_q]` moved along a tangent step `[*batch, g, d]`."""
        return q + step

    def difference(self, start: Tensor, end: Tensor) -> Tensor:
        """The tangent step `[*batch, g, d]` from one configuration to another, inverse of `integrate`."""
        return end - start

    def stretch(self, relaxed: Tensor, q: Tensor) -> Tensor:
        """Deflection of a spring in the rates of the joint, `[*batch, g, d]`."""
        return self.difference(relaxed, q)

    def deflection(self, stretch: Tensor) -> Tensor:
        """The number x in which a spring is a polynomial, `[*batch, g, d]`; see `Mechanism`."""
        return stretch if self.vector else norm(stretch)[..., None].expand(stretch.shape)

    def bracket(self, u: Tensor, v: Tensor) -> Tensor:
        """Lie bracket of two tangent vectors `[*batch, g, d]`; zero on a vector space."""
        return torch.zeros_like(v)

    def transport_rate(self, qd: Tensor, x: Tensor) -> Tensor:
        """Transport term of rates x expressed in axes that rotate with the child, `[*batch, g, d]`.

        It is the linear map W(qd) x for which qdd + W(qd) qd is the acceleration of the child relative to the
        joint frame's axes, expressed in child axes.
        """
        return torch.zeros_like(x)

    def transport(self, step: Tensor, x: Tensor) -> Tensor:
        """Rates x, constant in the joint frame's axes, re-expressed after a tangent step `[*batch, g, d]`."""
        return x

    def advance(
        self, q: Tensor, qd: Tensor, qdd: Tensor, dt: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Semi-implicit Euler step: update the rates, then move the coordinates by the new rates.

        Args:
            q: coordinates, `[*batch, g, num_q]`.
            qd: rates, `[*batch, g, d]`.
            qdd: accelerations over the step, `[*batch, g, d]`.
            dt: time step [s], a number or a tensor that broadcasts with qd.

        Returns:
            q and qd at the end of the step.
        """
        qd = qd + dt * qdd
        return self.integrate(q, dt * qd), qd
