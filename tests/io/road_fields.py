"""What a robot file can have: one MuJoCo model for each, in which the part acts on the motion."""

BASE = """<mujoco model="{model}"><compiler angle="radian" autolimits="true"/>{option}<asset>{asset}</asset>
<default><default class="strong"><joint armature="0.02" damping="0.3"/></default></default>
<worldbody><geom name="floor" type="plane" size="9 9 1" friction="0.6 0.02 0.01" solref="0.03 0.8"/>{world}
<body name="trunk" pos="0.1 0 0.23" quat="0.9 0.1 0.2 0.05"><freejoint name="root"/>
  <geom name="t" type="box" size="0.1 0.1 0.05" mass="{mass}" condim="4"/>{trunk}
  <body name="arm" pos="0.1 0 0.05"><joint name="h" axis="0 1 0" damping="0.01" {hinge}/>{joints}
    <geom name="a" type="capsule" fromto="0 0 0 0.2 0 0" size="0.03" mass="0.3"/>{arm}
    <body name="tip" pos="0.2 0 0"><joint name="w" axis="0 1 0.2" damping="0.01" {wrist}/>
      <geom name="b" size="0.03" mass="0.1" pos="0.02 0 -0.05"/>
      <site name="s" pos="0.05 0 0.02" euler="0.2 0.1 0"/>{tip}
      </body></body></body></worldbody>{extra}</mujoco>"""


def robot(mass: float = 1.0, **parts: str) -> str:
    """Text of a robot with further attributes and elements."""
    names = (
        "option", "asset", "world", "trunk", "hinge", "joints", "arm", "wrist", "tip", "extra",
    )  # fmt: skip
    known = dict.fromkeys(names, "") | {"model": "robot"} | parts
    return BASE.format(mass=mass, **known)


MESH = '<mesh name="gem" vertex="-.1 -.1 0  .1 -.1 0  .1 .1 0  -.1 .1 0  0 .05 .2" scale="0.5 0.5 0.5"/>'
STONE = """-.09 .05 .12  .16 -.02 -.1  .01 .12 -.03  -.14 -.04 .05  .07 .03 -.18  .11 .07 .04  -.02 -.15 -.06
.05 -.08 .13  -.06 .09 -.11  -.1 -.09 -.08  .13 -.1 .06  -.03 .14 .07"""
ROCK = f'<mesh name="rock" vertex="{STONE}" maxhullvert="8"/>'
MARBLE = """<texture name="check" type="2d" builtin="checker" width="10" height="10"/>
<material name="red" rgba="1 0 0 1"/><material name="marble" texture="check"/>
<material name="mirror" reflectance=".4"/>"""
HILLS = '<hfield name="hills" nrow="3" ncol="4" size="1 1.5 0.2 0.3" elevation="0 1 2 1 2 0 1 3 1 2 0 1"/>'
HILLS += '<hfield name="slope" nrow="3" ncol="4" size="2 1 0.1 0.2" elevation="0 1 2 3 0 1 2 3 0 1 2 3"/>'
SERVO = '<position name="p" joint="h" kp="3" kv="0.1" {}/>'
TENDON = '<fixed name="both" {}><joint joint="h" coef="0.5"/><joint joint="w" coef="-1.2"/></fixed>'


def driven(*actuators: str, tendon: str = "", **parts: str) -> dict[str, str]:
    """Parts of a robot with actuators."""
    tendons = f"<tendon>{tendon}</tendon>" if tendon else ""
    return {"extra": f"{tendons}<actuator>{''.join(actuators)}</actuator>"} | parts


def held(*equalities: str, tendon: str = "", **parts: str) -> dict[str, str]:
    """Parts of a robot with equalities."""
    tendons = f"<tendon>{tendon}</tendon>" if tendon else ""
    return {"extra": f"{tendons}<equality>{''.join(equalities)}</equality>"} | parts


FIELDS: dict[str, dict[str, str]] = {
    "nothing": {},
    "time step": {"option": '<option timestep="0.005"/>'},
    "cone, impratio": {"option": '<option cone="elliptic" impratio="10"/>'},
    "implicitfast": {"option": '<option integrator="implicitfast"/>', **driven(SERVO.format(""))},
    "RK4": {"option": '<option integrator="RK4"/>'},
    "flags": {"option": '<option><flag refsafe="disable" eulerdamp="disable"/></option>',
              "hinge": 'range="-0.1 0.1" solreflimit="0.003 1"'},
    "filterparent": {"option": '<option><flag filterparent="disable"/></option>',
                     "extra": '<contact><exclude body1="trunk" body2="arm"/></contact>'},
    "contact off": {"option": '<option><flag contact="disable" frictionloss="disable"/></option>'},
    "limits off": {"option": '<option><flag limit="disable" equality="disable"/></option>',
                   "hinge": 'range="-0.01 0.01"'},
    "gravity": {"option": '<option gravity="1 2 -3"/>'},
    "fluid, boxes": {"option": '<option density="100" viscosity="0.5" wind="1 2 3"/>'},
    "fluid, ellipsoids": {
        "option": '<option density="100" viscosity="0.5" wind="1 0 3"/>',
        "tip": '<geom name="fin" type="ellipsoid" size=".05 .03 .01" mass=".01" fluidshape="ellipsoid" '
               'fluidcoef="0.4 0.2 1.3 0.9 1.1"/>'},
    "limits": {"hinge": 'range="-0.1 0.2" margin="0.05" solreflimit="0.05 0.5" '
                        'solimplimit="0.8 0.9 0.01 0.4 3"'},
    "dry friction": {"hinge": 'frictionloss="0.05" solreffriction="0.05 1" '
                              'solimpfriction="0.8 0.9 0.01 0.4 3"'},
    "springs": {"hinge": 'stiffness="2 3 4" springref="0.3"', "wrist": 'stiffness="1"'},
    "polynomial damping": {
        "tip": '<body pos="0.1 0 0"><joint name="z" axis="1 0 1" damping="0.01 0.02 0.03"/>'
               '<geom size="0.03" mass="0.1" pos="0 0 0.1"/></body>'},
    "default classes": {"hinge": 'class="strong"', "wrist": 'stiffness="1 0.2 0.3"'},
    "armature": {"wrist": 'armature="0.03"'},
    "reference": {"hinge": 'ref="0.4" range="-1 0.42"', "wrist": 'ref="-0.2" springref="0.1" stiffness="1"'},
    "ball": {"tip": '<body name="c" pos="0.1 0 0"><joint name="ball" type="ball" range="0 0.4" margin="0.1" '
                    'solreflimit="0.03 0.7" pos="0 0.02 0" frictionloss="0.001" damping="0.01"/>'
                    '<geom size="0.02" mass="0.05" pos="0.03 0 0.02"/></body>'},
    "stacks": {"joints": '<joint name="x" type="slide" axis="1 0 0" range="-0.05 0.05" ref="0.1" '
                         'damping="1"/><joint name="y" axis="1 0 1" pos="0.1 0 0" ref="0.2" stiffness="1"/>'},
    "stack with a ball": {
        "tip": '<body name="c" pos="0.1 0 0" euler="0.3 0 0.2"><joint name="x" type="slide" axis="1 0 0" '
               'ref="0.05" damping="1" stiffness="9"/><joint name="ball" type="ball" pos="0 0.1 0" '
               'damping="0.02"/><geom size="0.05" mass="0.2" pos="0.03 0 0.02"/></body>'},
    "motor": driven('<motor name="m" joint="h" gear="2" ctrlrange="-0.4 0.3" forcerange="-0.2 0.5"/>'),
    "servos": driven(SERVO.format('forcerange="-1 0.5"'), '<velocity name="v" joint="w" kv="0.2"/>'),
    "activations": driven(
        '<intvelocity name="i" joint="h" kp="2" actrange="-0.3 0.2"/>',
        '<general name="f" joint="w" dyntype="filterexact" dynprm="0.03" gainprm="0.3" actearly="true"/>',
        '<general name="g" joint="w" dyntype="filter" dynprm="0.05" gaintype="affine" gainprm="0.1 0.2 0.3" '
        'biastype="affine" biasprm="0.1 -0.2 -0.01" forcelimited="true" forcerange="-0.1 0.1"/>'),
    "damper, cylinder": driven(
        '<damper name="d" joint="h" kv="0.3" ctrlrange="0 1"/>',
        '<cylinder name="c" joint="w" area="0.2" timeconst="0.1"/>'),
    "losses of actuators": driven('<motor name="m" joint="h" gear="3" armature="0.01" damping="0.02"/>'),
    "actuator of a tendon": driven('<position name="p" tendon="both" kp="2" gear="1.5"/>',
                                   tendon=TENDON.format("")),
    "force range of a joint": driven(SERVO.format(""), hinge='actuatorfrcrange="-0.1 0.3"'),
    "gravity compensation": driven(SERVO.format(""), hinge='actuatorgravcomp="true" '
                                   'actuatorfrcrange="-0.2 0.2"', arm="") | {
        "arm": '<body name="weight" pos="0.1 0 0" gravcomp="0.7"><geom size="0.02" mass="0.2"/></body>'},
    "tendon": {"extra": "<tendon>" + TENDON.format(
        'range="-0.1 0.05" margin="0.03" solreflimit="0.03 0.7" solimplimit="0.8 0.9 0.01 0.4 3" '
        'frictionloss="0.1" solreffriction="0.04 1" stiffness="3 2 1" damping="0.2 0.1 0.1" '
        'springlength="-0.1 0.01" armature="0.02"') + "</tendon>"},
    "connect": held('<connect name="pin" body1="tip" body2="world" anchor="0.1 0 0" solref="0.05 0.7"/>'),
    "weld": held('<weld name="glue" body1="tip" body2="trunk" relpose="0.2 0 0.2 1 0.2 0 0" '
                 'torquescale="0.4" solimp="0.5 0.6 0.1 0.4 3"/>',
                 '<weld body1="arm" active="false"/>'),
    "equality of sites": held('<connect site1="s" site2="k"/>', trunk='<site name="k" pos="0 0.1 0.2"/>'),
    "equality of a welded link": held(
        '<connect site1="k" site2="s"/>', arm='<body name="lug" pos="0 0.1 0.1" euler="0.2 0 0">'
        '<geom size="0.02" mass="0.3" pos="0.1 0 0"/><site name="k" pos="0.1 0 0"/></body>'),
    "polynomial": held('<joint name="q" joint1="w" joint2="h" polycoef="0.1 0.5 -0.3 0.2 0.1" '
                       'solref="-300 -9"/>', hinge='ref="0.3"', wrist='ref="0.1"'),
    "one joint": held('<joint joint1="h" polycoef="0.2 0 0 0 0" solimp="0.3 0.6 0.1 0.4 3"/>',
                      hinge='ref="0.1"'),
    "equality of tendons": held(
        '<tendon tendon1="both" tendon2="other" polycoef="0.1 0.5 0.2 0 0" solref="0.1 1"/>',
        tendon=TENDON.format("") + '<fixed name="other"><joint joint="w" coef="2"/></fixed>',
        hinge='ref="0.2"'),
    "shapes": {"trunk": '<geom type="cylinder" size="0.03 0.2" pos="0 0 -0.1" mass="0.1" margin="0.02" '
                        'gap="0.01" friction="0.2 0.01 0.02" solmix="3" solref="0.01 0.5" condim="6"/>'
                        '<geom type="ellipsoid" size=".1 .2 .05" mass="0.1" priority="2" group="3" '
                        'solimp="0.7 0.8 0.01 0.3 3" rgba="1 0 0 0.5"/>'},
    "filters": {"trunk": '<geom size="0.2" mass="0.1" contype="2" conaffinity="4"/>',
                "world": '<geom type="box" size="3 3 0.1" pos="0 0 -0.02" contype="4" conaffinity="8"/>'},
    "mesh": {"asset": MESH, "trunk": '<geom type="mesh" mesh="gem" mass="0.2" pos="0 0 -0.1"/>'},
    "mesh with a simplified hull": {
        "asset": ROCK, "trunk": '<geom type="mesh" mesh="rock" mass="0.2" pos="0 0 -0.1" group="3"/>'},
    "height field": {"asset": HILLS, "world": '<geom type="hfield" hfield="hills" pos="0 0 0.01"/>'
                     '<geom type="hfield" hfield="slope" pos="2.5 0 0.05"/>'},
    "pairs": {"extra": '<contact><pair geom1="floor" geom2="b" condim="4" friction="0.5 0.6 0.007 0.01 0.02" '
                       'margin="0.1" gap="0.05" solref="0.05 1" solimp="0.7 0.8 0.01 0.3 3"/></contact>',
              "option": '<option cone="elliptic"/>'},
    "excludes": {"extra": '<contact><exclude body1="trunk" body2="world"/></contact>'},
    "welded links": {"tip": '<body name="hand" pos="0 0 0.1" euler="0 0.4 0"><geom name="palm" size="0.03" '
                            'pos="0.1 0 -0.2" mass="0.1"/><site name="center"/></body>',
                     "world": '<body name="table" pos="0 0 0.05"><geom type="box" size="0.2 0.2 0.04"/>'
                              "</body>"},
    "mocap": {"world": '<body name="target" mocap="true" pos="0 0.5 0.2"><geom size="0.1"/></body>',
              **held('<weld body1="target" body2="trunk" solref="0.2 1"/>')},
    "unnamed": {"tip": '<body pos="0.1 0 0"><joint axis="1 0 0"/><geom size="0.02" mass="0.1"/></body>',
                "extra": '<actuator><motor joint="h"/><motor joint="w"/></actuator>'},
    "odd names": {"model": "a &lt;b&gt; &amp; c", "tip": '<body name="&quot;x&quot; &amp; /y" pos="0.1 0 0">'
                  '<joint name="+&apos;1&lt;"/><geom name="g&gt;" size="0.02" mass="0.1"/></body>'},
    "sensors": {
        "arm": '<site name="t" pos="0.1 0 0" type="box" size="0.2 0.2 0.2"/><camera name="eye" pos="0 0 1"/>',
        "extra": "<actuator>" + SERVO.format("") + "</actuator><sensor>"
                 '<gyro name="gyro" site="s"/><accelerometer site="s"/><velocimeter site="s"/>'
                 '<touch name="touch" site="t"/><force site="s"/><torque site="t"/><jointpos joint="h"/>'
                 '<jointvel joint="w"/><actuatorfrc actuator="p"/><actuatorpos actuator="p"/>'
                 '<framepos objtype="body" objname="tip" reftype="site" refname="s"/>'
                 '<framequat objtype="geom" objname="a"/>'
                 '<framepos objtype="site" objname="s" reftype="geom" refname="a"/>'
                 '<framequat objtype="xbody" objname="arm" reftype="xbody" refname="trunk"/>'
                 '<framelinvel objtype="geom" objname="b" reftype="body" refname="trunk"/>'
                 '<frameangacc objtype="camera" objname="eye"/><subtreecom body="arm"/>'
                 '<subtreeangmom body="trunk"/><framexaxis objtype="site" objname="s"/></sensor>'},
    "keyframe without controls": {
        "extra": '<keyframe><key qpos="0 0 1 1 0 0 0 0.1 0.2"/></keyframe>'},
    "keyframes": driven(SERVO.format(""), '<intvelocity name="i" joint="w" kp="2" actrange="-1 1"/>') | {
        "trunk": ""},
}  # fmt: skip
"""Parts of the robot of each field; see `robot`."""

FIELDS["keyframes"]["extra"] += (
    '<keyframe><key name="up" time="2" qpos="0 0 1 1 0 0 0 0.1 0.2" qvel="1 2 3 4 5 6 7 8" act="0.5" '
    'ctrl="0.1 0.2"/><key qpos="0 0 2 1 0 0 0 0.1 0.2"/></keyframe>'
)

NAMED_IN_MJCF: dict[str, tuple[dict[str, str], str]] = {
    "materials": ({"asset": MARBLE, "trunk": '<geom size=".1" material="marble"/><geom size=".1" '
                   'material="red"/><geom size=".1" material="mirror"/>'}, r"2 materials \(marble, mirror\)"),
    "surface of a mesh": ({"asset": ROCK, "trunk": '<geom name="stone" type="mesh" mesh="rock"/>'},
                          "surfaces of meshes with a simplified convex hull.*: stone"),
}  # fmt: skip
"""Parts of a robot, and the message about a new MJCF file, which lacks something of them."""

NAMED_IN_URDF = {
    "nothing": "contact parameters of shapes",
    "time step": "timestep",
    "cone, impratio": "cone, impratio",
    "implicitfast": "integrator",
    "RK4": "integrator",
    "flags": "refsafe, eulerdamp, limit_solref",
    "filterparent": "disabled",
    "contact off": "disabled",
    "limits off": "disabled",
    "gravity": r"gravity \[1.0, 2.0, -3.0\]",
    "fluid, boxes": "fluid forces",
    "fluid, ellipsoids": "fluid forces",
    "limits": "limit_solref, limit_solimp, limit_margin",
    "dry friction": "friction_solref, friction_solimp",
    "springs": "springs of joints h, w",
    "polynomial damping": "nonlinear damping of joints z",
    "default classes": "armature of joints h",
    "armature": "armature of joints w",
    "reference": r"initial positions .* root, h, w",
    "ball": "limit_angle",
    "stacks": "'h\\+x\\+y' is compound",
    "stack with a ball": "springs of joints x",
    "motor": "actuators m",
    "servos": "actuators p, v",
    "activations": "actuators i, f, g",
    "damper, cylinder": "actuators d, c",
    "losses of actuators": "armature of joints h",
    "actuator of a tendon": "tendons both",
    "force range of a joint": "actuators p",
    "gravity compensation": "gravity compensation of bodies arm",
    "tendon": "tendons both",
    "connect": "solver parameters of loops pin",
    "weld": "loops equality1",
    "equality of sites": "solver parameters of loops equality0",
    "equality of a welded link": "solver parameters of loops equality0",
    "polynomial": "loops q",
    "one joint": "loops equality0",
    "equality of tendons": "loops equality0",
    "shapes": "1 of kind ellipsoid",
    "filters": "contact parameters of shapes",
    "mesh": "1 of kind triangles",
    "mesh with a simplified hull": "1 of kind triangles",
    "height field": "2 of kind heightfield",
    "pairs": "1 contact pairs",
    "excludes": "1 excluded pairs",
    "mocap": "mocap bodies, which stay at their pose: target",
    "unnamed": "actuators actuator0, actuator1",
    "sensors": "sensors gyro",
    "keyframe without controls": "keyframes keyframe0",
    "keyframes": "keyframes up, keyframe1",
}
"""Part of the message about a new URDF file, by field; URDF has the other fields."""
