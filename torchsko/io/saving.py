"""Saving robots: into a copy of their own file with new parameters, or into a new file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from torchsko.errors import MechanismError, RobotFileError
from torchsko.io.common.losses import Losses
from torchsko.io.common.source import check_folders, format_of
from torchsko.io.common.unwritten import note_unwritten
from torchsko.io.common.welded_inertia import INERTIAL
from torchsko.io.common.write_back import (
    check_same_robot,
    check_unbatched,
    first_difference,
    refuse_changes,
    updated_joints,
    updated_links,
)
from torchsko.io.loading.build import build_mechanism
from torchsko.io.loading.mujoco_models import convert
from torchsko.io.mjcf.edit_mjcf import compiler_cause, edit_mjcf
from torchsko.io.mjcf.new_mjcf import new_mjcf
from torchsko.io.mjcf.read_mjcf import read_mjcf
from torchsko.io.mujoco.mujoco_model import describe
from torchsko.io.urdf.edit_urdf import edit_urdf
from torchsko.io.urdf.new_urdf import new_urdf
from torchsko.io.urdf.read_urdf import read_urdf
from torchsko.io.xml.reader import Document, is_xml_text, read_document
from torchsko.mechanism.closed_chains.open_chains import cut_loops
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.fields import FIELDS, PARAMETERS
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.atomic_write import temporary_path

Read = Callable[[str], Mechanism]
"""Loads a file with the options with which the saved robot was loaded."""


def save(
    mech: MechanismLike,
    path: str | os.PathLike[str],
    *,
    like: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    mesh_path: Sequence[str | os.PathLike[str]] | None = None,
    strict: bool = False,
) -> None:
    """Save a robot to a URDF or MJCF file.

    With `like`, the file is a copy of `like` in which only changed numbers are replaced:

    - URDF: mass, center of mass and inertia of links; placement (<origin>), damping and friction of joints.
      URDF has no gravity.
    - MJCF: mass, center of mass and inertia of bodies (in an <inertial> element, which is added if MuJoCo
      inferred them from geoms); placement of bodies; damping, dry friction, armature, stiffness and range of
      joints; gravity. MuJoCo computes the boxes of fluid forces from the inertias, so a loaded file has boxes
      of the new inertias.

    Changes of other tensors raise an error, those of other data (shapes, actuators, options) a warning. Links
    welded together by fixed joints are one body of the mechanism, and a change of the body is distributed
    over them (`torchsko.io.common.welded_inertia`).

    Without `like` the file is new. One `RobotFileWarning` names all parts of the robot that it lacks:

    - MJCF has everything that `torchsko.step` uses: joints with limits, losses and parameters of soft
      constraints, actuators, tendons, sensors, equalities, shapes with contact parameters and pairs,
      keyframes, options and flags. It has no velocity limits, limits without range, torque-speed curves of
      motors, mesh files and materials beyond a color; nor parts of the robot's own file that torchsko does
      not model. Cameras become sites, lights are left out. A revolute loop becomes two points on its axis.
      Moving bodies without inertia get 2e-15 kg. A mesh with a simplified hull (``maxhullvert``) becomes that
      hull.
    - URDF has links, joints with limits, damping and friction, joints that follow one other, boxes, spheres,
      cylinders, capsules and meshes, the latter with the path in the robot's own file, ball, weld, revolute
      and prismatic loops (URDF+), and flexible links (an extension of torchsko, see
      ``docs/flexible_bodies.md``).

    Files do not specify whether a loop is embedded: pass ``closures`` to `torchsko.load` again.

    A loaded file lists bodies and joints depth first; after `Mechanism.append` their order in `mech` differs.

    The file is first written under a temporary name, loaded again and compared with the robot, then renamed.

    Args:
        mech: a robot without batch dimensions.
        path: output file; ``.urdf``, or ``.xml`` or ``.mjcf`` for MJCF. With `like`, its format is used.
        like: the file from which the robot was loaded, or its text.
        overwrite: replace an existing file.
        mesh_path: further trusted folders for MJCF, as in `torchsko.load`. A file saved to another folder
            refers to files outside the folder of `like` by relative paths where `torchsko.load` permits them,
            else by absolute paths.
        strict: raise an error instead of a warning, and write no file.

    Raises:
        MechanismError: for a batch, another robot than that of `like`, a structure that the format does not
            have, or with `strict` the parts that the file would lack.
        RobotFileError: if the file exists or cannot be written, or `like` is SDF.

    Example:
        >>> import torchsko as ts, tempfile, pathlib
        >>> arm = ts.load(ts.robots.panda)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "arm.urdf"
        >>> ts.save(arm.replace(mass=1.1 * arm.mass), path, like=ts.robots.panda)
        >>> bool((ts.load(path).mass == 1.1 * arm.mass).all())
        True
    """
    given, path = as_mechanism(mech), Path(path)
    mech = cut_loops(given)
    initial = given.file_metadata.initial  # a loaded file closes its loops by itself
    mech = mech.replace(file_metadata=replace(mech.file_metadata, initial=initial))
    if path.exists() and not overwrite:
        raise RobotFileError(
            f"{path} exists already.",
            advice="Pass overwrite=True, or another path.",
        )
    if mesh_path is not None:
        check_folders(mesh_path)
    cause = OTHER_CAUSE
    fields: Sequence[str] = tuple(PARAMETERS)
    losses = Losses(mech.name, "MJCF", like is not None)
    if like is None:
        data, read = _new(mech, path, losses)
        fields = _fields_in("new")
    else:
        check_like(like)
        document = read_document(like)
        if document.root.tag == "mujoco":
            data, read = _like_mjcf(mech, path, like, document, mesh_path or (), losses)
            cause = compiler_cause(document.root) or OTHER_CAUSE
        else:
            losses.format = "URDF"
            data, read = _like_urdf(mech, like, document, losses)

    def check(file: str) -> None:
        again = read(file) if like is None else _with_boxes(read(file), mech)
        compared = [name for name in fields if name not in losses.fields]
        if (field := first_difference(mech, again, compared)) is not None:
            why, advice = cause if field in INERTIAL else OTHER_CAUSE
            raise MechanismError(
                f"{field} of {mech.name!r} would differ when the file is loaded.", why, advice
            )
        if strict:
            losses.refuse()

    _write(path, data, check)
    losses.warn()


OTHER_CAUSE = (
    "Another setting in the file changes it, or the format does not support it.",
    "Remove that setting from the file, or save to the other format.",
)
"""Why and advice for a parameter that differs after a file is loaded."""


FLUID_BOXES = ("fluid_rotation", "fluid_position", "fluid_size")
"""Parameters of boxes with fluid forces, which MuJoCo computes from the inertias of a file."""


def _with_boxes(file: Mechanism, mech: Mechanism) -> Mechanism:
    """The mechanism of a copied file with the boxes of another one; ellipsoids remain those of the file."""
    if file.fluid_models != mech.fluid_models:
        return file
    computed = [model != "ellipsoid" for model in mech.fluid_models]
    is_box = torch.tensor(computed, dtype=torch.bool, device=file.device)
    changes = {}
    for name in FLUID_BOXES:
        ours, theirs = getattr(mech, name), getattr(file, name)
        chosen = is_box.reshape(-1, *(1,) * (len(FIELDS[name].shape) - 1))
        changes[name] = torch.where(chosen, ours.to(theirs), theirs)
    return file.replace(**changes, replaced=file.replaced)


UNSUPPORTED = ("friction_speed", "force_offset", "medium")
"""Parameters that no file has, besides the fluid of MJCF."""


def _fields_in(files: str) -> tuple[str, ...]:
    """Tensors that these files have; in a new file a stack of joints may be read as one joint."""
    return tuple(name for name, field in FIELDS.items() if files in field.files)


def _fields_not_in(files: str) -> tuple[str, ...]:
    """Tensors of which a change is not written into an existing file."""
    return tuple(name for name, field in FIELDS.items() if files not in field.files)


def check_like(like: str | os.PathLike[str]) -> None:
    """Refuse a file whose format cannot be written.

    Raises:
        RobotFileError: if the file is SDF.
    """
    if format_of(like) == "sdf":
        raise RobotFileError(
            f"{_name(like)} is an SDF file, which can be read but not written.",
            advice="Leave like out: a new .urdf or .xml file has the same dynamics.",
        )


def _like_urdf(
    mech: Mechanism, like: Any, document: Document, losses: Losses
) -> tuple[bytes, Read]:
    def read(source: Any) -> tuple[Any, Mechanism]:
        robot = read_urdf(source, mimic="couple" if mech.coupling is not None else "independent")
        moving = {joint.name for joint in robot.joints}
        floating = any(name not in moving for name in mech.tree_joint_names)
        gravity = mech.gravity.detach().tolist()
        return robot, build_mechanism(robot, floating_base=floating, gravity=gravity, strict=False)

    check_unbatched(mech)
    robot, file = read(like)
    check_same_robot(mech, file, _name(like))
    refuse_changes(mech, file, _fields_not_in("urdf"), "URDF")
    note_unwritten(mech, file, losses)
    links, joints = updated_links(robot, mech, file), updated_joints(robot, mech, file)
    data = edit_urdf(document, robot, replace(robot, links=links, joints=joints))
    return data, lambda path: read(path)[1]


def _like_mjcf(
    mech: Mechanism, path: Path, like: Any, document: Document,
    mesh_path: Sequence[str | os.PathLike[str]], losses: Losses,
) -> tuple[bytes, Read]:  # fmt: skip
    model = read_mjcf(like, mesh_path=mesh_path)
    mimic: Literal["couple", "independent"] = "independent" if mech.coupling is None else "couple"
    file = convert(model, mimic=mimic)
    check_same_robot(mech, file, _name(like))
    refuse_changes(mech, file, _fields_not_in("mjcf"), "MJCF")
    note_unwritten(mech, file, losses)
    robot = describe(model, mimic).robot
    links = {
        new.name: (old, new)
        for old, new in zip(robot.links, updated_links(robot, mech, file), strict=True)
    }
    folder = Path() if is_xml_text(like) else Path(like).parent
    data = edit_mjcf(document, model, links, mech, file, (folder, path.parent))
    return data, lambda written: convert(read_mjcf(written, mesh_path=mesh_path), mimic=mimic)


def _new(mech: Mechanism, path: Path, losses: Losses) -> tuple[bytes, Read]:
    if path.suffix not in (".urdf", ".xml", ".mjcf"):
        raise RobotFileError(
            f"{path} has {f'the ending {path.suffix!r}' if path.suffix else 'no ending'}.",
            "The ending selects the format: URDF (.urdf) or MJCF (.xml, .mjcf).",
            "Choose a name with one of these endings.",
        )
    check_unbatched(mech)
    losses.add_if(_unmodeled(mech), "parts of its own file that torchsko does not model:")
    if path.suffix == ".urdf":
        losses.format = "URDF"
        return new_urdf(mech, losses).encode(), lambda file: _loaded_urdf(mech, file)
    return new_mjcf(mech, losses).encode(), lambda file: convert(read_mjcf(file))


def _unmodeled(mech: Mechanism) -> list[str]:
    """Elements of the robot's own file of which the mechanism has no description."""
    absent = [x for x in mech.unused if x.absent or (x.affects_forces and not x.in_step)]
    return [x.element for x in (*absent, *mech.file_metadata.actuators.unused)]


def _loaded_urdf(mech: Mechanism, file: str) -> Mechanism:
    return build_mechanism(read_urdf(file), gravity=mech.gravity.detach().tolist(), strict=False)


def _name(source: Any) -> str:
    text = os.fspath(source)
    return "the given text" if text.lstrip().startswith("<") else text


def _write(path: Path, data: bytes, check: Callable[[str], None]) -> None:
    """Write a file under a temporary name, check it, and rename it."""
    part = temporary_path(path)
    try:
        try:
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            check(str(part))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except RobotFileError as error:
        cause = error.what.replace(str(part), str(path))
        raise RobotFileError(
            f"the saved file could not be loaded again: {cause}",
            "The new folder may lack meshes or included files, or welded links became unphysical.",
            "Save into the folder of the old file, or scale mass and inertia of a body by the same factor.",
        ) from error
    except OSError as error:
        raise RobotFileError(
            f"{path} cannot be written: {error.strerror or error}.",
            "The folder has to exist and to be writable.",
            "Check the path.",
        ) from error
