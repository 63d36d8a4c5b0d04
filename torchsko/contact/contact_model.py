"""Soft constraints of a mechanism as tensors: contact pairs, equalities, limits and dry friction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.contact.inverse_weights import InverseWeights
from torchsko.contact.lengths import Lengths, equality_fields, limit_fields, loss_fields
from torchsko.contact.pair_groups import PairGroup, group_pairs, max_contacts_of
from torchsko.contact.shape_pairs import body_of, shape_pairs, size_of
from torchsko.contact.soft_constraints import safe_solref
from torchsko.contact.value_checks import SOLREFS, check_values
from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.file_data.solver_options import SolverOptions
from torchsko.mechanism.file_data.touching_pairs import kind_of
from torchsko.mechanism.geometry import ConvexHull, HeightField, Surface, Triangles
from torchsko.mechanism.mechanism import Mechanism

PARAMETER_DIMS: dict[str, int] = {
    "shape_size": 2,
    "shape_rotation": 3,
    "shape_position": 2,
    "shape_invweight": 2,
    "mesh_vertices": 2,
    "heights": 3,
    "friction": 2,
    "solref": 2,
    "solref_friction": 2,
    "solimp": 2,
    "margin": 1,
    "equality_rotation": 4,
    "equality_position": 3,
    "equality_numbers": 2,
    "equality_solref": 2,
    "equality_solimp": 2,
    "equality_invweight": 2,
    "equality_active": 1,
    "tendon_transmission": 2,
    "tendon_range": 2,
    "tendon_friction": 1,
    "tendon_armature": 1,
    "ball_angle": 1,
    "limit_solref": 2,
    "limit_solimp": 2,
    "limit_margin": 1,
    "limit_invweight": 1,
    "loss_solref": 2,
    "loss_solimp": 2,
    "loss_invweight": 1,
}
"""Numbers of dimensions of the tensors of `ContactModel` without a batch."""


@dataclass(frozen=True, eq=False)
class ContactModel:
    """Soft constraints of a mechanism: immutable tensors and names, as in `Mechanism`.

    Every tensor of parameters may have leading batch dimensions, and has gradients. S is the number of
    shapes, V that of the vertices of all meshes, P that of pairs, E that of equalities and T that of tendons.
    B is the number of limited ball joints, L that of other limits, F that of dofs and tendons with dry
    friction. Lengths are the coordinates of joints, by the dof of the tree, then those of tendons, from
    num_tree_dof on.

    Attributes:
        shape_names: of the shapes in any pair.
        shape_kinds: kind of each shape.
        shape_bodies: body of each shape; num_bodies stands for the inertial frame.
        shape_size: half sizes, `[S, 3]` [m]; see `torchsko.contact.collision`.
        shape_rotation: axes of the shapes in their bodies, `[S, 3, 3]`.
        shape_position: centres in their bodies, `[S, 3]` [m].
        shape_invweight: inverse mass and inverse inertia of the bodies in the initial configuration,
            `[S, 2]` [1/kg, 1/(kg m^2)]. They scale the softness and do not follow masses.
        mesh_vertices: vertices of the convex hulls of all meshes, in the frames of the shapes, `[V, 3]` [m].
        hulls: convex hull of each mesh; its vertices are indices of ``mesh_vertices``.
        heights: of each height field, `[fields, rows, columns]` [m].
        groups: pairs by kinds of shapes.
        pair_shapes: first and second shape of each pair.
        condim: dimension of the contact force of each pair.
        friction: two sliding, one torsional and two rolling coefficients, `[P, 5]` [1, 1, m, m, m].
        solref: reference parameters, `[P, 2]`.
        solref_friction: of the friction of elliptic cones, `[P, 2]`; zeros for ``solref``.
        solimp: impedance parameters, `[P, 5]`.
        margin: distance below which a contact exerts force, `[P]` [m].
        equality_names: of the equalities.
        equality_kinds: kinds of constraints, see `torchsko.constraints`.
        equality_ends: both bodies of each equality, num_bodies for the inertial frame; or both lengths.
        equality_rotation: axes of both frames in their bodies, `[E, 2, 3, 3]`.
        equality_position: origins of both frames in their bodies, `[E, 2, 3]` [m].
        equality_numbers: parameters of the kind, padded by zeros, `[E, 5]`: coefficients of the polynomial of
            a length, or the torque scale of a weld [m/rad].
        equality_solref: `[E, 2]`.
        equality_solimp: `[E, 5]`.
        equality_invweight: inverse mass and inverse inertia of both bodies, `[E, 2]` [1/kg, 1/(kg m^2)]; of
            lengths the first is that of both lengths.
        equality_active: 1 for equalities that act, 0 for others, `[E]`.
        tendon_names: of the tendons.
        tendon_transmission: rates of lengths over rates of all joints, `[T, num_tree_dof]`.
        tendon_range: limits of lengths, `[T, 2]` [m or rad].
        tendon_friction: dry friction, `[T]` [N or N m].
        tendon_armature: inertia of lengths, `[T]` [kg or kg m^2].
        armature_tendons: indices of the tendons with armature.
        ball_q: first coordinate of each ball joint with a limit.
        ball_dof: first dof of each of them.
        ball_angle: largest rotations, `[B]` [rad].
        limit_q: indices of the limited coordinates; num_q + t for tendon t.
        limit_dof: their lengths.
        limit_side: -1 for the lower limit, 1 for the upper, 0 for the nearer of both.
        limit_solref: `[L + B, 2]`, those of ball joints last.
        limit_solimp: `[L + B, 5]`.
        limit_margin: `[L + B]` [rad or m].
        limit_invweight: `[L + B]` [1/kg or 1/(kg m^2)].
        loss_dof: lengths with dry friction.
        loss_solref: `[F, 2]`.
        loss_solimp: `[F, 5]`.
        loss_invweight: `[F]` [1/kg or 1/(kg m^2)].
        options: parameters of the whole model.
        unsupported: pairs of shapes without a collision function, and closures of kinds without rows.
    """

    shape_names: tuple[str, ...]
    shape_kinds: tuple[str, ...]
    shape_bodies: tuple[int, ...]
    shape_size: Tensor
    shape_rotation: Tensor
    shape_position: Tensor
    shape_invweight: Tensor
    mesh_vertices: Tensor
    hulls: tuple[ConvexHull, ...]
    heights: Tensor
    groups: tuple[PairGroup, ...]
    pair_shapes: tuple[tuple[int, int], ...]
    condim: tuple[int, ...]
    friction: Tensor
    solref: Tensor
    solref_friction: Tensor
    solimp: Tensor
    margin: Tensor
    equality_names: tuple[str, ...]
    equality_kinds: tuple[str, ...]
    equality_ends: tuple[tuple[int, int], ...]
    equality_rotation: Tensor
    equality_position: Tensor
    equality_numbers: Tensor
    equality_solref: Tensor
    equality_solimp: Tensor
    equality_invweight: Tensor
    equality_active: Tensor
    tendon_names: tuple[str, ...]
    tendon_transmission: Tensor
    tendon_range: Tensor
    tendon_friction: Tensor
    tendon_armature: Tensor
    armature_tendons: tuple[int, ...]
    ball_q: tuple[int, ...]
    ball_dof: tuple[int, ...]
    ball_angle: Tensor
    limit_q: tuple[int, ...]
    limit_dof: tuple[int, ...]
    limit_side: tuple[int, ...]
    limit_solref: Tensor
    limit_solimp: Tensor
    limit_margin: Tensor
    limit_invweight: Tensor
    loss_dof: tuple[int, ...]
    loss_solref: Tensor
    loss_solimp: Tensor
    loss_invweight: Tensor
    options: SolverOptions
    unsupported: tuple[str, ...] = ()

    @staticmethod
    def of(
        mech: MechanismLike, *, max_contacts: int | Mapping[tuple[str, str], int] | None = None
    ) -> ContactModel:
        """The constraints of a mechanism, from its shapes, closures, tendons, limits and dry friction.

        Closures with ``method="cut"`` are soft equalities; embedded ones and couplings hold exactly.

        Args:
            mech: the mechanism, without batch dimensions of its parameters.
            max_contacts: largest number of contacts of all pairs, or of pairs by the names of their shapes;
                by default eight of two boxes and four of other pairs. The deepest ones are kept, and
                `torchsko.contacts` counts the others.

        Raises:
            MechanismError: on an unknown pair, when a size, a margin or a number of contacts is out of
                range, and when no inertia resists a joint.

        Warns:
            RobotFileWarning: when a time constant is less than two time steps.

        Example:
            >>> import torchsko as ts
            >>> text = '''<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/>
            ...   <body pos="0 0 1"><freejoint/><geom name="ball" size="0.1"/></body></worldbody></mujoco>'''
            >>> ts.ContactModel.of(ts.load(text)).pair_names
            (('floor', 'ball'),)
        """
        return _contact_model(as_mechanism(mech), max_contacts)

    @property
    def pair_names(self) -> tuple[tuple[str, str], ...]:
        """Names of the two shapes of each pair."""
        return tuple((self.shape_names[i], self.shape_names[j]) for i, j in self.pair_shapes)

    @property
    def num_limits(self) -> int:
        """Number of rows of limits."""
        return len(self.limit_dof) + len(self.ball_dof)

    def points_by_condim(self, pair: Sequence[int]) -> dict[int, list[int]]:
        """Indices of contact points by the dimension of their force, for the pair of each point."""
        condims = [self.condim[k] for k in pair]
        return {d: [c for c, x in enumerate(condims) if x == d] for d in sorted({*condims})}

    def replace(self, **changes: Tensor) -> ContactModel:
        """A copy with some tensors of parameters changed, with any leading batch dimensions.

        Raises:
            MechanismError: on an unknown name, and when a size or a margin is out of range.
            ShapeError: when the last dimensions of a tensor change.
        """
        for name, x in changes.items():
            if name not in PARAMETER_DIMS:
                raise MechanismError(
                    *unknown_name("tensor of ContactModel", name, tuple(PARAMETER_DIMS))
                )
            shape = getattr(self, name).shape
            shape = shape[len(shape) - PARAMETER_DIMS[name] :]
            if not isinstance(x, Tensor) or x.shape[x.ndim - len(shape) :] != shape:
                raise ShapeError(
                    f"{name} has shape {list(getattr(x, 'shape', ()))}.",
                    "Each shape, pair, equality, tendon, limit or dof has one entry.",
                    f"Pass a tensor of shape [*batch, {', '.join(map(str, shape))}].",
                )
        changed = replace(self, **changes)
        check_values(changed, changes)
        return changed

    def at_timestep(self, dt: float | Tensor) -> ContactModel:
        """A copy for another time step [s], a number or `[*batch, 1]`, which bounds time constants."""
        if isinstance(dt, Tensor):
            if not self.options.refsafe:
                return self
            names = (*SOLREFS, "solref_friction")
            safe = {name: safe_solref(getattr(self, name), dt) for name in names}
            return replace(self, options=replace(self.options, refsafe=False), **safe)
        if dt == self.options.timestep:
            return self
        changed = replace(self, options=replace(self.options, timestep=dt))
        check_values(changed, SOLREFS)
        return changed

    def to(self, target: torch.device | torch.dtype) -> ContactModel:
        """Copy on another device, or in another floating-point type."""
        return replace(self, **{name: getattr(self, name).to(target) for name in PARAMETER_DIMS})


def _contact_model(
    mech: Mechanism, max_contacts: int | Mapping[tuple[str, str], int] | None
) -> ContactModel:
    options = mech.file_metadata.solver
    pairs, unsupported = ((), ()) if "contact" in options.disabled else shape_pairs(mech)
    used = sorted({k for pair in pairs for k in (pair.first, pair.second)})
    place = {k: n for n, k in enumerate(used)}
    inverse = InverseWeights(mech)

    def number(rows: Sequence[Any], *size: int) -> Tensor:
        return torch.tensor(rows, dtype=mech.dtype, device=mech.device).reshape(len(rows), *size)

    lengths = Lengths.of(mech, inverse)
    equalities, unknown = equality_fields(mech, lengths, inverse, number)
    names = tuple(mech.geometry.shapes[k].name or f"shape{k}" for k in used)
    kinds = tuple(kind_of(mech.geometry.shapes[k].form) for k in used)
    most = max_contacts_of(
        [(place[pair.first], place[pair.second]) for pair in pairs], names, kinds, max_contacts
    )
    hulls, vertices, meshes = _hulls(mech, used)
    fields, heights = _fields(mech, used)
    model = ContactModel(
        shape_names=names,
        shape_kinds=kinds,
        **_shapes(mech, used, inverse, number),
        mesh_vertices=number(vertices, 3),
        hulls=hulls,
        heights=torch.as_tensor(heights, dtype=mech.dtype, device=mech.device),
        groups=group_pairs(pairs, place, kinds, most, meshes, fields),
        pair_shapes=tuple((place[pair.first], place[pair.second]) for pair in pairs),
        condim=tuple(pair.condim for pair in pairs),
        friction=number([pair.friction for pair in pairs], 5),
        solref=number([pair.solref for pair in pairs], 2),
        solref_friction=number([pair.solref_friction for pair in pairs], 2),
        solimp=number([pair.solimp for pair in pairs], 5),
        margin=number([pair.margin for pair in pairs]),
        **equalities,
        **lengths.fields(number),
        **limit_fields(mech, lengths, number),
        **loss_fields(mech, lengths, number),
        options=options,
        unsupported=(*unsupported, *unknown),
    )
    check_values(model, PARAMETER_DIMS)
    return model


def _hulls(
    mech: Mechanism, used: Sequence[int]
) -> tuple[tuple[ConvexHull, ...], list[list[float]], dict[int, int]]:
    """Hulls of meshes, all their vertices, and the hull of each shape."""
    hulls: list[ConvexHull] = []
    vertices: list[list[float]] = []
    found, meshes = {}, {}
    for n, k in enumerate(used):
        form = mech.geometry.shapes[k].form
        if not isinstance(form, Triangles) or form.hull is None:
            continue
        if id(form) not in found:
            found[id(form)] = len(hulls)
            count = len(form.hull.vertices)
            own = tuple(range(len(vertices), len(vertices) + count))
            hulls.append(replace(form.hull, vertices=own))
            vertices += form.vertices[list(form.hull.vertices)].tolist()
        meshes[n] = found[id(form)]
    return tuple(hulls), vertices, meshes


def _fields(mech: Mechanism, used: Sequence[int]) -> tuple[dict[int, int], np.ndarray]:
    """Number of the height field of each shape, and all heights."""
    fields: dict[int, int] = {}
    heights = []
    for n, k in enumerate(used):
        form = mech.geometry.shapes[k].form
        if isinstance(form, HeightField):
            fields[n] = len(heights)
            heights.append(form.heights)
    if len({x.shape for x in heights}) > 1:
        raise MechanismError(
            f"the height fields of {mech.name!r} have {[x.shape for x in heights]} rows and columns.",
            "Heights are one tensor [fields, rows, columns].",
            "Give all height fields the same numbers of rows and columns.",
        )
    return fields, np.stack(heights) if heights else np.zeros((0, 0, 0))


def _shapes(
    mech: Mechanism, used: Sequence[int], inverse: InverseWeights, number: Callable[..., Tensor]
) -> dict[str, Any]:
    shapes = [mech.geometry.shapes[k] for k in used]
    bodies = [body_of(mech, shape.frame) for shape in shapes]
    rotation = number([shape.rotation for shape in shapes], 3, 3)
    position = number([shape.position for shape in shapes], 3)
    for k, shape in enumerate(shapes):
        if shape.frame is not None:
            f = mech.frame_index(shape.frame)
            R, r = mech.frame_rotation[f], mech.frame_position[f]
            position[k] = r + R @ position[k]
            rotation[k] = R @ rotation[k]
    weights = [
        (shape.surface or Surface()).invweight or inverse.of_frame(shape.frame) for shape in shapes
    ]
    return {
        "shape_bodies": tuple(mech.num_bodies if b < 0 else b for b in bodies),
        "shape_size": number([size_of(shape.form) for shape in shapes], 3),
        "shape_rotation": rotation,
        "shape_position": position,
        "shape_invweight": number(weights, 2),
    }
