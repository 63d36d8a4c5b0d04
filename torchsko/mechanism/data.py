"""Tensors, names and structure of a mechanism, and copies with other values.

Functions that methods of `Mechanism` call take its base class `MechanismData`: imports point one way.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import torch

from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.packing import Packing
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.coupling import Coupling
from torchsko.mechanism.description import Fault, UnsupportedElement
from torchsko.mechanism.dof_numbering import Numbering
from torchsko.mechanism.fields import FIELDS, PARAMETERS, MechanismTensors
from torchsko.mechanism.file_data.file_metadata import NO_FILE_METADATA, Closure, FileMetadata
from torchsko.mechanism.geometry import Geometry
from torchsko.mechanism.joints.groups import JointSet
from torchsko.mechanism.limit_notes import LIMITS, update_limit_notes
from torchsko.mechanism.loops.embedded_loops import EmbeddedLoops
from torchsko.mechanism.validation import check_device, check_dtype, check_parameter
from torchsko.utils.devices import on_device


@dataclass(frozen=True, eq=False)
class MechanismData(Numbering, MechanismTensors):
    """Base class of `Mechanism`, which documents the attributes."""

    name: str
    body_names: tuple[str, ...]
    tree_joint_names: tuple[str, ...]
    frame_names: tuple[str, ...]
    frame_body: tuple[int, ...]
    layout: Layout
    coordinates: Packing
    joints: JointSet
    file_metadata: FileMetadata  # torch 2.11 cannot trace calls with objects as defaults
    geometry: Geometry
    coupling: Coupling | None = None
    closing: EmbeddedLoops | None = None
    singular_joints: tuple[str, ...] = ()
    bare_joints: tuple[str, ...] = ()
    fluid_bodies: tuple[int, ...] = ()
    fluid_models: tuple[str, ...] = ()
    aligned: bool = False
    replaced: tuple[str, ...] = ()
    unused: tuple[UnsupportedElement, ...] = ()
    report: tuple[Fault, ...] = ()

    @property
    def closures(self) -> tuple[Closure, ...]:
        """Kinematic loops of the robot, in file order; see `torchsko.constrain`."""
        return self.file_metadata.closures

    def replace(self, **changes: Any) -> Self:
        """A new mechanism with some fields changed.

        `singular_joints` and `bare_joints` are not updated; call `torchsko.mark_singular_joints` for that.
        Notes on limits in `unused` are updated.

        Args:
            **changes: new values by field name; tensors have the shapes listed in the class, with any
                leading batch dimensions.

        Raises:
            MechanismError: on an unknown field, or a tensor whose shape, dtype or device does not fit. Values
                are not checked, since layers replace all of them in every call.
        """
        names = tuple(field.name for field in fields(self))
        for name, value in changes.items():
            if name not in names:
                raise MechanismError(*unknown_name("field of Mechanism", name, names))
            if name in PARAMETERS:
                check_parameter(self, name, value, PARAMETERS[name])
        for name in changes.keys() & PARAMETERS.keys():
            if (
                dtype := changes[name].dtype
            ) != self.dtype:  # traced expressions, which are float64
                cast = {n: x.to(dtype) if n in PARAMETERS else x for n, x in changes.items()}
                return self.to(dtype).replace(**cast)
        for name in changes.keys() & FIELDS.keys():
            for flag in FIELDS[name].flags:
                changes.setdefault(flag, True)
        if "axis" in changes:
            changes.setdefault("aligned", False)
        replaced = tuple(n for n in PARAMETERS if n in changes or n in self.replaced)
        changes.setdefault("replaced", replaced)
        made = type(self)(**{name: changes.get(name, getattr(self, name)) for name in names})
        new_limits = "unused" not in changes and any(changes.get(x) is not None for x in LIMITS)
        notes = update_limit_notes(made, self.unused) if new_limits else made.unused
        return made if notes == made.unused else made.replace(unused=notes)

    def to(self, target: torch.device | torch.dtype | str) -> Self:
        """The mechanism on another device, or in another floating-point type.

        Raises:
            MechanismError: on a dtype other than float32 and float64, or an unknown device.
        """
        if isinstance(target, torch.dtype):
            check_dtype(self.name, target)
        else:
            target = check_device(self.name, target)
        changes: dict[str, Any] = {name: getattr(self, name).to(target) for name in PARAMETERS}
        if not isinstance(target, torch.dtype):
            for name in ("layout", "coordinates", "joints", "coupling", "closing"):
                changes[name] = on_device(getattr(self, name), target)
        changes["file_metadata"] = self.file_metadata.to(target)
        names = (field.name for field in fields(self))
        return type(self)(**{name: changes.get(name, getattr(self, name)) for name in names})

    def float(self) -> Self:
        """The mechanism in float32."""
        return self.to(torch.float32)

    def double(self) -> Self:
        """The mechanism in float64."""
        return self.to(torch.float64)


M = TypeVar("M", bound=MechanismData)


def uncoupled(mech: M) -> M:
    """The mechanism without couplings and loops; its limits are not expanded."""
    if mech.coupling is None and mech.closing is None:
        return mech
    changed: dict[str, Any] = {field.name: getattr(mech, field.name) for field in fields(mech)}
    for name in ("coupling_ratio", "coupling_offset"):
        changed[name] = changed[name][..., :0]
    without = {"coupling": None, "closing": None, "file_metadata": NO_FILE_METADATA}
    return type(mech)(**{**changed, **without})


def first_sample(mech: M) -> M:
    """The mechanism of the first sample of a batch of mechanisms."""
    changed: dict[str, Any] = {field.name: getattr(mech, field.name) for field in fields(mech)}
    for name, shape in PARAMETERS.items():
        x = changed[name]
        changed[name] = x[(0,) * (x.ndim - len(shape))]
    return type(mech)(**changed)
