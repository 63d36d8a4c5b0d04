"""Springs of joints: linear, quadratic and cubic in the deflection."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.configuration import stretch
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.joint_tangents import spring_tangent
from torchsko.verbs.passive.term import PassiveTerm


class Springs(PassiveTerm):
    """(stiffness + a x + b x^2) times the deflection; a, b are the columns of `Mechanism.higher_stiffness`.

    The deflection is difference(spring_reference, q), and x its size: of a free joint the rotation vector
    and the translation.
    """

    name: ClassVar[str] = "springs"

    def force(self, state: Kinematics) -> Tensor:
        """Spring forces."""
        mech = state.mech
        deflection, x = stretch(state.tree, state.tree_q)
        if not mech.has_higher_stiffness:
            return mech.stiffness * deflection
        squared, cubed = mech.higher_stiffness.unbind(-1)
        return (mech.stiffness + squared * x + cubed * x * x) * deflection

    def derivatives(self, state: Kinematics) -> tuple[Tensor | None, Tensor | None]:
        """The tangents of all joints."""
        return spring_tangent(state.tree, state.tree_q), None

    def energy(self, state: Kinematics) -> Tensor | None:
        """Energy of the deflections."""
        return spring_energy(state)


def spring_energy(state: Kinematics) -> Tensor:
    """Energy of all springs, `[*batch]` [J]."""
    mech = state.mech
    deflection, x = stretch(state.tree, state.tree_q)
    half = mech.stiffness / 2
    if mech.has_higher_stiffness:
        squared, cubed = mech.higher_stiffness.unbind(-1)
        half = half + squared * x / 3 + cubed * x * x / 4
    return (half * deflection.square()).sum(-1)


def spring_slope(tree: Mechanism, tree_q: Tensor) -> Tensor:
    """Derivative of spring forces to the deflections, `[*batch, num_tree_dof]`."""
    if not tree.has_higher_stiffness:
        return tree.stiffness
    x = stretch(tree, tree_q)[1]
    squared, cubed = tree.higher_stiffness.unbind(-1)
    return tree.stiffness + 2 * squared * x + 3 * cubed * x * x
