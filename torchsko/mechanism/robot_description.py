"""Description of a robot as plain data.

File readers (`torchsko.io`) and `MechanismBuilder` create descriptions; `torchsko.build_mechanism` turns one
into a `Mechanism`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchsko.mechanism.description import (
    CouplingDescription,
    Fault,
    JointDescription,
    LinkDescription,
    RotorDescription,
    SpringDescription,
    UnsupportedElement,
    Vector,
)
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.geometry import Geometry


@dataclass(frozen=True)
class RobotDescription:
    """Description of a robot; all parts are in file order.

    Attributes:
        name: name of the robot.
        links: links of the robot.
        joints: joints of the robot.
        unused: elements of the file without effect on the dynamics.
        couplings: dependent joints.
        rotors: rotors of motors.
        springs: springs between two joints.
        report: errors of the file that leave the dynamics defined.
        geometry: visual and collision shapes.
        closures: kinematic loops.
        gravity: gravity of the file [m/s^2]; None if it has none.
        starts: initial position [m] and quaternion w x y z of links without a parent joint, by name.
        actuated_joints: joints of transmissions, whose dofs are preferably independent in loops.
    """

    name: str
    links: tuple[LinkDescription, ...]
    joints: tuple[JointDescription, ...] = ()
    unused: tuple[UnsupportedElement, ...] = field(default=())
    couplings: tuple[CouplingDescription, ...] = ()
    rotors: tuple[RotorDescription, ...] = ()
    springs: tuple[SpringDescription, ...] = ()
    report: tuple[Fault, ...] = ()
    geometry: Geometry | None = None
    closures: tuple[Closure, ...] = ()
    gravity: Vector | None = None
    starts: tuple[tuple[str, tuple[float, ...]], ...] = ()
    actuated_joints: tuple[str, ...] = ()
