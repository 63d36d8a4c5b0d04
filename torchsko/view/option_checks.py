"""Checks of the arguments of pictures, animations and pages."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import RobotFileError, ShapeError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.numbers import as_integer, as_number


def check_folder(path: str | os.PathLike[str]) -> None:
    """Refuse an output file whose folder does not exist.

    Raises:
        RobotFileError: names the folder.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise RobotFileError(
            f"{os.fspath(path)} cannot be written: the folder {str(folder)!r} does not exist.",
            advice=f"Create it with mkdir -p {folder}, or choose another file.",
        )


def check_file(
    path: str | os.PathLike[str], endings: Collection[str], meaning: str, example: str
) -> None:
    """Refuse an output file with an unknown ending, or in a folder that does not exist.

    Args:
        path: the file.
        endings: valid endings, in lower case.
        meaning: a sentence about the file's format.
        example: a valid ending.

    Raises:
        RobotFileError: gives a valid name.
    """
    check_folder(path)
    ending = Path(path).suffix.lower()
    if ending not in endings:
        has = f"has the ending {ending!r}" if ending else "has no ending"
        name = Path(path).with_suffix(example)
        raise RobotFileError(f"{os.fspath(path)} {has}.", meaning, f"Name it {name}.")


def check_size_and_view(size: Any, view: Any) -> None:
    """Refuse a size or viewing direction of another form.

    Args:
        size: width and height in pixels, whole numbers above 0.
        view: azimuth and elevation of the camera [deg].

    Raises:
        ShapeError: names the argument and gives an example.
    """
    for name, x, number, least, meaning, example in (
        ("size", size, as_integer, 1, "It is a pair of width and height in whole pixels.", (640, 480)),
        ("view", view, as_number, None, "It is a pair of azimuth and elevation in degrees.", (40.0, 20.0)),
    ):  # fmt: skip
        pair = x if isinstance(x, (tuple, list)) else ()
        values = [number(part) for part in pair]
        valid = len(values) == 2 and all(
            value is not None and abs(value) < float("inf") and (least is None or value >= least)
            for value in values
        )
        if not valid:
            raise ShapeError(f"{name} is {x!r}.", meaning, f"Pass {name}={example}, say.")


def check_time_step(dt: Any) -> None:
    """Refuse a time between frames that is not a finite number above 0.

    Raises:
        ShapeError: gives an example.
    """
    x = as_number(dt)
    if x is None or not 0 < x < float("inf"):
        raise ShapeError(
            f"dt is {dt!r}.",
            "It is the time from one configuration to the next in seconds.",
            "Pass dt=0.04, say.",
        )


def tensor_of(mech: Mechanism, q: Any) -> Tensor:
    """Configurations as a detached tensor with the mechanism's dtype and device.

    Raises:
        ShapeError: if torch cannot convert them, such as the trajectory that a rollout returns.
    """
    try:
        return torch.as_tensor(q, dtype=mech.dtype, device=mech.device).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ShapeError(
            f"q was given as {type(q).__name__}, which is not a tensor of configurations.",
            "A rollout returns a ts.Trajectory, whose q are configurations.",
            "Pass trajectory.q.",
        ) from None


def configurations(mech: Mechanism, q: Any, *, motion: bool = False) -> Tensor:
    """Configurations as rows, `[steps, num_q]`.

    Args:
        mech: the robot.
        q: `[num_q]` or `[steps, num_q]`, a tensor or an object that torch converts.
        motion: accept `[steps, num_q]` only.

    Raises:
        ShapeError: if the shape does not fit, or an entry is not finite.
    """
    q = tensor_of(mech, q)
    if q.ndim not in ((2,) if motion else (1, 2)) or q.shape[-1] != mech.num_q or 0 in q.shape:
        single = "" if motion else f"[{mech.num_q}] or "
        raise ShapeError(
            f"q has shape {list(q.shape)}.",
            f"{mech.name!r} has {mech.num_q} coordinates; a motion has one row for each step.",
            f"Pass a tensor of shape {single}[steps, {mech.num_q}].",
        )
    rows = q if q.ndim == 2 else q[None]
    check_finite("q", rows.isfinite().all(-1).tolist())
    return rows


def check_finite(name: str, finite: Sequence[bool]) -> None:
    """Refuse an array with rows that are not finite.

    Args:
        name: of the array.
        finite: True for each row whose entries are finite.

    Raises:
        ShapeError: names the first such row, and the expression for the rows before it.
    """
    if all(finite):
        return
    first = list(finite).index(False)
    before = f"the rows before, {name}[:{first}]" if first else "finite numbers"
    raise ShapeError(
        f"{name} is not finite, first in row {first}.",
        "A configuration that is not finite cannot be drawn.",
        f"Pass {before}.",
    )
