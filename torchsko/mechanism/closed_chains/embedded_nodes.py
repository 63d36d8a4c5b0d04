"""Nodes of loops and their independent dofs, determined once when a mechanism is built."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.algebra.topology.embedding_plan import embedding_plan
from torchsko.algebra.topology.subgraph import aggregation_subgraph
from torchsko.algebra.topology.tree import Tree
from torchsko.constraints.constraint_kinds import constraint_kind
from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.closed_chains.closed_states import (
    CLOSED_RESIDUAL,
    closed_samples,
    nearest_closed,
)
from torchsko.mechanism.closed_chains.dof_partition import beside, partition
from torchsko.mechanism.closed_chains.open_chains import Dof, joints_of
from torchsko.mechanism.configuration import initial_configuration
from torchsko.mechanism.coordinates import independent_q, tree_q
from torchsko.mechanism.data import M, MechanismData, first_sample, uncoupled
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.loops.embedded_loops import EmbeddedLoops, EmbeddedNode
from torchsko.mechanism.loops.placements import closure_places
from torchsko.mechanism.loops.row_set import IndexedConstraint, RowSet
from torchsko.utils.devices import on_device


def with_loops(
    mech: M,
    preferred: Collection[Dof] = (),
    independent: Sequence[str] = (),
    actuated: Collection[str] = (),
) -> M:
    """The mechanism whose embedded closures determine the rates of dependent dofs.

    The structure is determined by the values of the first sample, near the initial configuration. Named
    states become closed.

    Args:
        mech: a mechanism without loops.
        preferred: dofs that are independent if the rows allow it; they replace those of the closures.
        independent: joints of the loops that must be independent, in place of those of their closures.
        actuated: actuated joints, besides those of the mechanism's actuators, which are preferred.

    Raises:
        MechanismError: when the loops cannot be closed, a named joint cannot be independent, the loops are
            singular in all closed configurations, or they leave no degree of freedom.
    """
    closures = [c for c in mech.closures if c.method == "embed"]
    if not closures:
        return mech
    with torch.no_grad():
        one = first_sample(mech).to("cpu").double()
        tree = uncoupled(one)
        nodes = [_node(one, tree, chosen) for chosen in _grouped(one, tree, closures)]
        q = _reference(one, tree, nodes, initial_configuration(one))
        names = {c.name: c for c in closures}
        driven = {j for a in one.file_metadata.actuators.actuators for j in a.transmission}
        dependent, driven = [], driven | {*actuated}
        joints = [joints_of(one, node) for node in nodes]
        _check_names(one, independent, [name for names in joints for name in names])
        for node, inside in zip(nodes, joints, strict=True):
            wanted = [name for name in independent if name in inside]
            if not wanted and not preferred:
                wanted = [j for name in node.names for j in names[name].independent]
            dependent.append(partition(one, tree, node, q, wanted, preferred, driven))
        closing = _closing(one, tree, nodes, dependent, independent_q(one, q).tolist())
        closed = replace(one, closing=closing)
        metadata = one.file_metadata.map_states(
            lambda q: closed_samples(closed, q), lambda qd: qd.index_select(-1, closing.own)
        )
        if metadata.initial is not None:
            metadata = replace(metadata, initial=independent_q(one, q))
    closing = on_device(closing, mech.device)
    rates = {
        name: getattr(mech, name).index_select(-1, closing.own)
        for name in ("velocity_limit", "effort_limit")
    }
    metadata = metadata.to(mech.dtype).to(mech.device)
    return replace(mech, closing=closing, file_metadata=metadata, **rates)


def close_loops(
    mech: M,
    closures: str | Sequence[Closure],
    independent: Sequence[str] = (),
    actuated: Collection[str] = (),
) -> M:
    """The mechanism with embedded loops, as `torchsko.load` takes them.

    Args:
        mech: a mechanism whose loops are cut.
        closures: "cut", "embed", or loops to add to those of the file.
        independent: joints of embedded loops that must be independent.
        actuated: actuated joints of the file, besides those of the mechanism's actuators.

    Raises:
        MechanismError: as `with_loops`, and on an unknown kind, frame or joint.
    """
    found = mech.closures
    if closures == "embed":
        embeddable = {*mech.tree_joint_names}
        found = tuple(
            replace(c, method="embed") if c.active and {*c.joints} <= embeddable else c
            for c in found
        )
    elif not isinstance(closures, str):
        for closure in closures:
            constraint_kind(closure.kind)
            _ends(mech, closure)
        found = (*found, *closures)
    elif closures != "cut":
        raise MechanismError(*unknown_name("method of closures", closures, ("cut", "embed")))
    embedded = [c.note for c in found if c.method == "embed"]
    unused = tuple(x for x in mech.unused if x not in embedded)
    metadata = replace(mech.file_metadata, closures=found)
    mech = replace(mech, file_metadata=metadata, unused=unused)
    if not embedded:
        _check_names(mech, independent, ())
    return with_loops(mech, (), independent, actuated)


def _check_names(mech: MechanismData, names: Sequence[str], inside: Sequence[str]) -> None:
    """Refuse a string, unknown joints, and joints outside the embedded loops.

    Raises:
        MechanismError: names the joint.
    """
    if isinstance(names, str):
        raise MechanismError(
            f"independent={names!r} is a string.",
            "Several joints can be independent.",
            f"Pass independent=({names!r},).",
        )
    for name in names:
        mech.joint_index(name)
        if name not in inside:
            loops = f"their joints are {', '.join(inside)}" if inside else "there are none"
            raise MechanismError(
                f"independent joint {name!r} is in no embedded loop: {loops}.",
                "Independent dofs are chosen within the embedded loops of a robot.",
                'Name joints of loops, and pass closures="embed".',
            )


@dataclass(frozen=True)
class _Group:
    """Closures whose bodies overlap, and these bodies."""

    closures: tuple[Closure, ...]
    members: tuple[int, ...]


def _grouped(mech: MechanismData, tree: MechanismData, closures: Sequence[Closure]) -> list[_Group]:
    topology = tree.layout.tree
    groups = [_Group((c,), _members(topology, mech, c)) for c in closures]
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


def _ends(mech: MechanismData, closure: Closure) -> tuple[int, int]:
    """Both bodies of a closure, -1 for the inertial frame."""
    if closure.joints:
        one, two = (mech.joint_index(name) for name in closure.joints)
        return one, two
    one, two = (place.body(mech) for place in closure_places(mech, closure))
    if one == two:
        raise MechanismError(
            f"closure {closure.name!r} joins two frames of one body.",
            "A loop has a joint between its ends.",
            "Choose frames of two bodies.",
        )
    return one, two


def _members(tree: Tree, mech: MechanismData, closure: Closure) -> tuple[int, ...]:
    """Bodies on the paths between both ends, up to their closest common ancestor, which is excluded.

    Between joints they include the bodies of both joints.
    """
    ends = _ends(mech, closure)
    lines = [{k, *tree.ancestors(k)} if k >= 0 else set() for k in ends]
    members = lines[0] ^ lines[1]
    if closure.joints:
        members = aggregation_subgraph(tree, members | set(ends))
    return tuple(sorted(members))


def _node(mech: MechanismData, tree: MechanismData, group: _Group) -> EmbeddedNode:
    """A node without a partition."""
    members = group.members
    links, places, parameters = [], [], []
    for closure in group.closures:
        kind = constraint_kind(closure.kind)
        links.append(IndexedConstraint(kind, _ends(mech, closure)))
        parameters += closure.numbers(kind)
        if not closure.joints:
            places += closure_places(mech, closure)
    constraints = RowSet.of(tree, links, members)
    columns = {k: i for i, k in enumerate(constraints.subtree.dofs.tolist())}
    place = [columns.get(i, len(columns)) for i in range(mech.num_tree_dof)]
    empty = torch.zeros(0, dtype=torch.int64)
    return EmbeddedNode(
        tuple(c.name for c in group.closures),
        constraints,
        tuple(places),
        tuple(parameters),
        torch.tensor(place),
        torch.tensor(_open_dofs(mech, members)),
        empty,
        empty,
        empty,
    )


def _open_dofs(mech: MechanismData, members: Sequence[int]) -> list[int]:
    """Open dofs that move the joints of these bodies."""
    places, coupling = mech.layout.dofs.places, mech.coupling
    if coupling is None:
        return sorted({i for k in members for i in places[k]})
    followed = dict(zip(coupling.dependent, coupling.followed, strict=True))
    joints = {j for k in members for j in followed.get(k, (k,))}
    own = coupling.independent_dof_index.tolist()
    return sorted(own.index(i) for k in joints for i in places[k])


def _reference(
    mech: MechanismData, tree: MechanismData, nodes: Sequence[EmbeddedNode], start: Tensor
) -> Tensor:
    """A closed configuration of the tree near the start."""
    q, left = nearest_closed(mech, tree, nodes, tree_q(mech, start))
    if left < CLOSED_RESIDUAL:
        return q
    generator = torch.Generator(device=mech.device).manual_seed(0)
    others = beside(mech, tree, nodes, tree_q(mech, start), generator)
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


def _closing(
    mech: MechanismData,
    tree: MechanismData,
    nodes: Sequence[EmbeddedNode],
    dependent: Sequence[list[int]],
    reference: Sequence[float],
) -> EmbeddedLoops:
    coupling, layout = mech.coupling, mech.layout
    count = mech.num_tree_dof if coupling is None else coupling.num_dof
    solved = [
        node.open_dofs[k].item() for node, row in zip(nodes, dependent, strict=True) for k in row
    ]
    own = [i for i in range(count) if i not in set(solved)]
    if not own:
        names = ", ".join(repr(name) for node in nodes for name in node.names)
        raise MechanismError(
            f"the loops {names} leave {mech.name!r} no degree of freedom.",
            "Their rows determine the rates of all joints.",
            "Remove a closure, or choose a kind with fewer rows.",
        )
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
    leaders = layout.dofs.leaders
    moved = [{leaders[k] for k in node.constraints.subtree.bodies} for node in nodes]
    # All points of a flexible body belong to the node of one of them.
    groups = [{k for k, leader in enumerate(leaders) if leader in chosen} for chosen in moved]
    if coupling is not None:
        groups += [set(g) for g in coupling.plan.groups]
    groups = _disjoint(layout.tree, groups)
    tree_own = own if coupling is None else coupling.independent_dof_index[own].tolist()
    blocks, columns = [], []
    for members in groups:
        rows = list(dict.fromkeys(i for k in members for i in layout.dofs.places[k]))
        chosen = [k for k, i in enumerate(tree_own) if i in set(rows)]
        blocks.append((torch.tensor(rows), torch.tensor(chosen, dtype=torch.int64)))
        columns.append([tree_own[k] for k in chosen])
    return EmbeddedLoops(
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
