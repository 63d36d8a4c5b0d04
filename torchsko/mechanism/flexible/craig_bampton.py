r"""Craig-Bampton reduction of a finite-element model to mass points and mass-orthonormal shapes.

Motions of the free degrees of freedom are combinations of static constraint modes and normal modes. Static
modes are the response to motions y = L u of the markers; normal modes are those whose markers are held:

.. math::
    u = K^{-1} L^* (L K^{-1} L^*)^{-1} y + \Phi p, \qquad L \Phi = 0.

A body of mass points has the inertia S* W S at rest, with its motions S = [shapes, rigid-body motions] and
the masses and rotational inertias W of the points. These are the diagonal of the mass matrix, scaled. Then
positions and shapes of the points are corrected such that S* W S is the inertia of the model with its whole
mass matrix.

References: R. R. Craig, M. C. C. Bampton, *Coupling of substructures for dynamic analyses*, AIAA Journal
6(7), 1968; E. Hinton, T. Rock, O. C. Zienkiewicz, *A note on mass lumping and related processes in the finite
element method*, Earthquake Engineering & Structural Dynamics 4(3), 1976 (scaled diagonal).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsko.errors import MechanismError
from torchsko.mechanism.flexible.beam_shapes import Array
from torchsko.mechanism.flexible.equivalent_points import RANK_TOLERANCE, fewest_rows
from torchsko.mechanism.flexible.second_order import Loads, of_line, of_loads

INERTIA_TOLERANCE = 1e-8
"""Largest error of the inertia of the mass points, relative to that of the finite-element model."""


@dataclass(frozen=True)
class ReducedModel:
    """Mass points, their shapes, and the motion of the markers per modal coordinate.

    Attributes:
        points: `[num_points, 3]`.
        masses: `[num_points]`.
        inertias: `[num_points, 3, 3]`.
        shapes: `[num_points, 3, n]`.
        slopes: `[num_points, 3, n]`.
        second_order: `[num_points, 3, n, n]`.
        stiffness: `[n, n]`, diagonal.
        markers: position `[3]`, shape `[3, n]`, slope `[3, n]` and second-order shapes `[3, n, n]` of each
            marker.
    """

    points: Array
    masses: Array
    inertias: Array
    shapes: Array
    slopes: Array
    second_order: Array
    stiffness: Array
    markers: dict[str, tuple[Array, Array, Array, Array]]


def reduce_model(
    mass: Array,
    stiffness: Array,
    positions: Array,
    markers: Mapping[str, Sequence[int]],
    root: Sequence[int],
    modes: int,
    loads: Loads | None = (),
) -> ReducedModel:
    """Craig-Bampton reduction of a model with 3 or 6 degrees of freedom per node, ordered by node.

    Second-order shapes are those of loads, or for None those of a line of nodes.
    """
    k = len(positions)
    d = len(mass) // k
    numbers = np.arange(k * d).reshape(k, d)
    free = np.setdiff1d(numbers, numbers[list(root)])
    maps = {name: _marker_map(positions, nodes, d) for name, nodes in markers.items()}
    rows = np.concatenate([np.zeros((0, k * d)), *(rows for _, rows in maps.values())])[:, free]
    V = np.zeros((k * d, len(_row_basis(rows)) + modes))
    V[free], squares = _modes(mass[np.ix_(free, free)], stiffness[np.ix_(free, free)], rows, modes)
    second = np.zeros((*V.shape, V.shape[1]))
    if loads is None:
        second = of_line(positions, V, root)
    elif loads:
        chosen = [(force[free], matrix[np.ix_(free, free)]) for force, matrix in loads]
        second[free] = of_loads(stiffness[np.ix_(free, free)], V[free], chosen)
    points, masses, inertias, shapes, slopes = _mass_points(mass, positions, V)
    moved = {
        name: (point, (rows @ V)[3:], (rows @ V)[:3], np.tensordot(rows[3:], second, 1))
        for name, (point, rows) in maps.items()
    }
    second = second.reshape(k, d, *second.shape[1:])[:, :3]
    return ReducedModel(points, masses, inertias, shapes, slopes, second, np.diag(squares), moved)


def condense(model: ReducedModel, kept: Sequence[int]) -> ReducedModel:
    """Replaces points without rotational inertia, except those kept, by fewer points.

    The inertia of points depends on the products of the columns of F = sqrt(mass) [1, position, shapes,
    second-order shapes] only, at any deflection. A factor of F* F has them with fewer rows, at most 4 + 3 n
    without second-order shapes; a reflection makes their masses equal.
    """
    merged = np.asarray(~model.inertias.any((1, 2)))
    merged[list(kept)] = False
    mass, n = model.masses[merged], len(model.stiffness)
    fields = [
        np.ones((len(mass), 1)),
        model.points[merged],
        model.shapes[merged].reshape(-1, 3 * n),
        model.second_order[merged].reshape(-1, 3 * n * n),
    ]
    F = fewest_rows(np.sqrt(mass)[:, None] * np.concatenate(fields, -1))
    count = len(F)
    if count == len(mass):
        return model
    F = F / np.sqrt(mass.sum() / count)
    join = lambda old, new: np.concatenate([old[~merged], new])  # noqa: E731
    return replace(
        model,
        points=join(model.points, F[:, 1:4]),
        masses=join(model.masses, np.full(count, mass.sum() / count)),
        inertias=join(model.inertias, np.zeros((count, 3, 3))),
        shapes=join(model.shapes, F[:, 4 : 4 + 3 * n].reshape(count, 3, n)),
        second_order=join(model.second_order, F[:, 4 + 3 * n :].reshape(count, 3, n, n)),
        slopes=join(model.slopes, np.zeros((count, 3, n))),
    )


def node_indices(nodes: int | Sequence[int], owner: str, count: int) -> list[int]:
    """Indices of nodes of a finite-element model, each once."""
    found = np.unique(np.atleast_1d(nodes)).tolist()
    for node in found:
        if node not in range(count):
            raise MechanismError(
                f"{owner} has the node {node}, and the model has {count}.",
                "Nodes are numbered from zero, in the order of their positions.",
                f"Pass nodes between 0 and {count - 1}.",
            )
    if not found:
        raise MechanismError(
            f"{owner} has no node.", "It moves with nodes.", "Pass one or several."
        )
    return found


def rigid_motions(positions: Array, d: int) -> Array:
    """Rotation about the origin and translation of all degrees of freedom, `[k * d, 6]`."""
    k = len(positions)
    R = np.zeros((k, d, 6))
    R[:, :3, :3] = np.cross(np.eye(3), positions[:, None]).swapaxes(1, 2)
    R[:, :3, 3:] = np.eye(3)
    if d == 6:
        R[:, 3:, :3] = np.eye(3)
    return R.reshape(k * d, 6)


def _marker_map(positions: Array, nodes: Sequence[int], d: int) -> tuple[Array, Array]:
    """Center of nodes, and its rotation and translation as least squares of their motion, `[6, k * d]`."""
    at = positions[list(nodes)]
    center = at.mean(0)
    radius = np.sqrt(((at - center) ** 2).sum(-1).mean()) or 1.0
    weights = np.tile(np.repeat([1.0, radius], 3)[:d], len(nodes))
    rows = np.zeros((6, len(positions), d))
    motions = weights[:, None] * rigid_motions(at - center, d)
    fit = np.linalg.pinv(motions, rcond=RANK_TOLERANCE) * weights
    rows[:, list(nodes)] = fit.reshape(6, len(nodes), d)
    return center, rows.reshape(6, -1)


def _row_basis(rows: Array) -> Array:
    """Independent orthonormal rows."""
    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    return basis[sizes > RANK_TOLERANCE * sizes.max(initial=0.0)]


def _modes(M: Array, K: Array, rows: Array, modes: int) -> tuple[Array, Array]:
    """Mass-orthonormal shapes, `[f, n]`, and their squared angular frequencies, `[n]`."""
    scale = 1 / np.sqrt(np.where(np.diag(K) > 0, np.diag(K), 1.0))
    M, K, rows = scale[:, None] * M * scale, scale[:, None] * K * scale, _row_basis(rows * scale)
    size = np.linalg.eigvalsh(K)
    rank = int((size > RANK_TOLERANCE * size.max(initial=0.0)).sum())
    if rank < len(K):
        raise MechanismError(
            f"the stiffness of the free nodes has rank {rank} of {len(K)}.",
            "The root leaves rigid-body motions or mechanisms, which have no restoring force.",
            "Add nodes to the root, or stiffness to these degrees of freedom.",
        )
    count = len(rows)
    static = np.linalg.solve(K, rows.T)
    held = np.linalg.svd(rows)[2][count:].T if count else np.eye(len(K))
    if not 0 <= modes <= held.shape[1] or modes + count == 0:
        raise MechanismError(
            f"a reduced body has {modes} normal modes and {count} static modes.",
            f"Its model has {held.shape[1]} degrees of freedom when root and markers are held.",
            f"Pass modes between {int(count == 0)} and {held.shape[1]}.",
        )
    normal = _vibrations(held.T @ M @ held, held.T @ K @ held, modes)[0]
    basis = np.concatenate([static, held @ normal], -1)
    shapes, flexibility = _vibrations(basis.T @ M @ basis, basis.T @ K @ basis, basis.shape[1])
    massless = int((flexibility <= RANK_TOLERANCE * flexibility[0]).sum())
    if massless:
        raise MechanismError(
            f"{massless} of {len(flexibility)} reduced coordinates have no mass.",
            "The mass matrix is zero for a motion of a marker, often for rotations.",
            "Add rotational inertia to the mass matrix, or pass fewer modes.",
        )
    return scale[:, None] * (basis @ shapes) / np.sqrt(flexibility), 1 / flexibility


def _vibrations(M: Array, K: Array, count: int) -> tuple[Array, Array]:
    """Lowest modes of unit stiffness, and the inverse squares of their frequencies; M may be singular."""
    scale = 1 / np.sqrt(np.diag(K))
    inner = np.linalg.inv(np.linalg.cholesky(scale[:, None] * K * scale)) * scale
    values, vectors = np.linalg.eigh(inner @ M @ inner.T)
    return inner.T @ vectors[:, ::-1][:, :count], values[::-1][:count]


def _mass_points(mass: Array, positions: Array, V: Array) -> tuple[Array, ...]:
    """Points, masses, rotational inertias, shapes and slopes with the inertia of the model at rest."""
    k = len(positions)
    d = len(mass) // k
    R = rigid_motions(positions, d)
    wanted = np.concatenate([V, R], -1).T @ mass @ np.concatenate([V, R], -1)
    n = V.shape[1]
    G, total = wanted[n:, n:], np.trace(wanted[n + 3 :, n + 3 :]) / 3
    blocks = mass.reshape(k, d, k, d)
    diagonal = blocks[np.arange(k), :, np.arange(k), :]  # [k, d, d]
    masses = np.trace(diagonal[:, :3, :3], axis1=1, axis2=2)
    masses = total * masses / masses.sum()
    inertias = np.zeros((k, 3, 3))
    if d == 6:
        own = diagonal[:, 3:, 3:]
        T = _matching(own.sum(0), blocks[:, 3:, :, 3:].sum((0, 2)))
        inertias = _physical(T @ own @ T)
    # Second moments of the positions about the center of mass.
    center = np.array([G[2, 4], G[0, 5], G[1, 3]]) / total
    about = G[:3, :3] - total * (center @ center * np.eye(3) - np.outer(center, center))
    about = about - inertias.sum(0)
    apart = positions - masses @ positions / total
    T = _matching(apart.T @ (masses[:, None] * apart), np.trace(about) / 2 * np.eye(3) - about)
    points = center + apart @ T

    weights = np.zeros((k, 6, 6))
    weights[:, :3, :3] = masses[:, None, None] * np.eye(3)
    weights[:, 3:, 3:] = inertias
    weigh = lambda x: (weights @ x.reshape(k, 6, -1)).reshape(6 * k, -1)  # noqa: E731
    R = rigid_motions(points, 6)
    raw = np.zeros((k, 6, n))
    raw[:, :d] = V.reshape(k, d, n)
    raw = raw.reshape(6 * k, n)
    inverse = np.linalg.pinv(G, rcond=RANK_TOLERANCE, hermitian=True)
    elastic = raw - R @ (inverse @ (R.T @ weigh(raw)))
    rigid = inverse @ wanted[n:, :n]
    T = _matching(elastic.T @ weigh(elastic), wanted[:n, :n] - wanted[:n, n:] @ rigid)
    S = elastic @ T + R @ rigid
    both = np.concatenate([S, R], -1)
    _refuse_inertia(both.T @ weigh(both) - wanted, G)
    S = S.reshape(k, 6, n)
    return points, masses, inertias, S[:, :3], S[:, 3:]


def _physical(inertias: Array) -> Array:
    """Adds the smallest moments with which inertias satisfy the triangle inequality.

    Beam elements have inertia about their axis only. The positions of the points compensate the addition.
    """
    eye = np.eye(3)
    trace = lambda x: np.trace(x, axis1=-2, axis2=-1)[..., None, None]  # noqa: E731
    values, vectors = np.linalg.eigh(trace(inertias) / 2 * eye - inertias)
    moments = (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2)
    return trace(moments) * eye - moments


def _refuse_inertia(error: Array, G: Array) -> None:
    """Refuses an error of the inertia of modes and rigid-body motions; G is that of the latter."""
    sizes = np.sqrt(np.repeat([1.0, np.diag(G)[:3].max(), G[3, 3]], [len(error) - 6, 3, 3]))
    largest = np.abs(error / np.outer(sizes, sizes)).max()
    if largest > INERTIA_TOLERANCE:
        raise MechanismError(
            f"the inertia of the mass points differs from that of the mass matrix by {largest:.3g} of it.",
            "Masses away from all nodes and from the line or plane of the nodes cause this.",
            "Add a node at the center of such a mass.",
        )


def _matching(Q: Array, D: Array) -> Array:
    """The symmetric T with T Q T = D in the range of Q; the identity if Q = D."""
    values, vectors = np.linalg.eigh(Q)
    sizes = np.sqrt(np.where(values > RANK_TOLERANCE * values[-1], values, 0.0))
    root = vectors * sizes @ vectors.T
    inverse = vectors * np.divide(1, sizes, out=np.zeros_like(sizes), where=sizes > 0) @ vectors.T
    values, vectors = np.linalg.eigh(root @ D @ root)
    return inverse @ (vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T) @ inverse
