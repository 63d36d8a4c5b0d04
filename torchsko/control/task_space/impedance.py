r"""Impedance control in operational space, with several tasks in order of priority.

A task assigns to its rows J of a frame's motion the acceleration of a spring and a damper on the inertia at
the frame, Lambda. Each task acts in the null space of the tasks before it. With N the projector onto that
null space, and J_N = J N,

.. math::
    \Lambda = (J_N M^{-1} J_N^*)^{-1}, \quad \bar J = N M^{-1} J_N^* \Lambda, \quad
    a = \ddot x_{target} + \Lambda^{-1} (K e + D \dot e), \\
    \ddot q \leftarrow \ddot q + \bar J (a - \dot J \dot q - J \ddot q), \qquad
    N \leftarrow N - \bar J J_N,

starting from N = 1 and zero acceleration. A projector N is M-symmetric, so the first factor of J-bar is
redundant; with damped inverses N is no projector, and that factor keeps a conflicting task from overriding
those before it. The remaining null space takes the acceleration of the posture. Under
:math:`\tau = ID(q, \dot q, \ddot q)` the first task then obeys

.. math:: \Lambda (\ddot x - \ddot x_{target}) = K e + D \dot e + F_{ext}.

The default damping is critical, see `torchsko.control.task_space.critical_damping`.

References: O. Khatib, *A unified approach for motion and force control of robot manipulators*, IEEE Journal
of Robotics and Automation 3(1), 1987; L. Sentis, O. Khatib, *Synthesis of whole-body behaviors through
hierarchical control of behavioral primitives*, International Journal of Humanoid Robotics 2(4), 2005.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.algorithms.operational_space import (
    Singular,
    damped,
    invert_compliance,
    rounding_of_rank,
)
from torchsko.control.ik.frame_goal import target_pair
from torchsko.control.joint_space.gains import Batches, axis_gains, check_gain_pair, merge_batches
from torchsko.control.task_space.critical_damping import critical_damping_acceleration
from torchsko.errors import MechanismError
from torchsko.linalg.symmetric import spd_factor, triangular_solve
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.placement import check_position, check_rotation
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.mechanism.validation import check_each, check_placement
from torchsko.spatial.rotation import matrix_log
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import matvec
from torchsko.verbs.dynamics import inverse_dynamics, mass_matrix
from torchsko.verbs.frame import Frame
from torchsko.verbs.frame_compliance import lever_length, sizes_by
from torchsko.verbs.frames import frame_acceleration, frame_jacobian, frame_pose, frame_velocity


@dataclass(frozen=True, eq=False)
class Task:
    """Target of a frame, with the stiffness and damping that hold it there.

    Attributes:
        frame: a name of ``mech.frame_names``, or a `Frame`.
        target: a `Pose`, a pair of rotation `[*batch, 3, 3]` and position `[*batch, 3]` [m] in the inertial
            frame, either of which may be None, or a position alone. A part that is None is not controlled.
        stiffness: of rotation [N m/rad] and position [N/m]; each a number, or one for each inertial axis,
            `[*batch, 3]`.
        damping: of rotation [N m s/rad] and position [N s/m], in the same form. Default: critical damping of
            all modes of the springs on the coupled inertia at the frame. Sampled every dt, it is stable while
            the fastest mode has omega dt < 0.8. Axes without a spring are not damped.
        velocity: [omega; v] of the target in inertial axes, `[*batch, 6]`; default zero.
        acceleration: its rate, `[*batch, 6]`; default zero.

    Raises:
        MechanismError: on gains that are not a pair or not finite, an invalid rotation, or a position that is
            not finite.
        ShapeError: on a target that is neither a pair nor a tensor.
    """

    frame: str | Frame
    target: Any
    stiffness: tuple[float | Tensor, float | Tensor] = (100.0, 1000.0)
    damping: tuple[float | Tensor, float | Tensor] | None = None
    velocity: Tensor | None = None
    acceleration: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the gains and the target."""
        for name in self.gains:
            check_gain_pair(
                f"the {name} of the task for {self.frame!r}", getattr(self, name),
                "Rotation and position have different units.",
                f"{name}=(rotation_gain, position_gain), as numbers, or tensors with one value per axis",
            )  # fmt: skip
        R, r = target_pair(self.frame, self.target)
        check_rotation(f"rotation of the target of {self.frame!r}", R)
        check_position(f"position of the target of {self.frame!r}", r)

    @property
    def gains(self) -> tuple[str, ...]:
        """Names of the gains that are not None."""
        return ("stiffness",) if self.damping is None else ("stiffness", "damping")


def impedance(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    tasks: Sequence[Task],
    *,
    posture: Tensor | None = None,
    singular: Singular = "pinv",
) -> Tensor:
    """Joint forces that hold frames by springs and dampers, with tasks in order of priority.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        tasks: in descending priority; at least one.
        posture: acceleration in the null space of all tasks, `[*batch, num_dof]` [rad/s^2 or m/s^2], such as
            ``-10 * qd``; default zero.
        singular: treatment of directions in which a task cannot move; see
            `torchsko.operational_space_inertia`. "pinv" ignores the direction, but forces grow without
            bound near the singularity, as of an arm that stretches to a target out of its reach.
            ("damped", d) keeps them bounded, with a small error of all tasks.

    Returns:
        tau, `[*batch, num_dof]` [N m or N].

    Raises:
        MechanismError: on an unknown frame, or tasks that are not a sequence of tasks.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    check_each("tasks", tasks, Task, "Task(frame, target)")
    if not tasks:
        raise MechanismError(
            "tasks is empty.",
            "Impedance control needs at least one task.",
            f"Pass [Task({robot.frame_names[-1]!r}, target)], or use pd_with_gravity.",
        )
    states = {"q": q, "qd": qd} | ({} if posture is None else {"posture": posture})
    check_state(robot, **states)
    check_tasks(robot, tasks, **states)
    M = mass_matrix(mech, q)
    L = spd_factor(M)  # M = L L*
    nullspace = torch.eye(robot.num_dof, dtype=q.dtype, device=q.device)
    qdd = torch.zeros_like(qd)
    for task in tasks:
        rows = task_rows(robot, task, q, qd)
        J_free = rows.J @ nullspace
        factor = triangular_solve(L, J_free.mT, adjoint=False)
        compliance = factor.mT @ factor
        sizes = _row_units(robot, task)
        rank = _rank_tolerance(M, sizes, rows.J, J_free)
        inertia = invert_compliance(compliance, singular, rank, sizes=sizes)
        inverse = nullspace @ triangular_solve(L, factor, adjoint=True) @ inertia
        # At a singularity the compliance vanishes, and with it the effect of the force.
        a = rows.acceleration + compliance @ rows.force - rows.bias - rows.J @ qdd[..., None]
        if task.damping is None:
            a = a + _damping_acceleration(rows, factor, compliance, singular)
        qdd = qdd + (inverse @ a)[..., 0]
        nullspace = nullspace - inverse @ J_free
    if posture is not None:
        qdd = qdd + matvec(nullspace, posture - qdd)
    return inverse_dynamics(mech, q, qd, qdd)


def _row_units(mech: Mechanism, task: Task) -> Tensor:
    """Factors that give all rows of a task one unit, `[*batch, r]`: their rank is independent of units."""
    units = sizes_by(lever_length(mech, [task.frame]), 1)
    return units[..., _part(target_pair(task.frame, task.target))]


def _part(target: tuple[Tensor | None, Tensor | None]) -> slice:
    """Rows of a frame's velocity that a target controls."""
    R, r = target
    return slice(3 if R is None else 0, 3 if r is None else 6)


def _rank_tolerance(M: Tensor, sizes: Tensor, J: Tensor, J_free: Tensor) -> Tensor:
    """Rounding error of J_free M^-1 J_free* as a fraction of its largest eigenvalue, `[*batch]`.

    If all directions of a task are used, J_free consists of rounding errors of J, so its tolerance is
    relative to J. Both are measured in units of the rows and of the dofs.
    """
    dofs = M.diagonal(dim1=-2, dim2=-1).sqrt()[..., None, :]
    units = sizes[..., :, None] * dofs
    total, rest = ((x / units).square().sum((-2, -1)).detach() for x in (J, J_free))
    ratio = torch.where(rest > 0, total / torch.where(rest > 0, rest, 1.0), torch.inf)
    return rounding_of_rank(J.shape[-2], compute_dtype(J)) * ratio


def _damping_acceleration(
    rows: TaskRows, factor: Tensor, compliance: Tensor, singular: Singular
) -> Tensor:
    """Acceleration by critical damping.

    With damped inverses, the frame moves by C (C + d)^-1 of it, and the springs act on C (C + d)^-1 C.
    """
    Y = X = factor.mT
    if isinstance(singular, tuple):
        Y = spd_factor(damped(compliance, singular[1]))
        X = triangular_solve(Y, compliance, adjoint=False).mT
    return critical_damping_acceleration(rows.stiffness, Y, X, rows.velocity_error)


class TaskRows(NamedTuple):
    """The controlled rows of a task, as columns `[*batch, r, 1]`.

    Attributes:
        J: `[*batch, r, num_dof]`.
        bias: dJ/dt qd.
        stiffness: K.
        force: of the springs, and of the dampers with given gains.
        velocity_error: velocity of the target less that of the frame.
        acceleration: of the target.
    """

    J: Tensor
    bias: Tensor
    stiffness: Tensor
    force: Tensor
    velocity_error: Tensor
    acceleration: Tensor


def task_rows(mech: Mechanism, task: Task, q: Tensor, qd: Tensor) -> TaskRows:
    """Jacobian, forces and errors of a task at a state."""
    R_target, r_target = target_pair(task.frame, task.target)
    pose = frame_pose(mech, q, task.frame)
    V = frame_velocity(mech, q, qd, task.frame, reference="mixed")
    velocity_error = -V if task.velocity is None else task.velocity - V
    zero = torch.zeros_like(qd)
    bias = frame_acceleration(mech, q, qd, zero, task.frame, reference="mixed", classical=True)
    acceleration = torch.zeros_like(V) if task.acceleration is None else task.acceleration
    J = frame_jacobian(mech, q, task.frame, reference="mixed")
    errors: list[tuple[int, Tensor]] = []
    if R_target is not None:
        rotation_error = matvec(pose.rotation, matrix_log(pose.rotation.mT @ R_target))
        errors.append((0, rotation_error))
    if r_target is not None:
        errors.append((1, r_target - pose.position))
    springs, forces = [], []
    for half, error in errors:
        k = task.stiffness[half] * torch.ones_like(velocity_error[..., :3])
        f = k * error
        if task.damping is not None:
            f = f + task.damping[half] * velocity_error[..., 3 * half : 3 * half + 3]
        springs.append(k)
        forces.append(f)
    part = _part((R_target, r_target))
    stiffness, force = (
        torch.cat(torch.broadcast_tensors(*x), -1)[..., None] for x in (springs, forces)
    )
    return TaskRows(
        J[..., part, :],
        bias[..., part, None],
        stiffness,
        force,
        velocity_error[..., part, None],
        acceleration[..., part, None],
    )


def check_tasks(mech: Mechanism, tasks: Sequence[Task], **states: Tensor) -> None:
    """Check the tensors of tasks against a mechanism, the states and each other."""
    batches = {"the mechanism": tuple(mech.batch_shape)}
    batches |= {name: tuple(x.shape[:-1]) for name, x in states.items()}
    for task in tasks:
        batches = merge_batches(batches, _batches_of(mech, task))
    shared_batch(batches)


def _batches_of(mech: Mechanism, task: Task) -> Batches:
    """Batch dimensions of the tensors of a task."""
    R, r = target_pair(task.frame, task.target)
    twist = "Its entries are those of rotation, then of position, in inertial axes."
    parts = {"rotation": (R, (3, 3)), "position": (r, (3,))}
    parts |= {name: (getattr(task, name), (6,)) for name in ("velocity", "acceleration")}
    batches: Batches = {}
    for name, (x, shape) in parts.items():
        what, meaning = f"{name} of the target of {task.frame!r}", twist if shape == (6,) else None
        batches |= {f"the {what}": check_placement(mech, what, x, shape, meaning)}
    for name in task.gains:
        batches |= axis_gains(mech, f"{name} of the task for {task.frame!r}", getattr(task, name))
    return batches
