"""Parts of a robot, besides its tensors, that differ from the file into which its numbers are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from torchsko.io.common.losses import Losses
from torchsko.mechanism.file_data.file_metadata import Closure, Coupled, Keyframe
from torchsko.mechanism.geometry import Pair, Shape
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.height_field import HeightField
from torchsko.shapes.mesh import Mesh, Triangles

INVERSE_WEIGHTS = ("dof_invweight",)
"""Options that a reader computes from the robot."""


def note_unwritten(mech: Mechanism, file: Mechanism, losses: Losses) -> None:
    """Add the parts of a mechanism, besides its tensors, that differ from those of the file.

    Args:
        mech: the mechanism whose numbers are written into the file.
        file: the mechanism of the file.
        losses: gets the parts.
    """
    file = file.to(mech.dtype)
    ours, theirs = mech.file_metadata, file.file_metadata
    parts: list[tuple[str, Sequence[Any], Sequence[Any], Callable[[Any], Any]]] = [
        ("shapes", mech.geometry.shapes, file.geometry.shapes, _shape),
        ("contact pairs", mech.geometry.pairs, file.geometry.pairs, _pair),
        ("excluded pairs", mech.geometry.excluded, file.geometry.excluded, _same),
        ("actuators", ours.actuators.actuators, theirs.actuators.actuators, _same),
        ("tendons", ours.tendons, theirs.tendons, _tendon),
        ("sensors", ours.sensors, theirs.sensors, _same),
        ("keyframes", ours.keyframes, theirs.keyframes, _keyframe),
        ("loops", ours.closures, theirs.closures, _closure),
        ("couplings", ours.coupled, theirs.coupled, _coupled),
    ]
    changed = [
        what
        for what, own, others, numbers in parts
        if list(map(numbers, own)) != list(map(numbers, others))
    ]
    changed += [
        x.name
        for x in fields(ours.solver)
        if x.name not in INVERSE_WEIGHTS
        and getattr(ours.solver, x.name) != getattr(theirs.solver, x.name)
    ]
    losses.add_if(changed, "changes since the file was loaded, which like= does not write:")


def _same(x: Any) -> Any:
    return x


def _shape(shape: Shape) -> Any:
    """A shape with arrays as bytes; folders and inverse weights do not count."""
    form: Any = shape.form
    surface = None if shape.surface is None else replace(shape.surface, invweight=())
    if isinstance(form, Mesh):
        form = replace(form, home=None, search=())
    elif isinstance(form, Triangles):
        form = form.vertices.tobytes(), form.faces.tobytes()
    elif isinstance(form, HeightField):
        form = form.size, form.base, np.asarray(form.heights).tobytes()
    return replace(shape, form=form, surface=surface)


def _pair(pair: Pair) -> Any:
    return replace(pair, surface=replace(pair.surface, invweight=()))


def _tendon(tendon: Any) -> Any:
    return replace(tendon, invweight=None)


def _keyframe(key: Keyframe) -> Any:
    """Numbers of a state; velocities of loops are those of their independent dofs."""
    return key.name, key.time, *(torch.round(x, decimals=9).tolist() for x in (key.q, key.ctrl))


def _coupled(coupling: Coupled) -> Any:
    return replace(coupling, equality=_closure(coupling.equality))


def _closure(closure: Closure) -> Any:
    """A loop without the choice of its method, which files do not have."""
    return replace(closure, method="cut", independent=(), invweight=())
