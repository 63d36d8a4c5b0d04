"""What whole-body control is asked for: accelerations of frames, of the centre of mass, of all joints."""

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
from torchsko.mechanism.joints.configuration import difference
from torchsko.mechanism.state import check_state, shared_batch
from torchsko.mechanism.validation import check_gains, check_placement
from torchsko.verbs.momenta import center_of_mass, com_acceleration, com_jacobian, com_velocity

_GAINS = ("One acts on the way that is left, one on the velocity.", "gains=(100.0, 20.0), say")


class Objective(NamedTuple):
    """Accelerations asked for: the square of rows qdd - wanted counts with the weight.

    Attributes:
        rows: `[*batch, m, num_dof]`.
        wanted: `[*batch, m]`.
        weight: of all rows, 0 or more; a number, or `[*batch]`.
    """

    rows: Tensor
    wanted: Tensor
    weight: float | Tensor = 1.0


def frame_objective(
    mech: MechanismLike, q: Tensor, qd: Tensor, task: Task, weight: float | Tensor = 1.0
) -> Objective:
    """A frame on the way to a target: its stiffness and damping count per unit inertia [1/s^2, 1/s].

    A damping that is left out is critical, 2 sqrt(stiffness).

    Raises:
        MechanismError: on an unknown frame.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    check_state(robot, q=q, qd=qd)
    if not isinstance(task, Task):
        raise MechanismError(
            f"task was given as {type(task).__name__}.",
            "It says which frame shall be where.",
            f"Pass Task({robot.frame_names[-1]!r}, target), say.",
        )
    check_tasks(robot, [task], q=q, qd=qd)
    rows = task_rows(robot, task, q, qd)
    wanted = rows.asked + rows.pull - rows.bias
    if task.damping is None:
        wanted = wanted + 2 * stiffness_roots(rows.stiffness) * rows.off
    return Objective(rows.J, wanted[..., 0], weight)


def com_objective(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    target: Tensor,
    gains: tuple[float | Tensor, float | Tensor] = (100.0, 20.0),
    weight: float | Tensor = 1.0,
    *,
    velocity: Tensor | None = None,
    acceleration: Tensor | None = None,
) -> Objective:
    """The centre of mass on the way to a point `[*batch, 3]` [m], which may move; gains in 1/s^2 and 1/s.

    Gains are numbers, or one for each inertial axis, `[*batch, 3]`.

    Raises:
        MechanismError: on gains that are no pair, or not finite.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    check_state(robot, q=q, qd=qd)
    given = {"target": target, "velocity": velocity, "acceleration": acceleration}
    check_gain_pair("gains of the centre of mass", gains, *_GAINS)
    meaning, batches = "It is a vector in space.", {"q": q.shape[:-1], "qd": qd.shape[:-1]}
    for name, x in given.items():
        what = f"{name} of the centre of mass"
        found = check_placement(robot, what, x, (3,), meaning, required=name == "target")
        batches |= {f"the {what}": found}
    batches |= axis_gains(robot, "gains", gains)
    shared_batch({"the mechanism": robot.batch_shape} | batches)
    off = -com_velocity(mech, q, qd)
    off = off if velocity is None else off + velocity
    wanted = gains[0] * (target - center_of_mass(mech, q)) + gains[1] * off
    wanted = wanted if acceleration is None else wanted + acceleration
    bias = com_acceleration(mech, q, qd, torch.zeros_like(qd))
    return Objective(com_jacobian(mech, q), wanted - bias, weight)


def posture_objective(
    mech: MechanismLike,
    q: Tensor,
    qd: Tensor,
    target: Tensor,
    gains: tuple[float | Tensor, float | Tensor] = (100.0, 20.0),
    weight: float | Tensor = 1e-2,
) -> Objective:
    """All joints on the way to a configuration `[*batch, num_q]`; gains in 1/s^2 and 1/s.

    Gains are numbers, or one for each dof, `[*batch, num_dof]`.

    Raises:
        MechanismError: on gains that are no pair, or not finite.
        ShapeError: when a shape or dtype does not fit the mechanism.
    """
    robot = as_mechanism(mech)
    batch = check_tracking_state(robot, q, qd, q_target=target)
    check_gain_pair("gains of the posture", gains, *_GAINS)
    check_gains(robot, batch, **{f"gains[{i}]": x for i, x in enumerate(gains)})
    wanted = gains[0] * difference(mech, q, target) - gains[1] * qd
    rows = torch.eye(wanted.shape[-1], dtype=q.dtype, device=q.device)
    return Objective(rows, wanted, weight)
