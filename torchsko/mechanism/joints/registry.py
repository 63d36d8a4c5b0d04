"""Registry of joint types by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.description import FIXED
from torchsko.mechanism.joints.compound import Compound
from torchsko.mechanism.joints.cylindrical import Cylindrical
from torchsko.mechanism.joints.elastic import Elastic
from torchsko.mechanism.joints.free import Free
from torchsko.mechanism.joints.helical import Helical
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.joints.planar import Planar
from torchsko.mechanism.joints.prismatic import Prismatic
from torchsko.mechanism.joints.revolute import Revolute
from torchsko.mechanism.joints.spherical import Spherical
from torchsko.mechanism.joints.translation import Translation
from torchsko.mechanism.joints.universal import Universal

JOINT_TYPES: dict[str, JointType] = {
    kind.name: kind
    for kind in (
        Revolute(),
        Prismatic(),
        Helical(),
        Cylindrical(),
        Universal(),
        Planar(),
        Translation(),
        Spherical(),
        Free(),
        Compound(),
        Elastic(),
    )
}
"""Every known joint type by name; `register_joint` adds to it."""


def register_joint(kind: JointType, *, example: Mapping[str, Any] | None = None) -> JointType:
    """Add a joint type, for `MechanismBuilder` and for robot files.

    The joint map, its rate, the flags and the methods of the type are compared with its pose at random
    configurations of random joints.

    Args:
        kind: an object of a subclass of `JointType`.
        example: data of one joint as `MechanismBuilder.joint` takes them, such as ``{"radius": 0.5}``, for
            types that are not defined for arbitrary parameters (random numbers between 0.5 and 1).

    Returns:
        The joint type.

    Raises:
        MechanismError: when another type has this name, or a method or flag disagrees with the pose.
    """
    from torchsko.mechanism.joints.check_type import check_joint_type  # few programs register one

    known = JOINT_TYPES.get(kind.name)
    if kind.name == FIXED or (known is not None and type(known) is not type(kind)):
        raise MechanismError(
            f"a joint type {kind.name!r} exists already.",
            "Builders and robot files find joint types by name.",
            "Choose another name.",
        )
    check_joint_type(kind, example or {})
    JOINT_TYPES[kind.name] = kind
    return kind


def joint_type(name: str) -> JointType:
    """The joint type of this name.

    Raises:
        MechanismError: when there is none.
    """
    if name not in JOINT_TYPES:
        raise MechanismError(*unknown_name("joint type", name, tuple(JOINT_TYPES)))
    return JOINT_TYPES[name]


def urdf_types() -> dict[str, str]:
    """Name of the joint type for each joint type of URDF, including fixed joints."""
    named = {name: kind.name for kind in JOINT_TYPES.values() for name in kind.urdf}
    return named | {FIXED: FIXED}
