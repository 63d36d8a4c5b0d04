r"""Forward dynamics with soft constraints, and its implicit derivatives: `torchsko.constrained_dynamics`.

`torchsko.contact_forces` returns the force of each contact at an acceleration.

The acceleration x solves the equations of motion with the forces of the constraints,

.. math::
    R(x, u) = ID(q, \dot q, x) - \tau - J^* f, \qquad f = -\nabla s(J x - a_{ref}), \qquad
    R_x = \mathcal M + J^* H J,

so that derivatives of any order come from R at the solution, never from the iterations of the solver. J and
aref are functions of the configuration, of the shapes and of the parameters, so that distances and normals
are differentiated as well.

Reference: E. Todorov 2014 (see `torchsko.contact.newton`); A. Griewank and A. Walther, *Evaluating
Derivatives*, 2nd edition, SIAM, 2008, section 15.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.contact.contact_model import PARAMETER_DIMS, ContactModel
from torchsko.contact.cost import Rows
from torchsko.contact.inverse_weights import transmission_matrix
from torchsko.contact.newton import minimise, solve_from_leaves
from torchsko.contact.points import select
from torchsko.contact.rows import constraint_rows, moving_dofs
from torchsko.contact.soft_constraints import Metric
from torchsko.contact.value_checks import check_batch, check_mechanism
from torchsko.implicit.equation import implicit
from torchsko.mechanism.coordinates import (
    independent_forces,
    independent_matrix,
    tree_q,
    tree_state,
)
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.utils.shapes import matvec
from torchsko.utils.traced_tensor import can_be_nonzero
from torchsko.verbs.dynamics import (
    bias_force,
    inverse_dynamics,
    mass_matrix,
    refuse_singular,
)
from torchsko.verbs.mechanism_inputs import fixed_fields, parameters_of, split_mechanism

_CONTACT_FIXED = tuple(f.name for f in fields(ContactModel) if f.name not in PARAMETER_DIMS)


class ConstrainedDynamics(NamedTuple):
    """Result of `constrained_dynamics`.

    Attributes:
        qdd: accelerations, `[*batch, num_dof]` [rad/s^2 or m/s^2].
        forces: generalised forces of all constraints, `[*batch, num_dof]` [N m or N].
        residual: largest error of the equations of motion, `[*batch]` [N m or N], without derivatives.
    """

    qdd: Tensor
    forces: Tensor
    residual: Tensor


@verb
def constrained_dynamics(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    f_ext: Tensor | None = None,
    *,
    contact: ContactModel | None = None,
    warmstart: Tensor | None = None,
) -> ConstrainedDynamics:
    """Accelerations under joint forces, contact, position limits and dry friction, as MuJoCo computes them.

    Dry friction (``mech.friction``) is a soft constraint with a largest force, as in MuJoCo, in place of the
    force of `passive_force`. The mass matrix includes the armature of tendons.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        tau: joint forces, `[*batch, num_dof]` [N m or N].
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body frame at its origin.
        contact: shapes and parameters; by default `ContactModel.of` of the mechanism.
        warmstart: acceleration from which the solver starts, `[*batch, num_dof]`; it has no gradient. By
            default that without constraints.

    Returns:
        Accelerations, constraint forces and the residual, with gradients to all inputs, to the parameters of
        the mechanism and to those of ``contact``.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: E. Todorov, *Convex and analytically-invertible dynamics with contacts and constraints*, ICRA
    2014.

    Example:
        >>> import torch, torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.0999"><freejoint/>
        ...   <geom size="0.1"/></body></worldbody></mujoco>'''
        >>> ball = ts.load(text)
        >>> q, zero = ball.file_metadata.initial, torch.zeros(6, dtype=torch.float64)
        >>> bool(ts.constrained_dynamics(ball, q, zero, zero).qdd[5] > -9.81)
        True
    """
    check_state(mech, q=q, qd=qd, tau=tau, f_ext=f_ext)
    contact = ContactModel.of(mech) if contact is None else contact
    return dynamics_with_inertia(mech, q, qd, tau, f_ext, contact, warmstart, None)


@verb
def contact_forces(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, *, contact: ContactModel | None = None
) -> Tensor:
    """Force and moment of each candidate contact on the second shape of its pair, in contact axes.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        qdd: acceleration, as `constrained_dynamics` returns it, `[*batch, num_dof]` [rad/s^2 or m/s^2].
        contact: shapes and parameters; by default `ContactModel.of` of the mechanism.

    Returns:
        Forces along and moments about the normal and both tangents, `[*batch, C, 6]` [N, N m], in the order
        of `contacts`; zero for contacts that are not active.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: MuJoCo documentation, "Computation", Constraint model (contact forces).

    Example:
        >>> import torch, torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.0999"><freejoint/>
        ...   <geom size="0.1"/></body></worldbody></mujoco>'''
        >>> ball = ts.load(text)
        >>> q, zero = ball.file_metadata.initial, torch.zeros(6, dtype=torch.float64)
        >>> qdd = ts.constrained_dynamics(ball, q, zero, zero).qdd
        >>> normal_force = ts.contact_forces(ball, q, zero, qdd)[0, 0]
        >>> torch.allclose(normal_force, ball.mass[0] * (qdd[5] + 9.81))
        True
    """
    check_state(mech, q=q, qd=qd, qdd=qdd)
    contact = ContactModel.of(mech) if contact is None else contact
    _check(mech, contact, q, qd)
    rows = constraint_rows(mech, contact, q, qd)
    return cone_forces(rows, -rows.derivatives(rows.motion(qdd) - rows.reference)[0])


def cone_forces(rows: Rows, forces: Tensor) -> Tensor:
    """Forces of contacts in the order of their points, `[*batch, C, 6]`, of those of all rows."""
    places = [c for cone in rows.cones for c in cone.points]
    if not places:
        return forces.new_zeros(*forces.shape[:-1], 0, 6)
    parts = [
        torch.nn.functional.pad(cone.select(forces), (0, 6 - cone.size)) for cone in rows.cones
    ]
    return select(torch.cat(parts, -2), sorted(range(len(places)), key=places.__getitem__), -2)


def dynamics_with_inertia(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    f_ext: Tensor | None,
    contact: ContactModel,
    warmstart: Tensor | None,
    added: Tensor | None,
) -> ConstrainedDynamics:
    """`constrained_dynamics` with a matrix added to the mass matrix, `[*batch, num_dof, num_dof]`."""
    _check(mech, contact, q, qd)
    external = () if f_ext is None else (f_ext,)
    if warmstart is None:
        refuse_singular(mech)
    start = () if warmstart is None else (warmstart.detach(),)
    more = () if added is None else (added,)
    equation = _ConstrainedEquation(
        fixed_fields(mech),
        {name: getattr(contact, name) for name in _CONTACT_FIXED},
        len(external),
        len(more),
    )
    inputs = parameters_of(mech)
    inputs += [getattr(contact, name) for name in PARAMETER_DIMS]
    qdd = implicit(equation, *inputs, q, qd, tau, *external, *more, *start)
    forces = _constraint_force(_rows(mech, contact, q, qd, added), qdd)
    error = balance_error(mech, contact, q, qd, qdd, tau, f_ext, added) - forces
    return ConstrainedDynamics(qdd, forces, error.detach().abs().amax(-1))


def _check(mech: Mechanism, contact: ContactModel, q: Tensor, qd: Tensor) -> None:
    """Check that a contact model belongs to a mechanism, and its batch to a state."""
    check_mechanism(contact, mech)
    batch = torch.broadcast_shapes(q.shape[:-1], qd.shape[:-1])
    check_batch(contact, PARAMETER_DIMS, batch)


def _rows(
    mech: Mechanism, contact: ContactModel, q: Tensor, qd: Tensor, added: Tensor | None
) -> Rows:
    """Rows of the constraints, in the metric of the mass matrix and of what is added to it."""
    metric = None if added is None else step_metric(mech, contact, q, added)
    return constraint_rows(mech, contact, q, qd, metric)


def step_metric(mech: Mechanism, contact: ContactModel, q: Tensor, added: Tensor) -> Metric:
    """Metric of a step that adds a matrix `[*batch, num_dof, num_dof]` to the mass matrix."""
    M = inertia_with_tendons(mech, contact, q)
    return Metric(*(x.diagonal(dim1=-2, dim2=-1) for x in (M, added)))


def inertia_with_tendons(mech: Mechanism, contact: ContactModel, q: Tensor) -> Tensor:
    """Mass matrix with the armature of tendons, `[*batch, num_dof, num_dof]`."""
    M, of_tendons = mass_matrix(mech, q), tendon_inertia(mech, contact, q)
    return M if of_tendons is None else M + of_tendons


def tendon_inertia(mech: Mechanism, contact: ContactModel, q: Tensor) -> Tensor | None:
    """Inertia of tendons over the independent dofs, `[*batch, num_dof, num_dof]`; None without armature."""
    if not contact.armature_tendons:
        return None
    return independent_matrix(mech, tree_q(mech, q), _tree_inertia(mech, contact))


def _tree_inertia(mech: Mechanism, contact: ContactModel) -> Tensor:
    """Inertia of tendons over the dofs of the tree."""
    rows = select(contact.tendon_transmission, contact.armature_tendons, -2)
    return transmission_matrix(
        mech, rows, select(contact.tendon_armature, contact.armature_tendons, -1)
    )


def _inertial_force(
    mech: Mechanism, contact: ContactModel, q: Tensor, qd: Tensor, qdd: Tensor
) -> Tensor | None:
    """Joint forces that accelerate tendons, `[*batch, num_dof]`; None without armature."""
    if not contact.armature_tendons:
        return None
    at, _, accel = tree_state(mech, q, qd, qdd)
    return independent_forces(mech, at, matvec(_tree_inertia(mech, contact), accel))


def smooth_force(
    mech: Mechanism,
    contact: ContactModel,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    f_ext: Tensor | None,
) -> Tensor:
    """Joint forces less bias forces, without constraints, `[*batch, num_dof]`."""
    force = tau - bias_force(without_dry_friction(mech), q, qd, f_ext)
    if mech.closing is None:
        return force
    of_tendons = _inertial_force(mech, contact, q, qd, torch.zeros_like(qd))
    return force if of_tendons is None else force - of_tendons


def balance_error(
    mech: Mechanism,
    contact: ContactModel,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    tau: Tensor,
    f_ext: Tensor | None,
    added: Tensor | None,
) -> Tensor:
    """Error of the equations of motion without constraints."""
    error = inverse_dynamics(without_dry_friction(mech), q, qd, qdd, f_ext) - tau
    of_tendons = _inertial_force(mech, contact, q, qd, qdd)
    error = error if of_tendons is None else error + of_tendons
    return error if added is None else error + matvec(added, qdd)


def without_dry_friction(mech: Mechanism) -> Mechanism:
    """The mechanism whose passive forces have no dry friction."""
    return mech.replace(friction=torch.zeros_like(mech.friction))


def _constraint_force(rows: Rows, qdd: Tensor) -> Tensor:
    """J* f of the constraints at an acceleration, `[*batch, num_dof]`."""
    return -rows.generalised_forces(rows.derivatives(rows.motion(qdd) - rows.reference)[0])


@dataclass(frozen=True, eq=False)
class _ConstrainedEquation:
    """The equation with inputs (*mechanism, *contact, q, qd, tau, [f_ext], [added], [warmstart]).

    Attributes:
        fixed: fields of the mechanism that are not parameters.
        contact_fixed: fields of the contact model that are not parameters.
        num_external: 1 with external forces, else 0.
        num_added: 1 with a matrix added to the mass matrix, else 0.
    """

    fixed: dict[str, Any]
    contact_fixed: dict[str, Any]
    num_external: int
    num_added: int

    def split(
        self, inputs: tuple[Tensor, ...]
    ) -> tuple[Mechanism, ContactModel, tuple[Tensor, ...]]:
        """The mechanism and the contact model with the given parameters, and the other inputs."""
        mech, rest = split_mechanism(self.fixed, inputs)
        surfaces: dict[str, Any] = dict(zip(PARAMETER_DIMS, rest, strict=False))
        return mech, ContactModel(**self.contact_fixed, **surfaces), rest[len(surfaces) :]

    def optional(
        self, rest: Sequence[Tensor]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """External forces, added matrix and warm start, from the inputs after tau."""
        remaining = iter(rest)
        external = next(remaining) if self.num_external else None
        added = next(remaining) if self.num_added else None
        return external, added, next(remaining, None)

    def solution(self, *inputs: Tensor) -> Tensor:
        """The accelerations, by Newton's method."""
        mech, contact, (q, qd, tau, *rest) = self.split(inputs)
        external, added, warmstart = self.optional(rest)
        rows = _rows(mech, contact, q, qd, added)
        M = inertia_with_tendons(mech, contact, q)
        M = M if added is None else M + added
        h = smooth_force(mech, contact, q, qd, tau, external)
        start = solve_from_leaves(M, h, scalar=mech.scalar) if warmstart is None else warmstart
        moves = moving_dofs(mech)
        # Dofs on one path to the root have an entry in M: one of them moves all bodies of the other.
        coupled = (moves.T.to(M.dtype) @ moves.to(M.dtype)) > 0
        coupled = coupled if added is None else coupled | can_be_nonzero(added)
        return minimise(M, h, rows, start, coupled, scalar=mech.scalar)

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Error of the equations of motion."""
        mech, contact, (q, qd, tau, *rest) = self.split(inputs)
        external, added, _ = self.optional(rest)
        balance = balance_error(mech, contact, q, qd, x, tau, external, added)
        return balance - _constraint_force(_rows(mech, contact, q, qd, added), x)

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """(M + J* H J)^-1 rhs."""
        mech, contact, (q, qd, _, *rest) = self.split(inputs)
        added = self.optional(rest)[1]
        rows = _rows(mech, contact, q, qd, added)
        jar = rows.motion(x) - rows.reference
        _, diagonal, hessians = rows.derivatives(jar)
        H = inertia_with_tendons(mech, contact, q)
        H = H if added is None else H + added
        H = H + rows.curvature(diagonal, hessians, scalar=mech.scalar)
        return solve_from_leaves(H, rhs, scalar=mech.scalar)
