"""How a robot goes out: into the file that it came from, with its numbers, or into a new one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torchsko.errors import MechanismError, RobotFileError
from torchsko.io.common.source import check_folders, format_of
from torchsko.io.common.welded_inertia import INERTIAL
from torchsko.io.common.write_back import (
    agrees,
    check_one,
    check_same,
    fitted,
    fitted_joints,
    refuse_changes,
)
from torchsko.io.loading.build import build_mechanism
from torchsko.io.loading.mujoco_models import from_mujoco
from torchsko.io.mjcf.edit_mjcf import edited_mjcf, why_read_otherwise
from torchsko.io.mjcf.new_mjcf import new_mjcf
from torchsko.io.mjcf.read_mjcf import read_mjcf
from torchsko.io.mujoco.mujoco_model import describe
from torchsko.io.urdf.edit_urdf import edited_urdf
from torchsko.io.urdf.new_urdf import new_urdf
from torchsko.io.urdf.read_urdf import read_urdf
from torchsko.io.xml.reader import Document, is_xml_text, read_document
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.utils.atomic_write import temporary_path

NOT_URDF = ("axis", "joint_parameters", "coupling_ratio", "coupling_offset", "armature", "stiffness",
            "gravcomp", "higher_damping", "spring_reference", "lower", "upper", "velocity_limit",
            "effort_limit", "frame_rotation", "frame_position")  # fmt: skip
"""Parameters that are not written into a URDF file that there is."""

NOT_MJCF = ("axis", "gravcomp", "higher_damping", "joint_parameters", "coupling_ratio",
            "coupling_offset", "spring_reference", "velocity_limit", "effort_limit",
            "frame_rotation", "frame_position")  # fmt: skip
"""Parameters that are not written into an MJCF file that there is."""


def save(
    mech: MechanismLike,
    path: str | os.PathLike[str],
    *,
    like: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    mesh_path: Sequence[str | os.PathLike[str]] | None = None,
) -> None:
    """Write a robot into a file: URDF, or MJCF.

    With `like`, the file is that one with its numbers replaced, and every other byte as it was; where no
    number changed, it is a copy. Written are, of URDF, the mass, centre of mass and inertia of links, the
    placement (<origin>), damping and friction of joints; of MJCF mass, centre of mass and inertia of bodies
    (<inertial>, which is put in where MuJoCo inferred it from geoms), the place of bodies, damping, dry
    friction, armature, stiffness and range of joints, and gravity. Other changes are refused by name. URDF
    has no gravity: it is left out.

    Links that fixed joints weld together are one body of the mechanism. A change of it goes to the heaviest
    of them, so that together they are the body; where nothing would be left of its mass, the masses of all
    change in the same ratio first. Where no body could have what is left for it, all of them change, so that
    each is physical if the body is.

    Without `like` the file is new, and holds dynamics, names, limits and shapes: no actuators, no tendons, no
    mass that hangs on the inertial frame. In MJCF what floats begins where ``mech.initial()`` has it, other
    joints at 0, as without a <joint ref>: one q is one pose before and after. It has the robot's keyframes,
    without controls, and its loops between sites, as far as these connect or weld; URDF has neither. Where
    some are left out, a `RobotFileWarning` says so. URDF takes boxes, balls,
    cylinders, capsules, and meshes by the path that the robot's own file gave them; MJCF primitives. Other
    shapes are left out, with a `RobotFileWarning` that counts them. MJCF has no
    limits of velocity, and none that leave no room, as an effort of 0 does; another warning names joints of
    these.
    Bodies and joints are read from a file depth first: after `Mechanism.append`, in another order than here.

    Whatever is written is read again before it takes its name, and refused where it is not this robot. The
    name appears at once, with all of the file.

    Args:
        mech: one robot, no batch.
        path: of the file to write; ``.urdf``, or ``.xml`` or ``.mjcf`` for MJCF. With `like` the format is
            that file's.
        like: the file that the robot was loaded from, or its text.
        overwrite: whether a file of that name may be replaced.
        mesh_path: folders that MJCF may reach besides that of the file, as in `torchsko.load`. A new file in
            another folder names in full what lies there and is not found from it.

    Raises:
        MechanismError: on a batch, a robot that is not that of `like`, or what the format cannot say; names
            it.
        RobotFileError: when there is such a file already, or it cannot be written; when `like` is SDF.

    Example:
        >>> import torchsko as ts, tempfile, pathlib
        >>> arm = ts.load(ts.robots.panda)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "arm.urdf"
        >>> ts.save(arm.replace(mass=1.1 * arm.mass), path, like=ts.robots.panda)
        >>> bool((ts.load(path).mass == 1.1 * arm.mass).all())
        True
    """
    mech, path = as_mechanism(mech), Path(path)
    if path.exists() and not overwrite:
        raise RobotFileError(
            f"{path}: there is such a file already.",
            "Nothing is overwritten unasked.",
            "Pass overwrite=True, or another name.",
        )
    if mesh_path is not None:
        check_folders(mesh_path)
    why = ""
    if like is None:
        data, read = _new(mech, path)
        fields = OF_NEW
    else:
        check_like(like)
        document = read_document(like)
        if document.root.tag == "mujoco":
            data, read = _like_mjcf(mech, path, like, document, mesh_path or ())
            why = why_read_otherwise(document.root)
        else:
            data, read = _like_urdf(mech, like, document)
        fields = tuple(PARAMETERS)
    _put(path, data, lambda file: _check(mech, read(file), fields, why))


def check_like(like: str | os.PathLike[str]) -> None:
    """Refuse a file like which none is written."""
    if format_of(like) == "sdf":
        raise RobotFileError(
            f"{_name(like)} is SDF, which is read and not written.",
            "Its numbers are found by the words of another format.",
            "Leave like out: a new file, .urdf or .xml, has the same dynamics.",
        )


OF_NEW = (
    *INERTIAL,
    "joint_rotation",
    "joint_position",
    "damping",
    "friction",
    "armature",
    "stiffness",
    "gravcomp",
    "higher_damping",
)
"""Parameters by which a new file is compared: a stack of joints may be read as one of another kind."""

Read = Callable[[str], Mechanism]
"""From a path the mechanism in the file there, loaded as the one that is saved was."""


def _like_urdf(mech: Mechanism, like: Any, document: Document) -> tuple[bytes, Read]:
    def read(source: Any) -> tuple[Any, Mechanism]:
        robot = read_urdf(source, mimic="couple" if mech.coupling is not None else "independent")
        moving = {joint.name for joint in robot.joints}
        floating = any(name not in moving for name in mech.tree_joint_names)
        gravity = mech.gravity.detach().tolist()
        return robot, build_mechanism(robot, floating_base=floating, gravity=gravity, strict=False)

    check_one(mech)
    robot, file = read(like)
    check_same(mech, file, _name(like))
    refuse_changes(mech, file, NOT_URDF, "URDF")
    new = fitted(robot, mech, file)
    joints = fitted_joints(robot, mech, file)
    data = edited_urdf(document, robot, type(robot)(robot.name, new.links, joints))
    return data, lambda path: read(path)[1]


def _like_mjcf(
    mech: Mechanism, path: Path, like: Any, document: Document,
    mesh_path: Sequence[str | os.PathLike[str]],
) -> tuple[bytes, Read]:  # fmt: skip
    model = read_mjcf(like, mesh_path=mesh_path)
    file = from_mujoco(model)
    check_same(mech, file, _name(like))
    refuse_changes(mech, file, NOT_MJCF, "MJCF")
    robot = describe(model).robot
    old = Path() if is_xml_text(like) else Path(like).parent
    new, folders = fitted(robot, mech, file), (old, path.parent)
    data = edited_mjcf(document, model, robot, new, mech, file, folders)
    return data, lambda written: from_mujoco(read_mjcf(written, mesh_path=mesh_path))


def _new(mech: Mechanism, path: Path) -> tuple[bytes, Read]:
    formats: dict[str, tuple[Callable[[Mechanism], str], Read]] = {
        ".urdf": (new_urdf, lambda file: _loaded_urdf(mech, file)),
        ".xml": (new_mjcf, lambda file: from_mujoco(read_mjcf(file))),
        ".mjcf": (new_mjcf, lambda file: from_mujoco(read_mjcf(file))),
    }
    if path.suffix not in formats:
        raise RobotFileError(
            f"{path}: the name says no format.",
            "A new file is URDF (.urdf) or MJCF (.xml, .mjcf).",
            "Give it one of these endings.",
        )
    check_one(mech)
    write, read = formats[path.suffix]
    return write(mech).encode(), read


def _loaded_urdf(mech: Mechanism, file: str) -> Mechanism:
    return build_mechanism(read_urdf(file), gravity=mech.gravity.detach().tolist(), strict=False)


def _check(mech: Mechanism, written: Mechanism, fields: Iterable[str], why: str) -> None:
    """Refuse a file that is not the robot."""
    if (field := agrees(mech, written, fields)) is not None:
        usual = (
            "Another setting of the file changes it, such as a least mass, or the format cannot say it.\n"
            "Take that setting out of the file, or save to the other format."
        )
        told = why if why and field in INERTIAL else usual
        raise MechanismError(
            f"{field} of {mech.name!r} would be read otherwise than it is.",
            advice=f"{told}",
        )


def _name(source: Any) -> str:
    text = os.fspath(source)
    return "the text given" if text.lstrip().startswith("<") else text


def _put(path: Path, data: bytes, check: Callable[[str], None]) -> None:
    """Write a file under another name, check it, and rename it."""
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
        why = str(error).split("\n")[0].replace(str(part), str(path))
        raise RobotFileError(
            f"what would be written cannot be read again. {why}",
            "Meshes and included files are looked for beside the new file; of links welded together, the "
            "heaviest takes the change of all, which may be more than a rigid body can.",
            "Save into the folder of the old file, or change mass and inertia of such bodies alike.",
        ) from error
    except OSError as error:
        raise RobotFileError(
            f"{path} cannot be written: {error.strerror or error}.",
            "Its folder must be there, and open to you.",
            "Check the path.",
        ) from error
