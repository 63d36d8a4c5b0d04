"""Validation of gains and weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import misfit
from torchsko.mechanism.validation import check_finite, check_placement
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.numbers import as_number

Batches = dict[str, tuple[int, ...]]
"""Batch dimensions of tensors, by name."""


def check_gain_pair(what: str, gains: Any, meaning: str, advice: str) -> None:
    """Check that gains are a pair of finite numbers or tensors."""
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
    """Batch dimensions of the tensors in a pair of gains, with one number per axis."""
    meaning = "A gain is a number, or one for each inertial axis."
    tensors = {f"{what}[{i}]": x for i, x in enumerate(gains) if isinstance(x, Tensor) and x.ndim}
    return {name: check_placement(mech, name, x, (3,), meaning) for name, x in tensors.items()}


def merge_batches(batches: Batches, others: Batches) -> Batches:
    """Both sets of batch dimensions; a repeated name, as of two tasks of one frame, is made unique."""
    merged = dict(batches)
    for name, batch in others.items():
        while name in merged:
            name += " (repeated)"
        merged[name] = batch
    return merged


def check_nonnegative(
    mech: Mechanism, what: str, x: Any, meaning: str, advice: str
) -> tuple[int, ...]:
    """Batch dimensions of a number or tensor `[*batch]` that must be finite and 0 or more."""
    tensor = isinstance(x, Tensor)
    why = misfit(mech, what, x, ()) if tensor and x.ndim else None
    if why is not None:
        raise MechanismError(*why)
    if not is_nonnegative(x):
        raise MechanismError(
            f"the {what} is {x!r}.",
            meaning,
            f"Pass {advice}, 0 or more, or a tensor of one for each sample.",
        )
    return tuple(x.shape) if tensor else ()


def is_nonnegative(x: Any) -> bool:
    """True if a number is finite and 0 or more. Tensors whose values cannot be read for free pass."""
    if isinstance(x, Tensor):
        read = concrete_values(x)
        return read is None or bool(((read >= 0) & (read < math.inf)).all())
    number = as_number(x)
    return number is not None and 0 <= number < math.inf
