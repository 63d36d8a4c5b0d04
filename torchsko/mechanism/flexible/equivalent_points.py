r"""Fewer mass points, and points with fewer second-order shapes, of the same inertia.

With rows F(i) = sqrt(m(i)) [1, position, shapes, second-order shapes] of all points, the inertia of a body is
a function of F* F at any deflection: orthogonal combinations of the points have it as well.
"""

from __future__ import annotations

import numpy as np

from torchsko.mechanism.flexible.beam_shapes import Array

RANK_TOLERANCE = 1e-12
"""Relative size below which singular values and eigenvalues are rounding, of matrices with unit columns."""


def fewest_rows(F: Array) -> Array:
    """The fewest rows with the same F* F, `[count, c]`; a reflection makes their first entries equal."""
    scale = np.linalg.norm(F, axis=0)
    _, sizes, rows = np.linalg.svd(F / np.where(scale > 0, scale, 1.0), full_matrices=False)
    count = int((sizes > RANK_TOLERANCE * sizes.max(initial=0.0)).sum())
    F = sizes[:count, None] * rows[:count] * scale
    if count == 0:
        return F
    normal = F[:, 0] / np.linalg.norm(F[:, 0]) - 1 / np.sqrt(count)
    return F - 2 * np.outer(normal, normal @ F) / max(normal @ normal, np.finfo(float).tiny)


def two_shortened_points(
    x: Array, masses: Array, shapes: Array, second_order: Array
) -> tuple[Array, Array, Array, Array]:
    """Points of a beam of which two have second-order shapes, the others stand at its root.

    Two points at the Gauss-Radau nodes of the beam have the projections of all motions along it on x and x^2.
    Their second-order shapes have the zeroth and first moments of those given, so that the stiffness due to
    spin and axial acceleration is exact. Products of second-order shapes with deflections and with one
    another are approximate. Without them the inertia is that of the points given, at any deflection.

    Args:
        x: positions of at least 3 points relative to the length, `[k]`.
        masses: `[k]`.
        shapes: `[k, 3, n]`.
        second_order: `[k, 3, n, n]`.

    Returns:
        x, masses, shapes and second-order shapes of the new points.
    """
    # Nodes of Gauss's quadrature with the weight x (Golub and Welsch, 1969); x times their Lagrange
    # polynomials are orthogonal.
    span = np.linalg.qr(np.sqrt(masses * x)[:, None] * np.stack([np.ones_like(x), x], -1))[0]
    nodes, turn = np.linalg.eigh(span.T @ (x[:, None] * span))
    two = np.sqrt(x[:, None] / nodes) * (span @ turn)
    rest = np.linalg.qr(two, mode="complete")[0][:, 2:]
    fields = np.concatenate([np.ones((len(x), 1)), shapes.reshape(len(x), -1)], -1)
    F = np.sqrt(masses)[:, None] * fields
    rows = np.concatenate([two.T @ F, fewest_rows(rest.T @ F)])
    mass = rows[:, 0] ** 2
    moments = np.stack([np.ones_like(x), x]) @ (masses[:, None] * second_order.reshape(len(x), -1))
    found = np.zeros((len(rows), moments.shape[1]))
    found[:2] = np.linalg.solve(np.stack([mass[:2], mass[:2] * nodes]), moments)
    return (
        np.concatenate([nodes, np.zeros(len(rows) - 2)]),
        mass,
        (rows[:, 1:] / rows[:, :1]).reshape(-1, *shapes.shape[1:]),
        found.reshape(-1, *second_order.shape[1:]),
    )
