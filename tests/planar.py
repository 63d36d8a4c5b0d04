"""Planar linkages of rods with masses at their tips, and their torques by Lagrange's equations."""

from __future__ import annotations

import math

import torch

import torchsko as ts


def planar(parents, lengths, rods, tips, base=None):
    """Links that turn about the vertical, each hung on its parent's tip; bases at given points."""
    builder = ts.MechanismBuilder("planar")
    for k, (p, l, m, t) in enumerate(zip(parents, lengths, rods, tips, strict=True)):
        mass, com = m + t, (m * l / 2 + t * l) / (m + t)
        about_com = m * l**2 / 12 + m * (l / 2 - com) ** 2 + t * (l - com) ** 2
        builder.link(f"link{k}", mass=mass, com=(com, 0, 0),
                     inertia=[[0, 0, 0], [0, about_com, 0], [0, 0, about_com]])  # fmt: skip
        start = (lengths[p], 0, 0) if p >= 0 else (base or {}).get(k, (0, 0, 0))
        builder.joint(f"joint{k}", "revolute", child=f"link{k}", position=start,
                      parent=f"link{p}" if p >= 0 else None, axis=(0, 0, 1))  # fmt: skip
    return builder.build()


def lagrangian(parents, lengths, rods, tips):
    """Kinetic energy of rods and tip masses in the plane, from absolute angles and positions alone."""

    def energy(angle, rate):
        heading, origin, total = {}, {}, 0.0

        def place(k, along):
            h = heading[k]
            return origin[k] + along * torch.stack([h.cos(), h.sin()])

        def points(angle):
            found = []
            for k, p in enumerate(parents):
                heading[k] = angle[k] + (heading[p] if p >= 0 else 0.0)
                origin[k] = place(p, lengths[p]) if p >= 0 else torch.zeros(2, dtype=angle.dtype)
                found += [place(k, lengths[k] / 2), place(k, lengths[k])]
            return torch.cat([*found, torch.stack([heading[k] for k in range(len(parents))])])

        speed = torch.func.jvp(points, (angle,), (rate,))[1]
        for k, (l, m, t) in enumerate(zip(lengths, rods, tips, strict=True)):
            middle, end = speed[4 * k : 4 * k + 2], speed[4 * k + 2 : 4 * k + 4]
            spin = speed[4 * len(parents) + k]
            total = total + m * middle @ middle / 2 + t * end @ end / 2 + m * l**2 * spin**2 / 24
        return total

    return energy


def lagrange_torque(energy, angle, rate, accel):
    """d/dt dL/d(rate) - dL/d(angle)."""
    momentum = torch.func.grad(energy, argnums=1)
    change = torch.func.jvp(momentum, (angle, rate), (rate, accel))[1]
    return change - torch.func.grad(energy)(angle, rate)


def turn(t, angle=0.5 * math.pi, duration=1.0):
    """A rest-to-rest motion: angle, rate and acceleration of every joint at time t."""
    s = torch.tensor(t / duration, dtype=torch.float64)

    def path(s):
        return angle * s**3 * (10 - 15 * s + 6 * s**2)

    rate = torch.func.grad(path)
    return path(s), rate(s) / duration, torch.func.grad(rate)(s) / duration**2
