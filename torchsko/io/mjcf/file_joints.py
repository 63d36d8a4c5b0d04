"""Joints in new MJCF files, with limits, losses, springs and the parameters of their soft constraints."""

from __future__ import annotations

import math

import torch

from torchsko.io.common.losses import Losses
from torchsko.io.mjcf.elements import element
from torchsko.io.mjcf.file_bodies import FileBodies
from torchsko.io.mjcf.file_body import FileJoint
from torchsko.io.mujoco.mujoco_fields import MAX_POSITION
from torchsko.io.xml.edits import words
from torchsko.mechanism.file_data.actuator import Range
from torchsko.mechanism.mechanism import Mechanism

LOSSES = {"damping": "damping", "friction": "frictionloss", "armature": "armature",
          "stiffness": "stiffness"}  # fmt: skip
"""Attribute of MuJoCo by tensor of the mechanism."""


def write_joints(bodies: FileBodies, losses: Losses) -> None:
    """Add the joints to the bodies of a file, and losses of all joints."""
    mech, lost = bodies.mech, JointLosses()
    for body in bodies.bodies.values():
        body.lines[:0] = [_joint(mech, joint, lost) for joint in body.joints]
    lost.add_to(losses)


class JointLosses:
    """Names of joints whose attributes MJCF cannot express."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}

    def add(self, what: str, joint: str) -> None:
        """Add a joint, once for each kind of loss."""
        found = self.names.setdefault(what, [])
        if joint not in found:
            found.append(joint)

    def add_to(self, losses: Losses) -> None:
        """Add all of them to the losses of a file."""
        fields = {UNEQUAL: LOSSES, TILTED: ("stiffness", "higher_stiffness"), STARTED: ()}
        for what, names in self.names.items():
            losses.add(what, names, fields.get(what, ()))


UNEQUAL = "different losses, armature or stiffness of the dofs of ball and free joints"
TILTED = "springs of ball joints that are not relaxed at the identity, of"
STARTED = "initial positions (mech.initial()) of ball joints"
SINGLE = "limits that permit one position or no effort, which MuJoCo treats as none, of"
ROUND = "effort limits of ball and free joints"
FAST = "velocity limits of"


def _joint(mech: Mechanism, joint: FileJoint, lost: JointLosses) -> str:
    values = {"name": joint.name, "type": joint.type}
    if joint.type != "free":
        values["pos"] = words(joint.anchor)
    if joint.type in ("hinge", "slide"):
        values["axis"] = words(joint.axis)
        values |= _bounds(mech, joint, lost)
        if joint.start:
            values["ref"] = words([joint.start])
    values |= _losses(mech, joint, lost) | _solver_parameters(mech, joint)
    if joint.name in mech.file_metadata.actuators.lifting_joints:
        values["actuatorgravcomp"] = "true"
    _note_limits(mech, joint, lost)
    return element("joint", values)


def _dofs(mech: Mechanism, joint: FileJoint) -> slice:
    """Dofs of a joint in the tree."""
    place = mech.tree_dof_slice(mech.tree_joint_names[joint.body])
    start = place.start + joint.motion
    return slice(start, start + 1) if joint.type in ("hinge", "slide") else place


def _coordinate(mech: Mechanism, joint: FileJoint) -> int:
    """First coordinate of a joint in the tree."""
    return mech.tree_q_slice(mech.tree_joint_names[joint.body]).start + joint.motion


def _losses(mech: Mechanism, joint: FileJoint, lost: JointLosses) -> dict[str, str]:
    dofs, found = _dofs(mech, joint), {}
    for field, attribute in LOSSES.items():
        x = getattr(mech, field)[dofs]
        higher = getattr(mech, f"higher_{field}", x.new_zeros(x.shape[0], 2)[:0])
        higher = higher[dofs.start].tolist() if len(higher) else []
        if bool((x != x[0]).any()):
            lost.add(UNEQUAL, joint.name)
        numbers = [float(x[0]), *(higher if any(higher) else [])]
        if any(numbers):
            found[attribute] = words(numbers)
    q = mech.tree_q_slice(mech.tree_joint_names[joint.body])
    reference = mech.spring_reference[q]
    if joint.type in ("hinge", "slide"):
        relaxed = float(reference[joint.motion])
        found |= {"springref": words([relaxed])} if relaxed or joint.start else {}
    if joint.type == "ball" and "stiffness" in found and bool(reference[1:].any()):
        lost.add(TILTED, joint.name)
        del found["stiffness"]
    return found


def _solver_parameters(mech: Mechanism, joint: FileJoint) -> dict[str, str]:
    """Parameters of the soft constraints of a joint; those of a free joint are of its dry friction."""
    solver, found = mech.file_metadata.solver, {}
    q, dof = _coordinate(mech, joint), _dofs(mech, joint).start
    if solver.limit_solref and joint.type != "free":
        found["solreflimit"] = words(solver.limit_solref[q])
        found["solimplimit"] = words(solver.limit_solimp[q])
        found["margin"] = words([solver.limit_margin[q]])
        if joint.type == "ball" and math.isfinite(solver.limit_angle[q]):
            found["range"] = words([0.0, solver.limit_angle[q]])
    if solver.friction_solref:
        found["solreffriction"] = words(solver.friction_solref[dof])
        found["solimpfriction"] = words(solver.friction_solimp[dof])
    return found


def _limits(mech: Mechanism, joint: FileJoint) -> tuple[float, float, float, float]:
    """Lower, upper, effort and velocity limit of a hinge or slide of an independent joint."""
    name, i = mech.tree_joint_names[joint.body], joint.motion
    q, dof = mech.q_slice(name).start + i, mech.dof_slice(name).start + i
    low, high = float(mech.lower[q]), float(mech.upper[q])
    return low, high, float(mech.effort_limit[dof]), float(mech.velocity_limit[dof])


def _bounds(mech: Mechanism, joint: FileJoint, lost: JointLosses) -> dict[str, str]:
    """Attributes for the limits of a hinge or slide.

    Those of dependent joints are their leaders', unless the limits of the file are known and not replaced.
    """
    ranges, is_leader = mech.file_metadata.solver.limit_range, joint.body in mech.independent_joints
    if ranges and not {"lower", "upper"} & {*mech.replaced}:
        attributes = _range(*ranges[_coordinate(mech, joint)])
    else:
        attributes = _range(*_limits(mech, joint)[:2]) if is_leader else {}
    if not is_leader:
        own = mech.file_metadata.actuators.joint_range.get(joint.name)
        return attributes if own is None else attributes | {"actuatorfrcrange": words(own)}
    low, high, effort, _ = _limits(mech, joint)
    if math.isfinite(effort) and effort > 0:
        attributes["actuatorfrcrange"] = words(_force_range(mech, joint.name, effort))
    if low == high or effort == 0:
        lost.add(SINGLE, joint.name)
    return attributes


def _range(low: float, high: float) -> dict[str, str]:
    if low < high and (math.isfinite(low) or math.isfinite(high)):  # MuJoCo needs both
        return {"range": words([max(low, -MAX_POSITION), min(high, MAX_POSITION)])}
    return {}


def _force_range(mech: Mechanism, joint: str, effort: float) -> Range:
    """Range of the actuator forces on a joint; symmetric if the effort limit was changed."""
    own = mech.file_metadata.actuators.joint_range.get(joint)
    if own is not None and max(map(abs, own)) == effort:
        return own
    return -effort, effort


def _note_limits(mech: Mechanism, joint: FileJoint, lost: JointLosses) -> None:
    """Note limits of velocity, and those of effort of ball and free joints."""
    if joint.body not in mech.independent_joints:
        return
    if joint.type in ("hinge", "slide"):
        if math.isfinite(_limits(mech, joint)[3]):
            lost.add(FAST, joint.name)
        return
    dofs = mech.dof_slice(joint.name)
    if bool(mech.effort_limit[dofs].isfinite().any()):
        lost.add(ROUND, joint.name)
    if bool(mech.velocity_limit[dofs].isfinite().any()):
        lost.add(FAST, joint.name)
    if joint.type == "ball" and mech.file_metadata.initial is not None:
        start = mech.initial()[mech.q_slice(joint.name)]
        if not torch.equal(start, start.new_tensor([1.0, 0.0, 0.0, 0.0])):
            lost.add(STARTED, joint.name)
