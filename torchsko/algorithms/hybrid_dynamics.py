r"""Hybrid dynamics: some nodes move as prescribed, forces drive the others.

At a prescribed dof qdd is known and T is not. With the rows of H and D of the others in their place,

.. math:: P^+ = P, \qquad z^+ = z + P H^* \ddot q, \qquad \alpha = \alpha^+ + H^* \ddot q + a.

That is the articulated-body recursion on a model whose joint map is zero at prescribed nodes and whose
a(k) there holds the known H* qdd as well. With all accelerations known, the missing forces are those
of inverse dynamics. No node prescribed gives forward dynamics, every node inverse dynamics.

Reference: A. Jain, *Spatial Operator Algebra 9: Multibody Graph Generalizations*, JPL DARTS Lab slides,
2024 (listed among the recursive algorithms); A. Jain, *Graph Theoretic Foundations of Multibody
Dynamics, Part II*, 2011, Algorithm 6.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from torchsko.algebra.operators.hinge import armature_force, spread_all
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.recursions.innovations import swept_innovations
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.subgraph import node_numbers
from torchsko.algorithms.inverse_dynamics import inverse_dynamics
from torchsko.errors import ShapeError


def hybrid_dynamics(
    model: SKOModel, gen_force: Tensor, accel: Tensor, prescribed: Iterable[int | str] | Tensor
) -> tuple[Tensor, Tensor]:
    """The accelerations and forces that are not given, from those that are, O(N).

    Args:
        model: an SKO model.
        gen_force: T, `[*batch, num_dof]` [N m or N]; read at force-driven dofs only.
        accel: qdd, `[*batch, num_dof]` [rad/s^2 or m/s^2]; read at prescribed dofs only.
        prescribed: nodes whose acceleration is given, by number or name; any subset, another one in
            every call. Or the single dofs, as bools `[*batch, num_dof]`, which may differ between
            samples.

    Returns:
        qdd and T, complete, `[*batch, num_dof]` each: what was given comes back unchanged.

    Raises:
        TreeError: on an unknown node.
        ShapeError: when `gen_force`, `accel` or a tensor of dofs has another length than num_dof, or
            another type.

    Reference: Jain 2024, SOA slides 9, O(N) hybrid dynamics.
    """
    layout = model.layout
    layout.dofs.refuse(gen_force.shape[-1])
    if isinstance(prescribed, Tensor):
        locked = _dof_mask(layout, prescribed)
    else:
        locked = _node_mask(layout, tuple(prescribed)).expand(-1, layout.dofs.width, 1)
    flat = layout.dofs.unpack(locked)[..., 0]
    known = torch.where(locked, layout.dofs.pack(accel[..., None]), 0.0)
    a = model.coriolis_accel + spread_all(layout, model.maps, known)
    released = swept_innovations(_locked_model(model, locked, a))
    driving = gen_force
    if model.armature is not None and model.armature.shape[-1] > 1:  # it couples dofs of a hinge
        driving = driving - layout.dofs.collect(armature_force(model.armature, known))[..., 0]
    solved = released.forward_dynamics(torch.where(flat, 0.0, driving))
    qdd = torch.where(flat, accel, solved)
    return qdd, torch.where(flat, inverse_dynamics(model, qdd), gen_force)


def _locked_model(model: SKOModel, locked: Tensor, a: Tensor) -> SKOModel:
    """The model with these dofs locked: their rows of H zero, and D = 1 there, which nothing reads."""
    E, S = model.straight, model.armature
    S = torch.zeros_like(model.joint_map[..., :1]) if S is None else S
    if S.shape[-1] == 1:
        S = torch.where(locked, 1.0, S)
    else:
        identity = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
        S = torch.where(locked | locked.mT, identity, S)
    return replace(
        model,
        maps=torch.where(locked, 0.0, model.joint_map),
        straight=None if E is None else torch.where(locked, 0.0, E),
        coriolis_accel=a,
        armature=S,
    )


def _dof_mask(layout: Layout, dofs: Tensor) -> Tensor:
    """A mask of dofs, bool `[*batch, num_dof]`, packed to `[*batch, n, d, 1]`."""
    layout.dofs.refuse(dofs.shape[-1])
    if dofs.dtype != torch.bool:
        raise ShapeError(
            f"prescribed is a tensor of {dofs.dtype}.",
            "It is a mask of the dofs whose acceleration is prescribed.",
            "Pass a bool tensor, or the names of nodes.",
        )
    return layout.dofs.pack(dofs[..., None])


def _node_mask(layout: Layout, nodes: tuple[int | str, ...]) -> Tensor:
    """Mask of these nodes, breadth first, bool `[n, 1, 1]`."""
    chosen = set(node_numbers(layout.tree, nodes)) if nodes else set()
    # Filled on the device, run by run: a list made on the host would be copied to the device in every call.
    runs = groupby([k in chosen for k in range(layout.tree.num_nodes)])
    parts = [torch.full_like(layout.order[: len(list(run))], value) for value, run in runs]
    return layout.breadth_first(torch.cat(parts).bool(), 0)[:, None, None]
