"""Joints as data: all joints of one kind together, whatever their number, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchsko.mechanism.joints.kind import Constants, JointType
from torchsko.utils.shapes import concatenate, gather_entries

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism


@dataclass(frozen=True, eq=False)
class JointGroup:
    """All joints of one kind, breadth first.

    Attributes:
        kind: of all of them.
        bodies: the bodies they move, numbered in file order, int64 `[g]`.
        q_index: place of their coordinates in q, int64 `[g * num_q]`.
        dof_index: place of their dofs in qd, int64 `[g * d]`.
        parameter_index: place of their parameters among those of all joints, int64.
    """

    kind: JointType
    bodies: Tensor
    q_index: Tensor
    dof_index: Tensor
    parameter_index: Tensor

    def constants(self, mech: Mechanism) -> Constants:
        """What the kind's methods need to know of these joints, by name."""
        constants = {"axis": mech.axis.index_select(-2, self.bodies)}
        if self.kind.parameters:
            chosen = gather_entries(mech.joint_parameters, self.parameter_index)
            sizes = [parameter.size for parameter in self.kind.parameters]
            parts = chosen.unflatten(-1, (-1, self.kind.num_parameters)).split(sizes, -1)
            for parameter, part in zip(self.kind.parameters, parts, strict=True):
                shape = parameter.shape
                constants[parameter.name] = part.unflatten(-1, shape) if shape else part[..., 0]
        return constants

    def coordinates(self, q: Tensor) -> Tensor:
        """The group's coordinates, `[*batch, num_q of the mechanism]` to `[*batch, g, num_q]`."""
        return gather_entries(q, self.q_index).unflatten(-1, (-1, self.kind.num_q))

    def rates(self, qd: Tensor) -> Tensor:
        """The group's rates, `[*batch, num_dof]` to `[*batch, g, d]`."""
        return gather_entries(qd, self.dof_index).unflatten(-1, (-1, self.kind.num_dof))

    def to(self, device: torch.device | str) -> JointGroup:
        """The same group with its index tensors on a device."""
        names = ("bodies", "q_index", "dof_index", "parameter_index")
        moved = {name: getattr(self, name).to(device) for name in names}
        return replace(self, **moved)


@dataclass(frozen=True, eq=False)
class JointSet:
    """All joints of a mechanism by kind, and the way back from parts by kind to one tensor.

    Attributes:
        kinds: of every joint, in file order.
        groups: one per kind that occurs.
        node_place: for each node, breadth first, its place among the groups' joints, int64.
        q_place: for each coordinate of q its place among the groups' coordinates, int64.
        dof_place: likewise for qd.
        counts: for each group how many of its joints are in each level that has any: its runs.
        runs: for each level of the tree, the runs in it, as (group, place among the group's runs).
        shuffles: for each level, the order that turns its joined runs into breadth-first order; None
            where one run is the whole level.
    """

    kinds: tuple[JointType, ...]
    groups: tuple[JointGroup, ...]
    node_place: Tensor
    q_place: Tensor
    dof_place: Tensor
    counts: tuple[tuple[int, ...], ...]
    runs: tuple[tuple[tuple[int, int], ...], ...]
    shuffles: tuple[Tensor | None, ...]

    def __repr__(self) -> str:
        names = [kind.name for kind in self.kinds]
        return f"JointSet({', '.join(f'{names.count(x)} {x}' for x in dict.fromkeys(names))})"

    @property
    def num_parameters(self) -> int:
        """Number of parameters of all joints."""
        return sum(kind.num_parameters for kind in self.kinds)

    @property
    def orthonormal(self) -> bool:
        """Whether the rows of every H are orthonormal."""
        return all(group.kind.orthonormal for group in self.groups)

    @staticmethod
    def of(kinds: tuple[JointType, ...], levels: tuple[tuple[int, ...], ...]) -> JointSet:
        """Joints of these kinds in file order, on a tree with these levels of bodies."""
        order = tuple(k for level in levels for k in level)
        members: dict[JointType, list[int]] = {}
        for k in order:
            members.setdefault(kinds[k], []).append(k)
        groups = [
            JointGroup(
                kind,
                torch.tensor(bodies),
                _places([kind.num_q for kind in kinds], bodies),
                _places([kind.num_dof for kind in kinds], bodies),
                _places([kind.num_parameters for kind in kinds], bodies),
            )
            for kind, bodies in members.items()
        ]
        rank = torch.argsort(torch.tensor(order))
        nodes = torch.cat([rank.index_select(0, group.bodies) for group in groups])
        counts, runs, shuffles = _level_runs(kinds, levels, [group.kind for group in groups])
        return JointSet(
            kinds,
            tuple(groups),
            torch.argsort(nodes),
            torch.argsort(torch.cat([group.q_index for group in groups])),
            torch.argsort(torch.cat([group.dof_index for group in groups])),
            counts,
            runs,
            shuffles,
        )

    def to(self, device: torch.device | str) -> JointSet:
        """The same joints with their index tensors on a device."""
        return JointSet(
            self.kinds,
            tuple(group.to(device) for group in self.groups),
            self.node_place.to(device),
            self.q_place.to(device),
            self.dof_place.to(device),
            self.counts,
            self.runs,
            tuple(None if s is None else s.to(device) for s in self.shuffles),
        )

    def nodes(self, parts: list[Tensor], dim: int) -> Tensor:
        """Per-joint parts of all groups, joined along `dim` (negative) breadth first."""
        if len(parts) == 1:
            return parts[0]
        return concatenate(parts, dim).index_select(dim, self.node_place)

    def levels(self, parts: Sequence[Sequence[Tensor]], dim: int) -> list[Tensor]:
        """For each level its joints, breadth first along `dim`, from the runs of every group."""
        found = []
        for runs, shuffle in zip(self.runs, self.shuffles, strict=True):
            here = [parts[group][place] for group, place in runs]
            if len(here) == 1:
                found.append(here[0])
                continue
            whole = concatenate(here, dim)
            found.append(whole if shuffle is None else whole.index_select(dim, shuffle))
        return found

    def vector(self, parts: list[Tensor], place: Tensor) -> Tensor:
        """Parts `[*batch, g, w]` of all groups as one vector; `place` is `q_place` or `dof_place`."""
        return gather_entries(concatenate([part.flatten(-2) for part in parts]), place)


def _places(sizes: list[int], bodies: list[int]) -> Tensor:
    """Where the entries of these bodies lie in a vector of parts of these sizes, int64."""
    start = [0, *accumulate(sizes)]
    places = [i for k in bodies for i in range(start[k], start[k + 1])]
    return torch.tensor(places, dtype=torch.int64)


def _level_runs(
    kinds: tuple[JointType, ...], levels: tuple[tuple[int, ...], ...], group_kinds: list[JointType]
) -> tuple[
    tuple[tuple[int, ...], ...],
    tuple[tuple[tuple[int, int], ...], ...],
    tuple[Tensor | None, ...],
]:
    """`counts`, `runs` and `shuffles` of a `JointSet`."""
    runs, shuffles, counts = [], [], [[] for _ in group_kinds]
    for level in levels:
        here, positions = [], []
        for g, kind in enumerate(group_kinds):
            members = [i for i, k in enumerate(level) if kinds[k] == kind]
            if members:
                here.append((g, len(counts[g])))
                counts[g].append(len(members))
                positions += members
        runs.append(tuple(here))
        shuffles.append(None if len(here) == 1 else torch.argsort(torch.tensor(positions)))
    return tuple(map(tuple, counts)), tuple(runs), tuple(shuffles)
