"""Checks of arguments: parameters, placements, gains, names, dtypes, devices and batch dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError, ShapeError
from torchsko.mechanism.dof_numbering import Numbering
from torchsko.mechanism.placement import MAX_CHECKED_ENTRIES
from torchsko.mechanism.state import dtype_advice, misfit
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.dtype import is_traced_as
from torchsko.utils.shapes import is_expandable


def check_parameter(mech: Numbering, name: str, value: Any, sizes: tuple[str | int, ...]) -> None:
    """Refuse a parameter whose shape, dtype or device does not fit a mechanism.

    Raises:
        MechanismError: names the parameter and the expected shape, dtype or device.
    """
    shape = tuple(getattr(mech, s) if isinstance(s, str) else s for s in sizes)
    if not isinstance(value, Tensor):
        raise MechanismError(
            f"{name} was given as {type(value).__name__}.",
            "Parameters are tensors, for example to compute gradients.",
            f"Pass torch.as_tensor(value, dtype={mech.dtype}) of shape "
            f"[*batch, {', '.join(map(str, shape))}].",
        )
    meaning = ""
    if mech.num_dependent and sizes[0] in ("num_tree_dof", "num_tree_q"):
        # Users may pass the shape of a state, which omits dependent joints.
        meaning = (
            f"{mech.name!r} has one entry for every joint, dependent ones included, in the order of "
            "mech.tree_joint_names."
        )
    if (why := misfit(mech, name, value, shape, meaning)) is not None:
        raise MechanismError(*why)


def check_placement(
    mech: Numbering,
    what: str,
    x: Any,
    shape: tuple[int, ...],
    meaning: str | None = None,
    *,
    required: bool = False,
) -> tuple[int, ...]:
    """Check a tensor `[*batch, *shape]` of the mechanism's dtype and device.

    Args:
        mech: the mechanism.
        what: name of x for the message.
        x: a rotation, a position, or a tensor that `meaning` describes; None if it is omitted.
        shape: shape for one sample.
        meaning: a sentence that describes such a tensor.
        required: whether to refuse None.

    Returns:
        Batch dimensions; empty for None.

    Raises:
        ShapeError: when the shape, dtype or device does not fit.
    """
    if x is None and not required:
        return ()
    if meaning is None:
        meaning = (
            f"A {'rotation is a matrix' if len(shape) == 2 else 'position is a vector'} in space."
        )
    if not isinstance(x, Tensor) or tuple(x.shape[max(x.ndim - len(shape), 0) :]) != shape:
        actual = f"shape {list(x.shape)}" if isinstance(x, Tensor) else f"type {type(x).__name__}"
        sizes, hint = ", ".join(map(str, shape)), _conversion(x, shape, mech.dtype)
        advice = f"Pass a tensor of shape [*batch, {sizes}]{hint}."
        raise ShapeError(f"the {what} has {actual}.", meaning, advice)
    other = x.dtype != mech.dtype and not is_traced_as(x, mech.dtype)
    if other or x.device != mech.device:
        raise ShapeError(
            f"the {what} is {x.dtype} on {x.device}, the mechanism {mech.dtype} on {mech.device}.",
            "Tensors are not converted or copied between devices implicitly.",
            dtype_advice("x", x.dtype, mech.dtype),
        )
    return tuple(x.shape[: x.ndim - len(shape)])


def _conversion(x: Any, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Advice for arguments that are not tensors, and for quaternions and homogeneous matrices."""
    found = tuple(x.shape) if isinstance(x, Tensor) else ()
    if isinstance(x, tuple | list | np.ndarray):
        return f", such as torch.as_tensor(x, dtype={dtype})"
    if shape in ((3,), (3, 3)) and found[-2:] == (4, 4):
        return ": for a 4 x 4 matrix x, the pair (x[..., :3, :3], x[..., :3, 3])"
    if shape == (3, 3) and found[-1:] == (4,):
        return ": for a quaternion w x y z, torchsko.spatial.rotation.quaternion_to_matrix(x)"
    if shape == (3, 3) and found[-1:] == (3,):
        return "; a pair is (rotation, position)"
    return ""


def check_finite(what: str, x: Any) -> None:
    """Refuse a number, or a tensor whose values can be read cheaply, that is nan or infinite.

    Raises:
        MechanismError: names the value.
    """
    values = concrete_values(x, MAX_CHECKED_ENTRIES) if isinstance(x, Tensor) else None
    if isinstance(x, float) and not abs(x) < math.inf:
        found = f"{x}"
    elif values is not None and not np.isfinite(values).all():
        found = f"{values[~np.isfinite(values)].flat[0]} in one entry"
    else:
        return
    raise MechanismError(
        f"{what} is {found}.",
        "The resulting forces would not be finite.",
        "Pass finite gains, and 0 for no force.",
    )


def check_gains(mech: Numbering, batch: tuple[int, ...], **gains: Any) -> None:
    """Refuse gains that are neither numbers nor tensors `[*batch, num_dof]`.

    Args:
        mech: the mechanism.
        batch: batch dimensions of the states and targets.
        **gains: gains by name.

    Raises:
        ShapeError: names the gain that does not fit.
        MechanismError: on a gain that is not finite.
    """
    for name, x in gains.items():
        check_finite(name, x)
        if isinstance(x, (int, float)) and not isinstance(x, bool):
            continue
        if not isinstance(x, Tensor):
            raise ShapeError(
                f"{name} was given as {type(x).__name__}.",
                "A gain is a number, or a tensor with one number for each dof.",
                f"Pass a float, or torch.as_tensor({name}, dtype={mech.dtype}) of shape [{mech.num_dof}].",
            )
        if x.ndim == 0:
            continue
        if (why := misfit(mech, name, x, (mech.num_dof,))) is not None:
            raise ShapeError(*why)
        lead = tuple(x.shape[:-1])
        if not is_expandable(lead, batch):
            matrix = "Gain matrices are not supported. " if lead[-1:] == (mech.num_dof,) else ""
            raise ShapeError(
                f"{name} has the batch dimensions {list(lead)}, the states {list(batch)}.",
                f"{matrix}Batch dimensions of gains are those of the states, or 1.",
                f"Pass [{mech.num_dof}] for all samples, or expand q to these dimensions.",
            )


def check_names(what: str, x: Any, example: str) -> tuple[str, ...]:
    """Check a sequence of names; a single string is refused.

    Raises:
        MechanismError: when x is not a sequence of names.
    """
    if isinstance(x, str):
        raise MechanismError(
            f"{what} was given as the text {x!r}.",
            "It is a sequence of names.",
            f"Pass [{x!r}].",
        )
    try:
        names = tuple(x)
    except TypeError:
        names = (x,)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise MechanismError(
            f"{what} holds {wrong[0]!r}.",
            "It is a sequence of names.",
            f"Pass names, such as [{example!r}].",
        )
    return names


def check_each(what: str, items: Any, kind: type, example: str) -> None:
    """Refuse arguments that are not a sequence of objects of a type.

    Raises:
        MechanismError: when an item has another type.
    """
    single = isinstance(items, (kind, str)) or not isinstance(items, Sequence)
    wrong = [items] if single else [x for x in items if not isinstance(x, kind)]
    if wrong:
        raise MechanismError(
            f"{what} {'was given as' if single else 'holds'} {type(wrong[0]).__name__}.",
            f"It is a sequence of {kind.__name__}.",
            f"Pass [{example}].",
        )


def check_dtype(name: str, dtype: Any) -> None:
    """Refuse dtypes other than torch.float32 and torch.float64.

    Raises:
        MechanismError: names the dtype.
    """
    if dtype not in (torch.float32, torch.float64):
        raise MechanismError(
            f"{dtype!r} is not a dtype for {name!r}.",
            "Dynamics is implemented and tested in float32 and float64.",
            "Pass torch.float32 or torch.float64.",
        )


def check_device(name: str, device: Any) -> torch.device:
    """Convert a name to a device.

    Raises:
        MechanismError: when it is not a device.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise MechanismError(
            f"{device!r} is not a device for {name!r}.",
            "A mechanism is moved to a device of torch, or converted to a dtype.",
            'Pass for example "cpu" or "cuda", or torch.float32 or torch.float64.',
        ) from None


def check_batch(batch: tuple[Any, ...], call: str = "mech.random_state({})") -> None:
    """Refuse batch dimensions that are not nonnegative integers, as in random_state((2, 3)).

    Args:
        batch: the batch dimensions.
        call: the call with a place for them.

    Raises:
        ShapeError: names the batch dimensions.
    """
    if any(not isinstance(n, int | torch.SymInt) or (isinstance(n, int) and n < 0) for n in batch):
        sizes = batch[0] if len(batch) == 1 and isinstance(batch[0], Sequence) else batch
        valid = all(isinstance(n, int) and n >= 0 for n in sizes)
        example = ", ".join(map(str, sizes)) if valid else "2, 3"
        raise ShapeError(
            f"{call.partition('(')[0]} got the batch dimensions {', '.join(map(repr, batch))}.",
            "Each batch dimension is a separate argument, a nonnegative integer.",
            f"Type {call.format(example)}" + ("." if valid else ", for example."),
        )
