"""A motion to be played: configurations and their times, of a rollout or a log file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import FitError, RobotFileError, ShapeError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.view.argument_checks import check_finite, tensor_of

TABLES = (".csv", ".txt", ".parquet")
"""Endings of logs whose columns have names."""

STEP = 0.02
"""Time between configurations that have none [s]."""


@dataclass(frozen=True, eq=False)
class Motion:
    """Configurations in time.

    Attributes:
        q: `[steps, num_q]`.
        t: `[steps]`, not decreasing [s].
        contacts: points that touch, in the world, `[steps, n, 3]` [m], nan where none; None: not known.
    """

    q: Tensor
    t: np.ndarray
    contacts: np.ndarray | None = None

    def at(self, t: float) -> int:
        """Number of the last configuration that is not later."""
        return max(0, int(np.searchsorted(self.t, t + 1e-9, side="right")) - 1)


def motion_of(mech: Mechanism, q: Any, t: Any = None, contacts: Any = None) -> Motion:
    """A motion, checked.

    Args:
        mech: whose it is.
        q: configurations, `[steps, num_q]`.
        t: their times [s]; every 0.02 s when left out; a number: the time between two.
        contacts: points that touch, `[steps, n, 3]` [m].

    Raises:
        ShapeError: when a shape does not fit, times decrease, or an entry is not finite.
    """
    q = tensor_of(mech, q)
    if q.ndim != 2 or q.shape[-1] != mech.num_q or not len(q):
        raise ShapeError(
            f"q has shape {list(q.shape)}.",
            f"{mech.name!r} has {mech.num_q} coordinates; a motion is one row after the other.",
            f"Pass a tensor of shape [steps, {mech.num_q}].",
        )
    spacing = STEP if t is None else t
    spacing = spacing.detach().cpu() if isinstance(spacing, Tensor) else spacing
    try:
        times = np.asarray(spacing, dtype=np.float64)
    except (TypeError, ValueError):
        raise ShapeError(
            f"t was given as {type(t).__name__}, of which numpy makes no array.",
            "Each configuration has its time.",
            f"Pass {len(q)} increasing numbers in seconds, or the time between two.",
        ) from None
    times = times * np.arange(len(q)) if times.ndim == 0 else times.reshape(-1)
    check_finite("t", np.isfinite(times).tolist())
    if times.shape != (len(q),) or not np.all(np.diff(times) >= 0):
        raise ShapeError(
            f"t has shape {list(times.shape)} for {len(q)} configurations, or decreases.",
            "Each configuration has its time.",
            f"Pass {len(q)} increasing numbers in seconds, or the time between two.",
        )
    check_finite("q", q.isfinite().all(-1).tolist())
    points = None if contacts is None else np.asarray(contacts, dtype=np.float64)
    if points is not None and (points.ndim != 3 or points.shape[::2] != (len(q), 3)):
        raise ShapeError(
            f"contacts have shape {list(points.shape)}.",
            "They are points in the world for each configuration, nan where there is none.",
            f"Pass an array of shape [{len(q)}, n, 3].",
        )
    return Motion(q, times, points)


def read_log(mech: Mechanism, path: str | os.PathLike[str]) -> Motion:
    """A motion from a file: ``q`` `[steps, num_q]`, and ``t`` `[steps]` and ``contacts`` where there are.

    Args:
        mech: whose it is.
        path: ``.npz`` of `numpy.savez`, or ``.pt`` of `torch.save` with a dict, or a tensor alone; neither is
            given leave to run code. Or ``.csv``, ``.txt`` or ``.parquet`` as
            `torchsko.identification.Log.load` takes,
            in s, rad and m, of which t and q are read.

    Raises:
        RobotFileError: when the file cannot be read, or holds no q.
        FitError: of a table, likewise.
        ShapeError: when what it holds does not fit.
    """
    if Path(path).suffix.lower() in TABLES:
        # Another room, opened where it is needed.
        from torchsko.identification.logs.columns import matched
        from torchsko.identification.logs.table import read
        from torchsko.identification.logs.units import labelled

        found = labelled(Path(path), read(Path(path)), mech.joint_names, {}, {})
        try:
            table = matched(Path(path), found, mech.joint_names, {}, {}, ("t", "q"))
        except FitError as error:
            *said, _ = str(error).split("\n")  # its last line is to be typed elsewhere
            names = ", ".join(f"q_{name}" for name in mech.joint_names[:3])
            more = ", ..." if len(mech.joint_names) > 3 else ""
            said.append(
                f"Name the columns t, {names}{more}: the time, and q_ with each joint's name."
            )
            raise FitError("\n".join(said)) from None
        with _naming(path):
            return motion_of(mech, table["q"], table["t"])
    try:
        if Path(path).suffix.lower() == ".npz":
            with np.load(path, allow_pickle=False) as file:
                found: Any = {name: file[name] for name in file.files}
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, EOFError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
        raise RobotFileError(_unreadable(path, str(error).splitlines()[0])) from error
    except Exception as error:  # UnpicklingError, and what hostile files make of it
        raise RobotFileError(_unreadable(path, type(error).__name__)) from error
    found = {"q": found} if isinstance(found, Tensor) else found
    if not isinstance(found, dict) or "q" not in found:
        raise RobotFileError(_unreadable(path, "it holds no q"))
    with _naming(path):
        return motion_of(mech, found["q"], found.get("t"), found.get("contacts"))


@contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of what a file holds, with its name."""
    try:
        yield
    except ShapeError as error:
        raise ShapeError(f"{os.fspath(path)}: {error}") from None


def _unreadable(path: str | os.PathLike[str], why: str) -> str:
    return (
        f"{os.fspath(path)}: no log that can be played: {why}.\n"
        "A log holds configurations q, one row for each step, and may hold their times t.\n"
        "Write it with numpy.savez(path, q=q, t=t) or torch.save({'q': q, 't': t}, path)."
    )
