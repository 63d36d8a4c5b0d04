"""Derivatives along the closed manifold of mechanisms with loops, where X and xi depend on q.

The closed forms of trees hold X constant. Here the functions themselves are differentiated, along tangent
steps of `torchsko.integrate`, with all directions as one batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.mechanism.configuration import add_step
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import broadcast_shapes

StateFunction = Callable[[Tensor, Tensor], Tensor]
"""Maps q and qd to a tensor `[*batch, *shape]`."""


def state_jacobians(
    mech: Mechanism, fn: StateFunction, q: Tensor, qd: Tensor, batch: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Derivatives of a function to tangent steps of q and to qd, `[*batch, *shape, num_dof]` each.

    Args:
        mech: the mechanism.
        fn: the function.
        q: configuration, `[*batch, num_q]`.
        qd: velocity, `[*batch, num_dof]`.
        batch: batch dimensions of other tensors that the function reads.
    """
    n = mech.num_dof
    batch = broadcast_shapes(q.shape[:-1], qd.shape[:-1], batch, mech.batch_shape)
    unit = torch.eye(2 * n, dtype=q.dtype, device=q.device)
    unit = unit.reshape(2 * n, *(1,) * len(batch), 2 * n).expand(2 * n, *batch, 2 * n)
    zero = torch.zeros_like(unit)

    def at(change: Tensor) -> tuple[Tensor]:
        step, rates = change.split(n, -1)
        return (fn(add_step(mech, q, step), qd + rates),)

    (found,) = jvp_by_double_vjp(at, (zero,), (unit,))
    to_q, to_qd = found.movedim(0, -1).split(n, -1)
    return to_q, to_qd
