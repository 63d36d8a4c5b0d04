"""What users give a mechanism, refused by name where it does not fit: parameters, types, devices, sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError, ShapeError
from torchsko.mechanism.placement import MOST_READ
from torchsko.mechanism.state import dtype_advice, misfit
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.dtype import is_traced_as
from torchsko.utils.shapes import is_expandable

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism


def check_parameter(mech: Mechanism, name: str, value: Any, sizes: tuple[str | int, ...]) -> None:
    """Refuse a parameter whose shape, dtype or device does not fit a mechanism.

    Raises:
        MechanismError: says which, and what to type.
    """
    shape = tuple(getattr(mech, s) if isinstance(s, str) else s for s in sizes)
    if not isinstance(value, Tensor):
        raise MechanismError(
            f"{name} was given as {type(value).__name__}.",
            "Parameters are tensors, so that gradients can reach them.",
            f"Pass torch.as_tensor(value, dtype={mech.dtype}) of shape "
            f"[*batch, {', '.join(map(str, shape))}].",
        )
    if (why := misfit(mech, name, value, shape)) is None:
        return
    if mech.num_dependent and sizes[0] in ("num_tree_dof", "num_tree_q"):
        # States are shorter: they have no numbers of joints that follow others.
        first, _, *advice = why.split("\n")
        if tuple(value.shape[max(value.ndim - len(shape), 0) :]) != shape:
            meaning = (
                f"All joints of {mech.name!r} have their own, those that follow others too, in the order of "
                "mech.tree_joint_names."
            )
            why = "\n".join((first, meaning, *advice))
    raise MechanismError(why)


def check_placement(
    mech: Mechanism,
    what: str,
    x: Any,
    shape: tuple[int, ...],
    meaning: str | None = None,
    *,
    required: bool = False,
) -> tuple[int, ...]:
    """Batch dimensions of a tensor `[*batch, *shape]` of the mechanism's type and device; refuses others.

    None stands for none, unless there has to be one.

    Args:
        mech: the mechanism.
        what: x in words.
        x: a rotation, a position, or what `meaning` says.
        shape: for one sample.
        meaning: a sentence on what such a tensor is.
        required: refuse None.

    Returns:
        The dimensions before the last ones; none of None.

    Raises:
        ShapeError: says what to type.
    """
    if x is None and not required:
        return ()
    if meaning is None:
        meaning = (
            f"A {'rotation is a matrix' if len(shape) == 2 else 'position is a vector'} in space."
        )
    if not isinstance(x, Tensor) or tuple(x.shape[max(x.ndim - len(shape), 0) :]) != shape:
        given = f"shape {list(x.shape)}" if isinstance(x, Tensor) else f"type {type(x).__name__}"
        raise ShapeError(
            f"the {what} has {given}.",
            f"{meaning}",
            f"Pass a tensor of shape [*batch, {', '.join(map(str, shape))}]{_meant(x, shape, mech.dtype)}.",
        )
    other = x.dtype != mech.dtype and not is_traced_as(x, mech.dtype)
    if other or x.device != mech.device:
        raise ShapeError(
            f"the {what} is {x.dtype} on {x.device}, the mechanism {mech.dtype} on {mech.device}.",
            "Nothing is cast or copied in silence.",
            f"{dtype_advice('x', x.dtype, mech.dtype)}",
        )
    return tuple(x.shape[: x.ndim - len(shape)])


def _meant(x: Any, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """What to type of what is no tensor, and of poses as quaternions, or as matrices of four rows."""
    found = tuple(x.shape) if isinstance(x, Tensor) else ()
    if isinstance(x, tuple | list | np.ndarray):
        return f": torch.as_tensor(x, dtype={dtype}) of such numbers"
    if shape in ((3,), (3, 3)) and found[-2:] == (4, 4):
        return ": of a matrix x of 4 x 4 the pair (x[..., :3, :3], x[..., :3, 3])"
    if shape == (3, 3) and found[-1:] == (4,):
        return ": torchsko.spatial.rotation.quaternion_to_matrix(x) of a quaternion w x y z"
    if shape == (3, 3) and found[-1:] == (3,):
        return "; in a pair the rotation comes first, then the position"
    return ""


def check_finite(what: str, x: Any) -> None:
    """Refuse a gain that is nan or infinite: a number, or a tensor where it may be looked at.

    Raises:
        MechanismError: says which.
    """
    values = concrete_values(x, MOST_READ) if isinstance(x, Tensor) else None
    if isinstance(x, float) and not abs(x) < math.inf:
        told = f"{x}"
    elif values is not None and not np.isfinite(values).all():
        told = f"{values[~np.isfinite(values)].flat[0]} in a place"
    else:
        return
    raise MechanismError(
        f"{what} is {told}.",
        "Forces that are asked for by it are no numbers.",
        "Pass finite gains, 0 where nothing shall pull.",
    )


def check_gains(mech: Mechanism, batch: tuple[int, ...], **gains: Any) -> None:
    """Refuse what is neither a number nor `[*batch, num_dof]`.

    Args:
        mech: the mechanism.
        batch: dimensions of the states and targets that they multiply.
        **gains: by name.

    Raises:
        ShapeError: says which, and what to type.
        MechanismError: on one that is not finite.
    """
    for name, x in gains.items():
        check_finite(name, x)
        if isinstance(x, (int, float)) and not isinstance(x, bool):
            continue
        if not isinstance(x, Tensor):
            raise ShapeError(
                f"{name} was given as {type(x).__name__}.",
                "A gain is a number, or one for each dof.",
                f"Pass a float, or torch.as_tensor({name}, dtype={mech.dtype}) of shape [{mech.num_dof}].",
            )
        if x.ndim == 0:
            continue
        if (why := misfit(mech, name, x, (mech.num_dof,))) is not None:
            raise ShapeError(why)
        lead = tuple(x.shape[:-1])
        if not is_expandable(lead, batch):
            matrix = "a matrix of gains is not taken; " if lead[-1:] == (mech.num_dof,) else ""
            raise ShapeError(
                f"{name} has the batch dimensions {list(lead)}, the states {list(batch)}.",
                f"A gain belongs to a dof of a sample: {matrix}its batch dimensions are those of the states, "
                "or 1.",
                f"Pass [{mech.num_dof}] for all samples, or give q these dimensions too.",
            )


def check_names(what: str, given: Any, example: str) -> tuple[str, ...]:
    """Names in a sequence; one alone, whose letters would be taken for names, is refused.

    Raises:
        MechanismError: says what to type.
    """
    if isinstance(given, str):
        raise MechanismError(
            f"{what} was given as the text {given!r}.",
            "It is a sequence of names.",
            f"Pass [{given!r}].",
        )
    try:
        names = tuple(given)
    except TypeError:
        names = (given,)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise MechanismError(
            f"{what} holds {wrong[0]!r}.",
            "It is a sequence of names.",
            f"Pass [{example!r}], say.",
        )
    return names


def check_each(what: str, given: Any, kind: type, example: str) -> None:
    """Refuse what is no sequence of things of a kind: one alone, or names in their place.

    Raises:
        MechanismError: says what to type.
    """
    alone = isinstance(given, (kind, str)) or not isinstance(given, Sequence)
    wrong = [given] if alone else [x for x in given if not isinstance(x, kind)]
    if wrong:
        raise MechanismError(
            f"{what} {'was given as' if alone else 'holds'} {type(wrong[0]).__name__}.",
            f"It is a sequence of {kind.__name__}.",
            f"Pass [{example}].",
        )


def check_dtype(name: str, dtype: Any) -> None:
    """Refuse what is not torch.float32 or torch.float64.

    Raises:
        MechanismError: says what to type.
    """
    if dtype not in (torch.float32, torch.float64):
        raise MechanismError(
            f"{name!r} was asked for in {dtype!r}.",
            "The recursions are written for float32 and float64, and tested in them.",
            "Pass torch.float32 or torch.float64.",
        )


def check_device(name: str, device: Any) -> torch.device:
    """The device; refuses what is none.

    Raises:
        MechanismError: says what to type.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise MechanismError(
            f"{name!r} was asked for on {device!r}, which is no device.",
            "A mechanism goes to a device of torch, or to a type.",
            'Pass "cpu" or "cuda", say, or torch.float32 or torch.float64.',
        ) from None


def check_batch(batch: tuple[Any, ...]) -> None:
    """Refuse batch dimensions that are no whole numbers, as in random_state((2, 3)).

    Raises:
        ShapeError: says what to type.
    """
    if any(not isinstance(n, int | torch.SymInt) or (isinstance(n, int) and n < 0) for n in batch):
        given = batch[0] if len(batch) == 1 and isinstance(batch[0], Sequence) else batch
        fits = all(isinstance(n, int) and n >= 0 for n in given)
        typed = ", ".join(map(str, given)) if fits else "2, 3"
        raise ShapeError(
            f"random_state was given the batch dimensions {', '.join(map(repr, batch))}.\n"
            "Each is a whole number, zero or more, and an argument of its own.\n"
            f"Type mech.random_state({typed})" + ("." if fits else ", say.")
        )
