"""Moving the index tensors of nested dataclasses to a device."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def on_device(x: T, device: torch.device | str) -> T:
    """Move all tensors of a dataclass to a device, also those in its tuples and dataclasses.

    Args:
        x: a dataclass, a tuple, a tensor, or an object without tensors.
        device: the device.

    Returns:
        A copy, or x itself if all its tensors are there already.
    """
    moved: Any = x
    if isinstance(x, Tensor):
        moved = x.to(device)
    elif isinstance(x, tuple):
        parts = tuple(on_device(part, device) for part in x)
        if any(a is not b for a, b in zip(parts, x, strict=True)):
            moved = type(x)(*parts) if hasattr(x, "_fields") else parts
    elif is_dataclass(x) and not isinstance(x, type):
        old = {field.name: getattr(x, field.name) for field in fields(x)}
        new = {name: on_device(part, device) for name, part in old.items()}
        changes = {name: part for name, part in new.items() if part is not old[name]}
        moved = replace(x, **changes) if changes else x
    return moved
