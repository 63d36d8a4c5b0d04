"""Small MuJoCo models for tests of contact."""

LEG = """<body name="leg{k}" pos="{x} {y} 0"><joint name="hip{k}" axis="1 0 0" range="-40 40"/>
  <joint name="thigh{k}" axis="0 1 0" range="-60 60" frictionloss=".3"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".03"/>
  <body pos="0 0 -.2"><joint name="knee{k}" axis="0 1 0" range="-80 20" damping=".4"/>
    <geom type="capsule" fromto="0 0 0 .05 0 -.18" size=".025"/>
    <geom name="foot{k}" size=".03" pos=".05 0 -.2" friction="{mu} .02 .01" condim="{condim}" priority="1"/>
  </body></body>"""

QUADRUPED = """<mujoco><compiler autolimits="true"/><option cone="{cone}" impratio="{impratio}"/>
<default><joint damping=".2" armature=".02" limited="true"/><position kp="20" kv=".5"/></default>
<worldbody><geom name="floor" type="plane" size="9 9 1" condim="1" friction=".3 .01 .01"/>
<body name="base" pos="0 0 .36"><freejoint/><geom type="box" size=".2 .1 .05" mass="6"/>{legs}</body>
</worldbody><actuator>{motors}</actuator></mujoco>"""

HOPPER = """<mujoco><option cone="{cone}"/><worldbody><geom type="plane" size="9 9 1" friction=".6 .02 .01"/>
<body pos="0 0 .3"><joint type="slide" axis="1 0 0" name="x"/><joint type="slide" axis="0 0 1" name="z"/>
<joint type="hinge" axis="0 1 0" name="pitch" damping=".1"/>
<geom type="capsule" size=".05" fromto="0 0 0 0 0 .3"/>
<body><joint name="knee" type="hinge" axis="0 1 0" range="-30 60" limited="true"
frictionloss=".3" damping=".2"/>
<geom type="capsule" size=".04" fromto="0 0 0 .1 0 -.25" condim="{condim}"/></body></body>
</worldbody><actuator><motor joint="knee" gear="10"/></actuator></mujoco>"""

BOXES = """<mujoco><option cone="{cone}"/><worldbody><geom type="plane" size="9 9 1" friction=".5 .01 .01"/>
<body pos="0 0 .12"><freejoint/><geom type="box" size=".2 .15 .1" mass="2"/></body>
<body pos="0 1 .12"><freejoint/><geom type="cylinder" size=".1 .1" mass="1"/></body>
<body pos="0 2 .12"><freejoint/><geom size=".1" mass="1" condim="6" margin=".01" gap=".02"/></body>
</worldbody></mujoco>"""

PILE = """<mujoco><option cone="{cone}"/><asset>
<mesh name="gem" vertex="-.1 -.1 0  .1 -.1 0  .1 .1 0  -.1 .1 0  0 .05 .2"/></asset><worldbody>
<geom type="plane" size="9 9 1" friction=".5 .01 .01" contype="3"/>
<body pos="0 0 .1"><freejoint/><geom type="box" size=".2 .15 .1" mass="2"/></body>
<body pos="0 0 .22" euler="5 0 30"><freejoint/><geom type="box" size=".1 .1 .02" mass="1"/></body>
<body pos=".22 .1 .25" euler="10 70 0"><freejoint/><geom type="capsule" size=".03 .15" mass="1"/></body>
<body pos="-.1 0 .3"><freejoint/><geom size=".05" mass="1"/></body>
<body pos=".3 -.3 .1" euler="3 5 0"><freejoint/><geom type="mesh" mesh="gem" mass="1"
  contype="0" conaffinity="2"/></body>
</worldbody></mujoco>"""


LINK = """<geom type="capsule" size=".03" fromto="0 0 0 {} 0 0" contype="0" conaffinity="0"/>"""

FOUR_BAR = f"""<mujoco><option timestep="0.001"/><worldbody><body name="crank">
<joint name="crank" axis="0 1 0" damping=".1"/>{LINK.format(0.2)}<body name="rod" pos=".2 0 0">
<joint name="rod" axis="0 1 0" frictionloss=".1"/>{LINK.format(0.4)}</body></body>
<body name="rocker" pos=".5 0 0"><joint name="rocker" axis="0 1 0"/>{LINK.format(0.3)}</body></worldbody>
<equality><connect name="loop" body1="rod" body2="rocker" anchor=".3 0 .01" solref=".01 .8"/></equality>
</mujoco>"""

WELDED = """<mujoco><option cone="{cone}"/><worldbody><geom type="plane" size="9 9 1"/>
<body name="a" pos="0 0 .15"><freejoint/><geom type="capsule" size=".1 .1"/></body>
<body name="b" pos=".5 0 .15"><freejoint/><geom size=".1"/><site name="s" pos="0 0 .1" euler="10 20 30"/>
<body name="c" pos="0 0 .3"><joint type="ball" range="0 20" limited="true" margin=".1"/>
<geom type="capsule" size=".05 .1" pos="0 0 .1"/><site name="t" pos="0 .1 .1"/></body></body></worldbody>
<equality><weld body1="a" body2="b" torquescale=".7" solimp=".8 .9 .1 .4 3"/><connect site1="t" site2="s"/>
<weld body1="a" relpose="0 0 .2 1 .1 0 0" active="false"/></equality></mujoco>"""

GRIPPER = """<mujoco><compiler autolimits="true"/><worldbody><geom type="plane" size="2 2 1"/>
<body name="palm" pos="0 0 .3"><joint name="lift" type="slide" axis="0 0 1"/>
<geom type="box" size=".1 .03 .02"/>
<body pos=".05 0 -.02"><joint name="left" axis="0 1 0" ref="10"/><geom type="capsule" size=".02"
fromto="0 0 0 0 0 -.2"/></body>
<body pos="-.05 0 -.02"><joint name="right" axis="0 -1 0" range="-40 40" margin="1"/>
<geom type="capsule" size=".02" fromto="0 0 0 0 0 -.2"/></body></body></worldbody>
<equality><joint joint1="right" joint2="left" polycoef=".01 1 .2 -.1 .3" solref="-400 -20"/>
<joint joint1="lift" polycoef="-.02 0 0 0 0" solimp=".2 .5 .01 .5 2"/></equality>
<actuator><motor joint="left" gear="2"/></actuator></mujoco>"""

TENDONS = """<mujoco><compiler autolimits="true"/><worldbody><geom type="plane" size="2 2 1"/>
<body name="trunk" pos="0 0 .5"><freejoint/><geom type="capsule" size=".1 .1" mass="5"/>
<body pos=".1 0 -.1"><joint name="hip" axis="0 1 0" range="-60 60"/><geom type="capsule" size=".05"
fromto="0 0 0 0 0 -.2"/><body pos="0 0 -.2"><joint name="knee" axis="0 1 0"/><geom type="capsule" size=".04"
fromto="0 0 0 0 0 -.18"/></body></body>
<body pos="-.1 0 -.1"><joint name="hip2" axis="0 1 0"/>
<geom type="capsule" size=".05" fromto="0 0 0 0 0 -.2"/></body></body></worldbody>
<tendon><fixed name="a" armature=".05" range="-.2 .1" margin=".2" frictionloss=".4" solreffriction=".03 1"
solimplimit=".8 .9 .01 .5 2"><joint joint="hip" coef="2"/><joint joint="knee" coef="-.7"/></fixed>
<fixed name="b" range="-.1 .3" solreflimit="-300 -8" stiffness="30 20 90" damping="2 .5 .3"
springlength=".05 .1"><joint joint="hip2" coef="1"/></fixed>
<fixed name="c" armature=".03" range="-1 1"><joint joint="hip2" coef="1"/><joint joint="knee" coef=".5"/>
</fixed></tendon>
<actuator><motor tendon="c" gear="2" armature=".01" damping=".05"/>
<position tendon="c" kp="20" kv="3"/></actuator>
<equality><tendon tendon1="a" tendon2="b" polycoef=".1 .5 .2 .1 .3"/></equality></mujoco>"""


CLOSED = f"""<mujoco><compiler autolimits="true"/><option cone="elliptic" timestep="0.001"/><worldbody>
<geom type="plane" size="3 3 1" pos="0 0 -.35"/>
<body name="crank" euler="0 -70 0"><joint name="crank" axis="0 1 0" damping=".1" range="-50 200"/>
{LINK.format(0.2)}<body name="rod" pos=".2 0 0" euler="0 55 0">
<joint name="rod" axis="0 1 0" frictionloss=".1" damping=".2"/>{LINK.format(0.4)}
<geom size=".05" pos=".2 0 -.1"/></body></body>
<body name="rocker" pos=".5 0 0" euler="0 -98 0"><joint name="rocker" axis="0 1 0" range="-40 40" margin="1"/>
{LINK.format(0.3)}</body>
<body name="finger" pos="0 .5 0"><joint name="first" axis="0 1 0" damping=".3"/>{LINK.format(0.3)}
<body pos=".3 0 0"><joint name="second" axis="0 1 0" frictionloss=".2"/>
<geom size=".05" pos=".1 0 0"/></body></body>
<body name="ball" pos=".3 .5 -.25"><freejoint/><geom size=".08"/></body></worldbody>
<equality><connect body1="rod" body2="rocker" anchor=".4 0 0"/>
<joint joint1="second" joint2="first" polycoef=".1 .7 0 0 0"/></equality></mujoco>"""
"""A four-bar, a joint that follows another, and a ball, above a plane."""


def quadruped(cone="pyramidal", condim=3, impratio=1.0):
    """Text of a robot with twelve joints and four feet."""
    places = [(0.2, 0.1), (0.2, -0.1), (-0.2, 0.1), (-0.2, -0.1)]
    legs = [
        LEG.format(k=k, x=x, y=y, mu=0.5 + 0.1 * k, condim=condim)
        for k, (x, y) in enumerate(places)
    ]
    motors = [
        f'<position joint="{joint}{k}"/>' for k in range(4) for joint in ("hip", "thigh", "knee")
    ]
    return QUADRUPED.format(
        cone=cone, impratio=impratio, legs="".join(legs), motors="".join(motors)
    )


MODELS = {
    "quadruped": lambda **options: quadruped(**options),
    "hopper": lambda cone="pyramidal", condim=3: HOPPER.format(cone=cone, condim=condim),
    "boxes": lambda cone="pyramidal": BOXES.format(cone=cone),
    "pile": lambda cone="pyramidal": PILE.format(cone=cone),
    "four-bar": lambda cone="pyramidal": FOUR_BAR,
    "welded": lambda cone="pyramidal": WELDED.format(cone=cone),
    "gripper": lambda cone="pyramidal": GRIPPER,
    "tendons": lambda cone="pyramidal": TENDONS,
}
"""Functions that give the text of a model for a friction cone."""
