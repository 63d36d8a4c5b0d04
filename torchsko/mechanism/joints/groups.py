"""Joints grouped by type, so that each type computes all its joints at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from torchsko.algebra.topology.packing import Packing
from torchsko.mechanism.joints.kind import Constants, JointType
from torchsko.utils.shapes import concatenate, gather_entries


class JointData(Protocol):
    """The tensors of a mechanism that joint types read."""

    @property
    def axis(self) -> Tensor:
        """Joint axes, `[*batch, num_bodies, 3]`."""
        ...

    @property
    def joint_parameters(self) -> Tensor:
        """Further parameters of all joints, `[*batch, num_joint_parameters]`."""
        ...


@dataclass(frozen=True, eq=False)
class JointGroup:
    """All joints of one type, breadth first.

    Attributes:
        kind: the joint type.
        bodies: indices of the bodies that the joints move, in file order, int64 `[g]`.
        q_index: indices of their coordinates in q, int64 `[g * num_q]`.
        dof_index: indices of their dofs in qd, int64 `[g * d]`.
        parameter_index: indices of their parameters in `Mechanism.joint_parameters`, int64.
    """

    kind: JointType
    bodies: Tensor
    q_index: Tensor
    dof_index: Tensor
    parameter_index: Tensor

    def constants(self, mech: JointData) -> Constants:
        """Constants of these joints by name, as methods of `JointType` take them."""
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


@dataclass(frozen=True, eq=False)
class JointSet:
    """All joints of a mechanism grouped by type, and the permutations from groups back to one tensor.

    A run is the set of joints of one group in one level of the tree.

    Attributes:
        kinds: type of every joint, in file order.
        groups: one group for each type that occurs.
        node_place: for each node, breadth first, its index among the concatenated groups, int64.
        q_place: for each coordinate of q its index among the groups' coordinates, int64; the first one of
            joints that share it.
        dof_place: for each dof of qd its index among the groups' dofs, int64.
        modes: for each row of `Mechanism.modal_stiffness` the index of its coordinate in q, and of its rate
            in qd, int64 `[num_modes]`.
        mode_place: for each dof of qd its index among the modal coordinates; num_modes for others.
        counts: for each group, the sizes of its runs.
        runs: for each level of the tree its runs, as (group, index among the group's runs).
        shuffles: for each level, the permutation from concatenated runs to breadth-first order; None if one
            run fills the level.
    """

    kinds: tuple[JointType, ...]
    groups: tuple[JointGroup, ...]
    node_place: Tensor
    q_place: Tensor
    dof_place: Tensor
    modes: tuple[Tensor, Tensor]
    mode_place: Tensor
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
        """True if the rows of every H are orthonormal."""
        return all(group.kind.orthonormal for group in self.groups)

    @staticmethod
    def of(
        kinds: tuple[JointType, ...],
        levels: tuple[tuple[int, ...], ...],
        coordinates: Packing,
        dofs: Packing,
    ) -> JointSet:
        """Group joints of these types, in file order, on a tree with these levels of bodies."""
        order = tuple(k for level in levels for k in level)
        members: dict[JointType, list[int]] = {}
        for k in order:
            members.setdefault(kinds[k], []).append(k)
        groups = [
            JointGroup(
                kind,
                torch.tensor(bodies),
                _index([i for k in bodies for i in coordinates.places[k]]),
                _index([i for k in bodies for i in dofs.places[k]]),
                _places([kind.num_parameters for kind in kinds], bodies),
            )
            for kind, bodies in members.items()
        ]
        elastic = [k for k in dict.fromkeys(dofs.leaders) if kinds[k].elastic]
        of_modes = [[i for k in elastic for i in x.places[k]] for x in (coordinates, dofs)]
        num_modes = len(of_modes[0])
        rank = torch.argsort(torch.tensor(order))
        nodes = torch.cat([rank.index_select(0, group.bodies) for group in groups])
        counts, runs, shuffles = _level_runs(kinds, levels, [group.kind for group in groups])
        return JointSet(
            kinds,
            tuple(groups),
            torch.argsort(nodes),
            _first_places(torch.cat([group.q_index for group in groups]), coordinates.total),
            _first_places(torch.cat([group.dof_index for group in groups]), dofs.total),
            (_index(of_modes[0]), _index(of_modes[1])),
            _first_places(_index([*of_modes[1], *range(dofs.total)]), dofs.total).clamp(
                max=num_modes
            ),
            counts,
            runs,
            shuffles,
        )

    def nodes(self, parts: list[Tensor], dim: int) -> Tensor:
        """Concatenate per-joint parts of all groups along `dim` (negative), in breadth-first order."""
        if len(parts) == 1:
            return parts[0]
        return concatenate(parts, dim).index_select(dim, self.node_place)

    def levels(self, parts: Sequence[Sequence[Tensor]], dim: int) -> list[Tensor]:
        """Concatenate the runs of every group along `dim` for each level, in breadth-first order."""
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
        """Concatenate parts `[*batch, g, w]` of all groups, reordered by `q_place` or `dof_place`."""
        return gather_entries(concatenate([part.flatten(-2) for part in parts]), place)


def _places(sizes: list[int], bodies: list[int]) -> Tensor:
    """Indices of the entries of these bodies in a vector of parts of these sizes, int64."""
    start = [0, *accumulate(sizes)]
    return _index([i for k in bodies for i in range(start[k], start[k + 1])])


def _first_places(values: Tensor, count: int) -> Tensor:
    """Index of the first value equal to each of 0, ..., count - 1, int64 `[count]`."""
    first: dict[int, int] = {}
    for place, value in enumerate(values.tolist()):
        first.setdefault(value, place)
    return _index([first[i] for i in range(count)])


def _index(x: Sequence[int]) -> Tensor:
    return torch.tensor(x, dtype=torch.int64)


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
