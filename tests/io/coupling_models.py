"""Equalities that are couplings by default: parts of the robot of `road_fields`."""

from tests.io.road_fields import TENDON, held

SOFT = 'solref="0.05 0.7" solimp="0.6 0.8 0.02 0.4 3"'

JOINTS = {
    "hinge": 'ref="0.2" range="-1 0.9" margin="0.01" solreflimit="0.03 0.8"',
    "wrist": 'ref="0.1"',
}

COUPLINGS = {
    "joints": held(f'<joint name="q" joint1="w" joint2="h" polycoef="0.1 -0.5 0 0 0" {SOFT}/>', **JOINTS),
    "without a name": held('<joint joint1="w" joint2="h" solref="-200 -7"/>', **JOINTS),
    "one joint": held(f'<joint name="q" joint1="w" polycoef="0.2 0 0 0 0" {SOFT}/>', **JOINTS),
    "tendon": held(f'<tendon name="q" tendon1="both" polycoef="0.1 0 0 0 0" {SOFT}/>',
                   tendon=TENDON.format('stiffness="3" springlength="0.1"'), **JOINTS),
    "tendons": held(
        f'<tendon name="q" tendon1="both" tendon2="other" polycoef="0.1 0.5 0 0 0" {SOFT}/>',
        tendon=TENDON.format("") + '<fixed name="other"><joint joint="w" coef="2"/></fixed>', **JOINTS),
    "chain": held(
        f'<joint name="p" joint1="w" joint2="h" polycoef="0.1 -0.5 0 0 0" {SOFT}/>',
        '<joint name="q" joint1="z" joint2="w" polycoef="0 2 0 0 0" solref="0.1 1"/>',
        tip='<body pos="0.1 0 0"><joint name="z" axis="1 0 1"/><geom size="0.03" mass="0.1" pos="0 0 .1"/>'
            "</body>", **JOINTS),
    "three joints": held(
        f'<tendon name="q" tendon1="sum" {SOFT}/>',
        tendon='<fixed name="sum"><joint joint="h" coef="1"/><joint joint="w" coef="-2"/>'
               '<joint joint="z" coef="0.5"/></fixed>',
        tip='<body pos="0.1 0 0"><joint name="z" axis="1 0 1"/><geom size="0.03" mass="0.1" pos="0 0 .1"/>'
            "</body>", **JOINTS),
}  # fmt: skip
"""Parts of a robot with couplings."""
