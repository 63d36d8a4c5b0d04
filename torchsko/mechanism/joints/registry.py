"""The kinds of joints by name: the one place where they are found."""

from __future__ import annotations

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.description import FIXED
from torchsko.mechanism.joints.compound import Compound
from torchsko.mechanism.joints.cylindrical import Cylindrical
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
    )
}
"""Every known kind of joint by name; `register_joint` adds to it."""


def register_joint(kind: JointType) -> JointType:
    """Make a kind of joint known by its name, to `MechanismBuilder` and to robot files.

    Args:
        kind: an object of a class of your own, derived from `JointType`.

    Returns:
        The same.

    Raises:
        MechanismError: when another kind has its name.
    """
    taken = JOINT_TYPES.get(kind.name)
    if kind.name == FIXED or (taken is not None and type(taken) is not type(kind)):
        raise MechanismError(
            f"there is a kind of joint {kind.name!r} already.",
            "Names tell kinds apart.",
            "Give yours another name.",
        )
    JOINT_TYPES[kind.name] = kind
    return kind


def joint_type(name: str) -> JointType:
    """The kind of joint of this name.

    Raises:
        MechanismError: when there is none.
    """
    if name not in JOINT_TYPES:
        raise MechanismError(*unknown_name("kind of joint", name, tuple(JOINT_TYPES)))
    return JOINT_TYPES[name]


def urdf_types() -> dict[str, str]:
    """Kind of joint by its type's name in URDF, fixed ones included."""
    named = {name: kind.name for kind in JOINT_TYPES.values() for name in kind.urdf}
    return named | {FIXED: FIXED}
