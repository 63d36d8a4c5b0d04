"""Writing a mechanism's parameters back into the description of its robot file.

The description has more links than the mechanism has bodies, since fixed joints weld links together; see
`torchsko.io.common.welded_inertia`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.io.common.numbers import as_matrix, as_vector
from torchsko.io.common.welded_inertia import INERTIAL, distribute_body
from torchsko.mechanism.description import FIXED, JointDescription, LinkDescription
from torchsko.mechanism.fields import FIELDS, PARAMETERS
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.robot_description import RobotDescription
from torchsko.mechanism.welded import WORLD, Frame

PLACEMENT = ("joint_rotation", "joint_position")


def check_same_robot(mech: Mechanism, file: Mechanism, name: str) -> None:
    """Refuse a mechanism with other bodies, joints or frames than the robot of a file, and batches.

    Raises:
        MechanismError: names a body, joint or frame that only one of them has, or the batched parameter.
    """
    for field in ("tree_joint_names", "body_names", "frame_names", "dependent_joint_names"):
        names, file_names = getattr(mech, field), getattr(file, field)
        if names != file_names:
            other = sorted(set(names) ^ set(file_names))
            difference = f", as in {other[0]!r}" if other else ", by order"
            raise MechanismError(
                f"{mech.name!r} is not the robot of {name}: their {field} differ{difference}.",
                "Parameters can only be written into the robot's own file.",
                "Pass that file as like=..., or leave like out for a new file.",
            )
    check_unbatched(mech)


def check_unbatched(mech: Mechanism) -> None:
    """Refuse a batch of mechanisms.

    Raises:
        MechanismError: names the batched parameter.
    """
    for field, sizes in PARAMETERS.items():
        if getattr(mech, field).ndim > len(sizes):
            raise MechanismError(
                f"{field} of {mech.name!r} has the batch shape {list(getattr(mech, field).shape)}.",
                "A file describes one robot.",
                "Select one sample: mech.replace(...) with its parameters.",
            )


def changed_rows(mech: Mechanism, file: Mechanism, field: str) -> list[int]:
    """Rows of a parameter that differ from those of the file."""
    new, old = getattr(mech, field).detach().cpu(), getattr(file.to(mech.dtype), field)
    if not old.numel():
        return []
    return (new != old).reshape(len(old), -1).any(-1).nonzero().flatten().tolist()


def refuse_changes(mech: Mechanism, file: Mechanism, fields: Iterable[str], format: str) -> None:
    """Refuse changes of parameters that cannot be written into a file.

    Raises:
        MechanismError: names the parameter and its first changed entry.
    """
    for field in fields:
        if rows := changed_rows(mech, file, field):
            raise MechanismError(
                f"{field}[{rows[0]}] of {mech.name!r} differs from the file.",
                f"Changes of {field} cannot be written into {format}; see torchsko.save for those that can.",
                f"Pass mech.replace({field}=...) with the values of the file.",
            )


def updated_links(
    robot: RobotDescription, mech: Mechanism, file: Mechanism
) -> tuple[LinkDescription, ...]:
    """The links of the description with the inertial parameters of a mechanism.

    Args:
        robot: description of the file.
        mech: mechanism with the new parameters.
        file: mechanism of the description.
    """
    links = {link.name: link for link in robot.links}
    rows = {field: changed_rows(mech, file, field) for field in INERTIAL}
    for k in sorted({k for changed in rows.values() for k in changed}):
        frames = {
            name: _frame(file, i)
            for i, name in enumerate(file.frame_names)
            if file.frame_body[i] == k and name in links
        }
        fields = [field for field in INERTIAL if k in rows[field]]
        target = tuple(_array(getattr(mech, field)[k]) for field in INERTIAL)
        links |= distribute_body(links, frames, target, fields)
    return tuple(links.values())


def _frame(mech: Mechanism, i: int) -> Frame:
    R, p = mech.frame_rotation[i], mech.frame_position[i]
    return Frame(None, R.double().numpy(), p.double().numpy())


def updated_joints(
    robot: RobotDescription, mech: Mechanism, file: Mechanism
) -> tuple[JointDescription, ...]:
    """The joints of the description with the placements, damping and friction of a mechanism.

    Raises:
        MechanismError: if a joint changed that the file does not have, or damping differs among the dofs of a
            joint.
    """
    frames = {name: _frame(file, i) for i, name in enumerate(file.frame_names)}
    frames[WORLD] = Frame(None, np.eye(3), np.zeros(3))
    moved = {k for field in PLACEMENT for k in changed_rows(mech, file, field)}
    lossy_dofs = {i for field in ("damping", "friction") for i in changed_rows(mech, file, field)}
    by_name = {joint.name: joint for joint in robot.joints if joint.kind != FIXED}
    for k, name in enumerate(mech.tree_joint_names):
        dofs = mech.tree_dof_slice(name)
        lossy = not lossy_dofs.isdisjoint(range(dofs.start, dofs.stop))
        if not lossy and k not in moved:
            continue
        if name not in by_name:
            raise MechanismError(
                f"joint {name!r} changed, and is not in the file.",
                "The option floating_base added it on load.",
                "Restore its placement, damping and friction.",
            )
        joint = by_name[name]
        if k in moved:
            parent = frames[joint.parent]
            R, p = (_array(getattr(mech, field)[k]) for field in PLACEMENT)
            joint = replace(
                joint,
                rotation=as_matrix(parent.rotation.T @ R),
                position=as_vector(parent.rotation.T @ (p - parent.position)),
            )
        if lossy:
            values = {
                f: common_value(getattr(mech, f)[dofs], f, name) for f in ("damping", "friction")
            }
            joint = replace(joint, **values)
        by_name[name] = joint
    return tuple(by_name.get(joint.name, joint) for joint in robot.joints)


def common_value(values: Tensor, field: str, joint: str) -> float:
    """The value that all dofs of a joint have.

    Raises:
        MechanismError: if they differ.
    """
    first, *others = values.detach().tolist()
    if any(x != first for x in others):
        raise MechanismError(
            f"{field} of joint {joint!r} differs among its dofs: {[first, *others]}.",
            "The file format has one value for all dofs of a joint.",
            "Set all of them to the same value.",
        )
    return first


def first_difference(mech: Mechanism, written: Mechanism, fields: Iterable[str]) -> str | None:
    """The first parameter that a written file changes by more than rounding; None if there is none.

    Bodies are compared by name: a file lists them depth first, and appended robots have another order. Their
    parents are compared too.
    """
    tolerance = 1e-12 if mech.dtype == torch.float64 else 1e-5
    if _parent_names(mech) != _parent_names(written):
        return "parents"
    bodies = [written.body_names.index(name) for name in mech.body_names]
    slices = [written.tree_dof_slice(written.tree_joint_names[k]) for k in bodies]
    dofs = list(dict.fromkeys(i for span in slices for i in range(span.start, span.stop)))
    ours, theirs = (m.joints.modes[1].tolist() for m in (mech, written))
    modes = [theirs.index(dofs[i]) for i in ours if dofs[i] in theirs]
    orders = {"num_bodies": bodies, "num_tree_dof": dofs, "num_modes": modes}
    for field in fields:
        x, y = getattr(mech, field).detach().cpu(), getattr(written.to(mech.dtype), field)
        if (order := orders.get(str(PARAMETERS[field][0]))) is not None:
            y = y[order][:, order] if FIELDS[field].owner == "mode" else y[order]
        if x.shape != y.shape:
            return field
        finite = torch.where(x.isfinite(), x, 0.0)
        scale = finite.abs().max() if x.numel() else 1.0
        equal = (x == y) | ((x - y).abs() <= tolerance * scale)
        if not bool(equal.all()):
            return field
    return None


def _parent_names(mech: Mechanism) -> dict[str, str | None]:
    """Name of the parent of each body; None: the inertial frame."""
    names = mech.body_names
    parents = zip(names, mech.parents, strict=True)
    return {name: names[p] if p >= 0 else None for name, p in parents}


def _array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()
