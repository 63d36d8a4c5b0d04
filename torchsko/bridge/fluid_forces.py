r"""Forces of a fluid on bodies: the two models of MuJoCo.

A shape moves in the fluid with the angular velocity w and the linear velocity v, in its axes at its center.
Box of edges b, with the mean edge d, for the density rho and the viscosity beta:

.. math::
    f_i = -3 \pi \beta d\, v_i - \tfrac12 \rho\, b_j b_k |v_i| v_i, \qquad
    \tau_i = -\pi \beta d^3 w_i - \tfrac{1}{64} \rho\, b_i (b_j^4 + b_k^4) |w_i| w_i.

The coefficients of an ellipsoid are, in this order: a factor of all forces; blunt drag, slender drag, angular
drag, Kutta lift and Magnus lift; the three virtual masses and the three virtual moments of inertia of the
displaced fluid per density, of which the forces at constant velocity are included.

Reference: MuJoCo documentation, "Computation", Fluid forces.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchsko.algebra.operators.sweeps import scatter
from torchsko.bridge.body_momenta import tree_forces_of
from torchsko.bridge.joint_motion import base_motion
from torchsko.bridge.kinematics import Kinematics
from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.mechanism.mechanism import Mechanism
from torchsko.spatial.rotation import cross, skew
from torchsko.utils.shapes import concatenate, matvec, norm

Wrench = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Moment and force on shapes from w, v, sizes, coefficients `[*, n, ...]` and medium `[*, 1, 2]`."""


def fluid_force(state: Kinematics) -> Tensor:
    """Forces of the fluid on all joints of the tree, `[*batch, num_tree_dof]` [N m or N]."""
    tree = state.tree
    V = _relative_velocities(state)
    wrenches, bodies = [V.new_zeros(1, 6)], []
    for model, wrench in MODELS.items():
        shapes = shapes_of(tree, model)
        if shapes:
            bodies += [tree.fluid_bodies[k] for k in shapes]
            wrenches.append(wrench_on_bodies(tree, V, shapes, wrench))
    table = concatenate(wrenches, -2).index_select(-2, _places(tree, bodies))
    total = table.unflatten(-2, (tree.num_bodies, -1)).sum(-2)
    return tree_forces_of(state, tree.layout.breadth_first(total, -2)[..., None])


def _relative_velocities(state: Kinematics) -> Tensor:
    """Velocities of all bodies relative to the fluid, in body frames, `[*batch, num_bodies, 6]`."""
    layout, A = state.tree.layout, state.edge_weight
    V = scatter(layout, A, state.joint_rate - base_motion(state.tree, A, state.tree.wind))
    return layout.tree_order(V, -3)[..., 0]


def fluid_damping(state: Kinematics, *, drag_only: bool) -> Tensor:
    """Negative derivative of `fluid_force` with respect to velocities of the tree.

    Args:
        state: the mechanism at a state.
        drag_only: whether lift and the forces of displaced fluid are omitted.

    Returns:
        `[*batch, num_tree_dof, num_tree_dof]` [N m s/rad, N s or N s/m].
    """
    mech, q = state.tree, state.tree_q
    V = _relative_velocities(state)
    identity = torch.eye(mech.num_dof, dtype=q.dtype, device=q.device)
    J = scatter(mech.layout, state.edge_weight, state.along_joints(identity))
    J = mech.layout.tree_order(J, -3)
    total = torch.zeros_like(J.mT[..., 0, :, :] @ J[..., 0, :, :])
    for model, wrench in MODELS.items():
        shapes = shapes_of(mech, model)
        if not shapes:
            continue
        index = torch.tensor(shapes, dtype=torch.int64, device=mech.device)
        bodies = torch.tensor([mech.fluid_bodies[k] for k in shapes], device=mech.device)
        R = mech.fluid_rotation.index_select(-3, index)
        shift = -R.mT @ skew(mech.fluid_position.index_select(-2, index))
        blocks = torch.broadcast_tensors(R.mT, torch.zeros_like(R), shift)
        X = torch.cat([torch.cat([blocks[0], blocks[1]], -1), torch.cat([shift, R.mT], -1)], -2)
        size = mech.fluid_size.index_select(-2, index)
        numbers = mech.fluid_coefficients.index_select(-2, index)
        if drag_only:
            numbers = torch.nn.functional.pad(numbers[..., :4], (0, 8))
        twist = matvec(X, V.index_select(-2, bodies))

        def force(
            twist: Tensor, wrench: Wrench = wrench, size: Tensor = size, numbers: Tensor = numbers
        ) -> tuple[Tensor]:
            w, v = twist.split(3, -1)
            parts = wrench(w, v, size, numbers, mech.medium[..., None, :])
            return (torch.cat(torch.broadcast_tensors(*parts), -1),)

        unit = torch.eye(6, dtype=q.dtype, device=q.device)
        columns = [jvp_by_double_vjp(force, (twist,), (e.expand_as(twist),))[0] for e in unit]
        B = -torch.stack(columns, -1)
        moved = X @ J.index_select(-3, bodies)
        total = total + (moved.mT @ (B @ moved)).sum(-3)
    return total


def shapes_of(mech: Mechanism, model: str) -> list[int]:
    """Indices of the shapes of a model on moving bodies."""
    pairs = enumerate(zip(mech.fluid_models, mech.fluid_bodies, strict=True))
    return [k for k, (name, body) in pairs if name == model and body >= 0]


def _places(mech: Mechanism, bodies: list[int]) -> Tensor:
    """For each body the places of its shapes after a zero, padded with that, int64."""
    rows = [[1 + i for i, x in enumerate(bodies) if x == k] for k in range(mech.num_bodies)]
    most = max(1, *map(len, rows))
    flat = [x for row in rows for x in (*row, *[0] * (most - len(row)))]
    return torch.tensor(flat, dtype=torch.int64, device=mech.device)


def wrench_on_bodies(mech: Mechanism, V: Tensor, shapes: list[int], wrench: Wrench) -> Tensor:
    """Moment and force of shapes on their bodies, at the origins of these, `[*batch, n, 6]`.

    Args:
        mech: the mechanism.
        V: velocities of all bodies relative to the fluid, `[*batch, num_bodies, 6]`.
        shapes: indices of the shapes.
        wrench: of `MODELS`.
    """
    index = torch.tensor(shapes, dtype=torch.int64, device=mech.device)
    bodies = torch.tensor([mech.fluid_bodies[k] for k in shapes], device=mech.device)
    R, r = mech.fluid_rotation.index_select(-3, index), mech.fluid_position.index_select(-2, index)
    w, v = V.index_select(-2, bodies).split(3, -1)
    moment, force = wrench(
        matvec(R.mT, w),
        matvec(R.mT, v + cross(w, r)),
        mech.fluid_size.index_select(-2, index),
        mech.fluid_coefficients.index_select(-2, index),
        mech.medium[..., None, :],
    )
    moment, force = (matvec(R, x) for x in (moment, force))
    return torch.cat(torch.broadcast_tensors(moment + cross(r, force), force), -1)


def box_wrench(
    w: Tensor, v: Tensor, size: Tensor, coefficients: Tensor, medium: Tensor
) -> tuple[Tensor, Tensor]:
    """Moment and force on boxes."""
    density, viscosity = medium.split(1, -1)
    d = size.mean(-1, keepdim=True)
    j, k = _next_axes(size)
    drag = 0.5 * density * j * k * v.abs()
    spin = density * size * (j**4 + k**4) * w.abs() / 64
    moment = -(math.pi * viscosity * d**3 + spin) * w
    return moment, -(3 * math.pi * viscosity * d + drag) * v


def ellipsoid_wrench(
    w: Tensor, v: Tensor, size: Tensor, coefficients: Tensor, medium: Tensor
) -> tuple[Tensor, Tensor]:
    """Moment and force on ellipsoids."""
    density, viscosity = medium.split(1, -1)
    factor, blunt, slender, angular, kutta, magnus = coefficients[..., :6].split(1, -1)
    virtual_mass, virtual_inertia = coefficients[..., 6:].split(3, -1)
    p, spin = density * virtual_mass * v, density * virtual_inertia * w
    moment, force = cross(p, v) + cross(spin, w), cross(p, w)

    largest, smallest = size.amax(-1, keepdim=True), size.amin(-1, keepdim=True)
    middle = size.sum(-1, keepdim=True) - largest - smallest
    j, k = _next_axes(size)
    area = (j * k) ** 2  # squares of the projections along the axes, over pi
    normal = area * v
    above, below = (normal * normal).sum(-1, keepdim=True), (normal * v).sum(-1, keepdim=True)
    moves = below > 0
    above, below = (torch.where(moves, x, 1.0) for x in (above, below))
    speed = norm(v)[..., None]
    projected = math.pi * (above / below).sqrt()
    cosine = torch.where(moves, below / (torch.where(moves, speed, 1.0) * above), 0.0)
    volume = 4 / 3 * math.pi * size.prod(-1, keepdim=True)
    lift = magnus * density * volume * cross(w, v)
    lift = lift + kutta * density * cosine * projected * cross(cross(normal, v), v)

    diameter = 2 / 3 * size.sum(-1, keepdim=True)
    most = 8 / 15 * math.pi * middle * largest**4
    own = 8 / 15 * math.pi * size * torch.maximum(j, k) ** 4
    turning = norm(w * (angular * own + slender * (most - own)))[..., None]
    blocking = projected * blunt + slender * (math.pi * largest * middle - projected)
    drag = 3 * math.pi * viscosity * diameter + density * speed * blocking
    moment = moment - (math.pi * viscosity * diameter**3 + density * turning) * w
    return factor * moment, factor * (force + lift - drag * v)


def _next_axes(size: Tensor) -> tuple[Tensor, Tensor]:
    """Sizes along the next axis and the one after it."""
    a, b, c = size.split(1, -1)
    return torch.cat([b, c, a], -1), torch.cat([c, a, b], -1)


MODELS: dict[str, Wrench] = {"box": box_wrench, "ellipsoid": ellipsoid_wrench}
"""Models of `Mechanism.fluid_models`."""
