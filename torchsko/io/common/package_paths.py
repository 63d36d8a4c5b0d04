"""Where packages of ROS and models of Gazebo are on this machine, by the variables that their shells set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from glob import escape
from pathlib import Path

VARIABLES = (
    ("AMENT_PREFIX_PATH", "share"),
    ("ROS_PACKAGE_PATH", ""),
    ("GZ_SIM_RESOURCE_PATH", ""),
    ("GAZEBO_MODEL_PATH", ""),
)
"""Lists of folders, and where in each of them packages are: as ``source setup.bash`` has them."""

DEPTHS = ("", "*", "*/*")
"""How deep in such a folder a package may be: one of several in a repository of a workspace, say."""


def installed(name: str) -> Iterator[Path]:
    """The folders of a package, the first found first; none where no variable leads to one.

    Args:
        name: of the package, which is that of its folder, or in its ``package.xml``.
    """
    if name in (".", "..") or "\0" in name:
        return
    for variable, below in VARIABLES:
        for place in filter(None, os.environ.get(variable, "").split(os.pathsep)):
            folder = Path(place, below)
            if name in (folder.name, package_name(folder)):
                yield folder
            for depth in DEPTHS:
                yield from sorted(
                    x for x in folder.glob(str(Path(depth, escape(name)))) if x.is_dir()
                )


def own_folders(home: str | os.PathLike[str]) -> list[Path]:
    """What a robot file reaches by itself, without links: its folder, and the package that this is in."""
    folder = Path(home).resolve()
    package = (x for x in (folder, *folder.parents) if (x / "package.xml").is_file())
    return [folder, *(x.resolve() for x in list(package)[:1])]


def package_name(folder: Path) -> str | None:
    """The name that a folder's ``package.xml`` gives; None without one, or where that is no XML."""
    file = folder / "package.xml"
    try:
        found = re.search(r"<name>\s*([^<\s]+)\s*</name>", file.read_text("utf-8")[:10_000])
    except (OSError, ValueError):
        return None
    return found[1] if found else None
