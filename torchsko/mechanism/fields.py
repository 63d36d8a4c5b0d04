"""Table of the tensors of a mechanism: shape, owner, files, learning and the flags that they set.

`Mechanism.append` concatenates the tensors of all owners but the mechanism. `Mechanism.lock` selects the
entries of the joints, dofs and coordinates that remain, and combines those of bodies. `torchsko.save` writes
or refuses a change by `Field.files`, and `torchsko.Dynamics` learns fields with a `Field.target`.

To add a tensor: add a row here and a line of the docstring of `Mechanism`, and a rule to
`lock.combine_bodies` if bodies own it. Robots from files have zeros in fields of dofs that `JointDescription`
lacks. ``tests/mechanism/test_fields.py`` sends every row through these functions and through the dynamics.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from torch import Tensor

Shape = tuple[str | int, ...]
"""Sizes: names of attributes of `Mechanism`, and numbers."""

Owner = Literal[
    "body", "joint", "coupling", "dof", "mode", "coordinate", "limit", "frame", "fluid", "mechanism"
]

Variation = Literal["factor", "offset", "rotation", "none"]


@dataclass(frozen=True)
class Field:
    """One tensor of a mechanism.

    Attributes:
        owner: what has one entry of the tensor; limits belong to independent joints, dofs and coordinates to
            all joints of the tree, fluid to shapes with fluid forces. Of modal coordinates it is a matrix,
            zero between flexible bodies.
        shape: shape for one robot; leading batch dimensions may be added.
        target: name by which a layer learns the entries of one body or joint; empty if it does not.
        nonnegative: whether physical values are nonnegative.
        flags: attributes of `Mechanism` that are true if an entry is not zero.
        files: formats of existing files into which a change is written ("urdf", "mjcf"), and "new" if a newly
            written file has it.
    """

    owner: Owner
    shape: Shape
    target: str = ""
    nonnegative: bool = False
    flags: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    variation: Variation = "factor"


_ALL = ("urdf", "mjcf", "new")
_DOFS = ("num_tree_dof",)
_MODES = ("num_modes", "num_modes")
_LOSS = ("has_losses",)
_FLUID = ("has_fluid",)
_SHAPES = "num_fluid_shapes"


def _row(*args: Any, **kwargs: Any) -> dict[str, Field]:
    """Metadata of a tensor: its `Field`."""
    return {"row": Field(*args, **kwargs)}


@dataclass(frozen=True, eq=False, kw_only=True)
class MechanismTensors:
    """Tensors of a mechanism, and flags of those that are not zero; `Mechanism` documents them."""

    mass: Tensor = field(metadata=_row("body", ("num_bodies",), "mass", True, files=_ALL))
    com: Tensor = field(
        metadata=_row("body", ("num_bodies", 3), "com", files=_ALL, variation="offset")
    )
    inertia: Tensor = field(metadata=_row("body", ("num_bodies", 3, 3), files=_ALL))
    gravcomp: Tensor = field(
        metadata=_row("body", ("num_bodies", 4), flags=("has_gravcomp",), files=("new",))
    )
    joint_rotation: Tensor = field(
        metadata=_row("joint", ("num_bodies", 3, 3), "rotation", files=_ALL, variation="rotation")
    )
    joint_position: Tensor = field(
        metadata=_row("joint", ("num_bodies", 3), "position", files=_ALL, variation="offset")
    )
    axis: Tensor = field(metadata=_row("joint", ("num_bodies", 3), variation="rotation"))
    joint_parameters: Tensor = field(
        metadata=_row("joint", ("num_joint_parameters",), variation="none")
    )
    coupling_ratio: Tensor = field(metadata=_row("coupling", ("num_ratios",)))
    coupling_offset: Tensor = field(
        metadata=_row("coupling", ("num_dependent",), variation="offset")
    )
    damping: Tensor = field(metadata=_row("dof", _DOFS, "damping", True, _LOSS, _ALL))
    higher_damping: Tensor = field(
        metadata=_row(
            "dof", (*_DOFS, 2), flags=("has_losses", "has_higher_damping"), files=("new",)
        )
    )
    friction: Tensor = field(metadata=_row("dof", _DOFS, "friction", True, _LOSS, _ALL))
    friction_speed: Tensor = field(
        metadata=_row("dof", _DOFS, "friction_speed", True, ("has_smooth_friction",))
    )
    force_offset: Tensor = field(metadata=_row("dof", _DOFS, "offset", flags=("has_force_offset",)))
    armature: Tensor = field(
        metadata=_row("dof", _DOFS, "armature", True, ("has_armature",), ("mjcf", "new"))
    )
    stiffness: Tensor = field(metadata=_row("dof", _DOFS, "stiffness", files=("mjcf", "new")))
    higher_stiffness: Tensor = field(
        metadata=_row(
            "dof", (*_DOFS, 2), flags=("has_higher_stiffness",), files=("new",), variation="none"
        )
    )
    modal_stiffness: Tensor = field(
        metadata=_row("mode", _MODES, "modal_stiffness", True, files=("new",))
    )
    modal_damping: Tensor = field(
        metadata=_row("mode", _MODES, "modal_damping", True, _LOSS, ("new",))
    )
    spring_reference: Tensor = field(metadata=_row("coordinate", ("num_tree_q",), variation="none"))
    gravity: Tensor = field(
        metadata=_row("mechanism", (3,), "gravity", files=("urdf", "mjcf"), variation="offset")
    )
    medium: Tensor = field(metadata=_row("mechanism", (2,), "medium", True, files=("mjcf",)))
    wind: Tensor = field(
        metadata=_row("mechanism", (3,), "wind", files=("mjcf",), variation="offset")
    )
    fluid_rotation: Tensor = field(
        metadata=_row("fluid", (_SHAPES, 3, 3), flags=_FLUID, variation="rotation")
    )
    fluid_position: Tensor = field(
        metadata=_row("fluid", (_SHAPES, 3), flags=_FLUID, variation="offset")
    )
    fluid_size: Tensor = field(metadata=_row("fluid", (_SHAPES, 3), flags=_FLUID))
    fluid_coefficients: Tensor = field(metadata=_row("fluid", (_SHAPES, 12), flags=_FLUID))
    lower: Tensor = field(metadata=_row("limit", ("num_q",), files=("mjcf",), variation="offset"))
    upper: Tensor = field(metadata=_row("limit", ("num_q",), files=("mjcf",), variation="offset"))
    velocity_limit: Tensor = field(metadata=_row("limit", ("num_dof",)))
    effort_limit: Tensor = field(metadata=_row("limit", ("num_dof",)))
    frame_rotation: Tensor = field(
        metadata=_row("frame", ("num_frames", 3, 3), variation="rotation")
    )
    frame_position: Tensor = field(metadata=_row("frame", ("num_frames", 3), variation="offset"))
    has_armature: bool = False
    has_losses: bool = False
    has_higher_damping: bool = False
    has_higher_stiffness: bool = False
    has_smooth_friction: bool = False
    has_force_offset: bool = False
    has_gravcomp: bool = False
    has_fluid: bool = False


FIELDS: dict[str, Field] = {
    x.name: x.metadata["row"] for x in fields(MechanismTensors) if x.metadata
}
"""Every tensor of a mechanism by name."""

PARAMETERS: dict[str, Shape] = {name: row.shape for name, row in FIELDS.items()}
"""Shape of every tensor of a mechanism, for one robot."""

FLAGS: dict[str, tuple[str, ...]] = {
    flag: tuple(name for name, row in FIELDS.items() if flag in row.flags)
    for flag in dict.fromkeys(flag for row in FIELDS.values() for flag in row.flags)
}
"""Flags of a mechanism, each with the tensors of which one is not zero if the flag is true."""
