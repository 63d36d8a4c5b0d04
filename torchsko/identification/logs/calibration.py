"""Calibration of logs: order of columns, gear ratios, couplings, signs, zeros, gains and delays.

A calibration maps logged columns to joint coordinates. With the logged positions x and forces f,

    q = S C R P x - z,    qd = S C R P xd,    tau = S C^-T G R^-1 P f,

P reorders columns, R divides positions by gear ratios, C couples them, S changes signs, z are the zeros and G
the gains. Forces transform so that the power of coupled drives is preserved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchsko.errors import FitError, unknown_name

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism

Matrix = NDArray[np.float64]

QUANTITIES = ("q", "tau")
"""Quantities whose columns a calibration maps; velocities follow positions."""

TERM = r"\s*([+-]?)\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*\*\s*)?"
"""Sign and factor of a term of a coupling."""


@dataclass(frozen=True)
class AffineMap:
    """Matrices of a calibration.

    Attributes:
        position: from logged columns to positions, `[num_q, num_q]`.
        zero: subtracted from positions, `[num_q]` [rad or m].
        rate: from logged columns to velocities, `[num_dof, num_dof]`.
        force: from logged columns to forces, `[num_dof, num_dof]`.
    """

    position: Matrix
    zero: Matrix
    rate: Matrix
    force: Matrix


@dataclass(frozen=True)
class Calibration:
    """Corrections of the columns of a log.

    Keys are joint names, "joint", or one quantity of a joint, "q.joint" or "tau.joint". A key "q" or "tau"
    stands for all joints with one coordinate. Positions include velocities.

    Attributes:
        order: joints to which the columns belong, in the order of the columns, by quantity.
        ratio: gear ratio of a joint whose drive was logged: positions are divided by it, forces multiplied.
        couple: by joint, factors of the logged columns whose sum is the joint's position.
        gain: force per logged unit, such as a torque constant [N m/A].
        sign: -1 for columns that count in the other direction.
        zero: logged position, after all other corrections, at which the robot's position is 0 [rad or m].
        delay: time by which a quantity, "tau" or "qd", is logged too late [s].
    """

    order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ratio: Mapping[str, float] = field(default_factory=dict)
    couple: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gain: Mapping[str, float] = field(default_factory=dict)
    sign: Mapping[str, float] = field(default_factory=dict)
    zero: Mapping[str, float] = field(default_factory=dict)
    delay: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """True if anything is corrected."""
        return any(getattr(self, x.name) for x in fields(self))

    def affine_map(self, mech: Mechanism) -> AffineMap:
        """The matrices of the corrections, without delays.

        Args:
            mech: the robot, whose joints are the columns.

        Raises:
            FitError: an unknown joint, a joint with several coordinates, a zero factor, a singular coupling.
        """
        position, force = (self._matrix(mech, x) for x in QUANTITIES)
        zero = np.zeros(mech.num_q)
        for key, x in self.zero.items():
            for joint in joints_of(mech, key, ("q",))["q"]:
                zero[mech.q_slice(joint)] = x
        rate = np.eye(mech.num_dof)
        single = single_joints(mech)
        q, dof = ([at(x).start for x in single] for at in (mech.q_slice, mech.dof_slice))
        rate[np.ix_(dof, dof)] = position[np.ix_(q, q)]
        return AffineMap(position, zero, rate, force)

    def _matrix(self, mech: Mechanism, quantity: str) -> Matrix:
        """Matrix from logged columns of q or tau to those of the robot."""
        names = single_joints(mech)
        position = quantity == "q"
        at = mech.q_slice if position else mech.dof_slice
        chosen = np.eye(len(names))[:, self._columns(names, quantity)]
        factors = {name: self._factors(mech, name, quantity) for name in ("ratio", "gain", "sign")}
        coupling = self._coupling(mech, names, quantity)
        ratio = 1 / factors["ratio"] if position else factors["ratio"] * factors["gain"]
        square = factors["sign"][:, None] * (coupling @ (ratio[:, None] * chosen))
        whole = np.eye(mech.num_q if position else mech.num_dof)
        columns = [at(name).start for name in names]
        whole[np.ix_(columns, columns)] = square
        return whole

    def _columns(self, names: Sequence[str], quantity: str) -> list[int]:
        """For each column, the index of its joint; the inverse permutation selects columns."""
        order = list(self.order.get(quantity, names))
        if sorted(order) != sorted(names):
            raise FitError(
                f"the order of {quantity} is {', '.join(order)}.",
                "It must contain each joint with one coordinate once.",
                f"Pass an order of {', '.join(names)}.",
            )
        return [names.index(x) for x in order]

    def _factors(self, mech: Mechanism, name: str, quantity: str) -> Matrix:
        """Factors of the joints, 1 by default."""
        names = single_joints(mech)
        factors = np.ones(len(names))
        only = ("tau",) if name == "gain" else QUANTITIES
        for key, x in getattr(self, name).items():
            if not (np.isfinite(x) and x != 0):
                raise FitError(
                    f"{name} of {key} is {x}.", "It must be a finite factor.", "Pass a number."
                )
            for joint in joints_of(mech, key, only).get(quantity, ()):
                factors[names.index(joint)] = x
        return factors

    def _coupling(self, mech: Mechanism, names: Sequence[str], quantity: str) -> Matrix:
        """Matrix of the coupling; for forces its inverse transpose."""
        matrix = np.eye(len(names))
        if not self.couple:
            return matrix
        logged = logged_names(names, self.couple)
        for key, terms in self.couple.items():
            for joint in joints_of(mech, key, QUANTITIES).get(quantity, ()):
                row = np.zeros(len(names))
                for name, x in terms.items():
                    if name not in logged:
                        raise FitError(*unknown_name("logged joint", name, logged))
                    row[logged.index(name)] = x
                matrix[names.index(joint)] = row
        if np.linalg.matrix_rank(matrix) < len(names):
            raise FitError(
                f"the coupling of {', '.join(self.couple)} is singular.",
                "Different joint positions would have one logged position.",
                "Couple each joint to its drive: joint_6=motor_6-joint_5.",
            )
        return matrix if quantity == "q" else np.asarray(np.linalg.inv(matrix).T, np.float64)

    def options(self) -> str:
        """Options of the command line."""
        words = [f"--order {key}={','.join(x)}" for key, x in self.order.items()]
        words += [f'--couple "{key}={format_coupling(x)}"' for key, x in self.couple.items()]
        for name in ("ratio", "gain", "sign", "delay"):
            words += [f"--{name} {key}={x:.4g}" for key, x in getattr(self, name).items()]
        words += [f"--zero {key}={np.degrees(x):.6g}deg" for key, x in self.zero.items()]
        return " ".join(words)

    def code(self) -> str:
        """The call of `Log.calibrate` in Python."""
        given = {x.name: getattr(self, x.name) for x in fields(self) if getattr(self, x.name)}
        return f"log.calibrate(mech, {', '.join(f'{name}={x!r}' for name, x in given.items())})"


def check_column_counts(mech: Mechanism, log: str, columns: Mapping[str, int]) -> None:
    """Check that q, qd and tau of a log have a column for each coordinate or dof of the robot.

    Args:
        mech: the robot.
        log: name of the log.
        columns: number of columns by quantity.

    Raises:
        FitError: if the numbers differ.
    """
    sizes = {"q": mech.num_q, "qd": mech.num_dof, "tau": mech.num_dof}
    for name, count in columns.items():
        if count != sizes[name]:
            raise FitError(
                f"{log}: {name} has {count} columns, {mech.name!r} has {sizes[name]}.",
                f"The columns are the joints {', '.join(_column_names(mech, name)[:8])}, in this order.",
                "Remove additional columns, or lock joints that were not logged: mech.lock({...}).",
            )


def _column_names(mech: Mechanism, name: str) -> list[str]:
    """Joints, with the names of their columns of q, qd or tau if there are several."""
    names = []
    for joint, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        kind = mech.joints.kinds[k]
        columns = kind.coordinates if name == "q" else kind.rates
        names.append(joint if len(columns) == 1 else f"{joint} ({', '.join(columns)})")
    return names


def drive_matrix(before: Matrix | None, mech: Mechanism, calibration: Calibration) -> Matrix | None:
    """Matrix from velocities of drives to those of joints after a calibration; None without coupled drives.

    `before` is that before it. A coupling of positions and forces gives the joints of drives; a coupling of
    positions alone gives none.
    """
    couple = {key: x for key, x in calibration.couple.items() if key in single_joints(mech)}
    if before is None:
        if not couple:
            return None
        whole = Calibration(couple=couple, sign=calibration.sign).affine_map(mech).rate
    else:
        whole = replace(calibration, couple=couple).affine_map(mech).rate @ before
    acts = whole != 0
    alone = (acts.sum(1) == 1) & (acts[:, acts.sum(0) == 1].any(1))
    rows, columns = np.flatnonzero(~alone), np.flatnonzero(~acts[alone].any(0))
    if not len(rows):
        return None
    matrix = np.eye(len(whole))
    matrix[np.ix_(rows, rows)] = whole[np.ix_(rows, columns)]
    return matrix


def mapped(x: NDArray[np.floating[Any]], matrix: Matrix) -> Matrix:
    """Map samples by a matrix; a missing number affects only columns that depend on it."""
    values = np.asarray(x, np.float64)
    valid = np.isfinite(values)
    if valid.all():
        return values @ matrix.T
    mapped = np.where(valid, values, 0.0) @ matrix.T
    return np.where(~valid @ (matrix != 0).T, np.nan, mapped)


def shifted(t: Matrix, x: Matrix, delay: float) -> Matrix:
    """Columns at later times, linearly interpolated; nan after the end."""
    late = t + delay
    columns = [np.interp(late, t, column, np.nan, np.nan) for column in x.T]
    return np.stack(columns, -1)


def single_joints(mech: Mechanism) -> tuple[str, ...]:
    """Joints with one coordinate and one velocity, which a calibration can correct."""
    kinds = zip(mech.joint_names, mech.joint_types, strict=True)
    return tuple(x for x, kind in kinds if kind.num_q == kind.num_dof == 1)


def joints_of(mech: Mechanism, key: str, quantities: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Joints that a key of a calibration selects, by quantity.

    Args:
        mech: the robot.
        key: "joint", "q.joint", "tau.joint", "q" or "tau".
        quantities: that the correction can have.

    Raises:
        FitError: an unknown joint, or a quantity that the correction does not have.
    """
    names = single_joints(mech)
    if key in names:
        return dict.fromkeys(quantities, (key,))
    quantity, _, joint = key.partition(".")
    if quantity in quantities and (not joint or joint in names):
        return {quantity: (joint,) if joint else names}
    raise FitError(*unknown_name("joint", joint if quantity in QUANTITIES else key, names))


def logged_names(
    joints: Sequence[str], couple: Mapping[str, Mapping[str, float]]
) -> tuple[str, ...]:
    """Names of the columns of a log with couplings: a drive that is not a joint replaces its joint.

    Args:
        joints: names of the robot's joints.
        couple: see `Calibration`.
    """
    names = list(joints)
    used = {name for terms in couple.values() for name in terms}
    for key, terms in couple.items():
        joint = key if key in names else key.partition(".")[2]
        drive = next((x for x in terms if x not in joints and x not in names), None)
        if joint in names and joint not in used and drive is not None:
            names[names.index(joint)] = drive
    return tuple(names)


def parse_coupling(text: str, joints: Sequence[str] = ()) -> dict[str, float]:
    """Parse the right-hand side of a coupling, "motor_6-joint_5" or "0.5*a + 0.5*b".

    Args:
        text: a sum of names with factors.
        joints: known names, which may contain signs.

    Raises:
        FitError: if the text is not such a sum.

    Example:
        >>> from torchsko.identification.logs.calibration import parse_coupling
        >>> parse_coupling("0.5*motor_a - motor_b")
        {'motor_a': 0.5, 'motor_b': -1.0}
    """
    known = [re.escape(x) for x in sorted(joints, key=len, reverse=True)]
    name = "|".join([*known, r"[A-Za-z_][\w./]*"])
    terms, end = {}, 0
    for match in re.finditer(rf"{TERM}({name})\s*", text):
        if match.start() != end or (end > 0 and not match[1]):
            break
        terms[match[3]] = float(match[2] or 1) * (-1 if match[1] == "-" else 1)
        end = match.end()
    if not terms or end < len(text):
        raise FitError(
            f"the coupling {text!r} is not a sum of joints and drives.",
            "It gives the position of a joint from logged positions.",
            "Write joint_6=motor_6-joint_5, or wrist=0.5*left+0.5*right.",
        )
    return terms


def format_coupling(terms: Mapping[str, float]) -> str:
    """Text of a coupling that `parse_coupling` reads."""

    def each() -> Iterator[str]:
        for name, x in terms.items():
            factor = "" if abs(x) == 1 else f"{abs(x):.6g}*"
            yield f"{'-' if x < 0 else '+'}{factor}{name}"

    return "".join(each()).removeprefix("+")
