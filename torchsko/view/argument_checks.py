"""What is asked of a picture, refused by name where no picture can come of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import RobotFileError, ShapeError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout.argument_checks import as_integer, as_number
from torchsko.view.output_files import check_folder


def check_file(
    path: str | os.PathLike[str], endings: Collection[str], meaning: str, example: str
) -> None:
    """Refuse a file whose folder is not there, or whose ending is none of some.

    Args:
        path: of the file.
        endings: those that would do, in small letters.
        meaning: a sentence on what is written.
        example: one of the endings.

    Raises:
        RobotFileError: says which would do.
    """
    check_folder(path)
    ending = Path(path).suffix.lower()
    if ending not in endings:
        raise RobotFileError(
            f"{os.fspath(path)} ends in {repr(ending) if ending else 'nothing'}.",
            f"{meaning}",
            f"Name it {Path(path).with_suffix(example)}.",
        )


def check_sight(size: Any, view: Any) -> None:
    """Refuse a size that is no width and height in pixels, and a view that is no two angles.

    Raises:
        ShapeError: says what would do.
    """
    for name, x, number, least, meaning, example in (
        ("size", size, as_integer, 1, "Width and height in pixels, whole ones.", (640, 480)),
        ("view", view, as_number, None, "Degrees about the vertical, and above the horizon.", (40.0, 20.0)),
    ):  # fmt: skip
        pair = x if isinstance(x, (tuple, list)) else ()
        found = [number(part) for part in pair]
        fits = len(found) == 2 and all(
            part is not None and abs(part) < float("inf") and (least is None or part >= least)
            for part in found
        )
        if not fits:
            raise ShapeError(
                f"{name} is {x!r}.",
                f"{meaning}",
                f"Pass {name}={example}, say.",
            )


def check_spacing(dt: Any) -> None:
    """Refuse a time between pictures that is no number above 0.

    Raises:
        ShapeError: says what would do.
    """
    x = as_number(dt)
    if x is None or not 0 < x < float("inf"):
        raise ShapeError(
            f"dt is {dt!r}.",
            "It is the time from each configuration to the next [s].",
            "Pass dt=0.04, say.",
        )


def tensor_of(mech: Mechanism, q: Any) -> Tensor:
    """Configurations, or what makes some, as a tensor of the mechanism's type, on its device.

    Raises:
        ShapeError: when it makes none, such as the pair that a rollout gives.
    """
    try:
        return torch.as_tensor(q, dtype=mech.dtype, device=mech.device).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ShapeError(
            f"q was given as {type(q).__name__}, of which torch makes no tensor.",
            "What is drawn are configurations; a rollout gives these, and velocities.",
            "Pass the first alone: qs, _ = torchsko.rollout(...).",
        ) from None


def configurations(mech: Mechanism, q: Any) -> Tensor:
    """Configurations as rows, `[steps, num_q]`.

    Args:
        mech: whose they are.
        q: `[num_q]` or `[steps, num_q]`, a tensor or what makes one.

    Raises:
        ShapeError: when the shape does not fit, or an entry is not finite.
    """
    q = tensor_of(mech, q)
    if q.ndim not in (1, 2) or q.shape[-1] != mech.num_q or 0 in q.shape:
        raise ShapeError(
            f"q has shape {list(q.shape)}.",
            f"{mech.name!r} has {mech.num_q} coordinates; a motion is one row after the other.",
            f"Pass a tensor of shape [{mech.num_q}] or [steps, {mech.num_q}].",
        )
    rows = q if q.ndim == 2 else q[None]
    check_finite("q", rows.isfinite().all(-1).tolist())
    return rows


def check_finite(name: str, rows: Sequence[bool]) -> None:
    """Refuse what holds a row that is not finite.

    Args:
        name: of what is drawn.
        rows: whether each of its rows is finite.

    Raises:
        ShapeError: says which is the first, and how to pass those before.
    """
    if all(rows):
        return
    first = list(rows).index(False)
    before = f"the rows before, {name}[:{first}]" if first else "finite numbers"
    raise ShapeError(
        f"{name} holds what is not finite, first in row {first}.",
        "No robot can be drawn there.",
        f"Pass {before}.",
    )
