"""Transmissions of a URDF file: gear reductions, and rotor inertias of motors.

Three dialects are supported: <mechanicalReduction> or <mechanical_reduction> in a <transmission>, its
<actuator> or its <joint>, as in ROS 1, PR2 and ros2_control; and <drake:gear_ratio>, <drake:rotor_inertia>.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchsko.errors import RobotFileError, RobotFileWarning, caller_stack_level
from torchsko.io.common.numbers import number
from torchsko.io.urdf.urdf_fields import attribute
from torchsko.io.xml.reader import Element, read_document
from torchsko.io.xml.report import Report
from torchsko.io.xml.xacro import check_macros
from torchsko.mechanism.description import JointDescription, UnsupportedElement
from torchsko.mechanism.file_data.actuator import Actuator

REDUCTIONS = ("mechanicalReduction", "mechanical_reduction", "drake:gear_ratio")
ROTORS = ("rotorInertia", "rotor_inertia", "drake:rotor_inertia")


@dataclass(frozen=True)
class Transmission:
    """A motor on a gear that drives one joint.

    Attributes:
        name: of the transmission.
        joint: driven joint.
        actuator: name of the motor.
        reduction: turns of the motor per turn of the joint, or per meter.
        rotor_inertia: of the motor about its axis [kg m^2]; None if the file does not specify it.
    """

    name: str
    joint: str
    actuator: str
    reduction: float = 1.0
    rotor_inertia: float | None = None

    @property
    def armature(self) -> float:
        """Inertia of the rotor at the joint, reduction^2 times its inertia [kg m^2 or kg]."""
        return self.reduction**2 * (self.rotor_inertia or 0.0)

    @property
    def motor(self) -> Actuator:
        """The actuator whose control is the torque before the gear [N m]."""
        return Actuator.motor(self.actuator, self.joint, gear=self.reduction)


def transmissions_of(source: str | os.PathLike[str]) -> tuple[Transmission, ...]:
    """The transmissions of a URDF file that drive one joint each, in file order.

    Their rotor inertias are armature of the joints that `torchsko.load` returns; `MechanismBuilder.rotor`
    also models gyroscopic forces. `Transmission.motor` is an actuator for `torchsko.actuators.Actuators.of`.

    Args:
        source: path of the file, or its text.

    Returns:
        `Transmission`: names, the reduction, and data of the motor.

    Raises:
        RobotFileError: when the file is not readable, or a value is not a number.

    Warns:
        RobotFileWarning: names transmissions of several joints, which are left out.

    Example:
        >>> import torchsko as ts
        >>> (motor,) = ts.actuators.transmissions_of('''<robot name="r"><transmission name="t">
        ...   <joint name="hip"/><mechanicalReduction>50</mechanicalReduction></transmission></robot>''')
        >>> motor.joint, motor.reduction
        ('hip', 50.0)
    """
    root = read_document(source, Report(), text=True).root
    check_macros(root, Report())
    found, unused = _transmissions_in(root)
    if unused:
        lines = "".join(f"\n  {element}" for element in unused)
        warnings.warn(
            f"{len(unused)} transmissions are left out:{lines}",
            RobotFileWarning,
            caller_stack_level(),
        )
    return tuple(found)


def with_rotors(
    joints: Sequence[JointDescription], root: Element, report: Report
) -> list[JointDescription]:
    """The joints, with the rotor inertias of their transmissions as armature.

    Args:
        joints: joints of the file.
        root: its root element.
        report: receives transmissions with invalid numbers.
    """
    try:
        found, _ = _transmissions_in(root)
    except RobotFileError as error:
        report.fault("a transmission", f"{error.what} Rotor inertias are not used.", error)
        return [*joints]
    armature = dict.fromkeys((joint.name for joint in joints), 0.0)
    for transmission in found:
        if transmission.joint in armature:
            armature[transmission.joint] += transmission.armature
    return [
        replace(joint, armature=armature[joint.name]) if armature[joint.name] else joint
        for joint in joints
    ]


def transmission_joints(root: Element) -> tuple[str, ...]:
    """Names of the joints of all transmissions, also of those that drive several joints."""
    return tuple(
        joint.attributes.get("name", "").strip()
        for element in root.children
        if element.tag == "transmission"
        for joint in element.children
        if joint.tag == "joint"
    )


def _transmissions_in(root: Element) -> tuple[list[Transmission], list[UnsupportedElement]]:
    transmissions, unused = [], []
    for element in root.children:
        if element.tag != "transmission":
            continue
        name = element.attributes.get("name", "").strip() or f"line {element.line}"
        joints, motors = (
            [c for c in element.children if c.tag == t] for t in ("joint", "actuator")
        )
        if len(joints) == 1 and len(motors) <= 1:
            transmissions.append(_read(element, name, joints[0], motors))
        else:
            counts = f"{len(joints)} joints and {len(motors)} actuators"
            unused.append(
                UnsupportedElement(f"transmission {name!r}", f"it has {counts}: not modeled")
            )
    return transmissions, unused


def _read(element: Element, name: str, joint: Element, motors: Sequence[Element]) -> Transmission:
    where = f"transmission {name!r}"
    places = (element, joint, *motors)
    reduction = _number(places, REDUCTIONS, where)
    rotor = _number(places, ROTORS, where)
    if reduction == 0 or (rotor is not None and rotor < 0):
        raise RobotFileError(
            f"{where} (line {element.line}) has the reduction {reduction} and the rotor inertia {rotor}.",
            "A reduction is not zero, and a rotor inertia is not negative.",
            "Correct the number in the file.",
        )
    motor = motors[0].attributes.get("name", "").strip() if motors else ""
    return Transmission(
        name,
        attribute(joint, "name", where),
        motor or name,
        1.0 if reduction is None else reduction,
        rotor,
    )


def _number(places: Sequence[Element], tags: Sequence[str], where: str) -> float | None:
    """The unique number under one of these tags, as text or as attribute."""
    elements = [child for place in places for child in place.children if child.tag in tags]
    values = {
        number(_value_text(child), f"{where} <{child.tag}> (line {child.line})")
        for child in elements
    }
    if len(values) > 1:
        raise RobotFileError(
            f"{where} has {len(values)} numbers in <{elements[0].tag}>: "
            f"{', '.join(f'{x:g}' for x in sorted(values))}.",
            "The value is ambiguous.",
            "Keep one of them in the file.",
        )
    return next(iter(values), None)


def _value_text(element: Element) -> str:
    return element.attributes.get("value", element.text).strip()
