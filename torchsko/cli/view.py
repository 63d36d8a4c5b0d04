"""The command ``view``: shows robots in a browser, or writes a picture or an animation."""

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
from torchsko.view.option_checks import check_folder
from torchsko.view.playback import Motion, read_log
from torchsko.view.scene import describe_missing, scene_of, start_of

GIF_FRAME_RATE = 25
"""Largest number of frames per second of a GIF."""

PICTURE_ENDINGS = (".png", ".gif", ".jpg", ".jpeg")

STILLS = 5
"""Configurations of a motion that a still picture shows."""


def add_view(commands: Any) -> None:
    """Add the command to the parsers of ``python -m torchsko``."""
    view = commands.add_parser("view", help="show robots in the browser, or save a picture")
    view.add_argument("file", nargs="+", help="URDF, MJCF or SDF files; shown side by side")
    view.add_argument(
        "--log",
        action="append",
        default=[],
        help="motion to play, with q and t, as .npz, .pt or .csv; repeat it for further robots",
    )
    view.add_argument(
        "--kind",
        choices=("visual", "collision", "inertia"),
        default="visual",
        help="shapes to draw; default: visual",
    )
    add_robot_options(view)
    view.add_argument(
        "--picture", help="save a .png or .jpg, or with --log a .gif, and open no page"
    )
    view.add_argument("--follow", help="link that the camera of a .gif follows along the ground")
    view.add_argument(
        "--host", default="127.0.0.1", help="address to serve at; 0.0.0.0 admits other machines"
    )
    view.add_argument("--port", type=int, default=8080, help="first port to try; default: 8080")


def run_view(options: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C, or save the picture.

    Raises:
        TorchskoError: if a file cannot be read, or an extra is not installed.
    """
    _check_options(options)
    robots = [load_robot(file, options) for file in options.file]
    motions = [read_log(mech, log) for mech, log in zip(robots, options.log, strict=False)]
    if options.picture:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RobotFileWarning)  # missing shapes are printed instead
            _save_picture(robots[0], motions[0] if motions else None, options)
        return
    from torchsko.view.viser_page import Page

    page = Page(robots, motions, host=options.host, port=options.port, kind=options.kind)
    if missing := describe_missing([robot.scene for robot in page.robots]):
        print(missing)
    names = ", ".join(mech.name for mech in robots)
    print(f"{page.address} shows {names}. Press Ctrl-C to stop.", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        page.close()


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that do not fit together."""
    if len(options.log) > len(options.file):
        raise RobotFileError(
            f"there are {len(options.log)} logs for {len(options.file)} robots.",
            "The first log is the motion of the first robot, and so on.",
            "Leave some out, or name a robot's file once for each of its logs.",
        )
    if options.follow and Path(options.picture or "").suffix.lower() != ".gif":
        raise RobotFileError(
            f"--follow {options.follow} was given without a .gif.",
            "The camera of a motion follows a link.",
            "Pass --picture FILE.gif and --log as well, or leave out --follow.",
        )
    if not options.picture:
        return
    if len(options.file) > 1:
        raise RobotFileError(
            f"--picture was given with {len(options.file)} robots.",
            "A picture shows one robot.",
            "Leave out --picture, or name one file.",
        )
    path = Path(options.picture)
    if path.suffix.lower() not in PICTURE_ENDINGS:
        raise RobotFileError(
            f"--picture {path} has {f'the ending {path.suffix!r}' if path.suffix else 'no ending'}.",
            "The ending selects the format.",
            f"Use one of {', '.join(PICTURE_ENDINGS)}; a .gif needs a --log.",
        )
    if path.suffix.lower() == ".gif" and not options.log:
        raise RobotFileError(
            f"--picture {path} was given without --log.",
            "A .gif shows a motion, and a robot file has none.",
            f"Pass --log with a file of q and t, or --picture {path.with_suffix('.png')}.",
        )
    check_folder(path)


def _save_picture(mech: Mechanism, motion: Motion | None, options: argparse.Namespace) -> None:
    """Save a picture of the robot, or of its motion."""
    from torchsko.view.render import animate, picture

    scene = scene_of(mech, options.kind)
    if missing := describe_missing([scene]):
        print(missing)
    path = os.fspath(options.picture)
    if motion is None:
        picture(mech, start_of(scene), path, kind=options.kind)
    elif Path(path).suffix.lower() == ".gif":
        duration = motion.t[-1] - motion.t[0]
        count = max(2, round(GIF_FRAME_RATE * duration) + 1)
        dt = duration / (count - 1)
        rows = [motion.at(motion.t[0] + k * dt) for k in range(count)]
        dt = max(dt, 1 / GIF_FRAME_RATE)
        animate(mech, motion.q[rows], path, dt=dt, kind=options.kind, follow=options.follow)
    else:
        last = len(motion.q) - 1
        rows = sorted({round(k * last / (STILLS - 1)) for k in range(STILLS)})
        picture(mech, motion.q[rows], path, kind=options.kind)
    print(f"Saved a picture of {mech.name} to {path}.")
