"""Edits of numbers in an MJCF file.

MuJoCo computes inertias from geoms, from a total mass in the file, and from defaults of classes. A body whose
inertia changes therefore gets an <inertial> element. So does every other body whose inertia would change when
such a setting is turned off.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchsko.io.mjcf.assets import unreachable_paths
from torchsko.io.mjcf.edit_mjcf_joints import (
    ORIENTATIONS,
    write_joints,
    write_options,
    write_placements,
    write_ranges,
)
from torchsko.io.mjcf.model_elements import ModelElements
from torchsko.io.mjcf.principal_inertia import principal_inertia
from torchsko.io.mujoco.mujoco_fields import body_name
from torchsko.io.xml.edits import Edits, words
from torchsko.io.xml.reader import Document, Element
from torchsko.mechanism.description import LinkDescription
from torchsko.mechanism.mechanism import Mechanism

NEUTRAL_SETTINGS = {
    "inertiafromgeom": "auto", "settotalmass": "-1", "boundmass": "0", "boundinertia": "0",
    "balanceinertia": "false",
}  # fmt: skip
"""Settings of <compiler> that override or change <inertial>, with the value that turns each off."""


def compiler_cause(root: Element) -> tuple[str, str] | None:
    """Reason and advice if a <compiler> setting changes the inertias in a file, else None."""
    edited = {"inertiafromgeom", "settotalmass"}  # `_reset_compiler` turns these off
    found = {
        f'{name}="{value}"': name
        for e in root.children
        if e.tag == "compiler"
        for name, value in e.attributes.items()
        if name in NEUTRAL_SETTINGS and name not in edited and value != NEUTRAL_SETTINGS[name]
    }
    if found:
        neutral = " ".join(f'{name}="{NEUTRAL_SETTINGS[name]}"' for name in found.values())
        return (
            f"The setting <compiler {' '.join(found)}> changes inertias.",
            f"Write {neutral} there.",
        )
    if any(e.tag == "include" for e in root.walk()):
        neutral = " ".join(f'{name}="{value}"' for name, value in NEUTRAL_SETTINGS.items())
        return (
            f"A <compiler> in an included file may change inertias, by {', '.join(NEUTRAL_SETTINGS)}.",
            f"Write <compiler {neutral}/> into this file, after its last <include>.",
        )
    return None


def edit_mjcf(
    document: Document,
    model: Any,
    links: Mapping[str, tuple[LinkDescription, LinkDescription]],
    mech: Mechanism,
    file: Mechanism,
    folders: tuple[Path, Path],
) -> bytes:
    """Replace inertias of bodies, and placements, parameters and ranges of joints, and gravity.

    Args:
        document: the file.
        model: ``mujoco.MjModel`` compiled from it.
        links: old and new link by name.
        mech: mechanism with the new numbers.
        file: mechanism of the file.
        folders: folder of the file, and of the new file, in which paths must still resolve.

    Returns:
        The bytes of the edited file.

    Raises:
        RobotFileError: if the file has no element for a changed body, as for one in an included file.
        MechanismError: for a number that the format does not support.
    """
    edits, elements = Edits(document), ModelElements.of(document.root, model)
    changed = {name for name, (old, new) in links.items() if old != new}
    overridden = _reset_compiler(edits, elements) if changed else set()
    eps = torch.finfo(mech.dtype).eps
    for b in range(1, model.nbody):
        if (name := body_name(model, b)) in changed | overridden:
            _write_inertial(
                edits, elements.body(b), *links[name], eps, all_values=name in overridden
            )
    write_joints(edits, elements, mech, file)
    write_placements(edits, elements, mech, file)
    write_ranges(edits, elements, mech, file)
    write_options(edits, document.root, mech, file)
    for element, paths in unreachable_paths(document.root, *folders):
        edits.set(element, paths)
    return edits.result()


def _reset_compiler(edits: Edits, elements: ModelElements) -> set[str]:
    """Turn off settings that override or scale <inertial>; returns the bodies whose inertia this changes."""
    model, overridden = elements.model, set[str]()
    for compiler in (e for e in elements.root.children if e.tag == "compiler"):
        if compiler.attributes.get("inertiafromgeom") == "true":
            edits.set(compiler, {"inertiafromgeom": "auto"})
            overridden |= {
                body_name(model, b)
                for b, element in elements.bodies.items()
                if any(child.tag == "inertial" for child in element.children)
            }
        if "settotalmass" in compiler.attributes:
            edits.set(compiler, {"settotalmass": "-1"})
            overridden |= {body_name(model, b) for b in range(1, model.nbody) if model.body_mass[b]}
    return overridden


def _write_inertial(
    edits: Edits,
    body: Element,
    old: LinkDescription,
    new: LinkDescription,
    eps: float,
    *,
    all_values: bool,
) -> None:
    """Write changed values of the <inertial> of a body, or all values if it is missing or was overridden."""
    moments, quaternion = principal_inertia(
        new.name, np.array(new.inertia), eps, np.array(new.inertia_rotation)
    )
    values = {"mass": words([new.mass]), "pos": words(new.com)}
    rotational = {"quat": words(quaternion), "diaginertia": words(moments)}
    inertial = next((child for child in body.children if child.tag == "inertial"), None)
    if inertial is None:
        attributes = "".join(f' {key}="{value}"' for key, value in (values | rotational).items())
        edits.insert(body, f"<inertial{attributes}/>")
        return
    equal = {"mass": old.mass == new.mass, "pos": old.com == new.com}
    written = {key: value for key, value in values.items() if all_values or not equal[key]}
    if all_values or (old.inertia, old.inertia_rotation) != (new.inertia, new.inertia_rotation):
        edits.drop(inertial, [*ORIENTATIONS[1:], "fullinertia"])
        written |= rotational
    edits.set(inertial, written)
