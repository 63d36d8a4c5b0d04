"""Forces of a fluid on the bodies; see `torchsko.bridge.fluid_forces`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from torchsko.bridge.fluid_forces import fluid_force
from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.manifold_derivatives import state_jacobians
from torchsko.verbs.passive.term import PassiveTerm


class Fluid(PassiveTerm):
    """Drag, lift and forces of the displaced fluid (`Mechanism.medium`), on all joints."""

    name: ClassVar[str] = "fluid"

    def acts(self, mech: Mechanism) -> bool:
        """In a fluid."""
        return mech.has_fluid

    def force(self, state: Kinematics) -> Tensor:
        """Minus the joint forces of the fluid."""
        return -fluid_force(state)

    def derivatives(self, state: Kinematics) -> tuple[Tensor | None, Tensor | None]:
        """By differentiation of the force."""
        tree = state.tree
        fn = lambda q, qd: self.force(Kinematics(tree, q, qd))  # noqa: E731
        return state_jacobians(tree, fn, state.tree_q, state.tree_qd)
