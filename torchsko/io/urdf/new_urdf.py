"""New URDF files of mechanisms."""

from __future__ import annotations

import math
import warnings
from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.errors import MechanismError, RobotFileWarning, name_list
from torchsko.io.common.new_geometry import urdf_shapes, warn_unsupported_shapes
from torchsko.io.common.write_back import check_unbatched, common_value
from torchsko.io.mjcf.new_states import unique_name, urdf_loops, warn_unsupported_states
from torchsko.io.urdf.edit_urdf import rpy_from_rotation
from torchsko.io.urdf.urdf_link import ENTRIES
from torchsko.io.xml.edits import words
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


def new_urdf(mech: Mechanism) -> str:
    """Text of a URDF file with the links, joints, frames and shapes of a mechanism.

    Raises:
        MechanismError: for a batch, or features that URDF does not support: other kinds of joints, joints
            that follow several others, armature, springs.
    """
    check_unbatched(mech)
    _check_supported(mech)
    warn_unsupported_shapes(mech, "URDF")
    warn_unsupported_states(mech, "URDF")
    _warn_unsupported_limits(mech)
    root = _root(mech)
    lines = ['<?xml version="1.0"?>', f"<robot name={quoteattr(mech.name)}>"]
    ground = urdf_shapes(mech, None)
    if root not in mech.frame_names:
        lines += _element(root, [MASSLESS, *ground] if ground else [])
    for name in mech.frame_names:
        lines += _link(mech, name, ground if name == root else [])
    for k, joint in enumerate(mech.tree_joint_names):
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


def single_leaders(mech: Mechanism) -> dict[int, tuple[int, float, float]]:
    """For each dependent joint its leader, coefficient and offset.

    Raises:
        MechanismError: if a joint follows several others.
    """
    if mech.coupling is None:
        return {}
    identity = np.eye(mech.num_dof)
    dofs = [mech.dof_slice(name).start for name in mech.joint_names]
    ratio, offset = (x.detach().cpu().double() for x in (mech.coupling_ratio, mech.coupling_offset))
    X = mech.coupling.tree_rates(ratio.new_tensor(identity), ratio).mT
    leaders = {}
    for row, k in enumerate(mech.coupling.dependent):
        name = mech.tree_joint_names[k]
        coefficients = X[mech.tree_dof_slice(name).start]
        (columns,) = np.nonzero(coefficients.numpy())
        if len(columns) != 1:
            raise MechanismError(
                f"joint {name!r} follows {len(columns)} joints.",
                "In URDF and MJCF a joint follows one other joint.",
                "Give it one coupling coefficient.",
            )
        j = mech.independent_joints[dofs.index(int(columns[0]))]
        leaders[k] = (j, float(coefficients[columns[0]]), float(offset[row]))
    return leaders


def _check_supported(mech: Mechanism) -> None:
    for k, name in enumerate(mech.tree_joint_names):
        kind = mech.joints.kinds[k].name
        if kind not in TYPES:
            raise MechanismError(
                f"joint {name!r} is {kind}.",
                f"URDF has {', '.join(TYPES.values())} joints.",
                "Save to MJCF (.xml), which stacks hinges and slides, or split the joint.",
            )
    for field in ("armature", "stiffness", "gravcomp", "higher_damping"):
        values = getattr(mech, field)
        if not bool(values.any()):
            continue
        owner = repr(mech.name)
        if field in ("armature", "stiffness"):
            names = (x for x in mech.tree_joint_names if values[mech.tree_dof_slice(x)].any())
            owner = f"joint {next(names)!r}"
        raise MechanismError(
            f"{owner} has {field}.",
            "URDF does not support it.",
            f"Save to MJCF (.xml), or pass mech.replace({field}=torch.zeros_like(...)).",
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


def _link(mech: Mechanism, name: str, more_shapes: list[str]) -> list[str]:
    shapes = [*more_shapes, *urdf_shapes(mech, name)]
    if name not in mech.body_names:
        return _element(name, [MASSLESS, *shapes] if shapes else [])
    k = mech.body_index(name)
    mass, com, I = (getattr(mech, f)[k].detach().cpu().tolist() for f in ("mass", "com", "inertia"))
    upper = (I[0][0], I[0][1], I[0][2], I[1][1], I[1][2], I[2][2])
    entries = " ".join(f'{key}="{x!r}"' for key, x in zip(ENTRIES, upper, strict=True))
    inertial = f'<origin xyz="{words(com)}"/><mass value="{mass!r}"/><inertia {entries}/>'
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
    losses = {
        f: common_value(getattr(mech, f)[mech.tree_dof_slice(name)], f, name)
        for f in ("damping", "friction")
    }
    if any(losses.values()):
        lines.append("    <dynamics " + " ".join(f'{f}="{x!r}"' for f, x in losses.items()) + "/>")
    if bounds:
        lines.append("    <limit " + " ".join(f'{f}="{x!r}"' for f, x in bounds.items()) + "/>")
    if k in (leaders := single_leaders(mech)):
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


def _warn_unsupported_limits(mech: Mechanism) -> None:
    """Warn of joints of several dofs whose limits URDF does not support."""
    lost = []
    for k in mech.independent_joints:
        name, kind = mech.tree_joint_names[k], mech.joints.kinds[k]
        q, dofs = mech.q_slice(name), mech.dof_slice(name)
        bounded = bool((mech.lower[q].isfinite() | mech.upper[q].isfinite()).any())
        unequal = any(
            bool((x[dofs] != x[dofs.start]).any()) for x in (mech.effort_limit, mech.velocity_limit)
        )
        if kind.num_dof > 1 and (bounded or unequal):
            lost.append(name)
    if lost:
        warnings.warn(
            f"limits of {name_list(lost)} are left out of the new URDF file.\n"
            "In URDF a joint of several dofs has one effort and one velocity limit, and no position limits.\n"
            "Pass like=FILE with the original file to preserve them.",
            RobotFileWarning,
            stacklevel=5,
        )


def _ends(parent: str, child: str) -> list[str]:
    return [f"    <parent link={quoteattr(parent)}/>", f"    <child link={quoteattr(child)}/>"]


def _origin(R: np.ndarray, p: np.ndarray) -> str:
    rows = [tuple(map(float, row)) for row in R]
    rpy = rpy_from_rotation((rows[0], rows[1], rows[2]))  # type: ignore[arg-type]
    return f'    <origin xyz="{words(p)}" rpy="{words(rpy)}"/>'
