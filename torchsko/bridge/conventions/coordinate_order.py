"""In which order another library has the coordinates of a mechanism, as places: for `conventions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.bridge.conventions.libraries import Library, Rates
from torchsko.errors import MechanismError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.numbering import Place


@dataclass(frozen=True, eq=False)
class QOrder:
    """Index tensors that reorder coordinates, int64.

    Attributes:
        angles: coordinates of the tree that the library represents by cosine and sine.
        take: index of each library coordinate in [coordinates of the tree, cosines, sines].
        back: index of each coordinate of the tree in [library coordinates, zero, angles].
        cosines: index of each cosine in the library's coordinates; its sine is next.
    """

    angles: Tensor
    take: Tensor
    back: Tensor
    cosines: Tensor


@dataclass(frozen=True, eq=False)
class DofOrder:
    """Index tensors that reorder rates, int64.

    Attributes:
        take: index of each library rate in [rates of the tree, converted rates of special joints].
        back: index of each rate of the tree in [library rates, zero, converted rates of special joints].
        blocks: for each special joint, the indices of its rates in the library's, in the order of the tree.
    """

    take: Tensor
    back: Tensor
    blocks: tuple[Tensor, ...]


def q_order(
    mech: Mechanism, library: Library, places: Sequence[Place], cos_sin: Sequence[str]
) -> QOrder:
    """Index tensors for coordinates.

    Raises:
        MechanismError: if a joint of `cos_sin` is not revolute.
    """
    # By joint, the position of the angle among its coordinates.
    angle_of = {_revolute_joint(mech, name): 0 for name in cos_sin}
    angle_of |= {k: 2 for k, _ in places if _is_planar_in_body(mech, library, k)}
    angles = [mech.tree_q_slice(mech.tree_joint_names[k]).start + i for k, i in angle_of.items()]
    rank = {k: i for i, k in enumerate(angle_of)}
    take: list[int] = []
    cosines = dict.fromkeys(angle_of, 0)
    for k, part in places:
        q = mech.tree_q_slice(mech.tree_joint_names[k])
        indices = list(range(q.start, q.stop))
        if k in angle_of:
            i, cosine = angle_of[k], mech.num_tree_q + rank[k]
            indices[i : i + 1] = [cosine, cosine + len(angle_of)]
            cosines[k] = len(take) + i
        indices = indices if part is None else indices[part : part + 1]
        take += _reordered(mech.joints.kinds[k].name, indices, library)
    where = {i: j for j, i in enumerate(take)}
    back = [where.get(i, len(take)) for i in range(mech.num_tree_q)]
    for i, angle in enumerate(angles):
        back[angle] = len(take) + 1 + i
    return QOrder(*(_index(mech, x) for x in (angles, take, back, list(cosines.values()))))


def dof_order(
    mech: Mechanism, library: Library, places: Sequence[Place], special: Sequence[Rates]
) -> DofOrder:
    """Index tensors for rates; special joints have converted rates."""
    starts = [joint.dofs.start for joint in special]
    sizes = [joint.dofs.stop - joint.dofs.start for joint in special]
    first = {start: mech.num_tree_dof + sum(sizes[:i]) for i, start in enumerate(starts)}
    take: list[int] = []
    for k, part in places:
        dofs = mech.tree_dof_slice(mech.tree_joint_names[k])
        start = first[dofs.start] if dofs.start in first else int(dofs.start)
        indices = [start + i for i in range(dofs.stop - dofs.start)]
        indices = indices if part is None else indices[part : part + 1]
        swapped = mech.joints.kinds[k].name == "free" and not library.angular_first
        take += indices[3:] + indices[:3] if swapped else indices
    where = {i: j for j, i in enumerate(take)}
    back = [where.get(i, len(take)) for i in range(mech.num_tree_dof)]
    for i, joint in enumerate(special):
        begin = len(take) + 1 + sum(sizes[:i])
        back[joint.dofs] = range(begin, begin + sizes[i])
    blocks = [
        [where[first[start] + i] for i in range(size)]
        for start, size in zip(starts, sizes, strict=True)
    ]
    return DofOrder(
        _index(mech, take), _index(mech, back), tuple(_index(mech, block) for block in blocks)
    )


def is_special(mech: Mechanism, library: Library, k: int) -> bool:
    """True if the library expresses the velocity of a joint in other axes."""
    return mech.joints.kinds[k].name == "free" or _is_planar_in_body(mech, library, k)


def _is_planar_in_body(mech: Mechanism, library: Library, k: int) -> bool:
    return mech.joints.kinds[k].name == "planar" and library.planar_in_body


def _index(mech: Mechanism, indices: Sequence[int]) -> Tensor:
    return torch.tensor(indices, dtype=torch.int64, device=mech.device)


def _reordered(kind: str, indices: list[int], library: Library) -> list[int]:
    """The indices of a joint's coordinates in the library's order."""
    if kind not in ("free", "spherical"):
        return indices
    position, quaternion = indices[:-4], indices[-4:]
    if library.scalar_last:
        quaternion = quaternion[1:] + quaternion[:1]
    return quaternion + position if library.quaternion_first else position + quaternion


def check_kinds(mech: Mechanism, library: str, known: Sequence[str], joints: set[int]) -> None:
    """Refuse joints of a kind that is not converted for a library.

    Raises:
        MechanismError: names the joint.
    """
    for k in sorted(joints):
        kind = mech.joints.kinds[k].name
        if kind not in known:
            raise MechanismError(
                f"joint {mech.tree_joint_names[k]!r} is {kind}, which is not converted to {library!r}.",
                f"Converted kinds: {', '.join(known)}.",
                "Convert that joint yourself, or replace it by several joints.",
            )


def check_not_split(mech: Mechanism, library: str, split: Sequence[int]) -> None:
    """Refuse joints that are named by their motions although the library expresses them in other axes.

    Raises:
        MechanismError: names the joint.
    """
    if split:
        name = mech.tree_joint_names[split[0]]
        raise MechanismError(
            f"joint {name!r} is named by its motions, and is a single joint in {library!r}.",
            "Its velocity has other axes there, which mix the motions.",
            f"Write {name!r} once, in place of the motions.",
        )


def check_complete(mech: Mechanism, names: Sequence[str], places: Sequence[Place]) -> None:
    """Refuse repeated joints, and missing independent joints.

    Raises:
        MechanismError: names the joint.
    """
    for name in names:
        if names.count(name) > 1:
            raise MechanismError(
                f"joint {name!r} occurs twice in joint_names.",
                advice="Remove one of them.",
            )
    parts = {k: [i for j, i in places if j == k] for k, _ in places}
    for k in mech.independent_joints:
        named = parts.get(k, [])
        if None not in named and len(named) < mech.joints.kinds[k].num_dof:
            raise MechanismError(
                f"joint {mech.tree_joint_names[k]!r} is not among the {len(names)} joints in joint_names.",
                "The conversion would lose its coordinates.",
                "Pass the names of all independent joints.",
            )


def _revolute_joint(mech: Mechanism, name: str) -> int:
    k = mech.joint_index(name)
    if mech.joints.kinds[k].name != "revolute":
        raise MechanismError(
            f"joint {name!r} in cos_sin is {mech.joints.kinds[k].name}.",
            "Only angles have a cosine and a sine.",
            "Pass names of revolute joints.",
        )
    return k
