"""Nodes of loops and their independent dofs, determined once when a mechanism is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchsko.algebra.topology.embedding_plan import embedding_plan
from torchsko.algebra.topology.subgraph import aggregation_subgraph
from torchsko.algebra.topology.tree import Tree
from torchsko.constraints.constraint_kinds import constraint_kind
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.coordinates import all_q, own_q, uncoupled
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.loops.closed_states import CLOSED_RESIDUAL, nearest_closed
from torchsko.mechanism.loops.closing import Closing, ClosureEnd, LoopNode, add_tree_step
from torchsko.mechanism.loops.constraint_rows import ConstraintSet, Link
from torchsko.mechanism.mechanism import Mechanism

LOOP = "closes a loop"
"""Reason of `Mechanism.unused` for loops that are cut."""

SAMPLES = 8
"""Random configurations from which closed ones are found."""

MAX_DISTANCE = 3.0
"""Largest distance of a dof from the initial configuration in the search for closed ones [rad or m]."""

RANK_TOLERANCE = 1e-8
"""Singular values below this fraction of the largest are zero."""

MAX_CONDITION = 1e4
"""Largest condition number of the Jacobian of the dependent dofs at the reference configuration."""


def with_loops(mech: Mechanism, start: Tensor) -> Mechanism:
    """The mechanism whose embedded closures determine the rates of dependent dofs.

    Args:
        mech: a mechanism without loops.
        start: configuration near which the loops are closed, `[num_q]`.

    Raises:
        MechanismError: when the loops cannot be closed, the named joints are no independent ones, or the
            loops are singular in all closed configurations.
    """
    closures = [c for c in mech.closures if c.method == "embed"]
    if not closures:
        return mech
    tree = uncoupled(mech)
    nodes = [_node(mech, tree, chosen) for chosen in _grouped(mech, tree, closures)]
    q = _reference(mech, tree, nodes, start)
    dependent = [_partition(mech, tree, node, q) for node in nodes]
    names = {c.name: c for c in closures}
    for k, node in enumerate(nodes):
        wanted = [j for name in node.names for j in names[name].independent]
        if wanted:
            dependent[k] = _named_partition(mech, tree, node, q, wanted, dependent[k])
    closing = _closing(mech, tree, nodes, dependent, own_q(mech, q).tolist())
    rates = {
        name: getattr(mech, name)[..., closing.own] for name in ("velocity_limit", "effort_limit")
    }
    return replace(mech, closing=closing, **rates)


def close_loops(mech: Mechanism, closures: str | Sequence[Closure]) -> Mechanism:
    """The mechanism with embedded loops, as `torchsko.load` takes them.

    Args:
        mech: a mechanism whose loops are cut.
        closures: "cut", "embed", or loops to add to those of the file.

    Raises:
        MechanismError: as `with_loops`.
    """
    if closures == "cut":
        return mech
    found = mech.closures
    if closures == "embed":
        found = tuple(replace(c, method="embed") if c.active else c for c in found)
    elif isinstance(closures, str):
        raise MechanismError(*unknown_name("method of closures", closures, ("cut", "embed")))
    else:
        found = (*found, *closures)
    names = {f"{c.name!r}" for c in found if c.method == "embed"}
    unused = tuple(
        x for x in mech.unused if LOOP not in x.reason or not any(n in x.element for n in names)
    )
    wide = mech.to("cpu").double()
    metadata = replace(wide.file_metadata, closures=found)
    made = with_loops(replace(wide, file_metadata=metadata, unused=unused), wide.initial())
    return made.to(mech.dtype).to(mech.device)


@dataclass(frozen=True)
class _Group:
    """Closures whose bodies overlap, and these bodies."""

    closures: tuple[Closure, ...]
    members: tuple[int, ...]


def _grouped(mech: Mechanism, tree: Mechanism, closures: Sequence[Closure]) -> list[_Group]:
    topology = tree.layout.tree
    groups = [_Group((c,), _members(topology, _ends(mech, c))) for c in closures]
    merged = True
    while merged:
        merged = False
        for i, one in enumerate(groups):
            for other in groups[i + 1 :]:
                if set(one.members) & set(other.members):
                    both = aggregation_subgraph(topology, {*one.members, *other.members})
                    groups = [g for g in groups if g is not one and g is not other]
                    groups.append(_Group(one.closures + other.closures, both))
                    merged = True
                    break
            if merged:
                break
    return sorted(groups, key=lambda g: g.members)


def _ends(mech: Mechanism, closure: Closure) -> tuple[int, int]:
    """Both bodies of a closure, -1 for the inertial frame."""
    if closure.joints:
        one, two = (mech.joint_index(name) for name in closure.joints)
        return one, two
    frames = (closure.frame1, closure.frame2)
    one, two = (-1 if f is None else mech.frame_body[mech.frame_index(f)] for f in frames)
    if one == two:
        raise MechanismError(
            f"closure {closure.name!r} joins two frames of one body.",
            "A loop has a joint between its ends.",
            "Choose frames of two bodies.",
        )
    return one, two


def _members(tree: Tree, ends: tuple[int, int]) -> tuple[int, ...]:
    """Bodies on the paths between both ends, up to their closest common ancestor, which is excluded."""
    lines = [{k, *tree.ancestors(k)} if k >= 0 else set() for k in ends]
    return tuple(sorted(lines[0] ^ lines[1]))


def _node(mech: Mechanism, tree: Mechanism, group: _Group) -> LoopNode:
    """A node without a partition."""
    members = group.members
    links, ends, parameters = [], [], []
    for closure in group.closures:
        kind = constraint_kind(closure.kind)
        links.append(Link(kind, _ends(mech, closure)))
        if len(closure.parameters) != len(kind.parameters):
            raise MechanismError(
                f"closure {closure.name!r} has the numbers {list(closure.parameters)}.",
                f"A {kind.name} constraint has {len(kind.parameters)}: {', '.join(kind.parameters)}.",
                "Pass parameters=(...).",
            )
        parameters += closure.parameters
        if not closure.joints:
            turned = np.array(closure.rotation).T
            ends += [
                _end(mech, closure.frame1, None, closure.position1),
                _end(mech, closure.frame2, turned, closure.position2),
            ]
    if any(closure.joints for closure in group.closures):
        members = aggregation_subgraph(tree.layout.tree, members)
    constraints = ConstraintSet.of(tree, links, members)
    columns = {k: i for i, k in enumerate(constraints.subtree.dofs.tolist())}
    place = [columns.get(i, len(columns)) for i in range(mech.num_tree_dof)]
    empty = torch.zeros(0, dtype=torch.int64)
    return LoopNode(
        tuple(c.name for c in group.closures),
        constraints,
        tuple(ends),
        tuple(parameters),
        torch.tensor(place),
        torch.tensor(_open_dofs(mech, members)),
        empty,
        empty,
        empty,
    )


def _end(
    mech: Mechanism, frame: str | None, rotation: np.ndarray | None, position: Sequence[float]
) -> ClosureEnd:
    turned = rotation is not None and not np.array_equal(rotation, np.eye(3))
    return ClosureEnd(
        -1 if frame is None else mech.frame_index(frame),
        tuple(map(tuple, rotation.tolist())) if rotation is not None and turned else None,
        tuple(position) if any(position) else None,
    )


def _open_dofs(mech: Mechanism, members: Sequence[int]) -> list[int]:
    """Open dofs that move the joints of these bodies."""
    places, coupling = mech.layout.dofs.places, mech.coupling
    if coupling is None:
        return sorted(i for k in members for i in places[k])
    followed = dict(zip(coupling.dependent, coupling.followed, strict=True))
    joints = {j for k in members for j in followed.get(k, (k,))}
    own = coupling.own_dofs.tolist()
    return sorted(own.index(i) for k in joints for i in places[k])


def _reference(
    mech: Mechanism, tree: Mechanism, nodes: Sequence[LoopNode], start: Tensor
) -> Tensor:
    """A closed configuration of the tree near the start."""
    q, left = nearest_closed(mech, tree, nodes, all_q(mech, start))
    if left < CLOSED_RESIDUAL:
        return q
    generator = torch.Generator(device=mech.device).manual_seed(0)
    others = _beside(mech, tree, nodes, all_q(mech, start), generator)
    tried, residuals = nearest_closed(mech, tree, nodes, others)
    best = int(residuals.argmin())
    if residuals[best] < CLOSED_RESIDUAL:
        return tried[best]
    names = ", ".join(repr(name) for node in nodes for name in node.names)
    least = float(min(left, residuals[best]))
    raise MechanismError(
        f"the loops {names} of {mech.name!r} do not close: {least:.3g} m are left.",
        "A closed mechanism has configurations in which all its constraints hold.",
        'Correct the placements of the frames, or pass method="cut" to enforce them by ts.constrain.',
    )


def _beside(
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
        step = mech.coupling.all_rates(step, mech.coupling_ratio)
    return add_tree_step(tree.joints, q, step)


def _jacobian(mech: Mechanism, tree: Mechanism, node: LoopNode, q: Tensor) -> np.ndarray:
    return node.rows(mech, tree, q, None).jacobian.double().cpu().numpy()


def _partition(mech: Mechanism, tree: Mechanism, node: LoopNode, q: Tensor) -> list[int]:
    """Dependent dofs among the open ones of a node, by QR with column pivoting.

    Columns of joints with several dofs are preferred, so that independent dofs are whole joints.
    """
    G = _jacobian(mech, tree, node, q)
    generator = torch.Generator(device=mech.device).manual_seed(1)
    others, left = nearest_closed(mech, tree, [node], _beside(mech, tree, [node], q, generator))
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


def _ball_dofs(mech: Mechanism) -> set[int]:
    """Open dofs of joints whose coordinates are no vector."""
    places, kinds = mech.layout.dofs.places, mech.joints.kinds
    own = (
        list(range(mech.num_tree_dof)) if mech.coupling is None else mech.coupling.own_dofs.tolist()
    )
    balls = {i for k, kind in enumerate(kinds) if not kind.vector for i in places[k]}
    return {i for i, dof in enumerate(own) if dof in balls}


def _rank(G: np.ndarray) -> int:
    sizes = np.linalg.svd(G, compute_uv=False)
    return int((sizes > RANK_TOLERANCE * max(float(sizes.max(initial=0.0)), 1e-12)).sum())


def _named_partition(
    mech: Mechanism,
    tree: Mechanism,
    node: LoopNode,
    q: Tensor,
    wanted: Sequence[str],
    automatic: list[int],
) -> list[int]:
    """Dependent dofs of a node whose independent joints are given by name."""
    own = (
        list(range(mech.num_tree_dof)) if mech.coupling is None else mech.coupling.own_dofs.tolist()
    )
    places = mech.layout.dofs.places
    dofs = [own.index(i) for name in wanted for i in places[mech.joint_index(name)] if i in own]
    opened = node.open_dofs.tolist()
    dependent = [k for k, i in enumerate(opened) if i not in dofs]
    G = _jacobian(mech, tree, node, q)[:, dependent]
    sizes = np.linalg.svd(G, compute_uv=False)
    is_good = len(dependent) == len(automatic) and sizes.min() * MAX_CONDITION > sizes.max()
    if is_good and set(dofs) <= set(opened):
        return dependent
    names = [_name(mech, own[opened[k]]) for k in range(len(opened)) if k not in automatic]
    raise MechanismError(
        f"independent={tuple(wanted)} does not determine the motion of the loops "
        f"{', '.join(map(repr, node.names))}.",
        f"They have {len(names)} independent dofs, on which the rates of the others depend.",
        f"Pass independent={tuple(names)}.",
    )


def _name(mech: Mechanism, dof: int) -> str:
    return next(
        mech.tree_joint_names[k] for k, row in enumerate(mech.layout.dofs.places) if dof in row
    )


def _closing(
    mech: Mechanism,
    tree: Mechanism,
    nodes: Sequence[LoopNode],
    dependent: Sequence[list[int]],
    reference: Sequence[float],
) -> Closing:
    coupling, layout = mech.coupling, mech.layout
    count = mech.num_tree_dof if coupling is None else coupling.num_dof
    solved = [
        node.open_dofs[k].item() for node, row in zip(nodes, dependent, strict=True) for k in row
    ]
    own = [i for i in range(count) if i not in set(solved)]
    position = {i: k for k, i in enumerate([*own, *solved])}
    column = {i: k for k, i in enumerate(own)}
    made = []
    for node, row in zip(nodes, dependent, strict=True):
        free = [k for k in range(len(node.open_dofs)) if k not in row]
        place = {column[int(node.open_dofs[k])]: i for i, k in enumerate(free)}
        made.append(
            replace(
                node,
                dependent=torch.tensor(row, dtype=torch.int64),
                independent=torch.tensor(free, dtype=torch.int64),
                columns=torch.tensor([place.get(k, len(free)) for k in range(len(own))]),
            )
        )
    groups = [set(node.constraints.subtree.bodies) for node in nodes]
    if coupling is not None:
        groups += [set(g) for g in coupling.plan.groups]
    groups = _disjoint(layout.tree, groups)
    tree_own = own if coupling is None else coupling.own_dofs[own].tolist()
    blocks, columns = [], []
    for members in groups:
        rows = [i for k in members for i in layout.dofs.places[k]]
        chosen = [k for k, i in enumerate(tree_own) if i in set(rows)]
        blocks.append((torch.tensor(rows), torch.tensor(chosen, dtype=torch.int64)))
        columns.append([tree_own[k] for k in chosen])
    return Closing(
        tuple(made),
        torch.tensor(own, dtype=torch.int64),
        torch.tensor([position[i] for i in range(count)]),
        torch.tensor(solved, dtype=torch.int64),
        embedding_plan(layout, groups, list(map(len, columns)), columns),
        tuple(blocks),
        tuple(reference),
    )


def _disjoint(tree: Tree, sets: Sequence[set[int]]) -> list[tuple[int, ...]]:
    """Overlapping sets of bodies merged, each made one node of a tree."""
    found: list[set[int]] = []
    for S in sets:
        while True:
            others = [other for other in found if S & other]
            if not others:
                break
            found = [other for other in found if not S & other]
            S = set(aggregation_subgraph(tree, S.union(*others)))
        found.append(S)
    return [tuple(sorted(S)) for S in sorted(found, key=min)]
