"""Where the meshes of a URDF file lie, and what they hold; read when they are drawn, not when a robot loads.

A robot file is not trusted with other folders than its own. Its meshes may lie in

- the folder of the file and those below;
- the package that the file is in: the nearest folder above with a ``package.xml``;
- the folders that the user names (``ts.load(..., mesh_path=[...])``, ``--mesh-path``);
- the package NAME of ``package://NAME/rest``, where the user's shell says where packages are
  (``AMENT_PREFIX_PATH``, ``ROS_PACKAGE_PATH``; ``GZ_SIM_RESOURCE_PATH``, ``GAZEBO_MODEL_PATH``).

``package://NAME/rest`` is ``rest`` in one of these where it is named NAME (its own name, or that of its
``package.xml``), else ``NAME/rest`` in one of these. What is found elsewhere, by ``..``, by an absolute path
or by a link, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from torchsko.errors import RobotFileError
from torchsko.io.common.package_paths import installed, own_folders, package_name
from torchsko.mechanism.geometry import Colour, Mesh, Triangles
from torchsko.utils.optional_dependencies import require

KINDS = (".stl", ".obj", ".dae", ".ply", ".off")
"""Endings of files that can be read."""

LARGEST = 256 * 2**20
"""Bytes of a file."""

PACKAGE = re.compile(r"(?:package|model)://+([^/]+)/+(.*)", re.DOTALL)
MATERIALS = (b"bind_material", b"library_materials", b"library_effects", b"library_images")
"""Elements of COLLADA that say what is of which colour or texture."""

SCHEME = re.compile(r"file://(?:localhost)?(?=/)")


def mesh_file(mesh: Mesh) -> Path:
    """The file of a mesh.

    Args:
        mesh: as a robot file names it.

    Returns:
        Its path, in one of the allowed folders.

    Raises:
        RobotFileError: when it is in none of them, when it leaves them, or is too large or of another kind.
    """
    given = _roots(mesh)
    named = PACKAGE.fullmatch(mesh.path)
    packages = [] if named is None else [x.resolve() for x in installed(str(named[1]))]
    roots, outside = [*given, *packages], None
    candidates = [] if named is None else [x / str(named[2]) for x in packages]
    for path in chain(_candidates(mesh, given), candidates):
        try:
            found = path.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            continue
        if not any(found.is_relative_to(root) for root in roots):
            outside = found
        elif found.is_file():
            return _checked(mesh, found)
    if outside is None and (above := _above(mesh)) is not None:
        raise RobotFileError(_outside(mesh, *above))
    raise RobotFileError(_outside(mesh, outside) if outside else _missing(mesh, given))


def _roots(mesh: Mesh) -> list[Path]:
    """The allowed folders, without links, those of the user first."""
    roots = [Path(folder) for folder in mesh.search]
    if mesh.home is not None:
        roots += own_folders(mesh.home)
    return [root.resolve() for root in roots]


def _candidates(mesh: Mesh, roots: list[Path]) -> Iterator[Path]:
    """Where the file may be, in the order in which it is looked for."""
    named = PACKAGE.fullmatch(mesh.path)
    if named is None:
        path = Path(SCHEME.sub("", mesh.path))
        if path.is_absolute():
            yield path
        else:
            yield from ([] if mesh.home is None else [Path(mesh.home) / path])
            yield from (root / path for root in roots)
        return
    name, rest = str(named[1]), str(named[2])
    for root in roots:
        above = [x for x in root.parents if any(x.is_relative_to(other) for other in roots)]
        for folder in (root, *above):
            if name in (folder.name, package_name(folder)):
                yield folder / rest
        yield root / name / rest
        # Packages are installed under other names than they are written with.
        yield root / rest


def _checked(mesh: Mesh, file: Path) -> Path:
    if file.suffix.lower() not in KINDS:
        raise RobotFileError(
            f"mesh {mesh.path!r}: files of the kind {file.suffix!r} are not read.",
            f"Known are {', '.join(KINDS)}.",
            "Convert the mesh to one of these.",
        )
    if file.stat().st_size > LARGEST:
        raise RobotFileError(
            f"mesh {mesh.path!r} is larger than {LARGEST // 2**20} MiB.",
            "A page cannot show so many triangles.",
            "Simplify the mesh.",
        )
    return file


def _above(mesh: Mesh) -> tuple[Path, Path] | None:
    """A mesh in a folder above that of the file which has the package's name, and that folder."""
    named = PACKAGE.fullmatch(mesh.path)
    if named is None or mesh.home is None:
        return None
    above = (x for x in Path(mesh.home).resolve().parents if x.name == named[1])
    for folder in above:
        try:
            found = (folder / str(named[2])).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            continue
        if found.is_relative_to(folder):
            return found, folder
    return None


def _outside(mesh: Mesh, found: Path, folder: Path | None = None) -> str:
    return (
        f"mesh {mesh.path!r} leaves the folder of the robot file: it is {str(found)!r}.\n"
        "A robot file is not trusted with other folders.\n"
        f"Where you trust it, pass mesh_path=[{str(folder or found.parent)!r}] (--mesh-path)."
    )


def _missing(mesh: Mesh, roots: list[Path]) -> str:
    places = ", ".join(repr(str(root)) for root in roots) or "no folder: the robot came as text"
    return (
        f"mesh {mesh.path!r} is not there.\n"
        f"It was looked for in {places}.\n"
        "Pass mesh_path=[folder that holds it, or its package] (--mesh-path), or set ROS_PACKAGE_PATH."
    )


@dataclass(frozen=True, eq=False)
class Part:
    """Triangles of one colour; None where the file gives none."""

    triangles: Triangles
    colour: Colour | None = None


def read_mesh(mesh: Mesh) -> tuple[Part, ...]:
    """What a mesh file holds, scaled, in metres.

    Args:
        mesh: as a robot file names it.

    Raises:
        RobotFileError: when the file is not found or refused (`mesh_file`), or is no mesh.
        MissingExtraError: when trimesh is not installed.
    """
    trimesh = require("trimesh", "view")
    path = mesh_file(mesh)
    kind = path.suffix.lower()[1:]
    try:
        scene, found = _opened(trimesh, path.read_bytes(), kind)
    except ModuleNotFoundError as missing:
        require(missing.name or "trimesh", "view")
        raise
    except Exception as error:  # of a hostile file the reader raises whatever it likes
        raise RobotFileError(
            f"mesh {mesh.path!r} cannot be read: {error}.",
            f"The file is {str(path)!r}.",
            "Open it in a mesh editor, and save it again.",
        ) from error
    if not any(len(x.faces) for x in found):
        raise RobotFileError(
            f"mesh {mesh.path!r} holds no triangles.",
            f"The file is {str(path)!r}.",
            "Open it in a mesh editor, and save it again.",
        )
    scale = np.array(mesh.scale) * (_metres(scene.units) if kind == "dae" else 1.0)
    return tuple(
        Part(Triangles(np.asarray(x.vertices) * scale, np.asarray(x.faces)), _colour(x))
        for x in found
        if len(x.faces)
    )


def _opened(trimesh: Any, data: bytes, kind: str) -> tuple[Any, list[Any]]:
    """What a file holds, and its meshes."""
    found = []
    for text, options in _readings(data, kind):
        try:
            # Its bytes alone: what the mesh names besides (textures, materials) stays shut.
            scene = trimesh.load_scene(BytesIO(text), file_type=kind, **options)
        except ModuleNotFoundError:
            raise
        except Exception:
            if options:
                continue  # a reading that leaves nothing out
            raise
        found.append((scene, [x for x in scene.dump() if isinstance(x, trimesh.Trimesh)]))
        if options:
            break  # it was whole
    return max(found, key=lambda one: sum(len(x.faces) for x in one[1]))


def _readings(data: bytes, kind: str) -> list[tuple[bytes, dict[str, Any]]]:
    """A file as it is read, one way after another until one is whole, and the options of each.

    A node of COLLADA whose material is broken, as of a texture that nobody shipped, is dropped with its
    triangles; without materials it is there, and grey.
    """
    if kind != "dae":
        return [(data, {})]
    return [(data, {"ignore_broken": False}), (data, {}), (_plain(data), {})]


def _plain(data: bytes) -> bytes:
    """COLLADA without its materials, in time that grows with its length alone."""
    for tag in MATERIALS:
        kept, at = [], 0
        while (start := data.find(b"<" + tag, at)) >= 0 and (
            end := data.find(b"</" + tag, start)
        ) >= 0:
            kept.append(data[at:start])
            at = data.find(b">", end) + 1 or len(data)
        data = b"".join([*kept, data[at:]])
    return data


def _metres(unit: str | None) -> float:
    """The length of a unit as trimesh names it: "meters", or "0.01 * meters"."""
    factor, star, _ = (unit or "").partition(" * ")
    return float(factor) if star else 1.0


def _colour(mesh: Any) -> Colour | None:
    """The colour of a material; None where the file gives none that can be told from a default."""
    colour = getattr(getattr(mesh.visual, "material", None), "baseColorFactor", None)
    if colour is None:
        return None
    r, g, b, a = (float(x) / 255 for x in colour)
    return r, g, b, a
