"""Random variation of the tensors of a mechanism, such as masses, for `torchsko.randomize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.fields import FIELDS
from torchsko.mechanism.flexible.mode_factors import mode_groups, modes_of, scaled
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.validation import check_batch
from torchsko.spatial.rotation import matrix_exp
from torchsko.utils.concrete_values import concrete_values

Range = Sequence[float | Tensor]
"""Lower and upper bound of a uniform distribution: numbers, or tensors that broadcast with the entries."""

Uniform = Callable[[Sequence[int]], Tensor]
"""Draws uniform numbers in [0, 1) of a shape, in the dtype and on the device of the mechanism."""

Entries = tuple[int, int]
"""First entry of one body, joint or frame along the first dimension of a field, and the number of entries."""


def vary_mechanism(
    mech: MechanismLike,
    batch: Sequence[int],
    ranges: Mapping[str, Range],
    uniform: Uniform,
    extra: Sequence[str] = (),
) -> Mechanism:
    """A batch of robots with random parameters of the mechanism; see `torchsko.randomize`.

    ``extra`` are names that the message on an unknown name lists besides.
    """
    robot = as_mechanism(mech)
    check_batch(tuple(batch))
    targets = [(*_find(robot, name, extra), name) for name in ranges]
    order, batch = list(FIELDS), (*batch, *robot.batch_shape)
    for field, entries, name in sorted(targets, key=lambda x: (order.index(x[0]), x[1] or (0, 0))):
        low, high = bounds_of(name, ranges[name], FIELDS[field].variation == "factor")
        shape = list(getattr(robot, field).shape[-len(FIELDS[field].shape) :])
        turns = FIELDS[field].variation == "rotation" and len(shape) > 2
        if field == "inertia" or turns or FIELDS[field].owner == "mode":
            shape.pop()  # three factors, a rotation vector, or a factor of each mode
        if entries is not None:
            shape[0] = entries[1]
        draw = low + (high - low) * uniform([*batch, *shape])
        robot = robot.replace(**_varied(robot, field, entries, draw))
    return robot


def _varied(
    mech: Mechanism, field: str, entries: Entries | None, draw: Tensor
) -> dict[str, Tensor]:
    """The tensors of a mechanism after a variation of one field."""
    value, sizes = getattr(mech, field), len(FIELDS[field].shape)
    variation = FIELDS[field].variation
    event = {"inertia": 2, "modal_stiffness": 1, "modal_damping": 1}.get(field, sizes)
    if variation == "rotation":
        event = 2
    if entries is not None:
        draw = _among_others(draw, entries, value.shape[value.ndim - sizes], event, variation)
    if field == "mass":
        gravcomp = torch.cat([torch.ones_like(draw[..., None]), *[draw[..., None]] * 3], -1)
        return {
            "mass": mech.mass * draw,
            "inertia": mech.inertia * draw[..., None, None],
            **({"gravcomp": mech.gravcomp * gravcomp} if mech.has_gravcomp else {}),
        }
    if FIELDS[field].owner == "mode":
        return {field: scaled(value, draw, mode_groups(mech))}
    if field == "inertia":
        return {field: _stretched(value, draw)}
    if variation == "rotation":
        R = matrix_exp(draw)
        turned = (R @ value[..., None])[..., 0] if field == "axis" else value @ R
        return {field: turned}
    return {field: value * draw if variation == "factor" else value + draw}


def _among_others(draw: Tensor, entries: Entries, count: int, event: int, variation: str) -> Tensor:
    """Draws of some entries among all, where others do not change."""
    first, size = entries
    dim = draw.ndim - event
    shape = [*draw.shape]
    rest = []
    for length in (first, count - first - size):
        shape[dim] = length
        rest.append(draw.new_full(shape, 1.0 if variation == "factor" else 0.0))
    return torch.cat([rest[0], draw, rest[1]], dim)


def _stretched(inertia: Tensor, factors: Tensor) -> Tensor:
    """Inertia of a body whose second moments of mass along its axes are multiplied by factors."""
    eye = torch.eye(3, dtype=inertia.dtype, device=inertia.device)
    trace = inertia.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    root = factors.sqrt()
    moments = root[..., :, None] * (trace / 2 * eye - inertia) * root[..., None, :]
    return moments.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] * eye - moments


def _find(mech: Mechanism, name: str, extra: Sequence[str]) -> tuple[str, Entries | None]:
    """The field of a name, and its entries; None for all."""
    owner, _, last = name.rpartition(".")
    if name == "friction":
        raise MechanismError(
            "'friction' may be that of joints or of contact.",
            "Dry friction of joints is 'joint_friction', that of pairs of shapes 'contact_friction'.",
            "Pass 'joint_friction', or 'contact_friction' with contact=ContactModel.of(mech).",
        )
    last = "friction" if last == "joint_friction" else last
    found = [key for key, field in FIELDS.items() if last in (key, field.target) if last]
    known = [key for key, field in FIELDS.items() if field.variation != "none"]
    names = ["joint_friction" if key == "friction" else key for key in known]
    field = last if last in FIELDS else next(iter(found), "")
    if field not in known:
        raise MechanismError(*unknown_name("parameter", last, (*names, *extra)))
    if not owner:
        return field, None
    return field, _entries(mech, field, owner)


def _entries(mech: Mechanism, field: str, owner: str) -> Entries:
    kind = FIELDS[field].owner
    if kind == "body":
        return mech.body_index(owner), 1
    if kind == "joint":
        return mech.joint_index(owner), 1
    if kind == "frame":
        if owner not in mech.frame_names:
            raise MechanismError(*unknown_name("frame", owner, mech.frame_names))
        return mech.frame_names.index(owner), 1
    if kind == "mode" and (places := modes_of(mech, owner)):
        return mode_groups(mech)[places[0]], len(places)
    if kind in ("dof", "limit"):
        is_position = FIELDS[field].shape[0] == "num_q"
        slices = {
            "dof": mech.tree_dof_slice,
            "limit": mech.q_slice if is_position else mech.dof_slice,
        }
        part = slices[kind](owner)
        return part.start, part.stop - part.start
    raise MechanismError(
        f"{owner}.{field} is not a parameter of one body or joint.",
        f"{field} belongs to the {kind}.",
        f"Pass {field!r}, which varies all its entries.",
    )


def bounds_of(name: str, bounds: Any, is_factor: bool) -> tuple[Any, Any]:
    """Check and return the bounds of a distribution.

    Raises:
        MechanismError: when they are not a pair, in the wrong order, or negative factors.
    """
    fits = isinstance(bounds, Sequence) and len(bounds) == 2
    if fits:
        low, high = bounds
        values = [concrete_values(x) if isinstance(x, Tensor) else x for x in bounds]
        if all(x is not None for x in values):
            fits = bool((torch.as_tensor(values[0]) <= torch.as_tensor(values[1])).all())
            if is_factor:
                fits = fits and bool((torch.as_tensor(values[0]) >= 0).all())
        if fits:
            return low, high
    least = "a factor of at least 0" if is_factor else "a number"
    raise MechanismError(
        f"the range of {name!r} is {bounds!r}.",
        f"A range is a pair (low, high) with low <= high, each {least}.",
        f'Pass {{"{name}": (0.8, 1.2)}}, say.',
    )
