"""Flexible links in new URDF files, as <flexible> (`torchsko.io.urdf.urdf_flexible`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

import numpy as np
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.io.xml.edits import words
from torchsko.mechanism.description import LinkDescription
from torchsko.mechanism.mechanism import Mechanism


@dataclass(frozen=True)
class FlexibleLink:
    """A flexible link of a mechanism.

    Attributes:
        name: of the link.
        joints: indices of the joints of its points and markers; the first one leads.
    """

    name: str
    joints: tuple[int, ...]


def flexible_links(mech: Mechanism) -> list[FlexibleLink]:
    """The flexible links of a mechanism.

    Raises:
        MechanismError: if names of points differ from those of `MechanismBuilder.flexible_link`.
    """
    groups: dict[int, list[int]] = {}
    for k, leader in enumerate(mech.coordinates.leaders):
        if mech.joints.kinds[k].name == "elastic":
            groups.setdefault(leader, []).append(k)
    found = []
    for leader, joints in groups.items():
        name = mech.body_names[leader].rpartition("/")[0]
        frame = mech.frame_names.index(name) if name in mech.frame_names else -1
        on = mech.parents[leader] if frame < 0 else mech.frame_body[frame]
        names = [mech.body_names[k].removeprefix(f"{name}/") for k in joints]
        numbered = [x for x in names if x.isdigit()]
        if (
            mech.tree_joint_names[leader] != f"{name}_modes"
            or frame < 0
            or on != mech.parents[leader]
            or numbered != list(map(str, range(len(numbered))))
        ):
            raise MechanismError(
                f"the points of the flexible link {name!r} have the names {', '.join(names)}.",
                "A URDF file numbers the points of a flexible link.",
                "Add the body by MechanismBuilder.flexible_link.",
            )
        found.append(FlexibleLink(name, tuple(joints)))
    return found


def urdf_flexible(
    mech: Mechanism, link: FlexibleLink, inertias: Mapping[str, LinkDescription]
) -> list[str]:
    """The element <flexible> of a link, with a line for each point and marker."""
    leader = link.joints[0]
    kind = mech.joints.kinds[leader]
    modes = mech.joints.modes[1].tolist()
    place = modes.index(mech.tree_dof_slice(mech.tree_joint_names[leader]).start)
    block = slice(place, place + kind.num_dof)
    matrices = {
        x: _numpy(getattr(mech, f"modal_{x}"))[block, block] for x in ("stiffness", "damping")
    }
    values = "".join(f' {x}="{words(A.ravel())}"' for x, A in matrices.items() if A.any())
    lines = [f"    <flexible modes={quoteattr(' '.join(kind.coordinates))}{values}>"]
    frame = mech.frame_names.index(link.name)
    R0, p0 = _numpy(mech.frame_rotation[frame]), _numpy(mech.frame_position[frame])
    for k in link.joints:
        name = mech.body_names[k].removeprefix(f"{link.name}/")
        R, p = _numpy(mech.joint_rotation[k]), _numpy(mech.joint_position[k])
        arrays = _parameters(mech, k, R0.T @ R)
        xyz = words(R0.T @ (p - p0))
        if name.isdigit():
            head = f'<point xyz="{xyz}" mass="{inertias[mech.body_names[k]].mass!r}"'
            arrays["inertia"] = np.array(inertias[mech.body_names[k]].inertia)
        else:
            head = f'<marker name={quoteattr(name)} xyz="{xyz}"'
            arrays["rotation"] = R0.T @ R
        text = "".join(
            f' {key}="{words(A.ravel())}"'
            for key, A in arrays.items()
            if key == "shape"
            or (A.any() and not (key == "rotation" and np.array_equal(A, np.eye(3))))
        )
        lines.append(f"      {head}{text}/>")
    return [*lines, "    </flexible>"]


def _parameters(mech: Mechanism, k: int, rotation: np.ndarray) -> dict[str, np.ndarray]:
    """Shapes of a point in the axes of its link."""
    found = {}
    for parameter in mech.joints.kinds[k].parameters:
        values = _numpy(
            mech.joint_parameters[mech.parameter_slice(mech.tree_joint_names[k], parameter.name)]
        )
        A = values.reshape(parameter.shape)
        found[parameter.name] = np.tensordot(rotation, A, 1)
    return found


def _numpy(x: Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()
