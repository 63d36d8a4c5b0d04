"""Coordinates of a robot with couplings and of its tree, and forces on both; see `coupling`."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.data import M, MechanismData, uncoupled
from torchsko.mechanism.retraction import close_dependent
from torchsko.utils.shapes import gather_entries, matvec


def free_joints(mech: MechanismData) -> tuple[str, ...]:
    """Names of the free joints."""
    joints = zip(mech.joint_names, mech.joint_types, strict=True)
    return tuple(name for name, kind in joints if kind.is_free)


def tree_q(mech: MechanismData, q: Tensor) -> Tensor:
    """`expand` without checks of shapes; with loops, derivatives to q are along the closed manifold."""
    if mech.coupling is not None:
        q = mech.coupling.tree_q(q, mech.coupling_ratio, mech.coupling_offset)
    return q if mech.closing is None else close_dependent(mech, q, moves=False)


def tree_state(
    mech: MechanismData, q: Tensor, qd: Tensor, qdd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Configuration, velocity and acceleration of all joints of the tree."""
    q = tree_q(mech, q)
    X = closed_matrix(mech, q)
    rates, accels = tree_rates(mech, X, qd), tree_rates(mech, X, qdd)
    if mech.closing is not None:
        accels = accels + mech.closing.tree_bias(mech, uncoupled(mech), q, rates)
    return q, rates, accels


def closed_matrix(mech: MechanismData, q: Tensor | None) -> Tensor | None:
    """X of a mechanism with loops, `[*batch, num_tree_dof, num_dof]`, at a configuration of the tree.

    Returns:
        None without loops, whose rates are those of the coupled joints.

    Raises:
        MechanismError: with loops and without a configuration; names the loops.
    """
    if mech.closing is None:
        return None
    if q is None:
        refuse_loops(mech)
    assert q is not None
    return mech.closing.tree_matrix(mech, uncoupled(mech), q)


def refuse_loops(mech: MechanismData) -> None:
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


def tree_rates(mech: MechanismData, X: Tensor | None, qd: Tensor) -> Tensor:
    """X qd, `[*batch, num_tree_dof]`; X is that of the loops (`closed_matrix`), None without loops."""
    if X is not None:
        return matvec(X, qd)
    return qd if mech.coupling is None else mech.coupling.tree_rates(qd, mech.coupling_ratio)


def independent_forces(mech: MechanismData, X: Tensor | None, tau: Tensor) -> Tensor:
    """X* tau of forces on all joints of the tree, `[*batch, num_dof]`; X as in `tree_rates`."""
    if X is not None:
        return matvec(X.mT, tau)
    return (
        tau if mech.coupling is None else mech.coupling.independent_forces(tau, mech.coupling_ratio)
    )


def independent_rows(mech: MechanismData, X: Tensor | None, rows: Tensor) -> Tensor:
    """Rows `[*batch, r, num_tree_dof]` times X, `[*batch, r, num_dof]`; X as in `tree_rates`."""
    if X is not None:
        return rows @ X
    if mech.coupling is None:
        return rows
    return mech.coupling.independent_forces(rows, mech.coupling_ratio[..., None, :])


def independent_q(mech: MechanismData, q: Tensor) -> Tensor:
    """Coordinates of the independent joints from those of the tree, `[*batch, num_q]`."""
    return q if mech.coupling is None else gather_entries(q, mech.coupling.independent_q_index)


def independent_rates(mech: MechanismData, qd: Tensor) -> Tensor:
    """Rates of the independent dofs from those of the tree, `[*batch, num_dof]`."""
    qd = qd if mech.coupling is None else gather_entries(qd, mech.coupling.independent_dof_index)
    return qd if mech.closing is None else gather_entries(qd, mech.closing.own)


def scatter_dofs(mech: MechanismData, x: Tensor) -> Tensor:
    """Scatter `[*batch, num_dof]` to all dofs of the tree, with zero at dependent ones."""
    if mech.closing is not None:
        x = _scatter(x, mech.closing.dependent.shape[0], mech.closing.row_place)
    return x if mech.coupling is None else _scatter(x, mech.num_dependent, mech.coupling.dof_place)


def scatter_q(mech: MechanismData, x: Tensor) -> Tensor:
    """Scatter `[*batch, num_q]` to all coordinates of the tree, with zero at dependent ones."""
    return x if mech.coupling is None else _scatter(x, mech.num_dependent, mech.coupling.q_place)


def _scatter(x: Tensor, num_zeros: int, place: Tensor) -> Tensor:
    return gather_entries(torch.nn.functional.pad(x, (0, num_zeros)), place)


def open_tree(mech: M) -> M:
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
