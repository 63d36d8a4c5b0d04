"""Objectives of whole-body control: accelerations of frames, of the center of mass, and of all joints."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.control.joint_space.gains import axis_gains, check_gain_pair
from torchsko.control.joint_space.tracking import check_tracking_state
from torchsko.control.task_space.critical_damping import stiffness_roots
from torchsko.control.task_space.impedance import Task, check_tasks, task_rows
from torchsko.errors import MechanismError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.manifold import difference
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.mechanism.validation import check_gains, check_placement
from torchsko.verbs.momenta import center_of_mass, com_acceleration, com_jacobian, com_velocity

_GAINS = (
    "The first acts on the position error, the second on the velocity error.",
    "gains=(100.0, 20.0), say",
)


class Objective(NamedTuple):
    """A desired acceleration: the weighted square of rows qdd - desired is minimized.

    Attributes:
        rows: `[*batch, m, num_dof]`.
        desired: desired acceleration, `[*batch, m]`.
        weight: of all rows, 0 or more; a number, or `[*batch]`.
        priority: objectives of priority 0 are solved first; those of higher numbers do not change the
            accelerations of earlier ones.
    """

    rows: Tensor
    desired: Tensor
    weight: float | Tensor = 1.0
    priority: int = 0


def frame_objective(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    task: Task,
    *,
    weight: float | Tensor = 1.0,
    priority: int = 0,
) -> Objective:
    """Objective that moves a frame to a target; the task's gains are per unit inertia [1/s^2, 1/s].

    The default damping is critical, 2 sqrt(stiffness).

    Raises:
        MechanismError: on an unknown frame.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    check_state(robot, q=q, qd=qd)
    if not isinstance(task, Task):
        raise MechanismError(
            f"task was given as {type(task).__name__}.",
            "A task is a frame with its target pose.",
            f"Pass Task({robot.frame_names[-1]!r}, target), say.",
        )
    check_tasks(robot, [task], q=q, qd=qd)
    rows = task_rows(robot, task, q, qd)
    desired = rows.acceleration + rows.force - rows.bias
    if task.damping is None:
        desired = desired + 2 * stiffness_roots(rows.stiffness) * rows.velocity_error
    return Objective(rows.J, desired[..., 0], weight, priority)


def com_objective(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    target: Tensor,
    *,
    gains: tuple[float | Tensor, float | Tensor] = (100.0, 20.0),
    weight: float | Tensor = 1.0,
    velocity: Tensor | None = None,
    acceleration: Tensor | None = None,
    priority: int = 0,
) -> Objective:
    """Objective that moves the center of mass to a point `[*batch, 3]` [m]; gains in 1/s^2 and 1/s.

    Gains are numbers, or one for each inertial axis, `[*batch, 3]`. `velocity` and `acceleration` are those
    of a moving target.

    Raises:
        MechanismError: on gains that are not a pair, or not finite.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    check_state(robot, q=q, qd=qd)
    vectors = {"target": target, "velocity": velocity, "acceleration": acceleration}
    check_gain_pair("gains of the center of mass", gains, *_GAINS)
    meaning, batches = "It is a vector in space.", {"q": q.shape[:-1], "qd": qd.shape[:-1]}
    for name, x in vectors.items():
        what = f"{name} of the center of mass"
        batch = check_placement(robot, what, x, (3,), meaning, required=name == "target")
        batches |= {f"the {what}": batch}
    batches |= axis_gains(robot, "gains", gains)
    shared_batch({"the mechanism": robot.batch_shape} | batches)
    velocity_error = -com_velocity(mech, q, qd)
    velocity_error = velocity_error if velocity is None else velocity_error + velocity
    desired = gains[0] * (target - center_of_mass(mech, q)) + gains[1] * velocity_error
    desired = desired if acceleration is None else desired + acceleration
    bias = com_acceleration(mech, q, qd, torch.zeros_like(qd))
    return Objective(com_jacobian(mech, q), desired - bias, weight, priority)


def posture_objective(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    target: Tensor,
    *,
    gains: tuple[float | Tensor, float | Tensor] = (100.0, 20.0),
    weight: float | Tensor = 1e-2,
    priority: int = 0,
) -> Objective:
    """Objective that moves all joints to a configuration `[*batch, num_q]`; gains in 1/s^2 and 1/s.

    Gains are numbers, or one for each dof, `[*batch, num_dof]`.

    Raises:
        MechanismError: on gains that are not a pair, or not finite.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    batch = check_tracking_state(robot, q, qd, q_target=target)
    check_gain_pair("gains of the posture", gains, *_GAINS)
    check_gains(robot, batch, **{f"gains[{i}]": x for i, x in enumerate(gains)})
    desired = gains[0] * difference(mech, q, target) - gains[1] * qd
    rows = torch.eye(desired.shape[-1], dtype=q.dtype, device=q.device)
    return Objective(rows, desired, weight, priority)
