"""A mechanism's numbers back in the description that it came from.

A description says more than a mechanism: links that fixed joints weld together are one body, see
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
from torchsko.io.common.welded_inertia import INERTIAL, fitted_body
from torchsko.mechanism.description import FIXED, JointDescription, RobotDescription
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.mechanism.welded import WORLD, Frame

PLACEMENT = ("joint_rotation", "joint_position")


def check_same(mech: Mechanism, file: Mechanism, name: str) -> None:
    """Refuse a mechanism that is not the robot of a file, whatever its numbers are.

    Raises:
        MechanismError: names what the other has not; or it is a batch.
    """
    for field in ("tree_joint_names", "body_names", "frame_names", "dependent_joint_names"):
        mine, theirs = getattr(mech, field), getattr(file, field)
        if mine != theirs:
            other = sorted(set(mine) ^ set(theirs))
            raise MechanismError(
                f"{mech.name!r} is not the robot of {name}: their {field} differ"
                + (f", as in {other[0]!r}.\n" if other else ", by order.\n")
                + "Numbers are put back into the file that they came from.\n"
                "Pass that file as like=..., or leave it out for a new one."
            )
    check_one(mech)


def check_one(mech: Mechanism) -> None:
    """Refuse a batch.

    Raises:
        MechanismError: names the parameter.
    """
    for field, sizes in PARAMETERS.items():
        if getattr(mech, field).ndim > len(sizes):
            raise MechanismError(
                f"{field} of {mech.name!r} has the shape {list(getattr(mech, field).shape)}.",
                "A file is one robot, not a batch of them.",
                "Pick one sample: mech.replace(...) with its numbers.",
            )


def changed(mech: Mechanism, file: Mechanism, field: str) -> list[int]:
    """The rows of a parameter that differ."""
    mine, theirs = getattr(mech, field).detach().cpu(), getattr(file.to(mech.dtype), field)
    if not theirs.numel():
        return []
    return (mine != theirs).reshape(len(theirs), -1).any(-1).nonzero().flatten().tolist()


def refuse_changes(mech: Mechanism, file: Mechanism, fields: Iterable[str], format: str) -> None:
    """Refuse changes of what is not written.

    Raises:
        MechanismError: names the field and its first entry that differs.
    """
    for field in fields:
        if rows := changed(mech, file, field):
            raise MechanismError(
                f"{field}[{rows[0]}] of {mech.name!r} is not that of the file.",
                f"Into {format} are written: what is said in torchsko.save; other numbers have no place "
                "there, or another meaning.",
                f"Pass mech.replace({field}=...) with the file's numbers.",
            )


def fitted(robot: RobotDescription, mech: Mechanism, file: Mechanism) -> RobotDescription:
    """The description with the inertias of a mechanism.

    Args:
        robot: of the file.
        mech: with the numbers wanted.
        file: the mechanism of the description.
    """
    links = {link.name: link for link in robot.links}
    bodies = sorted({k for field in INERTIAL for k in changed(mech, file, field)})
    for k in bodies:
        frames = {
            name: _frame(file, i)
            for i, name in enumerate(file.frame_names)
            if file.frame_body[i] == k and name in links
        }
        which = [field for field in INERTIAL if k in changed(mech, file, field)]
        wanted = tuple(_numbers(getattr(mech, field)[k]) for field in INERTIAL)
        links |= fitted_body(links, frames, wanted, which)
    return replace(robot, links=tuple(links.values()))


def _frame(mech: Mechanism, i: int) -> Frame:
    R, p = mech.frame_rotation[i], mech.frame_position[i]
    return Frame(None, R.double().numpy(), p.double().numpy())


def fitted_joints(
    robot: RobotDescription, mech: Mechanism, file: Mechanism
) -> tuple[JointDescription, ...]:
    """The joints of the description with the mechanism's placements, damping and friction.

    Raises:
        MechanismError: when a joint that the file does not hold has changed, or damping differs among the
            dofs of one joint.
    """
    frames = {name: _frame(file, i) for i, name in enumerate(file.frame_names)}
    frames[WORLD] = Frame(None, np.eye(3), np.zeros(3))
    placed = {k for field in PLACEMENT for k in changed(mech, file, field)}
    lossy = {i for field in ("damping", "friction") for i in changed(mech, file, field)}
    by_name = {joint.name: joint for joint in robot.joints if joint.kind != FIXED}
    for k, name in enumerate(mech.tree_joint_names):
        dofs = mech.tree_dof_slice(name)
        loses = not lossy.isdisjoint(range(dofs.start, dofs.stop))
        if not loses and k not in placed:
            continue
        if name not in by_name:
            raise MechanismError(
                f"joint {name!r} is not in the file, and its numbers are not those that it got at load.",
                "The file has no place for them.",
                "Leave placement and losses of that joint as they were.",
            )
        joint = by_name[name]
        if k in placed:
            parent = frames[joint.parent]
            R, p = (_numbers(getattr(mech, field)[k]) for field in PLACEMENT)
            joint = replace(
                joint,
                rotation=as_matrix(parent.rotation.T @ R),
                position=as_vector(parent.rotation.T @ (p - parent.position)),
            )
        if loses:
            values = {f: one_of(getattr(mech, f)[dofs], f, name) for f in ("damping", "friction")}
            joint = replace(joint, **values)
        by_name[name] = joint
    return tuple(by_name.get(joint.name, joint) for joint in robot.joints)


def one_of(values: Tensor, field: str, joint: str) -> float:
    """The number that all dofs of a joint share.

    Raises:
        MechanismError: when they differ.
    """
    first, *others = values.detach().tolist()
    if any(x != first for x in others):
        raise MechanismError(
            f"{field} of joint {joint!r} differs among its dofs: {[first, *others]}.",
            "A file has one number for all dofs of a joint.",
            "Give all of them the same.",
        )
    return first


def agrees(mech: Mechanism, written: Mechanism, fields: Iterable[str]) -> str | None:
    """The first parameter that a file just written gives otherwise, by more than rounding; None for none.

    Bodies are taken by name: a file gives them depth first, in which order those of robots that were
    appended need not be. On what each of them hangs is compared too.
    """
    close = 1e-12 if mech.dtype == torch.float64 else 1e-5
    if _carriers(mech) != _carriers(written):
        return "parents"
    bodies = [written.body_names.index(name) for name in mech.body_names]
    slices = [written.tree_dof_slice(written.tree_joint_names[k]) for k in bodies]
    dofs = [i for own in slices for i in range(own.start, own.stop)]
    rows = {"num_bodies": bodies, "num_tree_dof": dofs}
    for field in fields:
        mine, theirs = getattr(mech, field).detach().cpu(), getattr(written.to(mech.dtype), field)
        if (own := rows.get(PARAMETERS[field][0])) is not None:
            theirs = theirs[own]
        if mine.shape != theirs.shape:
            return field
        usual = torch.where(mine.isfinite(), mine, 0.0)
        scale = usual.abs().max() if mine.numel() else 1.0
        same = (mine == theirs) | ((mine - theirs).abs() <= close * scale)
        if not bool(same.all()):
            return field
    return None


def _carriers(mech: Mechanism) -> dict[str, str | None]:
    """By body the one that it hangs on; None: the inertial frame."""
    names = mech.body_names
    parents = zip(names, mech.parents, strict=True)
    return {name: names[p] if p >= 0 else None for name, p in parents}


def _numbers(x: Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()
