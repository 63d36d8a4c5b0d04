"""Checks of shapes, dtypes and devices of states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import Fields, ShapeError
from torchsko.mechanism.dof_numbering import Numbering
from torchsko.mechanism.fields import Shape
from torchsko.utils.dtype import is_traced_as
from torchsko.utils.shapes import are_broadcastable, broadcast_shapes

SHAPES: dict[str, Shape] = {
    **dict.fromkeys(("q", "qs", "start", "end", "q0", "q_target"), ("num_q",)),
    **dict.fromkeys(("qd", "qds", "qdd", "tau", "step", "x", "warmstart"), ("num_dof",)),
    "f_ext": ("num_bodies", 6),
    "dt": (),
}
"""Shape of each common argument for one sample, by name. A verb declares the shapes of its other tensors."""

_DOFS: Shape = ("num_dof",)


def sizes(mech: Numbering, shape: Shape) -> tuple[int, ...]:
    """A shape as numbers, for a mechanism."""
    return tuple(getattr(mech, s) if isinstance(s, str) else s for s in shape)


def check_state(
    mech: Numbering, shapes: Mapping[str, Shape] = SHAPES, /, **tensors: Tensor | None
) -> None:
    """Check states as `check_coordinates`, and that they broadcast with the batch of the mechanism.

    Raises:
        ShapeError: names the tensors that do not fit, or the mechanism.
    """
    batches = check_coordinates(mech, shapes, **tensors)
    if mech.batch_shape:
        shared_batch({"the mechanism": mech.batch_shape, **batches}, shapes)


def check_coordinates(
    mech: Numbering, shapes: Mapping[str, Shape] = SHAPES, /, **tensors: Tensor | None
) -> dict[str, tuple[int, ...]]:
    """Check shapes, dtypes and devices of states by name, without reading values.

    Args:
        mech: the mechanism.
        shapes: shapes for one sample, by name; tensors of other names have num_dof components.
        **tensors: by name. "f_ext" may be None.

    Returns:
        Batch dimensions of each tensor.

    Raises:
        ShapeError: names the tensor, its shape and the expected one, or two tensors whose batch dimensions
            do not broadcast.
    """
    batches: dict[str, tuple[int, ...]] = {}
    for name, x in tensors.items():
        if x is None and name == "f_ext":
            continue
        shape = sizes(mech, shapes.get(name, _DOFS))
        if not isinstance(x, Tensor):
            raise ShapeError(*no_tensor(name, x, mech, shape))
        if (why := misfit(mech, name, x, shape)) is not None:
            raise ShapeError(*why)
        batches[name] = tuple(x.shape[: x.ndim - len(shape)])
    first = next(iter(batches.values()), ())
    if any(batch != first for batch in batches.values()):
        shared_batch(batches, shapes)
    return batches


def misfit(
    mech: Numbering, name: str, x: Tensor, shape: tuple[int, ...], meaning: str = ""
) -> Fields | None:
    """Fields of the error for a tensor that is not `[*batch, *shape]` of the mechanism's dtype and device.

    Args:
        mech: the mechanism.
        name: name of the tensor.
        x: the tensor.
        shape: shape for one sample.
        meaning: sentence that explains the shape; the numbers of bodies and coordinates when empty.
    """
    if x.ndim < len(shape) or tuple(x.shape[x.ndim - len(shape) :]) != shape:
        return (
            f"{name} has shape {list(x.shape)}.",
            meaning
            or f"{mech.name!r} has {mech.num_bodies} bodies, {mech.num_dof} dofs and {mech.num_q} "
            "coordinates, in the order of mech.joint_names.",
            f"Pass a tensor of shape [*batch, {', '.join(map(str, shape))}].",
        )
    if x.dtype != mech.dtype and not is_traced_as(x, mech.dtype):
        return (
            f"{name} is {x.dtype}, the mechanism {mech.dtype}.",
            "Dtypes are not converted implicitly.",
            dtype_advice(name, x.dtype, mech.dtype),
        )
    if x.device != mech.device:
        return (
            f"{name} is on {x.device}, the mechanism on {mech.device}.",
            "Tensors are not copied between devices implicitly.",
            f"Pass {name}.to({str(mech.device)!r}), or mech.to({str(x.device)!r}).",
        )
    return None


def dtype_advice(name: str, dtype: torch.dtype, wanted: torch.dtype) -> str:
    """Advice for a tensor of one dtype and a mechanism of another."""
    other = f", or mech.to({dtype})" if dtype in (torch.float32, torch.float64) else ""
    real = f"{name}.real" if dtype.is_complex else name
    return f"Pass {real}.to({wanted}){other}."


def no_tensor(name: str, x: Any, mech: Numbering, shape: tuple[int, ...]) -> Fields:
    """Fields of the error for an argument that is not a tensor."""
    place = "" if mech.device.type == "cpu" else f", device={str(mech.device)!r}"
    advice = f"torch.as_tensor({name}, dtype={mech.dtype}{place})"
    if x is None:
        advice = (
            f"torch.zeros({', '.join(map(str, shape))}, dtype={mech.dtype}{place}), for example"
        )
    return (
        f"{name} was given as {type(x).__name__}.",
        "States are tensors, which have a device and gradients.",
        f"Pass {advice}.",
    )


def shared_batch(
    batches: Mapping[str, Sequence[int]], shapes: Mapping[str, Shape] = SHAPES
) -> torch.Size:
    """Broadcast batch dimensions.

    Args:
        batches: batch dimensions of tensors, and of the mechanism, by name.
        shapes: shapes for one sample, by name.

    Raises:
        ShapeError: names two that do not broadcast.
    """
    try:
        return broadcast_shapes(*batches.values())
    except RuntimeError:
        pairs = combinations(batches.items(), 2)
        (one, first), (other, second) = next(
            x for x in pairs if not are_broadcastable(x[0][1], x[1][1])
        )
    raise ShapeError(*batch_mismatch(one, first, other, second, len(shapes.get(other, _DOFS))))


def batch_mismatch(
    one: str, first: Sequence[int], other: str, second: Sequence[int], rank: int
) -> Fields:
    """Fields of the error for two tensors whose batch dimensions do not broadcast.

    Args:
        one: name of the first tensor.
        first: batch dimensions of the first tensor.
        other: name of the second tensor.
        second: batch dimensions of the second tensor.
        rank: number of dimensions after the batch of the second tensor.
    """
    how = f": {other}[..., None{', :' * rank}]" if other.isidentifier() else ""
    return (
        f"{one} has the batch dimensions {list(first)}, {other} has {list(second)}.",
        "Batch dimensions broadcast if, counted from the last, they are equal or one of them is 1.",
        f"Give both the same batch dimensions, or insert a dimension of 1{how}.",
    )
