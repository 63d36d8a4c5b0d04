"""Fields of a contact model: tensors, names and index structures."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchsko.contact.pair_groups import PairGroup
from torchsko.mechanism.file_data.solver_options import SolverOptions
from torchsko.mechanism.geometry import ConvexHull

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
    "coupled_range": 2,
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

WEIGHTS = ("shape_invweight", "equality_invweight", "limit_invweight", "loss_invweight")
"""Inverse weights, which scale the softness."""


@dataclass(frozen=True, eq=False)
class ContactFields:
    """Base class of `ContactModel`, which documents the attributes; checks of values take it."""

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
    coupled_range: Tensor
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
    joint_names: tuple[str, ...]
    options: SolverOptions
    unsupported: tuple[str, ...] = ()
    has_small_friction: bool = True

    @property
    def pair_names(self) -> tuple[tuple[str, str], ...]:
        """Names of the two shapes of each pair."""
        return tuple((self.shape_names[i], self.shape_names[j]) for i, j in self.pair_shapes)
