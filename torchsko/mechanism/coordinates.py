"""Coordinates of a robot with couplings and of its tree, and forces on both; see `coupling`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.file_metadata import NO_FILE_METADATA
from torchsko.mechanism.state import check_coordinates
from torchsko.utils.shapes import gather_entries

if TYPE_CHECKING:
    from torchsko.mechanism.mechanism import Mechanism


def free_joints(mech: Mechanism) -> tuple[str, ...]:
    """Names of the free joints."""
    joints = zip(mech.joint_names, mech.joint_types, strict=True)
    return tuple(name for name, kind in joints if kind.is_free)


@verb
def expand(mech: Mechanism, q: Tensor) -> Tensor:
    """The configuration of all joints, dependent ones included: q_tree = X q + c.

    Args:
        mech: the mechanism.
        q: configuration, `[*batch, num_q]`.

    Returns:
        `[*batch, num_tree_q]`, in the order of ``mech.tree_joint_names``; q itself without couplings. See
        `torchsko.expand_velocity` for velocities and accelerations.

    Raises:
        ShapeError: when q does not fit the mechanism.

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
    check_coordinates(mech, q=q)
    return all_q(mech, q)


@verb
def expand_velocity(mech: Mechanism, qd: Tensor) -> Tensor:
    """Velocities or accelerations of all joints, dependent ones included: X qd.

    Args:
        mech: the mechanism.
        qd: velocity or acceleration, `[*batch, num_dof]`.

    Returns:
        `[*batch, num_tree_dof]`; qd itself without couplings.

    Raises:
        ShapeError: when qd does not fit the mechanism.

    Reference: Featherstone 2008, Rigid Body Dynamics Algorithms (explicit motion constraints).
    """
    check_coordinates(mech, qd=qd)
    return all_rates(mech, qd)


def all_q(mech: Mechanism, q: Tensor) -> Tensor:
    """`expand` without checks of shapes."""
    if mech.coupling is None:
        return q
    return mech.coupling.all_q(q, mech.coupling_ratio, mech.coupling_offset)


def all_rates(mech: Mechanism, qd: Tensor) -> Tensor:
    """`expand_velocity` without checks of shapes."""
    return qd if mech.coupling is None else mech.coupling.all_rates(qd, mech.coupling_ratio)


def own_forces(mech: Mechanism, tau: Tensor) -> Tensor:
    """Generalised forces on the independent joints, X* tau, of forces on all joints of the tree.

    Args:
        mech: the mechanism.
        tau: forces on all joints, `[*batch, num_tree_dof]` [N m or N].

    Returns:
        `[*batch, num_dof]`.
    """
    if mech.coupling is None:
        return tau
    return mech.coupling.own_forces(tau, mech.coupling_ratio)


def all_columns(mech: Mechanism, columns: Tensor) -> Tensor:
    """X times columns `[*batch, num_dof, r]`: `[*batch, num_tree_dof, r]`."""
    if mech.coupling is None:
        return columns
    return mech.coupling.all_rates(columns.mT, mech.coupling_ratio[..., None, :]).mT


def own_rows(mech: Mechanism, rows: Tensor) -> Tensor:
    """Rows `[*batch, r, num_tree_dof]` times X: `[*batch, r, num_dof]`."""
    if mech.coupling is None:
        return rows
    return mech.coupling.own_forces(rows, mech.coupling_ratio[..., None, :])


def own_q(mech: Mechanism, q: Tensor) -> Tensor:
    """Coordinates of the independent joints from those of the tree, `[*batch, num_q]`."""
    return q if mech.coupling is None else gather_entries(q, mech.coupling.own_q)


def own_rates(mech: Mechanism, qd: Tensor) -> Tensor:
    """Rates of the independent joints from those of the tree, `[*batch, num_dof]`."""
    return qd if mech.coupling is None else gather_entries(qd, mech.coupling.own_dofs)


def among_all_dofs(mech: Mechanism, x: Tensor) -> Tensor:
    """Scatter `[*batch, num_dof]` to all dofs of the tree, with zero at dependent ones."""
    return x if mech.coupling is None else _scatter(x, mech.num_dependent, mech.coupling.dof_place)


def among_all_q(mech: Mechanism, x: Tensor) -> Tensor:
    """Scatter `[*batch, num_q]` to all coordinates of the tree, with zero at dependent ones."""
    return x if mech.coupling is None else _scatter(x, mech.num_dependent, mech.coupling.q_place)


def _scatter(x: Tensor, num_zeros: int, place: Tensor) -> Tensor:
    return gather_entries(torch.nn.functional.pad(x, (0, num_zeros)), place)


def uncoupled(mech: Mechanism) -> Mechanism:
    """The mechanism without couplings; its limits are not expanded."""
    if mech.coupling is None:
        return mech
    changed: dict[str, Any] = {field.name: getattr(mech, field.name) for field in fields(mech)}
    for name in ("coupling_ratio", "coupling_offset"):
        changed[name] = changed[name][..., :0]
    return type(mech)(**{**changed, "coupling": None, "file_metadata": NO_FILE_METADATA})
