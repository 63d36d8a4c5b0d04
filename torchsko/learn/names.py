"""Names of dofs."""

from __future__ import annotations

from torchsko.mechanism.mechanism import Mechanism


def dof_names(mech: Mechanism) -> tuple[str, ...]:
    """A name for each dof: of its joint, numbered where the joint has several."""
    names = []
    for name in mech.joint_names:
        size = mech.dof_slice(name).stop - mech.dof_slice(name).start
        names += [name] if size == 1 else [f"{name}[{k}]" for k in range(size)]
    return tuple(names)
