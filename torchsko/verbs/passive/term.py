"""The interface of a passive joint force."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.mechanism import Mechanism


class PassiveTerm(ABC):
    """A passive force on the joints of the tree of a mechanism, with its derivatives and its energy.

    Forces resist: they are added to what a drive must apply. Dynamics, closed-form derivatives, energies
    and the power balance read every term of `torchsko.verbs.passive_forces.TERMS`.

    Attributes:
        name: field of `torchsko.verbs.PassiveForces`.
    """

    name: ClassVar[str]

    def acts(self, mech: Mechanism) -> bool:
        """True if the mechanism can have this force; determined by flags, no value is read."""
        return True

    @abstractmethod
    def force(self, state: Kinematics) -> Tensor:
        """Force on all joints of the tree, `[*batch, num_tree_dof]` [N m or N]."""

    def derivatives(self, state: Kinematics) -> tuple[Tensor | None, Tensor | None]:
        """Derivatives of the force to tangent steps and to rates of the tree; None for zero.

        Each `[*batch, num_tree_dof, num_tree_dof]` [N m/rad, N m s/rad or the units of sliding joints].
        """
        return None, None

    def energy(self, state: Kinematics) -> Tensor | None:
        """Potential energy, `[*batch]` [J]; None for a force without potential."""
        return None
