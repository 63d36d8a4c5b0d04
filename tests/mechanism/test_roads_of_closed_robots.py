"""Edits of robots with loops and couplings, and several edits, beside the robot written by hand."""

import warnings

import pytest
import torch

import torchsko as ts
from tests.contact.models import CLOSED
from tests.mechanism.road_models import (
    ANGLE,
    FRAME,
    ROBOT,
    SHOULDER,
    SIZE,
    SLOTS,
    TOOL,
    TOOL_SECTIONS,
    WRIST,
    Feature,
    actuator,
    equality,
    tendon,
    texts,
)
from tests.mechanism.test_roads import PLAIN, Twin, loaded

mujoco = pytest.importorskip("mujoco")

STEPS = 8

PARTS = """<actuator><position name="m" joint="crank" kp="5"/>{}</actuator><sensor><jointpos joint="crank"/>
<jointvel joint="rocker"/><framelinvel objtype="body" objname="rod"/></sensor></mujoco>"""

MACHINE = CLOSED.replace(".1 .7 0 0 0", "0 .7 0 0 0").replace("</mujoco>", PARTS)
MACHINE = MACHINE.replace('name="finger"', 'name="pointer"')

FOOT = '<geom size=".05" pos=".2 0 -.1"/>'

TOOL_OF_ROD = TOOL.format(place="", free="")

LOCKED = {
    '<joint name="first" axis="0 1 0" damping=".3"/>': "",
    '<joint name="second" axis="0 1 0" frictionloss=".2"/>': "",
    '<joint joint1="second" joint2="first" polycoef="0 .7 0 0 0"/>': "",
}


def read(text: str, closures: str) -> ts.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ts.RobotFileWarning)
        return ts.load(text, closures=closures)


def motion(mech: ts.Mechanism, names: list[str], ctrl: list[float]) -> torch.Tensor:
    """Coordinates and velocities of named joints after steps from a reproducible state, and readings."""
    convert = ts.conventions("mujoco", mech, names)
    q = mech.initial()
    speeds = {"crank": 0.7, "rod": -0.3, "first": 0.4, "slide": 0.02}
    qd = torch.zeros(mech.num_dof, dtype=mech.dtype)
    for name in mech.dof_names:
        if name in speeds:
            qd[mech.dof_names.index(name)] = speeds[name]
    state, u = ts.State(q, qd), torch.tensor(ctrl, dtype=mech.dtype)
    contact = ts.ContactModel.of(mech)
    for _ in range(STEPS):
        state = ts.step(mech, state, u, contact=contact)
    readings = ts.sensors(mech, state, u, contact=contact)
    return torch.cat([convert.q_to(state.q), convert.qd_to(state.q, state.qd), *readings.values()])


@pytest.mark.parametrize("closures", ["cut", "embed"])
@pytest.mark.parametrize("edit", ["append", "lock"])
def test_edits_of_closed_robots_are_the_robot_written_by_hand(edit, closures):
    robot, ctrl = MACHINE.replace("{}", ""), [0.3]
    if edit == "append":
        hand = MACHINE.replace(FOOT, FOOT + TOOL_OF_ROD)
        hand = hand.replace(
            "{}", TOOL_SECTIONS.removeprefix("<actuator>").removesuffix("</actuator>")
        )
        edited = read(robot, closures).append(loaded(texts(PLAIN).tool), "rod")
        ctrl = [0.3, 0.01]
    else:
        hand = robot
        for element, without in LOCKED.items():
            assert element in hand
            hand = hand.replace(element, without)
        edited = read(robot, closures).lock({"first": 0.0})
    whole = read(hand, closures)
    model = mujoco.MjModel.from_xml_string(hand)
    names = [model.joint(j).name for j in range(model.njnt)]
    names = [name or "ball_joint" for name in names]
    found = [motion(mech, names, ctrl) for mech in (edited, whole)]
    assert (found[0] - found[1]).abs().max() < 1e-10


def test_several_edits_in_turn_are_the_robot_written_by_hand():
    """A robot on a cart, its wrist locked, a tool on its flange: tendons and equalities of all follow."""
    rest = tendon('stiffness="30" damping="1"') + actuator("motor", 'gear="2"')
    rest += equality('<connect name="hold" site1="flange" site2="origin"/>')
    feature = Feature("", sections=rest)
    found, plain = texts(feature), texts(PLAIN)
    edited = loaded(found.cart).append(loaded(found.bare), "mount").lock({"wrist": ANGLE})
    edited = edited.append(loaded(found.tool), "flange")
    tool = TOOL.format(place='pos=".05 0 0" euler="0 0 .5"', free="")
    slots = dict.fromkeys(SLOTS, "") | {"hand": f'euler="{ANGLE} 0 0"'}
    parts = {"shoulder_joint": SHOULDER, "wrist_joint": "", "on_flange": tool, "size": SIZE}
    whole = f"<frame {FRAME}>{ROBOT.format(**slots, **parts)}</frame>"
    known = (
        f"<frame {FRAME}>"
        + plain.on_cart.split(f"<frame {FRAME}>")[1].split("</frame>")[0]
        + "</frame>"
    )
    assert WRIST in known
    hand = found.on_cart.replace(known, whole).replace("</mujoco>", TOOL_SECTIONS + "</mujoco>")
    assert WRIST not in hand
    error, readings = Twin(edited, hand).run((0.4, 0.01))
    assert error < 1e-10 and readings < 1e-8


def test_a_free_joint_that_is_kept_is_relative_to_the_frame():
    """A floating robot beside a cart: its coordinates are those in the world if the frame is its origin."""
    found = texts(PLAIN)
    box = """<body name="box" pos="0 .8 .06"><freejoint name="box"/><geom name="box" type="box"
    size=".05 .04 .06" mass=".3" friction=".4"/><body name="lid" pos="0 0 .1"><joint name="hinge" axis="1 0 0"
    range="-.1 .2" solreflimit=".04 .8"/><geom name="lid" size=".02" mass=".1"/></body></body>"""
    motor = '<actuator><motor name="lift" joint="hinge" gear=".1"/></actuator>'
    spot = found.cart.replace("<worldbody>", '<worldbody><site name="spot"/>')
    hand = spot.replace("</worldbody>", box + "</worldbody>").replace(
        "</mujoco>", motor + "</mujoco>"
    )
    alone = hand.replace(hand.split('<site name="spot"/>')[1].split('<body name="box"')[0], "")
    edited = loaded(spot).append(loaded(alone.replace('"spot"', '"place"')), "spot", weld=False)
    assert "box" in edited.joint_names
    error, _ = Twin(edited, hand).run((0.3,))
    assert error < 1e-10
