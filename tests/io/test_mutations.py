"""Any MJCF, URDF or SDF text: refused by name, or loaded with dynamics that are finite."""

import random
import resource
import time
import warnings

import pytest
import torch

import torchsko as ts
from tests.actuators.test_actuation import ALL
from tests.io.test_sdf import ARM
from tests.io.urdf_texts import LINK, POISON, joint, robot
from tests.oracles.test_mjcf import STACKED

pytest.importorskip("mujoco")

LINKED = """<mujoco><compiler autolimits="true"/>
<default><default class="a"><joint damping="1"/></default></default>
<worldbody><replicate count="3" offset="1 0 0">
<body name="hand" childclass="a" gravcomp="0.5"><freejoint/><geom size="0.1"/>
<body name="left"><joint name="l" type="slide" range="-1 1" ref="0.1"/>
<geom type="capsule" size="0.1 0.2"/></body>
<body name="right" pos="0 1 0" euler="10 20 30"><joint name="r" axis="0 -1 0" damping="1 2 3"/>
<geom type="box" size="1 2 3"/></body></body></replicate></worldbody>
<tendon><fixed name="t"><joint joint="l0" coef="2"/></fixed></tendon>
<equality><joint joint1="r0" joint2="l0" polycoef="0.02 0.5 0 0 0"/>
<weld body1="hand0" body2="hand1"/></equality><keyframe><key/></keyframe></mujoco>"""
MIMIC = '<mimic joint="j" multiplier="-0.5" offset="0.1"/><dynamics damping="0.1" friction="0.2"/>'
SHAPES = """<visual><origin rpy="0 1 2"/><geometry><mesh filename="package://a/b.stl"/></geometry>
<material name="red"><color rgba="1 0 0 1"/></material></visual>
<collision><geometry><box size="1 2 3"/></geometry></collision>"""
CHAIN = robot(
    joint('<origin xyz="1 2 3" rpy="1 2 3"/><axis xyz="0 0 2"/><limit lower="-1" upper="2"/>')
    + joint(MIMIC, "prismatic", "k")
    .replace('"a"', '"b"')
    .replace('child link="b"', 'child link="c"'),
    more=LINK.replace('"b"', '"c"').replace("</inertial>", f"</inertial>{SHAPES}")
    + '<transmission name="t"><joint name="j"/></transmission><gazebo/>',
)
OLD_ARM = ARM.replace("1.9", "1.4").replace("relative_to", "frame").replace("attached_to", "name")
SDF = """<sdf version="1.6"><world name="w"><physics type="ode"/><gravity>0 0 -9</gravity><model name="m">
<link name="b"><pose>1 2 3 0.1 0.2 0.3</pose><inertial><mass>2</mass></inertial></link>
<link name="c"><pose frame="b">0 0 1 0 0 0</pose><inertial><pose>0 0 1 0 0 0</pose></inertial></link>
<joint name="b" type="universal"><parent>world</parent><child>b</child><axis><xyz>1 0 0</xyz>
<use_parent_model_frame>1</use_parent_model_frame></axis><axis2><xyz>0 1 0</xyz></axis2></joint>
<joint name="k" type="screw"><parent>b</parent><child>c</child><thread_pitch>-3</thread_pitch><axis>
<xyz>0 0 1</xyz><limit><lower>-1e16</lower></limit><dynamics><damping>0.1</damping></dynamics></axis></joint>
</model></world></sdf>"""
BASES = {
    "mjcf": (STACKED, ALL, LINKED),
    "urdf": (CHAIN, CHAIN.replace("revolute", "spherical")),
    "sdf": (ARM, OLD_ARM, SDF),
}
OF_MJCF = [*POISON, '<include file="/etc/passwd"/>', '<replicate count="1e9">', "<joint/>", "<freejoint/>",
           '<body name="a">', "</body>", "1e9", "1e15", 'type="ball"', 'mass="0"', 'pos="nan nan nan"',
           'file="../x.stl"', "<flexcomp/>", "<attach/>", 'class="none"']  # fmt: skip
OF_URDF = [*POISON, '<mimic joint="j"/>', '<mimic joint="nobody"/>', 'type="floating"', "</link>", "</joint>",
           '<parent link="c"/>', '<child link="a"/>', '<origin rpy="nan 0 0"/>', '<mass value="0"/>',
           '<limit lower="1" upper="-1"/>', 'type="planar"', 'type="continuous"', "<robot>"]  # fmt: skip
OF_SDF = [*POISON, "1.4", "1.7", "</link>", "</joint>", "<axis>", 'relative_to="b"', 'frame="c"', "ball",
          "revolute2", "screw", "<mimic joint='k'/>", "<parent>c</parent>", "<child>b</child>", "world",
          "__model__", "<pose>1 2 3</pose>", "<include/>", "<model/>", "true"]  # fmt: skip
NEW = {"mjcf": OF_MJCF, "urdf": OF_URDF, "sdf": OF_SDF}
SLOWEST = 2.0
"""Seconds of the processor, for one text."""
MOST = 2**30
"""Bytes more than before."""


def mutated(g: random.Random, format: str) -> str:
    """A text with a few slices of it deleted, repeated, or replaced; or digits of its numbers changed."""
    text = g.choice(BASES[format])
    if g.random() < 0.4:
        letters = list(text)
        digits = [i for i, c in enumerate(letters) if c.isdigit()]
        for i in g.sample(digits, g.randint(1, 4)):
            letters[i] = g.choice([*"0123456789", "e300", "e-300", "-", ".", "1e12", "", " "])
        return "".join(letters)
    for _ in range(g.randint(1, 3)):
        start = g.randrange(len(text))
        stop = min(len(text), start + g.choice([0, 0, 1, 5, 30, 200]))
        new = g.choice([*NEW[format], "", text[start:stop] * 2, text[stop : stop + 100]])
        text = text[:start] + new + text[stop:]
    return text


def survives(text: str) -> bool:
    """Whether a text loads; refused otherwise, by an error of ours, and soon."""
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        mech = ts.load(text, floating_base=False)
        loads = True
    except ts.TorchskoError as error:
        assert error.what and error.advice, error
        loads = False
    took = time.process_time() - begun
    assert took < SLOWEST, took
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST
    if loads:
        q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))
        # No number of a robot is beyond the range of its type; what is near its end may overflow in products.
        assert all(
            bool(getattr(mech, f).isfinite().all()) for f in ("mass", "com", "inertia", "damping")
        )
        assert bool(ts.inverse_dynamics(mech, q, qd, qd).isfinite().all())
    return loads


def all_survive(format: str, count: int, seed: int) -> None:
    g, loaded = random.Random(seed), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(count):
            text = mutated(g, format)
            try:
                loaded += survives(text)
            except Exception as error:
                raise AssertionError(f"text {i} of seed {seed}: {error!r}\n{text}") from error
    assert count // 20 < loaded < count  # both outcomes are met


@pytest.mark.parametrize("format", BASES)
def test_any_text_either_loads_or_is_refused_by_name(format):
    all_survive(format, 300, seed=0)


@pytest.mark.nightly
@pytest.mark.parametrize("format", BASES)
def test_any_of_20000_texts_either_loads_or_is_refused_by_name(format):
    all_survive(format, 20_000, seed=1)
