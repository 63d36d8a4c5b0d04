"""Shapes in new MJCF files: geoms, assets of meshes and height fields, contact pairs and excluded pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsko.io.common.losses import Losses
from torchsko.io.common.numbers import quaternion_from_matrix
from torchsko.io.mjcf.elements import element, section
from torchsko.io.mjcf.file_bodies import WORLD, FileBodies
from torchsko.io.mjcf.poses import Pose, compose, frame_pose, rotation_of
from torchsko.io.xml.edits import unique_name, words
from torchsko.io.xml.reader import MAX_BYTES
from torchsko.mechanism.geometry import Shape, Surface
from torchsko.shapes.box import Box
from torchsko.shapes.capsule import Capsule
from torchsko.shapes.cylinder import Cylinder
from torchsko.shapes.ellipsoid import Ellipsoid
from torchsko.shapes.form import Form
from torchsko.shapes.height_field import HeightField
from torchsko.shapes.mesh import Mesh, Triangles
from torchsko.shapes.plane import Plane
from torchsko.shapes.sphere import Sphere
from torchsko.utils.optional_dependencies import require

VISUAL_GROUP, COLLISION_GROUP = 2, 3
"""MuJoCo's groups of visual geoms, and of collision geoms, which its viewer hides."""

HULL_TOLERANCE = 1e-5
"""Distance of a hull from vertices of its mesh, relative to the mesh, that rounding to float32 explains."""

BYTES_PER_NUMBER = 16
"""Mean length of a coordinate of a vertex as text."""

GRID_SPACING = 1.0
"""Distance of the lines that MuJoCo draws on a plane [m]."""


@dataclass(frozen=True)
class ShapeLines:
    """Lines of shapes outside of bodies.

    Attributes:
        assets: meshes and height fields.
        contact: explicit and excluded pairs.
    """

    assets: list[str]
    contact: list[str]


def write_geoms(bodies: FileBodies, losses: Losses) -> ShapeLines:
    """Add geoms to the bodies of a file; returns the lines outside of bodies."""
    mech = bodies.mech
    shapes, names = mech.geometry.shapes, _names(mech.geometry.shapes, mech.geometry.pairs)
    large = _large_meshes(shapes)
    assets: dict[Form, tuple[str, str]] = {
        form: (f"hull{k}", _hull(form, f"hull{k}")) for k, form in enumerate(_cut_hulls(shapes))
    }
    drawn = [
        names.get(i, f"geom{i}") for i, x in enumerate(shapes) if x.visual and x.form in assets
    ]
    losses.add_if(
        drawn, "surfaces of meshes with a simplified convex hull, which is written instead:"
    )
    fluids, lost, written = _ellipsoids(bodies), Counter[str](), set[int]()
    for i, shape in enumerate(shapes):
        body, (R, p) = bodies.place(shape.frame, shape.rotation, shape.position)
        form = None if i in large else _form(shape.form, body == WORLD, assets)
        if form is None:
            lost[type(shape.form).__name__.lower()] += 1
            continue
        written.add(i)
        if isinstance(shape.form, HeightField):
            p = p + R @ np.array([0.0, 0.0, shape.form.heights.min()])
        color = {} if shape.color is None else {"rgba": words(shape.color)}
        fluid = _fluid_of(bodies, fluids, shape, body, (R, p))
        values = form | {"pos": words(p), "quat": words(quaternion_from_matrix(R))}
        name = {"name": names[i]} if i in names else {}
        line = element("geom", name | values | _surface(shape) | color | fluid)
        bodies.bodies[body].lines.append(line)
    losses.add_if([f"{n} of kind {kind}" for kind, n in lost.items()], "shapes:")
    if large:
        losses.add(f"of these {len(large)} meshes without contact, too large for one file")
    if fluids:
        losses.add("fluid forces of ellipsoids without a geom", fields=_FLUID)
    return ShapeLines([asset for _, asset in assets.values()], _contact(bodies, names, written))


_FLUID = ("fluid_rotation", "fluid_position", "fluid_size", "fluid_coefficients")


def _names(shapes: Sequence[Shape], pairs: Sequence[Any]) -> dict[int, str]:
    """Names of the geoms that have a unique one, or are in an explicit pair."""
    counts = Counter(shape.name for shape in shapes)
    names = {i: s.name for i, s in enumerate(shapes) if s.name and counts[s.name] == 1}
    for i in sorted({k for pair in pairs for k in (pair.first, pair.second)} - set(names)):
        names[i] = unique_name(f"geom{i}", {*names.values(), *counts})
    return names


def _large_meshes(shapes: Sequence[Shape]) -> set[int]:
    """Indices of the meshes without contact if a file with all meshes is too large."""
    forms = {shape.form for shape in shapes if isinstance(shape.form, Triangles)}
    if sum(x.vertices.size + x.faces.size for x in forms) * BYTES_PER_NUMBER < MAX_BYTES:
        return set()
    return {i for i, s in enumerate(shapes) if s.form in forms and not s.collision}


def _form(form: Form, fixed: bool, assets: dict[Form, tuple[str, str]]) -> dict[str, str] | None:
    """Type and size of a geom; None for forms that MuJoCo does not have. Adds assets."""
    if isinstance(form, Plane):
        size = words([form.size[0] / 2, form.size[1] / 2, GRID_SPACING])
        return {"type": "plane", "size": size} if fixed else None
    if isinstance(form, HeightField | Triangles):
        tag = "hfield" if isinstance(form, HeightField) else "mesh"
        if tag == "hfield" and not fixed:
            return None
        if form not in assets:
            name = f"{tag}{len(assets)}"
            assets[form] = name, _asset(form, name)
        return {"type": tag, tag: assets[form][0]}
    if isinstance(form, Mesh):
        return None
    numbers = form.half_sizes[: form.num_sizes]
    return {"type": form.kind, "size": words(numbers)} if min(numbers) > 0 else None


def _cut_hulls(shapes: Sequence[Shape]) -> list[Triangles]:
    """Meshes in contact whose hull is smaller than that of their vertices (MuJoCo's maxhullvert).

    MuJoCo selects the vertices of such a hull one by one in the axes of the file's mesh, which a compiled
    model does not have. A file with all vertices, or with maxhullvert, would have another hull.
    """
    forms = dict.fromkeys(x.form for x in shapes if x.collision and isinstance(x.form, Triangles))
    meshes = [x for x in forms if isinstance(x, Triangles) and x.hull is not None]
    if not meshes:
        return []
    assets = [_asset(form, f"mesh{k}") for k, form in enumerate(meshes)]
    geoms = [element("geom", {"type": "mesh", "mesh": f"mesh{k}"}) for k in range(len(meshes))]
    lines = ["<mujoco>", *section("asset", assets), *section("worldbody", geoms), "</mujoco>"]
    model = require("mujoco", "mjcf").MjModel.from_xml_string("\n".join(lines))
    return [form for k, form in enumerate(meshes) if _is_cut(form, model, k)]


def _is_cut(mesh: Triangles, model: Any, k: int) -> bool:
    """True if the hull of all vertices, mesh k of a model, extends beyond the hull of a mesh."""
    first, count = int(model.mesh_polyadr[k]), int(model.mesh_polynum[k])
    sizes = model.mesh_polyvertnum[first : first + count]
    start = int(model.mesh_polyvertadr[first])
    corners = model.mesh_polyvert[start : start + int(sizes.sum())]
    normals = np.zeros_like(mesh.vertices)  # outward at each vertex of the whole hull
    np.add.at(normals, corners, np.repeat(model.mesh_polynormal[first : first + count], sizes, 0))
    normals = normals @ rotation_of(model.mesh_quat[k]).T
    assert mesh.hull is not None
    missing = sorted({*corners.tolist()} - {*mesh.hull.vertices})
    of_hull = (mesh.vertices[list(mesh.hull.vertices)] @ normals[missing].T).max(0)
    beyond = (mesh.vertices[missing] * normals[missing]).sum(-1) - of_hull
    return bool((beyond > HULL_TOLERANCE * np.ptp(mesh.vertices, axis=0).max()).any())


def _hull(mesh: Triangles, name: str) -> str:
    """The convex hull of a mesh as an asset."""
    assert mesh.hull is not None
    return _mesh(name, {"vertex": mesh.vertices[list(mesh.hull.vertices)]})


def _asset(form: HeightField | Triangles, name: str) -> str:
    if isinstance(form, Triangles):
        return _mesh(name, {"vertex": form.vertices, "face": form.faces})
    low, high = float(form.heights.min()), float(form.heights.max())
    rows, columns = form.heights.shape
    size = words([form.size[0] / 2, form.size[1] / 2, (high - low) or 1.0, form.base])
    heights = words(np.ravel(form.heights[::-1] - low))  # MuJoCo's first row is the last one
    values = {"name": name, "nrow": str(rows), "ncol": str(columns), "size": size}
    return element("hfield", values | {"elevation": heights})


def _mesh(name: str, numbers: Mapping[str, np.ndarray]) -> str:
    text = {key: " ".join(map(repr, np.ravel(x).tolist())) for key, x in numbers.items()}
    return element("mesh", {"name": name} | text)


def _surface(shape: Shape) -> dict[str, str]:
    """MuJoCo's contact parameters and group of a shape."""
    surface = shape.surface
    if surface is None:
        contact = {} if shape.collision else {"contype": "0", "conaffinity": "0"}
        group = VISUAL_GROUP if shape.visual else COLLISION_GROUP
        return contact | {"group": str(0 if shape.visual and shape.collision else group)}
    whole = {key: getattr(surface, key) for key in ("contype", "conaffinity", "condim", "priority")}
    real = {key: words([getattr(surface, key)]) for key in ("solmix", "margin", "gap")}
    rows = {key: words(getattr(surface, key)) for key in ("friction", "solref", "solimp")}
    return {key: str(x) for key, x in whole.items()} | real | rows | {"group": str(shape.group)}


def _contact(bodies: FileBodies, names: Mapping[int, str], written: set[int]) -> list[str]:
    """Explicit and excluded pairs."""
    geometry, lines = bodies.mech.geometry, []
    for pair in geometry.pairs:
        if {pair.first, pair.second} <= written:
            ends = {"geom1": names[pair.first], "geom2": names[pair.second]}
            lines.append(element("pair", ends | _pair(pair.surface)))
    for ends in geometry.excluded:
        first, second = (bodies.home(frame)[0] for frame in ends)
        if first != second:
            lines.append(element("exclude", {"body1": first, "body2": second}))
    return lines


def _pair(surface: Surface) -> dict[str, str]:
    sliding, torsional, rolling = surface.friction
    friction = surface.friction_pair or (sliding, sliding, torsional, rolling, rolling)
    return {
        "condim": str(surface.condim),
        "friction": words(friction),
        "solref": words(surface.solref),
        "solreffriction": words(surface.solref_friction),
        "solimp": words(surface.solimp),
        "margin": words([surface.margin]),
        "gap": words([surface.gap]),
    }


Ellipsoids = dict[int, tuple[str, Pose]]
"""Body and pose of each ellipsoid with fluid forces, by its index among fluid shapes."""


def _ellipsoids(bodies: FileBodies) -> Ellipsoids:
    mech, found = bodies.mech, {}
    for i, (k, model) in enumerate(zip(mech.fluid_bodies, mech.fluid_models, strict=True)):
        if model == "ellipsoid":
            place = (
                mech.fluid_rotation[i].double().numpy(),
                mech.fluid_position[i].double().numpy(),
            )
            found[i] = mech.body_names[k], place
    return found


def _fluid_of(
    bodies: FileBodies, fluids: Ellipsoids, shape: Shape, body: str, pose: Pose
) -> dict[str, str]:
    """Attributes of the fluid forces of a shape; removes its ellipsoid from `fluids`."""
    mech = bodies.mech
    if not fluids or shape.frame is None:
        return {}
    i = mech.frame_index(shape.frame)
    on_body = compose(
        frame_pose(mech, i),
        (np.array(shape.rotation), np.array(shape.position)),
    )
    moves, axes = mech.frame_body[i] >= 0, _semi_axes(shape.form)
    for n, (name, place) in fluids.items():
        size = mech.fluid_size[n].double().numpy()
        pairs = zip((*place, size), (*on_body, size if axes is None else axes), strict=True)
        same = all(np.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in pairs)
        if same and moves and mech.body_names[mech.frame_body[i]] == name:
            del fluids[n]
            coefficients = mech.fluid_coefficients[n, 1:6].tolist()
            return {"fluidshape": "ellipsoid", "fluidcoef": words(coefficients)}
    return {}


def _semi_axes(form: Form) -> list[float] | None:
    """Semi-axes of the ellipsoid of a primitive in a fluid [m]; None for other forms."""
    if not isinstance(form, Box | Sphere | Cylinder | Capsule | Ellipsoid):
        return None
    first, *rest = form.half_sizes[: form.num_sizes]
    if isinstance(form, Sphere | Cylinder | Capsule):
        half = rest[0] if rest else first
        return [first, first, half + first if isinstance(form, Capsule) else half]
    return [first, *rest]
