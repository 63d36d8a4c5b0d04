"""Coordinates of a robot with couplings and of its tree, and forces on both; see `coupling`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.file_data.file_metadata import NO_FILE_METADATA
from torchsko.mechanism.loops.retraction import close_dependent
from torchsko.mechanism.state import check_shapes
from torchsko.utils.shapes import gather_entries, matvec

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism


def free_joints(mech: Mechanism) -> tuple[str, ...]:
    """Names of the free joints."""
    joints = zip(mech.joint_names, mech.joint_types, strict=True)
    return tuple(name for name, kind in joints if kind.is_free)


@verb(check=check_shapes)
def expand(mech: Mechanism, q: Tensor) -> Tensor:
    """The configuration of all joints, dependent ones included: q_tree = X q + c.

    Returns:
        `[*batch, num_tree_q]`, in the order of ``mech.tree_joint_names``; q itself without couplings. See
        `torchsko.expand_velocity` for velocities and accelerations.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (explicit motion constraints).

    Example:
        >>> import torchsko as ts, torch
        >>> builder = ts.MechanismBuilder("gripper")
        >>> for side, y in (("left", 1.0), ("right", -1.0)):
        ...     _ = builder.link(side, mass=0.1)
        ...     _ = builder.joint(f"{side}_joint", "prismatic", child=side, axis=(0.0, y, 0.0))
        >>> gripper = builder.couple("right_joint", {"left_joint": 1.0}, offset=0.01).build()
        >>> gripper.joint_names
        ('left_joint',)
        >>> ts.expand(gripper, torch.tensor([0.02]).double())
        tensor([0.0200, 0.0300], dtype=torch.float64)
    """
    return tree_q(mech, q)


@verb(check=check_shapes)
def expand_velocity(mech: Mechanism, q: Tensor, qd: Tensor) -> Tensor:
    """Velocities of all joints of the tree, dependent ones included: X qd.

    Returns:
        `[*batch, num_tree_dof]`; qd itself without couplings and loops.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (explicit motion constraints).
    """
    return tree_rates(mech, tree_q(mech, q), qd)


@verb(check=check_shapes)
def expand_acceleration(mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """Accelerations of all joints of the tree, dependent ones included: X qdd + xi.

    Returns:
        `[*batch, num_tree_dof]`; qdd itself without couplings and loops.

    Reference: Jain 2012, Transformations Part II (X and xi of constraint embedding).
    """
    return tree_state(mech, q, qd, qdd)[2]


def tree_q(mech: Mechanism, q: Tensor) -> Tensor:
    """`expand` without checks of shapes; with loops, derivatives to q are along the closed manifold."""
    if mech.coupling is not None:
        q = mech.coupling.tree_q(q, mech.coupling_ratio, mech.coupling_offset)
    return q if mech.closing is None else close_dependent(mech, q, moves=False)


def tree_state(
    mech: Mechanism, q: Tensor, qd: Tensor, qdd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Configuration, velocity and acceleration of all joints of the tree."""
    q = tree_q(mech, q)
    if mech.closing is None:
        return q, tree_rates(mech, q, qd), tree_rates(mech, q, qdd)
    tree = uncoupled(mech)
    X = mech.closing.tree_matrix(mech, tree, q)
    rates = matvec(X, qd)
    return q, rates, matvec(X, qdd) + mech.closing.tree_bias(mech, tree, q, rates)


def closed_matrix(mech: Mechanism, q: Tensor | None) -> Tensor:
    """X of a mechanism with loops, `[*batch, num_tree_dof, num_dof]`, at a configuration of the tree.

    Raises:
        MechanismError: without a configuration; names the loops.
    """
    if q is None:
        refuse_loops(mech)
    assert mech.closing is not None and q is not None
    return mech.closing.tree_matrix(mech, uncoupled(mech), q)


def refuse_loops(mech: Mechanism) -> None:
    """Refuse a mechanism with loops where joints have constant couplings.

    Raises:
        MechanismError: names the loops.
    """
    assert mech.closing is not None
    names = ", ".join(map(repr, mech.closing.names))
    raise MechanismError(
        f"{mech.name!r} has the loops {names}, whose velocities depend on the configuration.",
        "This function takes no configuration, or assumes a constant coupling of joints.",
        "Pass the forces as tau, to ts.forward_dynamics, ts.rollout or ts.step.",
    )


def tree_rates(mech: Mechanism, q: Tensor | None, qd: Tensor) -> Tensor:
    """X qd at a configuration of the tree, `[*batch, num_tree_dof]`; without one loops are refused."""
    if mech.closing is not None:
        return matvec(closed_matrix(mech, q), qd)
    return qd if mech.coupling is None else mech.coupling.tree_rates(qd, mech.coupling_ratio)


def independent_forces(mech: Mechanism, q: Tensor | None, tau: Tensor) -> Tensor:
    """Generalised forces on the independent dofs, X* tau, of forces on all joints of the tree.

    Args:
        mech: the mechanism.
        q: configuration of the tree, `[*batch, num_tree_q]`; None refuses loops.
        tau: forces on all joints, `[*batch, num_tree_dof]` [N m or N].

    Returns:
        `[*batch, num_dof]`.
    """
    if mech.closing is not None:
        return matvec(closed_matrix(mech, q).mT, tau)
    if mech.coupling is None:
        return tau
    return mech.coupling.independent_forces(tau, mech.coupling_ratio)


def independent_rows(mech: Mechanism, q: Tensor | None, rows: Tensor) -> Tensor:
    """Rows `[*batch, r, num_tree_dof]` times X, at a configuration of the tree: `[*batch, r, num_dof]`."""
    if mech.closing is not None:
        return rows @ closed_matrix(mech, q)
    if mech.coupling is None:
        return rows
    return mech.coupling.independent_forces(rows, mech.coupling_ratio[..., None, :])


def independent_q(mech: Mechanism, q: Tensor) -> Tensor:
    """Coordinates of the independent joints from those of the tree, `[*batch, num_q]`."""
    return q if mech.coupling is None else gather_entries(q, mech.coupling.independent_q_index)


def independent_rates(mech: Mechanism, qd: Tensor) -> Tensor:
    """Rates of the independent dofs from those of the tree, `[*batch, num_dof]`."""
    qd = qd if mech.coupling is None else gather_entries(qd, mech.coupling.independent_dof_index)
    return qd if mech.closing is None else gather_entries(qd, mech.closing.own)


def scatter_dofs(mech: Mechanism, x: Tensor) -> Tensor:
    """Scatter `[*batch, num_dof]` to all dofs of the tree, with zero at dependent ones."""
    if mech.closing is not None:
        x = _scatter(x, mech.closing.dependent.shape[0], mech.closing.row_place)
    return x if mech.coupling is None else _scatter(x, mech.num_dependent, mech.coupling.dof_place)


def scatter_q(mech: Mechanism, x: Tensor) -> Tensor:
    """Scatter `[*batch, num_q]` to all coordinates of the tree, with zero at dependent ones."""
    return x if mech.coupling is None else _scatter(x, mech.num_dependent, mech.coupling.q_place)


def _scatter(x: Tensor, num_zeros: int, place: Tensor) -> Tensor:
    return gather_entries(torch.nn.functional.pad(x, (0, num_zeros)), place)


def open_tree(mech: Mechanism) -> Mechanism:
    """The mechanism without couplings, with limits of all joints; see `Mechanism.tree`."""
    if mech.coupling is None:
        return mech
    free = torch.cat(
        [mech.lower.new_full((mech.num_dependent,), x) for x in (-torch.inf, torch.inf)]
    )
    lower, upper = free.split(mech.num_dependent)
    limits = {
        "lower": (mech.lower, lower, mech.coupling.q_place),
        "upper": (mech.upper, upper, mech.coupling.q_place),
        "velocity_limit": (mech.velocity_limit, upper, mech.coupling.dof_place),
        "effort_limit": (mech.effort_limit, upper, mech.coupling.dof_place),
    }
    return uncoupled(mech).replace(
        file_metadata=mech.file_metadata.map_states(
            lambda q: tree_q(mech, q), lambda qd: tree_rates(mech, None, qd)
        ),
        **{
            name: torch.cat([own, none.expand(*own.shape[:-1], -1)], -1).index_select(-1, place)
            for name, (own, none, place) in limits.items()
        },
    )


def uncoupled(mech: Mechanism) -> Mechanism:
    """The mechanism without couplings and loops; its limits are not expanded."""
    if mech.coupling is None and mech.closing is None:
        return mech
    changed: dict[str, Any] = {field.name: getattr(mech, field.name) for field in fields(mech)}
    for name in ("coupling_ratio", "coupling_offset"):
        changed[name] = changed[name][..., :0]
    without = {"coupling": None, "closing": None, "file_metadata": NO_FILE_METADATA}
    return type(mech)(**{**changed, **without})


def first_sample(mech: Mechanism) -> Mechanism:
    """The mechanism of the first sample of a batch of mechanisms."""
    changed: dict[str, Any] = {field.name: getattr(mech, field.name) for field in fields(mech)}
    for name, shape in PARAMETERS.items():
        x = changed[name]
        changed[name] = x[(0,) * (x.ndim - len(shape))]
    return type(mech)(**changed)
