"""SDF: the robots of URDF and MJCF files, written again, have the dynamics of those."""

import re

import pytest
import torch

import torchsko as ts
from tests.states import normal_state
from tests.strategies import agree
from torchsko.mechanism.geometry import Shape
from torchsko.shapes.sphere import Sphere

INERTIA = "<ixx>0.3</ixx><ixy>0.01</ixy><ixz>0</ixz><iyy>0.2</iyy><iyz>0.02</iyz><izz>0.25</izz>"
URDF_INERTIA = '<inertia ixx="0.3" ixy="0.01" ixz="0" iyy="0.2" iyz="0.02" izz="0.25"/>'
ARM = f"""<sdf version="1.9"><model name="arm"><pose>0.5 0 0.1 0 0 0.3</pose>
  <link name="base"><inertial><mass>3</mass></inertial></link>
  <link name="upper"><pose relative_to="base">0.1 0.2 0.3 0.4 0.5 0.6</pose><inertial>
    <pose>0.1 0 0.2 0.1 0.2 0.3</pose><mass>2</mass><inertia>{INERTIA}</inertia></inertial>
    <visual name="v"><geometry><sphere><radius>1</radius></sphere></geometry></visual></link>
  <link name="lower"><pose relative_to="shoulder">0.3 0 0.1 10 20 30</pose><inertial><mass>1</mass>
    <inertia>{INERTIA}</inertia></inertial></link>
  <frame name="tool" attached_to="lower"><pose>0 0 0.4 0 1 0</pose></frame>
  <joint name="shoulder" type="revolute"><parent>base</parent><child>upper</child><axis>
    <xyz>0 0.6 0.8</xyz><limit><lower>-1</lower><upper>2</upper><effort>30</effort></limit>
    <dynamics><damping>0.3</damping><friction>0.1</friction><spring_stiffness>4</spring_stiffness>
    <spring_reference>0.2</spring_reference></dynamics></axis></joint>
  <joint name="slide" type="prismatic"><parent>upper</parent><child>lower</child>
    <pose>0.2 0.1 0 0.3 0 0</pose><axis><xyz expressed_in="base">1 0 0</xyz></axis></joint>
</model></sdf>""".replace("10 20 30</pose>", "0.1 0.2 0.3</pose>")


def test_an_arm_is_that_of_its_urdf():
    """Poses composed by hand: the base stands at the model's pose, the child frames are where they say."""
    urdf = f"""<robot name="arm"><link name="w"/><link name="base"/>
      <link name="upper"><inertial><origin xyz="0.1 0 0.2" rpy="0.1 0.2 0.3"/><mass value="2"/>{URDF_INERTIA}
      </inertial></link><link name="lower"><inertial><mass value="1"/>{URDF_INERTIA}</inertial></link>
      <link name="tool"/>
      <joint name="f" type="fixed"><parent link="w"/><child link="base"/>
      <origin xyz="0.5 0 0.1" rpy="0 0 0.3"/></joint>
      <joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/>
      <origin xyz="0.1 0.2 0.3" rpy="0.4 0.5 0.6"/><axis xyz="0 0.6 0.8"/>
      <limit lower="-1" upper="2" effort="30" velocity="1"/><dynamics damping="0.3" friction="0.1"/></joint>
      <joint name="turn" type="fixed"><parent link="lower"/><child link="tool"/>
      <origin xyz="0 0 0.4" rpy="0 1 0"/></joint>
      <joint name="slide" type="prismatic"><parent link="upper"/><child link="lower"/>
      <origin xyz="0.3 0 0.1" rpy="0.1 0.2 0.3"/><axis xyz="AXIS"/>
      <limit lower="-9" upper="9" effort="9" velocity="9"/></joint></robot>"""
    mine = ts.load(ARM)
    # x of the base, seen from the lower link: the rotations between, transposed.
    R = torch.linalg.multi_dot(
        [torch.tensor(rpy(*a), dtype=torch.float64).T for a in ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))]
    )
    theirs = ts.load(urdf.replace("AXIS", " ".join(f"{x:.17g}" for x in R[:, 0].tolist())))
    spring = torch.tensor([4.0, 0.0], dtype=torch.float64)
    relaxed = torch.tensor([0.2, 0.0], dtype=torch.float64)
    theirs = theirs.replace(stiffness=spring, spring_reference=relaxed)
    q, qd, qdd = normal_state(mine, 8)
    agree(ts.inverse_dynamics(mine, q, qd, qdd), ts.inverse_dynamics(theirs, q, qd, qdd), 1e-12)
    for a, b in zip(ts.frame_pose(mine, q, ["tool", "base"]), ts.frame_pose(theirs, q, ["tool", "base"]),
                    strict=True):  # fmt: skip
        agree(a.flatten(1), b.flatten(1), 1e-12)
    assert (mine.lower[0], mine.upper[0], mine.effort_limit[0]) == (-1.0, 2.0, 30.0)
    assert mine.upper[1] == torch.inf and mine.velocity_limit[0] == torch.inf
    assert mine.geometry.shapes == (Shape(Sphere(1.0), "upper", name="v"),)


def rpy(x, y, z):
    from torchsko.io.common.numbers import rotation_from_rpy

    return rotation_from_rpy((x, y, z))


def body(name: str, pose: str = "0 0 0 0 0 0") -> str:
    return (
        f'<link name="{name}"><pose>{pose}</pose><inertial><mass>1</mass><inertia>{INERTIA}</inertia>'
        "</inertial></link>"
    )


AXIS = (
    '<joint name="{0}" type="revolute"><parent>{1}</parent><child>{2}</child><axis><xyz>0 1 0</xyz>{3}'
    "</axis></joint>"
)
JOINT = '<joint name="j" type="{0}"><parent>{1}</parent><child>b</child></joint>'


def model(inside: str) -> str:
    return f'<sdf version="1.7"><model name="m">{inside}</model></sdf>'


POINT = 'pos="0.2 0.1 0.3"'
TURNING = f'<joint name="j" axis="0 0.6 0.8" {POINT}/>', "<axis><xyz>0 0.6 0.8</xyz></axis>"
AWAY = {
    "revolute": TURNING,
    "continuous": TURNING,
    "universal": (
        f'<joint name="j" axis="1 0 0" {POINT}/><joint name="k" axis="0 1 0" {POINT}/>',
        "<axis><xyz>1 0 0</xyz></axis><axis2><xyz>0 1 0</xyz></axis2>",
    ),
    "ball": (f'<joint name="j" type="ball" {POINT}/>', ""),
}


@pytest.mark.parametrize("kind", AWAY)
def test_a_joint_away_from_its_links_frame_turns_about_its_own_point(kind):
    """As MuJoCo has it, whose joints have an anchor in the body."""
    pytest.importorskip("mujoco")
    joint, axis = AWAY[kind]
    there = ts.load(
        f'<mujoco><compiler angle="radian"/><worldbody><body name="b" pos="0.3 0.2 0.1">{joint}'
        '<inertial pos="0 0 0" mass="1" fullinertia="0.3 0.2 0.25 0.01 0 0.02"/></body></worldbody></mujoco>'
    )
    mine = ts.load(model(
        body("b", "0.3 0.2 0.1 0 0 0") + f'<joint name="j" type="{kind}"><pose>0.2 0.1 0.3 0 0 0</pose>'
        f"<parent>world</parent><child>b</child>{axis}</joint>"
    ))  # fmt: skip
    q, qd, qdd = normal_state(mine, 8)
    agree(ts.inverse_dynamics(mine, q, qd, qdd), ts.inverse_dynamics(there, q, qd, qdd), 1e-12)
    agree(ts.frame_pose(mine, q, "b").position, ts.frame_pose(there, q, "b").position, 1e-12)


def test_a_model_floats_where_that_is_asked_for(tmp_path):
    (tmp_path / "m.sdf").write_text(model(body("b") + body("c", "1 0 0 0 0 0") +
        '<joint name="j" type="fixed"><parent>b</parent><child>c</child></joint>'))  # fmt: skip
    mech = ts.load(tmp_path / "m.sdf", floating_base=True)
    assert mech.joint_kinds == ("free",) and mech.mass.tolist() == [2.0]
    assert mech.com[0].tolist() == [0.5, 0.0, 0.0]
    with pytest.raises(ts.MechanismError, match="floating_base=True"):
        ts.load(tmp_path / "m.sdf")


def test_a_model_that_floats_starts_where_its_pose_says():
    """It stood at the origin, its pose lost without a word."""
    held, afloat = ts.load(ARM), ts.load(ARM, floating_base=True)
    where = [ts.frame_pose(held, held.initial(), name) for name in held.frame_names]
    there = [ts.frame_pose(afloat, afloat.initial(), name) for name in held.frame_names]
    for one, other in zip(where, there, strict=True):
        agree(other.rotation, one.rotation, 1e-15)
        agree(other.position, one.position, 1e-15)
    assert afloat.joint_kinds[0] == "free" and not torch.equal(afloat.initial(), afloat.neutral())
    assert torch.equal(held.initial(), held.neutral())


REFUSED = {
    "includes another": model("<include><uri>model://x</uri></include>"),
    "has 0 models": "<sdf version='1.9'/>",
    "has 2 models": model(body("b") + '<model name="inner"/>'),
    "type 'spring' is unknown": model(body("b") + JOINT.format("spring", "world")),
    "has 0 elements <gearbox_reference_body>": model(
        body("b") + JOINT.format("gearbox", "world")
    ),
    "no frame of the model is named 'no'": model(body("b") + JOINT.format("revolute", "no")),
    "is relative to itself": model(
        '<link name="b"><pose relative_to="c">0 0 0 0 0 0</pose></link>'
        '<link name="c"><pose relative_to="b">0 0 0 0 0 0</pose></link>' + JOINT.format("revolute", "world")
    ),
    "has 5 numbers": model(body("b", "0 0 0 0 0") + JOINT.format("revolute", "world")),
    "which is not finite": model(body("b", "0 0 nan 0 0 0") + JOINT.format("revolute", "world")),
    "its child is the world": model(
        body("b") + '<joint name="j" type="ball"><parent>b</parent><child>world</child></joint>'
    ),
    "has an automatic inertia": model('<link name="b"><inertial auto="true"/></link>'),
    "has the name 'b'": model(body("b") + body("b")),
    "link 'b' has 2 elements <inertial>": model(
        body("b").replace("</link>", "<inertial><mass>9</mass></inertial></link>")
        + JOINT.format("revolute", "world")
    ),
    "link 'b' <inertial> has 2 elements <mass>": model(
        body("b").replace("<mass>1</mass>", "<mass>1</mass><mass>9</mass>")
        + JOINT.format("revolute", "world")
    ),
    "link 'b' <gravity> is 'down'": model(
        body("b").replace("</link>", "<gravity>down</gravity></link>")
        + JOINT.format("revolute", "world")
    ),
    "follows the axis 'axis2'": model(
        body("b") + AXIS.format("j", "world", "b", "<mimic joint='k' axis='axis2'/>")
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_has_no_meaning_is_refused_by_name(said):
    with pytest.raises(ts.TorchskoError, match=re.escape(said)) as refused:
        ts.load(REFUSED[said])
    assert refused.value.what and refused.value.advice


def test_a_link_without_inertia_has_the_formats_and_is_told():
    text = model('<link name="b"/>' + JOINT.format("revolute", "world"))
    with pytest.warns(ts.RobotFileWarning, match="1 kg with unit inertia"):
        assert ts.load(text).mass.tolist() == [1.0]
    with pytest.raises(ts.RobotFileError, match="has no <inertial>"):
        ts.load(text, strict=True)


def test_a_joint_that_closes_a_loop_is_kept_where_both_links_meet():
    """At the pose of the file both points, and of a weld both frames, are in one place."""
    links = body("a", "0 0 1 0.1 0 0") + body("b", "1 0 1 0 0.2 0") + body("c", "1 0 2 0 0 0.3")
    joints = "".join(
        f'<joint name="{n}" type="{t}"><pose>0.1 0.2 0 0.3 0 0</pose><parent>{p}</parent>'
        f"<child>{c}</child></joint>"
        for n, t, p, c in (("j", "revolute", "world", "a"), ("k", "revolute", "a", "b"),
                           ("l", "revolute", "b", "c"), ("m", "ball", "a", "c"), ("n", "fixed", "c", "a"))
    )  # fmt: skip
    mech = ts.load(model(links + joints))
    assert mech.num_dof == 3 and [c.kind for c in mech.file_metadata.closures] == [
        "connect",
        "weld",
    ]
    q = mech.neutral()
    for loop in mech.file_metadata.closures:
        pose = ts.frame_pose(mech, q, [loop.frame1, loop.frame2])
        points = torch.tensor([loop.position1, loop.position2], dtype=q.dtype)
        at = pose.position + (pose.rotation @ points[..., None])[..., 0]
        agree(at[:1], at[1:], 1e-14)
        turn = torch.tensor(loop.rotation, dtype=q.dtype)
        agree(pose.rotation[0] @ turn, pose.rotation[1], 1e-14)
    assert any("loop 'm' (connect of 'a' and 'c'): is cut" in str(line) for line in mech.unused)


TWO = body("b") + body("c", "1 0 0 0 0 0") + AXIS.format("j", "world", "b", "")
MIMIC = "<mimic joint='j'><multiplier>2</multiplier><offset>0.1</offset><reference>0.3</reference></mimic>"


def test_an_axis_that_mimics_another_follows_it_exactly():
    """At 2 (q - 0.3) + 0.1, as the format says; torques are those of the tree through it."""
    tree = ts.load(model(TWO + AXIS.format("k", "b", "c", "")))
    mech = ts.load(model(TWO + AXIS.format("k", "b", "c", MIMIC)))
    q, qd, qdd = normal_state(mech, 8)
    agree(ts.expand(mech, q), torch.cat([q, 2.0 * (q - 0.3) + 0.1], -1), 1e-15)
    one, two = ts.inverse_dynamics(
        tree, ts.expand(mech, q), *(torch.cat([x, 2.0 * x], -1) for x in (qd, qdd))
    ).unbind(-1)
    agree(ts.inverse_dynamics(mech, q, qd, qdd)[:, 0], one + 2.0 * two, 1e-13)
    alone = ts.load(model(TWO + AXIS.format("k", "b", "c", MIMIC)), mimic="independent")
    assert alone.num_dof == 2 and any("'k' <mimic>" in str(line) for line in alone.unused)
    with pytest.warns(ts.RobotFileWarning, match="refers to the unknown joint 'z'"):
        lost = MIMIC.replace("'j'", "'z'")
        assert ts.load(model(TWO + AXIS.format("k", "b", "c", lost))).num_dof == 2


def test_gravity_is_that_of_the_world_and_of_each_link():
    """Links without gravity have inertia and no weight."""
    inside = model(TWO + AXIS.format("k", "b", "c", ""))
    world = inside.replace("<model", "<world name='moon'><gravity>0 0 -1.6</gravity><model")
    world = world.replace("</model>", "</model></world>")
    assert ts.load(world).gravity.tolist() == [0.0, 0.0, -1.6]
    assert ts.load(world, gravity=(0.0, 0.0, 0.0)).gravity.tolist() == [0.0, 0.0, 0.0]
    assert ts.load(inside).gravity.tolist() == [0.0, 0.0, -9.81]
    light = ts.load(world.replace("</link>", "<gravity>false</gravity></link>"))
    there = ts.load(world, gravity=(0.0, 0.0, 0.0))
    x = normal_state(light, 8)
    agree(ts.inverse_dynamics(light, *x), ts.inverse_dynamics(there, *x), 1e-13)


def test_a_model_is_placed_by_the_frame_that_it_names():
    """That frame stands at the model's pose; frames that say no link hang on the canonical one."""
    text = model(TWO + AXIS.format("k", "b", "c", "") + "<pose>5 0 0 0 0 1</pose><frame name='f'/>")
    mech = ts.load(text.replace('name="m"', 'name="m" placement_frame="c" canonical_link="c"'))
    q = mech.neutral()
    found = ts.frame_pose(mech, q, ["c", "f"]).position
    turned = (
        torch.tensor(rpy(0.0, 0.0, 1.0), dtype=q.dtype) @ torch.tensor([1.0, 0.0, 0.0]).double()
    )
    five = torch.tensor([5.0, 0.0, 0.0], dtype=q.dtype)
    agree(found, torch.stack([five, five - turned]), 1e-15)
    assert mech.body_names[mech.frame_body[mech.frame_index("f")]] == "c"


def test_ignored_elements_are_reported_at_any_depth():
    inside = "<fluid_added_mass/></inertial><velocity_decay/></link>"
    text = model(
        "<static>true</static>" + TWO.replace("</inertial></link>", inside)
        + AXIS.format("k", "b", "c", "<limit><stiffness>1</stiffness></limit>").replace(
            "</joint>", "<physics/></joint>"
        )
    )  # fmt: skip
    text = text.replace("<model", "<world name='w'><wind/><joint/><model").replace(
        "</model>", "</model></world>"
    )
    told = [str(line).split(":")[0] for line in ts.load(text).unused]
    assert told == [
        "<wind> in <world>",
        "<joint> in <world>",
        "<static> in <model>",
        "<fluid_added_mass> in <link> <inertial> (2 times)",
        "<velocity_decay> in <link> (2 times)",
        "<stiffness> in <joint> <axis> <limit>",
        "<physics> in <joint>",
    ]


def test_errors_name_the_file(tmp_path):
    (tmp_path / "two.sdf").write_text(REFUSED["has 2 models"])
    with pytest.raises(ts.RobotFileError, match=r"two\.sdf: the file has 2 models"):
        ts.load(tmp_path / "two.sdf")


SHAPES = """<visual name="v"><pose relative_to="tool">0 0 0.1 0 0 0</pose><geometry><mesh><uri>model://a/b.stl
</uri><scale>1 2 3</scale></mesh></geometry><material><diffuse>1 0 0 0.5</diffuse></material></visual>
<collision name="c"><pose>1 2 3 0.1 0.2 0.3</pose><geometry>FORM</geometry></collision>"""
FORMS = {
    "box": "<box><size>1 2 3</size></box>",
    "cylinder": "<cylinder><radius>1</radius><length>2</length></cylinder>",
    "capsule": "<capsule><radius>1</radius><length>2</length></capsule>",
    "ellipsoid": "<ellipsoid><radii>1 2 3</radii></ellipsoid>",
    "plane": "<plane><normal>0 3 4</normal><size>5 6</size></plane>",
}


def with_shapes(form: str) -> str:
    shapes = SHAPES.replace("FORM", form)
    return ARM.replace('<link name="lower">', f'<link name="lower">{shapes}')


@pytest.mark.parametrize("form", FORMS)
def test_shapes_are_kept_where_the_file_puts_them(form):
    mech = ts.load(with_shapes(FORMS[form]))
    shapes = [s for s in mech.geometry.shapes if s.frame == "lower"]
    assert [(s.name, s.visual, s.collision) for s in shapes] == [
        ("v", True, False),
        ("c", False, True),
    ]
    mesh, other = shapes
    assert (mesh.form.path, mesh.form.scale) == ("model://a/b.stl", (1.0, 2.0, 3.0))
    assert mesh.color == (1.0, 0.0, 0.0, 0.5) and type(other.form).__name__.lower() == form
    q, _, _ = normal_state(mech, 1)
    tool, lower = (ts.frame_pose(mech, q[0], name) for name in ("tool", "lower"))

    def at(shape):
        turn, shift = (torch.tensor(x, dtype=q.dtype) for x in (shape.rotation, shape.position))
        R = lower.rotation.reshape(3, 3)
        return R @ turn, lower.position.reshape(3) + R @ shift

    R, p = at(mesh)
    up = torch.tensor([0.0, 0.0, 0.1], dtype=q.dtype)
    R_tool = tool.rotation.reshape(3, 3)
    agree(R, R_tool, 1e-14)
    agree(p[None], (tool.position.reshape(3) + R_tool @ up)[None], 1e-14)
    turn = torch.tensor(rpy(0.1, 0.2, 0.3), dtype=q.dtype)
    own = torch.tensor(other.rotation, dtype=q.dtype)
    assert other.position == (1.0, 2.0, 3.0)
    normal = torch.tensor([0.0, 0.6, 0.8] if form == "plane" else [0.0, 0.0, 1.0], dtype=q.dtype)
    agree(own[:, 2][None], (turn @ normal)[None], 1e-14)
    agree(own @ own.mT, torch.eye(3, dtype=q.dtype), 1e-14)


@pytest.mark.parametrize("form", ["<box/>", "<sphere><radius>-1</radius></sphere>", "<cone/>", "",
                                  "<plane><normal>0 0 0</normal></plane>"])  # fmt: skip
def test_a_shape_without_meaning_is_left_out_and_told(form):
    with pytest.warns(ts.RobotFileWarning, match="'lower' <collision>"):
        mech = ts.load(with_shapes(form))
    assert [s.name for s in mech.geometry.shapes if s.frame == "lower"] == ["v"]
    with pytest.raises(ts.RobotFileError, match="'lower' <collision>"):
        ts.load(with_shapes(form), strict=True)


def test_axes_that_a_joint_does_not_have_are_named_at_load():
    """In cassie_v2.sdf the balls of the rods have axes, which suggest hinges."""
    links = "".join(
        f'<link name="{x}"><inertial><mass>1</mass></inertial></link>' for x in ("a", "b")
    )
    axis = "<axis><xyz>0 1 0</xyz><dynamics><damping>0.1</damping></dynamics></axis>"
    joint = f'<joint name="rod" type="ball"><parent>a</parent><child>b</child>{axis}</joint>'
    text = f'<sdf version="1.9"><model name="m">{links}{joint}</model></sdf>'
    with pytest.warns(ts.RobotFileWarning, match="<axis> of joint 'rod': a ball joint has no"):
        mech = ts.load(text)
    assert [x.element for x in mech.unused if x.changes_dynamics] == ["<axis> of joint 'rod'"]
    with pytest.raises(ts.RobotFileError, match="'rod'"):
        ts.load(text, strict=True)
    assert not [x for x in ts.load(text.replace(axis, "")).unused if "axis" in x.element]
