"""Functions of users on configurations: integrate, difference, expand, and the initial state."""

from __future__ import annotations

from torch import Tensor

from torchsko.mechanism.configuration import add_step, subtract
from torchsko.mechanism.coordinates import closed_matrix, tree_q, tree_rates, tree_state
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism, verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.simulation_state import State
from torchsko.mechanism.state import check_coordinates
from torchsko.mechanism.validation import check_batch


@verb(check=check_coordinates)
def integrate(mech: Mechanism, q: Tensor, step: Tensor) -> Tensor:
    """Move a configuration along a tangent step: q + step for joints whose q is a vector.

    Spherical joints rotate by the exponential of the step, free joints move by the exponential of SE(3).
    Returned quaternions are normalized.

    Args:
        step: displacement, for example qd * dt, `[*batch, num_dof]` [rad or m], in the child frame.

    Returns:
        `[*batch, num_q]`.

    Reference: Sola, Deray, Atchuthan 2018, A micro Lie theory (right plus).

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q = arm.neutral()
        >>> torch.equal(ts.integrate(arm, q, torch.zeros(7, dtype=q.dtype)), q)
        True
    """
    return add_step(mech, q, step)


@verb(check=check_coordinates)
def difference(mech: Mechanism, start: Tensor, end: Tensor) -> Tensor:
    """The tangent step from one configuration to another, inverse of `integrate`.

    Angles are not wrapped, as in MuJoCo and Drake: 2 pi and 0 are one full turn apart, also for joints
    without limits. ``torch.remainder(x + pi, 2 * pi) - pi`` wraps a difference x to the shorter way, as the
    continuous joints of Pinocchio do.

    Args:
        start: first configuration, `[*batch, num_q]`.
        end: second configuration, `[*batch, num_q]`.

    Returns:
        Step `[*batch, num_dof]` [rad or m]: ``integrate(mech, start, difference(mech, start, end))`` is
        `end`, quaternions up to their sign. It is smooth except at half turns.

    Reference: Sola, Deray, Atchuthan 2018, A micro Lie theory (right minus).
    """
    return subtract(mech, start, end)


@verb(check=check_coordinates)
def expand(mech: Mechanism, q: Tensor) -> Tensor:
    """The configuration of all joints, dependent ones included: q_tree = X q + c.

    Returns:
        `[*batch, num_tree_q]`, in the order of ``mech.tree_joint_names``; q itself without couplings. See
        `torchsko.expand_velocity` for velocities and accelerations.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (explicit motion constraints).

    Example:
        >>> import torchsko as ts, torch
        >>> builder = ts.MechanismBuilder("gripper")
        >>> for side, y in (("left", 1.0), ("right", -1.0)):
        ...     _ = builder.link(side, mass=0.1)
        ...     _ = builder.joint(f"{side}_joint", "prismatic", child=side, axis=(0.0, y, 0.0))
        >>> gripper = builder.couple("right_joint", {"left_joint": 1.0}, offset=0.01).build()
        >>> gripper.joint_names
        ('left_joint',)
        >>> ts.expand(gripper, torch.tensor([0.02]).double())
        tensor([0.0200, 0.0300], dtype=torch.float64)
    """
    return tree_q(mech, q)


@verb(check=check_coordinates)
def expand_velocity(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Velocities of all joints of the tree, dependent ones included: X qd.

    Returns:
        `[*batch, num_tree_dof]`; qd itself without couplings and loops.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (explicit motion constraints).
    """
    return tree_rates(mech, closed_matrix(mech, tree_q(mech, q)), qd)


@verb(check=check_coordinates)
def expand_acceleration(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """Accelerations of all joints of the tree, dependent ones included: X qdd + xi.

    Returns:
        `[*batch, num_tree_dof]`; qdd itself without couplings and loops.

    Reference: Jain 2012, Transformations Part II (X and xi of constraint embedding).
    """
    return tree_state(mech, q, qd, qdd)[2]


def initial_state(mech: MechanismLike, *batch: int) -> State:
    """The state of a robot at the start of a simulation, at rest.

    Args:
        mech: the mechanism.
        *batch: batch dimensions.

    Returns:
        The initial configuration of the robot file (`Mechanism.initial`), at rest, with zero activations of
        the file's actuators. `Mechanism.keyframe` returns other states of a file.

    Raises:
        ShapeError: on a batch dimension that is not a nonnegative integer.

    Example:
        >>> import torchsko as ts
        >>> dog = ts.load(ts.robots.quadruped, floating_base=True)
        >>> ts.initial_state(dog, 16).q.shape
        torch.Size([16, 19])
    """
    check_batch(batch, "ts.initial_state(mech, {})")
    robot = as_mechanism(mech)
    q, qd = robot.initial(), robot.damping.new_zeros(robot.num_dof)
    act = q.new_zeros(len(robot.file_metadata.actuators.activation_names))
    return State(*(x.expand(*batch, len(x)).clone() for x in (q, qd, act)))
