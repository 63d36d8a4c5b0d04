"""Random states of mechanisms."""

import torch
from torch import Tensor

import torchsko as ts


def normal_state(
    mech: ts.Mechanism, *batch: int, seed: int = 0, vectors: int = 2, wrench: bool = False
) -> tuple[Tensor, ...]:
    """A configuration, and normal vectors of the size of qd; with `wrench` forces on all bodies as well."""
    g = torch.Generator().manual_seed(seed)
    q, _ = mech.random_state(*batch, generator=g)
    found = q, *torch.randn(vectors, *batch, mech.num_dof, generator=g, dtype=q.dtype)
    return found if not wrench else (*found, _wrenches(q, mech.num_bodies, g))


def usual_state(
    mech: ts.Mechanism, *batch: int, seed: int = 0, wrench: bool = False
) -> tuple[Tensor, ...]:
    """Like `normal_state`, with a velocity of usual size and one normal vector."""
    g = torch.Generator().manual_seed(seed)
    q, qd = mech.random_state(*batch, generator=g)
    found = q, qd, torch.randn(qd.shape, generator=g, dtype=q.dtype)
    return found if not wrench else (*found, _wrenches(q, mech.num_bodies, g))


def _wrenches(q: Tensor, num_bodies: int, g: torch.Generator) -> Tensor:
    return torch.randn(*q.shape[:-1], num_bodies, 6, generator=g, dtype=q.dtype)
