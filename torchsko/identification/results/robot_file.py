"""Robot file of a fit, and the parts of a fit that a `Mechanism` or a file format does not have."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import (
    FitError,
    MechanismError,
    RobotFileWarning,
    caller_stack_level,
)
from torchsko.identification.friction import Term, TermInput
from torchsko.identification.results.fit_result import FitResult
from torchsko.io.common.source import format_of
from torchsko.io.loading.files import load
from torchsko.io.mjcf.assets import copy_assets
from torchsko.io.saving import UNSUPPORTED, save
from torchsko.io.xml.reader import is_xml_text
from torchsko.mechanism.coordinates import independent_rates
from torchsko.mechanism.edits.lock import followed_by
from torchsko.mechanism.mechanism import Mechanism

Folders = Sequence[str | os.PathLike[str]]
"""Further trusted folders of a robot file."""

ROBOTS = ("robot.urdf", "robot.xml")
"""Names of the robot file in URDF and MJCF."""

FORMATS = dict(zip(("urdf", "mjcf"), ROBOTS, strict=True))
"""Name of the robot file by format."""


def robot_file(like: Any, file_format: str | None = None) -> str:
    """Name of the robot file of a fit.

    Args:
        like: file of the nominal robot, or its text; None for a new file.
        file_format: "urdf" or "mjcf"; by default that of `like`, and URDF for SDF and new files.

    Raises:
        FitError: if there is no such format.
    """
    if file_format is None:
        file_format = "mjcf" if like is not None and format_of(like) == "mjcf" else "urdf"
    if file_format not in FORMATS:
        raise FitError(
            f"the file format of the robot is {file_format!r}.",
            "A robot is written as URDF or MJCF.",
            'Pass file_format="urdf" or "mjcf" (--format mjcf).',
        )
    return FORMATS[file_format]


def save_robot(
    fit: FitResult, folder: Path, like: Any, file_format: str | None, mesh_path: Folders | None
) -> str | None:
    """Write the robot of a fit and the files that it refers to, with one warning about all that it lacks.

    Returns:
        The name of the file; None if its format cannot represent the robot.

    Raises:
        FitError: an unknown format.
        RobotFileError: when the file cannot be written, or cannot be loaded from there.
    """
    name = robot_file(like, file_format)
    for old in ROBOTS:
        if old != name:
            (folder / old).unlink(missing_ok=True)  # it would be loaded instead
    # A file of another format is not edited; a new file has the dynamics.
    model = (
        like if like is not None and robot_file(like) == name and format_of(like) != "sdf" else None
    )
    mech, left = _representable(fit, name, model)
    try:
        _check_couplings(mech, name)
        if model is not None and name == FORMATS["mjcf"] and not is_xml_text(model):
            copy_assets(Path(model), folder)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            save(mech, folder / name, like=model, overwrite=True, mesh_path=mesh_path)
    except MechanismError as error:
        (folder / name).unlink(missing_ok=True)
        _warn(
            f"{name} was not written: {error.what}",
            f"{error.why} fit.pt has the whole fit.".strip(),
            "Load it with the robot that was identified: Fit.load(folder, robot=mech).",
        )
        return None
    lines = _loss_lines(fit, name, left) + [str(x.message) for x in caught]
    if lines:
        _warn(*lines)
    return name


def _check_couplings(mech: Mechanism, file: str) -> None:
    """Check that a file keeps all couplings: without one, a fit has other dofs than its robot file.

    Raises:
        MechanismError: names the joints.
    """
    several = [mech.tree_joint_names[k] for k, row in followed_by(mech).items() if len(row) != 1]
    if file == FORMATS["urdf"] and several:
        raise MechanismError(
            f"joints of {mech.name!r} follow several joints: {', '.join(several)}.",
            "URDF has joints that follow one joint.",
            "Save it as MJCF.",
        )


def _loss_lines(fit: FitResult, file: str, left: Sequence[str]) -> list[str]:
    """Lines of a warning about parts of a fit that its robot file lacks; empty if it has all."""
    lacks = missing_from_mechanism(fit)
    if not (left or lacks):
        return []
    advice = (
        "Use Fit.load(folder).inverse_dynamics for the whole model; Fit.load(folder).mechanism has "
    )
    advice += f"all but the {'; '.join(lacks)}." if lacks else "all of it, too."
    if file == FORMATS["urdf"] and any(x.startswith(ROTORS) for x in left):
        advice += ' MJCF has rotor inertia: file_format="mjcf" or --format mjcf.'
    return [
        f"{file} does not have the {'; '.join([*left, *lacks])}.",
        "A robot file has no parameters for it; fit.pt has it.",
        advice,
    ]


def _warn(*lines: str) -> None:
    warnings.warn("\n".join(lines), RobotFileWarning, stacklevel=caller_stack_level())


ROTORS = "rotor inertia"
"""Name of the armature of joints in messages."""


def _representable(fit: FitResult, file: str, like: Any) -> tuple[Mechanism, list[str]]:
    """The robot of a fit without parameters that its file format cannot represent, and texts that name these.

    URDF has no rotor inertia, and one friction coefficient for all dofs of a joint. No format has constant
    joint forces or transition speeds of dry friction.
    """
    mech, given = fit.mechanism, fit.nominal
    changes = {name: torch.zeros_like(getattr(mech, name)) for name in UNSUPPORTED}
    left = _nonzero_dofs(mech, "constant force", mech.force_offset, "N m or N")
    if file == ROBOTS[0]:
        changes["armature"] = _armature_of(mech, like)
        left += _nonzero_dofs(mech, ROTORS, mech.armature - changes["armature"], "kg m^2 or kg")
    for field in ("damping", "friction", *(["armature"] if file == ROBOTS[1] else [])):
        old, new = getattr(given, field), getattr(mech, field).clone()
        for k, joint in enumerate(mech.tree_joint_names):
            # A planar joint of MJCF is several joints there.
            dofs = mech.tree_dof_slice(joint)
            if file == ROBOTS[1] and mech.joints.kinds[k].vector:
                continue
            if len(new[dofs].unique()) > 1:
                left.append(
                    f"{field} of {joint} {', '.join(f'{x:.3g}' for x in new[dofs].tolist())}"
                )
                new[dofs] = old[dofs]
                changes[field] = new
    return mech.replace(**changes, replaced=mech.replaced), left


def _armature_of(mech: Mechanism, urdf: Any) -> Tensor:
    """Armature of a URDF file, from its transmissions, at the dofs of a robot; zero for a new file."""
    armature = torch.zeros_like(mech.armature)
    if urdf is None:
        return armature
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobotFileWarning)
        file = load(urdf, mimic="independent")
    for joint in set(file.tree_joint_names) & set(mech.tree_joint_names):
        armature[mech.tree_dof_slice(joint)] = file.armature[file.tree_dof_slice(joint)].to(
            armature
        )
    return armature


def _nonzero_dofs(mech: Mechanism, what: str, values: Tensor, unit: str) -> list[str]:
    """Text that lists the nonzero values of independent dofs, if there are such values."""
    pairs = zip(mech.dof_names, independent_rates(mech, values).tolist(), strict=True)
    found = [f"{name} {x:.3g}" for name, x in pairs if x]
    return [f"{what} of {', '.join(found)} {unit}"] if found else []


def missing_from_mechanism(fit: FitResult) -> tuple[str, ...]:
    """Parts of the memoryless model that the identified mechanism does not have; see `Fit`."""
    found: dict[str, list[str]] = {}
    robot = fit.mechanism
    speeds = independent_rates(robot, robot.friction_speed).tolist()
    rows = zip(fit.row_names, robot.dof_names, fit.terms, fit.numbers, speeds, strict=True)
    for joint, name, terms, numbers, speed in rows:
        if joint != name and bool(numbers.any()):
            found.setdefault("friction", []).append(joint)
            continue
        for term in _unrepresented(terms, numbers.tolist(), speed):
            found.setdefault(f"{term.label} term", []).append(joint)
    if not fit.info.physical:
        found["identified inertias (not physical)"] = ["all bodies"]
    return tuple(f"{what} of {', '.join(names)}" for what, names in found.items())


def _unrepresented(terms: Sequence[Term], numbers: Sequence[float], speed: float) -> Iterator[Term]:
    """Terms of a dof whose force is not that of the mechanism's parameters.

    Args:
        terms: of the dof.
        numbers: their coefficients.
        speed: transition speed of dry friction of the mechanism.
    """
    state = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
    q, qd, qdd, load = state, 0.2 * state.flip(0), state.roll(2, 0), state.roll(4, 0)
    motion = TermInput(q, qd, qdd, load, ordered=False)
    dry = (qd / speed).tanh() if speed else qd.sign()
    for term, x in zip(terms, numbers, strict=True):
        force = term.damping * qd + term.friction * dry + term.offset + term.armature * qdd
        clamped = x < 0 and bool(term.damping or term.friction)
        if x and (clamped or not torch.allclose(term.basis(motion), force)):
            yield term
