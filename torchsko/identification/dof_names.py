"""Names of dofs and of coordinates."""

from __future__ import annotations

from torchsko.mechanism.mechanism import Mechanism


def dof_names(mech: Mechanism) -> tuple[str, ...]:
    """A name for each dof: of its joint, numbered where the joint has several."""
    names = []
    for name in mech.joint_names:
        size = mech.dof_slice(name).stop - mech.dof_slice(name).start
        names += [name] if size == 1 else [f"{name}[{k}]" for k in range(size)]
    return tuple(names)


def q_names(mech: Mechanism) -> tuple[str, ...]:
    """A name for each coordinate: of its joint, with the coordinate's own where the joint has several."""
    names = []
    for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        own = mech.joints.kinds[k].coordinates
        names += [name] if len(own) == 1 else [f"{name}.{x}" for x in own]
    return tuple(names)
