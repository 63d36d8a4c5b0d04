"""Checks of time steps."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from torchsko.errors import ShapeError, TorchskoError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.numbers import as_number
from torchsko.utils.shapes import is_expandable


def check_dt(mech: Mechanism, dt: Any, batch: tuple[int, ...] | None, *, backward: bool) -> None:
    """Check a time step; the value of a tensor where it can be read for free."""
    if not isinstance(dt, Tensor):
        x = as_number(dt)
        fits = x is not None and 0 < (abs(x) if backward else x) < math.inf
    else:
        _check_tensor(mech, dt, batch)
        read = concrete_values(dt)
        size = None if read is None else abs(read) if backward else read
        fits = size is None or bool(((size > 0) & (size < math.inf)).all())
    if not fits:
        sign = "other than 0" if backward else "above 0"
        raise TorchskoError(
            f"dt is {dt!r}.",
            f"A time step is a finite number of seconds {sign}.",
            "Pass dt=2e-3, say.",
        )


def _check_tensor(mech: Mechanism, dt: Tensor, batch: tuple[int, ...] | None) -> None:
    """Check shape and dtype of a tensor as time step."""
    if batch is None:
        if dt.ndim:
            raise ShapeError(
                f"dt has shape {list(dt.shape)}.",
                "All samples of a rollout share one time step.",
                "Pass a number or a tensor of shape [], and call rollout once for each time step.",
            )
    elif not is_expandable(tuple(dt.shape), tuple(batch)):
        raise ShapeError(
            f"dt has shape {list(dt.shape)}, the state the batch dimensions {list(batch)}.",
            "A time step is a number, or one for each sample.",
            f"Pass a float, or a tensor of shape {list(batch)}.",
        )
    if dt.dtype != mech.dtype:
        raise ShapeError(
            f"dt is {dt.dtype}, the mechanism {mech.dtype}.",
            "torchsko does not cast dtypes implicitly.",
            f"Pass dt.to({mech.dtype}), or a number.",
        )
