"""Numbers of an MJCF file replaced in its text.

MuJoCo works numbers out: from geoms, from a total mass that the file asks for, from the defaults of a class.
So a body whose numbers change gets an <inertial> of its own, and so does every other one whose numbers would
change when such a setting is turned off.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError, RobotFileError
from torchsko.io.common.quaternion import quaternion_from_matrix
from torchsko.io.common.welded_inertia import INERTIAL
from torchsko.io.common.write_back import PLACEMENT, changed, one_of
from torchsko.io.mjcf.assets import elsewhere
from torchsko.io.mjcf.edit_mjcf_places import TURNS, write_gravity, write_placements, write_ranges
from torchsko.io.mujoco.mujoco_names import body_name, joint_names
from torchsko.io.mujoco.principal_moments import physical
from torchsko.io.xml.edits import Edits, words
from torchsko.io.xml.reader import Document, Element
from torchsko.mechanism.description import LinkDescription, RobotDescription
from torchsko.mechanism.mechanism import Mechanism

UNSETTLED = ("include", "replicate", "attach", "composite", "flexcomp")
"""Elements for which other bodies stand in the model than in the text."""

OF_DOFS = {"damping": "damping", "friction": "frictionloss", "armature": "armature",
           "stiffness": "stiffness"}  # fmt: skip
"""Attributes of a <joint> by the parameter that they give."""

TUNED = "springdamper"
"""Attribute by which MuJoCo's compiler finds stiffness and damping of the inertias that a joint moves."""

SPRUNG = {"damping", "stiffness"}
"""What it finds."""


OFF = {"inertiafromgeom": "auto", "settotalmass": "-1", "boundmass": "0", "boundinertia": "0",
       "balanceinertia": "false"}  # fmt: skip
"""Settings of a <compiler> that override or change what an <inertial> says, and what turns each off."""


def why_read_otherwise(root: Element) -> str:
    """By which setting bodies of a file are read otherwise than they were written, and what to type."""
    done = {"inertiafromgeom", "settotalmass"}  # where the file itself has them, see below
    found = {
        f'{name}="{value}"': name
        for e in root.children
        if e.tag == "compiler"
        for name, value in e.attributes.items()
        if name in OFF and name not in done and value != OFF[name]
    }
    if found:
        typed = " ".join(f'{name}="{OFF[name]}"' for name in found.values())
        return f"Its <compiler {' '.join(found)}> changes bodies as they are read.\nWrite {typed} there."
    if any(e.tag == "include" for e in root.walk()):
        typed = " ".join(f'{name}="{off}"' for name, off in OFF.items())
        return (
            f"A <compiler> in an included file may change bodies as they are read, by {', '.join(OFF)}.\n"
            f"Write <compiler {typed}/> into this file, behind its last <include>."
        )
    return ""


def edited_mjcf(
    document: Document,
    model: Any,
    old: RobotDescription,
    new: RobotDescription,
    mech: Mechanism,
    file: Mechanism,
    folders: tuple[Path, Path],
) -> bytes:
    """The file with the inertias of another description, and the joints' numbers of a mechanism.

    Args:
        document: the file.
        model: ``mujoco.MjModel``, as compiled from it.
        old: what it says.
        new: what its bodies are to say.
        mech: what its joints are to say.
        file: the mechanism of the file.
        folders: of the file and of the new one: what is not found from there is named in full.

    Raises:
        RobotFileError: when the text has no element of a body that changes, as where it is in another file.
        MechanismError: on a number that the format has no place for.
    """
    edits, bodies = Edits(document), _bodies(document.root, model)
    links = dict(
        zip([link.name for link in new.links], zip(old.links, new.links, strict=True), strict=True)
    )
    told = {name for name, (was, now) in links.items() if was != now}
    anew = _unsettled_bodies(edits, document.root, model, bodies) if told else set()
    for b in range(1, model.nbody):
        if (name := body_name(model, b)) in told | anew:
            eps, body = torch.finfo(mech.dtype).eps, _found(bodies, model, b)
            _write_inertial(edits, body, *links[name], eps, anew=name in anew)
    _write_joints(edits, bodies, model, document.root, mech, file)

    def element(b: int, i: int, name: str) -> Element:
        return _joint_element(_found(bodies, model, b), i, name)

    write_placements(edits, lambda b: _found(bodies, model, b), model, mech, file)
    write_ranges(edits, element, model, document.root, mech, file)
    write_gravity(edits, document.root, mech, file)
    for part, paths in elsewhere(document.root, *folders):
        edits.set(part, paths)
    return edits.result()


def _bodies(root: Element, model: Any) -> Mapping[int, Element]:
    """The elements of bodies, by their numbers: in the order of the file, or else by name."""
    inside = [e for part in root.children if part.tag == "worldbody" for e in part.walk()]
    found = [e for e in inside if e.tag == "body"]
    if len(found) == model.nbody - 1 and not any(e.tag in UNSETTLED for e in inside):
        return dict(enumerate(found, start=1))
    named = {e.attributes["name"]: e for e in found if "name" in e.attributes}
    copied = {e.attributes.get("name") for c in inside if c.tag == "replicate" for e in c.walk()}
    names = {b: model.body(b).name for b in range(1, model.nbody)}
    return {b: named[name] for b, name in names.items() if name in named and name not in copied}


def _found(bodies: Mapping[int, Element], model: Any, b: int) -> Element:
    if b not in bodies:
        raise RobotFileError(
            f"body {body_name(model, b)!r} has no element of its own in the file, and its numbers changed.",
            "It stands in an included file, is one of several copies, or has no name.",
            "Write it into this file, with a name.",
        )
    return bodies[b]


def _unsettled_bodies(
    edits: Edits, root: Element, model: Any, bodies: Mapping[int, Element]
) -> set[str]:
    """Turn off what overrides or rescales <inertial>; the bodies that this would change."""
    told: set[str] = set()
    for compiler in (e for e in root.children if e.tag == "compiler"):
        if compiler.attributes.get("inertiafromgeom") == "true":
            edits.set(compiler, {"inertiafromgeom": "auto"})
            told |= {
                body_name(model, b)
                for b, element in bodies.items()
                if any(child.tag == "inertial" for child in element.children)
            }
        if "settotalmass" in compiler.attributes:
            edits.set(compiler, {"settotalmass": "-1"})
            told |= {body_name(model, b) for b in range(1, model.nbody) if model.body_mass[b]}
    return told


def _write_inertial(
    edits: Edits,
    body: Element,
    was: LinkDescription,
    now: LinkDescription,
    eps: float,
    *,
    anew: bool,
) -> None:
    """The <inertial> of a body: what changed of it, or all of it where there is none, or it did not count."""
    moments, quaternion = _principal(now, eps)
    values = {"mass": words([now.mass]), "pos": words(now.com)}
    turned = {"quat": words(quaternion), "diaginertia": words(moments)}
    inertial = next((child for child in body.children if child.tag == "inertial"), None)
    if inertial is None:
        attributes = "".join(f' {key}="{value}"' for key, value in (values | turned).items())
        edits.insert(body, f"<inertial{attributes}/>")
        return
    same = {"mass": was.mass == now.mass, "pos": was.com == now.com}
    kept = (was.inertia, was.inertia_rotation) == (now.inertia, now.inertia_rotation)
    new = {key: value for key, value in values.items() if anew or not same[key]}
    if anew or not kept:
        edits.drop(inertial, [*(TURNS[1:]), "fullinertia"])
        new |= turned
    edits.set(inertial, new)


def _principal(link: LinkDescription, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Principal moments, and the quaternion w x y z of their axes in the body."""
    inertia, axes = np.array(link.inertia), np.array(link.inertia_rotation)
    if np.any(inertia != np.diag(np.diag(inertia))):
        moments, own = np.linalg.eigh(inertia)
        axes = axes @ (own * np.sign(np.linalg.det(own)))
    else:
        moments = np.diag(inertia)
    moments = physical(link.name, moments, eps)
    return moments, quaternion_from_matrix(axes)


def _write_joints(
    edits: Edits,
    bodies: Mapping[int, Element],
    model: Any,
    root: Element,
    mech: Mechanism,
    file: Mechanism,
) -> None:
    """Losses, armature and springs of joints; all springs and dampers where MuJoCo finds them of inertias."""
    tuned = any(e.tag == "joint" and TUNED in e.attributes for e in root.walk())
    anew = tuned and any(
        changed(mech, file, field) for field in (*INERTIAL, *PLACEMENT, "armature")
    )
    new = {field: set(changed(mech, file, field)) for field in OF_DOFS}
    for b in range(1, model.nbody):
        first, names = int(model.body_jntadr[b]), joint_names(model, b)
        for i, name in enumerate(names):
            start = int(model.jnt_dofadr[first + i])
            stop = start + (6, 3, 1, 1)[int(model.jnt_type[first + i])]
            told = [field for field in OF_DOFS if not new[field].isdisjoint(range(start, stop))]
            settled = anew or (tuned and not SPRUNG.isdisjoint(told))
            if settled:
                told = [
                    f for f in OF_DOFS if f in told or (f in SPRUNG and getattr(file, f)[start])
                ]
            if told:
                element = _joint_element(_found(bodies, model, b), i, name)
                values = {f: getattr(mech, f)[..., start:stop] for f in told}
                written = _joint_values(model, values, name, start, first + i)
                edits.set(element, written | ({TUNED: "0 0"} if settled else {}))


def _joint_element(body: Element, i: int, name: str) -> Element:
    joints = [e for e in body.walk() if e.tag in ("joint", "freejoint")]
    own = [e for e in joints if not any(e in list(c.walk()) for c in _bodies_below(body))]
    if i >= len(own) or own[i].tag == "freejoint":
        raise MechanismError(
            f"joint {name!r} is a <freejoint>, or not in the file; its numbers changed.",
            "A <freejoint> has neither damping, friction nor armature.",
            'Write <joint type="free"/> into the file instead.',
        )
    return own[i]


def _bodies_below(body: Element) -> list[Element]:
    return [e for e in body.walk() if e.tag == "body" and e is not body]


def _joint_values(
    model: Any, values: Mapping[str, Tensor], name: str, dof: int, joint: int
) -> dict[str, str]:
    """Attributes of a joint; coefficients of higher order, where a version has them, stay."""
    written = {}
    for field, x in values.items():
        numbers = [one_of(x, field, name)]
        kept = {"damping": ("dof_dampingpoly", dof), "stiffness": ("jnt_stiffnesspoly", joint)}
        if field in kept and hasattr(model, kept[field][0]):
            higher = np.asarray(getattr(model, kept[field][0]))[kept[field][1]].tolist()
            numbers += higher if any(higher) else []
        written[OF_DOFS[field]] = words(numbers)
    return written
