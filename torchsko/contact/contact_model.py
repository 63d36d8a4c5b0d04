"""Soft constraints of a mechanism as tensors: contact pairs, equalities, limits and dry friction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchsko.contact.contact_fields import PARAMETER_DIMS, WEIGHTS, ContactFields
from torchsko.contact.contact_tables import ContactTables
from torchsko.contact.inverse_weights import has_file_weights
from torchsko.contact.lengths import Lengths, equality_fields, limit_fields, loss_fields
from torchsko.contact.model_weights import computed_weights, file_weights
from torchsko.contact.pair_groups import group_pairs, max_contacts_of
from torchsko.contact.shape_fields import height_fields, mesh_hulls, shape_fields
from torchsko.contact.shape_pairs import shape_pairs
from torchsko.contact.softness import safe_solref
from torchsko.contact.value_checks import (
    NUM_COEFFICIENTS,
    SMALL_FRICTION,
    SOLREFS,
    check_mechanism,
    check_values,
    has_small_friction,
)
from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism


@dataclass(frozen=True, eq=False)
class ContactModel(ContactFields):
    """Soft constraints of a mechanism: immutable tensors and names, as in `Mechanism`.

    Every tensor of parameters may have leading batch dimensions, and has gradients. S is the number of
    shapes, V that of the vertices of all meshes, P that of pairs, E that of equalities and T that of tendons.
    B is the number of limited ball joints, L that of other limits, F that of dofs and tendons with dry
    friction. Lengths are the coordinates of joints, by the dof of the tree, then those of tendons, from
    num_tree_dof on.

    Its attributes are the table of fields in `torchsko.contact.contact_fields`.
    """

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
    def num_limits(self) -> int:
        """Number of rows of limits."""
        return len(self.limit_dof) + len(self.ball_dof)

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
        return replace(changed, has_small_friction=has_small_friction(changed))

    def with_weights_of(self, mech: MechanismLike) -> ContactModel:
        """A copy whose inverse weights, which scale the softness, are those of a mechanism's masses.

        Weights do not follow masses that change after `ContactModel.of`, as those of a compiled MuJoCo model.

        Args:
            mech: the mechanism, such as one with other masses. Weights have its batch dimensions, and
                gradients to its parameters.

        Raises:
            MechanismError: on a mechanism with other joints, and when no inertia resists a joint.

        Reference: MuJoCo documentation, ``mj_setConst``.

        Example:
            >>> import torchsko as ts
            >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body><freejoint/>
            ...   <geom size="0.1" mass="2"/></body></worldbody></mujoco>'''
            >>> ball = ts.load(text)
            >>> contact, heavy = ts.ContactModel.of(ball), ball.replace(mass=10 * ball.mass)
            >>> contact.with_weights_of(heavy).shape_invweight[1, 0]
            tensor(0.0500, dtype=torch.float64)
        """
        robot = as_mechanism(mech)
        check_mechanism(self, robot)
        return replace(self, **computed_weights(robot, self))

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
    if mech.layout.dofs.most > 1:
        raise MechanismError(
            f"{mech.name!r} has flexible bodies.",
            "A modal coordinate moves each point of its body along another axis; contact takes one axis "
            "for each dof.",
            "Simulate it with torchsko.rollout, or lock its modal coordinates: mech.lock({'..._modes': 0}).",
        )
    options = mech.file_metadata.solver
    pairs, unsupported = ((), ()) if "contact" in options.disabled else shape_pairs(mech)
    used = sorted({k for pair in pairs for k in (pair.first, pair.second)})
    place = {k: n for n, k in enumerate(used)}

    def number(rows: Sequence[Any], *size: int) -> Tensor:
        return torch.tensor(rows, dtype=mech.dtype, device=mech.device).reshape(len(rows), *size)

    lengths = Lengths.of(mech)
    equalities, unknown = equality_fields(mech, lengths, number)
    names = tuple(mech.geometry.shapes[k].name or f"shape{k}" for k in used)
    kinds = tuple(mech.geometry.shapes[k].form.kind for k in used)
    ends = tuple((place[pair.first], place[pair.second]) for pair in pairs)
    most = max_contacts_of(ends, names, kinds, max_contacts)
    hulls, vertices, meshes = mesh_hulls(mech, used)
    fields, heights = height_fields(mech, used)
    elevations = torch.as_tensor(heights, dtype=mech.dtype, device=mech.device)
    groups = group_pairs(pairs, place, kinds, most, meshes, fields)
    condim, of_shapes = tuple(pair.condim for pair in pairs), shape_fields(mech, used, number)
    points = [(group, group.num_points(hulls, elevations)) for group in groups]
    unknown_weights: dict[str, Any] = dict.fromkeys(WEIGHTS, number([]))
    model = ContactModel(
        shape_names=names,
        shape_kinds=kinds,
        **of_shapes,
        mesh_vertices=number(vertices, 3),
        hulls=hulls,
        heights=elevations,
        groups=groups,
        pair_shapes=ends,
        tables=ContactTables.of(mech, points, ends, of_shapes["shape_bodies"], condim),
        condim=condim,
        friction=number([pair.friction for pair in pairs], 5),
        solref=number([pair.solref for pair in pairs], 2),
        solref_friction=number([pair.solref_friction for pair in pairs], 2),
        solimp=number([pair.solimp for pair in pairs], 5),
        margin=number([pair.margin for pair in pairs]),
        **equalities,
        **lengths.fields(number),
        **limit_fields(mech, lengths, number),
        **loss_fields(mech, lengths, number),
        **unknown_weights,
        joint_names=mech.tree_joint_names,
        options=options,
        unsupported=(*unsupported, *unknown),
        has_small_friction=any(
            min(pair.friction[: NUM_COEFFICIENTS[pair.condim]], default=1.0) < SMALL_FRICTION
            for pair in pairs
        ),
    )
    weights = file_weights if has_file_weights(mech) else computed_weights
    model = replace(model, **weights(mech, model))
    check_values(model, PARAMETER_DIMS)
    return model
