"""Motions for playback: configurations and their times, from a rollout or a log file."""

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
from torchsko.view.option_checks import check_finite, configurations

TABLE_ENDINGS = (".csv", ".txt")
"""Endings of logs with named columns."""

DEFAULT_DT = 0.02
"""Time between configurations without times [s]."""


@dataclass(frozen=True, eq=False)
class Motion:
    """Configurations in time.

    Attributes:
        q: `[steps, num_q]`.
        t: `[steps]`, not decreasing [s].
        contacts: contact points in the world, `[steps, n, 3]` [m], nan where there is none; None: unknown.
    """

    q: Tensor
    t: np.ndarray
    contacts: np.ndarray | None = None

    def at(self, t: float) -> int:
        """Index of the last configuration that is not later than t."""
        return max(0, int(np.searchsorted(self.t, t + 1e-9, side="right")) - 1)


def motion_of(mech: Mechanism, q: Any, t: Any = None, contacts: Any = None) -> Motion:
    """Check the arrays of a motion.

    Args:
        mech: the robot.
        q: configurations, `[steps, num_q]`.
        t: times `[steps]` [s], or the time step; 0.02 s when left out.
        contacts: contact points in the world, `[steps, n, 3]` [m].

    Raises:
        ShapeError: if a shape does not fit, times decrease, or an entry is not finite.
    """
    q = configurations(mech, q, motion=True)
    advice = f"Pass {len(q)} increasing numbers in seconds, or the time between two."
    given = DEFAULT_DT if t is None else t
    given = given.detach().cpu() if isinstance(given, Tensor) else given
    try:
        times = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise ShapeError(
            f"t was given as {type(t).__name__}, which numpy cannot convert to an array.",
            advice=advice,
        ) from None
    times = times * np.arange(len(q)) if times.ndim == 0 else times.reshape(-1)
    check_finite("t", np.isfinite(times).tolist())
    if times.shape != (len(q),) or not np.all(np.diff(times) >= 0):
        raise ShapeError(
            f"t has shape {list(times.shape)} for {len(q)} configurations, or decreases.",
            "Each configuration needs a time.",
            advice,
        )
    points = None if contacts is None else np.asarray(contacts, dtype=np.float64)
    if points is not None and (points.ndim != 3 or points.shape[::2] != (len(q), 3)):
        raise ShapeError(
            f"contacts have shape {list(points.shape)}.",
            "They are points in the world for each configuration, nan where there is none.",
            f"Pass an array of shape [{len(q)}, n, 3].",
        )
    return Motion(q, times, points)


def read_log(mech: Mechanism, path: str | os.PathLike[str]) -> Motion:
    """Read a motion from a file: ``q`` `[steps, num_q]`, and optionally ``t`` `[steps]` and ``contacts``.

    Args:
        mech: the robot.
        path: ``.npz`` of `numpy.savez`, or ``.pt`` of `torch.save` with a dict or a tensor; code in these
            files is not run. Or ``.csv`` or ``.txt`` with columns as in
            `torchsko.identification.Log.load`, in s, rad and m, of which t and q are read.

    Raises:
        RobotFileError: if the file cannot be read, or has no q.
        FitError: if a table cannot be read, or has no columns for t and q.
        ShapeError: if the arrays do not fit the robot.
    """
    file = Path(path)
    if file.suffix.lower() in TABLE_ENDINGS:
        table = _read_table(mech, file)
        with _locate_errors(path):
            return motion_of(mech, table["q"], table["t"])
    try:
        if file.suffix.lower() == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                found: Any = {name: archive[name] for name in archive.files}
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, EOFError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
        raise _unreadable(path, str(error).splitlines()[0]) from error
    except Exception as error:  # unpickling a corrupt file raises exceptions of any type
        raise _unreadable(path, type(error).__name__) from error
    found = {"q": found} if isinstance(found, Tensor) else found
    if not isinstance(found, dict) or "q" not in found:
        raise _unreadable(path, "it has no array q")
    with _locate_errors(path):
        return motion_of(mech, found["q"], found.get("t"), found.get("contacts"))


def _read_table(mech: Mechanism, file: Path) -> dict[str, Any]:
    """The columns of t and q."""
    # These modules are imported only if a table is read.
    from torchsko.identification.logs.columns import apply_file_units, match_columns
    from torchsko.identification.logs.log_files import read_table

    columns = apply_file_units(file, read_table(file), mech.joint_names, {})
    try:
        return match_columns(file, columns, mech.joint_names, {}, {}, ("t", "q"))
    except FitError as error:
        names = ", ".join(f"q_{name}" for name in mech.joint_names[:3])
        more = ", ..." if len(mech.joint_names) > 3 else ""
        advice = f"Name the columns t, {names}{more}: the time, and q_ with each joint's name."
        raise FitError(error.what, error.why, advice) from None


@contextmanager
def _locate_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except ShapeError as error:
        raise error.located(os.fspath(path)) from None


def _unreadable(path: str | os.PathLike[str], reason: str) -> RobotFileError:
    return RobotFileError(
        f"{os.fspath(path)} cannot be read as a motion: {reason}.",
        "A motion file has configurations q, one row for each step, and optionally times t.",
        "Write it with numpy.savez(path, q=q, t=t) or torch.save({'q': q, 't': t}, path).",
    )
