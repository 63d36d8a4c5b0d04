"""Independent dofs of a mechanism: their number, names and slices."""

from __future__ import annotations

from torchsko.errors import MechanismError
from torchsko.mechanism.loops.embedded_loops import EmbeddedLoops
from torchsko.mechanism.numbering import TreeNumbering


class Numbering(TreeNumbering):
    """Base class of `Mechanism` with its loops, and with sizes, indices and slices."""

    closing: EmbeddedLoops | None

    @property
    def num_dof(self) -> int:
        """Length of a velocity qd."""
        if self.closing is not None:
            return self.closing.num_dof
        return self.layout.dofs.total if self.coupling is None else self.coupling.num_dof

    @property
    def dof_names(self) -> tuple[str, ...]:
        """A name for each dof: the name of its joint, with an index if the joint has several dofs."""
        names: list[str] = []
        for name, k in zip(self.joint_names, self.independent_joints, strict=True):
            size = self.joints.kinds[k].num_dof
            names += [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
        if self.closing is not None:
            names = [names[i] for i in self.closing.own.tolist()]
        return tuple(names)

    def dof_slice(self, joint: str) -> slice:
        """Slice of qd and tau with the dofs of an independent joint, or of one of its motions.

        Raises:
            MechanismError: when no independent joint has this name.
        """
        place = self._independent_slice(self.layout.dofs, joint)
        if self.closing is None:
            return place
        own = self.closing.own.tolist()
        found = [own.index(i) for i in range(place.start, place.stop) if i in own]
        if len(found) < place.stop - place.start:
            names = ", ".join(self.dof_names)
            raise MechanismError(
                f"joint {joint!r} of {self.name!r} is dependent: loops determine its rate.",
                f"The independent dofs are {names}.",
                f"Type mech.tree_dof_slice({joint!r}) for ts.expand_velocity(mech, q, qd).",
            )
        return slice(found[0], found[-1] + 1)
