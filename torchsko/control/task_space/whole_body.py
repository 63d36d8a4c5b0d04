r"""Whole-body inverse dynamics: accelerations, contact forces and joint forces by a quadratic program.

With the Jacobian J_c of the contacts,

.. math::
    \min_{\ddot q, \lambda} \sum_i w_i |J_i \ddot q - a_i|^2 + \epsilon |\ddot q|^2
    + \epsilon_\lambda |\lambda - \lambda_0|^2, \qquad
    \tau = \mathcal{M} \ddot q + \mathcal{C} - J_c^* \lambda,

    J_c \ddot q = - \dot J_c \dot q - k J_c \dot q, \quad \tau_{free} = 0, \quad |\tau| \le \tau_{max}, \quad
    |\lambda_x|, |\lambda_y| \le \mu \lambda_z / \sqrt 2,

so that contact forces push and lie within their friction cones. The equations of contacts are those of
`torchsko.control.task_space.contacts`. The references of the forces, :math:`\lambda_0`, carry the robot at
zero acceleration with the least norm. Where they lie within the cones, they do not shift a robot that stays.

Objectives of several priorities are solved one after another: the accelerations of earlier ones are
equalities of the next program. Where limits determine them, that program has no interior, and its residual is
about 1e-4. Joint limits are those of a control barrier function with two equal rates :math:`\alpha`,

.. math::
    \ddot q \le \alpha^2 (q_{max} - q) - 2 \alpha \dot q, \qquad
    \ddot q \le \alpha (\dot q_{max} - \dot q),

and bounds from below of this form. Within the limits they never contradict each other.

Reference: A. Del Prete, N. Mansard, O. Ramos, O. Stasse, F. Nori, *Implementing torque control with
high-ratio gear boxes and without joint-torque sensors*, International Journal of Humanoid Robotics 13(1),
2016 (task-space inverse dynamics); A. Herzog et al., *Momentum control with hierarchical inverse dynamics on
a torque-controlled humanoid*, Autonomous Robots 40(3), 2016; Q. Nguyen, K. Sreenath, *Exponential control
barrier functions for enforcing high relative-degree safety-critical constraints*, American Control
Conference, 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.joint_space.gains import Batches, check_nonnegative
from torchsko.control.qp import QPSolution, QuadraticProgram, solve_qp
from torchsko.control.task_space.contacts import (
    Contact,
    ContactRows,
    contact_batches,
    contact_rows,
    force_bounds,
    in_inertial_axes,
    reference_forces,
)
from torchsko.control.task_space.infeasibility import warn_infeasible
from torchsko.control.task_space.objectives import Objective
from torchsko.errors import MechanismError
from torchsko.linalg.sparse import gram_matrix, sparse_matvec
from torchsko.linalg.symmetric import spd_solve
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.mechanism.validation import check_each, check_names, check_placement
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.numbers import as_integer
from torchsko.utils.shapes import broadcast_shapes, concatenate, matvec, norm
from torchsko.verbs.dynamics import bias_force, mass_matrix

ACCELERATION_WEIGHT = 1e-6
"""Weight of the square of accelerations, which makes them unique where the objectives do not."""


class WholeBodyResult(NamedTuple):
    """Result of `whole_body_control`.

    Attributes:
        tau: joint forces, `[*batch, num_dof]`; zero at unactuated joints [N m or N].
        qdd: accelerations, `[*batch, num_dof]` [rad/s^2 or m/s^2].
        forces: of the ground on every contact, in inertial axes, `[*batch, contacts, 3]` [N].
        moments: of the ground on every contact, about the origin of its frame, in inertial axes,
            `[*batch, contacts, 3]` [N m]; zero for points.
        residual: of the quadratic program, `[*batch]`. Above 1e-6 (in float32 above about 1e-3) the program
            has no solution, or `iterations` is too small.
        errors: norm of rows qdd - desired of each objective in the given order, `[*batch, objectives]`. That
            of a later priority is what limits and earlier priorities do not allow.
    """

    tau: Tensor
    qdd: Tensor
    forces: Tensor
    moments: Tensor
    residual: Tensor
    errors: Tensor


def whole_body_control(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    objectives: Sequence[Objective],
    contacts: Sequence[Contact] = (),
    *,
    undriven: Sequence[str] | None = None,
    limit_rate: float | Tensor | None = None,
    iterations: int = 30,
) -> WholeBodyResult:
    """Joint forces for the closest accelerations to the objectives, within effort limits and friction cones.

    `torchsko.fuse` compiles a control law that calls this into one kernel with all iterations of the solver,
    which stops when all samples of a SIMD vector have converged. The text of the solver does not grow with
    the robot.

    Args:
        mech: the mechanism; its `effort_limit` bounds the joint forces. Some files write 0 for an unknown
            limit, which allows no force: correct it by ``mech.replace(effort_limit=...)``.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        objectives: see `Objective`, and the functions that make them; at least one.
        contacts: sticking contacts: points, or rectangles (`SurfaceContact`) such as flat feet.
        undriven: names of the unactuated joints; default: all free joints.
        limit_rate: largest rate at which joints of one dof approach their position and velocity limits, a
            number or `[*batch]` [1/s]. Default: these limits are ignored.
        iterations: of the solver, at least one.

    Returns:
        `WholeBodyResult`, differentiable once in states and parameters. A sample whose contacts and limits
        contradict each other has a large residual. Where values can be read without waiting, a warning names
        the contact, joint or objective that is violated most.

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
    _check_sizes(robot, objectives, contacts, limit_rate, batches)
    constraints = _constraints(mech, q, qd, contacts, undriven, limit_rate)
    accelerations: list[tuple[Tensor, Tensor]] = []
    solutions: list[QPSolution] = []
    earlier: list[Objective] = []
    for level in sorted({x.priority for x in objectives}):
        asked = [x for x in objectives if x.priority == level]
        program = constraints.with_objectives(asked, accelerations)
        solutions.append(solve_qp(program, iterations=iterations))
        qdd = solutions[-1].x[..., : robot.num_dof]
        accelerations += [(x.rows, matvec(x.rows, qdd)) for x in asked]
        warn_infeasible(program, solutions[-1], partial(constraints.names, robot, earlier))
        earlier = [*earlier, *asked]
    return constraints.result(solutions[-1], objectives)


def _check_sizes(
    mech: Mechanism,
    objectives: Sequence[Objective],
    contacts: Sequence[Contact],
    limit_rate: float | Tensor | None,
    batches: Batches,
) -> None:
    """Check the shapes of objectives and contacts against the mechanism and the batch."""
    for k, (rows, desired, weight, _) in enumerate(objectives):
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
    if limit_rate is not None:
        why = "Joints approach their limits at this rate."
        size = check_nonnegative(mech, "limit_rate", limit_rate, why, "limit_rate=10.0, say")
        batches |= {"the limit_rate": size}
    shared_batch({"the mechanism": mech.batch_shape} | batches)


class _Constraints(NamedTuple):
    """The equalities and bounds over [qdd; forces in units of the weight].

    Attributes:
        contacts: the contacts.
        rows: their equations.
        weight: of the robot, `[*batch, 1]` [N].
        A, b, G, h: of the quadratic program. The first rows of G are those of the driven dofs.
        reference: of the forces, `[*batch, c]`.
        force_weights: of their deviations, `[*batch, c]`.
        free: numbers of the unactuated dofs.
        driven: numbers of the driven dofs.
        size: unit of the rows of driven dofs, `[*batch, k]`.
        bias: joint forces at zero acceleration, `[*batch, num_dof]`.
    """

    contacts: Sequence[Contact]
    rows: ContactRows
    weight: Tensor
    A: Tensor
    b: Tensor
    G: Tensor
    h: Tensor
    reference: Tensor
    force_weights: Tensor
    free: Tensor
    driven: Tensor
    size: Tensor
    bias: Tensor

    def with_objectives(
        self, objectives: Sequence[Objective], accelerations: Sequence[tuple[Tensor, Tensor]]
    ) -> QuadraticProgram:
        """The program of objectives, with given accelerations of those of higher priority."""
        n, c = self.bias.shape[-1], self.reference.shape[-1]
        like = {"dtype": self.bias.dtype, "device": self.bias.device}
        small = torch.full((n,), ACCELERATION_WEIGHT, **like)
        rows, weights = [torch.eye(n + c, **like)], [concatenate((small, self.force_weights))]
        desired = [concatenate((torch.zeros_like(small), self.reference))]
        for objective in objectives:
            w = objective.weight
            w = w[..., None] if isinstance(w, Tensor) else torch.tensor([w], **like)
            rows.append(torch.nn.functional.pad(objective.rows, (0, c)))
            weights.append(w.expand(*w.shape[:-1], objective.rows.shape[-2]))
            desired.append(objective.desired)
        R, weights, desired = concatenate(rows, -2), concatenate(weights), concatenate(desired)
        P, p = gram_matrix(R, weights), -sparse_matvec(R.mT, weights * desired)
        A, b = self.A, self.b
        if accelerations:
            padded = (torch.nn.functional.pad(rows, (0, c)) for rows, _ in accelerations)
            A, b = concatenate((A, *padded), -2), concatenate((b, *(a for _, a in accelerations)))
        return QuadraticProgram(P, p, A, b, self.G, self.h)

    def names(
        self, mech: Mechanism, objectives: Sequence[Objective]
    ) -> tuple[list[str], list[str]]:
        """A name of each row of A and of G, with the accelerations of objectives of higher priority."""
        dofs = [mech.dof_names[k] for k in (*self.free.tolist(), *self.driven.tolist())]
        count = len(self.free)
        equations = [f"the equation of motion of the unactuated dof {x!r}" for x in dofs[:count]]
        for x in self.contacts:
            equations += [f"the contact at {x.frame!r}, which accelerates"] * x.num_rows
        for x in objectives:
            equations += [f"an objective of priority {x.priority}"] * x.rows.shape[-2]
        limits = [f"the effort limit of {x!r}" for x in dofs[count:]]
        limits += [
            f"the normal_limits of the contact at {x.frame!r}"
            for x in self.contacts
            if x.normal_limits is not None
        ]
        cones = [
            f"the friction cone of the contact at {x.frame!r}"
            for x in self.contacts
            for _ in range(x.cone(self.weight).shape[-2])
        ]
        joints = self.G.shape[-2] - len(limits) - len(cones)
        return equations, [*limits, *["a limit of the joints"] * joints, *cones]

    def result(self, solution: QPSolution, objectives: Sequence[Objective]) -> WholeBodyResult:
        """The result of a solution."""
        n, count = self.bias.shape[-1], len(self.driven)
        tau = self.size * solution.row_values[..., :count] + self.bias.index_select(-1, self.driven)
        tau = tau.new_zeros(*tau.shape[:-1], n).index_add(-1, self.driven, tau)
        qdd, scaled = solution.x[..., :n], solution.x[..., n:]
        forces, moments = in_inertial_axes(self.contacts, self.rows, self.weight * scaled)
        missing = (norm(sparse_matvec(x.rows, qdd) - x.desired) for x in objectives)
        errors = torch.stack(torch.broadcast_tensors(*missing), -1)
        return WholeBodyResult(tau, qdd, forces, moments, solution.residual, errors)


def _constraints(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    contacts: Sequence[Contact],
    undriven: Sequence[str] | None,
    limit_rate: float | Tensor | None,
) -> _Constraints:
    robot = as_mechanism(mech)
    n, M, bias = robot.num_dof, mass_matrix(mech, q), bias_force(mech, q, qd)
    weight = robot.mass.sum(-1, keepdim=True) * robot.gravity.norm(dim=-1, keepdim=True)
    weight = torch.where(weight > 0, weight, 1.0)
    contact = contact_rows(robot, q, qd, contacts)
    J, scaled = contact.J, weight[..., None] * contact.J.mT
    batch, c = broadcast_shapes(M.shape[:-2], bias.shape[:-1], scaled.shape[:-2]), J.shape[-2]
    dynamics = concatenate((M, -scaled))
    free, driven = _split_dofs(robot, undriven)
    # Rows are normalized: those of a robot of a few milligrams would be below the tolerance at any force.
    free_rows, free_bias = dynamics.index_select(-2, free), bias.index_select(-1, free)
    square = (free_rows * free_rows).sum(-1).detach()
    length = torch.where(square > 0, square, 1.0).sqrt()
    free_rows, free_bias = free_rows / length[..., None], free_bias / length
    A = concatenate((free_rows, torch.nn.functional.pad(J, (0, c))), -2, batch)
    b = concatenate((-free_bias, contact.acceleration), batch=batch)
    default = _least_forces(free_rows[..., n:], free_bias)
    reference, force_weights = reference_forces(contacts, contact, weight, default)
    limit = robot.effort_limit.index_select(-1, driven)
    size = torch.where(limit.isfinite() & (limit > 0), limit, 1.0)  # normalizes rows
    offset, bounds = bias.index_select(-1, driven) / size, force_bounds(contacts, weight)
    joints, low, high = _joint_bounds(robot, q, qd, limit_rate)
    two_sided = [
        (
            dynamics.index_select(-2, driven) / size[..., None],
            -limit / size - offset,
            limit / size - offset,
        ),
        (torch.nn.functional.pad(bounds.normal, (n, 0)), bounds.least, bounds.largest),
        (torch.nn.functional.pad(joints, (0, c)), low, high),
    ]
    rows, least, largest = zip(*two_sided, strict=True)
    G = concatenate((*rows, torch.nn.functional.pad(bounds.cones, (n, 0))), -2)
    h = concatenate((*largest, bounds.cone_limits, *(-x for x in least)))
    return _Constraints(
        contacts, contact, weight, A, b, G, h, reference, force_weights, free, driven, size, bias
    )


def _least_forces(rows: Tensor, bias: Tensor) -> Tensor:
    """Forces of the least norm with rows times forces = - bias, `[*batch, c]`.

    Args:
        rows: of the unactuated dofs, `[*batch, k, c]`.
        bias: their forces at zero acceleration, `[*batch, k]`.
    """
    k, c = rows.shape[-2:]
    if not k or not c:
        return rows.new_zeros(*broadcast_shapes(rows.shape[:-2], bias.shape[:-1]), c)
    # A shift near rounding allows contacts that cannot carry the robot, as a single point.
    gram, shift = rows @ rows.mT, torch.finfo(compute_dtype(rows)).eps ** 0.625
    trace = gram.diagonal(0, -2, -1).sum(-1)[..., None, None]
    trace = torch.where(trace > 0, trace, 1.0)
    gram = gram + shift * trace * torch.eye(k, dtype=rows.dtype, device=rows.device)
    return -matvec(rows.mT, spd_solve(gram, bias[..., None])[..., 0])


def _joint_bounds(
    mech: Mechanism, q: Tensor, qd: Tensor, rate: float | Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, least and largest values of accelerations of joints of one dof, in units of the squared rate."""
    joints = [] if rate is None else [x for x in mech.joint_names if _is_single(mech, x)]
    dof, place = ([of(x).start for x in joints] for of in (mech.dof_slice, mech.q_slice))
    dof, place = (torch.tensor(x, dtype=torch.int64, device=q.device) for x in (dof, place))
    rows = torch.eye(mech.num_dof, dtype=q.dtype, device=q.device).index_select(0, dof)
    if rate is None:
        return rows, q.new_zeros(0), q.new_zeros(0)
    rate = rate[..., None] if isinstance(rate, Tensor) else rate
    q, qd = q.index_select(-1, place), qd.index_select(-1, dof)
    lower, upper = (x.index_select(-1, place) for x in (mech.lower, mech.upper))
    speed = mech.velocity_limit.index_select(-1, dof)
    high = torch.minimum(upper - q - 2 * qd / rate, (speed - qd) / rate)
    low = torch.maximum(lower - q - 2 * qd / rate, (-speed - qd) / rate)
    scale = rate[..., None] ** 2 if isinstance(rate, Tensor) else rate**2
    return rows / scale, low, high


def _is_single(mech: Mechanism, joint: str) -> bool:
    """True for a joint of one coordinate and one dof."""
    return all(x.stop - x.start == 1 for x in (mech.dof_slice(joint), mech.q_slice(joint)))


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
