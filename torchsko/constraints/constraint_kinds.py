"""Kinds of constraints by name."""

from __future__ import annotations

from torchsko.constraints.ball import Ball
from torchsko.constraints.distance import Distance
from torchsko.constraints.gear import Gear
from torchsko.constraints.hinge_rows import UNIVERSAL, Revolute
from torchsko.constraints.in_plane import Planar
from torchsko.constraints.joint_equality import JointEquality
from torchsko.constraints.row_kinds import FrameRows, JointRows
from torchsko.constraints.slider_rows import Prismatic
from torchsko.constraints.weld import Weld
from torchsko.errors import MechanismError, unknown_name

KINDS: dict[str, FrameRows | JointRows] = {
    kind.name: kind
    for kind in (
        Ball(),
        Weld(),
        Revolute(),
        UNIVERSAL,
        Prismatic(),
        Planar(),
        Distance(),
        Gear(),
        JointEquality(),
    )
}
"""Every kind of constraint by name."""

SYNONYMS = {"connect": "ball", "spherical": "ball", "fixed": "weld"}
"""Names of kinds in robot files."""


def constraint_kind(name: str) -> FrameRows | JointRows:
    """The kind of constraint of this name, or of this name in robot files.

    Raises:
        MechanismError: when there is none.
    """
    name = SYNONYMS.get(name, name)
    if name not in KINDS:
        raise MechanismError(*unknown_name("kind of constraint", name, (*KINDS, *SYNONYMS)))
    return KINDS[name]
