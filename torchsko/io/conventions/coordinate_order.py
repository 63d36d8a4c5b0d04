"""In which order another library has the coordinates of a mechanism, as places: for `conventions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.io.conventions.libraries import Library, Rates
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.numbering import Place


@dataclass(frozen=True, eq=False)
class QOrder:
    """Places of coordinates, int64.

    Attributes:
        angles: which coordinates of the tree they give by cosine and sine.
        take: of each of theirs among ours, then cosines, then sines.
        back: of each of ours among theirs, then a zero, then angles.
        cosines: of each cosine among theirs; its sine is next.
    """

    angles: Tensor
    take: Tensor
    back: Tensor
    cosines: Tensor


@dataclass(frozen=True, eq=False)
class DofOrder:
    """Places of rates, int64.

    Attributes:
        take: of each of theirs among ours, then the converted ones of each special joint.
        back: of each of ours among theirs, then a zero, then the converted ones.
        blocks: of each special joint's among theirs, in our order.
    """

    take: Tensor
    back: Tensor
    blocks: tuple[Tensor, ...]


def q_order(
    mech: Mechanism, library: Library, places: Sequence[Place], cos_sin: Sequence[str]
) -> QOrder:
    """Places of coordinates in a library's order.

    Raises:
        MechanismError: when a joint of `cos_sin` has no angle.
    """
    turns = {_round_joint(mech, name): 0 for name in cos_sin}
    turns |= {k: 2 for k, _ in places if _is_flat(mech, library, k)}
    angles = [mech.tree_q_slice(mech.tree_joint_names[k]).start + i for k, i in turns.items()]
    rank = {k: i for i, k in enumerate(turns)}
    take: list[int] = []
    cosines = dict.fromkeys(turns, 0)
    for k, part in places:
        q = mech.tree_q_slice(mech.tree_joint_names[k])
        own = list(range(q.start, q.stop))
        if k in turns:
            i, cosine = turns[k], mech.num_tree_q + rank[k]
            own[i : i + 1] = [cosine, cosine + len(turns)]
            cosines[k] = len(take) + i
        own = own if part is None else own[part : part + 1]
        take += _reordered(mech.joints.kinds[k].name, own, library)
    where = {i: j for j, i in enumerate(take)}
    back = [where.get(i, len(take)) for i in range(mech.num_tree_q)]
    for i, angle in enumerate(angles):
        back[angle] = len(take) + 1 + i
    return QOrder(*(_index(mech, x) for x in (angles, take, back, list(cosines.values()))))


def dof_order(
    mech: Mechanism, library: Library, places: Sequence[Place], special: Sequence[Rates]
) -> DofOrder:
    """Places of rates in a library's order; of special joints, those of the converted ones."""
    starts = [joint.dofs.start for joint in special]
    sizes = [joint.dofs.stop - joint.dofs.start for joint in special]
    first = {start: mech.num_tree_dof + sum(sizes[:i]) for i, start in enumerate(starts)}
    take: list[int] = []
    for k, part in places:
        dofs = mech.tree_dof_slice(mech.tree_joint_names[k])
        start = first[dofs.start] if dofs.start in first else int(dofs.start)
        own = [start + i for i in range(dofs.stop - dofs.start)]
        own = own if part is None else own[part : part + 1]
        swapped = mech.joints.kinds[k].name == "free" and not library.angular_first
        take += own[3:] + own[:3] if swapped else own
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
    """Whether the library takes the velocity of a joint in other axes."""
    return mech.joints.kinds[k].name == "free" or _is_flat(mech, library, k)


def _is_flat(mech: Mechanism, library: Library, k: int) -> bool:
    return mech.joints.kinds[k].name == "planar" and library.planar_in_body


def _index(mech: Mechanism, places: Sequence[int]) -> Tensor:
    return torch.tensor(places, dtype=torch.int64, device=mech.device)


def _reordered(kind: str, places: list[int], library: Library) -> list[int]:
    """The places of a joint's coordinates in the library's order."""
    if kind not in ("free", "spherical"):
        return places
    position, quaternion = places[:-4], places[-4:]
    if library.scalar_last:
        quaternion = quaternion[1:] + quaternion[:1]
    return quaternion + position if library.quaternion_first else position + quaternion


def check_kinds(mech: Mechanism, library: str, known: Sequence[str], joints: set[int]) -> None:
    """Refuse joints of a kind that a library has not.

    Raises:
        MechanismError: names the joint.
    """
    for k in sorted(joints):
        kind = mech.joints.kinds[k].name
        if kind not in known:
            raise MechanismError(
                f"joint {mech.tree_joint_names[k]!r} is {kind}, and is not converted to {library!r}.",
                f"Known there: {', '.join(known)}; others it has not, or in coordinates "
                "of its own.",
                "Convert that joint by hand, or write it as several joints.",
            )


def check_whole(mech: Mechanism, library: str, joints: Sequence[int]) -> None:
    """Refuse single motions of joints whose velocity a library takes in other axes, which mix them.

    Raises:
        MechanismError: names the joint.
    """
    if joints:
        name = mech.tree_joint_names[joints[0]]
        raise MechanismError(
            f"joint {name!r} is named by its single motions, which {library!r} has not.",
            "There it is one joint, with its velocity in other axes, which mix them.",
            f"Name {name!r} once, in their place.",
        )


def check_all_there(mech: Mechanism, names: Sequence[str], places: Sequence[Place]) -> None:
    """Refuse joints named twice, and independent joints left out.

    Raises:
        MechanismError: names the joint.
    """
    for name in names:
        if names.count(name) > 1:
            raise MechanismError(
                f"joint {name!r} is named twice.",
                "Its coordinates have one place.",
                "Name it once.",
            )
    there = {k for k, _ in places}
    parts = {k: [i for j, i in places if j == k] for k in there}
    for k in mech.independent_joints:
        some = parts.get(k, [])
        if None not in some and len(some) < mech.joints.kinds[k].num_dof:
            raise MechanismError(
                f"joint {mech.tree_joint_names[k]!r} is not among the {len(names)} joints named.",
                "Its coordinates would be lost.",
                "Name all joints that follow no others.",
            )


def _round_joint(mech: Mechanism, name: str) -> int:
    k = mech.joint_index(name)
    if mech.joints.kinds[k].name != "revolute":
        raise MechanismError(
            f"joint {name!r} of cos_sin is {mech.joints.kinds[k].name}.",
            "An angle has a cosine and a sine.",
            "Name revolute joints there.",
        )
    return k
