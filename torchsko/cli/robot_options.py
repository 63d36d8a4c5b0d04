"""How a robot file is read, as options of the command line."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

from torchsko.errors import RobotFileError, RobotFileWarning
from torchsko.io.loading.files import load
from torchsko.io.xml.xacro import expanded
from torchsko.mechanism.mechanism import Mechanism

ASSIGNED = ":="
"""Between an argument of xacro and its value, as on xacro's own command line."""


def add_robot_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how `torchsko.load` reads a file to those of a command."""
    add = parser.add_argument
    add("--floating-base", action="store_true", help="a free joint under the root")
    add("--independent", action="store_true", help="mimic joints as joints like any other")
    add(
        "--mesh-path",
        action="append",
        help="folder that is trusted, besides the file's own: of meshes, packages, parts of MJCF",
    )
    add(
        "--xacro",
        action="store_true",
        help="expand macros of xacro, which read files and compute: the file is trusted",
    )
    add(
        "--xacro-arg",
        action="append",
        default=[],
        metavar=f"NAME{ASSIGNED}VALUE",
        help="expand macros with this argument",
    )


def load_robot(file: str, given: argparse.Namespace, *, strict: bool = False) -> Mechanism:
    """The mechanism of a file by the options given; faults of the file are for the command to tell.

    Args:
        file: path of it.
        given: parsed by a parser with the options of `add_robot_options`.
        strict: refuse faults of the file.

    Raises:
        TorchskoError: as of `torchsko.load`, or when an argument of xacro is not of its form.
    """
    arguments = _arguments(given.xacro_arg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobotFileWarning)
        return load(
            file,
            floating_base=given.floating_base,
            mimic="independent" if given.independent else "couple",
            strict=strict,
            mesh_path=given.mesh_path,
            xacro=arguments if given.xacro or arguments else None,
        )


def source_of(file: str, given: argparse.Namespace) -> str:
    """What to write a robot like that was loaded by the options given: its file, or what macros become.

    Args:
        file: path of it.
        given: as for `load_robot`.

    Raises:
        TorchskoError: as of `load_robot`, when macros cannot be expanded.
    """
    arguments = _arguments(given.xacro_arg)
    return expanded(file, arguments) if given.xacro or arguments else file


def _arguments(words: Sequence[str]) -> dict[str, str]:
    """Arguments of xacro by name."""
    found = {}
    for word in words:
        name, assigned, value = word.partition(ASSIGNED)
        if not (name and assigned):
            raise RobotFileError(
                f"--xacro-arg {word} is no argument of xacro.",
                f"It has the form NAME{ASSIGNED}VALUE, as on xacro's own command line.",
                f"Type --xacro-arg {(name.split('=')[0] or 'NAME')}{ASSIGNED}VALUE.",
            )
        found[name] = value
    return found
