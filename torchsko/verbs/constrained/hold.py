"""Constraints that hold a frame, and the rows of several constraints of one mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.constraints.constraint_kinds import constraint_kind
from torchsko.constraints.row_kinds import FrameRows, JointRows
from torchsko.constraints.still import COMPONENTS, Still
from torchsko.errors import MechanismError, ShapeError, unknown_name
from torchsko.mechanism.data import uncoupled
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.loops.constraint_rows import ConstraintSet, Link, Placements, Rows
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.utils.devices import on_device
from torchsko.utils.shapes import broadcast_shapes, concatenate, gather_entries, matvec
from torchsko.verbs.frame import Frame, with_frames

Placement = Tensor | tuple[Tensor, Tensor]
"""A position `[*batch, 3]` [m], or a rotation `[*batch, 3, 3]` and a position, in the inertial frame."""


@dataclass(frozen=True, eq=False)
class Hold:
    """A frame that is held in the inertial frame: a foot on the ground, a hand on a wall.

    Forces of the rows act on the mechanism at the frame's origin, in world axes, moments before forces.

    Attributes:
        frame: a name from ``mech.frame_names`` or a `Frame`.
        rows: "point", the origin stays (3 rows); "weld", the frame stays (6 rows: angular, linear);
            "planar", the origin stays within the xy plane of the placement, or of the world (2 rows, along x
            and y).
        placement: target in the inertial frame: a position `[*batch, 3]` [m], or a pair of a rotation
            `[*batch, 3, 3]` and a position. None if the frame stays where it is: then only its velocity is
            stabilised.

    Raises:
        MechanismError: on unknown rows, or a placement that is no rotation and position.
    """

    frame: str | Frame
    rows: str = "point"
    placement: Placement | None = None

    def __post_init__(self) -> None:
        if self.rows not in COMPONENTS:
            raise MechanismError(*unknown_name("rows of a Hold", self.rows, tuple(COMPONENTS)))
        rotation, position = _parts(self.placement)
        check_rotation("rotation of a Hold's placement", rotation)
        check_position("position of a Hold's placement", position)
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


class _End:
    """One end of a constraint: a frame and a placement in it; the inertial frame without a name."""

    def __init__(
        self,
        frame: str | Frame | None,
        rotation: Tensor | None = None,
        position: Tensor | None = None,
    ) -> None:
        self.frame, self.rotation, self.position = frame, rotation, position

    def body(self, mech: Mechanism) -> int:
        """Body that carries the end; -1 for the inertial frame."""
        return -1 if self.frame is None else _body(mech, self.frame)


class _JointEnd(_End):
    """A joint, which is one end of a constraint between joints."""

    def body(self, mech: Mechanism) -> int:
        """Index of the joint and of its body."""
        assert isinstance(self.frame, str)
        return mech.joint_index(self.frame)


def _ends(mech: Mechanism, constraint: Hold | Closure) -> tuple[FrameRows | JointRows, _End, _End]:
    """The kind of a constraint and its ends."""
    if isinstance(constraint, Hold):
        two = _End(constraint.frame)
        if constraint.placement is None:
            return Still.of(constraint.rows), _End(None), two
        name = {"point": "ball"}.get(constraint.rows, constraint.rows)
        return constraint_kind(name), _End(None, *_parts(constraint.placement)), two
    if not isinstance(constraint, Closure):
        raise MechanismError(
            f"{constraint!r} is no constraint.",
            "Constraints are ts.Hold objects and entries of mech.closures.",
            f"Pass ts.Hold({mech.frame_names[-1]!r}), say.",
        )
    if constraint.joints:
        one, two = (_JointEnd(name) for name in constraint.joints)
        return constraint_kind(constraint.kind), one, two
    make = lambda x: torch.tensor(x, dtype=mech.dtype, device=mech.device)  # noqa: E731
    one = _End(constraint.frame1, None, make(constraint.position1))
    two = _End(constraint.frame2, make(constraint.rotation).mT, make(constraint.position2))
    return constraint_kind(constraint.kind), one, two


class ConstraintRows:
    """Rows of several constraints on one mechanism.

    Attributes:
        constraints: the constraints.
        structure: indices of their rows.
    """

    def __init__(self, mech: Mechanism, constraints: Sequence[Hold | Closure]) -> None:
        if mech.closing is not None:  # embedded closures hold in all motions
            constraints = [
                c for c in constraints if not (isinstance(c, Closure) and c.method == "embed")
            ]
        self.constraints = tuple(constraints)
        tree = uncoupled(mech)
        placed = [_ends(mech, c) for c in constraints]
        links, members = [], set[int]()
        for kind, *ends in placed:
            bodies = [end.body(mech) for end in ends]
            links.append(Link(kind, (bodies[0], bodies[1])))
            for k in bodies:
                members |= {k, *tree.layout.tree.ancestors(k)} if k >= 0 else set()
        if not members:
            raise MechanismError(
                "the constraints hold no moving frame.",
                "Their rows would not depend on the configuration.",
                f"Pass ts.Hold({mech.frame_names[-1]!r}), say.",
            )
        self.structure = on_device(ConstraintSet.of(tree, links, sorted(members)), mech.device)
        local = {k: i for i, k in enumerate(self.structure.subtree.dofs.tolist())}
        places = [local.get(k, len(local)) for k in range(mech.num_tree_dof)]
        self.place = torch.tensor(places, device=mech.device)

    @property
    def num_rows(self) -> int:
        """Number of rows of all constraints."""
        return self.structure.num_rows

    def frames(self, mech: Mechanism) -> list[Frame | None]:
        """Both markers of each constraint as frames; None for the inertial frame."""
        return [None if end.frame is None else _frame(end) for end in self._markers(mech)]

    def _markers(self, mech: Mechanism) -> list[_End]:
        """Both ends of each constraint between frames."""
        found = []
        for constraint in self.constraints:
            kind, *ends = _ends(mech, constraint)
            found += ends if isinstance(kind, FrameRows) else []
        return found

    def numbers(self, mech: Mechanism) -> Placements:
        """Placements and parameters of the constraints."""
        rotations, positions = [], []
        identity = torch.eye(3, dtype=mech.dtype, device=mech.device)
        zero = torch.zeros(3, dtype=mech.dtype, device=mech.device)
        for end in self._markers(mech):
            R, r = identity, zero
            if end.frame is None:
                R = R if end.rotation is None else end.rotation
                r = r if end.position is None else end.position
            else:
                given, (k,) = with_frames(mech, [_frame(end)])
                R, r = given.frame_rotation[..., k, :, :], given.frame_position[..., k, :]
            rotations.append(R[..., None, :, :])
            positions.append(r[..., None, :])
        numbers = [x for c in self.constraints if isinstance(c, Closure) for x in c.parameters]
        parameters = torch.tensor(numbers, dtype=mech.dtype, device=mech.device)
        if not rotations:
            return Placements(identity[None][:0], zero[None][:0], parameters)
        return Placements(concatenate(rotations, -3), concatenate(positions, -2), parameters)

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


def _frame(end: _End) -> Frame:
    assert end.frame is not None
    if isinstance(end.frame, Frame):
        return end.frame
    return Frame(end.frame, end.rotation, end.position)


def _body(mech: Mechanism, frame: str | Frame) -> int:
    name = frame.body if isinstance(frame, Frame) else frame
    return mech.frame_body[mech.frame_index(name)]
