"""Every edit keeps every field that files can have: the robot afterwards is the one written by hand in MJCF.

Edited robots are compared in torchsko, and through a new file in MuJoCo.
"""

import re
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.io.road_fields import FIELDS, robot
from tests.io.test_roads_through_files import TOLERANCE, compiled, quiet, states, steps
from tests.mechanism.road_models import ANGLE, CART, TOOL, TOOL_SECTIONS

pytest.importorskip("mujoco")

FIN = """<body name="fin" pos="-.1 .02 .05" {}>{}<geom name="rudder" type="box" size=".02 .03 .04"
pos=".01 0 .05" mass=".1"/></body>"""

GRIPPER = TOOL.replace('geom name="palm"', 'geom name="grasp"')

FREE = '<freejoint name="root"/>'

APART = '<contact><exclude body1="arm" body2="trunk"/></contact>'
"""The arm begins in a face of the trunk, which it touches once the trunk is fixed."""

POSE = [0.1, 0.0, 0.23, *(np.array([0.9, 0.1, 0.2, 0.05]) / np.linalg.norm([0.9, 0.1, 0.2, 0.05]))]

SITE = 'pos="0.05 0 0.02" euler="0.2 0.1 0"'

FILE = """<mujoco model="{}"><compiler angle="radian" autolimits="true"/>{}<worldbody>{}</worldbody>{}
</mujoco>"""


@dataclass
class Edited:
    """A robot after an edit, and the text of the same robot written by hand."""

    mech: ts.Mechanism
    hand: str


def text(field: str, more: str = "", **slots: str) -> str:
    """The robot of a field with a fin on its trunk that turns; `more` sections, and more in slots."""
    parts = dict(FIELDS[field])
    slots.setdefault("trunk", FIN.format("", '<joint name="fin" axis="1 0 0" damping=".01"/>'))
    for slot, content in slots.items():
        parts[slot] = parts.get(slot, "") + content
    return robot(**parts).replace("</mujoco>", f"{more}</mujoco>")


def without_keys(whole: str) -> str:
    """A text without keyframes, whose numbers are those of another robot."""
    return re.sub("<keyframe>.*</keyframe>", "", whole)


def with_keys_of_fin(whole: str) -> str:
    """A text whose keyframes have a position and a velocity of the fin, after those of the trunk."""

    def longer(found: re.Match[str]) -> str:
        numbers, at = found[2].split(), 7 if found[1] == "qpos" else 6
        return f'{found[1]}="{" ".join([*numbers[:at], "0.1", *numbers[at:]])}"'

    head, key, keys = whole.partition("<keyframe>")
    return head + key + re.sub(r'(qpos|qvel)="([^"]*)"', longer, keys)


def loaded(field: str, more: str = "") -> ts.Mechanism:
    return quiet(with_keys_of_fin(text(field, more)), mimic="independent")


def option(field: str) -> str:
    return FIELDS[field].get("option", "")


def other(field: str, name: str, bodies: str, sections: str = "") -> ts.Mechanism:
    """A second robot with the options of the first."""
    return quiet(FILE.format(name, option(field), bodies, sections), mimic="independent")


def lock(field: str) -> Edited:
    hand = text(field, trunk=FIN.format(f'euler="{ANGLE} 0 0"', ""))
    return Edited(loaded(field).lock({"fin": ANGLE}), hand)


def lock_the_first(field: str) -> Edited:
    """The free joint of the trunk, at its pose in the file."""
    hand = text(field, APART)
    assert FREE in hand
    hand = hand.replace(FREE, "").replace('<subtreeangmom body="trunk"/>', "")  # named by lock
    return Edited(loaded(field, APART).lock({"root": POSE}), hand)


def append_a_tool(field: str) -> Edited:
    tool = other(field, "tool", GRIPPER.format(place="", free="<freejoint/>"), TOOL_SECTIONS)
    hand = text(field, TOOL_SECTIONS, tip=GRIPPER.format(place=SITE, free=""))
    return Edited(loaded(field).append(tool, "s"), hand)


def append_to_a_cart(field: str) -> Edited:
    """Beside a cart, so that what the robot has in the world stays there."""
    cart = CART.format(carried="")
    mech = other(field, "cart", f'<site name="spot"/>{cart}')
    hand = text(field).replace("<worldbody>", f'<worldbody><site name="spot"/>{cart}')
    hand = hand.replace(' mocap="true"', "")
    return Edited(mech.append(loaded(field), "spot", weld=False), hand)


EDITS = {f.__name__: f for f in (lock, lock_the_first, append_a_tool, append_to_a_cart)}


@pytest.mark.some(24)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_robot_is_the_one_written_by_hand(edit, field, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ts.RobotFileWarning)
        edited = EDITS[edit](field)
    hand = without_keys(edited.hand)
    tolerance, path = TOLERANCE.get(field, 1e-10), tmp_path / "edited.xml"
    want, found = steps(quiet(hand, mimic="independent")), steps(edited.mech)
    assert (found - want).abs().max() <= tolerance * (1 + want.abs().max())
    ts.save(edited.mech, path, strict=True)
    theirs, ours = states(compiled(hand)), states(compiled(path))
    assert theirs.shape == ours.shape
    assert np.abs(ours - theirs).max() <= tolerance * (1 + np.abs(theirs).max())
    keys = edited.mech.keyframes.values()
    for key in keys:
        assert torch.isfinite(key.q).all() and key.q.shape[-1] == edited.mech.num_q
