"""Factors of modal stiffness and damping, which stay symmetric and positive semidefinite."""

from __future__ import annotations

from torch import Tensor

from torchsko.mechanism.mechanism import Mechanism


def mode_groups(mech: Mechanism) -> list[int]:
    """For each modal coordinate the first one with the same factor.

    Joints connected by springs have one factor, because other factors would change the ratios of their gears.
    The modes of a flexible body have one each.
    """
    coupled = (mech.modal_stiffness != 0) | (mech.modal_damping != 0)
    coupled = coupled[None].flatten(0, -3).any(0).tolist()
    groups = list(range(mech.num_modes))
    joints = _joints(mech)
    for i in range(mech.num_modes):
        for j in range(i):
            if coupled[i][j] and joints[i] != joints[j] and groups[i] != groups[j]:
                low, high = sorted((groups[i], groups[j]))
                groups = [low if group == high else group for group in groups]
    return groups


def modes_of(mech: Mechanism, joint: str) -> list[int]:
    """Places of a joint in `modal_stiffness`; of a joint without modes none."""
    k = mech.joint_index(joint)
    return [i for i, leader in enumerate(_joints(mech)) if leader == mech.coordinates.leaders[k]]


def scaled(matrix: Tensor, factors: Tensor, groups: list[int]) -> Tensor:
    """A modal matrix, `[*batch, n, n]`, with a factor of each group of modes, `[*batch, n]`."""
    root = factors[..., groups].sqrt()
    return root[..., :, None] * matrix * root[..., None, :]


def _joints(mech: Mechanism) -> list[int]:
    """Leading joint of each modal coordinate."""
    leaders = dict.fromkeys(mech.coordinates.leaders)
    elastic = [k for k in leaders if mech.joints.kinds[k].elastic]
    return [k for k in elastic for _ in range(mech.joints.kinds[k].num_dof)]
