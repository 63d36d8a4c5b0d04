"""Locking of joints and attachment of mechanisms with embedded loops: cut, change, embed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from torchsko.constraints.constraint_kinds import constraint_kind
from torchsko.constraints.row_kinds import FrameRows, Marker
from torchsko.errors import MechanismError
from torchsko.mechanism.closed_chains.closed_states import CLOSED_RESIDUAL
from torchsko.mechanism.closed_chains.embedded_nodes import with_loops
from torchsko.mechanism.closed_chains.open_chains import Dof, cut_loops, independent_dofs
from torchsko.mechanism.data import M, MechanismData, first_sample
from torchsko.mechanism.edits.append import appended
from torchsko.mechanism.edits.lock import locked
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.loops.placements import Placements, closure_places


def lock_joints(mech: M, values: Mapping[str, Any], strict: bool) -> M:
    """See `Mechanism.lock`."""
    if mech.closing is None:
        return locked(mech, values, strict)
    return _embedded(locked(cut_loops(mech), values, strict), independent_dofs(mech))


def append_mechanism(
    mech: M,
    other: MechanismData,
    frame: str,
    rotation: Any,
    position: Any,
    prefix: str,
    weld: bool,
    strict: bool,
) -> M:
    """See `Mechanism.append`."""
    place = (frame, rotation, position, prefix, weld, strict)
    closed = [x for x in (mech, other) if isinstance(x, MechanismData) and x.closing is not None]
    if not closed:
        return appended(mech, other, *place)
    preferred = independent_dofs(mech) if mech.closing is not None else set()
    if other in closed:
        preferred |= {(prefix + name, k) for name, k in independent_dofs(other)}
        other = cut_loops(other)
    return _embedded(appended(cut_loops(mech), other, *place), preferred)


def _embedded(mech: M, preferred: set[Dof]) -> M:
    """The mechanism with its loops embedded; those within one body are dropped."""
    closures = tuple(c for c in mech.closures if not (c.method == "embed" and _is_rigid(mech, c)))
    metadata = replace(mech.file_metadata, closures=closures)
    return with_loops(replace(mech, file_metadata=metadata), preferred)


def _is_rigid(mech: MechanismData, closure: Closure) -> bool:
    """True if both ends of a closure are on one body.

    Raises:
        MechanismError: if it is not closed there, or one of its joints is locked.
    """
    locked_joints = [name for name in closure.joints if name not in mech.tree_joint_names]
    if locked_joints:
        raise MechanismError(
            f"joint {locked_joints[0]!r} is in the loop {closure.name!r} ({closure.kind}).",
            "Its rows are between the coordinates of two joints.",
            "Load the robot with that joint fixed, or without the loop.",
        )
    kind = constraint_kind(closure.kind)
    places = closure_places(mech, closure)
    if places[0].body(mech) != places[1].body(mech) or not isinstance(kind, FrameRows):
        return False
    with torch.no_grad():
        sample = first_sample(mech).double()
        R, x, numbers = Placements.of(sample, places, closure.numbers(kind))
        first, second = (Marker(R[k], x[k]) for k in range(2))
        residual = float(kind.residual(first, second, numbers).abs().max())
    if residual > CLOSED_RESIDUAL * (1.0 if mech.dtype == torch.float64 else 1e4):
        raise MechanismError(
            f"the loop {closure.name!r} of {mech.name!r} does not close: {residual:.3g} m are left.",
            "All joints between its ends are locked.",
            "Lock them at positions of a closed configuration, such as those of ts.close_loops(mech, q).",
        )
    return True
