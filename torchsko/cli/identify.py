"""``python -m torchsko identify robot.urdf log.csv --out DIR``: a log goes in, a robot comes out."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from torchsko.cli.robot_options import add_robot_options, load_robot, source_of
from torchsko.errors import FitError, MissingExtraError
from torchsko.utils.atomic_write import remove_stale_files, temporary_prefix
from torchsko.utils.optional_dependencies import require

if TYPE_CHECKING:
    from torchsko.identification.results.result import Fit
    from torchsko.mechanism.mechanism import Mechanism

METHODS = ("physical", "ols", "wls", "irls", "iv", "shooting")
"""Known, without the imports that they need."""

CHECKPOINT = "unfinished.pt"
"""File in the output folder that a run that was stopped goes on from."""


def add_identify(commands: Any) -> None:
    """Add the command to the parsers of ``python -m torchsko``."""
    parser = commands.add_parser(
        "identify",
        help="a physically consistent robot, with error bars, from a log of its motion",
        description="Fits inertias, friction and offsets to a log. Filter, friction and prior are "
        "chosen by the data. Ctrl-C keeps the best so far; a run that was stopped or killed goes on when "
        "run again.",
    )
    parser.add_argument("file", help="the nominal robot: URDF, MJCF or SDF")
    parser.add_argument("log", help="CSV, NPZ or Parquet, with t, q, tau, and qd where measured")
    parser.add_argument(
        "--out", required=True, type=Path, help="folder for the robot and the report"
    )
    parser.add_argument("--method", default="physical", help=", ".join(METHODS))
    parser.add_argument("--cutoff", type=float, help="of the filter [Hz]")
    parser.add_argument("--window", type=float, help='of the method "shooting" [s]')
    parser.add_argument(
        "--held", action="store_true", help="forces are commands, held from a sample to the next"
    )
    parser.add_argument("--prior", type=float, help="weight of the nominal robot")
    parser.add_argument(
        "--unit",
        action="append",
        default=[],
        metavar="q=deg",
        help="of t, q, qd or tau, if not SI; q.slide=mm: of one joint; tau=A: motor currents, whose torque "
        "constants are found",
    )
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="q=a,b,c",
        help="columns of t, q, qd or tau, in the order of the joints, where their names say nothing",
    )
    parser.add_argument(
        "--learn",
        action="append",
        default=[],
        metavar="elbow=Viscous,RotorInertia",
        help="all forces of a joint besides the rigid robot's, in place of those the data choose; of every "
        'joint without a name, none of one "elbow=none". Shapes go in parentheses, in quotes: '
        '"Dahl(0.01)". Terms are the classes of torchsko.identification.friction; an unknown name lists them',
    )
    parser.add_argument(
        "--use", default="0:1", metavar="0:0.6", help="part of the log's time that is used"
    )
    add_robot_options(parser)


def run_identify(given: argparse.Namespace) -> None:
    """Fit, and write robot.urdf (or .xml), fit.pt, report.txt and report.html.

    Raises:
        TorchskoError: on what is wrong with the robot, the log or an option.
    """
    from torchsko.identification.fit import identify
    from torchsko.identification.logs.log import Log
    from torchsko.identification.term_syntax import learn_of

    start = time.perf_counter()
    units, columns = _units(given.unit), _columns(given.column)
    part = _part(given.use)
    mech = load_robot(given.file, given)  # the report says what the model leaves out
    learn = learn_of(mech, given.learn)
    robot = source_of(given.file, given)
    log = Log.load(given.log, mech.joint_names, units=units, columns=columns, held=given.held)
    log = log.part(*part)
    _try_to_write(mech, given.out, robot, given.mesh_path)
    checkpoint, bar = given.out / CHECKPOINT, Bar()
    written: list[str] = []
    try:
        found = identify(
            mech, log, learn=learn, method=given.method, cutoff=given.cutoff, prior=given.prior,
            window=given.window, checkpoint=checkpoint, tell=bar,
            done=lambda x: written.extend(write(x, given.out, robot, given.mesh_path)),
        )  # fmt: skip
    except KeyboardInterrupt:
        kept = (
            "what was done is kept: the same command goes on"
            if checkpoint.is_file()
            else "too early"
        )
        print(f"\n{given.out}: {kept}", file=sys.stderr)
        raise
    finally:
        bar.close()
    print(found)
    seconds = time.perf_counter() - start
    print(f"\n{given.out}: {', '.join(written)}, in {seconds:.1f} s")
    if checkpoint.is_file():
        print("interrupted: the same command goes on with choosing")


def write(
    found: Fit, folder: Path, robot: str, mesh_path: Sequence[str] | None = None
) -> list[str]:
    """Write a fit's files into a folder, each replaced at once; their names.

    Args:
        found: the fit.
        folder: that is there.
        robot: file of the nominal robot, or its text.
        mesh_path: folders that it may reach besides its own.
    """
    from torchsko.identification.results.serialization import robot_file

    found.save(folder, like=robot, mesh_path=mesh_path)
    names = ["fit.pt", robot_file(robot), "report.txt"]
    with TemporaryDirectory(dir=folder, prefix=temporary_prefix()) as part:
        (Path(part) / "report.txt").write_text(f"{found}\n", "utf-8")
        try:
            from torchsko.identification.results.html_report import write_report

            write_report(found, Path(part) / "report.html")
            names.append("report.html")
        except MissingExtraError as error:
            print(f"no report.html: {str(error).splitlines()[0]}", file=sys.stderr)
        for path in Path(part).iterdir():
            os.replace(path, folder / path.name)
    return names


def _try_to_write(
    mech: Mechanism, folder: Path, robot: str, mesh_path: Sequence[str] | None
) -> None:
    """Find out before the fit whether its robot can be written into the folder, and read there.

    The folder is made, and cleared of what killed runs were writing.
    """
    from torchsko.identification.results.serialization import save_robot

    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale_files(folder)
        with TemporaryDirectory(dir=folder, prefix=temporary_prefix()) as tried:
            save_robot(mech, Path(tried), robot, mesh_path)
    except OSError as error:
        raise FitError(
            f"{folder}: cannot be written: {error.strerror or error}.",
            "The robot and its report go into this folder.",
            "Pass --out with a folder of yours, or one that is not there yet.",
        ) from error


def _units(texts: Sequence[str]) -> dict[str, str | dict[str, str]]:
    """Units of quantities, and of joints: ``q=deg``, ``q.slide=mm``."""
    whole: dict[str, str] = {}
    each: dict[str, dict[str, str]] = {}
    for text in texts:
        left, _, unit = text.rpartition("=")
        name, _, joint = left.partition(".")
        if not name or not unit:
            raise FitError(
                f"{text!r} says no unit.",
                "A unit belongs to a quantity of the log.",
                "Type --unit q=deg, say, or --unit q.slide=mm of one joint.",
            )
        if name in whole or (name in each and (not joint or joint in each[name])):
            raise FitError(
                f"--unit {text} says a unit of {name} once more.",
                "A quantity has one unit, or one for each joint.",
                "Leave one of them out.",
            )
        if joint:
            each.setdefault(name, {})[joint] = unit
        else:
            whole[name] = unit
    return {**whole, **each}


def _columns(texts: Sequence[str]) -> dict[str, list[str]]:
    """Columns of quantities: ``q=a,b,c``."""
    out: dict[str, list[str]] = {}
    for text in texts:
        name, _, named = text.partition("=")
        if not name or not named or name in out:
            raise FitError(
                f"--column {text} names no columns, or those of a quantity once more.",
                "All columns of a quantity are named at once, in the order of the joints.",
                "Type --column q=a,b,c, say.",
            )
        out[name] = named.split(",")
    return out


def _part(text: str) -> tuple[float, float]:
    try:
        start, stop = (float(x) for x in text.split(":"))
        fits = 0 <= start < stop <= 1
    except ValueError:
        fits = False
        start = stop = 0.0
    if not fits:
        raise FitError(
            f"--use {text} is no part of a log.",
            "It is two fractions of its time, the first smaller.",
            "Type --use 0:0.6, say.",
        )
    return start, stop


class Bar:
    """Says what a fit does: a bar where tqdm is installed, else a line for each step."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._last = ""

    def __call__(self, text: str, part: float) -> None:
        """Show what is done now, and the part that is done."""
        if not self._last:
            try:
                tqdm = require("tqdm", "identify").tqdm
                self._bar = tqdm(total=100, bar_format="{l_bar}{bar}| {elapsed}", file=sys.stderr)
            except MissingExtraError:
                pass
        if self._bar is not None:
            self._bar.set_description(text, refresh=False)
            self._bar.update(100 * part - self._bar.n)
        elif text != self._last:
            print(f"{100 * part:3.0f} %  {text}", file=sys.stderr)
        self._last = text

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
