"""Logs of robots: times, joint positions and forces, from arrays or files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.columns import extra_columns, match_columns
from torchsko.identification.logs.log_files import read_table
from torchsko.identification.logs.timestamps import check_times
from torchsko.identification.logs.units import (
    CURRENT_UNITS,
    Units,
    apply_file_units,
    normalize_units,
    to_si,
)

Array = NDArray[np.floating[Any]]

MIN_LOG_GAP = 1.0
"""Smallest gap between concatenated logs [s], longer than any filter."""

MIN_SAMPLES = 16
"""Smallest number of samples of a log."""


@dataclass(frozen=True, eq=False)
class Log:
    """Measurements of a moving robot.

    Arrays may be memory-mapped: they are read in pieces. Times may be uneven.

    Attributes:
        t: time, increasing, `[samples]` [s].
        q: positions, `[samples, num_q]` [rad or m]. Angles may wrap around at one turn; a fit unwraps them.
        tau: joint forces, `[samples, num_dof]` [N m or N]: all forces that move the robot besides gravity,
            and zero for joints without a drive. The force of a drive at a coupled joint is transmitted to the
            joint that it follows: add it there, times the ratio. Known external forces `f_ext` are added as
            joint forces, with at = (q, 0 * qd, 0 * qd):
            ``ts.inverse_dynamics(mech, *at) - ts.inverse_dynamics(mech, *at, f_ext)``.
            Forces of a floating base that were not measured are nan, or have no columns; a fit ignores them.
            In flight they are zero.
        qd: velocities, `[samples, num_dof]` [rad/s or m/s], or None if they were not measured.
        joints: names of the columns, or () if they are in the robot's order.
        name: of the log, for messages.
        held: whether forces are commands that are held until the next sample. Otherwise they are interpolated
            linearly between samples. Only the method "shooting" uses this.
        current: whether `tau` contains motor currents [A] with unknown torque constants. A fit identifies
            these by the masses of the nominal robot. If you know them, pass currents times torque constants.
        units: declared units of the file, see `load`; the arrays are in SI units. A fit checks that each
            joint can have its unit: degrees of a prismatic joint are an error.
        others: columns of a file that belong to other joints, by quantity, "q" or "tau", and by joint, each
            `[samples]`. A fit only checks those of coupled joints.
    """

    t: Array
    q: Array
    tau: Array
    qd: Array | None = None
    joints: tuple[str, ...] = ()
    name: str = "log"
    held: bool = False
    current: bool = False
    units: Units = field(default_factory=dict)
    others: Mapping[str, Mapping[str, Array]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("t", "q", "tau", "qd"):
            x = getattr(self, name)
            if not hasattr(x, "ndim") and not (x is None and name == "qd"):
                raise FitError(
                    f"{self.name}: {name} is of type {type(x).__name__}.",
                    "A log consists of arrays, which may be memory-mapped.",
                    f"Pass numpy.asarray({name}).",
                )
            if x is not None:
                _check_values(self.name, name, x)
        t, q, tau = self.t, self.q, self.tau
        if t.ndim != 1 or len(t) < MIN_SAMPLES:
            raise FitError(
                f"{self.name}: the time has shape {list(t.shape)}.",
                f"A log has at least {MIN_SAMPLES} samples.",
                "Pass t as [samples], and q, qd and tau as [samples, joints].",
            )
        for name, x in (("q", q), ("tau", tau), ("qd", self.qd)):
            if x is not None and (x.ndim != 2 or len(x) != len(t)):
                raise FitError(
                    f"{self.name}: {name} has shape {list(x.shape)}, t has {list(t.shape)}.",
                    "Each sample needs a time and a number for each joint.",
                    f"Pass {name} as [{len(t)}, joints].",
                )

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.t)

    @property
    def duration(self) -> float:
        """Time from the first sample to the last [s]."""
        return float(self.t[-1] - self.t[0])

    def part(self, start: float, stop: float) -> Log:
        """Samples of a part of the time, as fractions of the duration.

        Args:
            start: fraction at which the part begins, 0 for the start of the log.
            stop: fraction at which it ends, exclusive; 1 for the end.

        Raises:
            FitError: if these are not increasing fractions, or times do not increase.
        """
        if not 0 <= start < stop <= 1:
            raise FitError(
                f"{self.name}: there is no part from {start} to {stop}.",
                "Parts are fractions of the duration, from 0 at the start to 1 at the end.",
                "Pass part(0, 0.6) for the first 60 percent.",
            )
        if (start, stop) == (0, 1):
            return self
        check_times(self.name, self.t)
        first, last = float(self.t[0]), float(self.t[-1])
        a, b = np.searchsorted(self.t, [first + x * (last - first) for x in (start, stop)])
        return self.pick(slice(int(a), len(self) if stop >= 1 else int(b)))

    def pick(self, rows: slice) -> Log:
        """Select samples; the arrays are views."""
        qd = None if self.qd is None else self.qd[rows]
        others = {k: {j: x[rows] for j, x in each.items()} for k, each in self.others.items()}
        return replace(
            self, t=self.t[rows], q=self.q[rows], tau=self.tau[rows], qd=qd, others=others
        )

    @classmethod
    def concatenate(cls, logs: Sequence[Log]) -> Log:
        """Concatenate logs of one robot for a common fit; each is filtered separately.

        Times continue from log to log, with gaps that no filter crosses.

        Args:
            logs: of the same joints, all with velocities or all without, at similar sampling rates.

        Raises:
            FitError: if there is no log, or they differ in their contents; names the difference.
        """
        for name in ("joints", "held", "current", "qd", "q", "tau"):
            kinds = {log._layout(name) for log in logs}
            if len(kinds) != 1:
                raise FitError(
                    f"{len(logs)} logs to concatenate differ in {name}: "
                    f"{', '.join(sorted(map(str, kinds))) or 'there is no log'}.",
                    "Logs of one fit must be of one robot, with the same quantities.",
                    "Fit the others separately; dataclasses.replace(log, qd=None) removes velocities.",
                )
        gap = max(MIN_LOG_GAP, max(log.duration for log in logs) / 20)
        starts = np.cumsum([0.0, *(log.duration + gap for log in logs[:-1])])
        t = [
            np.asarray(log.t, np.float64) - float(log.t[0]) + x
            for log, x in zip(logs, starts, strict=True)
        ]
        q, tau = (np.concatenate([getattr(log, name) for log in logs]) for name in ("q", "tau"))
        velocities = [log.qd for log in logs if log.qd is not None]
        others = {
            k: {
                j: np.concatenate([log.others[k][j] for log in logs])
                for j in each
                if all(j in log.others.get(k, {}) for log in logs)
            }
            for k, each in logs[0].others.items()
        }
        return replace(
            logs[0],
            t=np.concatenate(t),
            q=q,
            tau=tau,
            qd=np.concatenate(velocities) if velocities else None,
            name=", ".join(dict.fromkeys(log.name for log in logs)),
            others=others,
        )

    def _layout(self, name: str) -> Any:
        """Value of an attribute, of an array its number of columns."""
        x = getattr(self, name)
        return x.shape[1] if hasattr(x, "ndim") else x

    def release_pages(self) -> None:
        """Release the resident memory of read-only memory-mapped arrays; later accesses read the disk."""
        advice = getattr(mmap, "MADV_DONTNEED", None)
        for x in (self.t, self.q, self.tau, self.qd):
            root: Any = x
            while isinstance(root, np.ndarray):
                if root.flags.writeable:
                    break
                root = root.base
            if advice is not None and isinstance(root, mmap.mmap):
                root.madvise(advice)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        joints: Sequence[str] = (),
        *,
        units: Units | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        held: bool = False,
    ) -> Log:
        """Load a log from a CSV, NPZ or Parquet file.

        Columns are named "t", and "q", "qd", "tau" with the name of a joint ("q_joint3", "joint3.q",
        "tau joint3", ...) or with a number, in the order of the numbers. A single joint needs neither. Common
        other names are known: "time", "position", "velocity", "effort", "torque", and paths,
        "/joint_states/joint3/position", "field.position3". NPZ files contain arrays `[samples, joints]` of
        these names, or "joint_positions" and the like; Parquet files may contain lists.

        A CSV file is UTF-8 text with a header line, decimal points, and commas, semicolons or tabs between
        columns; convert other dialects with pandas. Lines that begin with # are comments.

        Units in brackets, "q_joint3 [deg]", or in a line below the header are applied. Times may end in their
        unit, "t_ms", "timestamp_ns", may be the two columns of a ROS time stamp, "header.stamp.sec" and
        "header.stamp.nanosec", or dates, which count from the first. If the file names the joints of numbered
        columns ("name_0", "field.name0", or an array "joint_names"), these names count. Velocities that are
        empty in all samples count as not measured.

        Args:
            path: of the file; its extension gives the format. Parquet needs pyarrow.
            joints: names in the robot's order, ``mech.joint_names``; columns are matched to them.
            units: units other than SI: {"t": "ms", "q": "deg", "qd": "deg/s", "tau": "mNm"}. Known units are
                s, ms, us, ns; rad, deg, m, mm; these per second, rpm; Nm, mNm, kNm, N, kN; and A, mA for
                motor currents, whose torque constants are identified, see `Log`. For a robot with revolute
                and prismatic joints, units by joint, {"q": {"elbow": "deg"}}; the others are SI.
            columns: columns to use if their names are not known: {"t": ["stamp"], "q": ["a1", "a2"]}, in the
                order of the joints; or arrays, {"q": ["measured"]}.
            held: whether forces are commands, see `Log`.

        Raises:
            FitError: if there is no such file, a format or unit is unknown, or a joint has no column.
            MissingExtraError: for Parquet, if pyarrow is not installed.
        """
        path, joints, columns = Path(path), tuple(joints), columns or {}
        units = normalize_units(units or {})
        unknown = [name for name in columns if name not in ("t", "q", "qd", "tau")]
        if unknown:
            raise FitError(
                f"columns are given for {unknown[0]!r}, which is not a quantity of a log.",
                "A log has times, positions, velocities and forces: t, q, qd, tau.",
                'Pass columns={"q": ["a1", "a2"]}, for example.',
            )
        table = apply_file_units(path, read_table(path), joints, columns, units)
        arrays = match_columns(path, table, joints, columns, units)
        arrays = {name: to_si(name, x, units.get(name), joints) for name, x in arrays.items()}
        absent = [name for name in units if name not in arrays]
        if absent:
            raise FitError(
                f"a unit is given for {absent[0]!r}, which the log does not have.",
                f"It has {', '.join(arrays)}.",
                "Remove this unit.",
            )
        return cls(
            **arrays,
            joints=joints,
            name=path.name,
            held=held,
            current=units.get("tau") in CURRENT_UNITS,
            units=dict(units),
            others=extra_columns(path, table, joints, units),
        )


def _check_values(log: str, name: str, x: Any) -> None:
    """Check that an array contains real numbers, is not masked, and requires no gradient."""
    kind = getattr(x.dtype, "kind", "c" if "complex" in str(x.dtype) else "f")
    if kind in "mMcSUV":
        if kind in "mM":
            advice = f"Pass ({name} - {name}[0]) / numpy.timedelta64(1, 's')."
        else:
            advice = f"Pass {name}.real." if kind == "c" else f"Pass {name}.astype(float)."
        raise FitError(
            f"{log}: {name} is {x.dtype}.",
            "A log contains real numbers, and times in seconds.",
            advice,
        )
    if getattr(x, "requires_grad", False):
        raise FitError(
            f"{log}: {name} requires a gradient.",
            "A fit does not differentiate with respect to its log.",
            f"Pass {name}.detach().",
        )
    if np.ma.is_masked(x):
        raise FitError(
            f"{log}: {name} is masked in {int(np.ma.count_masked(x))} places.",
            "The masked values would count as measured.",
            f"Pass {name}.filled(numpy.nan): a fit treats nan as missing.",
        )
