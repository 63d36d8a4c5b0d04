"""Shapes of a straight beam that is clamped at x = 0, at unit length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial import legendre

Array = np.ndarray

NUM_NODES = 64
"""Nodes of the quadrature of stiffness and foreshortening, exact to rounding for tens of shapes."""


@dataclass(frozen=True)
class BeamShapes:
    """Shapes of one deflection of a beam, orthogonal in mass and stiffness, with deflection 1 at x = 1.

    Attributes:
        evaluate: the shapes or a derivative of them (0, 1, 2) at positions `[k]`, `[k, n]`.
        order: order of the derivative in the energy: 2 for bending, 1 for torsion.
        count: number of shapes, n.
    """

    evaluate: Callable[[Array, int], Array]
    order: int
    count: int

    def stiffness(self) -> Array:
        """Integrals of products of the derivatives in the energy, `[n, n]`."""
        x, w = nodes(NUM_NODES)
        d = self.evaluate(x, self.order)
        return (d * w[:, None]).T @ d

    def foreshortening(self, x: Array) -> Array:
        """Second-order shapes along the beam, minus the integral of products of slopes, `[k, n, n]`."""
        found = []
        for end in x:
            at, w = nodes(NUM_NODES)
            slope = self.evaluate(end * at, 1)
            found.append(-end * (slope * w[:, None]).T @ slope)
        return np.array(found).reshape(len(x), self.count, self.count)


@dataclass(frozen=True)
class BeamMotion:
    """Shapes, slopes and second-order shapes of points of a beam."""

    shapes: Array
    slopes: Array
    second_order: Array

    @staticmethod
    def of(planes: Sequence[BeamShapes], x: Any, length: float) -> BeamMotion:
        """At positions x relative to the length, `[k]` or one number."""
        at = np.atleast_1d(np.asarray(x, dtype=np.float64))
        value = [plane.evaluate(at, 0) for plane in planes]
        slope = [plane.evaluate(at, 1) / length for plane in planes[:2]]
        zero = [np.zeros_like(x) for x in value]
        rows = lambda *parts: np.stack([np.concatenate(row, -1) for row in parts], -2)  # noqa: E731
        short = [plane.foreshortening(at) / length for plane in planes[:2]]
        second = np.zeros((len(at), 3, *[sum(x.shape[-1] for x in value)] * 2))
        start = 0
        for block in short:
            end = start + block.shape[-1]
            second[:, 0, start:end, start:end] = block
            start = end
        return BeamMotion(
            rows((zero[0], zero[1], zero[2]), (zero[0], value[1], zero[2]), (value[0], zero[1], zero[2])),
            rows((zero[0], zero[1], value[2]), (-slope[0], zero[1], zero[2]), (zero[0], slope[1], zero[2])),
            second,
        )  # fmt: skip

    def at_point(self) -> tuple[Array, Array, None, Array]:
        """Arguments of `Marker` after its position."""
        return self.shapes[0], self.slopes[0], None, self.second_order[0]


def static_shapes(order: int, count: int) -> BeamShapes:
    """Vibration modes in the space of x^order ... x^(order + count - 1).

    The space has the deflections under a force and a moment at the tip, so few shapes suffice where joints
    load the body.
    """
    columns = np.eye(max(count, 3))[:, :count]
    rates = [2.0**m * legendre.legder(columns, m) for m in range(3)]

    def powers(x: Array, derivative: int) -> Array:
        L0, L1, L2 = (legendre.legval(2 * x - 1, c).T for c in rates)
        x = x[:, None]
        if order == 1:
            return (x * L0, L0 + x * L1)[derivative]
        return (
            x * x * L0,
            2 * x * L0 + x * x * L1,
            2 * L0 + 4 * x * L1 + x * x * L2,
        )[derivative]

    at, w = nodes(NUM_NODES)
    value, bent = powers(at, 0), powers(at, order)
    mass, stiffness = (value * w[:, None]).T @ value, (bent * w[:, None]).T @ bent
    root = np.linalg.inv(np.linalg.cholesky(mass)) if count else mass
    modes = root.T @ np.linalg.eigh(root @ stiffness @ root.T)[1]
    modes = modes / (powers(np.ones(1), 0) @ modes)
    return BeamShapes(lambda x, derivative: powers(x, derivative) @ modes, order, count)


def clamped_shapes(order: int, count: int) -> BeamShapes:
    """Vibration modes of the beam whose other end is free."""
    numbers = np.array([_wave_number(k) for k in range(count)])

    def bending(x: Array, derivative: int) -> Array:
        b = numbers
        # cosh and sinh by exponentials that do not overflow or cancel: 1 - sigma, 1 + sigma
        less = (np.sin(b) - np.cos(b) - np.exp(-b)) / (np.sinh(b) + np.sin(b))
        z = b * x[:, None]
        rising, falling = less * np.exp(z) / 2, (2 - less) * np.exp(-z) / 2
        sign, s = (1, -1, 1)[derivative], 1 - less
        wave = (
            s * np.sin(z) - np.cos(z),
            s * np.cos(z) + np.sin(z),
            np.cos(z) - s * np.sin(z),
        )[derivative]
        return b**derivative * (rising + sign * falling + wave)

    def torsion(x: Array, derivative: int) -> Array:
        b = (np.arange(count) + 0.5) * np.pi
        return b * np.cos(b * x[:, None]) if derivative else np.sin(b * x[:, None])

    shapes = bending if order == 2 else torsion
    tip = shapes(np.ones(1), 0)
    return BeamShapes(lambda x, derivative: shapes(x, derivative) / tip, order, count)


def nodes(count: int) -> tuple[Array, Array]:
    """Nodes and weights of Gauss's quadrature on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(count)
    return (x + 1) / 2, w / 2


def _wave_number(k: int) -> float:
    """Root k of cos b = -1 / cosh b, by Newton's method."""
    b = (k + 0.5) * np.pi
    for _ in range(20):
        value, slope = np.cos(b) + 1 / np.cosh(b), -np.sin(b) - np.sinh(b) / np.cosh(b) ** 2
        b -= value / slope
    return float(b)
