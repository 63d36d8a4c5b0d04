"""``python -m torchsko identify robot.urdf log.csv --out DIR``: identify a robot from a log of its motion."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from torchsko.cli.held_out import held_out_log, held_out_part, parse_part
from torchsko.cli.log_options import add_log_options, load_log, parse_number, parse_pairs
from torchsko.cli.robot_options import add_robot_options, load_robot, source_of
from torchsko.errors import FitError, MissingExtraError
from torchsko.utils.atomic_write import remove_stale_files, temporary_prefix
from torchsko.utils.optional_dependencies import require

if TYPE_CHECKING:
    from torchsko.identification.results.result import Fit
    from torchsko.identification.results.scores import Scores
    from torchsko.mechanism.mechanism import Mechanism


def add_identify(commands: Any) -> None:
    """Add the command to the parsers of ``python -m torchsko``."""
    parser = commands.add_parser(
        "identify",
        help="identify the inertias and friction of a robot from a log of its motion",
        description="Fit inertial parameters, friction and offsets to a log. By default the filter, the "
        "friction terms and the weight of the nominal robot are chosen from the data. Ctrl-C ends the "
        "selection of friction terms; the fit then uses the best ones so far.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    add = parser.add_argument
    add("-h", "--help", action=_Help, help="show this help, all methods, terms and finding codes")
    add("file", help="robot file with nominal parameters: URDF, MJCF or SDF")
    add(
        "log",
        nargs="+",
        help="CSV, NPZ or ROS 2 bag with t, q, tau, and qd if it was measured; several are logs of one fit",
    )
    add("--out", required=True, type=Path, help="output folder")
    add(
        "--format",
        choices=("urdf", "mjcf"),
        help="format of the robot's file (default: that of the input, and URDF for SDF); MJCF has rotor "
        "inertias",
    )
    _add_method_options(parser)
    _add_term_options(parser)
    _add_test_options(parser)
    add_log_options(parser)
    add_robot_options(parser)
    add(
        "--lock",
        action="append",
        default=[],
        metavar="wheel=0",
        help="joints that did not move, a,b=0, and their position; may be repeated",
    )
    add("--gravity", metavar="0,0,-9.81", help="gravity in the frame of the robot's base [m/s^2]")


def _add_method_options(parser: argparse.ArgumentParser) -> None:
    """Options of the estimator."""
    add = parser.add_argument
    add("--method", default="physical", help="estimator, see below (default: physical)")
    add(
        "--select",
        action=argparse.BooleanOptionalAction,
        help="select friction terms by cross-validation (default for physical and shooting)",
    )
    add("--cutoff", type=float, help="cut-off frequency of the filter [Hz]")
    add("--window", type=float, help="length of the windows of shooting [s]")
    add("--time-limit", type=float, help="time for the iterations of shooting [s] (default: 45)")
    add("--prior", type=float, help="weight of the nominal robot")
    add(
        "--measurement-bias",
        action="store_true",
        help="simulate the bias of the estimates by noise of positions",
    )
    add(
        "--ignore",
        action="append",
        default=[],
        metavar="CODE",
        help="ignore findings with this code, also those that stop the fit; may be repeated",
    )


def _add_term_options(parser: argparse.ArgumentParser) -> None:
    """Options of joint terms."""
    add = parser.add_argument
    add(
        "--terms",
        action="append",
        default=[],
        metavar="elbow=Viscous,RotorInertia",
        help='terms of one joint, or of all joints without a name; "elbow=none" for no term. Parameters go '
        'in parentheses and quotes: "Dahl(0.01)"; may be repeated',
    )
    add(
        "--candidates",
        action="append",
        default=[],
        metavar="+LuGre,Spring",
        help="terms that selection chooses from: +TERM adds to the default ones, TERM replaces them; may be "
        "repeated",
    )


def _add_test_options(parser: argparse.ArgumentParser) -> None:
    """Options of the data that are fitted, and of those that test the fit."""
    add = parser.add_argument
    add(
        "--use",
        default="0:1",
        metavar="0:0.6",
        help="part of the log's duration to fit; the report has the prediction errors on the rest",
    )
    add(
        "--test",
        nargs="+",
        default=[],
        metavar="LOG",
        help="log that the fit does not use, or several, and optionally a part of their duration, such as "
        "0.6:1; the report has the prediction errors on it. Of the fitted log it is the rest by default",
    )


class _Help(argparse.Action):
    """Print the help with the methods, terms and codes, which are imported only for this purpose."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> None:
        """Print the help and exit."""
        from torchsko.identification.diagnostics.findings import CODES
        from torchsko.identification.estimators.estimators import ESTIMATORS
        from torchsko.identification.friction import term_classes

        methods = [
            f"  {name:10}{(kind.__doc__ or '').splitlines()[0]}"
            for name, kind in ESTIMATORS.items()
        ]
        codes = [f"  {code:22}{level:8} {text}" for code, (level, text) in CODES.items()]
        parser.epilog = "\n".join(
            ["methods:", *methods, "", "terms:", f"  {', '.join(sorted(term_classes()))}", "",
             "finding codes (errors stop the fit unless they are ignored):", *codes]
        )  # fmt: skip
        parser.print_help()
        parser.exit()


def run_identify(given: argparse.Namespace) -> None:
    """Identify a robot, and write robot.urdf (or .xml), fit.pt, report.txt and report.html.

    Raises:
        TorchskoError: when the robot, the log or an option is invalid.
    """
    from torchsko.identification.fit import identify
    from torchsko.identification.results.summary import report
    from torchsko.identification.term_syntax import parse_candidates, parse_joint_terms

    start = time.perf_counter()
    test = held_out_part(given)
    mech = load_robot(given.file, given)  # the report lists unsupported elements of the file
    mech = _adapted_robot(mech, given)
    joint_terms = parse_joint_terms(mech, given.terms)
    candidates = parse_candidates(given.candidates)
    robot = None if given.lock else source_of(given.file, given)  # locked bodies are one body
    log = load_log(mech, given.log, given).part(*parse_part("use", given.use))
    unseen = None if test is None else held_out_log(mech, test, given)
    _prepare_folder(given.out)
    bar = ProgressBar()
    try:
        fit = identify(
            mech, log, joint_terms=joint_terms, candidate_terms=candidates, method=given.method,
            select=given.select, cutoff=given.cutoff, prior=given.prior, window=given.window,
            time_limit=given.time_limit, measurement_bias=given.measurement_bias,
            on_findings=dict.fromkeys(given.ignore, "ignore"), progress=bar,
        )  # fmt: skip
    finally:
        bar.close()
    scores, failure = None, None
    try:
        scores = None if unseen is None else fit.test(unseen)
    except FitError as error:
        failure = error
    print(report(fit, scores))
    files = write(fit, given.out, robot, given.format, given.mesh_path, scores)
    seconds = time.perf_counter() - start
    print(f"\nWrote {', '.join(files)} into {given.out} after {seconds:.1f} s.")
    if failure is not None:
        if given.test:
            raise failure
        print(f"The rest of the log was not tested: {failure}", file=sys.stderr)


def write(
    fit: Fit,
    folder: Path,
    robot: str | None,
    file_format: str | None = None,
    mesh_path: Sequence[str] | None = None,
    scores: Scores | None = None,
) -> list[str]:
    """Write the files of a fit into a folder, and return their names. Each file is replaced atomically.

    Args:
        fit: the fit.
        folder: an existing folder.
        robot: file of the nominal robot, or its text; None for a new file.
        file_format: "urdf" or "mjcf"; None for that of the nominal robot's file.
        mesh_path: further trusted folders.
        scores: prediction errors on another log, for the reports.
    """
    from torchsko.identification.results.summary import report

    saved = fit.save(folder, like=robot, file_format=file_format, mesh_path=mesh_path)
    names = ["fit.pt", *([saved] if saved else []), "report.txt"]
    with TemporaryDirectory(dir=folder, prefix=temporary_prefix()) as part:
        (Path(part) / "report.txt").write_text(f"{report(fit, scores)}\n", "utf-8")
        try:
            from torchsko.identification.results.html_report import write_report

            write_report(fit, Path(part) / "report.html", scores)
            names.append("report.html")
        except MissingExtraError as error:
            print(f"report.html was not written: {error.what}", file=sys.stderr)
        for path in Path(part).iterdir():
            os.replace(path, folder / path.name)
    return names


def _prepare_folder(folder: Path) -> None:
    """Make the output folder, check that it is writable, and remove temporary files of killed runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale_files(folder)
        with TemporaryDirectory(dir=folder, prefix=temporary_prefix()):
            pass
    except OSError as error:
        raise FitError(
            f"{folder}: cannot be written: {error.strerror or error}.",
            "The robot and its report go into this folder.",
            "Pass --out with a writable folder, or a new one.",
        ) from error


def _adapted_robot(mech: Mechanism, given: argparse.Namespace) -> Mechanism:
    """Lock joints and set gravity by the command's options."""
    if given.gravity is not None:
        gravity = parse_pairs("gravity", [f"xyz={given.gravity}"], _vector)["xyz"]
        mech = mech.replace(gravity=mech.gravity.new_tensor(gravity))
    pairs = parse_pairs("lock", given.lock, parse_number)
    locked = {name: x for names, x in pairs.items() for name in names.split(",")}
    return mech.lock(locked) if locked else mech


def _vector(text: str) -> list[float]:
    """Parse three numbers."""
    x, y, z = (float(x) for x in text.split(","))
    return [x, y, z]


class ProgressBar:
    """Progress of a fit: a bar if tqdm is installed, else one line for each stage."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._last = ""

    def __call__(self, text: str, share: float) -> None:
        """Show the present stage and the completed share."""
        if not self._last:
            try:
                tqdm = require("tqdm", "identify").tqdm
                self._bar = tqdm(total=100, bar_format="{l_bar}{bar}| {elapsed}", file=sys.stderr)
            except MissingExtraError:
                pass
        if self._bar is not None:
            self._bar.set_description(text, refresh=False)
            self._bar.update(100 * share - self._bar.n)
        elif text != self._last:
            print(f"{100 * share:3.0f} %  {text}", file=sys.stderr)
        self._last = text

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
