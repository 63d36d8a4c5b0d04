"""Interface of shapes."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from torchsko.shapes.candidate_points import Placed, Points

DEFAULT_CONTACTS = 4
"""Largest number of contacts of a pair of shapes, unless its function states another."""


class Collision(NamedTuple):
    """Contact of two kinds of shapes.

    Attributes:
        points: candidate points of pairs of placed shapes, the first of the kind that is earlier in `SHAPES`.
        max_contacts: largest number of contacts of a pair; the deepest ones are kept.
    """

    points: Callable[[Placed, Placed], Points]
    max_contacts: int = DEFAULT_CONTACTS


@dataclass(frozen=True, eq=False)
class Form(ABC):
    """A geometric shape, centered at the origin of its frame.

    Attributes:
        kind: name of the kind of shape.
        num_sizes: number of half sizes that are positive.
        is_fixed: whether shapes of this kind do not collide with one another, in MuJoCo also.
        pairs: contact with shapes of earlier kinds, or of this kind, by the kind of the first shape.
    """

    kind: ClassVar[str]
    num_sizes: ClassVar[int] = 0
    is_fixed: ClassVar[bool] = False
    pairs: ClassVar[Mapping[str, Collision]] = {}

    @property
    def half_sizes(self) -> tuple[float, float, float]:
        """Half sizes, zero where the kind has fewer than three [m]."""
        return 0.0, 0.0, 0.0

    @property
    def contact_kind(self) -> str:
        """The kind; another name for a shape whose kind has contact that this one lacks data for."""
        return self.kind

    def mesh(self) -> tuple[np.ndarray, np.ndarray]:
        """Vertices `[n, 3]` [m] and triangles `[m, 3]`, counter-clockwise seen from outside."""
        raise TypeError(f"{type(self).__name__} cannot be tessellated")

    def ray_hits(self, p: Tensor, d: Tensor) -> Tensor:
        """True for rays that meet the shape, `[*]`, bool.

        Args:
            p: start points, `[*, 3]` [m].
            d: directions, `[*, 3]`.
        """
        raise TypeError(f"rays do not meet a {self.kind}")
