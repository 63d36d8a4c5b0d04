"""Robot descriptions: three that ship with the package, and all that other packages have installed.

Those that ship name the sources of their figures. Nothing is fetched: `available` looks at what is on the
disk.
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
"""A man of 73 kg, 21 joints on a floating base; segments of de Leva, 1996."""

HEAD = 4096
"""Bytes of an XML file in which the root element of a robot begins."""


def available(*folders: str | os.PathLike[str]) -> dict[str, Path]:
    """The robot files on this machine, by name: the package that has them, and their path there.

    Those of torchsko, example-robot-data, gymnasium, dm_control and robosuite where they are installed,
    those that robot_descriptions has fetched already, and those in the folders given.

    Args:
        *folders: further ones, such as a checkout of MuJoCo Menagerie; named by their last part.

    Returns:
        Paths of files in URDF (``.urdf``) and MJCF (``.xml``). Not all load: some are parts of others.

    Raises:
        RobotFileError: when a folder is none.

    Example:
        >>> import torchsko as ts
        >>> ts.load(ts.robots.available()["torchsko/panda.urdf"])
        Mechanism('panda': 7 bodies, 7 dofs, 7 revolute; torch.float64, cpu)
    """
    places = {name: place for name, place in _installed() if place is not None and place.is_dir()}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RobotFileError(
                f"{folder} is no folder.",
                "Robots are looked for in folders.",
                "Check the path.",
            )
        places[folder.resolve().name] = folder
    return {
        f"{name}/{path.relative_to(place).as_posix()}": path
        for name, place in places.items()
        for path in _robots_in(place)
    }


def find(name: str, *folders: str | os.PathLike[str]) -> Path:
    """The one robot file of this name.

    Args:
        name: as in `available`, or the last parts of it, with or without the ending: "panda",
            "gymnasium/ant.xml", "ant".
        *folders: as in `available`.

    Raises:
        RobotFileError: when there is none, or several; names them. When the name is a path out of the
            folders.

    Example:
        >>> import torchsko as ts
        >>> ts.robots.find("torchsko/quadruped").name
        'quadruped.urdf'
    """
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in name:
        raise RobotFileError(
            f"{name!r} is a path out of the folders of robots.",
            "A name is looked for among robots that are installed.",
            "Pass a path to torchsko.load, or its folder as one more.",
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
        "It is unclear which one is meant.",
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
    """Where packages have their robots; None where they are not installed. Imports none of them."""
    yield "torchsko", Path(__file__).parent
    cmeel = _package("cmeel")  # which packs the wheels of example-robot-data
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
    """Files of robots below a folder, by path; none that a link leads out of it."""
    inside = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".urdf", ".xml") and path.is_file():
            if not path.resolve().is_relative_to(inside):
                continue
            if path.suffix == ".urdf" or _is_mujoco(path):
                yield path


def _is_mujoco(path: Path) -> bool:
    with path.open("rb") as file:
        return b"<mujoco" in file.read(HEAD)
