"""Constraints that hold a frame, and the rows of several constraints of one mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.constraints.constraint_kinds import constraint_kind
from torchsko.constraints.row_kinds import FrameRows, JointRows
from torchsko.constraints.still import COMPONENTS, Still
from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.mechanism.data import uncoupled
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.loops.placements import (
    INERTIAL,
    MarkerPlace,
    Placements,
    closure_places,
)
from torchsko.mechanism.loops.row_set import IndexedConstraint, Rows, RowSet
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.utils.devices import on_device
from torchsko.utils.shapes import broadcast_shapes, gather_entries, matvec
from torchsko.verbs.frame import Frame, check_frame, place_of

Placement = Tensor | tuple[Tensor, Tensor]
"""A position `[*batch, 3]` [m], or a rotation `[*batch, 3, 3]` and a position, in the inertial frame."""


@dataclass(frozen=True, eq=False)
class HeldFrame:
    """A frame that is held in the inertial frame: a foot on the ground, a hand on a wall.

    Forces of the rows act on the mechanism at the frame's origin, in world axes, moments before forces.

    Attributes:
        frame: a name from ``mech.frame_names`` or a `Frame`.
        rows: "point", the origin stays (3 rows); "weld", the frame stays (6 rows: angular, linear);
            "planar", the origin stays within the xy plane of the placement, or of the world (2 rows, along x
            and y).
        placement: target in the inertial frame: a position `[*batch, 3]` [m], or a pair of a rotation
            `[*batch, 3, 3]` and a position. None if the frame stays where it is: then only its velocity is
            stabilized.

    Raises:
        MechanismError: on unknown rows, or a placement that is no rotation and position.
    """

    frame: str | Frame
    rows: str = "point"
    placement: Placement | None = None

    def __post_init__(self) -> None:
        if self.rows not in COMPONENTS:
            raise MechanismError(*unknown_name("rows of a HeldFrame", self.rows, tuple(COMPONENTS)))
        rotation, position = _parts(self.placement)
        check_rotation("rotation of a HeldFrame's placement", rotation)
        check_position("position of a HeldFrame's placement", position)
        if self.rows == "weld" and position is not None and rotation is None:
            raise MechanismError(
                "the placement of a weld has a position without a rotation.",
                "A weld holds the orientation as well.",
                "Pass the pair (rotation, position), such as ts.frame_pose(mech, q, frame).",
            )


def _parts(placement: Placement | None) -> tuple[Tensor | None, Tensor | None]:
    if placement is None or isinstance(placement, Tensor):
        return None, placement
    rotation, position = placement
    return rotation, position


class _Member(NamedTuple):
    """A constraint by indices.

    Attributes:
        kind: its rows.
        ends: bodies of both markers, -1 for the inertial frame; or both joints.
        places: both markers; none of a constraint between joints.
        numbers: values of the parameters of its kind.
    """

    kind: FrameRows | JointRows
    ends: tuple[int, int]
    places: tuple[MarkerPlace, ...] = ()
    numbers: tuple[float, ...] = ()

    @staticmethod
    def of(mech: Mechanism, constraint: HeldFrame | Closure) -> _Member:
        """The indices of a constraint of a mechanism."""
        if isinstance(constraint, HeldFrame):
            ground = MarkerPlace(INERTIAL, *_parts(constraint.placement))
            places = ground, place_of(mech, constraint.frame)
            kind, numbers = _hold_kind(constraint), ()
        elif isinstance(constraint, Closure):
            kind = constraint_kind(constraint.kind)
            numbers = constraint.numbers(kind)
            if constraint.joints:
                one, two = (mech.joint_index(name) for name in constraint.joints)
                return _Member(kind, (one, two), (), numbers)
            places = closure_places(mech, constraint)
        else:
            raise MechanismError(
                f"{constraint!r} is no constraint.",
                "HeldConstraints are ts.HeldFrame objects and entries of mech.closures.",
                f"Pass ts.HeldFrame({mech.frame_names[-1]!r}), say.",
            )
        one, two = (place.body(mech) for place in places)
        return _Member(kind, (one, two), places, numbers)


def _hold_kind(hold: HeldFrame) -> FrameRows | JointRows:
    """The kind of rows of a frame that is held; without a placement only its velocity vanishes."""
    if hold.placement is None:
        return Still.of(hold.rows)
    return constraint_kind({"point": "ball"}.get(hold.rows, hold.rows))


class HeldRows:
    """Rows of several constraints on one mechanism.

    Attributes:
        constraints: the constraints.
        structure: indices of their rows.
    """

    def __init__(self, mech: Mechanism, constraints: Sequence[HeldFrame | Closure]) -> None:
        if mech.closing is not None:  # embedded closures hold in all motions
            constraints = [
                c for c in constraints if not (isinstance(c, Closure) and c.method == "embed")
            ]
        self.constraints = tuple(constraints)
        tree = uncoupled(mech)
        self._members = [_Member.of(mech, c) for c in constraints]
        links, members = [IndexedConstraint(x.kind, x.ends) for x in self._members], set[int]()
        for k in (k for link in links for k in link.ends if k >= 0):
            members |= {k, *tree.layout.tree.ancestors(k)}
        if not members:
            raise MechanismError(
                "the constraints hold no moving frame.",
                "Their rows would not depend on the configuration.",
                f"Pass ts.HeldFrame({mech.frame_names[-1]!r}), say.",
            )
        self.structure = on_device(RowSet.of(tree, links, sorted(members)), mech.device)
        local = {k: i for i, k in enumerate(self.structure.subtree.dofs.tolist())}
        places = [local.get(k, len(local)) for k in range(mech.num_tree_dof)]
        self.place = torch.tensor(places, device=mech.device)

    @property
    def num_rows(self) -> int:
        """Number of rows of all constraints."""
        return self.structure.num_rows

    @property
    def names(self) -> list[str]:
        """Name of each constraint: of its frame, or of the closure."""
        return [
            c.name
            if isinstance(c, Closure)
            else c.frame.body
            if isinstance(c.frame, Frame)
            else c.frame
            for c in self.constraints
        ]

    def rows_of(self, name: str) -> slice:
        """Rows of the constraint of this name: of its frame, or of the closure.

        Raises:
            MechanismError: when no constraint, or more than one, has it.
        """
        names = self.names
        if names.count(name) != 1:
            if name not in names:
                raise MechanismError(*unknown_name("constraint", name, tuple(names)))
            raise MechanismError(
                f"{names.count(name)} constraints hold {name!r}.",
                "So the name does not determine the rows.",
                "Use their rows, in the order of the constraints.",
            )
        sizes = [link.kind.num_rows for link in self.structure.links]
        k = names.index(name)
        return slice(sum(sizes[:k]), sum(sizes[: k + 1]))

    def numbers(self, mech: Mechanism) -> Placements:
        """Placements and parameters of the constraints."""
        for constraint in self.constraints:
            if isinstance(constraint, HeldFrame) and isinstance(constraint.frame, Frame):
                check_frame(mech, constraint.frame)
        places = [place for x in self._members for place in x.places]
        return Placements.of(mech, places, [number for x in self._members for number in x.numbers])

    def at(self, state: Kinematics, numbers: Placements, *, at_rest: bool = False) -> Rows:
        """The rows at a state, with a column of G for each dof of the mechanism; at rest without a bias.

        Rows G of the tree are G X of the independent dofs, and their bias gains G xi.
        """
        rates = None if at_rest or state.qd is None else state.tree_qd
        rows = self.structure.rows(state.tree, state.tree_q, rates, numbers)
        G = torch.nn.functional.pad(rows.jacobian, (0, 1)).index_select(-1, self.place)
        if state.mech.closing is not None and rows.bias is not None:
            rows = rows._replace(bias=rows.bias + matvec(G, state.tree_accel_bias))
        return rows._replace(jacobian=state.independent_rows(G))

    def mask(self, q: Tensor, active: Tensor | None) -> Tensor:
        """1 for each active row and 0 for others, `[*batch, r]`.

        Raises:
            ShapeError: when the mask does not fit.
        """
        if active is None:
            return torch.ones(self.num_rows, dtype=q.dtype, device=q.device)
        self.check_mask(active, q.shape[:-1])
        return gather_entries(active.to(q.dtype), self.structure.owners)

    def check_mask(self, active: Tensor, batch: Sequence[int]) -> None:
        """Refuse a mask that does not fit the constraints, or the batch dimensions of the states.

        Raises:
            ShapeError: names the shape of the mask.
        """
        count = len(self.constraints)
        if not isinstance(active, Tensor) or active.ndim < 1 or active.shape[-1] != count:
            shape = list(active.shape) if isinstance(active, Tensor) else type(active).__name__
            raise ShapeError(
                f"active has shape {shape}.",
                f"There are {count} constraints, each with one entry.",
                f"Pass a tensor of shape [*batch, {count}].",
            )
        try:
            broadcast_shapes(active.shape[:-1], batch)
        except RuntimeError:
            raise ShapeError(
                f"active has the batch dimensions {list(active.shape[:-1])}, q {list(batch)}.",
                "Batch dimensions broadcast if they are equal or one of them is 1.",
                "Pass one mask for each sample, or one for all.",
            ) from None
