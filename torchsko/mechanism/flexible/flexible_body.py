r"""Flexible bodies: mass points that move with modal coordinates relative to a floating frame.

Point i of mass m_i stands at

.. math::
    x_i(\eta) = x_{i0} + \Phi_i \eta + \tfrac12 \eta^* \Gamma_i \eta, \qquad
    M(\eta) = \sum_i m_i J_i^* J_i, \quad J_i = [\Phi_i + \Gamma_i \eta, -\tilde x_i, I]

relative to the body frame. The inertia M of the node [d(eta)/dt; w; v] is a sum of squares, positive
semidefinite at any deflection. It is never formed: each point is a body of the tree, and all points of a
flexible body share one elastic joint (`torchsko.mechanism.joints.elastic`). As a polynomial in the modal
coordinates it takes more operations than the sum (``benchmarks/flexible.py``).

Reference: A. A. Shabana, *Dynamics of Multibody Systems*, 3rd ed., 2005, chapter 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from torchsko.errors import MechanismError
from torchsko.mechanism.flexible.beam_shapes import (
    Array,
    BeamMotion,
    clamped_shapes,
    nodes,
    static_shapes,
)
from torchsko.mechanism.flexible.craig_bampton import condense, node_indices, reduce_model
from torchsko.mechanism.flexible.equivalent_points import two_shortened_points
from torchsko.mechanism.flexible.flexible_checks import (
    checked_array,
    refuse_asymmetry,
    refuse_beam,
    refuse_dependent_shapes,
    refuse_indefinite,
    refuse_marker,
)
from torchsko.mechanism.flexible.frame_change import fields_at
from torchsko.mechanism.flexible.marker import Marker

REACH = 0.03
"""Largest displacement of a point in random states, relative to the size of the body."""


@dataclass(frozen=True, eq=False)
class FlexibleBody:
    """A body whose deformation is a combination of shapes.

    Args and attributes are NumPy arrays, or what `numpy.asarray` takes; n is the number of modal coordinates.

    Attributes:
        points: mass points in the body frame, undeformed, `[num_points, 3]` [m].
        masses: `[num_points]` [kg].
        shapes: displacement of each point per modal coordinate, `[num_points, 3, n]`.
        stiffness: symmetric and positive semidefinite, `[n, n]`.
        damping: damping matrix of the modal coordinates, `[n, n]`; zero by default (`damped`).
        second_order: second-order shapes, `[num_points, 3, n, n]`; zero by default. They make a body stiffer
            or softer under axial loads, and without them a beam that spins fast is unstable.
        markers: frames to which joints attach, by name.
        core_inertia: spatial inertia of a rigid part at the body frame, `[6, 6]`; zero by default.
        slopes: rotation vector of each point per modal coordinate, `[num_points, 3, n]`; for points with
            rotational inertia.
        inertias: rotational inertia of each point, in body axes, `[num_points, 3, 3]` [kg m^2]; zero by
            default.
        modes: names of the modal coordinates.

    Raises:
        MechanismError: for arrays of other shapes, shapes that are dependent, a stiffness or damping that is
            not symmetric and positive semidefinite, or a marker outside the body or with a number as name.

    Example:
        >>> import torchsko as ts
        >>> beam = ts.FlexibleBody.beam(length=1.0, density=0.5, EI_y=2.0, EI_z=2.0, shapes=(2, 2))
        >>> beam
        FlexibleBody(4 points, 4 modes: y1, y2, z1, z2; markers tip)
    """

    points: Any
    masses: Any
    shapes: Any
    stiffness: Any
    damping: Any = None
    second_order: Any = None
    markers: Mapping[str, Marker] = field(default_factory=dict)
    core_inertia: Any = None
    slopes: Any = None
    inertias: Any = None
    modes: Sequence[str] = ()

    def __post_init__(self) -> None:
        points, shapes = (np.asarray(x, dtype=np.float64) for x in (self.points, self.shapes))
        if points.ndim != 2 or shapes.ndim != 3 or shapes.shape[-1] == 0:
            raise MechanismError(
                f"a flexible body has points {list(points.shape)} and shapes {list(shapes.shape)}.",
                "Shapes hold the displacement of each point per modal coordinate.",
                "Pass points [num_points, 3] and shapes [num_points, 3, num_modes].",
            )
        k, n = shapes.shape[0], shapes.shape[-1]
        wanted = {
            "points": (k, 3),
            "masses": (k,),
            "shapes": (k, 3, n),
            "stiffness": (n, n),
            "damping": (n, n),
            "second_order": (k, 3, n, n),
            "core_inertia": (6, 6),
            "slopes": (k, 3, n),
            "inertias": (k, 3, 3),
        }
        for name, shape in wanted.items():
            object.__setattr__(self, name, checked_array(getattr(self, name), name, shape))
        parts = {
            "point": (3,),
            "shape": (3, n),
            "slope": (3, n),
            "rotation": (3, 3),
            "second_order": (3, n, n),
        }
        markers = {
            name: Marker(
                **{part: checked_array(getattr(marker, part), f"{part} of marker {name!r}", shape)
                   for part, shape in parts.items()}
            )
            for name, marker in self.markers.items()
        }  # fmt: skip
        object.__setattr__(self, "markers", markers)
        names = tuple(self.modes) or tuple(f"mode{i}" for i in range(1, n + 1))
        object.__setattr__(self, "modes", names)
        refuse_dependent_shapes(names, self._rows())
        for name in ("stiffness", "damping"):
            refuse_indefinite(name, getattr(self, name))
        corners = self._corners()
        for name, marker in markers.items():
            refuse_marker(name, marker.point, corners)

    def __repr__(self) -> str:
        return (
            f"FlexibleBody({len(self.masses)} points, {len(self.modes)} modes: {', '.join(self.modes)}; "
            f"markers {', '.join(self.markers) or 'none'})"
        )

    @staticmethod
    def beam(
        length: float,
        density: float,
        EI_y: float = 0.0,
        EI_z: float = 0.0,
        GJ: float = 0.0,
        shapes: Sequence[int] = (3, 3),
        basis: Literal["static", "clamped"] = "static",
        *,
        polar_inertia: float = 0.0,
        markers: Mapping[str, float] | None = None,
    ) -> FlexibleBody:
        """A straight uniform beam along x, clamped to the body frame at x = 0.

        Deflections are at the tip [m], the twist is that of the tip [rad]. Bending includes the
        foreshortening of the beam to second order. The mass points have the inertia of the beam; without
        `polar_inertia` two of them have the foreshortening, and the others stand at the root.

        Args:
            length: [m].
            density: mass per length [kg/m].
            EI_y: bending stiffness about y, which resists deflection along z [N m^2].
            EI_z: bending stiffness about z, which resists deflection along y [N m^2].
            GJ: torsional stiffness [N m^2].
            shapes: number of shapes of bending about y and about z, and, if there are three numbers, of
                torsion.
            basis: "static", modes in the space of x^2, x^3, ..., which has the deflections under forces and
                moments at the tip; "clamped", vibration modes of the beam whose tip is free. Clamped modes
                converge slowly where joints load the tip.
            polar_inertia: moment of inertia of the sections about x per length [kg m]; half of it about y and
                z. Zero for a slender beam without torsion.
            markers: positions along the beam of frames to which joints attach, by name [m]; the tip by
                default, named "tip".

        Raises:
            MechanismError: for numbers that are not positive, or a marker outside the beam.
        """
        counts = (*shapes, 0)[:3]
        refuse_beam(length, density, {"EI_y": EI_y, "EI_z": EI_z, "GJ": GJ}, counts, basis)
        family = static_shapes if basis == "static" else clamped_shapes
        planes = [family(order, n) for order, n in zip((2, 2, 1), counts, strict=True)]
        n = max(counts)
        # Exact for products of static shapes, and of their foreshortening with rigid motions; mass of
        # clamped shapes right to about 1e-8.
        x, w = nodes(n + 2 if basis == "static" else 2 * n + 5)
        ends = {"tip": length} if markers is None else dict(markers)
        for name, place in ends.items():
            if not 0 <= place <= length:
                raise MechanismError(
                    f"marker {name!r} stands at {place}, outside of the beam.",
                    f"The beam is {length} long.",
                    "Pass a position between zero and the length [m].",
                )
        at = BeamMotion.of(planes, x, length)
        blocks = [
            stiffness / length ** (2 * plane.order - 1) * plane.stiffness()
            for stiffness, plane in zip((EI_y, EI_z, GJ), planes, strict=True)
        ]
        section = np.diag([1.0, 0.5, 0.5]) * polar_inertia * length
        slopes, inertias = at.slopes, w[:, None, None] * section
        points = (x, density * length * w, at.shapes, at.second_order)
        if not inertias.any():
            points = two_shortened_points(*points)
            slopes, inertias = None, None
        x, masses, displacements, second_order = points
        return FlexibleBody(
            points=np.stack([length * x, 0 * x, 0 * x], -1),
            masses=masses,
            shapes=displacements,
            stiffness=_block_diagonal(blocks),
            second_order=second_order,
            markers={
                name: Marker((place, 0.0, 0.0), *BeamMotion.of(planes, place / length, length).at_point())
                for name, place in ends.items()
            },
            slopes=slopes,
            inertias=inertias,
            modes=tuple(
                f"{axis}{i + 1}" for axis, n in zip("yzx", counts, strict=True) for i in range(n)
            ),
        )  # fmt: skip

    @staticmethod
    def from_finite_elements(
        mass: Any,
        stiffness: Any,
        positions: Any,
        *,
        markers: Mapping[str, int | Sequence[int]],
        root: int | Sequence[int],
        modes: int,
        second_order: Literal["line"] | Sequence[tuple[Any, Any]] | None = "line",
    ) -> FlexibleBody:
        """A finite-element model, reduced by the method of Craig and Bampton.

        The body deforms by static shapes, which are exact for forces and moments at the markers, and by the
        lowest normal modes of the model whose markers are held. Both are combined into modes of vibration of
        the body whose root is held, with unit modal mass: amplitudes are in m sqrt(kg), the stiffness is the
        diagonal of squared angular frequencies.

        Each node becomes a mass point. Its mass is from the diagonal of the mass matrix, scaled to the total
        mass. The positions of the points and their shapes are then corrected, by O(h^2) for elements of size
        h. Modal mass, total mass, center of mass, rotational inertia, and the coupling of modes to the body
        frame are then those of the whole mass matrix at rest. Fewer points then replace the nodes without
        rotational inertia that are not nodes of markers, at most 4 + 3 n for n modes without second-order
        shapes; the inertia stays the same at any deflection.

        Args:
            mass: symmetric, `[d * num_nodes, d * num_nodes]`, with d = 3 displacements (x, y, z) [m], or
                d = 6, displacements and then rotations [rad], of each node, ordered by node. An array or a
                sparse matrix with `toarray`; computed as a dense matrix.
            stiffness: as `mass`.
            positions: of the nodes in the body frame, undeformed, `[num_nodes, 3]` [m].
            markers: node, or nodes, to which joints attach, by name. The marker of several nodes stands at
                their mean and moves as the rigid body that fits them by least squares. A single node of 3
                displacements does not turn its marker.
            root: node, or nodes, fixed to the body frame.
            modes: number of normal modes in addition to the static shapes.
            second_order: "line" computes the foreshortening of a body whose nodes stand on a straight line.
                Others take the forces `[d * num_nodes]` [N] of some loads, each with the geometric stiffness
                matrix of the stress that it causes: second-order shapes then do the work of these matrices,
                which is exact for combinations of the loads, such as the centrifugal forces of a spin and a
                force at a marker. None leaves them out; such a body must not spin fast.

        Raises:
            MechanismError: for matrices of other sizes, not symmetric or not positive semidefinite. On an
                unknown node, a root that leaves rigid-body motions, motions without mass, or nodes off a line
                without loads. On a mass matrix that mass points near the nodes cannot represent.

        Reference: R. R. Craig, M. C. C. Bampton, *Coupling of substructures for dynamic analyses*, AIAA
        Journal 6(7), 1968; O. Wallrapp, R. Schwertassek, *Representation of geometric stiffening in multibody
        system simulation*, International Journal for Numerical Methods in Engineering 32(8), 1991.

        Example:
            >>> import numpy as np, torchsko as ts
            >>> k = 100.0 * np.array([[1, -1, 0], [-1, 2, -1], [0, -1, 1]])  # a chain along x
            >>> K, M = np.kron(k, np.eye(3)), np.kron(np.diag([1.0, 2.0, 1.0]), np.eye(3))
            >>> x = [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
            >>> ts.FlexibleBody.from_finite_elements(M, K, x, markers={"end": 2}, root=0, modes=0)
            FlexibleBody(3 points, 3 modes: mode1, mode2, mode3; markers end)
        """
        M, K = (np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float64)
                for x in (mass, stiffness))  # fmt: skip
        at = np.asarray(positions, np.float64)
        at = checked_array(at, "positions", (len(at), 3))
        size = (6 if M.shape[:1] == (6 * len(at),) else 3) * len(at)
        for name, matrix in (("mass", M), ("stiffness", K)):
            refuse_indefinite(name, checked_array(matrix, name, (size, size)))
        held = node_indices(root, "the root", len(at))
        ends = {name: node_indices(x, f"marker {name!r}", len(at)) for name, x in markers.items()}
        loads = None if second_order == "line" else _checked_loads(second_order or (), size)
        found = reduce_model(M, K, at, ends, held, modes, loads)
        found = condense(found, kept=[node for end in ends.values() for node in end])
        return FlexibleBody(
            points=found.points,
            masses=found.masses,
            shapes=found.shapes,
            stiffness=found.stiffness,
            second_order=found.second_order,
            markers={
                name: Marker(point, shape, slope, second_order=second)
                for name, (point, shape, slope, second) in found.markers.items()
            },
            slopes=found.slopes,
            inertias=found.inertias,
        )

    def damped(self, ratio: float) -> FlexibleBody:
        """The body with modal damping: the same damping ratio for all its vibration modes.

        Args:
            ratio: damping ratio [1] of the modes of the body whose frame is held.
        """
        mass, K = self.modal_mass(), self.stiffness
        root = np.linalg.cholesky(mass)
        inner = np.linalg.inv(root)
        squares, modes = np.linalg.eigh(inner @ K @ inner.T)
        rates = np.sqrt(np.maximum(squares, 0.0))
        C = root @ modes @ np.diag(2 * ratio * rates) @ modes.T @ root.T
        return replace(self, damping=(C + C.T) / 2)

    def framed_at(self, marker: str, *, origin: str = "origin") -> FlexibleBody:
        """The body whose frame is one of its markers, at which a joint then moves it.

        Displacements are relative to the marker, exact to second order in the modal coordinates. Modal
        coordinates, stiffness and damping stay the same, and so do the frequencies of the free body.

        Args:
            marker: name of the marker that becomes the frame.
            origin: name of a new marker at the old frame.

        Raises:
            MechanismError: if there is no marker of this name, or another one named `origin`.

        Example:
            >>> import torchsko as ts
            >>> beam = ts.FlexibleBody.beam(1.0, 0.5, EI_y=2.0, shapes=(2, 0))
            >>> turned = beam.framed_at("tip", origin="root")
            >>> turned.markers["root"].point.tolist()
            [-1.0, 0.0, 0.0]
        """
        return replace(self, **fields_at(self, marker, origin))

    def modal_mass(self) -> Array:
        """Mass matrix of the modal coordinates at zero deflection, `[n, n]`."""
        turning = np.einsum("kin,kij,kjm->nm", self.slopes, self.inertias, self.slopes)
        return np.einsum("k,kin,kim->nm", self.masses, self.shapes, self.shapes) + turning

    def reach(self) -> tuple[float, ...]:
        """Modal coordinates at which the largest displacement is `REACH` times the size of the body."""
        size = np.ptp(self._corners(), axis=0).max() or 1.0
        rows = [x for end in self.markers.values() for x in (end.shape, size * end.slope)]
        most = np.abs(np.concatenate([*self.shapes, *(size * self.slopes), *rows])).max(0)
        return tuple((REACH * size / np.where(most > 0, most, 1.0)).tolist())

    def _rows(self) -> Array:
        """All displacements and rotations per modal coordinate, `[rows, n]`."""
        rows = [self.shapes.reshape(-1, len(self.modes)), self.slopes.reshape(-1, len(self.modes))]
        rows += [x for marker in self.markers.values() for x in (marker.shape, marker.slope)]
        return np.concatenate(rows)

    def _corners(self) -> Array:
        return np.concatenate([self.points, np.zeros((1, 3))])


def _block_diagonal(blocks: Sequence[Array]) -> Array:
    sizes = [len(block) for block in blocks]
    whole, start = np.zeros((sum(sizes), sum(sizes))), 0
    for block in blocks:
        whole[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    return whole


def _checked_loads(loads: Sequence[tuple[Any, Any]], size: int) -> list[tuple[Array, Array]]:
    found = []
    for i, (forces, matrix) in enumerate(loads):
        G = checked_array(matrix, f"geometric stiffness of load {i}", (size, size))
        refuse_asymmetry(f"geometric stiffness of load {i}", G)
        found.append((checked_array(forces, f"forces of load {i}", (size,)), G))
    return found
