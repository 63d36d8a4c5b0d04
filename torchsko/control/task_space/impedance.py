r"""Impedance in operational space: frames on springs and dampers, several tasks in priority.

A task asks its rows J of a frame's motion for the acceleration of a spring and a damper on the inertia that
is felt there, Lambda; each task moves only what those before it leave free. With N the projector onto that,
and J_N = J N,

.. math::
    \Lambda = (J_N M^{-1} J_N^*)^{-1}, \quad \bar J = N M^{-1} J_N^* \Lambda, \quad
    a = \ddot x_{target} + \Lambda^{-1} (K e + D \dot e), \\
    \ddot q \leftarrow \ddot q + \bar J (a - \dot J \dot q - J \ddot q), \qquad
    N \leftarrow N - \bar J J_N,

from N = 1, and zero. (As a projector N is M-symmetric, and the first factor of J-bar changes nothing; damped
inverses leave it none, and without that factor a task in conflict with one before it would override it.) At
last what is free takes the acceleration of the posture. Under
:math:`\tau = ID(q, \dot q, \ddot q)` the first task then obeys

.. math:: \Lambda (\ddot x - \ddot x_{target}) = K e + D \dot e + F_{ext}.

A damping that is left out is the one of `torchsko.control.task_space.critical_damping` on the inertia
that a task feels.

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
from torchsko.control.ik.targets import target_pair
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
    """Where a frame shall be, and how stiffly it is held there.

    Attributes:
        frame: a name of ``mech.frame_names``, or a `Frame`.
        target: a `Pose`, a pair of rotation `[*batch, 3, 3]` and position `[*batch, 3]` [m] in the inertial
            frame, either of which may be None, or a position alone. What is None is left free.
        stiffness: of rotation [N m/rad] and position [N/m]; each a number, or one for each inertial axis,
            `[*batch, 3]`.
        damping: of rotation [N m s/rad] and position [N s/m], likewise; left out, critical for every motion
            of the springs on the inertia that is felt, also where that couples axes: none swings. Sampled
            every dt, it is stable while the fastest of these is slow for that, omega dt < 0.8. An axis
            without a spring has no damper, and along what cannot move none acts.
        velocity: [omega; v] of the target in inertial axes, `[*batch, 6]`; at rest when left out.
        acceleration: its rate, `[*batch, 6]`; zero when left out.

    Raises:
        MechanismError: on gains that are no pair or not finite, a rotation that is none, or a position that
            is not finite.
        ShapeError: on a target that is neither a pair nor a tensor.
    """

    frame: str | Frame
    target: Any
    stiffness: tuple[float | Tensor, float | Tensor] = (100.0, 1000.0)
    damping: tuple[float | Tensor, float | Tensor] | None = None
    velocity: Tensor | None = None
    acceleration: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse gains that are no pair, and targets that are no pose."""
        for name in self.gains:
            check_gain_pair(
                f"the {name} of the task for {self.frame!r}", getattr(self, name),
                "Rotation and position have units of their own.",
                f"{name}=(of rotation, of position), as numbers, or tensors of one for each axis",
            )  # fmt: skip
        R, r = target_pair(self.frame, self.target)
        check_rotation(f"rotation of the target of {self.frame!r}", R)
        check_position(f"position of the target of {self.frame!r}", r)

    @property
    def gains(self) -> tuple[str, ...]:
        """Names of those that are given."""
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
    """Joint forces that hold frames on springs and dampers, the first task before the second, and so on.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        tasks: from the most important one on; one at least.
        posture: acceleration asked of what no task uses, `[*batch, num_dof]` [rad/s^2 or m/s^2], say
            ``-10 * qd``; zero when left out.
        singular: what is done where a task has no freedom left in some direction; see
            `torchsko.operational_space_inertia`. "pinv" leaves that direction alone, but forces grow without
            bound on the way there, as an arm does that stretches to a target out of its reach;
            ("damped", d) keeps them bounded, and all tasks are off by a little.

    Returns:
        tau, `[*batch, num_dof]` [N m or N].

    Raises:
        MechanismError: on an unknown frame, or what is no sequence of tasks.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    check_each("tasks", tasks, Task, "Task(frame, target)")
    if not tasks:
        raise MechanismError(
            "tasks is empty.",
            "No frame is held anywhere.",
            f"Pass [Task({robot.frame_names[-1]!r}, target)], or use pd_with_gravity.",
        )
    states = {"q": q, "qd": qd} | ({} if posture is None else {"posture": posture})
    check_state(robot, **states)
    check_tasks(robot, tasks, **states)
    M = mass_matrix(mech, q)
    L = spd_factor(M, scalar=robot.scalar)
    free = torch.eye(robot.num_dof, dtype=q.dtype, device=q.device)
    qdd = torch.zeros_like(qd)
    for task in tasks:
        rows = task_rows(robot, task, q, qd)
        J_free = rows.J @ free
        half = triangular_solve(L, J_free.mT, adjoint=False, scalar=robot.scalar)
        compliance = half.mT @ half
        sizes = _sizes(robot, task)
        rank = _rank_tolerance(M, sizes, rows.J, J_free)
        felt = invert_compliance(compliance, singular, rank, sizes=sizes, scalar=robot.scalar)
        inverse = free @ triangular_solve(L, half, adjoint=True, scalar=robot.scalar) @ felt
        # Where nothing moves the task any more, its compliance vanishes, and its pull with it.
        wanted = rows.asked + compliance @ rows.pull - rows.bias - rows.J @ qdd[..., None]
        if task.damping is None:
            wanted = wanted + _damping_acceleration(
                rows, half, compliance, singular, scalar=robot.scalar
            )
        qdd = qdd + (inverse @ wanted)[..., 0]
        free = free - inverse @ J_free
    if posture is not None:
        qdd = qdd + matvec(free, posture - qdd)
    return inverse_dynamics(mech, q, qd, qdd)


def _sizes(mech: Mechanism, task: Task) -> Tensor:
    """What makes a task's rows of one unit, `[*batch, r]`: no unit of length decides on their rank then."""
    both = sizes_by(lever_length(mech, [task.frame]), 1)
    return both[..., _part(target_pair(task.frame, task.target))]


def _part(target: tuple[Tensor | None, Tensor | None]) -> slice:
    """Rows of a frame that count."""
    R, r = target
    return slice(3 if R is None else 0, 3 if r is None else 6)


def _rank_tolerance(M: Tensor, sizes: Tensor, J: Tensor, J_free: Tensor) -> Tensor:
    """The fraction of the largest eigenvalue of J_free M^-1 J_free* that rounding makes, `[*batch]`.

    Of a task whose directions all are in use J_free is what rounding leaves of J: taken by its own size, that
    would be freedom. Sizes are taken in units of the rows and of the dofs.
    """
    dofs = M.diagonal(dim1=-2, dim2=-1).sqrt()[..., None, :]
    units = sizes[..., :, None] * dofs
    whole, left = ((x / units).square().sum((-2, -1)).detach() for x in (J, J_free))
    share = torch.where(left > 0, whole / torch.where(left > 0, left, 1.0), torch.inf)
    return rounding_of_rank(J.shape[-2], compute_dtype(J)) * share


def _damping_acceleration(
    rows: TaskRows, half: Tensor, compliance: Tensor, singular: Singular, *, scalar: bool
) -> Tensor:
    """What critical damping asks of accelerations.

    Under damped inverses C (C + d)^-1 of it is done, and springs feel C (C + d)^-1 C.
    """
    Y = X = half.mT
    if isinstance(singular, tuple):
        Y = spd_factor(damped(compliance, singular[1]), scalar=scalar)
        X = triangular_solve(Y, compliance, adjoint=False, scalar=scalar).mT
    return critical_damping_acceleration(rows.stiffness, Y, X, rows.off, scalar=scalar)


class TaskRows(NamedTuple):
    """Of a task those rows that count, as columns `[*batch, r, 1]`.

    Attributes:
        J: `[*batch, r, num_dof]`.
        bias: dJ/dt qd.
        stiffness: K.
        pull: force of the springs, and of the dampers that are given.
        off: velocity that is left to the target's.
        asked: acceleration of the target.
    """

    J: Tensor
    bias: Tensor
    stiffness: Tensor
    pull: Tensor
    off: Tensor
    asked: Tensor


def task_rows(mech: Mechanism, task: Task, q: Tensor, qd: Tensor) -> TaskRows:
    """What a task asks for at a state.

    Args:
        mech: the mechanism.
        task: of one of its frames.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
    """
    R_target, r_target = target_pair(task.frame, task.target)
    pose = frame_pose(mech, q, task.frame)
    V = frame_velocity(mech, q, qd, task.frame, "mixed")
    off = -V if task.velocity is None else task.velocity - V
    zero = torch.zeros_like(qd)
    bias = frame_acceleration(mech, q, qd, zero, task.frame, "mixed", classical=True)
    asked = torch.zeros_like(V) if task.acceleration is None else task.acceleration
    J = frame_jacobian(mech, q, task.frame, "mixed")
    ways: list[tuple[int, Tensor]] = []
    if R_target is not None:
        turn = matvec(pose.rotation, matrix_log(pose.rotation.mT @ R_target))
        ways.append((0, turn))
    if r_target is not None:
        ways.append((1, r_target - pose.position))
    springs, pulls = [], []
    for half, way in ways:
        k = task.stiffness[half] * torch.ones_like(off[..., :3])
        pull = k * way
        if task.damping is not None:
            pull = pull + task.damping[half] * off[..., 3 * half : 3 * half + 3]
        springs.append(k)
        pulls.append(pull)
    part = _part((R_target, r_target))
    stiffness, pull = (
        torch.cat(torch.broadcast_tensors(*x), -1)[..., None] for x in (springs, pulls)
    )
    return TaskRows(
        J[..., part, :],
        bias[..., part, None],
        stiffness,
        pull,
        off[..., part, None],
        asked[..., part, None],
    )


def check_tasks(mech: Mechanism, tasks: Sequence[Task], **states: Tensor) -> None:
    """Refuse tensors of tasks that do not fit a mechanism, or the batch of states and of one another.

    Raises:
        ShapeError: names what does not fit.
    """
    batches = {"the mechanism": tuple(mech.batch_shape)}
    batches |= {name: tuple(x.shape[:-1]) for name, x in states.items()}
    for task in tasks:
        batches = merge_batches(batches, _batches_of(mech, task))
    shared_batch(batches)


def _batches_of(mech: Mechanism, task: Task) -> Batches:
    """Batch dimensions of what a task holds."""
    R, r = target_pair(task.frame, task.target)
    moving = "It is that of rotation, and then of position, in inertial axes."
    parts = {"rotation": (R, (3, 3)), "position": (r, (3,))}
    parts |= {name: (getattr(task, name), (6,)) for name in ("velocity", "acceleration")}
    batches: Batches = {}
    for name, (x, shape) in parts.items():
        what, meaning = f"{name} of the target of {task.frame!r}", moving if shape == (6,) else None
        batches |= {f"the {what}": check_placement(mech, what, x, shape, meaning)}
    for name in task.gains:
        batches |= axis_gains(mech, f"{name} of the task for {task.frame!r}", getattr(task, name))
    return batches
