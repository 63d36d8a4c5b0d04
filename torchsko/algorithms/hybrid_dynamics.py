r"""Hybrid dynamics: some nodes move as prescribed, forces drive the others.

At a prescribed node qdd is known and T is not. Its hinge is locked as far as the others are concerned:
it has no D, and

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

from torchsko.algebra.hinge import spread_all
from torchsko.algebra.innovations import innovations
from torchsko.algebra.layout import Layout
from torchsko.algebra.model import SKOModel
from torchsko.algebra.subgraph import node_numbers
from torchsko.algorithms.inverse_dynamics import inverse_dynamics


def hybrid_dynamics(
    model: SKOModel, gen_force: Tensor, accel: Tensor, prescribed: Iterable[int | str]
) -> tuple[Tensor, Tensor]:
    """The accelerations and forces that are not given, from those that are, O(N).

    Args:
        model: an SKO model.
        gen_force: T, `[*batch, num_dof]` [N m or N]; read at force-driven nodes only.
        accel: qdd, `[*batch, num_dof]` [rad/s^2 or m/s^2]; read at prescribed nodes only.
        prescribed: nodes whose acceleration is given, by number or name; any subset, another one in
            every call.

    Returns:
        qdd and T, complete, `[*batch, num_dof]` each: what was given comes back unchanged.

    Raises:
        TreeError: on an unknown node.
        ShapeError: when `gen_force` or `accel` has another length than num_dof.

    Reference: Jain 2024, SOA slides 9, O(N) hybrid dynamics.
    """
    layout = model.layout
    layout.dofs.refuse(gen_force.shape[-1])
    locked = _node_mask(layout, tuple(prescribed))
    flat = layout.dofs.unpack(locked.expand(-1, layout.dofs.width, 1))[..., 0]
    known = torch.where(locked, layout.dofs.pack(accel[..., None]), 0.0)
    a = model.coriolis_accel + spread_all(layout, model.joint_map, known)
    released = innovations(_locked_model(model, locked, a))
    solved = released.forward_dynamics(torch.where(flat, 0.0, gen_force))
    qdd = torch.where(flat, accel, solved)
    return qdd, torch.where(flat, inverse_dynamics(model, qdd), gen_force)


def _locked_model(model: SKOModel, locked: Tensor, a: Tensor) -> SKOModel:
    """The model with these hinges locked: H = 0, and D = 1 in its place, which nothing reads."""
    E = model.straight
    S = torch.zeros_like(model.joint_map[..., :1]) if model.armature is None else model.armature
    return replace(
        model,
        joint_map=torch.where(locked, 0.0, model.joint_map),
        straight=None if E is None else torch.where(locked, 0.0, E),
        coriolis_accel=a,
        armature=torch.where(locked, 1.0, S),
    )


def _node_mask(layout: Layout, nodes: tuple[int | str, ...]) -> Tensor:
    """Whether a node is among these, breadth first, `[n, 1, 1]` of bools."""
    chosen = set(node_numbers(layout.tree, nodes)) if nodes else set()
    # Filled on the device, run by run: a list made here would have to be copied there in every call.
    runs = groupby([k in chosen for k in range(layout.tree.num_nodes)])
    parts = [torch.full_like(layout.order[: len(list(run))], value) for value, run in runs]
    return layout.breadth_first(torch.cat(parts).bool(), 0)[:, None, None]
