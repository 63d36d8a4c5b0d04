"""Springs of joints, linear, quadratic and cubic in the deflection, and elastic forces of modes."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.mechanism.configuration import stretch
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import gather_entries, matvec
from torchsko.verbs.joint_tangents import spring_tangent
from torchsko.verbs.passive.modes import modal_force, modal_matrix
from torchsko.verbs.passive.term import PassiveTerm


class Springs(PassiveTerm):
    """(stiffness + a x + b x^2) times the deflection; a, b are the columns of `Mechanism.higher_stiffness`.

    The deflection is difference(spring_reference, q), and x its size: of a free joint the rotation vector
    and the translation. Modal coordinates have the force `Mechanism.modal_stiffness` times them besides.
    """

    name: ClassVar[str] = "springs"

    def force(self, state: Kinematics) -> Tensor:
        """Spring forces."""
        mech = state.mech
        deflection, x = stretch(state.tree, state.tree_q)
        stiffness = mech.stiffness
        if mech.has_higher_stiffness:
            squared, cubed = mech.higher_stiffness.unbind(-1)
            stiffness = stiffness + squared * x + cubed * x * x
        force = stiffness * deflection
        if not mech.num_modes:
            return force
        modes = gather_entries(state.tree_q, mech.joints.modes[0])
        return force + modal_force(mech, mech.modal_stiffness, modes)

    def derivatives(self, state: Kinematics) -> tuple[Tensor | None, Tensor | None]:
        """The tangents of all joints."""
        mech, tangent = state.mech, spring_tangent(state.tree, state.tree_q)
        if mech.num_modes:
            tangent = tangent + modal_matrix(mech, mech.modal_stiffness)
        return tangent, None

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
    energy = (half * deflection.square()).sum(-1)
    if not mech.num_modes:
        return energy
    modes = gather_entries(state.tree_q, mech.joints.modes[0])
    return energy + (modes * matvec(mech.modal_stiffness, modes)).sum(-1) / 2


def spring_slope(tree: Mechanism, tree_q: Tensor) -> Tensor:
    """Derivative of spring forces to the deflections, `[*batch, num_tree_dof]`."""
    if not tree.has_higher_stiffness:
        return tree.stiffness
    x = stretch(tree, tree_q)[1]
    squared, cubed = tree.higher_stiffness.unbind(-1)
    return tree.stiffness + 2 * squared * x + 3 * cubed * x * x
