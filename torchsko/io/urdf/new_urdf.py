"""New URDF files of mechanisms."""

from __future__ import annotations

import math
from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.errors import MechanismError, name_list
from torchsko.io.common.link_inertias import link_inertias
from torchsko.io.common.losses import Losses
from torchsko.io.common.write_back import check_unbatched
from torchsko.io.urdf.edit_urdf import rpy_from_rotation
from torchsko.io.urdf.new_flexible import flexible_links, urdf_flexible
from torchsko.io.urdf.new_loops import urdf_loops
from torchsko.io.urdf.new_shapes import urdf_shapes
from torchsko.io.urdf.note_losses import note_losses
from torchsko.io.urdf.urdf_link import ENTRIES
from torchsko.io.xml.edits import unique_name, words
from torchsko.mechanism.description import LinkDescription
from torchsko.mechanism.edits.lock import followed_by
from torchsko.mechanism.joints.planar import Planar
from torchsko.mechanism.mechanism import Mechanism

UNLIMITED = 1e308
"""Number written for a missing limit, which other readers require; torchsko reads it as no limit."""

MASSLESS = (
    '    <inertial><mass value="0.0"/><inertia '
    + " ".join(f'{key}="0.0"' for key in ENTRIES)
    + "/></inertial>"
)
"""Inertia of frames without mass; MuJoCo would infer a mass from the shapes of a link without <inertial>."""

TYPES = {"revolute": "revolute", "prismatic": "prismatic", "planar": "planar",
         "spherical": "spherical", "free": "floating"}  # fmt: skip


def new_urdf(mech: Mechanism, losses: Losses) -> str:
    """Text of a URDF file with the links, joints, frames and shapes of a mechanism.

    Args:
        mech: the mechanism.
        losses: gets the parts that URDF cannot express.

    Raises:
        MechanismError: for a batch, or kinds of joints that URDF does not have.
    """
    check_unbatched(mech)
    _check_kinds(mech)
    note_losses(mech, losses)
    root, links = _root(mech), link_inertias(mech)
    flexible = flexible_links(mech)
    inside = {mech.body_names[k] for link in flexible for k in link.joints}
    more = {link.name: urdf_flexible(mech, link, links) for link in flexible}
    lines = ['<?xml version="1.0"?>', f"<robot name={quoteattr(mech.name)}>"]
    ground = urdf_shapes(mech, None)
    if root not in mech.frame_names:
        lines += _element(root, [MASSLESS, *ground] if ground else [])
    for name in (name for name in mech.frame_names if name not in inside):
        parts = [*(ground if name == root else []), *more.get(name, [])]
        lines += _link(mech, name, links.get(name), parts)
    for k, joint in enumerate(mech.tree_joint_names):
        if mech.body_names[k] in inside:
            continue
        parent = root if mech.parents[k] < 0 else mech.body_names[mech.parents[k]]
        lines += _joint(mech, k, joint, parent)
    taken = set(mech.tree_joint_names)
    for i, (name, b) in enumerate(zip(mech.frame_names, mech.frame_body, strict=True)):
        if name == root or name in mech.body_names:
            continue
        parent = root if b < 0 else mech.body_names[b]
        joint = unique_name(f"{name}_fixed", taken)
        taken.add(joint)
        lines += [f'  <joint name={quoteattr(joint)} type="fixed">', *_ends(parent, name),
                  _origin(*_pose(mech, i)), "  </joint>"]  # fmt: skip
    lines += urdf_loops(mech, root)
    return "\n".join([*lines, "</robot>", ""])


def _leaders(mech: Mechanism) -> dict[int, tuple[int, float, float]]:
    """Leader, coefficient and offset of each dependent joint that follows one other."""
    found, term = {}, 0
    ratios, offsets = mech.coupling_ratio.tolist(), mech.coupling_offset.tolist()
    for offset, (k, row) in zip(offsets, followed_by(mech).items(), strict=True):
        if len(row) == 1:
            found[k] = row[0], ratios[term], offset
        term += len(row)
    return found


def _check_kinds(mech: Mechanism) -> None:
    """Refuse kinds of joints that URDF does not have."""
    kinds = [(name, mech.joints.kinds[k].name) for k, name in enumerate(mech.tree_joint_names)]
    refused = [f"{name!r} is {kind}" for name, kind in kinds if kind not in (*TYPES, "elastic")]
    if refused:
        raise MechanismError(
            f"joint {name_list(refused)}.",
            f"URDF has {', '.join(TYPES.values())} joints.",
            "Save to MJCF (.xml), which stacks hinges and slides, or split the joint.",
        )


def _pose(mech: Mechanism, i: int) -> tuple[np.ndarray, np.ndarray]:
    R, p = mech.frame_rotation[i], mech.frame_position[i]
    return R.detach().cpu().double().numpy(), p.detach().cpu().double().numpy()


def _root(mech: Mechanism) -> str:
    """Name of a link that coincides with the inertial frame, which becomes the root; else "world"."""
    for i, (name, body) in enumerate(zip(mech.frame_names, mech.frame_body, strict=True)):
        R, p = _pose(mech, i)
        if body < 0 and np.array_equal(R, np.eye(3)) and not p.any():
            return name
    return unique_name("world", mech.frame_names)


def _element(name: str, content: list[str]) -> list[str]:
    if not content:
        return [f"  <link name={quoteattr(name)}/>"]
    return [f"  <link name={quoteattr(name)}>", *content, "  </link>"]


def _link(mech: Mechanism, name: str, link: LinkDescription | None, more: list[str]) -> list[str]:
    shapes = [*more, *urdf_shapes(mech, name)]
    if link is None or (name not in mech.body_names and not link.mass and not np.any(link.inertia)):
        return _element(name, [MASSLESS, *shapes] if shapes else [])
    R, I = np.array(link.inertia_rotation), np.array(link.inertia)
    I = I if np.array_equal(R, np.eye(3)) else R @ I @ R.T
    upper = (I[0][0], I[0][1], I[0][2], I[1][1], I[1][2], I[2][2])
    entries = " ".join(f'{key}="{float(x)!r}"' for key, x in zip(ENTRIES, upper, strict=True))
    mass = f'<mass value="{link.mass!r}"/>'
    inertial = f'<origin xyz="{words(link.com)}"/>{mass}<inertia {entries}/>'
    return _element(name, [f"    <inertial>{inertial}</inertial>", *shapes])


def _joint(mech: Mechanism, k: int, name: str, parent: str) -> list[str]:
    kind = mech.joints.kinds[k]
    R, p = (
        getattr(mech, f)[k].detach().cpu().double().numpy()
        for f in ("joint_rotation", "joint_position")
    )
    bounds = _limits(mech, k, name)
    type_ = "continuous" if kind.name == "revolute" and bounds is None else TYPES[kind.name]
    lines = [f'  <joint name={quoteattr(name)} type="{type_}">', *_ends(parent, mech.body_names[k]),
             _origin(R, p)]  # fmt: skip
    if kind.has_axis:
        axis = mech.axis[k].detach().cpu().tolist()
        lines.append(f'    <axis xyz="{words(axis)}"/>')
        if isinstance(kind, Planar):
            _check_direction(mech, kind, name, axis)
    first = mech.tree_dof_slice(name).start
    losses = {f: float(getattr(mech, f)[first]) for f in ("damping", "friction")}
    if any(losses.values()):
        lines.append("    <dynamics " + " ".join(f'{f}="{x!r}"' for f, x in losses.items()) + "/>")
    if bounds:
        lines.append("    <limit " + " ".join(f'{f}="{x!r}"' for f, x in bounds.items()) + "/>")
    if k in (leaders := _leaders(mech)):
        j, c, offset = leaders[k]
        leader = quoteattr(mech.tree_joint_names[j])
        lines.append(f'    <mimic joint={leader} multiplier="{c!r}" offset="{offset!r}"/>')
    return [*lines, "  </joint>"]


def _check_direction(mech: Mechanism, kind: Planar, name: str, axis: list[float]) -> None:
    direction = mech.joint_parameters[mech.parameter_slice(name, "direction")].tolist()
    default = kind.parameter_values(name, axis, {})
    if max(abs(a - b) for a, b in zip(direction, default, strict=True)) > 1e-14:
        raise MechanismError(
            f"planar joint {name!r} has a direction other than the default.",
            "URDF does not support it.",
            "Rotate the joint's frame instead.",
        )


def _limits(mech: Mechanism, k: int, name: str) -> dict[str, float] | None:
    """Attributes of <limit>; None if the joint has no limits and does not need the element."""
    kind = mech.joints.kinds[k].name
    if kind not in ("revolute", "prismatic"):
        limits = {"effort": mech.effort_limit, "velocity": mech.velocity_limit}
        rows = {key: x[mech.dof_slice(name)] for key, x in limits.items()}
        equal = {key: float(x[0]) for key, x in rows.items() if bool((x == x[0]).all())}
        return {key: x for key, x in equal.items() if math.isfinite(x)} or None
    if k not in mech.independent_joints:
        bounds = {"lower": -math.inf, "upper": math.inf, "effort": 0.0, "velocity": math.inf}
    else:
        q, dof = mech.q_slice(name).start, mech.dof_slice(name).start
        bounds = {
            "lower": float(mech.lower[q]),
            "upper": float(mech.upper[q]),
            "effort": float(mech.effort_limit[dof]),
            "velocity": float(mech.velocity_limit[dof]),
        }
    if kind == "revolute" and not any(map(math.isfinite, bounds.values())):
        return None
    return {key: max(-UNLIMITED, min(UNLIMITED, x)) for key, x in bounds.items()}


def _ends(parent: str, child: str) -> list[str]:
    return [f"    <parent link={quoteattr(parent)}/>", f"    <child link={quoteattr(child)}/>"]


def _origin(R: np.ndarray, p: np.ndarray) -> str:
    rows = [tuple(map(float, row)) for row in R]
    rpy = rpy_from_rotation((rows[0], rows[1], rows[2]))  # type: ignore[arg-type]
    return f'    <origin xyz="{words(p)}" rpy="{words(rpy)}"/>'
