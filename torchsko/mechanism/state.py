"""Whether a state fits a mechanism: the one place where shapes and dtypes of states are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.utils.dtype import is_traced_as
from torchsko.utils.shapes import are_broadcastable, broadcast_shapes

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism

CONFIGURATIONS = ("q", "qs", "start", "end", "q0", "q_target")
"""Names of arguments that hold configurations."""


def check_state(mech: Mechanism, **tensors: Tensor | None) -> None:
    """Check states by name, as `check_coordinates` does, and that there are as many robots.

    Raises:
        ShapeError: see there; of the two whose batch dimensions do not broadcast the mechanism may be one.
    """
    batches = check_coordinates(mech, **tensors)
    robots = mech.batch_shape
    if robots:
        shared_batch({"the mechanism": robots, **batches})


def check_coordinates(mech: Mechanism, **tensors: Tensor | None) -> dict[str, tuple[int, ...]]:
    """Check shapes, dtypes and devices of states by name, where masses are no matter; no value is read.

    Args:
        mech: the mechanism.
        **tensors: "q", "start" and "end" have num_q components, "f_ext" is `[*batch, num_bodies, 6]`
            or None, all others (qd, qdd, tau, step, ...) have num_dof.

    Returns:
        Their batch dimensions.

    Raises:
        ShapeError: names the tensor, its shape and the one wanted, or the two whose batch dimensions do
            not broadcast.
    """
    batches: dict[str, tuple[int, ...]] = {}
    for name, x in tensors.items():
        if x is None and name == "f_ext":
            continue
        if not isinstance(x, Tensor):
            raise ShapeError(no_tensor(name, x, mech))
        if name == "f_ext":
            shape: tuple[int, ...] = (mech.num_bodies, 6)
        else:
            shape = (mech.num_q if name in CONFIGURATIONS else mech.num_dof,)
        if (why := misfit(mech, name, x, shape)) is not None:
            raise ShapeError(why)
        batches[name] = tuple(x.shape[: x.ndim - len(shape)])
    shapes = list(batches.values())
    if any(shape != shapes[0] for shape in shapes):
        shared_batch(batches)
    return batches


def misfit(mech: Mechanism, name: str, x: Tensor, shape: tuple[int, ...]) -> str | None:
    """Why a tensor does not fit a mechanism where `[*batch, *shape]` is wanted; None where it does."""
    if x.ndim < len(shape) or tuple(x.shape[x.ndim - len(shape) :]) != shape:
        return (
            f"{name} has shape {list(x.shape)}.\n"
            f"{mech.name!r} has {mech.num_bodies} bodies, {mech.num_dof} dofs and {mech.num_q} "
            "coordinates, in the order of mech.joint_names.\n"
            f"Pass a tensor of shape [*batch, {', '.join(map(str, shape))}]."
        )
    if x.dtype != mech.dtype and not is_traced_as(x, mech.dtype):
        return (
            f"{name} is {x.dtype}, the mechanism {mech.dtype}.\n"
            f"Nothing is cast in silence.\n{dtype_advice(name, x.dtype, mech.dtype)}"
        )
    if x.device != mech.device:
        return (
            f"{name} is on {x.device}, the mechanism on {mech.device}.\n"
            "Nothing is copied between devices in silence.\n"
            f"Pass {name}.to({str(mech.device)!r}), or mech.to({str(x.device)!r})."
        )
    return None


def dtype_advice(name: str, given: torch.dtype, wanted: torch.dtype) -> str:
    """What to type where a tensor of one type meets a mechanism of another."""
    other = f", or mech.to({given})" if given in (torch.float32, torch.float64) else ""
    real = f"{name}.real" if given.is_complex else name
    return f"Pass {real}.to({wanted}){other}."


def no_tensor(name: str, x: Any, mech: Mechanism) -> str:
    """What to type where something else than a tensor was given."""
    place = "" if mech.device.type == "cpu" else f", device={str(mech.device)!r}"
    advice = f"torch.as_tensor({name}, dtype={mech.dtype}{place})"
    if x is None:
        count = mech.num_q if name in CONFIGURATIONS else mech.num_dof
        advice = f"torch.zeros({count}, dtype={mech.dtype}{place}), say"
    return (
        f"{name} was given as {type(x).__name__}.\n"
        f"States are tensors, so that gradients and devices come along.\nPass {advice}."
    )


def shared_batch(batches: Mapping[str, Sequence[int]]) -> torch.Size:
    """What batch dimensions broadcast to.

    Args:
        batches: of tensors, and of the mechanism, by name.

    Raises:
        ShapeError: when they do not; names two that do not fit.
    """
    try:
        return broadcast_shapes(*batches.values())
    except RuntimeError:
        pairs = combinations(batches.items(), 2)
        (one, first), (other, second) = next(
            x for x in pairs if not are_broadcastable(x[0][1], x[1][1])
        )
    raise ShapeError(apart(one, first, other, second, 2 if other == "f_ext" else 1))


def apart(one: str, first: Sequence[int], other: str, second: Sequence[int], rank: int) -> str:
    """Why batch dimensions of two tensors are not those of one batch.

    Args:
        one: name of a tensor.
        first: its batch dimensions.
        other: name of another.
        second: its batch dimensions.
        rank: of the other, how many dimensions stand behind these.
    """
    # Of what was told in words there is no code to type.
    how = f": {other}[..., None{', :' * rank}]" if other.isidentifier() else ""
    return (
        f"{one} has the batch dimensions {list(first)}, {other} has {list(second)}.\n"
        "Counted from the last, they are equal or one of them is 1.\n"
        f"Give both the same, or put in a dimension of 1{how}."
    )
