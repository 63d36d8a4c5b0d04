"""Mesh files of URDF and SDF robots: search and parsing. They are read when drawn, not when a robot loads.

For security, a robot file can use only meshes in

- its own folder and folders below it;
- its ROS package: the nearest folder above it with a ``package.xml``;
- the folders that the user names (``ts.load(..., mesh_path=[...])``, ``--mesh-path``);
- for a relative path, up to three folders above its own (`torchsko.io.common.file_access`);
- for ``package://NAME/rest``, the package NAME as installed according to the environment variables
  ``AMENT_PREFIX_PATH``, ``ROS_PACKAGE_PATH``, ``GZ_SIM_RESOURCE_PATH`` and ``GAZEBO_MODEL_PATH``.

``package://NAME/rest`` is ``rest`` in one of these folders if its name, or that in its ``package.xml``, is
NAME; otherwise it is ``NAME/rest`` in one of these folders. A mesh elsewhere, reached by an absolute path or
a symbolic link, is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from glob import escape
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.io.common.file_access import MAX_FILE_BYTES, is_near
from torchsko.mechanism.geometry import Color
from torchsko.shapes.mesh import Mesh, Triangles
from torchsko.utils.optional_dependencies import require

MESH_ENDINGS = (".stl", ".obj", ".dae", ".ply", ".off")

PACKAGE_URI = re.compile(r"(?:package|model)://+([^/]+)/+(.*)", re.DOTALL)
FILE_URI = re.compile(r"file://(?:localhost)?(?=/)")

COLLADA_MATERIALS = (b"bind_material", b"library_materials", b"library_effects", b"library_images")
"""COLLADA elements for colors and textures."""

PACKAGE_VARIABLES = (
    ("AMENT_PREFIX_PATH", "share"),
    ("ROS_PACKAGE_PATH", ""),
    ("GZ_SIM_RESOURCE_PATH", ""),
    ("GAZEBO_MODEL_PATH", ""),
)
"""Environment variables with lists of folders, and the subfolder of each folder that holds packages."""

PACKAGE_DEPTHS = ("", "*", "*/*")
"""Patterns of the folders between a listed folder and a package, such as repositories of a workspace."""


def mesh_file(mesh: Mesh) -> Path:
    """Find the file of a mesh.

    Args:
        mesh: as a robot file names it.

    Returns:
        Its path, in one of the allowed folders.

    Raises:
        RobotFileError: if it does not exist there, lies elsewhere, is too large or has an unknown format.
    """
    roots = _allowed_folders(mesh)
    uri = PACKAGE_URI.fullmatch(mesh.path)
    packages = [] if uri is None else [x.resolve() for x in _installed_packages(str(uri[1]))]
    installed = [] if uri is None else [x / str(uri[2]) for x in packages]
    forbidden = None
    for path in chain(_candidates(mesh, roots), installed):
        try:
            found = path.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            continue
        inside = any(found.is_relative_to(root) for root in (*roots, *packages))
        if not inside and not _is_near(mesh, path):
            forbidden = found
        elif found.is_file():
            _check_mesh_file(mesh, found)
            return found
    if forbidden is not None:
        raise _outside(mesh, forbidden, forbidden.parent)
    if (above := _above(mesh)) is not None:
        raise _outside(mesh, *above)
    searched = ", ".join(repr(str(root)) for root in roots)
    raise RobotFileError(
        f"mesh {mesh.path!r} was not found.",
        f"Searched folders: {searched or 'none, since the robot was loaded from text'}.",
        "Pass mesh_path=[folder of the mesh or of its package] (--mesh-path), or set ROS_PACKAGE_PATH.",
    )


def _is_near(mesh: Mesh, path: Path) -> bool:
    """True for a relative path that leads to a permitted file above the robot file's folder."""
    written = FILE_URI.sub("", mesh.path)
    if mesh.home is None or PACKAGE_URI.fullmatch(mesh.path) or os.path.isabs(written):
        return False
    return is_near(os.fspath(path), os.fspath(mesh.home))


def own_folders(home: str | os.PathLike[str]) -> list[Path]:
    """Folders that a robot file can always use: its own, and that of its ROS package; links are resolved."""
    folder = Path(home).resolve()
    package = (x for x in (folder, *folder.parents) if (x / "package.xml").is_file())
    return [folder, *(x.resolve() for x in list(package)[:1])]


def _allowed_folders(mesh: Mesh) -> list[Path]:
    """Allowed folders, the user's first; links are resolved."""
    roots = [Path(folder) for folder in mesh.search]
    if mesh.home is not None:
        roots += own_folders(mesh.home)
    return [root.resolve() for root in roots]


def _candidates(mesh: Mesh, roots: list[Path]) -> Iterator[Path]:
    """Possible paths of a mesh, in the order of the search."""
    uri = PACKAGE_URI.fullmatch(mesh.path)
    if uri is None:
        path = Path(FILE_URI.sub("", mesh.path))
        if path.is_absolute():
            yield path
        else:
            yield from ([] if mesh.home is None else [Path(mesh.home) / path])
            yield from (root / path for root in roots)
        return
    name, rest = str(uri[1]), str(uri[2])
    for root in roots:
        above = [x for x in root.parents if any(x.is_relative_to(other) for other in roots)]
        for folder in (root, *above):
            if name in (folder.name, _package_name(folder)):
                yield folder / rest
        yield root / name / rest
        # The folder of a package can have another name than the package.
        yield root / rest


def _installed_packages(name: str) -> Iterator[Path]:
    """Folders of an installed ROS package or Gazebo model; its name is that of the folder or package.xml."""
    if name in (".", "..") or "\0" in name:
        return
    for variable, below in PACKAGE_VARIABLES:
        for place in filter(None, os.environ.get(variable, "").split(os.pathsep)):
            folder = Path(place, below)
            if name in (folder.name, _package_name(folder)):
                yield folder
            for depth in PACKAGE_DEPTHS:
                found = folder.glob(str(Path(depth, escape(name))))
                yield from sorted(x for x in found if x.is_dir())


def _package_name(folder: Path) -> str | None:
    """The name in a folder's ``package.xml``, if it has a valid one."""
    try:
        text = (folder / "package.xml").read_text("utf-8")[:10_000]
    except (OSError, ValueError):
        return None
    found = re.search(r"<name>\s*([^<\s]+)\s*</name>", text)
    return found[1] if found else None


def _check_mesh_file(mesh: Mesh, file: Path) -> None:
    if file.suffix.lower() not in MESH_ENDINGS:
        raise RobotFileError(
            f"mesh {mesh.path!r} has the unknown ending {file.suffix!r}.",
            f"Known endings are {', '.join(MESH_ENDINGS)}.",
            "Convert the mesh to one of these formats.",
        )
    if file.stat().st_size > MAX_FILE_BYTES:
        raise RobotFileError(
            f"mesh {mesh.path!r} is larger than {MAX_FILE_BYTES // 2**20} MiB.",
            "It has too many triangles to draw.",
            "Simplify the mesh.",
        )


def _above(mesh: Mesh) -> tuple[Path, Path] | None:
    """A mesh in a folder above the robot file that has the package's name, and that folder."""
    uri = PACKAGE_URI.fullmatch(mesh.path)
    if uri is None or mesh.home is None:
        return None
    for folder in (x for x in Path(mesh.home).resolve().parents if x.name == uri[1]):
        try:
            found = (folder / str(uri[2])).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            continue
        if found.is_relative_to(folder):
            return found, folder
    return None


def _outside(mesh: Mesh, found: Path, folder: Path) -> RobotFileError:
    return RobotFileError(
        f"mesh {mesh.path!r} lies outside the folder of the robot file: it is {str(found)!r}.",
        "For security, a robot file can use only its own folders, and meshes up to three folders above.",
        f"If you trust that folder, pass mesh_path=[{str(folder)!r}] (--mesh-path).",
    )


@dataclass(frozen=True, eq=False)
class Part:
    """Triangles of one color; None if the file has none."""

    triangles: Triangles
    color: Color | None = None


def read_mesh(mesh: Mesh) -> tuple[Part, ...]:
    """Read a mesh file and scale it to meters.

    Args:
        mesh: as a robot file names it.

    Raises:
        RobotFileError: if the file is not found or refused (`mesh_file`), or is not a mesh.
        MissingExtraError: if trimesh is not installed.
    """
    trimesh = require("trimesh", "view")
    path = mesh_file(mesh)
    kind = path.suffix.lower()[1:]
    advice = f"Open {str(path)!r} in a mesh editor, and save it again."
    try:
        scene, meshes = _parse(trimesh, path.read_bytes(), kind)
    except ModuleNotFoundError as missing:
        require(missing.name or "trimesh", "view")
        raise
    except Exception as error:  # parsers raise exceptions of any type on corrupt files
        raise RobotFileError(
            f"mesh {mesh.path!r} cannot be read: {error}.", advice=advice
        ) from error
    if not any(len(x.faces) for x in meshes):
        raise RobotFileError(f"mesh {mesh.path!r} has no triangles.", advice=advice)
    scale = np.array(mesh.scale) * (_meters(scene.units) if kind == "dae" else 1.0)
    return tuple(
        Part(Triangles(np.asarray(x.vertices) * scale, np.asarray(x.faces)), _color(x))
        for x in meshes
        if len(x.faces)
    )


def _parse(trimesh: Any, data: bytes, kind: str) -> tuple[Any, list[Any]]:
    """The scene in a file, and its meshes.

    trimesh drops the triangles of a COLLADA node with a broken material, such as a missing texture. A file is
    therefore parsed strictly, then leniently, then without materials; the most complete result is returned.
    """
    attempts: list[tuple[bytes, dict[str, Any]]] = [(data, {})]
    if kind == "dae":
        attempts = [(data, {"ignore_broken": False}), (data, {}), (_without_materials(data), {})]
    parsed = []
    for text, options in attempts:
        try:
            # The bytes alone: files that the mesh refers to, such as textures, are not opened.
            scene = trimesh.load_scene(BytesIO(text), file_type=kind, **options)
        except ModuleNotFoundError:
            raise
        except Exception:
            if options:
                continue
            raise
        parsed.append((scene, [x for x in scene.dump() if isinstance(x, trimesh.Trimesh)]))
        if options:
            break  # the strict parse succeeded
    return max(parsed, key=lambda result: sum(len(x.faces) for x in result[1]))


def _without_materials(data: bytes) -> bytes:
    """COLLADA text without its materials, in linear time."""
    for tag in COLLADA_MATERIALS:
        pieces, at = [], 0
        while (start := data.find(b"<" + tag, at)) >= 0 and (
            end := data.find(b"</" + tag, start)
        ) >= 0:
            pieces.append(data[at:start])
            at = data.find(b">", end) + 1 or len(data)
        data = b"".join([*pieces, data[at:]])
    return data


def _meters(unit: str | None) -> float:
    """Length of a unit as trimesh names it: "meters", or "0.01 * meters"."""
    factor, star, _ = (unit or "").partition(" * ")
    return float(factor) if star else 1.0


def _color(mesh: Any) -> Color | None:
    """Color of a mesh's material; None if the material has no color."""
    color = getattr(getattr(mesh.visual, "material", None), "baseColorFactor", None)
    if color is None:
        return None
    r, g, b, a = (float(x) / 255 for x in color)
    return r, g, b, a
