r"""Second-order shapes of finite-element models, as displacements of all degrees of freedom.

A load f does the work of the geometric stiffness K_G(f) of the stress that it causes:

.. math::
    f \cdot \Gamma_{ij} = -\phi_i^* K_G(f) \phi_j.

With K_G for some loads, second-order shapes are combinations of the static responses to these loads. On a
line of nodes they are the displacements along the line that keep its length, with cubic deflections between
nodes that have rotations, and linear ones between others.

Reference: O. Wallrapp, R. Schwertassek, *Representation of geometric stiffening in multibody system
simulation*, International Journal for Numerical Methods in Engineering 32(8), 1991.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchsko.errors import MechanismError
from torchsko.mechanism.flexible.beam_shapes import Array, nodes

Loads = Sequence[tuple[Array, Array]]
"""Forces `[f]` and geometric stiffness `[f, f]` of each load."""

STRAIGHT = 1e-6
"""Largest distance of a node from the line of nodes, relative to the length of the line."""

INDEPENDENT = 1e-10
"""Relative size above which the work of a load in the responses to all loads is no rounding."""


def of_loads(stiffness: Array, V: Array, loads: Loads) -> Array:
    """Second-order shapes of the free degrees of freedom, `[f, n, n]`, of shapes V, `[f, n]`."""
    F = np.stack([force for force, _ in loads], -1)
    work = -np.stack([V.T @ G @ V for _, G in loads])
    response = np.linalg.solve(stiffness, F)
    amplitudes = np.linalg.pinv(F.T @ response, rcond=INDEPENDENT, hermitian=True)
    return np.einsum("fc,cnm->fnm", response @ amplitudes, work)


def of_line(positions: Array, V: Array, root: Sequence[int]) -> Array:
    """Second-order shapes of a line of nodes, `[k * d, n, n]`, of shapes V, `[k * d, n]`.

    Raises:
        MechanismError: if the nodes do not lie on a line, or free nodes lie between those of the root.
    """
    k, n = len(positions), V.shape[1]
    order, e, s = _line(positions, root)
    V = V.reshape(k, -1, n)[order]
    h = np.diff(s)[:, None, None]
    across = V[:, :3] - np.einsum("i,j,kjn->kin", e, e, V[:, :3])
    rise = np.diff(across, axis=0) / h
    squares = np.zeros((k - 1, n, n))
    for x, w in zip(*nodes(3), strict=True):
        slope = rise
        if V.shape[1] == 6:
            turn = np.cross(V[:, 3:], e, axisa=1, axisc=1)
            a, b = 1 - 4 * x + 3 * x * x, 3 * x * x - 2 * x
            slope = 6 * x * (1 - x) * rise + a * turn[:-1] + b * turn[1:]
        squares += w * h * np.einsum("kin,kim->knm", slope, slope)
    short = np.concatenate([np.zeros((1, n, n)), np.cumsum(squares, 0)])
    first = int(np.flatnonzero(np.isin(order, list(root)))[0])
    found = np.zeros((k, V.shape[1], n, n))
    found[order, :3] = -e[:, None, None] * (short - short[first])[:, None]
    return found.reshape(-1, n, n)


def _line(positions: Array, root: Sequence[int]) -> tuple[Array, Array, Array]:
    """Order of the nodes along their line, its direction `[3]`, and their places `[k]`."""
    apart = positions - positions[root[0]]
    e = apart[np.argmax((apart**2).sum(-1))]
    length = np.linalg.norm(e)
    e = e / (length or 1.0)
    s = apart @ e
    order = np.argsort(s)
    distance = np.linalg.norm(apart - s[:, None] * e, axis=-1).max()
    held = np.flatnonzero(np.isin(order, list(root)))
    reasons = {
        f"nodes stand up to {distance:.3g} m from a line": distance > STRAIGHT * length,
        "several nodes stand at one place": np.diff(s[order]).min(initial=np.inf) <= STRAIGHT * length,
        "free nodes stand between nodes of the root": np.ptp(held) >= len(held),
    }  # fmt: skip
    for reason, present in reasons.items():
        if present:
            raise MechanismError(
                f"second-order shapes of these nodes are unknown: {reason}.",
                "Mass and stiffness matrices determine them for a straight line of nodes only.",
                "Pass second_order=[(forces, geometric_stiffness), ...], or second_order=None for a body "
                "that neither spins fast nor carries large axial loads.",
            )
    return order, e, s[order]
