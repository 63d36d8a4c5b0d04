"""Fields of a contact model: tensors, names and index structures."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from torch import Tensor

from torchsko.constraints.constraint_kinds import soft_kind
from torchsko.constraints.row_kinds import FrameRows, JointRows
from torchsko.contact.contact_tables import ContactTables
from torchsko.contact.pair_groups import PairGroup
from torchsko.mechanism.file_data.solver_options import SolverOptions
from torchsko.shapes.candidate_points import ConvexHull

WEIGHTS = ("shape_invweight", "equality_invweight", "limit_invweight", "loss_invweight")
"""Inverse weights, which scale the softness."""


def dims(number: int) -> dict[str, int]:
    """Metadata of a field that is a tensor of parameters: its number of dimensions without a batch."""
    return {"dims": number}


@dataclass(frozen=True, eq=False)
class ContactFields:
    """Base class of `ContactModel`, for checks of values."""

    shape_names: tuple[str, ...]
    """Of the shapes in any pair."""
    shape_kinds: tuple[str, ...]
    """Kind of each shape."""
    shape_bodies: tuple[int, ...]
    """Body of each shape; num_bodies stands for the inertial frame."""
    shape_size: Tensor = field(metadata=dims(2))
    """Half sizes, `[S, 3]` [m]; see `torchsko.shapes`."""
    shape_rotation: Tensor = field(metadata=dims(3))
    """Axes of the shapes in their bodies, `[S, 3, 3]`."""
    shape_position: Tensor = field(metadata=dims(2))
    """Centers in their bodies, `[S, 3]` [m]."""
    shape_invweight: Tensor = field(metadata=dims(2))
    """Inverse mass and inverse inertia of the bodies in the initial configuration, `[S, 2]` [1/kg, 1/(kg
    m^2)]. They scale the softness; see `with_weights_of`.
    """
    mesh_vertices: Tensor = field(metadata=dims(2))
    """Vertices of the convex hulls of all meshes, in the frames of the shapes, `[V, 3]` [m]."""
    hulls: tuple[ConvexHull, ...]
    """Convex hull of each mesh; its vertices are indices of ``mesh_vertices``."""
    heights: Tensor = field(metadata=dims(3))
    """Of each height field, `[fields, rows, columns]` [m]."""
    groups: tuple[PairGroup, ...]
    """Pairs by kinds of shapes."""
    pair_shapes: tuple[tuple[int, int], ...]
    """First and second shape of each pair."""
    tables: ContactTables
    """Constant tables of the contacts."""
    condim: tuple[int, ...]
    """Dimension of the contact force of each pair."""
    friction: Tensor = field(metadata=dims(2))
    """Two sliding, one torsional and two rolling coefficients, `[P, 5]` [1, 1, m, m, m]."""
    solref: Tensor = field(metadata=dims(2))
    """Reference parameters, `[P, 2]`."""
    solref_friction: Tensor = field(metadata=dims(2))
    """Of the friction of elliptic cones, `[P, 2]`; zeros for ``solref``."""
    solimp: Tensor = field(metadata=dims(2))
    """Impedance parameters, `[P, 5]`."""
    margin: Tensor = field(metadata=dims(1))
    """Distance below which a contact exerts force, `[P]` [m]."""
    equality_names: tuple[str, ...]
    """Of the equalities."""
    equality_kinds: tuple[str, ...]
    """Kinds of constraints, see `torchsko.constraints`."""
    equality_ends: tuple[tuple[int, int], ...]
    """Both bodies of each equality, num_bodies for the inertial frame; or both lengths."""
    equality_rotation: Tensor = field(metadata=dims(4))
    """Axes of both frames in their bodies, `[E, 2, 3, 3]`."""
    equality_position: Tensor = field(metadata=dims(3))
    """Origins of both frames in their bodies, `[E, 2, 3]` [m]."""
    equality_numbers: Tensor = field(metadata=dims(2))
    """Parameters of the kinds, padded by zeros, `[E, p]`: coefficients of a polynomial, or the torque
    scale of a weld [m/rad].
    """
    equality_solref: Tensor = field(metadata=dims(2))
    """`[E, 2]`."""
    equality_solimp: Tensor = field(metadata=dims(2))
    """`[E, 5]`."""
    equality_invweight: Tensor = field(metadata=dims(2))
    """Inverse mass and inverse inertia of both bodies, `[E, 2]` [1/kg, 1/(kg m^2)]; of lengths the first
    is that of both lengths.
    """
    equality_active: Tensor = field(metadata=dims(1))
    """1 for equalities that act, 0 for others, `[E]`."""
    tendon_names: tuple[str, ...]
    """Of the tendons."""
    tendon_transmission: Tensor = field(metadata=dims(2))
    """Rates of lengths over rates of all joints, `[T, num_tree_dof]`."""
    tendon_range: Tensor = field(metadata=dims(2))
    """Limits of lengths, `[T, 2]` [m or rad]."""
    tendon_friction: Tensor = field(metadata=dims(1))
    """Dry friction, `[T]` [N or N m]."""
    tendon_armature: Tensor = field(metadata=dims(1))
    """Inertia of lengths, `[T]` [kg or kg m^2]."""
    armature_tendons: tuple[int, ...]
    """Indices of the tendons with armature."""
    coupled_range: Tensor = field(metadata=dims(2))
    """Limits of joints that follow others, and of their leaders, `[K, 2]` [rad or m]."""
    ball_q: tuple[int, ...]
    """First coordinate of each ball joint with a limit."""
    ball_dof: tuple[int, ...]
    """First dof of each of them."""
    ball_angle: Tensor = field(metadata=dims(1))
    """Largest rotations, `[B]` [rad]."""
    limit_q: tuple[int, ...]
    """Indices of the limited coordinates; num_q + t for tendon t, num_q + T + k for row k of
    ``coupled_range``.
    """
    limit_dof: tuple[int, ...]
    """Their lengths."""
    limit_side: tuple[int, ...]
    """-1 for the lower limit, 1 for the upper, 0 for the nearer of both."""
    limit_solref: Tensor = field(metadata=dims(2))
    """`[L + B, 2]`, those of ball joints last."""
    limit_solimp: Tensor = field(metadata=dims(2))
    """`[L + B, 5]`."""
    limit_margin: Tensor = field(metadata=dims(1))
    """`[L + B]` [rad or m]."""
    limit_invweight: Tensor = field(metadata=dims(1))
    """`[L + B]` [1/kg or 1/(kg m^2)]."""
    loss_dof: tuple[int, ...]
    """Lengths with dry friction."""
    loss_solref: Tensor = field(metadata=dims(2))
    """`[F, 2]`."""
    loss_solimp: Tensor = field(metadata=dims(2))
    """`[F, 5]`."""
    loss_invweight: Tensor = field(metadata=dims(1))
    """`[F]` [1/kg or 1/(kg m^2)]."""
    joint_names: tuple[str, ...]
    """Of all joints of the mechanism."""
    options: SolverOptions
    """Parameters of the whole model."""
    unsupported: tuple[str, ...] = ()
    """Pairs of shapes without a collision function, and closures of kinds without rows."""
    has_small_friction: bool = True
    """Whether a coefficient of friction may be so small that the solver searches along its steps for
    longer; True where values cannot be read.
    """

    @property
    def pair_names(self) -> tuple[tuple[str, str], ...]:
        """Names of the two shapes of each pair."""
        return tuple((self.shape_names[i], self.shape_names[j]) for i, j in self.pair_shapes)

    def equalities_by_kind(self) -> dict[FrameRows | JointRows, list[int]]:
        """Indices of equalities by the kind of their rows, in the order of the rows."""
        found: dict[FrameRows | JointRows, list[int]] = {}
        for k, name in enumerate(self.equality_kinds):
            kind = soft_kind(name)
            assert kind is not None
            found.setdefault(kind, []).append(k)
        return found


PARAMETER_DIMS: dict[str, int] = {
    f.name: f.metadata["dims"] for f in fields(ContactFields) if f.metadata
}
"""Numbers of dimensions of the tensors of `ContactModel` without a batch."""
