"""Soft constraints of a mechanism as tensors: contact pairs, position limits and dry friction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchsko.contact.collision import KINDS
from torchsko.contact.shape_pairs import ShapePair, body_of, shape_pairs, size_of
from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.file_data.solver_options import SOLIMP, SOLREF, SolverOptions
from torchsko.mechanism.geometry import Surface
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import mass_matrix
from torchsko.verbs.frames import frame_jacobian

PARAMETER_SIZES: dict[str, tuple[int, ...]] = {
    "shape_size": (3,),
    "shape_rotation": (3, 3),
    "shape_position": (3,),
    "shape_invweight": (2,),
    "friction": (5,),
    "solref": (2,),
    "solref_friction": (2,),
    "solimp": (5,),
    "margin": (),
    "gap": (),
    "limit_solref": (2,),
    "limit_solimp": (5,),
    "limit_margin": (),
    "limit_invweight": (),
    "loss_solref": (2,),
    "loss_solimp": (5,),
    "loss_invweight": (),
}
"""Last dimensions of the tensors of `ContactModel`, after the shapes, pairs, limits or dofs."""


@dataclass(frozen=True)
class PairGroup:
    """Pairs of the same kinds of shapes.

    Attributes:
        kinds: of the two shapes.
        pairs: indices of the pairs.
        first: indices of their first shapes.
        second: indices of their second shapes.
    """

    kinds: tuple[str, str]
    pairs: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ContactModel:
    """Soft constraints of a mechanism: immutable tensors and names, as in `Mechanism`.

    Every tensor of parameters may have leading batch dimensions, and has gradients. S is the number of
    shapes, P that of pairs, L that of limited coordinates, F that of dofs with dry friction.

    Attributes:
        shape_names: of the shapes in any pair.
        shape_bodies: body of each shape; num_bodies stands for the inertial frame.
        shape_size: half sizes, `[S, 3]` [m]; see `torchsko.contact.collision`.
        shape_rotation: axes of the shapes in their bodies, `[S, 3, 3]`.
        shape_position: centres in their bodies, `[S, 3]` [m].
        shape_invweight: inverse mass and inverse inertia of the bodies in the initial configuration,
            `[S, 2]` [1/kg, 1/(kg m^2)]. They scale the softness and do not follow masses.
        groups: pairs by kinds of shapes.
        pair_shapes: first and second shape of each pair.
        condim: dimension of the contact force of each pair.
        friction: two sliding, one torsional and two rolling coefficients, `[P, 5]` [1, 1, m, m, m].
        solref: reference parameters, `[P, 2]`.
        solref_friction: of the friction of elliptic cones, `[P, 2]`; zeros for ``solref``.
        solimp: impedance parameters, `[P, 5]`.
        margin: distance below which a contact exists, `[P]` [m].
        gap: part of the margin without force, `[P]` [m].
        limit_q: indices of the limited coordinates.
        limit_dof: indices of their dofs.
        limit_solref: `[L, 2]`.
        limit_solimp: `[L, 5]`.
        limit_margin: `[L]` [rad or m].
        limit_invweight: `[L]` [1/kg or 1/(kg m^2)].
        loss_dof: indices of the dofs with dry friction.
        loss_solref: `[F, 2]`.
        loss_solimp: `[F, 5]`.
        loss_invweight: `[F]` [1/kg or 1/(kg m^2)].
        options: parameters of the whole model.
        unsupported: pairs of shapes without a collision function.
    """

    shape_names: tuple[str, ...]
    shape_bodies: tuple[int, ...]
    shape_size: Tensor
    shape_rotation: Tensor
    shape_position: Tensor
    shape_invweight: Tensor
    groups: tuple[PairGroup, ...]
    pair_shapes: tuple[tuple[int, int], ...]
    condim: tuple[int, ...]
    friction: Tensor
    solref: Tensor
    solref_friction: Tensor
    solimp: Tensor
    margin: Tensor
    gap: Tensor
    limit_q: tuple[int, ...]
    limit_dof: tuple[int, ...]
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
    def of(mech: MechanismLike) -> ContactModel:
        """The constraints of a mechanism, from its shapes, position limits and dry friction.

        Args:
            mech: the mechanism, without batch dimensions of its parameters.

        Raises:
            MechanismError: when joints follow others or loops are embedded, which is not supported yet.

        Example:
            >>> import torchsko as ts
            >>> text = '''<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/>
            ...   <body pos="0 0 1"><freejoint/><geom name="ball" size="0.1"/></body></worldbody></mujoco>'''
            >>> ts.ContactModel.of(ts.load(text)).pair_names
            (('floor', 'ball'),)
        """
        return _contact_model(as_mechanism(mech))

    @property
    def pair_names(self) -> tuple[tuple[str, str], ...]:
        """Names of the two shapes of each pair."""
        return tuple((self.shape_names[i], self.shape_names[j]) for i, j in self.pair_shapes)

    def points_by_condim(self, pair: Sequence[int]) -> dict[int, list[int]]:
        """Indices of contact points by the dimension of their force, for the pair of each point."""
        condims = [self.condim[k] for k in pair]
        return {d: [c for c, x in enumerate(condims) if x == d] for d in sorted({*condims})}

    def replace(self, **changes: Tensor) -> ContactModel:
        """A copy with some tensors of parameters changed, with any leading batch dimensions.

        Raises:
            MechanismError: on an unknown name.
            ShapeError: when the last dimensions of a tensor change.
        """
        for name, x in changes.items():
            if name not in PARAMETER_SIZES:
                raise MechanismError(
                    *unknown_name("tensor of ContactModel", name, tuple(PARAMETER_SIZES))
                )
            shape = getattr(self, name).shape
            shape = shape[len(shape) - 1 - len(PARAMETER_SIZES[name]) :]
            if not isinstance(x, Tensor) or x.shape[x.ndim - len(shape) :] != shape:
                raise ShapeError(
                    f"{name} has shape {list(getattr(x, 'shape', ()))}.",
                    "Each shape, pair, limit or dof has one entry.",
                    f"Pass a tensor of shape [*batch, {', '.join(map(str, shape))}].",
                )
        return replace(self, **changes)

    def to(self, target: torch.device | torch.dtype) -> ContactModel:
        """Copy on another device, or in another floating-point type."""
        return replace(self, **{name: getattr(self, name).to(target) for name in PARAMETER_SIZES})


def _contact_model(mech: Mechanism) -> ContactModel:
    if mech.coupling is not None or mech.closing is not None:
        raise MechanismError(
            f"{mech.name!r} has joints that follow others, or embedded loops.",
            "Contact of such mechanisms is not supported yet.",
            "Load the robot without its mimic joints, joint equalities and loops.",
        )
    options = mech.file_metadata.solver
    pairs, unsupported = ((), ()) if "contact" in options.disabled else shape_pairs(mech)
    used = sorted({k for pair in pairs for k in (pair.first, pair.second)})
    place = {k: n for n, k in enumerate(used)}
    limit_q, limit_dof = ((), ()) if "limit" in options.disabled else _limits(mech)
    losses = (
        () if "frictionloss" in options.disabled else tuple(mech.friction.nonzero()[:, 0].tolist())
    )
    inverse = _InverseWeights(mech)

    def number(rows: Sequence[Any], *size: int) -> Tensor:
        return torch.tensor(rows, dtype=mech.dtype, device=mech.device).reshape(len(rows), *size)

    dof_invweight = options.dof_invweight or inverse.of_dofs()
    return ContactModel(
        **_shapes(mech, used, inverse, number),
        groups=_groups(mech, pairs, place),
        pair_shapes=tuple((place[pair.first], place[pair.second]) for pair in pairs),
        condim=tuple(pair.condim for pair in pairs),
        friction=number([pair.friction for pair in pairs], 5),
        solref=number([pair.solref for pair in pairs], 2),
        solref_friction=number([pair.solref_friction for pair in pairs], 2),
        solimp=number([pair.solimp for pair in pairs], 5),
        margin=number([pair.margin for pair in pairs]),
        gap=number([pair.gap for pair in pairs]),
        limit_q=limit_q,
        limit_dof=limit_dof,
        limit_solref=number([_entry(options.limit_solref, k, SOLREF) for k in limit_q], 2),
        limit_solimp=number([_entry(options.limit_solimp, k, SOLIMP) for k in limit_q], 5),
        limit_margin=number([_entry(options.limit_margin, k, 0.0) for k in limit_q]),
        limit_invweight=number([dof_invweight[k] for k in limit_dof]),
        loss_dof=losses,
        loss_solref=number([_entry(options.friction_solref, k, SOLREF) for k in losses], 2),
        loss_solimp=number([_entry(options.friction_solimp, k, SOLIMP) for k in losses], 5),
        loss_invweight=number([dof_invweight[k] for k in losses]),
        options=options,
        unsupported=unsupported,
    )


def _entry(values: Sequence[Any], k: int, default: Any) -> Any:
    return values[k] if values else default


def _limits(mech: Mechanism) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Coordinates with a finite limit in joints with as many coordinates as dofs, and their dofs."""
    coordinates, dofs = [], []
    for name, kind in zip(mech.joint_names, mech.joints.kinds, strict=True):
        if not kind.vector:
            continue
        first_q, first_dof = mech.q_slice(name).start, mech.dof_slice(name).start
        for k in range(kind.num_q):
            if bool(
                torch.isfinite(mech.lower[first_q + k]) | torch.isfinite(mech.upper[first_q + k])
            ):
                coordinates.append(first_q + k)
                dofs.append(first_dof + k)
    return tuple(coordinates), tuple(dofs)


def _shapes(
    mech: Mechanism, used: Sequence[int], inverse: _InverseWeights, number: Callable[..., Tensor]
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
    sizes = [size_of(shape.form) for shape in shapes]
    weights = [
        (shape.surface or Surface()).invweight or inverse.of_body(body)
        for shape, body in zip(shapes, bodies, strict=True)
    ]
    return {
        "shape_names": tuple(
            shape.name or f"shape{k}" for k, shape in zip(used, shapes, strict=True)
        ),
        "shape_bodies": tuple(mech.num_bodies if b < 0 else b for b in bodies),
        "shape_size": number([size[1] for size in sizes if size is not None], 3),
        "shape_rotation": rotation,
        "shape_position": position,
        "shape_invweight": number(weights, 2),
    }


def _groups(
    mech: Mechanism, pairs: Sequence[ShapePair], place: dict[int, int]
) -> tuple[PairGroup, ...]:
    shapes = mech.geometry.shapes
    by_kinds: dict[tuple[str, str], list[int]] = {}
    for k, pair in enumerate(pairs):
        first, second = (size_of(shapes[i].form) for i in (pair.first, pair.second))
        if first is not None and second is not None:
            by_kinds.setdefault((first[0], second[0]), []).append(k)
    order = sorted(by_kinds, key=lambda kinds: tuple(map(KINDS.index, kinds)))
    return tuple(
        PairGroup(
            kinds,
            tuple(by_kinds[kinds]),
            tuple(place[pairs[k].first] for k in by_kinds[kinds]),
            tuple(place[pairs[k].second] for k in by_kinds[kinds]),
        )
        for kinds in order
    )


class _InverseWeights:
    """Inverse masses and inertias of bodies and dofs in the initial configuration, as MuJoCo defines them."""

    def __init__(self, mech: Mechanism) -> None:
        self.mech = mech
        initial = mech.file_metadata.initial
        self.q = mech.neutral() if initial is None else initial
        self.inverse = torch.linalg.inv(mass_matrix(mech, self.q))

    def of_dofs(self) -> tuple[float, ...]:
        """Diagonal of the inverse mass matrix, averaged over ball joints and the halves of free joints."""
        mech, diagonal = self.mech, self.inverse.diagonal().clone()
        for name, kind in zip(mech.joint_names, mech.joints.kinds, strict=True):
            at = mech.dof_slice(name)
            if not kind.vector:
                for first in range(at.start, at.stop, 3):
                    diagonal[first : first + 3] = diagonal[first : first + 3].mean()
        return tuple(diagonal.tolist())

    def of_body(self, body: int) -> tuple[float, float]:
        """Mean inverse mass and mean inverse inertia of a body at its centre of mass."""
        if body < 0:
            return 0.0, 0.0
        mech = self.mech
        J = frame_jacobian(mech, self.q, mech.body_names[body])
        swing = torch.linalg.cross(J[:3].mT, mech.com[body].expand(mech.num_dof, 3)).mT
        J = torch.cat([J[:3], J[3:] + swing])
        diagonal = (J @ self.inverse @ J.mT).diagonal()
        return float(diagonal[3:].mean()), float(diagonal[:3].mean())
