r"""File data of a mechanism with locked joints.

The length of a tendon or of a transmission is counted from the constant part c of its locked joints,
l = l' + c, where l' is the sum over the other joints: limits, relaxed lengths, and gains and biases per
length are shifted. An equality of two lengths, :math:`l_1 = p(l_2)`, becomes

.. math::
    l'_1 = p(l'_2 + c_2) - c_1, \qquad l'_1 = p(c_2) - c_1, \qquad
    l'_2 = l'_2 + p(l'_2 + c_2) - c_1,

with both lengths, only the first, and only the second. Actuators, tendons, equalities and sensors whose
joints are all locked are left out, and so are the controls and activations of these actuators in keyframes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.data import MechanismData
from torchsko.mechanism.description import UnsupportedElement, Vector
from torchsko.mechanism.file_data.actuator import Actuator, FileActuators, Range
from torchsko.mechanism.file_data.file_metadata import Closure, Coupled, FileMetadata, Keyframe
from torchsko.mechanism.file_data.sensor import TARGETS, Sensor
from torchsko.mechanism.file_data.tendon import Tendon
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import matvec

LOCKED = "its joints are locked"
"""Reason for elements that act on locked joints only."""

WITH_FIXED = (
    "it measures the whole mechanism, of which a part is fixed to the inertial frame: not modeled"
)
"""Reason for sensors of all bodies."""

OF_LENGTHS = ("joint", "gear", "tendon")
"""Kinds of loops that are polynomials of lengths."""

NUM_COEFFICIENTS = 5
"""Coefficients of the polynomial of an equality."""

Numbers = tuple[float, ...]


@dataclass
class LockedData:
    """The parts of the file data of a mechanism with locked joints, and notes on those left out.

    Attributes:
        mech: the mechanism before its joints are locked.
        held: coordinates of the locked joints, by index.
        fixes_inertia: whether a body with inertia becomes fixed to the inertial frame.
        notes: elements left out because they act on locked joints only.
        lost: sensors that are not modeled on bodies without joints.
    """

    mech: MechanismData
    held: Mapping[int, Tensor]
    fixes_inertia: bool
    notes: list[UnsupportedElement] = field(default_factory=list)
    lost: list[UnsupportedElement] = field(default_factory=list)

    def metadata(self) -> FileMetadata:
        """The file data, with states and options of all joints."""
        data = self.mech.file_metadata
        tendons = self._shifted_tendons()
        lengths = {t.name: (t, c, left is not None) for t, c, left in tendons}
        actuators = self._actuators(data.actuators)
        left = {x.name for x in actuators.actuators}
        dropped = {x.name for x in data.actuators.actuators} - left
        shifted = {
            a.name
            for a in data.actuators.actuators
            if a.name in left and self._split(a.transmission, f"actuator {a.name!r}")[0]
        }
        closures = [self._closure(c, lengths) for c in data.closures]
        return replace(
            data,
            keyframes=tuple(_without(key, dropped) for key in data.keyframes),
            closures=tuple(c for c in closures if c is not None),
            coupled=tuple(self._coupled(lengths)),
            actuators=actuators,
            sensors=tuple(x for x in data.sensors if self._keeps(x, dropped, shifted)),
            tendons=tuple(t for *_, t in tendons if t is not None),
        ).without_weights()

    def _is_held(self, joint: str) -> bool:
        return self.mech.joint_place(joint)[0] in self.held

    def _position(self, joint: str, element: str) -> float:
        """Position of a locked joint, or of a motion of one."""
        k, motion = self.mech.joint_place(joint)
        value = concrete_values(self.held[k][..., motion or 0])
        if value is None or value.size > 1:
            raise MechanismError(
                f"{element} of {self.mech.name!r} depends on joint {joint!r}, which is not locked at one "
                "number.",
                "Tendons, equalities and actuators of a file are the same for all samples.",
                "Lock the joint at one value, outside of vmap and compiled functions.",
            )
        return float(value.reshape(()))

    def _split(self, joints: Mapping[str, float], element: str) -> tuple[float, dict[str, float]]:
        """Constant part of a length, and the coefficients of the other joints."""
        left = {j: c for j, c in joints.items() if not self._is_held(j)}
        if not left or len(left) == len(joints):
            return 0.0, left
        held = {j: c for j, c in joints.items() if j not in left}
        return sum(c * self._position(j, element) for j, c in held.items()), left

    def _leave_out(self, element: str, reason: str = LOCKED) -> None:
        self.notes.append(UnsupportedElement(element, reason))

    def _shifted_tendons(self) -> list[tuple[Tendon, float, Tendon | None]]:
        """Each tendon with the constant part of its length, and the tendon on the other joints."""
        found: list[tuple[Tendon, float, Tendon | None]] = []
        for tendon in self.mech.file_metadata.tendons:
            element = f"tendon {tendon.name!r}"
            c, joints = self._split(tendon.joints, element)
            if len(joints) == len(tendon.joints):
                found.append((tendon, 0.0, tendon))
            elif not joints:
                self._leave_out(element)
                found.append((tendon, 0.0, None))
            else:
                limits, relaxed = _shifted(tendon.limits, c), _shifted(tendon.relaxed, c)
                moved = replace(tendon, joints=joints, limits=limits, relaxed=relaxed)
                found.append((tendon, c, moved))
        return found

    def _closure(
        self, c: Closure, tendons: Mapping[str, tuple[Tendon, float, bool]]
    ) -> Closure | None:
        """A loop without its locked joints; None without effect. Embedded ones are unchanged."""
        if c.method == "embed" or not c.joints:
            return c
        element = f"loop {c.name!r} ({c.kind})"
        ends = [
            self._end(name, element, tendons if c.kind == "tendon" else {}) for name in c.joints
        ]
        if ends == [(0.0, True)] * 2:
            return c
        (c1, first), (c2, second) = ends
        if not (first or second) or c.kind not in OF_LENGTHS:
            self._leave_out(element)
            return None
        p = _shifted_polynomial(_polynomial(c), c2)
        if not second:
            p = (p[0], *(0.0,) * (len(p) - 1))
        elif not first:
            p = (p[0], p[1] + 1.0, *p[2:])
        moving = [name for name, (_, moves) in zip(c.joints, ends, strict=True) if moves]
        return replace(
            c,
            kind="tendon" if c.kind == "tendon" else "joint",
            joints=(moving[0], moving[-1]),
            parameters=(p[0] - c1, *p[1:]),
        )

    def _coupled(self, tendons: Mapping[str, tuple[Tendon, float, bool]]) -> Iterator[Coupled]:
        """The equalities of the couplings of joints that are not locked."""
        for x in self.mech.file_metadata.coupled:
            left = None if self._is_held(x.joint) else self._closure(x.equality, tendons)
            if left is not None:
                yield replace(x, equality=left)

    def _end(
        self, name: str, element: str, tendons: Mapping[str, tuple[Tendon, float, bool]]
    ) -> tuple[float, bool]:
        """Constant part of the length of a joint or tendon, and whether it has another part."""
        if name not in tendons:
            held = self._is_held(name)
            return (self._position(name, element) if held else 0.0), not held
        tendon, constant, moves = tendons[name]
        if not moves:
            constant = sum(x * self._position(j, element) for j, x in tendon.joints.items())
        return constant, moves

    def _actuators(self, data: FileActuators) -> FileActuators:
        found = []
        for actuator in data.actuators:
            element = f"actuator {actuator.name!r}"
            c, joints = self._split(actuator.transmission, element)
            if joints or not actuator.transmission:
                found.append(_with_length_from(actuator, c, joints))
            else:
                self._leave_out(element)
        return FileActuators(
            tuple(found),
            {j: x for j, x in data.joint_range.items() if not self._is_held(j)},
            tuple(j for j in data.lifting_joints if not self._is_held(j)),
            data.unused,
        )

    def _keeps(self, sensor: Sensor, dropped: Collection[str], shifted: Collection[str]) -> bool:
        """False for a sensor of locked joints, which is noted."""
        element, target = f"sensor {sensor.name!r}", sensor.target
        if TARGETS[sensor.kind] == "joint" and self._is_held(target or ""):
            self._leave_out(element, f"joint {target!r} is locked")
        elif TARGETS[sensor.kind] == "actuator" and target in dropped:
            self._leave_out(element, f"the joints of actuator {target!r} are locked")
        elif (reason := self._not_modeled(sensor, shifted)) is not None:
            self.lost.append(UnsupportedElement(element, reason))
        else:
            return True
        return False

    def _not_modeled(self, sensor: Sensor, shifted: Collection[str]) -> str | None:
        """Reason why the reading of a sensor cannot be computed with the joints locked."""
        mech, target = self.mech, sensor.target
        if sensor.kind == "actuatorpos" and target in shifted:
            return (
                f"it measures the length of actuator {target!r} with its locked joints: not modeled"
            )
        if sensor.kind in ("force", "torque"):
            if mech.frame_body[mech.frame_index(target or "")] in self.held:
                return f"it measures the force on {target!r}, whose joint is locked: not modeled"
        if TARGETS[sensor.kind] == "subtree":
            if target is None:
                return WITH_FIXED if self.fixes_inertia else None
            if mech.body_index(target) in self.held:
                return f"it measures the subtree of {target!r}, whose joint is locked: not modeled"
        return None


def _with_length_from(actuator: Actuator, c: float, joints: Mapping[str, float]) -> Actuator:
    """An actuator on some of its joints, of whose length the others are the constant part c."""
    if not c:
        return replace(actuator, transmission=joints)
    (k0, k1, k2), (b0, b1, b2) = actuator.gain, actuator.bias
    gain, bias = (k0 + k1 * c, k1, k2), (b0 + b1 * c, b1, b2)
    return replace(actuator, transmission=joints, gain=gain, bias=bias)


def _without(key: Keyframe, actuators: Collection[str]) -> Keyframe:
    """A keyframe without the controls and activations of some actuators."""

    def chosen(x: Tensor, names: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
        left = [k for k, name in enumerate(names) if name not in actuators]
        return x[..., left], tuple(names[k] for k in left)

    activation, activation_names = chosen(key.activation, key.activation_names)
    ctrl, control_names = chosen(key.ctrl, key.control_names)
    return replace(
        key,
        activation=activation,
        ctrl=ctrl,
        activation_names=activation_names,
        control_names=control_names,
    )


def _shifted(ends: Range, c: float) -> Range:
    return ends[0] - c, ends[1] - c


def _polynomial(closure: Closure) -> Numbers:
    """Coefficients c0 to c4 of an equality of two lengths."""
    if closure.kind == "gear":
        ratio, offset = closure.parameters
        return (offset, ratio, 0.0, 0.0, 0.0)
    return (*closure.parameters, *(0.0,) * (NUM_COEFFICIENTS - len(closure.parameters)))


def _shifted_polynomial(p: Numbers, c: float) -> Numbers:
    """Coefficients of p(x + c) in x."""
    return tuple(
        sum(a * math.comb(n, k) * c ** (n - k) for n, a in enumerate(p) if n >= k)
        for k in range(len(p))
    )


def link_centers(
    mech: MechanismData, welded: Mapping[int, int], known: Mapping[str, Vector]
) -> dict[str, Vector]:
    """Centers of mass of the links of bodies that become one, by frame, in the frame [m].

    Centers that are already known, and those whose values cannot be read, are left as they are.

    Args:
        mech: the mechanism before.
        welded: for each body with a locked joint its carrier.
        known: of the file data.
    """
    bodies, found = {*welded, *welded.values()}, dict(known)
    for f, (name, body) in enumerate(zip(mech.frame_names, mech.frame_body, strict=True)):
        if name in found or body < 0 or body not in bodies:
            continue
        R, r = mech.frame_rotation[..., f, :, :], mech.frame_position[..., f, :]
        center = concrete_values(matvec(R.mT, mech.com[..., body, :] - r))
        if center is not None and center.ndim == 1:
            x, y, z = center.tolist()
            found[name] = (x, y, z)
    return found
