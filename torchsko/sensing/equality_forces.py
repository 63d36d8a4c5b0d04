"""Forces of equalities by name: `torchsko.constraints.equality_forces`."""

from __future__ import annotations

from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.contact.contact_model import ContactModel
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.simulation_state import State
from torchsko.mechanism.state import check_state
from torchsko.sensing.constraint_forces import constraint_forces
from torchsko.sensing.sensor_inputs import accelerations, inputs_at
from torchsko.verbs.held.held_mechanism import HeldMechanism


def equality_forces(
    mech: MechanismLike | HeldMechanism,
    state: State,
    ctrl: Tensor | None = None,
    *,
    qdd: Tensor | None = None,
    actuators: Actuators | None = None,
    contact: ContactModel | None = None,
    f_ext: Tensor | None = None,
    active: Tensor | None = None,
) -> dict[str, Tensor]:
    """Force of each equality by name: of soft ones, embedded loops, couplings, and closures that are held.

    The force of an equality between frames is the wrench [moment; force] on the second frame, at its origin
    in inertial axes; MuJoCo's ``efc_force`` begins with minus the force. That of an equality between joints
    or tendons acts along the first length, as MuJoCo's ``efc_force`` does. That of an exact coupling acts on
    the dependent joint, and without a name in the file has the name of that joint. An equality that is not
    active exerts zero. Where the rows of embedded loops are redundant, as in a planar four-bar in space, the
    forces are those of least norm.

    Args:
        mech: the mechanism, or one with held constraints.
        state: its state.
        ctrl: controls, as in `step`; zero by default.
        qdd: acceleration, `[*batch, num_dof]`, if known; by default that of `contact_dynamics`, or of
            `torchsko.constrain`.
        actuators: by default those of the robot file.
        contact: soft constraints; by default `ContactModel.of` of the mechanism.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body frame at its origin; zero
            by default.
        active: mask of held constraints, `[*batch, constraints]`; by default all are active.

    Returns:
        `[*batch, 6]` [N m, N] of equalities between frames and `[*batch, 1]` [N m or N] of others, with
        gradients to all inputs.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: MuJoCo documentation, "Computation", Constraint model (equality).

    Example:
        >>> import torchsko as ts
        >>> text = '''<mujoco><worldbody><body name="lamp"><freejoint/><geom size=".1" mass="2"/></body>
        ...   </worldbody><equality><connect name="hook" body1="lamp" anchor="0 0 0"/></equality></mujoco>'''
        >>> lamp = ts.load(text)
        >>> q = lamp.file_metadata.initial
        >>> state = ts.State(q, lamp.gravity.new_zeros(6))
        >>> for _ in range(200):
        ...     state = ts.step(lamp, state)
        >>> forces = ts.constraints.equality_forces(lamp, state)["hook"]
        >>> forces[5].round(decimals=2)  # on the world, the second frame
        tensor(-19.6200, dtype=torch.float64)
    """
    drive, state, held = inputs_at(mech, state, ctrl, actuators, contact, f_ext, active)
    if qdd is None:
        qdd = accelerations(drive, state, held)
    check_state(drive.mech, qdd=qdd)
    found = constraint_forces(drive, state, qdd, held)
    forces = dict(found.scalar)
    for ends in found.ends:
        forces |= {
            name: ends.wrench[..., 2 * k + 1, :] for k, name in enumerate(ends.names) if name
        }
    return forces
