"""Elements that refer to locked joints, and file data of two robots that become one."""

import pytest
import torch

import torchsko as ts
from tests.mechanism.road_models import (
    ANGLE,
    FEATURES,
    SOFT,
    Feature,
    actuator,
    equality,
    tendon,
    texts,
)
from tests.mechanism.test_roads import EDITS, PLAIN, Twin, loaded
from torchsko.mechanism.description import UnsupportedElement

pytest.importorskip("mujoco")

BELT = (
    '<tendon><fixed name="belt" {}><joint joint="elbow" coef=".7"/><joint joint="wrist" coef="-.5"/>'
    '</fixed></tendon><tendon><fixed name="cord"><joint joint="wrist" coef="2"/></fixed></tendon>'
)
SHORT = '<tendon><fixed name="belt" {}><joint joint="elbow" coef=".7"/></fixed></tendon>'
C = -0.5 * ANGLE
END = 0.1 + 0.6 * ANGLE + 0.8 * ANGLE**2 - C
SPRING = 'springlength="{} {}" stiffness="30" damping="2"'
LIMITS = 'range="{} {}" margin=".3" frictionloss=".2" solreflimit=".05 .9"'

MOVED = {
    "spring of a tendon": (BELT.format(SPRING.format(-0.3, -0.2)),
                           SHORT.format(SPRING.format(-0.3 - C, -0.2 - C)), ()),
    "limits of a tendon": (BELT.format(LIMITS.format(-0.4, -0.1)),
                           SHORT.format(LIMITS.format(-0.4 - C, -0.1 - C)), ()),
    "follower of the locked joint": (
        equality(f'<joint joint1="elbow" joint2="wrist" polycoef=".1 1 2 0 0" {SOFT}/>'),
        equality(f'<joint joint1="elbow" polycoef="{0.1 + ANGLE + 2 * ANGLE**2} 0 0 0 0" {SOFT}/>'), ()),
    "leader of the locked joint": (
        equality(f'<joint joint1="wrist" joint2="elbow" polycoef=".1 -1 0 0 0" {SOFT}/>'),
        equality(f'<joint joint1="elbow" polycoef="{0.1 - ANGLE} 0 0 0 0" {SOFT}/>'), ()),
    "equality of the locked joint": (
        equality(f'<joint joint1="wrist" polycoef=".1 0 0 0 0" {SOFT}/>'), "", ()),
    "tendon equality": (
        BELT.format("") + equality(f'<tendon tendon1="belt" tendon2="cord" polycoef=".1 .3 .2 0 0" {SOFT}/>'),
        SHORT.format("") + equality(f'<tendon tendon1="belt" polycoef="{END} 0 0 0 0" {SOFT}/>'), ()),
    "actuator of a tendon": (
        BELT.format("") + '<actuator><position name="a" tendon="belt" kp="30" kv="1"/></actuator>',
        SHORT.format("") + '<actuator><general name="a" tendon="belt" gainprm="30" biastype="affine" '
        f'biasprm="{-30 * C} -30 -1"/></actuator>', (0.2,)),
    "actuator of the locked joint": (
        '<actuator><motor name="turn" joint="wrist"/><motor name="lift" joint="elbow" gear="3"/></actuator>'
        '<sensor><actuatorfrc name="f" actuator="turn"/><jointpos joint="wrist"/>'
        '<jointpos joint="elbow"/></sensor>',
        '<actuator><motor name="lift" joint="elbow" gear="3"/></actuator>'
        '<sensor><jointpos joint="elbow"/></sensor>', (0.2,)),
}  # fmt: skip
"""Elements of the wrist and those on the robot written by hand with the wrist locked; controls."""


def section(text: str) -> Feature:
    return Feature("", sections=text)


@pytest.mark.parametrize("name", MOVED)
def test_elements_of_a_locked_joint_become_those_of_the_robot_written_by_hand(name):
    before, after, ctrl = MOVED[name]
    mech = loaded(texts(section(before)).robot).lock({"wrist": ANGLE})
    motion, readings = Twin(mech, texts(section(after)).locked).run(ctrl)
    assert motion < 1e-10 and readings < 1e-10


def test_a_curved_equality_of_a_locked_leader_is_one_of_the_other_joint():
    """q1 = p(q2) at a locked q1 becomes q2 = q2 + p(q2) - q1."""
    p = (0.1, -0.5, 0.4, 0.3, 0.2)
    element = f'<joint joint1="wrist" joint2="elbow" polycoef="{" ".join(map(str, p))}"/>'
    mech = loaded(texts(section(equality(element))).robot).lock({"wrist": ANGLE})
    (closure,) = mech.closures
    assert closure.joints == ("elbow", "elbow") and closure.kind == "joint"
    for x in (-1.0, 0.2, 3.0):
        of_elbow = sum(c * x**k for k, c in enumerate(closure.parameters))
        of_both = sum(c * x**k for k, c in enumerate(p)) - ANGLE
        assert of_elbow - x == pytest.approx(of_both, abs=1e-12)


def test_a_gear_with_a_locked_wheel_fixes_the_other_wheel():
    """q1 = 3 q2 + 0.1: at q2 = 0.2 the equality is q1 = 0.7, at q1 = 0.7 it is q2 = 0.2."""
    builder = ts.MechanismBuilder("gears")
    for name in ("one", "two", "three"):
        builder.link(name, mass=1.0, inertia=torch.eye(3).tolist())
        builder.joint(f"{name}_axle", "revolute", child=name)
    builder.close("mesh", "gear", "one_axle", None, "two_axle", None, "cut", parameters=(3.0, 0.1))
    mech = builder.build(strict=False)
    for joint, value, other, at in (
        ("two_axle", 0.2, "one_axle", 0.7),
        ("one_axle", 0.7, "two_axle", 0.2),
    ):
        left = mech.lock({joint: value})
        (closure,) = left.closures
        assert closure.joints == (other, other)
        residual = at - sum(c * at**k for k, c in enumerate(closure.parameters))
        assert residual == pytest.approx(0.0, abs=1e-15)
        q = torch.zeros(2, dtype=left.dtype)
        qdd = ts.contact.contact_dynamics(
            left, q, 0 * q, 0 * q, contact=ts.ContactModel.of(left)
        ).qdd
        assert qdd[left.joint_names.index(other)] > 1.0  # towards the position of the gear


def test_a_motion_of_a_stacked_joint_is_the_constant_part_of_a_tendon():
    mech = loaded(texts(section(tendon('springlength="0 .1" stiffness="3"'))).robot)
    left = mech.lock({"puck_x+puck_z+puck_turn": [0.3, 0.2, 0.1]})
    (belt,) = left.file_metadata.tendons
    assert belt.joints == {"elbow": 0.7}
    assert belt.relaxed == pytest.approx((-0.6, -0.5), abs=1e-15)


def test_what_acts_on_locked_joints_only_is_left_out_and_named():
    before, *_ = MOVED["actuator of the locked joint"]
    mech = loaded(texts(section(BELT.format("") + before)).robot)
    left = mech.lock({"wrist": ANGLE})
    named = {x.element for x in left.unused} - {x.element for x in mech.unused}
    assert named == {"actuator 'turn'", "tendon 'cord'", "sensor 'f'", "sensor 'sensor1'"}
    assert [x.name for x in left.file_metadata.actuators.actuators] == ["lift"]
    state = ts.State(left.initial(), torch.zeros(left.num_dof, dtype=left.dtype))
    with pytest.raises(ts.ShapeError, match=r"(?s)ctrl has shape \[2\].*actuators are lift"):
        ts.step(left, state, torch.zeros(2, dtype=left.dtype))


def test_sensors_that_a_locked_joint_ends_are_named_in_a_warning():
    sensors = """<sensor><force name="push" site="flange"/><subtreecom name="center" body="hand"/>
    <subtreecom name="of fore" body="fore"/><gyro name="w" site="flange"/></sensor>"""
    mech = loaded(texts(section(sensors)).robot)
    with pytest.warns(ts.RobotFileWarning, match="'push'.*\n.*'center'") as found:
        left = mech.lock({"wrist": 0.1})
    assert len(found) == 1
    assert [x.name for x in left.file_metadata.sensors] == ["of fore", "w"]
    assert {"sensor 'push'", "sensor 'center'"} <= {x.element for x in left.unused}


LENGTHS = """<tendon><fixed name="belt"><joint joint="elbow" coef=".7"/><joint joint="wrist" coef="-.5"/>
</fixed></tendon><actuator><position name="pull" tendon="belt" kp="30" gear="2"/></actuator><sensor>
<actuatorpos name="at" actuator="pull"/><actuatorvel name="rate" actuator="pull"/>
<actuatorfrc name="force" actuator="pull"/><jointactuatorfrc name="torque" joint="elbow"/></sensor>"""


def test_the_length_of_a_partly_locked_transmission_is_named():
    """Its rate and force are kept, and its length as well where the locked joint adds none."""
    mech = loaded(texts(section(LENGTHS)).robot)
    with pytest.warns(ts.RobotFileWarning, match=r"keep 1 part:\n  sensor 'at': .*'pull'") as found:
        left = mech.lock({"wrist": ANGLE})
    assert len(found) == 1
    kept = [x.name for x in left.file_metadata.sensors]
    assert kept == ["rate", "force", "torque"]
    with pytest.raises(ts.MechanismError, match=r"sensor 'at': .*'pull'"):
        mech.lock({"wrist": ANGLE}, strict=True)
    at_zero = mech.lock({"wrist": 0.0}, strict=True)
    assert [x.name for x in at_zero.file_metadata.sensors] == ["at", *kept]
    g = torch.Generator().manual_seed(0)
    for robot, angle, names in ((left, ANGLE, kept), (at_zero, 0.0, ["at", *kept])):
        q, qd = robot.random_state(generator=g)
        wrist = mech.joint_names.index("wrist")
        whole_q, whole_qd = (
            torch.cat([x[:wrist], x.new_tensor([y]), x[wrist:]]) for x, y in ((q, angle), (qd, 0.0))
        )
        ctrl = q.new_tensor([0.3])
        one = ts.sensors(robot, ts.State(q, qd), ctrl)
        two = ts.sensors(mech, ts.State(whole_q, whole_qd), ctrl)
        for name in names:
            assert torch.allclose(one[name], two[name], rtol=0, atol=1e-13)


def test_file_data_of_a_joint_locked_at_several_values_is_refused():
    mech = loaded(texts(section(BELT.format(""))).robot)
    values = torch.zeros(3, 1, dtype=mech.dtype)
    with pytest.raises(
        ts.MechanismError, match="tendon 'belt' of 'robot' depends on joint 'wrist'"
    ):
        mech.lock({"wrist": values})
    assert loaded(texts(PLAIN).robot).lock({"wrist": values}).batch_shape == (3,)


KEYS = """<keyframe><key name="home" time=".5" qpos="{}" qvel="1 2 3 4 5 6 7 8 9" act=".3" ctrl="6 7"/>
</keyframe><actuator><motor name="turn" joint="wrist"/><position name="lift" joint="elbow" kp="9"
timeconst=".1"/></actuator>""".format("1 2 3 4 5 6 1 0 0 0")


def keyed() -> ts.Mechanism:
    """A robot with a keyframe."""
    return loaded(texts(section(KEYS)).robot)


def test_keyframes_lose_the_locked_joint():
    key = keyed().lock({"wrist": ANGLE}).keyframes["home"]
    assert key.time == 0.5 and key.q.tolist() == [1, 2, 4, 5, 6, 1, 0, 0, 0]
    assert key.qd.tolist() == [1, 2, 4, 5, 6, 7, 8, 9]
    assert (key.ctrl.tolist(), key.control_names) == ([7], ("lift",))
    assert (key.activation.tolist(), key.activation_names) == ([0.3], ("lift",))


@pytest.mark.parametrize("second", [False, True])
def test_a_keyframe_has_the_other_robot_in_its_initial_configuration(second):
    mech = keyed()
    text = TOOL_WITH_KEY.replace("KEY", "<key name='open' qpos='0 0 0 1 0 0 0 .03' ctrl='.02'/>")
    tool = loaded(text)
    both = mech.append(tool, "flange", prefix="g_")
    assert list(both.keyframes) == ["home", "g_open"]
    key = both.keyframes["g_open" if second else "home"]
    drive = ts.actuators.Actuators.of_file(both, both.file_metadata.actuators)
    act, ctrl = drive.at_keyframe(key)
    assert key.control_names == drive.names == ("turn", "lift", "g_grip")
    own = mech.initial() if second else mech.keyframes["home"].q
    assert torch.equal(key.q, torch.cat([own, key.q.new_tensor([0.03 if second else 0.01])]))
    assert ctrl.tolist() == ([0, 0, 0.02] if second else [6, 7, 0])
    assert act.tolist() == ([0] if second else [pytest.approx(0.3)])
    assert key.qd.tolist() == ([0] * 10 if second else [*range(1, 10), 0])


TOOL_WITH_KEY = """<mujoco model="tool"><compiler angle="radian"/><worldbody><body name="palm"><freejoint/>
<geom name="palm" size=".02"/><body name="finger"><joint name="slide" type="slide" ref=".01"/>
<geom name="finger" size=".01"/></body></body></worldbody><keyframe>KEY</keyframe>
<actuator><position name="grip" joint="slide" kp="40"/></actuator></mujoco>"""


def test_options_of_the_base_apply_and_differences_are_named():
    arm = loaded(texts(PLAIN).robot)
    tool = loaded(TOOL_WITH_KEY.replace("KEY", ""))
    with pytest.warns(ts.RobotFileWarning, match="timestep 0.002 instead of 0.004") as found:
        both = arm.append(tool.replace(gravity=2 * tool.gravity), "flange")
    assert "gravity of 'tool'" in str(found[0].message)
    solver = both.file_metadata.solver
    assert (solver.timestep, solver.integrator) == (0.004, "implicitfast")
    assert "those of 'robot' apply to the whole" in {x.reason for x in both.unused}
    hand = ts.MechanismBuilder("hand").link("pen", mass=0.2).joint("grip", "free", child="pen")
    assert len(arm.append(hand.build(strict=False), "flange").unused) == len(arm.unused)


def test_a_robot_without_shapes_of_its_own_in_a_medium_is_named():
    wet = Feature("", {"option": 'density="300" viscosity=".3"'})
    with pytest.warns(ts.RobotFileWarning, match="fluid forces on 'tool'"):
        both = loaded(texts(wet).robot).append(loaded(TOOL_WITH_KEY.replace("KEY", "")), "flange")
    assert any(x.affects_forces and "fluid forces on 'tool'" in x.element for x in both.unused)


@pytest.mark.parametrize(
    ("section_text", "element"),
    [
        ("<actuator><motor name='grip' joint='elbow'/></actuator>", "actuators named 'grip'"),
        ("<keyframe><key name='open'/></keyframe>", "keyframes named 'open'"),
        ("", "shapes named 'palm'"),
    ],
)
def test_equal_names_are_refused_with_the_prefix(section_text, element):
    text = texts(section(section_text)).robot
    mech = loaded(
        text.replace('geom name="hand"', 'geom name="palm"') if not section_text else text
    )
    tool = loaded(TOOL_WITH_KEY.replace("KEY", "<key name='open'/>"))
    with pytest.raises(ts.MechanismError, match=element) as error:
        mech.append(tool, "flange")
    assert 'Pass prefix="tool_"' in str(error.value)
    assert mech.append(tool, "flange", prefix="tool_").num_dof == mech.num_dof + 1


def test_a_batch_of_placements_names_what_it_leaves_out():
    sensors = "<sensor><framepos name='at' objtype='body' objname='world'/></sensor>"
    feature = section(sensors + equality('<connect name="hold" body1="hand" anchor=".1 0 0"/>'))
    found = texts(feature)
    places = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.warns(ts.RobotFileWarning, match="loop 'hold'"):
        both = loaded(found.cart).append(loaded(found.bare), "mount", position=places)
    named = [str(x) for x in both.unused if "differs between samples" in x.reason]
    assert len(named) == 3 and any("1 shapes" in x for x in named)
    assert any("sensor 'at'" in x for x in named)
    one = loaded(found.cart).append(loaded(found.bare), "mount")
    assert [c.name for c in one.closures] == ["hold"]
    assert one.file_metadata.sensors[0].target == "mount"


def test_robots_without_options_of_their_own_have_the_defaults_of_their_joints():
    """A robot of a file is put on one that has none: its limits keep their parameters."""
    feature = FEATURES["limits"]
    cart = ts.MechanismBuilder("cart").link("cart", mass=3.0)
    cart = cart.joint("rail", "prismatic", child="cart", lower=-1.0, upper=1.0).build(strict=False)
    both = cart.append(loaded(texts(feature).bare), "cart")
    contact, alone = ts.ContactModel.of(both), ts.ContactModel.of(loaded(texts(feature).bare))
    assert torch.equal(contact.limit_solref[1:], alone.limit_solref)
    assert contact.limit_solref[0].tolist() == [0.02, 1.0] and contact.limit_margin[0] == 0


@pytest.mark.parametrize("edit", EDITS)
def test_weights_are_computed_anew(edit):
    """Inverse weights are those of MuJoCo's compiler for the robot written by hand."""
    feature = section(
        tendon("")
        + equality(f'<connect site1="flange" site2="origin" {SOFT}/>')
        + actuator("motor", "")
    )
    found = texts(feature)
    road, result = EDITS[edit]
    edited, hand = (ts.ContactModel.of(m) for m in (road(found), loaded(getattr(found, result))))
    for name in ("shape_invweight", "equality_invweight"):
        assert torch.allclose(getattr(edited, name), getattr(hand, name), rtol=1e-10, atol=1e-12)


def test_names_and_notes_are_kept():
    """What has no part in the motion keeps its value, and names get the prefix."""
    motor = ts.actuators.Actuator.torque_source(
        "drive", "elbow", stall=3.0, no_load_speed=9.0, efficiency=0.7
    )
    mech = loaded(
        texts(
            section(
                tendon("") + equality(f'<connect name="hold" site1="flange" site2="imu" {SOFT}/>')
            )
        ).robot
    )
    data = mech.file_metadata
    note = UnsupportedElement("actuator 'leg'", "not modeled")
    actuators = type(data.actuators)((motor,), unused=(note,))
    spatial = UnsupportedElement("tendon 'string'", "it is a spatial tendon: not modeled")
    changes = {"actuators": actuators, "unused_tendons": (spatial,)}
    mech = mech.replace(file_metadata=type(data)(**{**vars(data), **changes}))
    left = mech.lock({"wrist": 0.0})
    assert left.file_metadata.actuators == actuators
    assert ts.actuators.tendons_of(left).unused == (spatial,)
    assert left.geometry == mech.geometry.without_weights()
    (closure,) = left.closures
    assert (closure.name, closure.method, closure.independent) == ("hold", "cut", ())
    both = left.append(mech, "flange", prefix="b_")
    assert both.file_metadata.actuators.unused == (note, note)
    assert ts.actuators.tendons_of(both).unused == (spatial, spatial)
    one, two = both.file_metadata.actuators.actuators
    assert (one, two.name, two.transmission) == (motor, "b_drive", {"b_elbow": 1.0})
    assert (two.stall, two.no_load_speed, two.efficiency) == (3.0, 9.0, 0.7)
    assert [c.name for c in both.closures] == ["hold", "b_hold"]
    assert [t.name for t in both.file_metadata.tendons] == ["belt", "b_belt"]
    shapes = both.geometry.shapes[len(mech.geometry.shapes) :]
    for shape, own in zip(shapes, mech.geometry.shapes, strict=True):
        assert shape.name == "b_" + own.name and shape.form == own.form
        assert (shape.visual, shape.collision, shape.color) == (
            own.visual,
            own.collision,
            own.color,
        )
        assert shape.frame == ("flange" if own.frame is None else "b_" + own.frame)


def test_an_appended_mocap_body_is_fixed_and_named():
    bodies = (
        '<body name="target" mocap="true" pos="0 1 0"><geom name="mark" size=".1" mass="0"/></body>'
    )
    text = texts(PLAIN).bare.replace("<worldbody>", f"<worldbody>{bodies}")
    robot, cart = loaded(text), loaded(texts(PLAIN).cart)
    assert robot.file_metadata.mocap_bodies == ("target",)
    with pytest.warns(ts.RobotFileWarning, match="mocap body 'r_target'"):
        both = cart.append(robot, "mount", prefix="r_")
    assert both.file_metadata.mocap_bodies == ()
    assert "mocap body 'r_target'" in {x.element for x in both.unused}
    assert robot.lock({"wrist": 0.1}).file_metadata.mocap_bodies == ("target",)
    with pytest.raises(ts.MechanismError, match="mocap body 'r_target'"):
        cart.append(robot, "mount", prefix="r_", strict=True)


def test_the_mass_of_an_appended_mocap_body_is_refused_with_advice_that_works():
    bodies = '<body name="target" mocap="true"><geom name="mark" size=".1" mass="{}"/></body>'
    text = texts(PLAIN).bare.replace("<worldbody>", f"<worldbody>{bodies}")
    heavy, light = (loaded(text.format(mass)) for mass in (2, 0))
    cart = loaded(texts(PLAIN).cart)
    with pytest.raises(ts.MechanismError, match=r'target.*mocap.*geoms mass="0".*fixed') as error:
        cart.append(heavy, "mount", prefix="r_")
    assert "freejoint" not in str(error.value)
    with pytest.warns(ts.RobotFileWarning, match="mocap body 'r_target'"):
        cart.append(light, "mount", prefix="r_")


def test_strict_edits_refuse_what_they_do_not_keep():
    mech = loaded(texts(section('<sensor><force name="push" site="flange"/></sensor>')).robot)
    with pytest.raises(ts.MechanismError, match="sensor 'push'"):
        mech.lock({"wrist": 0.1}, strict=True)
    assert loaded(texts(PLAIN).robot).lock({"wrist": 0.1}, strict=True).num_dof > 0
