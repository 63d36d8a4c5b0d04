"""Logs of robots: time, positions and forces of joints, from arrays or files, matched by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError
from torchsko.identification.logs.columns import matched
from torchsko.identification.logs.extra_columns import of_others
from torchsko.identification.logs.table import read
from torchsko.identification.logs.timestamps import check_times
from torchsko.identification.logs.units import CURRENTS, Units, labelled, scaled, written

Array = NDArray[np.floating[Any]]

APART = 1.0
"""Time between logs that are joined, at least [s]: more than any filter bridges."""

FEW = 16
"""Samples below which a log says nothing."""


@dataclass(frozen=True, eq=False)
class Log:
    """What was measured while a robot moved.

    Arrays may be memory-mapped: they are read in pieces. Times may be uneven.

    Attributes:
        t: time, ascending, `[samples]` [s].
        q: positions, `[samples, num_q]` [rad or m]; angles may be kept within a turn, a fit counts them on.
        tau: joint forces, `[samples, num_dof]` [N m or N]: all that move the robot besides its weight, zero
            where nothing drives a joint. Forces of drives at joints that follow another are felt there: add
            them, times the ratio, to that one's (columns of theirs do not count, and a fit says so). What
            is known to push from outside, `f_ext`, is added as joints feel it, at = (q, 0 * qd, 0 * qd):
            ``ts.inverse_dynamics(mech, *at) - ts.inverse_dynamics(mech, *at, f_ext)``.
            Where the robot floats nobody may have measured them: nan there, or no columns for these dofs,
            leaves them out of a fit. In flight they are zero.
        qd: velocities, `[samples, num_dof]` [rad/s or m/s], or None where none were measured.
        joints: names of the columns, or () where they come in the robot's order.
        name: what messages call it.
        held: whether forces are commands, each held until the next sample; else they are sensors', and lie on
            a line between samples. It matters to a fit by shooting alone.
        current: whether `tau` holds motor currents [A], of torque constants that are not known: a fit finds
            these by the weights of the nominal robot. Where you know them, pass currents times constants.
        units: that were declared of the file, see `load`: numbers here are SI. A fit refuses those that a
            joint cannot have, degrees of one that slides.
        others: columns of a file that are of other joints, by quantity, "q" or "tau", and by joint, each
            `[samples]`. They do not count; of joints that follow another a fit says so, and what they hold.
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
                    f"{self.name}: {name} was given as {type(x).__name__}.",
                    "A log is arrays, which may be memory-mapped.",
                    f"Pass numpy.asarray({name}).",
                )
            if x is not None:
                _refuse_no_numbers(self.name, name, x)
        t, q, tau = self.t, self.q, self.tau
        if t.ndim != 1 or len(t) < FEW:
            raise FitError(
                f"{self.name}: the time has shape {list(t.shape)}.",
                f"A log is at least {FEW} samples in a row.",
                "Pass t as [samples], q, qd and tau as [samples, joints].",
            )
        for name, x in (("q", q), ("tau", tau), ("qd", self.qd)):
            if x is not None and (x.ndim != 2 or len(x) != len(t)):
                raise FitError(
                    f"{self.name}: {name} has shape {list(x.shape)}, t has {list(t.shape)}.",
                    "Each sample has a time and a number for each joint.",
                    f"Pass {name} as [{len(t)}, joints].",
                )

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.t)

    @property
    def duration(self) -> float:
        """From the first sample to the last [s]."""
        return float(self.t[-1] - self.t[0])

    def part(self, start: float, stop: float) -> Log:
        """The samples of a part of the time, as fractions of its length.

        Args:
            start: where it begins, 0 for the start of the log.
            stop: where it ends, not included; 1 for the end.

        Raises:
            FitError: when these are no fractions in order; or times, of less than the whole, do not ascend.
        """
        if not 0 <= start < stop <= 1:
            raise FitError(
                f"{self.name}: the part from {start} to {stop} was asked for.",
                "Parts are fractions of the log's time, 0 at its start and 1 at its end.",
                "Pass part(0, 0.6) for the first 60 percent.",
            )
        if (start, stop) == (0, 1):
            return self
        check_times(self.name, self.t)
        first, last = float(self.t[0]), float(self.t[-1])
        edges = [first + x * (last - first) for x in (start, stop)]
        a, b = np.searchsorted(self.t, edges)
        b = len(self) if stop >= 1 else int(b)
        return self.pick(slice(int(a), b))

    def pick(self, rows: slice) -> Log:
        """Some of the samples; views of the same arrays."""
        qd = None if self.qd is None else self.qd[rows]
        others = {k: {j: x[rows] for j, x in each.items()} for k, each in self.others.items()}
        return replace(
            self, t=self.t[rows], q=self.q[rows], tau=self.tau[rows], qd=qd, others=others
        )

    @classmethod
    def joined(cls, logs: Sequence[Log]) -> Log:
        """Several logs of one robot as one, for one fit: each is filtered by itself.

        Times go on from log to log, with gaps between them across which nothing is filtered.

        Args:
            logs: of the same joints, all with velocities or none; at about one rate.

        Raises:
            FitError: where there is none, or they differ in what they hold; names it.
        """
        for name in ("joints", "held", "current", "qd", "q", "tau"):
            kinds = {log._kind(name) for log in logs}
            if len(kinds) != 1:
                raise FitError(
                    f"{len(logs)} logs were to be joined, which differ in {name}: "
                    f"{', '.join(sorted(map(str, kinds))) or 'there is none'}.",
                    "Logs of one fit are of one robot, and hold the same of it.",
                    "Fit the others by themselves; dataclasses.replace(log, qd=None) leaves velocities out.",
                )
        gap = max(APART, max(log.duration for log in logs) / 20)
        starts = np.cumsum([0.0, *(log.duration + gap for log in logs[:-1])])
        t = [
            np.asarray(log.t, np.float64) - float(log.t[0]) + x
            for log, x in zip(logs, starts, strict=True)
        ]
        q, tau = (np.concatenate([getattr(log, name) for log in logs]) for name in ("q", "tau"))
        rates = [log.qd for log in logs if log.qd is not None]
        others = {
            k: {
                j: np.concatenate([log.others[k][j] for log in logs])
                for j in each
                if all(j in log.others.get(k, {}) for log in logs)
            }
            for k, each in logs[0].others.items()
        }
        return replace(
            logs[0], t=np.concatenate(t), q=q, tau=tau, qd=np.concatenate(rates) if rates else None,
            name=", ".join(dict.fromkeys(log.name for log in logs)), others=others,
        )  # fmt: skip

    def _kind(self, name: str) -> Any:
        """What logs that are joined have in common: of arrays their columns."""
        x = getattr(self, name)
        return x.shape[1] if hasattr(x, "ndim") else x

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
        """A log from a file: CSV, NPZ or Parquet.

        In a table, columns are called "t", and "q", "qd", "tau" with the name of a joint ("q_joint3",
        "joint3.q", "tau joint3", ...), or with a number (in the order of the numbers); of one joint alone
        with neither. Names that people use for these are known: "time", "position", "velocity", "effort",
        "torque", and parts of a path, "/joint_states/joint3/position", "field.position3". Times may say their
        unit, "t_ms", "timestamp_ns"; those of ROS are two columns, "header.stamp.sec" and
        "header.stamp.nanosec"; moments of a calendar count from the first. Where columns beside numbered
        ones name joints ("name_0", "field.name0", or an array "joint_names"), numbers are these joints'. A
        unit in brackets, "q_joint3 [deg]", or in a line below the names, counts. In an NPZ, and lists in a
        Parquet file, they are arrays of these names, or "joint_positions", `[samples, joints]`. Velocities
        that are empty in all samples were not measured.

        Args:
            path: of the file; the ending says which format. Parquet needs pyarrow.
            joints: names in the robot's order, ``mech.joint_names`` say: columns are matched to them.
            units: of what is not SI: {"t": "ms", "q": "deg", "qd": "deg/s", "tau": "mNm"}, say. Units
                known are s, ms, us, ns; rad, deg, m, mm; the same per second, rpm; Nm, mNm, kNm, N, kN; and
                A, mA of motor currents, whose torque constants are found, see `Log`. Of a robot that
                turns and slides for each joint by name, {"q": {"elbow": "deg"}}; others are SI.
            columns: which columns, where their names say nothing: {"t": ["stamp"], "q": ["a1", "a2"]}; or
                arrays `[samples, joints]`, {"q": ["measured"]}. In the order of the joints, but of an array
                whose joints the file names.
            held: whether forces are commands, see `Log`.

        Raises:
            FitError: no such file, a format or unit that is not known, a unit of another quantity, a joint
                without a column; names it.
            MissingExtraError: for Parquet, when pyarrow is not installed.
        """
        path = Path(path)
        units = written(units or {})
        wrong = [name for name in columns or {} if name not in ("t", "q", "qd", "tau")]
        if wrong:
            raise FitError(
                f"columns are given for {wrong[0]!r}, which is no quantity of a log.",
                "A log has times, positions, velocities and forces: t, q, qd, tau.",
                'Pass columns={"q": ["a1", "a2"]}, say.',
            )
        table = labelled(path, read(path), tuple(joints), columns or {}, units)
        found = matched(path, table, tuple(joints), columns or {}, units)
        parts = {name: scaled(name, x, units.get(name), tuple(joints)) for name, x in found.items()}
        refuse_units(units, parts)
        others = of_others(path, table, tuple(joints), units)
        log = cls(parts["t"], parts["q"], parts["tau"], parts.get("qd"), tuple(joints), path.name)
        current = units.get("tau") in CURRENTS
        return replace(log, held=held, current=current, units=dict(units), others=others)


def _refuse_no_numbers(log: str, name: str, x: Any) -> None:
    """Refuse arrays of what is no real number, or masked, and tensors that a gradient is asked of."""
    kind = getattr(x.dtype, "kind", "c" if "complex" in str(x.dtype) else "f")
    if kind in "mM":
        advice = f"Pass ({name} - {name}[0]) / numpy.timedelta64(1, 's')."
    elif kind in "cSUV":
        advice = f"Pass {name}.real." if kind == "c" else f"Pass {name}.astype(float)."
    elif getattr(x, "requires_grad", False):
        raise FitError(
            f"{log}: {name} requires a gradient.",
            "A fit reads a log, and gives no gradient to it.",
            f"Pass {name}.detach().",
        )
    elif np.ma.is_masked(x):
        raise FitError(
            f"{log}: {name} is masked in {int(np.ma.count_masked(x))} places.",
            "What stands below a mask would count as measured.",
            f"Pass {name}.filled(numpy.nan): what is missing is found.",
        )
    else:
        return
    raise FitError(
        f"{log}: {name} is {x.dtype}.",
        "A log is real numbers, times in seconds.",
        f"{advice}",
    )


def refuse_units(units: Units, parts: Mapping[str, Array]) -> None:
    """Refuse a unit of what is not there."""
    unknown = [name for name in units if name not in parts]
    if unknown:
        raise FitError(
            f"a unit is given for {unknown[0]!r}, which the log does not have.",
            f"It has {', '.join(parts)}.",
            "Name one of these.",
        )
