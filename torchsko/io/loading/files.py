"""A robot comes in from a file, and its faults are told."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch

from torchsko.bridge.singular_hinges import undefined
from torchsko.errors import MechanismError, RobotFileWarning, name_list
from torchsko.io.common.meshes import own_folders
from torchsko.io.common.source import check_folders, check_source, format_of, naming
from torchsko.io.loading.build import build_mechanism
from torchsko.io.loading.mujoco_models import from_mujoco
from torchsko.io.mjcf.read_mjcf import read_mjcf
from torchsko.io.sdf.read_sdf import read_sdf
from torchsko.io.urdf.read_urdf import read_urdf
from torchsko.io.xml.xacro import expand_macros
from torchsko.mechanism.description import GRAVITY, UNRESISTED, Fault, RobotDescription
from torchsko.mechanism.mechanism import Mechanism

TOLD = 12
"""Faults that the warning of a load names; all are in the report."""


def load(
    source: str | os.PathLike[str],
    *,
    floating_base: bool = False,
    gravity: Sequence[float] | None = None,
    mimic: Literal["couple", "independent"] = "couple",
    xacro: Mapping[str, str] | None = None,
    strict: bool = False,
    mesh_path: Sequence[str | os.PathLike[str]] | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Mechanism:
    """Load a robot file: URDF, MJCF by MuJoCo's own parser (see `from_mujoco`), or one model of SDF.

    Faults of a URDF file that leave the dynamics defined do not keep it from loading. They are read as
    follows, named in one `RobotFileWarning`, and kept in ``mech.report``:

    - an inertia that no rigid body has (it breaks the triangle inequality, or is negative): as written;
    - no <mass>, no <inertia>, or an attribute of these missing: zero; <axis> without xyz: 1 0 0;
    - lower above upper limit, and a negative limit of velocity or effort: no limit; limits of position of a
      joint with <mimic> that leave the one it follows none: not held;
    - a joint that no inertia resists: as written, `forward_dynamics` refuses it by name;
    - a <mimic> that names no joint of the file: none, its joint is one of its own;
    - a link that no joint names: apart from the robot; a parent "world" that nobody declares: a link
      without mass, the inertial frame; no name of the robot: "robot";
    - white space before the XML declaration: skipped; a line break inside a number: joined; macros of
      xacro where nothing is read: left alone.

    Args:
        source: path of a URDF, MJCF or SDF file, or the text of one; the outermost element says which. Models
            that MuJoCo has compiled end in ``.mjb``.
        floating_base: put a free joint named "root_joint" under the root link; named
            "root_joint_LINK" where a moving joint of the file has that name, or several links are roots.
        gravity: in the inertial frame [m/s^2]; the file's own, or (0, 0, -9.81), when left out.
        mimic: "couple" lets a joint with a <mimic> tag follow the joint it names, exactly: it has no
            coordinate of its own (``mech.joint_names``, `torchsko.expand`). "independent" loads it as a
            joint like any other, and reports the tag.
        xacro: expand macros first, by the package xacro: its arguments, or {} for none. Macros read files
            and compute, so a file must be trusted for that. None: they are refused.
        strict: refuse these faults instead, the first of them by an error.
        mesh_path: folders that are trusted besides the file's own. The meshes of a URDF or SDF file may lie
            there: ``package://NAME/...`` is looked for in a folder NAME (see
                `torchsko.io.common.meshes`), and
            none is read before it is drawn. Of MJCF, whose compiler reads all at once, meshes, textures
            and included files may.
        dtype: torch.float32 or torch.float64.
        device: of all tensors.

    Returns:
        The mechanism; its ``unused`` lists what the file holds and the dynamics does not use, and why; its
        ``report`` the faults of the file, and what was done about each.

    Raises:
        RobotFileError: when the file cannot be read, or says what has no meaning; names the element; when
            what is given is neither path nor text, such as bytes or an open file.
        MissingExtraError: when what it takes to read it is not installed.
        MechanismError: when what it says is no mechanism, nothing moves, or a number is so large that
            products of it overflow (see `torchsko.mechanism.magnitudes`).
        TreeError: when its joints form no tree.

    Example:
        >>> import torchsko as ts
        >>> ts.load(ts.robots.panda)
        Mechanism('panda': 7 bodies, 7 dofs, 7 revolute; torch.float64, cpu)
    """
    check_source(source)
    if mesh_path is not None:
        check_folders(mesh_path)
    file, unnamed = source, nullcontext()
    if xacro is not None:
        mesh_path = (*(mesh_path or ()), *own_folders(os.path.dirname(os.path.abspath(source))))
        # What macros become is text: readers cannot name it, and its lines are not those of the file.
        file = f"{os.fspath(source)}, its macros expanded"
        source, unnamed = expand_macros(source, xacro), naming(file)
    with unnamed:
        read = _read(source, floating_base, mimic, strict, mesh_path or ())
    with naming(file):
        if not isinstance(read, RobotDescription):
            return from_mujoco(read, gravity=gravity, dtype=dtype, device=device)
        if gravity is None:
            gravity = read.gravity or GRAVITY
        mech = build_mechanism(
            read,
            floating_base=floating_base,
            gravity=gravity,
            strict=strict,
            dtype=dtype,
            device=device,
        )
        if mech.singular_joints:
            mech = _with_singular(mech, strict, floating_base)
    if mech.report:
        warnings.warn(_told(mech), RobotFileWarning, stacklevel=2)
    return mech


def _read(
    source: str | os.PathLike[str],
    floating_base: bool,
    mimic: Literal["couple", "independent"],
    strict: bool,
    mesh_path: Sequence[str | os.PathLike[str]],
) -> Any:
    """A description by the reader of the source's format; of MJCF the model that MuJoCo compiled."""
    found = format_of(source)
    if found == "sdf":
        return read_sdf(
            source, floating_base=floating_base, mimic=mimic, strict=strict, mesh_path=mesh_path
        )
    if found == "urdf":
        return read_urdf(source, mimic=mimic, strict=strict, mesh_path=mesh_path)
    if floating_base:
        raise MechanismError(
            "floating_base=True was given with an MJCF file.",
            "There a body floats where the file gives it a free joint, and only there.",
            "Leave floating_base out; where the root body has no <freejoint/>, write one into it.",
        )
    return read_mjcf(source, mesh_path=mesh_path)


def _with_singular(mech: Mechanism, strict: bool, floating_base: bool) -> Mechanism:
    """The mechanism with joints that no inertia resists in its report; refused when strict."""
    if strict:
        what, why, advice = undefined(mech.name, mech.singular_joints)
        for name in mech.singular_joints if floating_base else ():
            if twice := _floats_twice(mech, name):
                advice = f"The robot floats twice, by {name!r} too{twice}."
        raise MechanismError(what, why, advice)
    faults = (
        Fault(
            f"joint {name!r}",
            UNRESISTED + (_floats_twice(mech, name) if floating_base else ""),
        )
        for name in mech.singular_joints
    )
    return mech.replace(report=(*mech.report, *faults))


def _floats_twice(mech: Mechanism, joint: str) -> str:
    """Advice on a free joint of a root link on which nothing hangs but free joints, as in files of `save`."""
    k, kinds = mech.joint_index(joint), mech.joints.kinds
    below = [i for i, parent in enumerate(mech.parents) if parent == k]
    afloat = all(kinds[i].name == "free" for i in (k, *below))
    if mech.parents[k] >= 0 or not below or not afloat:
        return ""
    names = name_list([mech.tree_joint_names[i] for i in below])
    return f"; what it carries floats by {names} already: leave floating_base out"


def _told(mech: Mechanism) -> str:
    """All faults by name: the first dozen, and how many more."""
    count = len(mech.report)
    lines = [f"  {fault}" for fault in mech.report[:TOLD]]
    more = [f"  and {count - TOLD} more"] if count > TOLD else []
    return "\n".join(
        [
            f"the robot {mech.name!r} loaded in spite of {count} fault{'s' * (count > 1)}:",
            *lines,
            *more,
            "mech.report keeps them; load(..., strict=True) refuses them.",
        ]
    )
