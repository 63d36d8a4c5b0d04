"""Parts of a mechanism that URDF cannot express."""

from __future__ import annotations

from dataclasses import fields

import torch

from torchsko.io.common.losses import Losses
from torchsko.io.urdf.new_loops import note_loops
from torchsko.io.urdf.new_shapes import note_shapes
from torchsko.mechanism.description import GRAVITY
from torchsko.mechanism.edits.lock import followed_by
from torchsko.mechanism.file_data.solver_options import SOLIMP, SOLREF, SolverOptions
from torchsko.mechanism.mechanism import Mechanism

DOF_PARTS = {
    "armature": "armature of joints",
    "stiffness": "springs of joints",
    "higher_stiffness": "nonlinear springs of joints",
    "higher_damping": "nonlinear damping of joints",
    "friction_speed": "widths of smooth dry friction (friction_speed) of joints",
    "force_offset": "constant forces (force_offset) of joints",
}
"""Parameters of dofs that URDF does not have."""

FLUID = ("medium", "wind", "fluid_rotation", "fluid_position", "fluid_size", "fluid_coefficients")


def note_losses(mech: Mechanism, losses: Losses) -> None:
    """Add all parts of a mechanism that URDF cannot express."""
    for field, part in DOF_PARTS.items():
        values = getattr(mech, field)
        names = [x for x in mech.tree_joint_names if bool(values[mech.tree_dof_slice(x)].any())]
        losses.add_if(names, part, (field,))
    for field in ("damping", "friction"):
        values, names = getattr(mech, field), []
        for name in mech.tree_joint_names:
            x = values[mech.tree_dof_slice(name)]
            names += [name] * bool((x != x[0]).any())
        losses.add_if(names, f"{field} that differs among the dofs of joints", (field,))
    lifted = [n for n, x in zip(mech.body_names, mech.gravcomp, strict=True) if bool(x.any())]
    losses.add_if(lifted, "gravity compensation of bodies", ("gravcomp",))
    if bool(mech.medium.any()):
        losses.add("fluid forces", fields=FLUID)
    if mech.gravity.tolist() != mech.gravity.new_tensor(GRAVITY).tolist():
        losses.add(f"gravity {mech.gravity.tolist()}, pass gravity= to torchsko.load")
    several = [mech.tree_joint_names[k] for k, row in followed_by(mech).items() if len(row) != 1]
    losses.add_if(several, "couplings of several joints, which become independent joints:")
    losses.add_if(
        [x.equality.name for x in mech.file_metadata.coupled], "solver parameters of couplings"
    )
    note_shapes(mech, losses)
    note_loops(mech, losses)
    _note_metadata(mech, losses)


def _note_metadata(mech: Mechanism, losses: Losses) -> None:
    """Note initial positions, named states, actuators, tendons, sensors and solver parameters."""
    metadata = mech.file_metadata
    differ = mech.initial() != mech.neutral()
    started = [name for name in mech.joint_names if bool(differ[mech.q_slice(name)].any())]
    losses.add_if(started, "initial positions (mech.initial()) of joints")
    for part, elements in (
        ("keyframes", metadata.keyframes),
        ("actuators", metadata.actuators.actuators),
        ("tendons", metadata.tendons),
        ("sensors", metadata.sensors),
    ):
        losses.add_if([x.name for x in elements], part)
    losses.add_if(metadata.mocap_bodies, "mocap bodies, which stay at their pose:")
    losses.add_if(metadata.actuators.lifting_joints, "gravity compensation by actuators of joints")
    options = [x for x in _changed_options(metadata.solver) if x != "dof_invweight"]
    losses.add_if(options, "options of the simulation and parameters of soft constraints:")
    _note_limits(mech, losses)


def _changed_options(solver: SolverOptions) -> list[str]:
    """Options that differ from the defaults."""
    usual = {
        "limit_solref": SOLREF, "limit_solimp": SOLIMP, "limit_margin": 0.0, "limit_angle": torch.inf,
        "friction_solref": SOLREF, "friction_solimp": SOLIMP,
    }  # fmt: skip
    default, found = SolverOptions(), []
    for name in (x.name for x in fields(solver)):
        value = getattr(solver, name)
        same = value == getattr(default, name)
        if name in usual:
            same = all(x == usual[name] for x in value)
        found += [] if same else [name]
    return found


def _note_limits(mech: Mechanism, losses: Losses) -> None:
    """Note limits of joints of several dofs."""
    lost = []
    for k in mech.independent_joints:
        name, kind = mech.tree_joint_names[k], mech.joints.kinds[k]
        q, dofs = mech.q_slice(name), mech.dof_slice(name)
        bounded = bool((mech.lower[q].isfinite() | mech.upper[q].isfinite()).any())
        unequal = any(
            bool((x[dofs] != x[dofs.start]).any()) for x in (mech.effort_limit, mech.velocity_limit)
        )
        if (kind.num_dof > 1 or kind.name == "elastic") and (bounded or unequal):
            lost.append(name)
    losses.add_if(lost, "limits of joints of several dofs:")
