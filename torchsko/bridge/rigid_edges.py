"""Edge weights of a mechanism as factored rigid transforms: the form that is traced to scalars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import torch
from torch import Tensor

from torchsko.algebra.operators.edges import EdgeWeight
from torchsko.spatial.rigid_transform import (
    rotate_inertia,
    rotate_vector,
    translate_force,
    translate_inertia,
    translate_motion,
    turn_inertia,
)
from torchsko.utils.shapes import broadcast_shapes


@final
@dataclass(frozen=True, eq=False)
class RigidEdges(EdgeWeight):
    """Edge weights as rigid transforms, kept as joint motion and placement, for tracing to scalars.

    A placement is constant, often with entries 0 and 1, and a joint turns about one axis: applied one
    after the other they cost a fraction of a dense 6 x 6 product once zeros are folded away.

    Attributes:
        pose: joint rotation, `[*batch, n, 3, 3]`, None for the identity; placement rotation,
            `[*batch, n, 3, 3]`; position of the child's origin in the parent, `[*batch, n, 3]`.
        axis: joint axes, `[*batch, n, 3]`.
        aligned: for each node, whether its joint moves about or along one coordinate axis.
    """

    pose: tuple[Tensor | None, Tensor, Tensor]
    axis: Tensor
    aligned: tuple[bool, ...]

    @property
    def batch_shape(self) -> torch.Size:
        """Leading batch dimensions."""
        turn, rotation, position = self.pose
        shapes = [rotation.shape[:-3], position.shape[:-2]]
        shapes += [] if turn is None else [turn.shape[:-3]]
        return broadcast_shapes(*shapes)

    def up(self, y: Tensor) -> Tensor:
        """A y."""
        turn, rotation, position = self.pose
        y = y if turn is None else rotate_vector(turn, y)
        return translate_force(position, rotate_vector(rotation, y))

    def down(self, x: Tensor) -> Tensor:
        """A* x."""
        turn, rotation, position = self.pose
        x = rotate_vector(rotation.mT, translate_motion(position, x))
        return x if turn is None else rotate_vector(turn.mT, x)

    def congruence(self, P: Tensor) -> Tensor:
        """A P A*."""
        turn, rotation, position = self.pose
        if turn is not None:
            about_axis = all(self.aligned)
            P = turn_inertia(self.axis, turn, P) if about_axis else rotate_inertia(turn, P)
        return translate_inertia(position, rotate_inertia(rotation, P))

    def split(self, sizes: Sequence[int]) -> Sequence[RigidEdges]:
        """One object per run of nodes."""
        runs = tuple(sizes)
        turn, rotation, position = self.pose
        absent = (None,) * len(runs)
        parts = zip(
            absent if turn is None else turn.split(runs, -3),
            rotation.split(runs, -3),
            position.split(runs, -2),
            strict=True,
        )
        axis, ends = self.axis.split(runs, -2), accumulate(runs)
        aligned = [self.aligned[end - n : end] for n, end in zip(runs, ends, strict=True)]
        return [RigidEdges(*run) for run in zip(parts, axis, aligned, strict=True)]

    def select(self, nodes: Tensor) -> RigidEdges:
        """The weights at these positions."""
        turn, rotation, position = self.pose
        turn = None if turn is None else turn.index_select(-3, nodes)
        rotation = rotation.index_select(-3, nodes)
        position = position.index_select(-2, nodes)
        axis = self.axis.index_select(-2, nodes)
        # Which joints these are stands in a tensor: the general form serves all.
        return RigidEdges((turn, rotation, position), axis, (False,))

    def dense(self) -> Tensor:
        """The matrices `[*batch, n, 6, 6]`."""
        return self.up(torch.eye(6, dtype=self.pose[1].dtype, device=self.pose[1].device))
