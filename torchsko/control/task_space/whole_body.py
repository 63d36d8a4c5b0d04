r"""Whole-body inverse dynamics: accelerations, contact forces and joint forces by a quadratic program.

With contacts given, points of the robot that shall not move, and the frames' linear Jacobians J_c there,

.. math::
    \min_{\ddot q, \lambda} \sum_i w_i |J_i \ddot q - a_i|^2 + \epsilon |(\ddot q, \lambda)|^2, \qquad
    \tau = \mathcal{M} \ddot q + \mathcal{C} - J_c^* \lambda,

    J_c \ddot q = - \dot J_c \dot q - k J_c \dot q, \quad \tau_{free} = 0, \quad |\tau| \le \tau_{max}, \quad
    |\lambda_x|, |\lambda_y| \le \mu \lambda_z / \sqrt 2,

so that no force pulls at the ground, and none is outside of the cone of friction. Of several contacts of one
body that turns see `torchsko.control.task_space.contacts`.

Reference: A. Del Prete, N. Mansard, O. Ramos, O. Stasse, F. Nori, *Implementing torque control with
high-ratio gear boxes and without joint-torque sensors*, International Journal of Humanoid Robotics 13(1),
2016 (task-space inverse dynamics); A. Herzog et al., *Momentum control with hierarchical inverse dynamics on
a torque-controlled humanoid*, Autonomous Robots 40(3), 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.mechanism.validation import check_each, check_names, check_placement
from torchsko.rollout.argument_checks import as_integer
from torchsko.utils.shapes import concatenate, matvec
from torchsko.verbs.dynamics import bias_force, mass_matrix

SMALL = (1e-6, 1e-3)
"""Weights of accelerations, and of forces in units of the robot's weight, that no objective asks for."""


class WholeBodyResult(NamedTuple):
    """What `whole_body_control` finds.

    Attributes:
        tau: joint forces, `[*batch, num_dof]`; zero to rounding at joints without drives [N m or N].
        qdd: accelerations, `[*batch, num_dof]` [rad/s^2 or m/s^2].
        forces: of the ground on every contact, in inertial axes, `[*batch, contacts, 3]` [N].
        residual: of the program, `[*batch]`; above 1e-6 where it has no solution (in float32 above some
            1e-3), or `iterations` are too few.
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
    """Joint forces that come closest to the accelerations asked for, within limits and friction.

    `torchsko.fuse` makes one kernel of a law that calls this, all iterations included; it leaves them when
    all samples of a vector have a solution. A quadruped on its feet has one, and a humanoid on the eight
    corners of its feet, which takes minutes to build, once.

    Args:
        mech: the mechanism; its `effort_limit` bounds the joint forces. A limit of 0, which files write where
            they know none, allows no force: ``mech.replace(effort_limit=...)``.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        objectives: see `Objective`, and the functions that make some; one at least.
        contacts: points that stay on the ground. A foot of a surface has one at each corner.
        undriven: names of the joints without drives; all free joints when left out.
        iterations: of the solver, one at least.

    Returns:
        `WholeBodyResult`, differentiable once in states and parameters.

    Raises:
        MechanismError: on an unknown frame or joint, no objectives, what is no sequence of them, a weight
            below 0, or iterations that are no number of them.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    check_state(robot, q=q, qd=qd)
    if (as_integer(iterations) or 0) < 1:
        raise MechanismError(
            f"iterations is {iterations!r}.",
            "The solver takes whole ones, one at least.",
            "Pass iterations=30, say.",
        )
    if not objectives:
        raise MechanismError(
            "objectives is empty.",
            "Nothing says how the robot shall move.",
            "Pass posture_objective(mech, q, qd, q), for one.",
        )
    check_each("objectives", objectives, Objective, "com_objective(mech, q, qd, target)")
    check_each("contacts", contacts, Contact, "Contact(frame)")
    batches = {"q": tuple(q.shape[:-1]), "qd": tuple(qd.shape[:-1])}
    _check_sizes(robot, objectives, contacts, batches)
    n, M, bias = robot.num_dof, mass_matrix(mech, q), bias_force(mech, q, qd)
    scale = robot.mass.sum(-1, keepdim=True) * robot.gravity.norm(dim=-1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)  # in weights, forces are as large as accelerations
    J, still = contact_rows(robot, q, qd, contacts)
    pushed = scale[..., None] * J.mT
    batch = torch.broadcast_shapes(M.shape[:-2], bias.shape[:-1], pushed.shape[:-2])
    dynamics = torch.cat([M.expand(*batch, n, n), -pushed.expand(*batch, *pushed.shape[-2:])], -1)
    program = _program(robot, objectives, contacts, (dynamics, bias, J, still), undriven)
    found: QPSolution = solve_qp(program, iterations=iterations, scalar=robot.scalar)
    tau = matvec(dynamics, found.x) + bias
    qdd, forces = found.x[..., :n], scale * found.x[..., n:]
    return WholeBodyResult(tau, qdd, in_inertial_axes(contacts, forces), found.residual)


def _check_sizes(
    mech: Mechanism, objectives: Sequence[Objective], contacts: Sequence[Contact], batches: Batches
) -> None:
    """Refuse objectives and axes of contacts that are not the mechanism's, or those of other samples."""
    for k, (rows, wanted, weight) in enumerate(objectives):
        meaning = "Rows times accelerations shall be what is wanted."
        count = rows.shape[-2] if isinstance(rows, Tensor) and rows.ndim > 1 else 1
        for name, x, shape in (("rows", rows, (count, mech.num_dof)), ("wanted", wanted, (count,))):
            what = f"{name} of objective {k}"
            found = check_placement(mech, what, x, shape, meaning, required=True)
            batches |= {f"the {what}": found}
        what, why = f"weight of objective {k}", "What counts less than nothing has no best answer."
        batches |= {f"the {what}": check_nonnegative(mech, what, weight, why, "a number, say 1.0")}
    batches |= contact_batches(mech, contacts)
    shared_batch({"the mechanism": mech.batch_shape} | batches)


def _program(
    mech: Mechanism,
    objectives: Sequence[Objective],
    contacts: Sequence[Contact],
    equations: tuple[Tensor, Tensor, Tensor, Tensor],
    undriven: Sequence[str] | None,
) -> QuadraticProgram:
    """The quadratic program over [qdd; forces in units of the weight]."""
    dynamics, bias, J, still = equations
    n, batch = mech.num_dof, dynamics.shape[:-2]
    count = dynamics.shape[-1] - n
    like = {"dtype": dynamics.dtype, "device": dynamics.device}
    small = torch.tensor([SMALL[0]] * n + [SMALL[1]] * count, **like)
    P, p = torch.diag_embed(small), torch.zeros_like(small)
    for rows, wanted, weight in objectives:
        wide = torch.nn.functional.pad(rows, (0, count))
        heavy = weight[..., None] if isinstance(weight, Tensor) else weight
        P = P + (heavy[..., None] if isinstance(heavy, Tensor) else heavy) * wide.mT @ wide
        p = p - heavy * matvec(wide.mT, wanted)
    free, driven = _split_dofs(mech, undriven)
    J = torch.nn.functional.pad(J.expand(*batch, *J.shape[-2:]), (0, count))
    unmoved = dynamics.index_select(-2, free)
    # Rows of one size: those of a robot of milligrams would be met to rounding whatever their forces.
    square = (unmoved * unmoved).sum(-1).detach()
    length = torch.where(square > 0, square, 1.0).sqrt()
    A = torch.cat([unmoved / length[..., None], J], -2)
    b = concatenate((-bias.index_select(-1, free) / length, still), batch=batch)
    limit = mech.effort_limit.index_select(-1, driven)
    size = torch.where(limit.isfinite() & (limit > 0), limit, 1.0)  # rows of one size
    rows, moved = dynamics.index_select(-2, driven) / size[..., None], bias.index_select(-1, driven)
    cone = torch.nn.functional.pad(friction_cones(contacts, dynamics), (n, 0))
    every = torch.broadcast_shapes(batch, cone.shape[:-2], limit.shape[:-1])
    G = concatenate((rows, -rows, cone), -2, every)
    h = [(limit - moved) / size, (limit + moved) / size, torch.zeros(cone.shape[-2], **like)]
    h = concatenate(h, batch=every)
    return QuadraticProgram(P, p, A, b, G, h)


def _split_dofs(mech: Mechanism, undriven: Sequence[str] | None) -> tuple[Tensor, Tensor]:
    """Places of the dofs without drives, and with."""
    if undriven is None:
        undriven = free_joints(mech)
    undriven = check_names("undriven", undriven, mech.joint_names[0])
    free = {i for name in undriven for i in range(mech.num_dof)[mech.dof_slice(name)]}
    driven = [i for i in range(mech.num_dof) if i not in free]
    return tuple(
        torch.tensor(x, dtype=torch.int64, device=mech.device) for x in (sorted(free), driven)
    )  # type: ignore[return-value]
