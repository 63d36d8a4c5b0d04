"""A robot in MJCF that uses one field, by itself, without its wrist, on a cart and with a tool."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

ANGLE = 0.4
"""Position at which the wrist is locked [rad]."""

SIZE = ' size=".03" contype="0" conaffinity="0"'


@dataclass(frozen=True)
class Feature:
    """A use of some fields.

    Attributes:
        fields: the fields, as names of a class and of its attribute.
        attributes: attributes of elements of the robot, by the names of slots in `ROBOT`.
        sections: further elements of the file, in which {world} is the name of the body that carries the
            robot.
        ctrl: controls.
        moves: whether the motion without the feature is another.
    """

    fields: str
    attributes: dict[str, str] = field(default_factory=dict)
    sections: str = ""
    ctrl: tuple[float, ...] = ()
    moves: bool = True


class Texts(NamedTuple):
    """MJCF texts of a robot, of a cart and of a tool, and of the robots that edits result in.

    Attributes:
        robot: above a floor.
        bare: without the floor.
        locked: the robot with its wrist locked at `ANGLE`.
        static: the robot with its shoulder locked at 0.
        cart: above a floor.
        on_cart: the cart with the bare robot on it.
        tool: a gripper with a free joint.
        with_tool: the robot with the tool on its flange.
    """

    robot: str
    bare: str
    locked: str
    static: str
    cart: str
    on_cart: str
    tool: str
    with_tool: str


OPTION = 'timestep="0.004" integrator="implicitfast"'

FLOOR = '<geom name="floor" type="plane" size="9 9 1" friction=".7 .01 .01" {floor}/>'

FILE = """<mujoco model="{name}"><compiler angle="radian" autolimits="true"/>
<option {option}><flag {flag}/></option>
<worldbody>{bodies}</worldbody>{sections}</mujoco>"""

ROBOT = """<site name="origin" pos=".5 0 .9" euler=".2 .1 0"/>
<geom name="post" size=".04" pos=".07 .41 .09" mass="0" {post}/>
<body name="upper" pos="0 0 1" {upper}>{shoulder_joint}
<geom name="upper" type="capsule" fromto="0 0 0 .3 0 0" mass="1"{size}/>
<body name="fore" pos=".3 0 0" euler="0 .3 0" {fore}><joint name="elbow" axis="0 1 0" {elbow}/>
<geom name="fore" type="capsule" fromto="0 0 0 .25 0 0" mass=".6"{size} {fore_geom}/>
<site name="imu" pos=".1 0 .02" euler=".2 .1 0"/>
<body name="eye" pos=".1 .05 0"><geom name="eye" mass=".1"{size}/></body>
<body name="hand" pos=".25 0 0" {hand}>{wrist_joint}
<geom name="hand" type="box" size=".03 .04 .02" pos=".02 .03 0" mass=".3" contype="0" conaffinity="0"/>
<site name="flange" pos=".05 0 0" euler="0 0 .5"/>{on_flange}</body></body></body>
<body name="puck" pos="0 .4 .045"><joint name="puck_x" type="slide" axis="1 0 0" {puck_x}/>
<joint name="puck_z" type="slide" axis="0 0 1"/><joint name="puck_turn" axis="0 1 0"/>
<geom name="puck" size=".05" pos=".01 0 0" mass=".2" friction=".5 .02 .01" {puck}/></body>
<body name="top" pos="0 -.4 .5"><joint name="ball" type="ball" pos="0 0 .1" {ball}/>
<geom name="top" type="box" size=".05 .06 .08" pos=".03 0 -.1" mass=".4" contype="0" conaffinity="0"/></body>
"""

FRAME = 'pos=".1 .05 .1" euler=".1 .05 .2"'

CART = """<body name="cart" pos="0 0 .1"><joint name="rail" type="slide" axis="1 0 0" damping=".3"/>
<geom name="cart" type="box" size=".2 .2 .05" mass="3" contype="0" conaffinity="0"/>
<site name="mount" {frame}/>{carried}</body>""".replace("{frame}", FRAME)

TOOL = """<body name="palm" {place}>{free}
<geom name="palm" type="box" size=".03 .02 .02" pos=".01 0 .01" mass=".2" contype="0" conaffinity="0"/>
<body name="finger" pos=".03 0 0"><joint name="slide" type="slide" axis="0 1 0" damping="2"
  range="-.01 .02" solreflimit=".03 .9" margin=".005"/>
<geom name="finger" size=".01 .02 .01" type="box" mass=".05" contype="0" conaffinity="0"/></body></body>"""

TOOL_SECTIONS = '<actuator><position name="grip" joint="slide" kp="40" kv="2"/></actuator>'

SLOTS = ("option", "flag", "floor", "post", "upper", "fore", "elbow", "fore_geom", "hand", "puck_x",
         "puck", "ball")  # fmt: skip

SHOULDER = '<joint name="shoulder" axis="0 1 0" damping=".03"/>'

WRIST = '<joint name="wrist" axis="1 0 0" damping=".02"/>'


def texts(feature: Feature) -> Texts:
    """The texts for a feature."""
    slots = defaultdict(str, feature.attributes)
    assert set(slots) <= set(SLOTS)
    slots["option"] = slots["option"] or OPTION
    slots |= {name: slots[name] for name in SLOTS}

    def file(name: str, bodies: str, world: str = "world", sections: str = "") -> str:
        found = feature.sections.replace("{world}", world) if name != "tool" else ""
        if name == "cart" and not sections:
            found = ""
        return FILE.format(name=name, bodies=bodies, sections=found + sections, **slots)

    def robot(shoulder: str = SHOULDER, wrist: str = WRIST, on_flange: str = "") -> str:
        turned = slots | ({} if wrist else {"hand": f'{slots["hand"]} euler="{ANGLE} 0 0"'})
        joints = {"shoulder_joint": shoulder, "wrist_joint": wrist, "on_flange": on_flange}
        return ROBOT.format(size=SIZE, **turned, **joints)

    floor = FLOOR.format(**slots)
    tool = TOOL.format(place='pos=".05 0 0" euler="0 0 .5"', free="")
    carried = f"<frame {FRAME}>{robot()}</frame>"
    return Texts(
        robot=file("robot", floor + robot()),
        bare=file("robot", robot()),
        locked=file("robot", floor + robot(wrist="")),
        static=file("robot", floor + robot(shoulder="")),
        cart=file("cart", floor + CART.format(carried="")),
        on_cart=file("on_cart", floor + CART.format(carried=carried), "cart"),
        tool=file("tool", TOOL.format(place="", free="<freejoint/>"), sections=TOOL_SECTIONS),
        with_tool=file("robot", floor + robot(on_flange=tool), sections=TOOL_SECTIONS),
    )


def actuator(kind: str, attributes: str) -> str:
    """An actuator of the elbow, and its sensors."""
    return (
        f'<actuator><{kind} name="drive" joint="elbow" {attributes}/></actuator><sensor>'
        '<actuatorpos actuator="drive"/><actuatorvel actuator="drive"/><actuatorfrc actuator="drive"/>'
        '<jointactuatorfrc joint="elbow"/></sensor>'
    )


def tendon(attributes: str, rest: str = "") -> str:
    """A tendon of the elbow and the puck."""
    return (
        f'<tendon><fixed name="belt" {attributes}><joint joint="elbow" coef=".7"/>'
        f'<joint joint="puck_x" coef="2"/></fixed></tendon>{rest}'
    )


def equality(element: str) -> str:
    return f"<equality>{element}</equality>"


SOFT = 'solref=".03 .8" solimp=".7 .9 .02 .4 3"'

WELD = '<weld name="hold" body1="upper" body2="fore" relpose=".3 0 .1 1 .1 0 0" torquescale=".6"'

SITE = 'objtype="site" objname="flange"'

SENSORS = f"""<sensor><jointpos name="p" joint="elbow"/><jointvel joint="puck_turn"/><ballquat joint="ball"/>
<ballangvel joint="ball"/><framepos {SITE}/><framepos {SITE} reftype="site" refname="imu"/>
<framequat {SITE}/><framexaxis {SITE}/><frameyaxis {SITE}/><framezaxis objtype="body" objname="eye"/>
<framelinvel {SITE}/><frameangvel {SITE} reftype="xbody" refname="fore"/><velocimeter site="imu"/>
<gyro site="imu"/><framelinacc {SITE}/><frameangacc {SITE}/><accelerometer site="imu"/>
<force site="imu"/><torque site="imu" cutoff=".02"/><subtreecom body="fore"/><subtreelinvel body="fore"/>
<subtreeangmom body="fore"/></sensor>"""

FEATURES = {
    "time step": Feature(
        "SolverOptions.timestep", {"option": 'timestep="0.003" integrator="implicitfast"'}
    ),
    **{
        f"integrator {name}": Feature(
            "SolverOptions.integrator",
            {"option": f'timestep="0.004" integrator="{name}"'},
            actuator("damper", 'kv="2" ctrlrange="0 1"'),  # which Euler takes explicitly
            (1.0,),
        )
        for name in ("Euler", "RK4", "discrete")
    },
    "cones": Feature(
        "SolverOptions.cone SolverOptions.impratio",
        {"option": OPTION + ' cone="elliptic" impratio="3"'},
    ),
    "refsafe": Feature(
        "SolverOptions.refsafe", {"flag": 'refsafe="disable"', "puck": 'solref=".007 1"'}
    ),
    "eulerdamp": Feature(
        "SolverOptions.eulerdamp",
        {
            "flag": 'eulerdamp="disable"',
            "option": 'timestep="0.004" integrator="Euler"',
            "elbow": 'damping=".1"',
        },
    ),
    "without contact": Feature("SolverOptions.disabled", {"flag": 'contact="disable"'}),
    "without limits": Feature(
        "SolverOptions.disabled",
        {"flag": 'limit="disable"', "elbow": 'range="-.1 .1" margin=".2"'},
        moves=False,
    ),
    "without effect": Feature(
        "SolverOptions.other_options SolverOptions.other_flags",
        {"flag": 'warmstart="disable"', "option": OPTION + ' ls_iterations="70" solver="CG"'},
        moves=False,
    ),
    "gravity": Feature("gravity", {"option": OPTION + ' gravity="1 2 -5"'}),
    "medium": Feature(
        "medium wind fluid_rotation fluid_position fluid_size",
        {"option": OPTION + ' density="300" viscosity=".3" wind="3 2 1"'},
    ),
    "fluid of ellipsoids": Feature(
        "fluid_coefficients",
        {"option": OPTION + ' density="300" viscosity=".3"', "puck": 'fluidshape="ellipsoid"'},
    ),
    "limits": Feature(
        "lower upper SolverOptions.limit_solref SolverOptions.limit_solimp SolverOptions.limit_margin",
        {
            "elbow": 'range="-.1 .1" margin=".2" solreflimit=".03 .7" solimplimit=".5 .8 .03 .4 3"',
            "puck_x": 'range="-.01 .01" margin=".003" solreflimit="-300 -20"',
        },
    ),
    "limit of a ball": Feature(
        "SolverOptions.limit_angle",
        {"ball": 'range="0 .2" margin=".2" solreflimit=".03 .7" solimplimit=".5 .8 .03 .4 3"'},
    ),
    "dry friction": Feature(
        "friction SolverOptions.friction_solref SolverOptions.friction_solimp",
        {
            "elbow": 'frictionloss=".3" solreffriction=".03 1" solimpfriction=".5 .8 .03 .4 3"',
            "puck_x": 'frictionloss=".2" solreffriction=".04 1"',
        },
    ),
    "passive forces": Feature(
        "damping higher_damping stiffness higher_stiffness armature spring_reference",
        {
            "elbow": 'damping=".1 .02 .03" stiffness="3 1 2" springref=".3" armature=".02"',
            "ball": 'damping=".02" stiffness=".5" armature=".001"',
        },
    ),
    "reference": Feature("FileMetadata.initial", {"elbow": 'ref=".3"', "puck_x": 'ref="-.1"'}),
    "gravity compensation": Feature("gravcomp", {"hand": 'gravcomp=".8"', "fore": 'gravcomp=".5"'}),
    "contact": Feature(
        "Surface.condim Surface.priority Surface.friction Surface.solref Surface.solimp Surface.margin "
        "Surface.gap",
        {
            "puck": 'condim="6" priority="1" solref=".03 .8" solimp=".7 .9 .02 .4 3" margin=".01" gap=".004"',
        },
    ),
    "mixed contact": Feature("Surface.solmix", {"puck": 'solmix="3" solref=".05 1"'}),
    "masks": Feature(
        "Surface.contype Surface.conaffinity",
        {"puck": 'contype="2" conaffinity="4"', "post": 'contype="1" conaffinity="1"'},
    ),
    "pair": Feature(
        "Geometry.pairs Pair.first Pair.second Pair.surface Surface.friction_pair Surface.solref_friction",
        {"puck": 'contype="0" conaffinity="0"', "option": OPTION + ' cone="elliptic"'},
        '<contact><pair geom1="post" geom2="puck" condim="4" friction=".6 .4 .01 .001 .002" '
        'solref=".03 .8" solreffriction=".05 1" solimp=".7 .9 .02 .4 3" margin=".01"/></contact>',
    ),
    "exclude": Feature(
        "Geometry.excluded", sections='<contact><exclude body1="{world}" body2="puck"/></contact>'
    ),
    "connect": Feature(
        "FileMetadata.closures Closure.kind Closure.frame1 Closure.frame2 Closure.position1 "
        "Closure.position2 Closure.solref Closure.solimp",
        sections=equality(f'<connect body1="fore" body2="upper" anchor=".1 .02 0" {SOFT}/>'),
    ),
    "connect of sites": Feature(
        "Closure.frame1", sections=equality(f'<connect site1="flange" site2="origin" {SOFT}/>')
    ),
    "connect on one body": Feature(
        "Closure.frame2",
        sections=equality(
            f'<connect site1="flange" site2="imu" {SOFT}/><connect body1="upper" body2="{{world}}" '
            f'anchor=".1 .1 .1" {SOFT}/>'
        ),
    ),
    "weld": Feature("Closure.rotation Closure.torque_scale", sections=equality(f"{WELD} {SOFT}/>")),
    "weld of sites": Feature(
        "Closure.rotation", sections=equality(f'<weld site1="origin" site2="flange" {SOFT}/>')
    ),
    "inactive weld": Feature(
        "Closure.active", sections=equality(f'{WELD} active="false"/>'), moves=False
    ),
    "joint equality": Feature(
        "Closure.joints Closure.parameters",
        {"elbow": 'ref=".1"'},
        equality(f'<joint joint1="elbow" joint2="puck_x" polycoef=".05 1 .2 -.1 .3" {SOFT}/>'),
    ),
    "equality of one joint": Feature(
        "Closure.joints",
        sections=equality(f'<joint joint1="elbow" polycoef=".05 0 0 0 0" {SOFT}/>'),
    ),
    "tendon": Feature(
        "FileMetadata.tendons Tendon.joints Tendon.stiffness Tendon.damping Tendon.relaxed "
        "Tendon.armature Tendon.higher_stiffness Tendon.higher_damping",
        sections=tendon(
            'stiffness="30 20 90" damping="2 .5 .3" springlength=".02 .04" armature=".05"'
        ),
    ),
    "tendon with limits": Feature(
        "Tendon.limits Tendon.margin Tendon.friction Tendon.limit_solref Tendon.limit_solimp "
        "Tendon.friction_solref Tendon.friction_solimp",
        sections=tendon(
            'range="-.1 .05" margin=".2" frictionloss=".3" solreffriction=".03 1" '
            'solimpfriction=".6 .8 .02 .4 3" solreflimit=".05 .9" solimplimit=".5 .8 .03 .4 3"'
        ),
    ),
    "tendon equality": Feature(
        "Closure.joints",
        sections=tendon("", equality(f'<tendon tendon1="belt" polycoef=".05 0 0 0 0" {SOFT}/>')),
    ),
    "motor": Feature(
        "FileMetadata.actuators FileActuators.actuators Actuator.transmission Actuator.gain "
        "Actuator.control_range",
        sections=actuator("motor", 'gear="3" ctrlrange="-.2 .3"'),
        ctrl=(0.5,),
    ),
    "position servo": Feature(
        "Actuator.bias Actuator.force_range",
        sections=actuator("position", 'kp="20" kv="2" gear="1.5" forcerange="-3 2"'),
        ctrl=(0.2,),
    ),
    "integrator": Feature(
        "Actuator.activation Actuator.activation_range",
        sections=actuator("intvelocity", 'kp="30" actrange="-.02 .02"'),
        ctrl=(2.0,),
    ),
    "filter": Feature(
        "Actuator.time_constant Actuator.early",
        sections=actuator(
            "general", 'dyntype="filterexact" dynprm=".03" gainprm="3" actearly="true"'
        ),
        ctrl=(0.7,),
    ),
    "actuator of a tendon": Feature(
        "Actuator.transmission",
        sections=tendon("", '<actuator><position name="drive" tendon="belt" kp="30"/></actuator>'),
        ctrl=(0.3,),
    ),
    "range of joint forces": Feature(
        "FileActuators.joint_range effort_limit",
        {"elbow": 'actuatorfrcrange="-.3 .4"'},
        actuator("motor", 'gear="3"'),
        (0.5,),
    ),
    "lifting actuators": Feature(
        "FileActuators.lifting_joints",
        {"fore": 'gravcomp=".7"', "elbow": 'actuatorgravcomp="true" actuatorfrcrange="-.3 .4"'},
        actuator("motor", 'gear="3"'),
        (0.1,),
    ),
    "sensors": Feature(
        "FileMetadata.sensors Sensor.name Sensor.kind Sensor.target Sensor.rotation Sensor.position "
        "Sensor.cutoff Sensor.reference SensorFrame.frame SensorFrame.rotation SensorFrame.position",
        sections=SENSORS,
        moves=False,
    ),
    "touch sensor": Feature(
        "Sensor.region Sensor.body",
        {"puck": '/><site name="skin" size=".06"'},
        '<sensor><touch name="touch" site="skin"/></sensor>',
        moves=False,
    ),
}
"""A use of each field that changes the motion or a reading."""
