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
<body pos="0 2 .12"><freejoint/><geom size=".1" mass="1" condim="6"/></body></worldbody></mujoco>"""

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
}
"""Functions that give the text of a model for a friction cone."""
