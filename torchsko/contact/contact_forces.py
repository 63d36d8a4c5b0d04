"""Forces and moments of each contact at a given acceleration: `torchsko.contact_forces`."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.contact.contact_model import ContactModel
from torchsko.contact.points import body_poses, contact_points, select
from torchsko.contact.rows import constraint_rows
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.utils.shapes import matvec


@verb
def contact_forces(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, *, contact: ContactModel | None = None
) -> Tensor:
    """Force and moment of each candidate contact on the second shape of its pair, in contact axes.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]` [rad/s or m/s].
        qdd: acceleration, as `constrained_dynamics` returns it, `[*batch, num_dof]` [rad/s^2 or m/s^2].
        contact: shapes and parameters; by default `ContactModel.of` of the mechanism.

    Returns:
        Forces along and moments about the normal and both tangents, `[*batch, C, 6]` [N, N m], in the order
        of `contacts`; zero for contacts that are not active.

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism.

    Reference: MuJoCo documentation, "Computation", Constraint model (contact forces).

    Example:
        >>> import torch, torchsko as ts
        >>> text = '''<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.0999"><freejoint/>
        ...   <geom size="0.1"/></body></worldbody></mujoco>'''
        >>> ball = ts.load(text)
        >>> q, zero = ball.file_metadata.initial, torch.zeros(6, dtype=torch.float64)
        >>> qdd = ts.constrained_dynamics(ball, q, zero, zero).qdd
        >>> normal_force = ts.contact_forces(ball, q, zero, qdd)[0, 0]
        >>> torch.allclose(normal_force, ball.mass[0] * (qdd[5] + 9.81))
        True
    """
    check_state(mech, q=q, qd=qd, qdd=qdd)
    contact = ContactModel.of(mech) if contact is None else contact
    rows = constraint_rows(mech, contact, q, qd)
    points = contact_points(contact, body_poses(mech, q))
    gradient, _, _ = rows.derivatives(matvec(rows.jacobian, qdd) - rows.reference)
    force = -gradient
    first = rows.loss.shape[-1] + contact.num_limits
    cones = iter(rows.cones)
    parts, places = [], []
    for condim, at in contact.points_by_condim(points.pair).items():
        places += at
        if condim > 1 and contact.options.cone == "elliptic":
            parts.append(_padded(next(cones).select(force)))
            continue
        size = len(at) * max(1, 2 * (condim - 1))
        block = force[..., first : first + size].reshape(*force.shape[:-1], len(at), -1)
        first += size
        if condim > 1:
            pair = [points.pair[c] for c in at]
            block = _of_edges(block, select(contact.friction, pair, -2)[..., : condim - 1])
        parts.append(_padded(block))
    if not parts:
        return force.new_zeros(*force.shape[:-1], 0, 6)
    order = sorted(range(len(places)), key=places.__getitem__)
    return select(torch.cat(parts, -2), order, -2)


def _of_edges(edges: Tensor, friction: Tensor) -> Tensor:
    """Force of contacts `[*batch, C, condim]` from the forces along the edges of pyramids."""
    pairs = edges.unflatten(-1, (-1, 2))
    normal = edges.sum(-1, keepdim=True)
    return torch.cat([normal, friction * (pairs[..., 0] - pairs[..., 1])], -1)


def _padded(force: Tensor) -> Tensor:
    return torch.nn.functional.pad(force, (0, 6 - force.shape[-1]))
