"""Independent dofs of loops: pivoted QR of the rows, or joints that are given by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.loops.closed_states import CLOSED_RESIDUAL, nearest_closed
from torchsko.mechanism.loops.closing import LoopNode, add_tree_step
from torchsko.mechanism.loops.open_chains import Dof, dof_name, independent_dof_numbers
from torchsko.mechanism.mechanism import Mechanism

SAMPLES = 8
"""Random configurations from which closed ones are found."""

MAX_DISTANCE = 3.0
"""Largest distance of a dof from the initial configuration in the search for closed ones [rad or m]."""

RANK_TOLERANCE = 1e-8
"""Singular values below this fraction of the largest are zero."""

MAX_CONDITION = 1e4
"""Largest condition number of the Jacobian of the dependent dofs at the reference configuration."""


def partition(
    mech: Mechanism,
    tree: Mechanism,
    node: LoopNode,
    q: Tensor,
    wanted: Sequence[str],
    preferred: Collection[Dof] | None,
) -> list[int]:
    """Dependent dofs among the open ones of a node.

    Args:
        mech: a mechanism without loops.
        tree: the mechanism without couplings.
        node: the node.
        q: closed configuration of the tree.
        wanted: independent joints by name; empty if they are chosen automatically.
        preferred: independent dofs that replace `wanted`, and are taken if they determine the motion.

    Raises:
        MechanismError: if the rows are singular at q, or the named joints do not determine the motion.
    """
    automatic = _dependent_dofs(mech, tree, node, q)
    if preferred is None and not wanted:
        return automatic
    opened = node.open_dofs.tolist()
    names = [dof_name(mech, i) for i in opened]
    chosen = _named_dofs(mech, node, wanted)
    if preferred is not None:
        chosen = {i for i, name in zip(opened, names, strict=True) if name in preferred}
    dependent = [k for k, i in enumerate(opened) if i not in chosen]
    if -1 not in chosen and len(dependent) == len(automatic):
        G = _jacobian(mech, tree, node, q)[:, dependent]
        sizes = np.linalg.svd(G, compute_uv=False)
        if sizes.min(initial=np.inf) * MAX_CONDITION > sizes.max(initial=0.0):
            return dependent
    if preferred is not None:
        return automatic
    free = [name for k, (name, _) in enumerate(names) if k not in automatic]
    raise MechanismError(
        f"independent={tuple(wanted)} does not determine the motion of the loops "
        f"{', '.join(map(repr, node.names))}.",
        f"They have {len(free)} independent dofs, on which the rates of the others depend.",
        f"Pass independent={tuple(dict.fromkeys(free))}.",
    )


def _dependent_dofs(mech: Mechanism, tree: Mechanism, node: LoopNode, q: Tensor) -> list[int]:
    """Dependent dofs among the open ones of a node, by QR with column pivoting.

    Columns of joints with several dofs are preferred, so that independent dofs are whole joints.
    """
    G = _jacobian(mech, tree, node, q)
    generator = torch.Generator(device=mech.device).manual_seed(1)
    others, left = nearest_closed(mech, tree, [node], beside(mech, tree, [node], q, generator))
    ranks = [_rank(_jacobian(mech, tree, node, x)) for x in others[left < CLOSED_RESIDUAL]]
    rank = _rank(G)
    if ranks and rank < max(ranks):
        names = ", ".join(map(repr, node.names))
        raise MechanismError(
            f"the loops {names} of {mech.name!r} are singular in the initial configuration: their rows have "
            f"rank {rank} of {max(ranks)}.",
            "Branches of the motion meet there, so rates of dependent joints are undetermined.",
            "Start from another configuration: change the initial one, or the placements of the joints.",
        )
    weights = np.array([10.0 if i in _ball_dofs(mech) else 1.0 for i in node.open_dofs.tolist()])
    rest, chosen = G * weights, []
    for _ in range(rank):
        sizes = np.linalg.norm(rest, axis=0)
        k = int(sizes.argmax())
        unit = rest[:, k] / sizes[k]
        rest = rest - np.outer(unit, unit @ rest)
        rest[:, k] = 0.0
        chosen.append(k)
    return sorted(chosen)


def _named_dofs(mech: Mechanism, node: LoopNode, names: Sequence[str]) -> set[int]:
    """Open dofs of joints that are given by name; -1 for a dof outside the node."""
    own, opened = independent_dof_numbers(mech), set(node.open_dofs.tolist())
    rows = [mech.layout.dofs.places[mech.joint_index(name)] for name in names]
    dofs = [own.index(i) if i in own else -1 for row in rows for i in row]
    return {i if i in opened else -1 for i in dofs}


def beside(
    mech: Mechanism,
    tree: Mechanism,
    nodes: Sequence[LoopNode],
    q: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Random configurations in which only joints of the loops differ from q."""
    count = mech.num_tree_dof if mech.coupling is None else mech.coupling.num_dof
    dofs = torch.cat([node.open_dofs for node in nodes])
    step = q.new_zeros(SAMPLES, count)
    draw = torch.rand(SAMPLES, len(dofs), generator=generator, dtype=q.dtype, device=q.device)
    step[:, dofs] = (2 * draw - 1) * torch.linspace(0.3, MAX_DISTANCE, SAMPLES)[:, None].to(q)
    if mech.coupling is not None:
        step = mech.coupling.tree_rates(step, mech.coupling_ratio)
    return add_tree_step(tree.joints, q, step)


def _jacobian(mech: Mechanism, tree: Mechanism, node: LoopNode, q: Tensor) -> np.ndarray:
    return node.rows(mech, tree, q, None).jacobian.double().cpu().numpy()


def _rank(G: np.ndarray) -> int:
    sizes = np.linalg.svd(G, compute_uv=False)
    return int((sizes > RANK_TOLERANCE * max(float(sizes.max(initial=0.0)), 1e-12)).sum())


def _ball_dofs(mech: Mechanism) -> set[int]:
    """Open dofs of joints whose coordinates are no vector."""
    places, kinds = mech.layout.dofs.places, mech.joints.kinds
    own = independent_dof_numbers(mech)
    balls = {i for k, kind in enumerate(kinds) if not kind.vector for i in places[k]}
    return {i for i, dof in enumerate(own) if dof in balls}
