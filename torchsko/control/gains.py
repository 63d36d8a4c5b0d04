"""Gains in pairs, and weights of objectives: refused by name where they are none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.given import check_placement
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import misfit
from torchsko.reading import numbers
from torchsko.rollout.options import as_number

Batches = dict[str, tuple[int, ...]]
"""Batch dimensions by the names of the tensors that have them."""


def check_pair(what: str, gains: Any, meaning: str, advice: str) -> None:
    """Refuse what is no pair of numbers or tensors.

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
        raise MechanismError(f"{what} is {gains!r}.\n{meaning}\nPass {advice}.")


def axis_gains(mech: Mechanism, what: str, gains: Any) -> Batches:
    """Batch dimensions of those of a pair that are tensors, a number for each of three axes.

    Raises:
        ShapeError: when one is neither a number nor `[*batch, 3]`.
    """
    meaning = "A gain is a number, or one for each inertial axis."
    tensors = {f"{what}[{i}]": x for i, x in enumerate(gains) if isinstance(x, Tensor) and x.ndim}
    return {name: check_placement(mech, name, x, (3,), meaning) for name, x in tensors.items()}


def check_weight(mech: Mechanism, what: str, weight: Any) -> tuple[int, ...]:
    """Batch dimensions of a weight, a number or `[*batch]`.

    Raises:
        MechanismError: when it is less than 0 or not finite, a tensor's where that is free to read; or when
            a tensor is of another type or device than the mechanism.
    """
    why = None
    if isinstance(weight, Tensor):
        read = numbers(weight)
        why = misfit(mech, what, weight, ()) if weight.ndim else None
        fits = read is None or bool(((read >= 0) & (read < math.inf)).all())
    else:
        size = as_number(weight)
        fits = size is not None and 0 <= size < math.inf
    if why is not None or not fits:
        raise MechanismError(
            why
            or f"the {what} is {weight!r}.\n"
            "What counts less than nothing has no best answer.\n"
            "Pass a number, 0 or more, say 1.0, or a tensor of one for each sample."
        )
    return tuple(weight.shape) if isinstance(weight, Tensor) else ()
