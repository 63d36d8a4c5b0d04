"""Energy and momentum of a mechanism by Newton's definitions, from the poses of its bodies alone.

Nothing here uses a spatial vector, a joint map or a Jacobian: velocities are derivatives of poses along
`integrate`. So these are oracles for everything that does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp

import torchsko as ts


def along(mech: ts.Mechanism, q: Tensor, qd: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """d/dt f(q(t)) where q moves with velocity qd."""
    t = torch.zeros((), dtype=q.dtype)
    return jvp(lambda t: f(ts.integrate(mech, q, qd * t)), (t,), (torch.ones_like(t),))[1]


def moving(
    mech: ts.Mechanism, q: Tensor, qd: Tensor, qdd: Tensor, f: Callable[..., Tensor]
) -> Tensor:
    """d/dt f(q, qd) where q moves with qd, and qd with qdd."""
    t = torch.zeros((), dtype=q.dtype)
    at = lambda t: f(ts.integrate(mech, q, qd * t), qd + qdd * t)  # noqa: E731
    return jvp(at, (t,), (torch.ones_like(t),))[1]


def centers(mech: ts.Mechanism, q: Tensor) -> Tensor:
    """Centers of mass in the inertial frame, `[*batch, n, 3]`."""
    pose = ts.forward_kinematics(mech, q)
    return pose.position + (pose.rotation @ mech.com[..., None])[..., 0]


def spins(mech: ts.Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Angular velocities in the inertial frame, `[*batch, n, 3]`, from R_dot R*."""
    R = ts.forward_kinematics(mech, q).rotation
    return unskew(along(mech, q, qd, lambda q: ts.forward_kinematics(mech, q).rotation) @ R.mT)


def unskew(W: Tensor) -> Tensor:
    return torch.stack([W[..., 2, 1], W[..., 0, 2], W[..., 1, 0]], -1)


def inertias(mech: ts.Mechanism, q: Tensor) -> Tensor:
    """Rotational inertias about the centers of mass, in inertial axes, `[*batch, n, 3, 3]`."""
    R = ts.forward_kinematics(mech, q).rotation
    return R @ mech.inertia @ R.mT


def kinetic_energy(mech: ts.Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Of the bodies; a rotor's (armature) is 1/2 S qd^2 besides."""
    v, w = along(mech, q, qd, lambda q: centers(mech, q)), spins(mech, q, qd)
    turning = (w[..., None, :] @ inertias(mech, q) @ w[..., None])[..., 0, 0]
    rotors = (mech.armature * qd.square()).sum(-1)
    return ((mech.mass * v.square().sum(-1) + turning).sum(-1) + rotors) / 2


def potential_energy(mech: ts.Mechanism, q: Tensor) -> Tensor:
    """Of gravity, and of springs (of one-dof joints, or equally stiff about every axis)."""
    stretch = ts.difference(mech, mech.spring_reference, q)
    height = (centers(mech, q) @ mech.gravity[..., None])[..., 0]
    return (mech.stiffness * stretch.square()).sum(-1) / 2 - (mech.mass * height).sum(-1)


def momentum(mech: ts.Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Total [angular about the inertial origin; linear], `[*batch, 6]`."""
    c, v = centers(mech, q), along(mech, q, qd, lambda q: centers(mech, q))
    p = mech.mass[..., None] * v
    spin = (inertias(mech, q) @ spins(mech, q, qd)[..., None])[..., 0]
    return torch.cat([(spin + torch.linalg.cross(c, p)).sum(-2), p.sum(-2)], -1)
