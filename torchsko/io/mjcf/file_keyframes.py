"""Keyframes in new MJCF files."""

from __future__ import annotations

from collections.abc import Sequence

from torchsko.bridge.conventions.conversion import conventions
from torchsko.io.mjcf.elements import element
from torchsko.io.mjcf.file_bodies import FileBodies
from torchsko.io.xml.edits import words


def keyframe_lines(bodies: FileBodies, actuators: Sequence[str]) -> list[str]:
    """Named states, with controls and activations of the actuators of the file.

    Args:
        bodies: bodies of the file.
        actuators: names of the actuators of the file.
    """
    mech, lines = bodies.mech, []
    if not mech.keyframes:
        return []
    mujoco = conventions("mujoco", mech, [joint.name for joint in bodies.joints()])
    for key in mech.keyframes.values():
        values = {
            "name": key.name,
            "time": words([key.time]),
            "qpos": words(mujoco.q_to(key.q).detach().tolist()),
            "qvel": words(mujoco.qd_to(key.q, key.qd).detach().tolist()),
        }
        for what, names, x in (
            ("act", key.activation_names, key.activation),
            ("ctrl", key.control_names, key.ctrl),
        ):
            by_name = dict(zip(names, x.tolist(), strict=True))
            chosen = [by_name[name] for name in actuators if name in by_name]
            values |= {what: words(chosen)} if chosen else {}
        lines.append(element("key", values))
    return lines
