r"""Collision functions of pairs of kinds of shapes.

Shapes have half sizes as in MuJoCo: the radius of a sphere; radius and half length of capsules and cylinders
along z; radii of an ellipsoid; half edges of a box; half edges of a height field along x and y. A plane has
the normal z.

Reference: MuJoCo documentation, "Computation", Collision detection.
"""

from __future__ import annotations

from collections.abc import Callable

from torchsko.contact.box_pairs import box_box, capsule_box
from torchsko.contact.candidate_points import Placed, Points
from torchsko.contact.plane_pairs import (
    plane_box,
    plane_capsule,
    plane_cylinder,
    plane_ellipsoid,
    plane_mesh,
    plane_sphere,
)
from torchsko.contact.round_pairs import (
    capsule_capsule,
    sphere_box,
    sphere_capsule,
    sphere_cylinder,
    sphere_sphere,
)
from torchsko.contact.terrain_pairs import (
    terrain_box,
    terrain_capsule,
    terrain_mesh,
    terrain_sphere,
)

COLLISIONS: dict[tuple[str, str], Callable[[Placed, Placed], Points]] = {
    ("plane", "sphere"): plane_sphere,
    ("plane", "capsule"): plane_capsule,
    ("plane", "ellipsoid"): plane_ellipsoid,
    ("plane", "cylinder"): plane_cylinder,
    ("plane", "box"): plane_box,
    ("plane", "mesh"): plane_mesh,
    ("heightfield", "sphere"): terrain_sphere,
    ("heightfield", "capsule"): terrain_capsule,
    ("heightfield", "box"): terrain_box,
    ("heightfield", "mesh"): terrain_mesh,
    ("sphere", "sphere"): sphere_sphere,
    ("sphere", "capsule"): sphere_capsule,
    ("sphere", "cylinder"): sphere_cylinder,
    ("sphere", "box"): sphere_box,
    ("capsule", "capsule"): capsule_capsule,
    ("capsule", "box"): capsule_box,
    ("box", "box"): box_box,
}
"""Functions of the pairs of kinds in `torchsko.mechanism.file_data.touching_pairs.COLLIDING_KINDS`."""
