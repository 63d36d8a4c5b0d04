"""Derivatives of `torchsko.integrate` and `torchsko.difference` along tangent steps.

Joints are independent of each other, so that both are block diagonal; blocks of joints whose coordinates are
a vector are identities. Other blocks follow from reverse mode on the few numbers of one joint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.mechanism.configuration import add_step, subtract
from torchsko.mechanism.coordinates import independent_rates, scatter_dofs, tree_q
from torchsko.mechanism.data import uncoupled
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.joints.groups import JointGroup
from torchsko.mechanism.joints.kind import JointType
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_coordinates
from torchsko.utils.shapes import broadcast_shapes
from torchsko.verbs.joint_tangents import block_diagonal
from torchsko.verbs.manifold_derivatives import state_jacobians

JointStep = Callable[[JointType, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A step of joints of one kind, from two arguments and tangent steps of both."""


@verb(check=check_coordinates)
def integrate_derivatives(mech: Mechanism, q: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of `integrate` to a tangent step of q and to the step.

    Args:
        step: displacement, `[*batch, num_dof]` [rad or m], in the child frame.

    Returns:
        ``(to_q, to_step)``, each `[*batch, num_dof, num_dof]`: the changes of the result, as tangent steps.

    Reference: Sola, Deray, Atchuthan 2018, A micro Lie theory (right Jacobians of plus).

    Example:
        >>> import torchsko as ts
        >>> dog = ts.load(ts.robots.quadruped, floating_base=True)
        >>> q, step = dog.random_state()
        >>> to_q, to_step = ts.integrate_derivatives(dog, q, step)
        >>> to_q.shape
        torch.Size([18, 18])
    """
    if mech.closing is not None:
        end = add_step(mech, q, step)
        return state_jacobians(
            mech, lambda x, v: subtract(mech, end, add_step(mech, x, v)), q, step
        )

    def difference_of_steps(
        kind: JointType, q: Tensor, v: Tensor, dq: Tensor, dv: Tensor
    ) -> Tensor:
        return kind.difference(kind.integrate(q, v), kind.integrate(kind.integrate(q, dq), v + dv))

    at, step = tree_q(mech, q), scatter_dofs(mech, step)
    batch = broadcast_shapes(at.shape[:-1], step.shape[:-1])
    arguments = lambda group: (group.coordinates(at), group.rates(step))  # noqa: E731
    return _per_joint(mech, difference_of_steps, (1.0, 1.0), arguments, batch)


@verb(check=check_coordinates)
def difference_derivatives(mech: Mechanism, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of `difference` to tangent steps of both configurations.

    Args:
        start: first configuration, `[*batch, num_q]`.
        end: second configuration, `[*batch, num_q]`.

    Returns:
        ``(to_start, to_end)``, each `[*batch, num_dof, num_dof]`.

    Reference: Sola, Deray, Atchuthan 2018, A micro Lie theory (right Jacobians of minus).
    """
    if mech.closing is not None:
        zero = torch.zeros_like(subtract(mech, start, end))
        return state_jacobians(
            mech, lambda x, v: subtract(mech, x, add_step(mech, end, v)), start, zero
        )

    def between(kind: JointType, a: Tensor, b: Tensor, da: Tensor, db: Tensor) -> Tensor:
        return kind.difference(kind.integrate(a, da), kind.integrate(b, db))

    one, two = tree_q(mech, start), tree_q(mech, end)
    batch = broadcast_shapes(one.shape[:-1], two.shape[:-1])
    arguments = lambda group: (group.coordinates(one), group.coordinates(two))  # noqa: E731
    return _per_joint(mech, between, (-1.0, 1.0), arguments, batch)


def _per_joint(
    mech: Mechanism,
    fn: JointStep,
    of_vectors: tuple[float, float],
    arguments: Callable[[JointGroup], tuple[Tensor, Tensor]],
    batch: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Both derivatives of a function of each joint, in the independent dofs.

    Args:
        mech: a mechanism without loops.
        fn: the function.
        of_vectors: both derivatives for joints whose coordinates are a vector.
        arguments: both arguments of the joints of one kind, `[*batch, g, size]`.
        batch: batch dimensions of the arguments.
    """
    tree = uncoupled(mech)
    blocks: tuple[list[Tensor], list[Tensor]] = ([], [])
    for group in tree.joints.groups:
        kind, d = group.kind, group.kind.num_dof
        pair = arguments(group)
        if kind.vector:
            unit = torch.eye(d, dtype=pair[0].dtype, device=pair[0].device)
            found = [(x * unit).expand(*batch, len(group.bodies), d, d) for x in of_vectors]
        else:
            found = _joint_derivatives(kind, fn, *(x.expand(*batch, *x.shape[-2:]) for x in pair))
        for row, x in zip(blocks, found, strict=True):
            row.append(x)
    to_first, to_second = (
        independent_rates(mech, independent_rates(mech, block_diagonal(tree, x)).mT).mT
        for x in blocks
    )
    return to_first, to_second


def _joint_derivatives(kind: JointType, fn: JointStep, a: Tensor, b: Tensor) -> list[Tensor]:
    """Both derivatives for joints of one kind, `[*batch, g, d, d]`."""
    d = kind.num_dof
    zero = a.new_zeros(*a.shape[:-1], 2 * d)
    unit = torch.eye(2 * d, dtype=a.dtype, device=a.device)
    columns = [
        jvp_by_double_vjp(
            lambda x: (fn(kind, a, b, *x.split(d, -1)),), (zero,), (e.expand(zero.shape),)
        )[0]
        for e in unit.unbind(0)
    ]
    return [*torch.stack(columns, -1).split(d, -1)]
