"""Shapes of batch dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """The shape that tensors of these shapes broadcast to, as `torch.broadcast_shapes`.

    In torch 2.13 the first call of that one imports sympy, which takes longer than to load a robot.
    """
    if torch.compiler.is_compiling():  # which knows what to do with symbolic sizes
        return torch.broadcast_shapes(*shapes)
    found = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for i in range(1, len(shape) + 1):
            if found[-i] == 1:
                found[-i] = shape[-i]
            elif shape[-i] not in (1, found[-i]):
                return torch.broadcast_shapes(*shapes)  # says which do not fit
    return torch.Size(found)
