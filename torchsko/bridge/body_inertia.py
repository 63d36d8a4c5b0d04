"""Spatial inertias of the bodies of a mechanism, breadth first, in body frames."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.inertia import compensated_mass, inertia_of_vector, spatial_inertia


def body_inertias(mech: Mechanism) -> Tensor:
    """Spatial inertia of every body in its frame, `[*batch, n, 6, 6]`, breadth first."""
    layout = mech.layout
    return spatial_inertia(
        layout.breadth_first(mech.mass, -1),
        layout.breadth_first(mech.com, -2),
        layout.breadth_first(mech.inertia, -3),
    )


def compensated_inertias(mech: Mechanism) -> Tensor:
    """Spatial inertia of the masses whose weight is compensated, each in a point; as `body_inertias`.

    Without moments of inertia: gravity, which accelerates all alike, has no use for them.
    """
    lifted, first = compensated_mass(mech.mass, mech.com, mech.gravcomp)
    both = torch.cat([lifted.expand(*first.shape[:-1], 1), first], -1)
    both = mech.layout.breadth_first(both, -2)
    return inertia_of_vector(torch.nn.functional.pad(both, (0, 6)))
