r"""Whole-body inverse dynamics: accelerations, contact forces and joint forces by a quadratic program.

With the linear Jacobians J_c of the contact points,

.. math::
    \min_{\ddot q, \lambda} \sum_i w_i |J_i \ddot q - a_i|^2 + \epsilon |(\ddot q, \lambda)|^2, \qquad
    \tau = \mathcal{M} \ddot q + \mathcal{C} - J_c^* \lambda,

    J_c \ddot q = - \dot J_c \dot q - k J_c \dot q, \quad \tau_{free} = 0, \quad |\tau| \le \tau_{max}, \quad
    |\lambda_x|, |\lambda_y| \le \mu \lambda_z / \sqrt 2,

so that contact forces push and lie within their friction cones. For several contacts of one rotating body
see `torchsko.control.task_space.contacts`.

Reference: A. Del Prete, N. Mansard, O. Ramos, O. Stasse, F. Nori, *Implementing torque control with
high-ratio gear boxes and without joint-torque sensors*, International Journal of Humanoid Robotics 13(1),
2016 (task-space inverse dynamics); A. Herzog et al., *Momentum control with hierarchical inverse dynamics on
a torque-controlled humanoid*, Autonomous Robots 40(3), 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.control.joint_space.gains import Batches, check_nonnegative
from torchsko.control.qp import QPSolution, QuadraticProgram, solve_qp
from torchsko.control.task_space.contacts import (
    Contact,
    contact_batches,
    contact_rows,
    friction_cones,
    in_inertial_axes,
)
from torchsko.control.task_space.objectives import Objective
from torchsko.errors import MechanismError
from torchsko.linalg.sparse import gram_matrix, sparse_matvec
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.mechanism.validation import check_each, check_names, check_placement
from torchsko.utils.numbers import as_integer
from torchsko.utils.shapes import broadcast_shapes, concatenate
from torchsko.verbs.dynamics import bias_force, mass_matrix

REGULARIZATION = (1e-6, 1e-3)
"""Weights of accelerations, and of forces in units of the robot's weight, that make the solution unique."""


class WholeBodyResult(NamedTuple):
    """Result of `whole_body_control`.

    Attributes:
        tau: joint forces, `[*batch, num_dof]`; zero at unactuated joints [N m or N].
        qdd: accelerations, `[*batch, num_dof]` [rad/s^2 or m/s^2].
        forces: of the ground on every contact, in inertial axes, `[*batch, contacts, 3]` [N].
        residual: of the quadratic program, `[*batch]`. Above 1e-6 (in float32 above about 1e-3) the program
            has no solution, or `iterations` is too small.
    """

    tau: Tensor
    qdd: Tensor
    forces: Tensor
    residual: Tensor


def whole_body_control(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    objectives: Sequence[Objective],
    contacts: Sequence[Contact] = (),
    *,
    undriven: Sequence[str] | None = None,
    iterations: int = 30,
) -> WholeBodyResult:
    """Joint forces for the closest accelerations to the objectives, within effort limits and friction cones.

    `torchsko.fuse` compiles a control law that calls this into one kernel with all iterations of the solver,
    which stops when all samples of a SIMD vector have converged. Kernels of a quadruped, and of a humanoid
    with eight contact points, build once, the latter in minutes.

    Args:
        mech: the mechanism; its `effort_limit` bounds the joint forces. Some files write 0 for an unknown
            limit, which allows no force: correct it by ``mech.replace(effort_limit=...)``.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        objectives: see `Objective`, and the functions that make them; at least one.
        contacts: sticking contact points. A flat foot has one at each corner.
        undriven: names of the unactuated joints; default: all free joints.
        iterations: of the solver, at least one.

    Returns:
        `WholeBodyResult`, differentiable once in states and parameters.

    Raises:
        MechanismError: on an unknown frame or joint, no objectives, objectives that are not a sequence of
            them, a negative weight, or an invalid number of iterations.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    check_state(robot, q=q, qd=qd)
    if (as_integer(iterations) or 0) < 1:
        raise MechanismError(
            f"iterations is {iterations!r}.",
            "The solver needs an integer number of iterations, at least 1.",
            "Pass iterations=30, say.",
        )
    if not objectives:
        raise MechanismError(
            "objectives is empty.",
            "The motion of the robot is not determined.",
            "Pass [posture_objective(mech, q, qd, q)], for example.",
        )
    check_each("objectives", objectives, Objective, "com_objective(mech, q, qd, target)")
    check_each("contacts", contacts, Contact, "Contact(frame)")
    batches = {"q": tuple(q.shape[:-1]), "qd": tuple(qd.shape[:-1])}
    _check_sizes(robot, objectives, contacts, batches)
    n, M, bias = robot.num_dof, mass_matrix(mech, q), bias_force(mech, q, qd)
    scale = robot.mass.sum(-1, keepdim=True) * robot.gravity.norm(dim=-1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)  # forces in units of the robot's weight
    J, contact_acceleration = contact_rows(robot, q, qd, contacts)
    scaled = scale[..., None] * J.mT
    batch = broadcast_shapes(M.shape[:-2], bias.shape[:-1], scaled.shape[:-2])
    dynamics = torch.cat([M.expand(*batch, n, n), -scaled.expand(*batch, *scaled.shape[-2:])], -1)
    equations = dynamics, bias, J, contact_acceleration
    dofs = _split_dofs(robot, undriven)
    program = _quadratic_program(robot, objectives, contacts, equations, dofs)
    solution: QPSolution = solve_qp(program, iterations=iterations)
    (_, actuated), size = dofs, _force_size(robot, dofs[1])
    driven = size * solution.row_values[..., : len(actuated)] + bias.index_select(-1, actuated)
    tau = driven.new_zeros(*driven.shape[:-1], n).index_add(-1, actuated, driven)
    qdd, forces = solution.x[..., :n], scale * solution.x[..., n:]
    return WholeBodyResult(tau, qdd, in_inertial_axes(contacts, forces), solution.residual)


def _check_sizes(
    mech: Mechanism, objectives: Sequence[Objective], contacts: Sequence[Contact], batches: Batches
) -> None:
    """Check the shapes of objectives and contacts against the mechanism and the batch."""
    for k, (rows, desired, weight) in enumerate(objectives):
        meaning = "An objective minimizes the square of rows qdd - desired."
        count = rows.shape[-2] if isinstance(rows, Tensor) and rows.ndim > 1 else 1
        for name, x, shape in (
            ("rows", rows, (count, mech.num_dof)),
            ("desired", desired, (count,)),
        ):
            what = f"{name} of objective {k}"
            batch = check_placement(mech, what, x, shape, meaning, required=True)
            batches |= {f"the {what}": batch}
        what, why = f"weight of objective {k}", "A negative weight makes the objective unbounded."
        batches |= {f"the {what}": check_nonnegative(mech, what, weight, why, "a number, say 1.0")}
    batches |= contact_batches(mech, contacts)
    shared_batch({"the mechanism": mech.batch_shape} | batches)


def _quadratic_program(
    mech: Mechanism,
    objectives: Sequence[Objective],
    contacts: Sequence[Contact],
    equations: tuple[Tensor, Tensor, Tensor, Tensor],
    dofs: tuple[Tensor, Tensor],
) -> QuadraticProgram:
    """The quadratic program over [qdd; forces in units of the weight].

    The first rows of G are those of the driven dofs.
    """
    dynamics, bias, J, contact_acceleration = equations
    n, batch = mech.num_dof, dynamics.shape[:-2]
    count = dynamics.shape[-1] - n
    like = {"dtype": dynamics.dtype, "device": dynamics.device}
    P, p = _objective(objectives, n, count, like)
    unactuated, actuated = dofs
    J = torch.nn.functional.pad(J.expand(*batch, *J.shape[-2:]), (0, count))
    # Rows are normalized: those of a robot of a few milligrams would be below the tolerance at any force.
    free_rows = dynamics.index_select(-2, unactuated)
    square = (free_rows * free_rows).sum(-1).detach()
    length = torch.where(square > 0, square, 1.0).sqrt()
    A = torch.cat([free_rows / length[..., None], J], -2)
    b = (-bias.index_select(-1, unactuated) / length, contact_acceleration)
    b = concatenate(b, batch=batch)
    limit, size = mech.effort_limit.index_select(-1, actuated), _force_size(mech, actuated)
    rows = dynamics.index_select(-2, actuated) / size[..., None]
    offset = bias.index_select(-1, actuated)
    cone = torch.nn.functional.pad(friction_cones(contacts, dynamics), (n, 0))
    batch = broadcast_shapes(batch, cone.shape[:-2], limit.shape[:-1])
    G = concatenate((rows, cone), -2, batch)
    h = [(limit - offset) / size, torch.zeros(cone.shape[-2], **like), (limit + offset) / size]
    h = concatenate(h, batch=batch)
    return QuadraticProgram(P, p, A, b, G, h)


def _force_size(mech: Mechanism, actuated: Tensor) -> Tensor:
    """The force of each driven dof that is the unit of its row: its limit, if there is one."""
    limit = mech.effort_limit.index_select(-1, actuated)
    return torch.where(limit.isfinite() & (limit > 0), limit, 1.0)


def _objective(
    objectives: Sequence[Objective], num_dof: int, num_forces: int, like: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """P and p of the quadratic program: one sum over the rows of all objectives and of the regularization."""
    one = torch.eye(num_dof + num_forces, **like)
    small = [REGULARIZATION[0]] * num_dof + [REGULARIZATION[1]] * num_forces
    rows, weights, desired = [one], [torch.tensor(small, **like)], [torch.zeros_like(one[0])]
    for objective in objectives:
        w = objective.weight
        w = w[..., None] if isinstance(w, Tensor) else torch.tensor([w], **like)
        rows.append(torch.nn.functional.pad(objective.rows, (0, num_forces)))
        weights.append(w.expand(*w.shape[:-1], objective.rows.shape[-2]))
        desired.append(objective.desired)
    R, weights, desired = concatenate(rows, -2), concatenate(weights), concatenate(desired)
    return gram_matrix(R, weights), -sparse_matvec(R.mT, weights * desired)


def _split_dofs(mech: Mechanism, undriven: Sequence[str] | None) -> tuple[Tensor, Tensor]:
    """Indices of the unactuated and of the actuated dofs."""
    if undriven is None:
        undriven = free_joints(mech)
    undriven = check_names("undriven", undriven, mech.joint_names[0])
    unactuated = {i for name in undriven for i in range(mech.num_dof)[mech.dof_slice(name)]}
    actuated = [i for i in range(mech.num_dof) if i not in unactuated]
    first, second = (
        torch.tensor(x, dtype=torch.int64, device=mech.device)
        for x in (sorted(unactuated), actuated)
    )
    return first, second
