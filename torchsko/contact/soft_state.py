r"""A mechanism at a state with soft constraints: inertia, smooth forces, rows, error of an acceleration.

The acceleration x solves :math:`\mathcal M x + \mathcal C - \tau = J^* f(x)`; see
`torchsko.contact.soft_dynamics`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import SKOModel, model_at
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.cost import SoftRows
from torchsko.contact.inverse_weights import transmission_matrix
from torchsko.contact.points import select
from torchsko.contact.soft_rows import soft_rows
from torchsko.contact.softness import Metric
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.computed import computed
from torchsko.utils.shapes import matvec
from torchsko.verbs.passive_forces import passive_forces


@dataclass(frozen=True, eq=False)
class SoftState:
    """A mechanism at a state with soft constraints; its attributes are computed when they are first read.

    Attributes:
        kinematics: the mechanism at its configuration and velocity.
        contact: shapes and parameters of the constraints.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`.
        added: matrix that a step adds to the mass matrix, `[*batch, num_dof, num_dof]`.
    """

    kinematics: Kinematics
    contact: ContactModel
    f_ext: Tensor | None = None
    added: Tensor | None = None

    @property
    def mech(self) -> Mechanism:
        """The mechanism."""
        return self.kinematics.mech

    def with_inertia(self, inertia: Tensor) -> SoftState:
        """The same state with an `inertia` that is known, as it is in the solution of an equation."""
        known = replace(self)
        object.__setattr__(known, "inertia", inertia)
        return known

    @computed
    def model(self) -> SKOModel:
        """The mechanism without constraints and passive forces."""
        return model_at(self.kinematics, self.f_ext)

    @computed
    def passive(self) -> Tensor:
        """Passive forces without dry friction, which is a constraint, `[*batch, num_dof]`."""
        return passive_forces(self.kinematics, dry_friction=False)

    @computed
    def inertia(self) -> Tensor:
        """Mass matrix with the armature of tendons, `[*batch, num_dof, num_dof]`."""
        M, tree = algorithms.mass_matrix(self.model), self._tendon_inertia
        return M if tree is None else M + self.kinematics.independent_matrix(tree)

    @computed
    def step_inertia(self) -> Tensor:
        """`inertia` with what a step adds to it."""
        return self.inertia if self.added is None else self.inertia + self.added

    @computed
    def _tendon_inertia(self) -> Tensor | None:
        """Inertia of tendons over the dofs of the tree; None without armature."""
        contact, places = self.contact, self.contact.armature_tendons
        if not places:
            return None
        rows = select(contact.tendon_transmission, places, -2)
        return transmission_matrix(self.mech, rows, select(contact.tendon_armature, places, -1))

    @property
    def metric(self) -> Metric | None:
        """Metric of a step that adds to the mass matrix."""
        if self.added is None:
            return None
        return Metric(*(x.diagonal(dim1=-2, dim2=-1) for x in (self.inertia, self.added)))

    @computed
    def rows(self) -> SoftRows:
        """Rows of the constraints."""
        return soft_rows(self.kinematics, self.contact, self.metric)

    def smooth_force(self, tau: Tensor) -> Tensor:
        """Joint forces less bias forces, without constraints, `[*batch, num_dof]`."""
        force = tau - (algorithms.bias_force(self.model) + self.passive)
        if self.mech.closing is None:
            return force
        of_tendons = self._tendon_force(torch.zeros_like(force))
        return force if of_tendons is None else force - of_tendons

    def balance_error(self, qdd: Tensor, tau: Tensor) -> Tensor:
        """Error of the equations of motion without constraints: the force that constraints exert."""
        error = algorithms.inverse_dynamics(self.model, qdd) + self.passive - tau
        of_tendons = self._tendon_force(qdd)
        error = error if of_tendons is None else error + of_tendons
        return error if self.added is None else error + matvec(self.added, qdd)

    def constraint_force(self, qdd: Tensor) -> Tensor:
        """J* f of the constraints at an acceleration, `[*batch, num_dof]`."""
        rows = self.rows
        return -rows.generalized_forces(rows.derivatives(rows.motion(qdd, rows.reference))[0])

    def _tendon_force(self, qdd: Tensor) -> Tensor | None:
        """Joint forces that accelerate tendons, `[*batch, num_dof]`; None without armature."""
        if self._tendon_inertia is None:
            return None
        state = self.kinematics
        return state.independent_forces(matvec(self._tendon_inertia, state.tree_accels(qdd)))
