"""Random variation of the parameters of a mechanism, such as masses and friction, for a batch of robots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.fields import FIELDS
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.validation import check_batch
from torchsko.spatial.rotation import quaternion_exp, unit_quaternion_to_matrix
from torchsko.utils.concrete_values import concrete_values

Range = Sequence[float | Tensor]
"""Lower and upper bound of a uniform distribution: numbers, or tensors that broadcast with the entries."""

Entries = tuple[int, int]
"""First entry of one body, joint or frame along the first dimension of a field, and the number of entries."""


def randomise(
    mech: MechanismLike,
    n: int,
    ranges: Mapping[str, Range],
    generator: torch.Generator | None = None,
) -> Mechanism:
    """A batch of robots with random parameters, for a rollout with a different robot per sample.

    A name is a tensor of `Mechanism`, such as "mass", or one entry of it, such as "link5.mass",
    "elbow.damping" and "tool.frame_position". Every entry is drawn independently and uniformly:

    - nonnegative factors: mass, inertia, damping, higher_damping, friction, armature, stiffness, gravcomp,
      coupling_ratio, velocity_limit, effort_limit;
    - offsets in SI units: com, joint_position, frame_position, coupling_offset, lower, upper, gravity;
    - components of a rotation vector [rad]: joint_rotation, frame_rotation, axis.

    Robots stay physical. A factor of a mass multiplies the inertia of the body as well. Three factors of an
    inertia stretch the body along its axes: they multiply the second moments of mass about the centre of
    mass, so that moments of inertia keep the triangle inequality.

    Args:
        mech: the nominal robot.
        n: number of robots.
        ranges: lower and upper bound by name. Tensors have gradients, as have the parameters of `mech`.
        generator: source of randomness, on the mechanism's device. The result does not depend on the order of
            the names.

    Returns:
        A mechanism whose named tensors have the leading dimension n. ``ts.fuse`` takes them as inputs.

    Raises:
        MechanismError: on an unknown name; on bounds that are not a pair, in the wrong order, or negative
            factors.
        ShapeError: on an n that is not a nonnegative integer.

    Example:
        >>> import torch, torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> g = torch.Generator().manual_seed(0)
        >>> ranges = {"mass": (0.8, 1.2), "friction": (0.5, 2.0), "joint_position": (-0.002, 0.002)}
        >>> many = ts.randomise(arm, 64, ranges, g)
        >>> many.mass.shape, many.inertia.shape
        (torch.Size([64, 7]), torch.Size([64, 7, 3, 3]))
        >>> q, qd = arm.random_state(64, generator=g)
        >>> ts.rollout(many, q, 0 * qd, steps=5)[0].shape
        torch.Size([64, 6, 7])
    """
    robot = as_mechanism(mech)
    check_batch((n,))
    targets = [(*_find(robot, name), name) for name in ranges]
    order, batch = list(FIELDS), robot.batch_shape
    for field, entries, name in sorted(targets, key=lambda x: (order.index(x[0]), x[1] or (0, 0))):
        low, high = _bounds(name, field, ranges[name])
        shape = list(getattr(robot, field).shape[-len(FIELDS[field].shape) :])
        if field == "inertia" or (FIELDS[field].variation == "rotation" and len(shape) > 2):
            shape.pop()  # three factors, or a rotation vector
        if entries is not None:
            shape[0] = entries[1]
        shape = [n, *batch, *shape]
        u = torch.rand(shape, generator=generator, dtype=robot.dtype, device=robot.device)
        robot = robot.replace(**_varied(robot, field, entries, low + (high - low) * u))
    return robot


def _varied(
    mech: Mechanism, field: str, entries: Entries | None, draw: Tensor
) -> dict[str, Tensor]:
    """The tensors of a mechanism after a variation of one field."""
    value, sizes = getattr(mech, field), len(FIELDS[field].shape)
    variation = FIELDS[field].variation
    event = 2 if field == "inertia" else sizes
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
    if field == "inertia":
        return {field: _stretched(value, draw)}
    if variation == "rotation":
        R = unit_quaternion_to_matrix(quaternion_exp(draw))
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


def _find(mech: Mechanism, name: str) -> tuple[str, Entries | None]:
    """The field of a name, and its entries; None for all."""
    owner, _, last = name.rpartition(".")
    found = [key for key, field in FIELDS.items() if last in (key, field.target) if last]
    known = [key for key, field in FIELDS.items() if field.variation != "none"]
    field = last if last in FIELDS else next(iter(found), "")
    if field not in known:
        raise MechanismError(*unknown_name("parameter", last, known))
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


def _bounds(name: str, field: str, bounds: Any) -> tuple[Any, Any]:
    """Check and return the bounds of a distribution."""
    fits = isinstance(bounds, Sequence) and len(bounds) == 2
    if fits:
        low, high = bounds
        values = [concrete_values(x) if isinstance(x, Tensor) else x for x in bounds]
        if all(x is not None for x in values):
            fits = bool((torch.as_tensor(values[0]) <= torch.as_tensor(values[1])).all())
            if FIELDS[field].variation == "factor":
                fits = fits and bool((torch.as_tensor(values[0]) >= 0).all())
        if fits:
            return low, high
    least = "a factor of at least 0" if FIELDS[field].variation == "factor" else "a number"
    raise MechanismError(
        f"the range of {name!r} is {bounds!r}.",
        f"A range is a pair (low, high) with low <= high, each {least}.",
        f'Pass {{"{name}": (0.8, 1.2)}}, say.',
    )
