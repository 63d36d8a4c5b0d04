"""Wrenches of contacts on links, merged ones included: `torchsko.contact.contact_wrenches`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.contact.contact_model import ContactModel
from torchsko.contact.contact_step import State
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.state import check_state
from torchsko.sensing.constraint_forces import constraint_forces
from torchsko.sensing.sensor_inputs import accelerations, inputs_at
from torchsko.spatial.rotation import cross
from torchsko.utils.shapes import concatenate


def contact_wrenches(
    mech: MechanismLike,
    state: State,
    ctrl: Tensor | None = None,
    *,
    links: Sequence[str] | None = None,
    qdd: Tensor | None = None,
    actuators: Actuators | None = None,
    contact: ContactModel | None = None,
    f_ext: Tensor | None = None,
) -> Tensor:
    """Wrench of all contacts on each link, also on links that have no joint and are merged into a body.

    Args:
        mech: the mechanism.
        state: its state.
        ctrl: controls, as in `step`; zero by default.
        links: names of links; by default ``mech.body_names``. Shapes of a link that is not listed do not
            count.
        qdd: acceleration, `[*batch, num_dof]`, if known; by default that of `contact_dynamics`.
        actuators: by default those of the robot file.
        contact: shapes and parameters; by default `ContactModel.of` of the mechanism.
        f_ext: external force on each body, `[*batch, num_bodies, 6]`, in the body frame at its origin; zero
            by default. It is not part of the result.

    Returns:
        [moment; force] in inertial axes at the inertial origin, `[*batch, len(links), 6]` [N m, N], with
        gradients to all inputs. The moment about a point c is moment - c x force.

    Raises:
        MechanismError: on an unknown link.
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: MuJoCo documentation, "Computation" (``cfrc_ext``).

    Example:
        >>> import torch, torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body name="leg" pos="0 0 .4">
        ...   <freejoint/><geom size=".1"/><body name="foot" pos="0 0 -.3"><geom size=".1"/></body></body>
        ...   </worldbody></mujoco>'''
        >>> leg = ts.load(text)
        >>> state = ts.State(leg.initial() - 1e-3 * (torch.arange(7) == 2), leg.gravity.new_zeros(6))
        >>> (ts.contact.contact_wrenches(leg, state, links=["leg", "foot"])[:, 5] > 0).tolist()
        [False, True]
    """
    drive, state, _ = inputs_at(mech, state, ctrl, actuators, contact, f_ext, None)
    robot, names = drive.mech, drive.mech.body_names if links is None else tuple(links)
    for name in names:
        if name not in robot.frame_names:
            raise MechanismError(*unknown_name("link", name, robot.frame_names))
    if qdd is None:
        qdd = accelerations(drive, state, None)
    check_state(robot, qdd=qdd)
    found = constraint_forces(drive, state, qdd)
    if found.points is None or not found.points.pair:
        return found.contact.new_zeros(*found.contact.shape[:-2], len(names), 6)
    link_of = {
        shape.name or f"shape{k}": shape.frame for k, shape in enumerate(robot.geometry.shapes)
    }
    of_shapes = [link_of[name] for name in drive.contact.shape_names]
    touched = [of_shapes[k] for pair in found.points.pair for k in drive.contact.pair_shapes[pair]]
    contacts = found.ends[0]
    moment, force = contacts.wrench.split(3, -1)
    wrench = concatenate([moment + cross(contacts.position, force), force])
    is_on = [[float(link == name) for link in touched] for name in names]
    return wrench.new_tensor(is_on) @ wrench
