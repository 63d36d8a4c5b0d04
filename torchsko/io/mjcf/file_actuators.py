"""Actuators and tendons in new MJCF files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsko.io.common.losses import Losses
from torchsko.io.mjcf.elements import element
from torchsko.io.mjcf.file_bodies import FileBodies
from torchsko.io.mujoco.mujoco_fields import MAX_POSITION
from torchsko.io.xml.edits import unique_name, words
from torchsko.mechanism.file_data.actuator import UNLIMITED, Actuator, Range
from torchsko.mechanism.file_data.tendon import Tendon


@dataclass(frozen=True)
class DriveLines:
    """Lines of actuators and tendons.

    Attributes:
        tendons: in the order of the mechanism, then those of actuators that drive several joints.
        actuators: in the order of controls.
        names: of the actuators.
    """

    tendons: list[str]
    actuators: list[str]
    names: list[str]


def drive_lines(bodies: FileBodies, losses: Losses) -> DriveLines:
    """Tendons and actuators of a file."""
    metadata, joints = bodies.mech.file_metadata, bodies.starts()
    tendons = [t for t in metadata.tendons if joints.keys() >= t.joints.keys()]
    gone = [t.name for t in metadata.tendons if t not in tendons]
    losses.add_if(gone, "tendons on joints that are fixed:")
    known = {t.name: dict(t.joints) for t in tendons}
    lines, actuators, names = [_tendon(t) for t in tendons], [], []
    lost, curves = [], []
    for actuator in metadata.actuators.actuators:
        if not joints.keys() >= actuator.transmission.keys() or not actuator.transmission:
            lost.append(actuator.name)
            continue
        if actuator.has_curve or actuator.efficiency != 1.0:
            curves.append(actuator.name)
        names.append(actuator.name)
        target = _transmission(actuator, known, lines)
        actuators.append(element("general", {"name": actuator.name} | target | _law(actuator)))
    losses.add_if(lost, "actuators on joints that are fixed:")
    losses.add_if(curves, "torque-speed curves and efficiencies of actuators")
    return DriveLines(lines, actuators, names)


def _transmission(
    actuator: Actuator, known: dict[str, dict[str, float]], lines: list[str]
) -> dict[str, str]:
    """Attributes of the joint or tendon that an actuator drives; adds a tendon if there is none."""
    if len(actuator.transmission) == 1:
        ((joint, gear),) = actuator.transmission.items()
        return {"joint": joint, "gear": words([gear])}
    for name, coefficients in known.items():
        gear = _ratio(actuator.transmission, coefficients)
        if gear is not None:
            return {"tendon": name, "gear": words([gear])}
    name = unique_name(f"{actuator.name}_tendon", known)
    known[name] = dict(actuator.transmission)
    lines.append(_tendon(Tendon(name, actuator.transmission)))
    return {"tendon": name, "gear": "1"}


def _ratio(a: Mapping[str, float], b: Mapping[str, float]) -> float | None:
    """The ratio of proportional coefficients; None if they are not proportional."""
    if a.keys() != b.keys() or not all(b.values()):
        return None
    first, *others = (a[x] / b[x] for x in a)
    return first if all(math.isclose(first, x, rel_tol=1e-14) for x in others) else None


def _law(actuator: Actuator) -> dict[str, str]:
    """Attributes of gain, bias, activation and ranges."""
    affine = any(actuator.gain[1:])
    values = {
        "gaintype": "affine" if affine else "fixed",
        "gainprm": words(actuator.gain if affine else actuator.gain[:1]),
    }
    if any(actuator.bias):
        values |= {"biastype": "affine", "biasprm": words(actuator.bias)}
    if actuator.activation != "none":
        values |= {"dyntype": actuator.activation, "dynprm": words([actuator.time_constant])}
        values |= {"actearly": "true"} if actuator.early else {}
    for what, ends in (
        ("act", actuator.activation_range),
        ("ctrl", actuator.control_range),
        ("force", actuator.force_range),
    ):
        values |= limited(f"{what}range", f"{what}limited", ends)
    return values


def limited(attribute: str, flag: str, ends: Range) -> dict[str, str]:
    """Attributes of a range; MuJoCo needs both ends."""
    if ends == UNLIMITED:
        return {flag: "false"}
    bounded = [max(ends[0], -MAX_POSITION), min(ends[1], MAX_POSITION)]
    return {flag: "true", attribute: words(bounded)}


def _tendon(tendon: Tendon) -> str:
    values = {
        "name": tendon.name,
        "stiffness": words(_polynomial(tendon.stiffness, tendon.higher_stiffness)),
        "damping": words(_polynomial(tendon.damping, tendon.higher_damping)),
        "springlength": words(tendon.relaxed),
        "frictionloss": words([tendon.friction]),
        "armature": words([tendon.armature]),
        "margin": words([tendon.margin]),
        "solreflimit": words(tendon.limit_solref),
        "solimplimit": words(tendon.limit_solimp),
        "solreffriction": words(tendon.friction_solref),
        "solimpfriction": words(tendon.friction_solimp),
    } | limited("range", "limited", tendon.limits)
    joints = [
        element("joint", {"joint": joint, "coef": words([c])}) for joint, c in tendon.joints.items()
    ]
    return element("fixed", values, joints)


def _polynomial(linear: float, higher: Sequence[float]) -> list[float]:
    return [linear, *(higher if any(higher) else ())]
