"""The transmissions of a URDF file: reductions of gears, and rotors of motors.

Read are three dialects: <mechanicalReduction> or <mechanical_reduction> in a <transmission>, its <actuator>
or its <joint>, as ROS 1, PR2 and ros2_control write it; and <drake:gear_ratio>, <drake:rotor_inertia>.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from torchsko.errors import RobotFileError
from torchsko.io.common.numbers import number
from torchsko.io.common.report import Report
from torchsko.io.urdf.urdf_fields import attribute
from torchsko.io.xml.reader import Element, read_xml
from torchsko.io.xml.xacro import check_macros
from torchsko.mechanism.description import UnsupportedElement

REDUCTIONS = ("mechanicalReduction", "mechanical_reduction", "drake:gear_ratio")
ROTORS = ("rotorInertia", "rotor_inertia", "drake:rotor_inertia")


@dataclass(frozen=True)
class Transmission:
    """A motor on a gear that drives one joint.

    Attributes:
        name: of the transmission.
        joint: that it drives.
        actuator: name of the motor.
        reduction: turns of the motor per turn of the joint, or per metre.
        rotor_inertia: of the motor about its own axis [kg m^2]; None where the file says nothing.
    """

    name: str
    joint: str
    actuator: str
    reduction: float = 1.0
    rotor_inertia: float | None = None

    @property
    def armature(self) -> float:
        """Inertia of the rotor as the joint feels it, reduction^2 times its own [kg m^2 or kg]."""
        return self.reduction**2 * (self.rotor_inertia or 0.0)


def transmissions_of(source: str | os.PathLike[str]) -> tuple[Transmission, ...]:
    """The transmissions of a URDF file that drive one joint each, in file order.

    The dynamics hold none of them by themselves: with a rotor's inertia, pass
    ``mech.replace(armature=...)``, or `MechanismBuilder.rotor`; as motors `torchsko.actuators_of` has them.

    Args:
        source: path of the file, or its text.

    Returns:
        `Transmission`: names, the reduction, and what the file says of the motor.

    Raises:
        RobotFileError: when the file is not readable, or a number is none.

    Example:
        >>> import torchsko as ts
        >>> (motor,) = ts.transmissions_of('''<robot name="r"><transmission name="t">
        ...   <joint name="hip"/><mechanicalReduction>50</mechanicalReduction></transmission></robot>''')
        >>> motor.joint, motor.reduction
        ('hip', 50.0)
    """
    return tuple(read_transmissions(source)[0])


def read_transmissions(
    source: str | os.PathLike[str],
) -> tuple[list[Transmission], list[UnsupportedElement]]:
    """Transmissions of one joint each, and what becomes of the others."""
    root = read_xml(source, Report(), text=True)
    check_macros(root, Report())
    found, unused = [], []
    for element in root.children:
        if element.tag != "transmission":
            continue
        name = element.attributes.get("name", "").strip() or f"line {element.line}"
        joints, motors = (
            [c for c in element.children if c.tag == t] for t in ("joint", "actuator")
        )
        if len(joints) == 1 and len(motors) <= 1:
            found.append(_read(element, name, joints[0], motors))
        else:
            many = f"{len(joints)} joints and {len(motors)} actuators"
            unused.append(
                UnsupportedElement(f"transmission {name!r}", f"it has {many}: not modelled")
            )
    return found, unused


def _read(element: Element, name: str, joint: Element, motors: Sequence[Element]) -> Transmission:
    where = f"transmission {name!r}"
    places = (element, joint, *motors)
    reduction = _number(places, REDUCTIONS, where)
    rotor = _number(places, ROTORS, where)
    if reduction == 0 or (rotor is not None and rotor < 0):
        raise RobotFileError(
            f"{where} (line {element.line}) has the reduction {reduction} and the rotor inertia {rotor}.",
            "A gear has a ratio other than zero, a rotor no negative inertia.",
            "Correct the number.",
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
    """The one number that stands under one of these tags, as text or as a value."""
    found = [child for place in places for child in place.children if child.tag in tags]
    values = {number(_said(child), f"{where} <{child.tag}> (line {child.line})") for child in found}
    if len(values) > 1:
        raise RobotFileError(
            f"{where} has {len(values)} numbers in <{found[0].tag}>: "
            f"{', '.join(f'{x:g}' for x in sorted(values))}.",
            "It is unclear which one counts.",
            "Keep one of them.",
        )
    return next(iter(values), None)


def _said(element: Element) -> str:
    return element.attributes.get("value", element.text).strip()
