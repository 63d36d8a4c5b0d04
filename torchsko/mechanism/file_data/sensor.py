"""Description of a sensor: a quantity and the joint, actuator, frame or body at which it is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.description import IDENTITY, ZERO, Matrix, Vector
from torchsko.shapes.form import Form

TARGETS: dict[str, str] = {
    **dict.fromkeys(
        ("jointpos", "jointvel", "jointactuatorfrc", "ballquat", "ballangvel"), "joint"
    ),
    **dict.fromkeys(("actuatorpos", "actuatorvel", "actuatorfrc"), "actuator"),
    **dict.fromkeys(("framepos", "framequat", "framexaxis", "frameyaxis", "framezaxis"), "frame"),
    **dict.fromkeys(("framelinvel", "frameangvel", "velocimeter", "gyro"), "frame"),
    **dict.fromkeys(("framelinacc", "frameangacc", "accelerometer"), "frame"),
    **dict.fromkeys(("touch", "force", "torque"), "frame"),
    **dict.fromkeys(("subtreecom", "subtreelinvel", "subtreeangmom"), "subtree"),
}
"""Where each kind of sensor is: at a joint, an actuator, a frame, or the root body of a subtree.

Kinds have the names of MuJoCo's elements. `torchsko.sensing` reads them.
"""


@dataclass(frozen=True)
class SensorFrame:
    """A frame at a constant placement on a named frame.

    Attributes:
        frame: name from ``mech.frame_names``, or None for the inertial frame.
        rotation: from its coordinates to those of ``frame``.
        position: origin in ``frame`` [m].
    """

    frame: str | None
    rotation: Matrix = IDENTITY
    position: Vector = ZERO


@dataclass(frozen=True)
class Sensor:
    """One sensor; kinds and meanings are those of MuJoCo.

    Attributes:
        name: of the sensor.
        kind: of `TARGETS`, such as "gyro" or "jointpos".
        target: name of the joint, actuator or body, or of the frame; None for the inertial frame.
        rotation: of a sensor at a frame, from its coordinates to those of the target.
        position: of a sensor at a frame, its origin in the target [m].
        reference: frame in which a position or velocity is measured; None for the inertial frame.
        region: volume of a touch sensor.
        body: body of a sensor at a frame; a touch sensor measures its contacts.
        cutoff: largest absolute reading, in the unit of the sensor; infinite without a bound.

    Raises:
        MechanismError: on an unknown kind.

    Reference: MuJoCo documentation, "XML reference" (sensor).
    """

    name: str
    kind: str
    target: str | None
    rotation: Matrix = IDENTITY
    position: Vector = ZERO
    reference: SensorFrame | None = None
    region: Form | None = None
    body: str | None = None
    cutoff: float = math.inf

    def __post_init__(self) -> None:
        if self.kind not in TARGETS:
            raise MechanismError(*unknown_name("kind of sensor", self.kind, tuple(TARGETS)))

    @property
    def frame(self) -> SensorFrame:
        """The frame of a sensor at a frame."""
        return SensorFrame(self.target, self.rotation, self.position)
