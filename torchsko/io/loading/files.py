"""Loading of robot files, with a warning about faults in the file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch

from torchsko.bridge.singular_hinges import undefined
from torchsko.errors import MechanismError, name_list
from torchsko.io.common.meshes import own_folders
from torchsko.io.common.source import check_folders, check_source, format_of, naming
from torchsko.io.loading.build import build_mechanism
from torchsko.io.loading.file_check import check_file
from torchsko.io.loading.mujoco_models import from_mujoco
from torchsko.io.mjcf.read_mjcf import read_mjcf
from torchsko.io.sdf.read_sdf import read_sdf
from torchsko.io.urdf.read_srdf import with_srdf
from torchsko.io.urdf.read_urdf import read_urdf
from torchsko.io.xml.xacro import expand_macros
from torchsko.mechanism.closed_chains.embedded_nodes import close_loops
from torchsko.mechanism.description import GRAVITY, UNRESISTED, Fault
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.geometry import Shape, Surface
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.robot_description import RobotDescription
from torchsko.mechanism.validation import check_finite
from torchsko.shapes.plane import Plane


def load(
    source: str | os.PathLike[str],
    *,
    floating_base: bool = False,
    gravity: Sequence[float] | None = None,
    mimic: Literal["couple", "independent"] = "couple",
    xacro: Mapping[str, str] | None = None,
    strict: bool = False,
    mesh_path: Sequence[str | os.PathLike[str]] | None = None,
    closures: Literal["cut", "embed"] | Sequence[Closure] = "cut",
    independent: Sequence[str] = (),
    srdf: str | os.PathLike[str] | None = None,
    ground: float | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Mechanism:
    """Load a robot file: URDF, MJCF (by MuJoCo's own parser, see `from_mujoco`), or SDF with one model.

    One `RobotFileWarning` names elements that change the dynamics and are not modeled, or in `torchsko.step`
    only (contacts, loops; ``mech.unused`` has the details), and faults in the file that leave its dynamics
    defined (``mech.report``). Faults are read as follows:

    - an unphysical inertia (negative, or against the triangle inequality): as written;
    - negative damping, dry friction or armature: as written;
    - a missing <mass>, <inertia>, or attribute of these: zero; an <axis> without xyz: 1 0 0;
    - a lower limit above the upper limit, and a negative limit of velocity or effort: no limit;
    - position limits of a <mimic> joint that leave its leader no range: ignored;
    - a joint without inertia: as written; `forward_dynamics` raises an error that names it;
    - a <mimic> with an unknown joint: the joint is independent;
    - an attribute that is an element in the format, such as an axis: not read;
    - a site or camera with the name of a body: its frame has another name;
    - a link without joints: separate from the robot; an undeclared parent "world": a link without mass, the
      inertial frame; a missing name of the robot: "robot";
    - white space before the XML declaration: skipped; a line break inside a number: removed; xacro macros in
      unused parts of the file: ignored.

    Args:
        source: path of a URDF, MJCF or SDF file, or its text; the root element determines the format.
            Compiled MuJoCo models have the ending ``.mjb``.
        floating_base: put a free joint named "root_joint" under the root link. It is named "root_joint_LINK"
            if the file has a joint of that name, or several root links.
        gravity: in the inertial frame [m/s^2]; that of the file, or (0, 0, -9.81), when left out.
        mimic: "couple" makes a joint with a <mimic> tag follow its leader exactly, without a coordinate
            (``mech.joint_names``, `torchsko.expand`). "independent" loads it as an independent joint, and
            lists the tag in ``mech.unused``. Linear equalities of joints in MJCF are coupled in the same way;
            "independent" makes them soft constraints of `torchsko.step`.
        xacro: arguments for xacro macros, or {}; the package xacro expands them first. Macros can read any
            file and run expressions, so the file must be trusted. None: macros are refused.
        strict: raise an error for the first fault, or element that changes the dynamics and does not act in
            `torchsko.step`.
        mesh_path: trusted folders besides that of the file. Meshes of URDF and SDF files may lie there;
            ``package://NAME/...`` is searched in a folder NAME (see `torchsko.io.common.meshes`). They are
            read only when drawn. For MJCF, also textures and included files may lie there.
        closures: "embed" makes the loops of the file part of the dynamics: qd, qdd and tau are those of
            independent dofs. "cut" leaves them open; `torchsko.constrain` with ``mech.closures`` enforces
            them. A sequence of `torchsko.constraints.Closure` adds loops, with their methods, to those of
            the file.
        independent: joints of embedded loops that are independent, such as ("crank",). The remaining
            independent dofs are those of actuated joints where the loops allow it.
        srdf: path or text of an SRDF file: its named configurations become ``mech.keyframes``, and its
            disabled pairs of links have no contact.
        ground: height of a horizontal plane for contact with the shapes of a URDF or SDF file [m]; None for
            no plane.
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Returns:
        The mechanism. Its ``unused`` lists the elements of the file that the dynamics does not use, with
        reasons; its ``report`` lists the faults in the file, and how each was read.

    Raises:
        RobotFileError: if the file cannot be read, an element is invalid, or the source is neither a path nor
            text.
        MissingExtraError: if a package that the format needs is not installed.
        MechanismError: if embedded loops do not close, have a kind without rows, or a joint of `independent`
            depends on others; if the robot is invalid,
            has no moving joint, or has a number so large that products overflow (see
            `torchsko.mechanism.magnitudes`).
        TreeError: if the joints do not form a tree.

    Example:
        >>> import torchsko as ts
        >>> ts.load(ts.robots.panda)
        Mechanism('panda': 7 bodies, 7 dofs, 7 revolute; torch.float64, cpu)
    """
    check_source(source)
    if mesh_path is not None:
        check_folders(mesh_path)
    name, locate = source, nullcontext()
    if xacro is not None:
        mesh_path = (*(mesh_path or ()), *own_folders(os.path.dirname(os.path.abspath(source))))
        # The expanded text has no file name, and other line numbers than the file.
        name = f"{os.fspath(source)} with expanded macros"
        source, locate = expand_macros(source, xacro), naming(name)
    with locate:
        robot = _read(source, floating_base, mimic, strict, mesh_path or ())
    with naming(name):
        if not isinstance(robot, RobotDescription):
            for option, value in (("srdf", srdf), ("ground", ground)):
                if value is not None:
                    raise MechanismError(
                        f"{option} was given with an MJCF file.",
                        "An MJCF file contains keyframes, excluded pairs and planes.",
                        "Write them to the file, as <key>, <exclude> and <geom>.",
                    )
            return from_mujoco(
                robot,
                gravity=gravity,
                mimic=mimic,
                strict=strict,
                closures=closures,
                independent=independent,
                dtype=dtype,
                device=device,
            )
        if gravity is None:
            gravity = robot.gravity or GRAVITY
        mech = build_mechanism(
            robot,
            floating_base=floating_base,
            gravity=gravity,
            strict=strict,
            dtype=dtype,
            device=device,
        )
        if mech.singular_joints:
            mech = _report_singular_joints(mech, strict, floating_base)
        mech = close_loops(mech, closures, independent, robot.actuated_joints)
        if srdf is not None:
            mech = with_srdf(mech, srdf, strict=strict)
        if ground is not None:
            mech = _with_ground(mech, ground)
        check_file(mech, strict=strict)
    return mech


def _with_ground(mech: Mechanism, height: float) -> Mechanism:
    """The mechanism with a horizontal plane in the inertial frame."""
    check_finite("ground", z := float(height))
    place = (0.0, 0.0, z)
    plane = Shape(Plane(), name="ground", position=place, collision=True, surface=Surface())
    return mech.replace(geometry=replace(mech.geometry, shapes=(*mech.geometry.shapes, plane)))


def _read(
    source: str | os.PathLike[str],
    floating_base: bool,
    mimic: Literal["couple", "independent"],
    strict: bool,
    mesh_path: Sequence[str | os.PathLike[str]],
) -> Any:
    """A description for URDF and SDF, a compiled model for MJCF."""
    format = format_of(source)
    if format == "sdf":
        return read_sdf(
            source, floating_base=floating_base, mimic=mimic, strict=strict, mesh_path=mesh_path
        )
    if format == "urdf":
        return read_urdf(source, mimic=mimic, strict=strict, mesh_path=mesh_path)
    if floating_base:
        raise MechanismError(
            "floating_base=True was given with an MJCF file.",
            "In MJCF a body floats if the file gives it a free joint.",
            "Leave floating_base out; if the root body has no <freejoint/>, add one to the file.",
        )
    return read_mjcf(source, mesh_path=mesh_path)


def _report_singular_joints(mech: Mechanism, strict: bool, floating_base: bool) -> Mechanism:
    """Add joints without inertia to the mechanism's report; raise an error if strict."""
    if strict:
        what, why, advice = undefined(mech.name, mech.singular_joints)
        for name in mech.singular_joints if floating_base else ():
            if children := _floating_children(mech, name):
                advice = f"The robot floats by {children} already: leave floating_base out."
        raise MechanismError(what, why, advice)
    faults = []
    for name in mech.singular_joints:
        children = _floating_children(mech, name) if floating_base else ""
        hint = f"; the robot floats by {children} already: leave floating_base out"
        faults.append(Fault(f"joint {name!r}", UNRESISTED + (hint if children else "")))
    return mech.replace(report=(*mech.report, *faults))


def _floating_children(mech: Mechanism, joint: str) -> str:
    """Names of the children of a free root joint if all of them are free, as in files of `save`."""
    k, kinds = mech.joint_index(joint), mech.joints.kinds
    children = [i for i, parent in enumerate(mech.parents) if parent == k]
    if mech.parents[k] >= 0 or any(kinds[i].name != "free" for i in (k, *children)):
        return ""
    return name_list([mech.tree_joint_names[i] for i in children])
