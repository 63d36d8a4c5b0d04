"""Command-line options that control how a robot file is read."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

from torchsko.errors import RobotFileError, RobotFileWarning
from torchsko.io.loading.files import load
from torchsko.io.xml.xacro import expand_macros
from torchsko.mechanism.mechanism import Mechanism

ASSIGNMENT = ":="
"""Separator between the name of a xacro argument and its value, as in the command xacro."""


def add_robot_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `torchsko.load` to a command."""
    add = parser.add_argument
    add("--floating-base", action="store_true", help="put a free joint under the root link")
    add("--independent", action="store_true", help="load mimic joints as independent joints")
    add(
        "--mesh-path",
        action="append",
        help="further trusted folder with meshes, packages or MJCF includes; may be repeated",
    )
    add(
        "--xacro",
        action="store_true",
        help="expand xacro macros; they can read any file, so use it for trusted files only",
    )
    add(
        "--xacro-arg",
        action="append",
        default=[],
        metavar=f"NAME{ASSIGNMENT}VALUE",
        help="expand xacro macros with this argument; may be repeated",
    )


def load_robot(file: str, options: argparse.Namespace, *, strict: bool = False) -> Mechanism:
    """Load a robot by the command's options, without warnings about faults in the file.

    Args:
        file: path of the robot file.
        options: result of a parser with the options of `add_robot_options`.
        strict: raise an error for a fault in the file.

    Raises:
        TorchskoError: as `torchsko.load`, or for a malformed xacro argument.
    """
    arguments = _xacro_arguments(options.xacro_arg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobotFileWarning)
        return load(
            file,
            floating_base=options.floating_base,
            mimic="independent" if options.independent else "couple",
            strict=strict,
            mesh_path=options.mesh_path,
            xacro=arguments if options.xacro or arguments else None,
        )


def source_of(file: str, options: argparse.Namespace) -> str:
    """The argument `like` of `torchsko.save` for a robot: its file, or the text of the expanded macros.

    Args:
        file: path of the robot file.
        options: as for `load_robot`.

    Raises:
        TorchskoError: if the macros cannot be expanded.
    """
    arguments = _xacro_arguments(options.xacro_arg)
    return expand_macros(file, arguments) if options.xacro or arguments else file


def _xacro_arguments(words: Sequence[str]) -> dict[str, str]:
    """Values of xacro arguments by name."""
    arguments = {}
    for word in words:
        name, separator, value = word.partition(ASSIGNMENT)
        if not (name and separator):
            raise RobotFileError(
                f"--xacro-arg {word} is malformed.",
                f"The form is NAME{ASSIGNMENT}VALUE, as in the command xacro.",
                f"Type --xacro-arg {name.split('=')[0] or 'NAME'}{ASSIGNMENT}VALUE.",
            )
        arguments[name] = value
    return arguments
