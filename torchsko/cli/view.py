"""``python -m torchsko view robot.urdf``: a page in a browser, or a picture without one."""

from __future__ import annotations

import argparse
import os
import threading
import warnings
from pathlib import Path
from typing import Any

from torchsko.cli.robot_options import add_robot_options, load_robot
from torchsko.errors import RobotFileError, RobotFileWarning
from torchsko.mechanism.mechanism import Mechanism
from torchsko.view.output_files import check_folder
from torchsko.view.playback import Motion, read_log
from torchsko.view.scene import Scene, scene_of, start_of
from torchsko.view.undrawn import told

FRAMES = 25
"""Pictures of a GIF in a second."""


ENDINGS = (".png", ".gif", ".jpg", ".jpeg")
"""Of pictures."""


def add_view(commands: Any) -> None:
    """Add the command to a parser's subcommands."""
    view = commands.add_parser("view", help="robots on a page in the browser, or in a picture")
    view.add_argument("file", nargs="+", help="URDF, MJCF or SDF; several stand side by side")
    view.add_argument(
        "--log",
        action="append",
        default=[],
        help="motion of the first robot, of the next, ...: q and t as .npz, .pt, .csv or .parquet",
    )
    view.add_argument(
        "--kind", choices=("visual", "collision", "inertia"), default="visual", help="what is drawn"
    )
    add_robot_options(view)
    view.add_argument("--picture", help="no page: save a .png, or a .gif of the log")
    view.add_argument("--host", default="127.0.0.1", help="0.0.0.0: others may look, too")
    view.add_argument(
        "--port", type=int, default=8080, help="of the page: 8080, or the next that is free"
    )


def run_view(given: argparse.Namespace) -> None:
    """Serve the page until it is interrupted, or save the picture.

    Raises:
        TorchskoError: when a file cannot be read, or an extra is missing.
    """
    if len(given.log) > len(given.file):
        raise RobotFileError(
            f"{len(given.log)} logs were given for {len(given.file)} robots.",
            "The first log is the motion of the first robot, and so on.",
            "Leave some out, or name a robot's file once for each of its logs.",
        )
    if given.picture and len(given.file) > 1:
        raise RobotFileError(
            f"a picture of {len(given.file)} robots was asked for.",
            "Robots stand side by side on the page; a picture shows one.",
            "Leave out --picture, or name one file.",
        )
    if given.picture and Path(given.picture).suffix.lower() not in ENDINGS:
        raise RobotFileError(
            f"--picture {given.picture} ends in {Path(given.picture).suffix or 'nothing'!r}.",
            "The ending says what is written.",
            f"Use one of {', '.join(ENDINGS)}; a .gif takes a --log, whose motion it shows.",
        )
    if given.picture:
        _check_moving(given)
        check_folder(given.picture)
    robots = [load_robot(file, given) for file in given.file]  # `info` tells their faults
    motions = [read_log(mech, log) for mech, log in zip(robots, given.log, strict=False)]
    if given.picture:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RobotFileWarning)  # what is not drawn is printed
            _save(robots[0], motions[0] if motions else None, given)
        return
    from torchsko.view.viser_page import Page

    page = Page(robots, motions, host=given.host, port=given.port, kind=given.kind)
    _tell([figure.scene for figure in page.figures])
    print(
        f"{page.address} shows {', '.join(mech.name for mech in robots)}; Ctrl-C ends it.",
        flush=True,
    )
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        page.close()


def _check_moving(given: argparse.Namespace) -> None:
    """Refuse a GIF of nothing that moves."""
    if Path(given.picture).suffix.lower() == ".gif" and not given.log:
        raise RobotFileError(
            f"--picture {given.picture} was asked for without a log.",
            "A .gif shows a motion, and a robot file has none.",
            f"Pass --log with q and t in a file, or --picture {Path(given.picture).with_suffix('.png')}.",
        )


def _tell(scenes: list[Scene]) -> None:
    """Print what is not drawn."""
    if lines := told(scenes):
        print(lines)


def _save(mech: Mechanism, motion: Motion | None, given: argparse.Namespace) -> None:
    """A picture of the robot, or of its motion."""
    from torchsko.view.render import animate, picture

    scene = scene_of(mech, given.kind)
    _tell([scene])
    path = os.fspath(given.picture)
    if motion is None:
        picture(mech, start_of(scene), path, kind=given.kind)
    elif Path(path).suffix.lower() == ".gif":
        count = max(2, round(FRAMES * (motion.t[-1] - motion.t[0])) + 1)
        span = (motion.t[-1] - motion.t[0]) / (count - 1)
        rows = [motion.at(motion.t[0] + k * span) for k in range(count)]
        animate(mech, motion.q[rows], path, dt=max(span, 1 / FRAMES), kind=given.kind)
    else:
        rows = sorted({round(k * (len(motion.q) - 1) / 4) for k in range(5)})
        picture(mech, motion.q[rows], path, kind=given.kind)
    print(f"{path} shows {mech.name}.")
