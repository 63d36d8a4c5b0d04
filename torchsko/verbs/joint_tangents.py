"""Derivatives of joint maps and spring deflections along tangent steps of the joint's coordinates.

Joints with a constant H and a vector configuration need no computation. For the others, reverse mode
differentiates the few numbers of each joint, all joints of a kind together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsko.bridge.tangents import Bend
from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.mechanism.joints.groups import JointGroup
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import broadcast_shapes


def joint_bends(mech: Mechanism, q: Tensor, qd: Tensor) -> Bend | None:
    """`Bend` of a mechanism without couplings; None where every H is constant."""
    if all(group.kind.constant_map for group in mech.joints.groups):
        return None
    parts, width = [], mech.layout.dofs.width
    for group in mech.joints.groups:
        if group.kind.constant_map:
            count = group.bodies.shape[0]
            shapes = ((width, width, 6), (width, 6), (width, 6))
            parts.append([q.new_zeros(count, *shape) for shape in shapes])
        else:
            parts.append(_bend(mech, group, q, qd, width))
    maps, changes, rates = zip(*parts, strict=True)
    return Bend(
        mech.joints.nodes(list(maps), -4),
        mech.joints.nodes(list(changes), -3),
        mech.joints.nodes(list(rates), -3),
    )


def _bend(mech: Mechanism, group: JointGroup, q: Tensor, qd: Tensor, width: int) -> list[Tensor]:
    """The fields of `Bend` for one kind of joint, padded."""
    kind, constants = group.kind, group.constants(mech)
    at, u = group.coordinates(q), group.rates(qd)
    batch = broadcast_shapes(at.shape[:-1], u.shape[:-1], constants["axis"].shape[:-1])
    at, u = (x.expand(*batch, x.shape[-1]) for x in (at, u))

    def near(step: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
        there = kind.integrate(at, step)
        H = kind.joint_map_at(constants, there)
        bias = kind.bias_accel(constants, there, rates)
        return H.expand(*batch, kind.num_dof, 6), bias.expand(*batch, 6)

    found: list[list[Tensor]] = [[], [], []]
    zero = torch.zeros_like(u)
    for e in torch.eye(kind.num_dof, dtype=q.dtype, device=q.device).unbind(0):
        along = e.expand(u.shape)
        stepped = jvp_by_double_vjp(near, (zero, u), (along, zero))
        hastened = jvp_by_double_vjp(near, (zero, u), (zero, along))
        for row, x in zip(found, (*stepped, hastened[1]), strict=True):
            row.append(x)
    H, bias, per_rate = torch.stack(found[0], -3), *(torch.stack(x, -2) for x in found[1:])
    missing = width - kind.num_dof
    pad = torch.nn.functional.pad
    return [
        pad(H, (0, 0, 0, missing, 0, missing)),
        pad(bias, (0, 0, 0, missing)),
        pad(per_rate, (0, 0, 0, missing)),
    ]


def spring_tangent(mech: Mechanism, q: Tensor) -> Tensor:
    """Derivative of the forces of springs to tangent steps, of a mechanism without couplings.

    Returns:
        `[*batch, num_dof, num_dof]`, zero between joints.
    """
    slopes = [_spring_slopes(mech, group, q) for group in mech.joints.groups]
    if all(group.kind.vector for group in mech.joints.groups):
        return torch.diag_embed(mech.joints.vector(slopes, mech.joints.dof_place))
    return block_diagonal(
        mech,
        [
            torch.diag_embed(x) if group.kind.vector else x
            for group, x in zip(mech.joints.groups, slopes, strict=True)
        ],
    )


def block_diagonal(mech: Mechanism, blocks: Sequence[Tensor]) -> Tensor:
    """The matrix `[*batch, num_dof, num_dof]` with a block for each joint, zero between joints.

    Args:
        mech: a mechanism without couplings.
        blocks: blocks of the joints of each kind, `[*batch, g, d, d]`.
    """
    width, columns = max(group.kind.num_dof for group in mech.joints.groups), []
    for i in range(width):
        parts = [J[..., i] if i < J.shape[-1] else torch.zeros_like(J[..., 0]) for J in blocks]
        columns.append(mech.joints.vector(parts, mech.joints.dof_place))
    # Entry (j, k) is the derivative of j to the step of dof k within its joint.
    like = blocks[0]
    place, joint = _numbers(mech, like.device)
    chosen = torch.stack(columns, -1).index_select(-1, place)
    return chosen * (joint[:, None] == joint).to(like.dtype)


def _spring_slopes(mech: Mechanism, group: JointGroup, q: Tensor) -> Tensor:
    """Derivative of the springs of a kind's joints to steps of their own.

    Returns:
        `[*batch, g, d]` if the coordinates are vectors, else `[*batch, g, d, d]`.
    """
    kind, at = group.kind, group.coordinates(q)
    relaxed = group.coordinates(mech.spring_reference)
    linear = group.rates(mech.stiffness)
    higher = [group.rates(x) for x in mech.higher_stiffness.unbind(-1)]
    if kind.vector:
        if not mech.has_higher_stiffness:
            return linear
        x = at - relaxed
        return linear + 2 * higher[0] * x + 3 * higher[1] * x * x
    batch = broadcast_shapes(at.shape[:-1], relaxed.shape[:-1], linear.shape[:-1])
    d = kind.num_dof
    unit = torch.eye(d, dtype=q.dtype, device=q.device)
    at, relaxed = (x.expand(*batch, x.shape[-1]) for x in (at, relaxed))

    def force(step: Tensor) -> Tensor:
        stretch = kind.stretch(relaxed, kind.integrate(at, step))
        if not mech.has_higher_stiffness:
            return linear * stretch
        x = kind.deflection(stretch)
        return (linear + higher[0] * x + higher[1] * x * x) * stretch

    pull = torch.func.vjp(force, at.new_zeros(*batch, d))[1]
    rows = unit.reshape(d, *[1] * len(batch), d).expand(d, *batch, d)
    return torch.func.vmap(pull)(rows)[0].movedim(0, -2)


def _numbers(mech: Mechanism, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each dof its place within its joint, and the number of the joint, int64 `[num_dof]`."""
    sizes = {k: mech.joints.kinds[k].num_dof for k in mech.layout.dofs.leaders}
    places = [i for size in sizes.values() for i in range(size)]
    joints = [k for k, size in sizes.items() for _ in range(size)]
    return torch.tensor(places, device=device), torch.tensor(joints, device=device)
