"""Robot files: three that ship with the package, and those of other installed packages.

The files that ship name the sources of their parameters. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from torchsko.errors import RobotFileError, unknown_name

panda: Path = Path(__file__).with_name("panda.urdf")
"""Franka Emika Panda, 7 joints; dynamics as identified by Gaz et al., 2019."""

quadruped: Path = Path(__file__).with_name("quadruped.urdf")
"""MIT Mini Cheetah, 12 joints on a floating base; Katz et al., 2019."""

humanoid: Path = Path(__file__).with_name("humanoid.urdf")
"""Man of 73 kg, 21 joints on a floating base; segment parameters of de Leva, 1996."""

MAX_HEADER_BYTES = 4096
"""Largest offset of the root element in an XML file; comments may precede it."""


def available(*folders: str | os.PathLike[str]) -> dict[str, Path]:
    """Robot files on this machine by name, which is the package and the path inside it.

    They come from torchsko, the installed packages example-robot-data, gymnasium, dm_control and robosuite,
    the cache of robot_descriptions, and the given folders.

    Args:
        *folders: further folders, such as a checkout of MuJoCo Menagerie; named by their last part.

    Returns:
        Paths of URDF (``.urdf``) and MJCF (``.xml``) files. Some are parts of other files and do not load.

    Raises:
        RobotFileError: when a folder does not exist.

    Example:
        >>> import torchsko as ts
        >>> ts.load(ts.robots.available()["torchsko/panda.urdf"])
        Mechanism('panda': 7 bodies, 7 dofs, 7 revolute; torch.float64, cpu)
    """
    places = {name: place for name, place in _installed() if place is not None and place.is_dir()}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RobotFileError(f"{folder} is not a folder.", advice="Check the path.")
        places[folder.resolve().name] = folder
    return {
        f"{name}/{path.relative_to(place).as_posix()}": path
        for name, place in places.items()
        for path in _robots_in(place)
    }


def find(name: str, *folders: str | os.PathLike[str]) -> Path:
    """Path of the robot file with this name.

    Args:
        name: name as in `available`, or its last parts, with or without suffix: "panda",
            "gymnasium/ant.xml", "ant".
        *folders: further folders, as in `available`.

    Raises:
        RobotFileError: when no file or several files have this name, or it is a path outside of the folders.

    Example:
        >>> import torchsko as ts
        >>> ts.robots.find("torchsko/quadruped").name
        'quadruped.urdf'
    """
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in name:
        raise RobotFileError(
            f"{name!r} is a path outside of the robot folders.",
            "Names refer to installed robots.",
            "Pass the path to torchsko.load, or its folder to find.",
        )
    known = available(*folders)
    if name in known:
        return known[name]
    found = [full for full in known if _ends_with(full, parts)]
    if len(found) == 1:
        return known[found[0]]
    if not found:
        raise RobotFileError(*unknown_name("robot", name, _short_names(known)))
    shown = ", ".join(map(repr, found[:8])) + (
        f", and {n} more" if (n := len(found) - 8) > 0 else ""
    )
    raise RobotFileError(
        f"{len(found)} robots are named {name!r}: {shown}.",
        "The name is ambiguous.",
        "Use one of these names.",
    )


def _ends_with(full: str, parts: PurePosixPath) -> bool:
    path = PurePosixPath(full)
    wanted = parts.parts
    return (
        path.parts[-len(wanted) :] == wanted or path.with_suffix("").parts[-len(wanted) :] == wanted
    )


def _short_names(known: Mapping[str, Path]) -> list[str]:
    return sorted({PurePosixPath(full).stem for full in known})


def _installed() -> Iterator[tuple[str, Path | None]]:
    """Robot folder of each package, or None if it is not installed; imports no package."""
    yield "torchsko", Path(__file__).parent
    cmeel = _package("cmeel")  # installs the data of example-robot-data
    data = "cmeel.prefix/share/example-robot-data/robots"
    yield "example-robot-data", cmeel.parent / data if cmeel else None
    below = {
        "gymnasium": "envs/mujoco/assets",
        "dm_control": ".",
        "robosuite": "models/assets/robots",
    }
    for name, inside in below.items():
        place = _package(name)
        yield name, place / inside if place else None
    cache = os.environ.get("ROBOT_DESCRIPTIONS_CACHE", "~/.cache/robot_descriptions")
    yield "robot_descriptions", Path(cache).expanduser()


def _package(name: str) -> Path | None:
    found = find_spec(name)
    places = list(found.submodule_search_locations or ()) if found else []
    return Path(places[0]) if places else None


def _robots_in(folder: Path) -> Iterator[Path]:
    """Robot files below a folder, sorted by path; symbolic links out of the folder are skipped."""
    inside = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".urdf", ".xml") and path.is_file():
            if not path.resolve().is_relative_to(inside):
                continue
            if path.suffix == ".urdf" or _is_mujoco(path):
                yield path


def _is_mujoco(path: Path) -> bool:
    with path.open("rb") as file:
        return b"<mujoco" in file.read(MAX_HEADER_BYTES)
