"""Gains in pairs, and weights of objectives: refused by name where they are none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import misfit
from torchsko.mechanism.validation import check_finite, check_placement
from torchsko.rollout.argument_checks import as_number
from torchsko.utils.concrete_values import concrete_values

Batches = dict[str, tuple[int, ...]]
"""Batch dimensions by the names of the tensors that have them."""


def check_gain_pair(what: str, gains: Any, meaning: str, advice: str) -> None:
    """Refuse what is no pair of finite numbers or tensors.

    Args:
        what: the gains in words.
        gains: what was given.
        meaning: a sentence on why there are two.
        advice: what to type.

    Raises:
        MechanismError: says what to type.
    """
    listed = hasattr(gains, "__len__") and hasattr(gains, "__getitem__")
    pair = listed and not isinstance(gains, str | Mapping) and len(gains) == 2
    if not pair or not all(isinstance(x, Tensor) or as_number(x) is not None for x in gains):
        raise MechanismError(
            f"{what} is {gains!r}.",
            f"{meaning}",
            f"Pass {advice}.",
        )
    for i, x in enumerate(gains):
        check_finite(f"{what}[{i}]", x)


def axis_gains(mech: Mechanism, what: str, gains: Any) -> Batches:
    """Batch dimensions of those of a pair that are tensors, a number for each of three axes.

    Raises:
        ShapeError: when one is neither a number nor `[*batch, 3]`.
    """
    meaning = "A gain is a number, or one for each inertial axis."
    tensors = {f"{what}[{i}]": x for i, x in enumerate(gains) if isinstance(x, Tensor) and x.ndim}
    return {name: check_placement(mech, name, x, (3,), meaning) for name, x in tensors.items()}


def merge_batches(batches: Batches, others: Batches) -> Batches:
    """Batch dimensions of all tensors; of some that have one name, as those of two tasks of a frame, too."""
    found = dict(batches)
    for name, batch in others.items():
        while name in found:
            name += ", again,"
        found[name] = batch
    return found


def check_nonnegative(
    mech: Mechanism, what: str, x: Any, meaning: str, advice: str
) -> tuple[int, ...]:
    """Batch dimensions of a size, a number or `[*batch]`.

    Args:
        mech: the mechanism.
        what: the size in words.
        x: what was given.
        meaning: a sentence on why it is no less than 0.
        advice: what to type.

    Raises:
        MechanismError: when it is less than 0 or not finite, a tensor's where that is free to read; or when
            a tensor is of another type or device than the mechanism.
    """
    tensor = isinstance(x, Tensor)
    why = misfit(mech, what, x, ()) if tensor and x.ndim else None
    if why is not None or not is_nonnegative(x):
        raise MechanismError(
            why
            or f"the {what} is {x!r}.\n{meaning}\n"
            f"Pass {advice}, 0 or more, or a tensor of one for each sample."
        )
    return tuple(x.shape) if tensor else ()


def is_nonnegative(x: Any) -> bool:
    """Whether a number, or all of a tensor's that are free to read, are 0 or more, and finite."""
    if isinstance(x, Tensor):
        read = concrete_values(x)
        return read is None or bool(((read >= 0) & (read < math.inf)).all())
    size = as_number(x)
    return size is not None and 0 <= size < math.inf
