"""Command-line options that control how logs are read and corrected."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchsko.errors import FitError
from torchsko.identification.logs.calibration import (
    Calibration,
    logged_names,
    parse_coupling,
)

if TYPE_CHECKING:
    from torchsko.identification.logs.log import Log
    from torchsko.mechanism.mechanism import Mechanism

Couplings = dict[str, dict[str, float]]
"""By joint, factors of the columns or joints whose sum is its position."""

CORRECTIONS = {
    "ratio": ("elbow=100", "gear ratio of a joint whose drive was logged"),
    "gain": ("elbow=0.12", "force per logged unit, such as a torque constant [N m/A]"),
    "sign": (
        "tau.elbow=-1",
        "-1 for joints, or for the columns of drives, that count in the other direction; q, tau or both",
    ),
    "zero": (
        "elbow=90deg",
        "logged position at which the robot's joint, or a drive, is at 0 [rad or m, or deg]",
    ),
    "delay": ("tau=0.01", "time by which tau or qd is logged too late [s]"),
}
"""Options with one number for each joint: an example and the help."""


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `torchsko.identification.Log.load` and `Log.calibrate` to a command."""
    add = parser.add_argument_group("logs and their corrections").add_argument
    add("--held", action="store_true", help="forces are commands that are held between samples")

    def repeated(name: str, example: str, text: str) -> None:
        add(name, action="append", default=[], metavar=example, help=f"{text}; may be repeated")

    repeated(
        "--unit",
        "q=deg",
        "unit of t, q, qd or tau if it is not SI; q.slide=mm for joint slide alone; tau=A or tau.slide=A for "
        "motor currents, whose torque constants are then estimated",
    )
    repeated("--column", "q=a,b,c", "columns of t, q, qd or tau in the order of the joints")
    add(
        "--columns",
        metavar="t,q*6,qd*6,tau*6",
        help="columns of a file without a header, in order; - for a column that is not used",
    )
    add("--rate", type=float, metavar="100", help="sampling rate of files without times [Hz]")
    add("--even-times", action="store_true", help="replace receive times in bursts by even times")
    repeated(
        "--order",
        "tau=j2,j1",
        "joints to which the columns belong, or drives, in the order of the columns",
    )
    repeated(
        "--couple",
        "joint_6=motor_6-joint_5",
        "position of a joint as a sum of logged columns. Corrections of drives act before it, those of "
        "joints after it. A coupling between joints acts on the couplings of drives, and a second one of a "
        "joint on the first",
    )
    for name, (example, text) in CORRECTIONS.items():
        repeated(f"--{name}", example, text)


def load_log(mech: Mechanism, paths: Sequence[str], given: argparse.Namespace) -> Log:
    """Load and correct a log by the command's options.

    Args:
        mech: the robot.
        paths: files of one log or of several logs.
        given: result of a parser with the options of `add_log_options`.

    Raises:
        TorchskoError: when a file or an option is invalid.
    """
    from torchsko.identification.logs.log import Log

    stages = calibrations_of(mech, given)
    of_drives, _ = _couplings(given.couple, mech.joint_names)
    log = Log.load(
        paths,
        mech.joint_names,
        units=parse_units(given.unit, logged_names(mech.joint_names, of_drives)),
        columns=given.columns or parse_columns(given.column),
        held=given.held,
        couple=of_drives,
        rate=given.rate,
    )
    if given.even_times:
        log = log.with_even_times()
    for stage in stages:
        log = log.calibrated(mech, stage)
    return log


def calibrations_of(mech: Mechanism, given: argparse.Namespace) -> list[Calibration]:
    """Parse the corrections of a log, each of which acts on the result of the one before it.

    If couplings name drives, these are the corrections of logged columns, the couplings of drives, and the
    corrections of joints. Otherwise the list has at most one entry.

    Args:
        mech: the robot.
        given: result of a parser with the options of `add_log_options`.

    Raises:
        FitError: names the malformed option.
    """
    of_drives, of_joints = _couplings(given.couple, mech.joint_names)
    values = {name: parse_pairs(name, getattr(given, name), parse_number) for name in CORRECTIONS}
    values["order"] = parse_pairs("order", given.order, lambda x: tuple(x.split(",")))
    if not of_drives:
        return [x for x in [Calibration(couple=of_joints, **values)] if x]
    logged = logged_names(mech.joint_names, of_drives)
    joint_of = {x: j for x, j in zip(logged, mech.joint_names, strict=True) if x != j}
    columns: dict[str, dict[str, Any]] = {}
    for option in ("ratio", "gain", "sign", "zero"):
        columns[option], pairs, values[option] = {}, values[option], {}
        for key, x in pairs.items():
            joint = _with_joint(key, joint_of)
            is_column = joint != key or option in ("ratio", "gain")
            target = (columns if is_column else values)[option]
            if joint in target:
                raise FitError(
                    f"--{option} has two values for the column of {joint}.",
                    "A drive and its joint have one column.",
                    "Name one of them.",
                )
            target[joint] = x
    orders, values["order"] = values["order"], {}
    columns["order"] = {}
    for quantity, names in orders.items():
        is_column = not joint_of.keys().isdisjoint(names)
        (columns if is_column else values)["order"][quantity] = tuple(
            joint_of.get(x, x) for x in names
        )
    stages = (
        Calibration(**columns),
        Calibration(couple=of_drives),
        Calibration(couple=of_joints, **values),
    )
    return [x for x in stages if x]


def _with_joint(key: str, joint_of: Mapping[str, str]) -> str:
    """The key "drive" or "quantity.drive" of a correction, with the joint in place of its drive."""
    quantity, dot, drive = key.partition(".")
    if key in joint_of:
        return joint_of[key]
    return f"{quantity}{dot}{joint_of[drive]}" if drive in joint_of else key


def _couplings(texts: Sequence[str], joints: Sequence[str]) -> tuple[Couplings, Couplings]:
    """Couplings that name drives, and those between joints."""
    groups: tuple[list[str], list[str]] = [], []
    for text in texts:
        _, _, terms = text.partition("=")
        names = parse_coupling(terms, joints) if terms else {}
        groups[names.keys() <= {*joints}].append(text)
    return parse_couplings(groups[0], joints), parse_couplings(groups[1], joints)


def parse_couplings(texts: Sequence[str], joints: Sequence[str]) -> Couplings:
    """Parse couplings of joints. A second coupling of a joint acts on the results of the couplings before it.

    Args:
        texts: of the options, in their order.
        joints: names of the robot's joints.
    """
    stages: list[list[str]] = [[]]
    for text in texts:
        if any(text.partition("=")[0] == x.partition("=")[0] for x in stages[-1]):
            stages.append([])
        stages[-1].append(text)
    couple: Couplings = {}
    for stage in stages:
        each = parse_pairs("couple", stage, lambda x: parse_coupling(x, joints))
        couple = {**couple, **{joint: _composed(terms, couple) for joint, terms in each.items()}}
    return couple


def _composed(
    terms: Mapping[str, float], before: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Factors of logged columns of a sum of joints that are sums of logged columns themselves."""
    total: dict[str, float] = {}
    for name, factor in terms.items():
        for column, x in before.get(name, {name: 1.0}).items():
            total[column] = total.get(column, 0.0) + factor * x
    return total


def parse_pairs(option: str, texts: Sequence[str], parse: Callable[[str], Any]) -> dict[str, Any]:
    """Parse options of the form ``name=value``.

    Args:
        option: name of the option, for messages.
        texts: the values.
        parse: converts the part after the sign.

    Raises:
        FitError: if a value is malformed or repeats a name.
    """
    values: dict[str, Any] = {}
    example = CORRECTIONS.get(option, ("tau=j2,j1" if option == "order" else "a=b-c",))[0]
    for text in texts:
        name, _, value = text.partition("=")
        try:
            parsed = parse(value) if name and value and name not in values else None
        except FitError:
            raise
        except ValueError:
            parsed = None
        if parsed is None:
            raise FitError(
                f"--{option} {text} is malformed or repeats a name.",
                "It gives one value for one joint or quantity.",
                f"Type --{option} {example}.",
            )
        values[name] = parsed
    return values


def parse_number(text: str) -> float:
    """Parse a number, or an angle in degrees such as 90deg, in rad."""
    angle = text.removesuffix("deg")
    return float(angle) if angle == text else math.radians(float(angle))


def parse_units(
    texts: Sequence[str], joints: Sequence[str] = ()
) -> dict[str, str | dict[str, str]]:
    """Parse units of quantities and joints: ``q=deg``, ``q.slide=mm``. The second replaces the first.

    Args:
        texts: of the options.
        joints: names of the columns.
    """
    whole: dict[str, str] = {}
    by_joint: dict[str, dict[str, str]] = {}
    for text in texts:
        left, _, unit = text.rpartition("=")
        name, _, joint = left.partition(".")
        if not name or not unit:
            raise FitError(
                f"--unit {text} is not a quantity and a unit.",
                "A unit belongs to a quantity of the log.",
                "Type --unit q=deg, or --unit q.slide=mm for one joint.",
            )
        if joint in by_joint.get(name, {}) if joint else name in whole:
            raise FitError(
                f"--unit {text} repeats the unit of {left}.",
                "A quantity has one unit, and a joint may have another one.",
                "Remove one of them.",
            )
        if joint:
            by_joint.setdefault(name, {})[joint] = unit
        else:
            whole[name] = unit
    units = {
        name: {**(dict.fromkeys(joints, whole[name]) if name in whole else {}), **each}
        for name, each in by_joint.items()
    }
    return {**whole, **units}


def parse_columns(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse columns of quantities: ``q=a,b,c``."""
    columns: dict[str, list[str]] = {}
    for text in texts:
        name, _, names = text.partition("=")
        if not name or not names or name in columns:
            raise FitError(
                f"--column {text} has no column names, or repeats a quantity.",
                "All columns of a quantity are named at once, in the order of the joints.",
                "Type --column q=a,b,c.",
            )
        columns[name] = names.split(",")
    return columns
