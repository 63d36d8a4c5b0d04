"""Logs of robots: times, joint positions and forces, from arrays or files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.calibration import (
    Calibration,
    check_column_counts,
    drive_matrix,
    joints_of,
    logged_names,
    mapped,
    shifted,
)
from torchsko.identification.logs.log_files import load_fields
from torchsko.identification.logs.timestamps import check_times
from torchsko.identification.logs.units import (
    QUANTITY_UNITS,
    Units,
    currents_of,
    normalize_units,
    to_si,
)

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism

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
        current: whether `tau` contains motor currents [A] with unknown torque constants; or the names of the
            joints whose columns do. A fit identifies the constants by the masses of the nominal robot. If you
            know them, pass `calibrate(mech, gain={"elbow": 0.12})`.
        units: declared units of the file, see `load`; the arrays are in SI units. Degrees of a prismatic
            joint are an error.
        others: columns of a file that belong to other joints, by quantity, "q" or "tau", and by joint, each
            `[samples]`. A fit only checks those of coupled joints.
        drives: matrix from velocities of drives to those of joints, `[num_dof, num_dof]`, if a coupling gave
            positions of joints as sums of those of drives; see `calibrate`. Friction then acts on drives.
        joined_at: times at which joined logs begin, without the first [s].
    """

    t: Array
    q: Array
    tau: Array
    qd: Array | None = None
    joints: tuple[str, ...] = ()
    name: str = "log"
    held: bool = False
    current: bool | tuple[str, ...] = False
    units: Units = field(default_factory=dict)
    others: Mapping[str, Mapping[str, Array]] = field(default_factory=dict, repr=False)
    drives: NDArray[np.float64] | None = None
    joined_at: tuple[float, ...] = ()

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

    def current_joints(self, joints: Sequence[str]) -> tuple[str, ...]:
        """Names of the joints whose forces are motor currents.

        Args:
            joints: names in the robot's order.
        """
        if isinstance(self.current, bool):
            return tuple(joints) if self.current else ()
        return self.current

    def calibrate(
        self,
        mech: Mechanism,
        *,
        units: Units | None = None,
        order: Mapping[str, Sequence[str]] | None = None,
        ratio: Mapping[str, float] | None = None,
        couple: Mapping[str, Mapping[str, float]] | None = None,
        gain: Mapping[str, float] | None = None,
        sign: Mapping[str, float] | None = None,
        zero: Mapping[str, float] | None = None,
        delay: Mapping[str, float] | None = None,
    ) -> Log:
        """Correct the columns of a log, in the order of the arguments.

        Keys are joint names, or one quantity of a joint, "q.elbow" or "tau.elbow". A key "q" or "tau" stands
        for all joints with one coordinate. Velocities follow positions. See
        `torchsko.identification.logs.calibration` for the formulas.

        Args:
            mech: the robot, whose joints are the columns.
            units: units other than SI, as for `load`.
            order: joints to which the columns belong, in the order of the columns: {"tau": ["j2", "j1"]}.
            ratio: gear ratios of joints whose drives were logged. Positions are divided by the ratio, forces
                are multiplied by it.
            couple: by joint, factors of logged columns whose sum is the joint's position,
                {"joint_6": {"joint_6": 1, "joint_5": -1}}. Forces transform with preserved power, and
                friction of a fit acts on the drives. A key "q.joint_6" couples positions alone.
            gain: force per logged unit, such as a torque constant [N m/A]; the column is then a force.
            sign: -1 for columns that count in the other direction.
            zero: logged position, after all other corrections, at which the robot's position is 0 [rad, m].
            delay: time by which "tau" or "qd" is logged too late [s].

        Raises:
            FitError: an unknown joint, a joint with several coordinates, or an invalid factor.

        Example:
            >>> import numpy as np, torchsko as ts
            >>> mech, t, q = ts.load(ts.robots.panda), np.arange(100) / 100, np.zeros((100, 7))
            >>> log = ts.identification.Log(t, q, q).calibrate(mech, zero={mech.joint_names[1]: np.pi / 2})
            >>> float(log.q[0, 1].round(4))
            -1.5708
        """
        units = normalize_units(units or {})
        scaled = {
            name: to_si(name, x, unit, mech.joint_names)
            for name, unit in units.items()
            if (x := getattr(self, name)) is not None
        }
        current = currents_of(units) if "tau" in units else self.current
        log = replace(self, **scaled, current=current, units={**self.units, **units})
        calibration = Calibration(
            order or {}, ratio or {}, couple or {}, gain or {}, sign or {}, zero or {}, delay or {}
        )
        return log.calibrated(mech, calibration)

    def calibrated(self, mech: Mechanism, calibration: Calibration) -> Log:
        """Correct the columns of a log; see `calibrate`."""
        affine = calibration.affine_map(mech)
        self.check_columns(mech)
        times = np.asarray(self.t, np.float64)
        qd = None if self.qd is None else mapped(self.qd, affine.rate)
        tau = mapped(self.tau, affine.force)
        for key, delay in calibration.delay.items():
            if key not in ("tau", "qd"):
                raise FitError(
                    f"a delay is given for {key!r}.",
                    "Forces or velocities may be late relative to positions.",
                    "Pass delay={'tau': 0.01}, or type --delay tau=0.01.",
                )
            if key == "tau":
                tau = shifted(times, tau, delay)
            elif qd is not None:
                qd = shifted(times, qd, delay)
        known = {x for key in calibration.gain for x in joints_of(mech, key, ("tau",))["tau"]}
        current = tuple(x for x in self.current_joints(mech.joint_names) if x not in known)
        q = mapped(self.q, affine.position) - affine.zero
        whole = set(current) == set(mech.joint_names)
        drives = drive_matrix(self.drives, mech, calibration)
        return replace(self, q=q, qd=qd, tau=tau, current=whole or current or False, drives=drives)

    def check_columns(self, mech: Mechanism) -> None:
        """Check that q, qd and tau have a column for each coordinate or dof of the robot.

        Raises:
            FitError: if the numbers differ.
        """
        arrays = {"q": self.q, "qd": self.qd, "tau": self.tau}
        columns = {k: x.shape[1] for k, x in arrays.items() if x is not None}
        check_column_counts(mech, self.name, columns)

    def with_even_times(self) -> Log:
        """The log with even times between the first and the last, for receive times that come in bursts."""
        t = np.asarray(self.t, np.float64)
        return replace(self, t=np.linspace(t[0], t[-1], len(t)))

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
        for name in ("joints", "held", "current", "drives", "qd", "q", "tau"):
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
            joined_at=tuple(float(x) for x in starts[1:]),
        )

    def _layout(self, name: str) -> Any:
        """Value of an attribute, of an array its number of columns."""
        x = getattr(self, name)
        if x is None or not hasattr(x, "ndim"):
            return x
        return tuple(map(tuple, x.tolist())) if name == "drives" else x.shape[1]

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
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        joints: Sequence[str] = (),
        *,
        units: Units | None = None,
        columns: Mapping[str, Sequence[str]] | str | None = None,
        held: bool = False,
        couple: Mapping[str, Mapping[str, float]] | None = None,
        rate: float | None = None,
    ) -> Log:
        """Load a log from a CSV or NPZ file, or a ROS 2 bag; several files are logs of one fit.

        Columns are named "t", and "q", "qd", "tau" with the name of a joint ("q_joint3", "joint3.q",
        "tau joint3", ...) or with a number, in the order of the numbers. Capitals and separators do not
        matter, nor does a common prefix of all joints, "fer_joint3". A single joint needs neither.
        Common other names are known: "time", "position", "velocity", "effort", "torque", and paths,
        "/joint_states/joint3/position", "field.position3". NPZ files contain arrays `[samples, joints]` of
        these names, or "joint_positions" and the like, with joints in the robot's order.

        A CSV file is UTF-8 text with a header line, decimal points, and commas, semicolons or tabs between
        columns. Lines that begin with # are comments, and empty cells are missing samples. Of a ROS 2 bag the
        messages sensor_msgs/msg/JointState are read. Read other files with pandas, and pass arrays to `Log`.

        Units in brackets, "q_joint3 [deg]", are applied. Empty columns of velocities count as not measured.
        Several logs are concatenated; see `concatenate`.

        Args:
            path: of the file, or several; the extension gives the format. Bags need rosbags.
            joints: names in the robot's order, ``mech.joint_names``; columns are matched to them.
            units: units other than SI: {"t": "ms", "q": "deg", "qd": "deg/s", "tau": "mNm"}. Known units are
                s, ms, us, ns; rad, deg, m, mm; these per second, rpm; Nm, mNm, Nmm, Ncm, kNm, kgfcm, lbft, N,
                kN; and A, mA for motor currents, whose torque constants are identified, see `Log`. Units by
                joint are {"q": {"elbow": "deg"}}; the others are SI.
            columns: columns to use if their names are not known: {"t": ["stamp"], "q": ["a1", "a2"]}, in the
                order of the joints, or arrays, {"q": ["measured"]}. The name "-" is a column that was not
                measured. A text lists the columns of a CSV file without a header: "t,q*6,qd*6,tau*6".
            held: whether forces are commands, see `Log`.
            couple: see `calibrate`. Logged names that are not joints are read in place of the coupled joint;
                `calibrate` then applies the coupling.
            rate: sampling rate of files without times [Hz].

        Raises:
            FitError: if there is no such file, a format or unit is unknown, or a joint has no column.
            MissingExtraError: for bags, if their reader is not installed.
        """
        paths = [path] if isinstance(path, (str, os.PathLike)) else path
        names = logged_names(tuple(joints), couple or {})
        units = normalize_units(units or {})
        chosen = {} if columns is None else columns
        unknown = [] if isinstance(chosen, str) else [x for x in chosen if x not in QUANTITY_UNITS]
        if unknown:
            raise FitError(
                f"columns are given for {unknown[0]!r}, which is not a quantity of a log.",
                "A log has times, positions, velocities and forces: t, q, qd, tau.",
                'Pass columns={"q": ["a1", "a2"]}, for example.',
            )
        if rate is not None and not (0 < rate < float("inf") and "t" not in units):
            raise FitError(
                f"the sampling rate is {rate:g} Hz"
                + (", and t has a unit." if "t" in units else "."),
                "It gives the times of a file without times, in seconds.",
                "Pass a positive rate, and no unit of t.",
            )
        logs = [
            cls(
                **fields,
                joints=names,
                held=held,
                current=currents_of(units),
                units=dict(units),
            )
            for fields in (load_fields(Path(x), names, units, chosen, rate) for x in paths)
        ]
        return logs[0] if len(logs) == 1 else cls.concatenate(logs)


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
