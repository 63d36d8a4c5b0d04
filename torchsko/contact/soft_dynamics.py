r"""Forward dynamics with soft constraints, and its implicit derivatives: `torchsko.contact.contact_dynamics`.

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

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.contact_fields import PARAMETER_DIMS
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.cost import SoftRows
from torchsko.contact.newton import minimize, solve_from_leaves
from torchsko.contact.points import select
from torchsko.contact.soft_rows import soft_rows
from torchsko.contact.soft_state import SoftState
from torchsko.contact.value_checks import check_batch, check_mechanism
from torchsko.implicit.equation import implicit
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import broadcast_shapes
from torchsko.utils.traced_tensor import can_be_nonzero
from torchsko.verbs.dynamics import refuse_singular
from torchsko.verbs.mechanism_inputs import fixed_fields, parameters_of, split_mechanism

_CONTACT_FIXED = tuple(f.name for f in fields(ContactModel) if f.name not in PARAMETER_DIMS)


class ContactDynamics(NamedTuple):
    """Result of `contact_dynamics`.

    Attributes:
        qdd: accelerations, `[*batch, num_dof]` [rad/s^2 or m/s^2].
        forces: generalized forces of all constraints, `[*batch, num_dof]` [N m or N].
        residual: largest error of the equations of motion, `[*batch]` [N m or N], without derivatives.
    """

    qdd: Tensor
    forces: Tensor
    residual: Tensor


@verb
def contact_dynamics(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    f_ext: Tensor | None = None,
    *,
    contact: ContactModel | None = None,
    warmstart: Tensor | None = None,
) -> ContactDynamics:
    """Accelerations under joint forces, contact, position limits and dry friction, as MuJoCo computes them.

    Dry friction (``mech.friction``) is a soft constraint with a largest force, as in MuJoCo, in place of the
    force of `passive_force`. The mass matrix includes the armature of tendons.

    Args:
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body frame at its origin.
        contact: shapes and parameters; by default `ContactModel.of` of the mechanism.
        warmstart: acceleration from which the solver starts, `[*batch, num_dof]`; it has no gradient. By
            default that without constraints.

    Returns:
        Accelerations, constraint forces and the residual, with gradients to all inputs, to the parameters of
        the mechanism and to those of ``contact``.

    Reference: E. Todorov, *Convex and analytically-invertible dynamics with contacts and constraints*, ICRA
    2014.

    Example:
        >>> import torch, torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.0999"><freejoint/>
        ...   <geom size="0.1"/></body></worldbody></mujoco>'''
        >>> ball = ts.load(text)
        >>> q, zero = ball.file_metadata.initial, torch.zeros(6, dtype=torch.float64)
        >>> bool(ts.contact.contact_dynamics(ball, q, zero, zero).qdd[5] > -9.81)
        True
    """
    contact = ContactModel.of(mech) if contact is None else contact
    check_fits(mech, contact, q, qd)
    state = SoftState(Kinematics.of(mech, q, qd), contact, f_ext)
    qdd, residual = solve_dynamics(state, tau, warmstart)
    return ContactDynamics(qdd, state.balance_error(qdd, tau), residual)


@verb
def contact_forces(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, *, contact: ContactModel | None = None
) -> Tensor:
    """Force and moment of each candidate contact on the second shape of its pair, in contact axes.

    Args:
        qdd: acceleration, as `contact_dynamics` returns it, `[*batch, num_dof]` [rad/s^2 or m/s^2].
        contact: shapes and parameters; by default `ContactModel.of` of the mechanism.

    Returns:
        Forces along and moments about the normal and both tangents, `[*batch, C, 6]` [N, N m], in the order
        of `contacts`; zero for contacts that are not active.

    Reference: MuJoCo documentation, "Computation", Constraint model (contact forces).

    Example:
        >>> import torch, torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.0999"><freejoint/>
        ...   <geom size="0.1"/></body></worldbody></mujoco>'''
        >>> ball = ts.load(text)
        >>> q, zero = ball.file_metadata.initial, torch.zeros(6, dtype=torch.float64)
        >>> qdd = ts.contact.contact_dynamics(ball, q, zero, zero).qdd
        >>> normal_force = ts.contact_forces(ball, q, zero, qdd)[0, 0]
        >>> torch.allclose(normal_force, ball.mass[0] * (qdd[5] + 9.81))
        True
    """
    contact = ContactModel.of(mech) if contact is None else contact
    check_fits(mech, contact, q, qd)
    rows = soft_rows(Kinematics.of(mech, q, qd), contact)
    return cone_forces(rows, -rows.derivatives(rows.motion(qdd, rows.reference))[0])


def cone_forces(rows: SoftRows, forces: Tensor) -> Tensor:
    """Forces of contacts in the order of their points, `[*batch, C, 6]`, of those of all rows."""
    places = [c for cone in rows.cones for c in cone.points]
    if not places:
        return forces.new_zeros(*forces.shape[:-1], 0, 6)
    parts = []
    for cone in rows.cones:
        of_active = torch.where(cone.active[..., None], cone.select(forces), 0.0)
        parts.append(torch.nn.functional.pad(of_active, (0, 6 - cone.size)))
    return select(torch.cat(parts, -2), sorted(range(len(places)), key=places.__getitem__), -2)


def solve_dynamics(
    state: SoftState, tau: Tensor, warmstart: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Accelerations and the residual of `contact_dynamics`, without checks of the contact model.

    Args:
        state: the mechanism at a state with soft constraints.
        tau: joint forces, `[*batch, num_dof]`.
        warmstart: acceleration from which the solver starts, `[*batch, num_dof]`.
    """
    mech, contact, kinematics = state.mech, state.contact, state.kinematics
    if warmstart is None:
        refuse_singular(mech)
    assert kinematics.qd is not None
    X, xi = kinematics.loop_motion or (None, None)
    # The solver reads values; derivatives are those of the equation at its solution.
    inputs = _Inputs(
        kinematics.tree_q,
        kinematics.qd,
        tau,
        X,
        xi,
        state.f_ext,
        state.added,
        state.inertia.detach(),
        state.smooth_force(tau).detach(),
        None if warmstart is None else warmstart.detach(),
    )
    equation = _SoftEquation(
        fixed_fields(mech),
        {name: getattr(contact, name) for name in _CONTACT_FIXED},
        tuple(x is not None for x in inputs),
    )
    parameters = (*parameters_of(mech), *(getattr(contact, name) for name in PARAMETER_DIMS))
    found = implicit(equation, *parameters, *(x for x in inputs if x is not None))
    return found[..., :-1], found[..., -1].detach()


def check_fits(mech: Mechanism, contact: ContactModel, q: Tensor, qd: Tensor) -> None:
    """Check that a contact model belongs to a mechanism, and its batch to a state."""
    check_mechanism(contact, mech)
    batch = broadcast_shapes(q.shape[:-1], qd.shape[:-1])
    check_batch(contact, PARAMETER_DIMS, batch)


class _Inputs(NamedTuple):
    """Inputs of the equation besides parameters; the last three have no derivatives.

    Attributes:
        tree_q: configuration of the tree.
        qd: velocity of the independent dofs.
        tau: joint forces.
        independent_to_tree: X of embedded loops, if there are any.
        tree_accel_bias: xi of embedded loops, if there are any.
        f_ext: external forces, if there are any.
        added: matrix that a step adds to the mass matrix, if it does.
        inertia: mass matrix.
        smooth_force: joint forces less bias forces.
        start: acceleration from which the solver starts, if it is known.
    """

    tree_q: Tensor
    qd: Tensor
    tau: Tensor
    independent_to_tree: Tensor | None
    tree_accel_bias: Tensor | None
    f_ext: Tensor | None
    added: Tensor | None
    inertia: Tensor
    smooth_force: Tensor
    start: Tensor | None


@dataclass(frozen=True, eq=False)
class _SoftEquation:
    """The equation with the parameters of the mechanism, those of the contact model and `_Inputs` as inputs.

    The unknowns are the accelerations and the residual of the solver, which has no derivatives.

    Attributes:
        fixed: fields of the mechanism that are not parameters.
        contact_fixed: fields of the contact model that are not parameters.
        present: whether each of `_Inputs` is among the inputs.
    """

    fixed: dict[str, Any]
    contact_fixed: dict[str, Any]
    present: tuple[bool, ...]

    def split(self, inputs: tuple[Tensor, ...]) -> tuple[SoftState, _Inputs]:
        """The mechanism at a state with the given parameters, and the other inputs."""
        mech, rest = split_mechanism(self.fixed, inputs)
        surfaces: dict[str, Any] = dict(zip(PARAMETER_DIMS, rest, strict=False))
        contact = ContactModel(**self.contact_fixed, **surfaces)
        remaining = iter(rest[len(surfaces) :])
        named: list[Any] = [next(remaining) if flag else None for flag in self.present]
        found = _Inputs(*named)
        loops = [x for x in (found.independent_to_tree, found.tree_accel_bias) if x is not None]
        kinematics = Kinematics(mech, found.tree_q, found.qd).with_loop_motion(*loops)
        return SoftState(kinematics, contact, found.f_ext, found.added), found

    def solution(self, *inputs: Tensor) -> Tensor:
        """The accelerations, by Newton's method, and the largest error of the equations of motion."""
        state, given = self.split(inputs)
        state = state.with_inertia(given.inertia)
        M, h = state.step_inertia, given.smooth_force
        start = solve_from_leaves(M, h) if given.start is None else given.start
        moves = state.contact.tables.over_independent(state.rows.bodies.moves)
        # Dofs on one path to the root have an entry in M: one of them moves all bodies of the other.
        coupled = (moves.T.to(M.dtype) @ moves.to(M.dtype)) > 0
        coupled = coupled if state.added is None else coupled | can_be_nonzero(state.added)
        qdd, error = minimize(M, h, state.rows, start, coupled)
        return torch.cat([qdd, error.abs().amax(-1, keepdim=True)], -1)

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Error of the equations of motion, then zero."""
        state, given = self.split(inputs)
        qdd = x[..., :-1]
        error = state.balance_error(qdd, given.tau) - state.constraint_force(qdd)
        return torch.nn.functional.pad(error, (0, 1))

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """(M + J* H J)^-1 rhs, and the last entry of rhs."""
        state, _ = self.split(inputs)
        rows = state.rows
        jar = rows.motion(x[..., :-1], rows.reference)
        _, diagonal, hessians = rows.derivatives(jar)
        H = state.step_inertia + rows.curvature(diagonal, hessians)
        found = solve_from_leaves(H, rhs[..., :-1])
        return torch.cat([found, rhs[..., -1:].expand(*found.shape[:-1], 1)], -1)
