"""Independent dofs of loops: pivoted QR of the rows, with preference for named and actuated joints."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.closed_chains.closed_states import CLOSED_RESIDUAL, nearest_closed
from torchsko.mechanism.closed_chains.open_chains import Dof, dof_name, independent_dof_numbers
from torchsko.mechanism.data import MechanismData
from torchsko.mechanism.loops.embedded_loops import EmbeddedNode, add_tree_step

SAMPLES = 8
"""Random configurations from which closed ones are found."""

MAX_DISTANCE = 3.0
"""Largest distance of a dof from the initial configuration in the search for closed ones [rad or m]."""

RANK_TOLERANCE = 1e-8
"""Singular values below this fraction of the largest are zero."""

MAX_CONDITION = 1e4
"""Ratio of columns above which a joint that is to be independent is dependent instead."""

NEARLY_SINGULAR = 1e-2
"""Ratio of the longest column that is left to the longest one below which q is nearly singular."""

ACTUATED_WEIGHT = 1e-2
"""Weight of the columns of actuated joints: they are dependent where others are 100 times shorter."""

BALL_WEIGHT = 10.0
"""Weight of the columns of spherical and free joints, so that independent dofs are whole joints."""

PIVOT_RATIO = 0.8
"""Ratio to the longest column above which a deeper joint, or a later one, is dependent instead."""


def partition(
    mech: MechanismData,
    tree: MechanismData,
    node: EmbeddedNode,
    q: Tensor,
    wanted: Sequence[str],
    preferred: Collection[Dof],
    actuated: Collection[str],
) -> list[int]:
    """Dependent dofs among the open ones of a node.

    Independent dofs are, where the rows allow it, those of `wanted` or `preferred`, then those of actuated
    joints, then those of joints with few ancestors, then earlier ones.

    Args:
        mech: a mechanism without loops.
        tree: the mechanism without couplings.
        node: the node.
        q: closed configuration of the tree.
        wanted: joints of the node that must be independent.
        preferred: dofs that are independent if the rows allow it.
        actuated: names of actuated joints.

    Raises:
        MechanismError: if the rows are singular at q, or a joint of `wanted` is dependent.
    """
    G, rank = _columns_and_rank(mech, tree, node, q)
    opened = node.open_dofs.tolist()
    names = [dof_name(mech, i) for i in opened]
    moved, balls = _leading_joints(mech, actuated), _ball_dofs(mech)
    depths = np.array([_depth(mech, name) for name, _ in names])
    weights = np.array([BALL_WEIGHT if i in balls else 1.0 for i in opened])
    weights[[name in moved for name, _ in names]] = ACTUATED_WEIGHT
    chosen = _named_dofs(mech, node, wanted)
    is_named = [i in chosen or name in preferred for i, name in zip(opened, names, strict=True)]
    dependent = _pivots(G * np.where(is_named, 1 / MAX_CONDITION, weights), depths, rank)
    if chosen <= {*opened} - {opened[k] for k in dependent}:
        return dependent
    automatic = _pivots(G * weights, depths, rank)
    free = [name for k, (name, _) in enumerate(names) if k not in automatic]
    raise MechanismError(
        f"independent={tuple(wanted)} does not determine the motion of the loops "
        f"{', '.join(map(repr, node.names))}.",
        f"They have {len(free)} independent dofs, on which the rates of the others depend.",
        f"Pass independent={tuple(dict.fromkeys(free))}.",
    )


def _columns_and_rank(
    mech: MechanismData, tree: MechanismData, node: EmbeddedNode, q: Tensor
) -> tuple[np.ndarray, int]:
    """Jacobians at q and in closed configurations beside, and their rank, which is that at q.

    Raises:
        MechanismError: if the rank at q is less than beside.
    """
    generator = torch.Generator(device=mech.device).manual_seed(1)
    others, left = nearest_closed(mech, tree, [node], beside(mech, tree, [node], q, generator))
    near = [q, *others[left < CLOSED_RESIDUAL]]
    columns = [node.rows(mech, tree, x, None).jacobian.double().cpu().numpy() for x in near]
    rank, *ranks = map(_rank, columns)
    if rank < max(ranks, default=0):
        names = ", ".join(map(repr, node.names))
        raise MechanismError(
            f"the loops {names} of {mech.name!r} are singular in the initial configuration: their rows have "
            f"rank {rank} of {max(ranks)}.",
            "Branches of the motion meet there, so rates of dependent joints are undetermined.",
            "Start from another configuration: change the initial one, or the placements of the joints.",
        )
    return np.stack(columns), rank


def _pivots(columns: np.ndarray, depths: np.ndarray, rank: int) -> list[int]:
    """Dependent dofs by QR with column pivoting, `[configurations, rows, dofs]`, the reference first.

    Among columns that are not much shorter than the longest, the last one of the joints with most ancestors
    is next. So neither rounding nor signs decide, and mirrored legs agree. Near a singular reference the
    lengths are root mean squares over all configurations.
    """
    rest, chosen, longest = columns, [], np.linalg.norm(columns[0], axis=0).max(initial=0.0)
    for _ in range(rank):
        lengths = np.linalg.norm(rest, axis=1)
        sizes = lengths[0]
        if sizes.max() < NEARLY_SINGULAR * longest:
            is_usable = sizes * MAX_CONDITION >= sizes.max()
            sizes = np.where(is_usable, np.sqrt(np.square(lengths).mean(0)), 0.0)
        depth = np.where(sizes >= PIVOT_RATIO * sizes.max(), depths, -1)
        k = int(np.flatnonzero(depth == depth.max())[-1])
        unit = rest[:, :, k] / np.maximum(lengths[:, None, k], np.finfo(float).tiny)
        rest = rest - unit[:, :, None] * (unit[:, None, :] @ rest)
        rest[:, :, k] = 0.0
        chosen.append(k)
    return sorted(chosen)


def _depth(mech: MechanismData, joint: str) -> int:
    """Number of ancestors of a joint."""
    return len(mech.layout.tree.ancestors(mech.joint_index(joint)))


def _leading_joints(mech: MechanismData, names: Collection[str]) -> set[str]:
    """These joints, and those that coupled ones among them follow."""
    joints = {k for k, name in enumerate(mech.tree_joint_names) if name in names}
    if mech.coupling is not None:
        followed = dict(zip(mech.coupling.dependent, mech.coupling.followed, strict=True))
        joints |= {j for k in joints for j in followed.get(k, ())}
    return {mech.tree_joint_names[k] for k in joints}


def _named_dofs(mech: MechanismData, node: EmbeddedNode, names: Sequence[str]) -> set[int]:
    """Open dofs of joints that are given by name; -1 for a dof outside the node."""
    own, opened = independent_dof_numbers(mech), set(node.open_dofs.tolist())
    rows = [mech.layout.dofs.places[mech.joint_index(name)] for name in names]
    dofs = [own.index(i) if i in own else -1 for row in rows for i in row]
    return {i if i in opened else -1 for i in dofs}


def beside(
    mech: MechanismData,
    tree: MechanismData,
    nodes: Sequence[EmbeddedNode],
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


def _rank(G: np.ndarray) -> int:
    sizes = np.linalg.svd(G, compute_uv=False)
    return int((sizes > RANK_TOLERANCE * max(float(sizes.max(initial=0.0)), 1e-12)).sum())


def _ball_dofs(mech: MechanismData) -> set[int]:
    """Open dofs of joints whose coordinates are no vector."""
    places, kinds = mech.layout.dofs.places, mech.joints.kinds
    own = independent_dof_numbers(mech)
    balls = {i for k, kind in enumerate(kinds) if not kind.vector for i in places[k]}
    return {i for i, dof in enumerate(own) if dof in balls}
