"""A mechanism as a new URDF file."""

from __future__ import annotations

import math
import warnings
from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.errors import MechanismError, RobotFileWarning, name_list
from torchsko.io.common.new_geometry import tell_left_out, urdf_shapes
from torchsko.io.common.write_back import check_one, one_of
from torchsko.io.mjcf.new_states import tell_states_left_out
from torchsko.io.urdf.edit_urdf import rpy_from_rotation
from torchsko.io.urdf.urdf_link import ENTRIES
from torchsko.io.xml.edits import words
from torchsko.mechanism.joints.planar import Planar
from torchsko.mechanism.mechanism import Mechanism

UNLIMITED = 1e308
"""Stands for no limit where other readers need a number; ours reads it as none."""

WEIGHTLESS = (
    '    <inertial><mass value="0.0"/><inertia '
    + " ".join(f'{key}="0.0"' for key in ENTRIES)
    + "/></inertial>"
)
"""Of links whose mass their body has: MuJoCo makes up one from the shapes of links that say none."""

TYPES = {"revolute": "revolute", "prismatic": "prismatic", "planar": "planar",
         "spherical": "spherical", "free": "floating"}  # fmt: skip


def new_urdf(mech: Mechanism) -> str:
    """The links, joints, frames and shapes of a mechanism.

    Raises:
        MechanismError: on a batch, or what URDF cannot say: kinds of joints that it has not, joints that
            follow several others, armature, springs.
    """
    check_one(mech)
    _check_sayable(mech)
    tell_left_out(mech, "URDF")
    tell_states_left_out(mech, "URDF")
    _tell_limits_left_out(mech)
    root = _root(mech)
    lines = ['<?xml version="1.0"?>', f"<robot name={quoteattr(mech.name)}>"]
    ground = urdf_shapes(mech, None)
    if root not in mech.frame_names:
        lines += _element(root, [WEIGHTLESS, *ground] if ground else [])
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
        joint = _unused_name(f"{name}_fixed", taken)
        taken.add(joint)
        lines += [f'  <joint name={quoteattr(joint)} type="fixed">', *_ends(parent, name),
                  _origin(*_pose(mech, i)), "  </joint>"]  # fmt: skip
    return "\n".join([*lines, "</robot>", ""])


def followed(mech: Mechanism) -> dict[int, tuple[int, float, float]]:
    """What each dependent joint follows: the joint, coefficient and offset.

    Raises:
        MechanismError: when one follows several.
    """
    if mech.coupling is None:
        return {}
    identity = np.eye(mech.num_dof)
    dofs = [mech.dof_slice(name).start for name in mech.joint_names]
    ratio, offset = (x.detach().cpu().double() for x in (mech.coupling_ratio, mech.coupling_offset))
    X = mech.coupling.all_rates(ratio.new_tensor(identity), ratio).mT
    found = {}
    for row, k in enumerate(mech.coupling.dependent):
        name = mech.tree_joint_names[k]
        coefficients = X[mech.tree_dof_slice(name).start]
        (others,) = np.nonzero(coefficients.numpy())
        if len(others) != 1:
            raise MechanismError(
                f"joint {name!r} follows {len(others)} joints.",
                "In a file a joint follows one other.",
                "Give it one coupling coefficient.",
            )
        j = mech.independent_joints[dofs.index(int(others[0]))]
        found[k] = (j, float(coefficients[others[0]]), float(offset[row]))
    return found


def _check_sayable(mech: Mechanism) -> None:
    for k, name in enumerate(mech.tree_joint_names):
        kind = mech.joints.kinds[k].name
        if kind not in TYPES:
            raise MechanismError(
                f"joint {name!r} is {kind}.",
                f"URDF has {', '.join(TYPES.values())} joints.",
                "Save to MJCF (.xml), which stacks hinges and slides, or split the joint.",
            )
        for field in ("armature", "stiffness"):
            if bool(getattr(mech, field)[mech.tree_dof_slice(name)].any()):
                raise MechanismError(
                    f"joint {name!r} has {field}.",
                    "URDF has no place for it.",
                    f"Save to MJCF (.xml), or pass mech.replace({field}=torch.zeros_like(...)).",
                )
    for field in ("gravcomp", "higher_damping"):
        if bool(getattr(mech, field).any()):
            raise MechanismError(
                f"{mech.name!r} has {field}.",
                "URDF has no place for it.",
                f"Save to MJCF (.xml), or pass mech.replace({field}=torch.zeros_like(...)).",
            )


def _unused_name(name: str, taken: object) -> str:
    names = set(taken)  # type: ignore[call-overload]
    while name in names:
        name += "_"
    return name


def _pose(mech: Mechanism, i: int) -> tuple[np.ndarray, np.ndarray]:
    R, p = mech.frame_rotation[i], mech.frame_position[i]
    return R.detach().cpu().double().numpy(), p.detach().cpu().double().numpy()


def _root(mech: Mechanism) -> str:
    """The link that is the inertial frame, where readers have a file's root; "world" where none is."""
    for i, (name, body) in enumerate(zip(mech.frame_names, mech.frame_body, strict=True)):
        R, p = _pose(mech, i)
        if body < 0 and np.array_equal(R, np.eye(3)) and not p.any():
            return name
    return _unused_name("world", mech.frame_names)


def _element(name: str, inside: list[str]) -> list[str]:
    if not inside:
        return [f"  <link name={quoteattr(name)}/>"]
    return [f"  <link name={quoteattr(name)}>", *inside, "  </link>"]


def _link(mech: Mechanism, name: str, more: list[str]) -> list[str]:
    shapes = [*more, *urdf_shapes(mech, name)]
    if name not in mech.body_names:
        return _element(name, [WEIGHTLESS, *shapes] if shapes else [])
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
        f: one_of(getattr(mech, f)[mech.tree_dof_slice(name)], f, name)
        for f in ("damping", "friction")
    }
    if any(losses.values()):
        lines.append("    <dynamics " + " ".join(f'{f}="{x!r}"' for f, x in losses.items()) + "/>")
    if bounds:
        lines.append("    <limit " + " ".join(f'{f}="{x!r}"' for f, x in bounds.items()) + "/>")
    if k in (followers := followed(mech)):
        j, c, offset = followers[k]
        other = quoteattr(mech.tree_joint_names[j])
        lines.append(f'    <mimic joint={other} multiplier="{c!r}" offset="{offset!r}"/>')
    return [*lines, "  </joint>"]


def _check_direction(mech: Mechanism, kind: Planar, name: str, axis: list[float]) -> None:
    own = mech.joint_parameters[mech.parameter_slice(name, "direction")].tolist()
    if (
        max(abs(a - b) for a, b in zip(own, kind.parameter_values(name, axis, {}), strict=True))
        > 1e-14
    ):
        raise MechanismError(
            f"joint {name!r} slides along a direction of its own.",
            "URDF has none: x is the frame's there.",
            "Turn the joint's frame instead.",
        )


def _limits(mech: Mechanism, k: int, name: str) -> dict[str, float] | None:
    """Limits of a joint, a number for each; None where it has none and needs none."""
    kind = mech.joints.kinds[k].name
    if kind not in ("revolute", "prismatic"):
        both = {"effort": mech.effort_limit, "velocity": mech.velocity_limit}
        rows = {key: x[mech.dof_slice(name)] for key, x in both.items()}
        alike = {key: float(x[0]) for key, x in rows.items() if bool((x == x[0]).all())}
        return {key: x for key, x in alike.items() if math.isfinite(x)} or None
    if k not in mech.independent_joints:
        found = {"lower": -math.inf, "upper": math.inf, "effort": 0.0, "velocity": math.inf}
    else:
        q, dof = mech.q_slice(name).start, mech.dof_slice(name).start
        found = {
            "lower": float(mech.lower[q]),
            "upper": float(mech.upper[q]),
            "effort": float(mech.effort_limit[dof]),
            "velocity": float(mech.velocity_limit[dof]),
        }
    if kind == "revolute" and not any(map(math.isfinite, found.values())):
        return None
    return {key: max(-UNLIMITED, min(UNLIMITED, x)) for key, x in found.items()}


def _tell_limits_left_out(mech: Mechanism) -> None:
    """Warn of limits of joints with several dofs that URDF, which has one for all, cannot say."""
    lost = []
    for k in mech.independent_joints:
        name, kind = mech.tree_joint_names[k], mech.joints.kinds[k]
        q, dofs = mech.q_slice(name), mech.dof_slice(name)
        placed = bool((mech.lower[q].isfinite() | mech.upper[q].isfinite()).any())
        uneven = any(
            bool((x[dofs] != x[dofs.start]).any()) for x in (mech.effort_limit, mech.velocity_limit)
        )
        if kind.num_dof > 1 and (placed or uneven):
            lost.append(name)
    if lost:
        warnings.warn(
            f"limits of {name_list(lost)} are left out of a new file in URDF.\n"
            "There a joint of several dofs has one limit of effort and velocity for all, and none of "
            "position.\nSave like the original file to keep them.",
            RobotFileWarning,
            stacklevel=5,
        )


def _ends(parent: str, child: str) -> list[str]:
    return [f"    <parent link={quoteattr(parent)}/>", f"    <child link={quoteattr(child)}/>"]


def _origin(R: np.ndarray, p: np.ndarray) -> str:
    rows = [tuple(map(float, row)) for row in R]
    rpy = rpy_from_rotation((rows[0], rows[1], rows[2]))  # type: ignore[arg-type]
    return f'    <origin xyz="{words(p)}" rpy="{words(rpy)}"/>'
