"""Readings of sensors equal those of MuJoCo, in batches, with gradients and in kernels."""

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.contact.models import quadruped
from torchsko.mechanism.file_data.sensor import TARGETS
from torchsko.sensing.sensors import KINDS

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")

REGIONS = ("sphere", "capsule", "ellipsoid", "cylinder")
"""Shapes of the touch sites of the four feet."""

FRAMES = ("pos", "quat", "xaxis", "yaxis", "zaxis", "linvel", "angvel", "linacc", "angacc")
AT_FRAMES = (
    ("site", "imu", ""),
    ("body", "leg1", ""),
    ("xbody", "leg2", ""),
    ("geom", "foot0", ""),
    ("camera", "eye", ""),
    ("site", "home", ""),
    ("geom", "foot3", ' reftype="site" refname="imu"'),
    ("site", "imu", ' reftype="site" refname="home"'),
)


def sensor_elements():
    """Text of the sensors, each with a name."""
    found = [f'<{kind} site="imu"/>' for kind in ("accelerometer", "gyro", "velocimeter")]
    found += ['<accelerometer site="imu" cutoff="4"/>', '<force site="foot1_site" cutoff="2"/>']
    found += [f'<{kind} site="foot{k}_site"/>' for k in range(4) for kind in ("touch", "force")]
    found += [f'<torque site="foot{k}_site"/>' for k in range(4)] + ['<touch site="belly"/>']
    for joint in ("hip0", "thigh0", "knee3"):
        found += [f'<joint{x} joint="{joint}"/>' for x in ("pos", "vel", "actuatorfrc")]
        found += [f'<actuator{x} actuator="{joint}"/>' for x in ("pos", "vel", "frc")]
    found += ['<ballquat joint="ball"/>', '<ballangvel joint="ball"/>']
    for kind, name, reference in AT_FRAMES:
        for x in FRAMES:
            of = reference if not x.endswith("acc") else ""
            found.append(f'<frame{x} objtype="{kind}" objname="{name}"{of}/>')
    for body in ("base", "leg1", "world"):
        found += [f'<subtree{x} body="{body}"/>' for x in ("com", "linvel", "angmom")]
    return [x.replace("/>", f' name="s{k}"/>') for k, x in enumerate(found)]


def model_text():
    """A quadruped with a box on a ball joint, sites and sensors of all kinds."""
    text = quadruped(cone="elliptic", condim=4)
    imu = '<site name="imu" pos=".1 .02 .05" euler="20 -30 50"/><camera name="eye" euler="90 0 0"/>'
    trunk = f"""<freejoint/>{imu}<site name="belly" type="box" size=".2 .1 .05" pos="0 0 -.03"/>
      <body pos="0 0 .1"><joint type="ball" name="ball" limited="false"/><geom type="box" size=".1 .02 .02"
      contype="0" conaffinity="0" pos=".1 0 .05"/></body>"""
    text = text.replace("<freejoint/>", trunk, 1)
    text = text.replace(
        "<worldbody>", '<worldbody><site name="home" pos="1 2 3" euler="10 0 0"/>', 1
    )
    for k, shape in enumerate(REGIONS):
        site = f'<site name="foot{k}_site" type="{shape}" size=".03 .02 .025" pos=".05 0 -.215"/>'
        text = text.replace(f'<geom name="foot{k}"', f'{site}<geom name="foot{k}"')
    for joint in ("hip", "thigh", "knee"):
        for k in range(4):
            text = text.replace(
                f'<position joint="{joint}{k}"', f'<position name="{joint}{k}" joint="{joint}{k}"'
            )
    elements = "".join(sensor_elements())
    return text.replace("</mujoco>", f"<sensor>{elements}</sensor></mujoco>")


@pytest.fixture(scope="module")
def compiled():
    model = mujoco.MjModel.from_xml_string(model_text())
    model.opt.tolerance, model.opt.iterations = 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50
    return model


def reached(model, num, steps=120):
    """States on random trajectories, their controls, and the readings of MuJoCo."""
    rng, data, rows = np.random.default_rng(0), mujoco.MjData(model), []
    for _ in range(num):
        mujoco.mj_resetData(model, data)
        data.qvel[:] = 0.5 * rng.normal(size=model.nv)
        data.qpos[2] -= 0.03
        for _ in range(rng.integers(1, steps)):
            data.ctrl[:] = rng.uniform(-1, 1, size=model.nu)
            mujoco.mj_step(model, data)
        mujoco.mj_forward(model, data)
        rows.append([x.copy() for x in (data.qpos, data.qvel, data.ctrl, data.sensordata)])
    return [torch.tensor(np.array(column)) for column in zip(*rows, strict=True)]


@pytest.fixture(scope="module")
def states(compiled):
    """The mechanism, a batch of states in contact, controls and MuJoCo's readings."""
    mech = ts.from_mujoco(compiled)
    to_mujoco = ts.conventions("mujoco", mech)
    qpos, qvel, ctrl, data = reached(compiled, 12)
    q = to_mujoco.q_from(qpos)
    return mech, ts.State(q, to_mujoco.qd_from(q, qvel)), ctrl, data


def test_readings_equal_those_of_mujoco(compiled, states):
    mech, state, ctrl, data = states
    readings = ts.sensors(mech, state, ctrl)
    assert len(readings) == compiled.nsensor
    touched = 0
    for k, (name, reading) in enumerate(readings.items()):
        at, size = compiled.sensor_adr[k], compiled.sensor_dim[k]
        assert name == compiled.sensor(k).name
        expected = data[:, at : at + size]
        if compiled.sensor_type[k] == mujoco.mjtSensor.mjSENS_TOUCH:
            touched += int((expected > 0).sum())
        scale = 1 + float(expected.abs().max())
        torch.testing.assert_close(
            reading / scale, expected / scale, rtol=0, atol=1e-9,
            msg=lambda text, k=k: f"{sensor_elements()[k]}: {text}",
        )  # fmt: skip
    assert touched >= 8


ARM = """<mujoco><worldbody><geom type="plane" size="1 1 1" friction=".3 .01 .01"/>
<body pos="0 0 .2993"><freejoint/><geom size=".1" mass="1"/><site name="imu" pos=".02 0 .03" size=".12"/>
<body pos="0 .1 .1"><joint name="hinge" axis="1 .2 0"/><geom size=".05" pos="0 .2 .02" mass=".4"/>
<body pos="0 .2 -.33"><geom size=".07" mass=".2"/><site name="hand" size=".1"/></body></body></body>
</worldbody><actuator><position name="servo" joint="hinge" kp="5"/></actuator><sensor>
<accelerometer name="acc" site="imu" cutoff="9"/><touch name="touch" site="hand" noise=".1"/>
<gyro name="gyro" site="hand"/><framequat name="quat" objtype="site" objname="hand"/>
<jointpos name="old" joint="hinge" nsample="9" delay=".02"/><jointvel name="rare" joint="hinge" nsample="9"
interval=".02"/><jointvel name="now" joint="hinge" interval=".02"/>
<actuatorfrc name="effort" actuator="servo"/><subtreeangmom name="momentum" body="world"/>
<force name="wrench" site="hand"/><clock name="clock"/></sensor></mujoco>"""


def arm_states(num=2):
    """A floating body with one arm, whose hand touches the floor."""
    arm = ts.load(ARM)
    generator = torch.Generator().manual_seed(1)
    q = arm.file_metadata.initial.repeat(num, 1)
    qd = 0.3 * torch.randn(num, arm.num_dof, generator=generator, dtype=arm.dtype)
    return arm, q, qd


def test_readings_have_exact_gradients():
    arm, q, qd = arm_states(1)
    contact, ctrl = ts.ContactModel.of(arm), torch.full((1, 1), 0.2, dtype=arm.dtype)
    assert (ts.sensors(arm, ts.State(q, qd), ctrl, contact=contact)["touch"] > 0).all()

    def read(step, qd, ctrl, mass, friction):
        state = ts.State(ts.integrate(arm, q, step), qd)
        surfaces = contact.replace(friction=friction)
        readings = ts.sensors(arm.replace(mass=mass), state, ctrl, contact=surfaces)
        return torch.cat(tuple(readings.values()), -1)

    inputs = (torch.zeros_like(qd), qd, ctrl, arm.mass, contact.friction)
    generator = torch.Generator().manual_seed(0)
    for k, x in enumerate(inputs):
        change = torch.rand(x.shape, generator=generator, dtype=x.dtype)

        def shifted(s, k=k, change=change):
            return read(*(y + s * change if i == k else y for i, y in enumerate(inputs)))

        zero = torch.zeros((), dtype=x.dtype)
        _, slope = torch.func.jvp(shifted, (zero,), (torch.ones_like(zero),))
        numeric = (shifted(1e-6) - shifted(-1e-6)) / 2e-6
        torch.testing.assert_close(slope, numeric, rtol=1e-5, atol=1e-5)
        weights = torch.rand(slope.shape, generator=generator, dtype=slope.dtype)
        leaf = zero.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((weights * shifted(leaf)).sum(), leaf)
        torch.testing.assert_close(gradient, (weights * slope).sum(), rtol=1e-9, atol=1e-9)


def check_kernel(names):
    arm, q, qd = arm_states(3)
    contact = ts.ContactModel.of(arm)

    def read(mech, q, qd):
        return ts.sensors(mech, ts.State(q, qd), sensors=names, contact=contact)

    found, expected = ts.fuse(read, arm)(q, qd), read(arm, q, qd)
    assert list(found) == list(expected) == list(names)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_kernel_reads_positions_and_velocities():
    check_kernel(("gyro", "quat", "effort", "momentum"))


@pytest.mark.nightly
def test_a_kernel_reads_accelerations_and_forces():
    check_kernel(("acc", "touch", "gyro"))


def test_settings_that_readings_omit_are_named():
    arm = ts.load(ARM)
    notes = {x.reason: x.element for x in arm.unused if "sensor" in x.element}
    assert list(notes.items()) == [
        ("they measure the force on a body without joints: not modeled", "1 sensors (wrench)"),
        ("sensors of kind 'clock' are not modeled", "1 sensors (clock)"),
        ("their readings have no noise", "1 sensors (touch)"),
        (
            "their readings are those of the present state, without delay and interval",
            "2 sensors (old, rare)",
        ),
    ]
    names = [sensor.name for sensor in arm.file_metadata.sensors]
    assert names == ["acc", "touch", "gyro", "quat", "old", "rare", "now", "effort", "momentum"]


def test_a_quaternion_keeps_the_sign_of_the_base():
    arm, q, qd = arm_states()
    state = ts.State(q.index_copy(-1, torch.arange(3, 7), -q[:, 3:7]), qd)
    found, turned = (ts.sensors(arm, x, sensors=["quat"])["quat"] for x in (ts.State(q, qd), state))
    torch.testing.assert_close(found, -turned)


COUPLED = """<mujoco><worldbody><body><joint name="a"/><geom size=".1" mass="1"/><site name="x"/></body>
<body><joint name="b" type="slide"/><geom size=".1" mass="1"/></body>
<body name="base" pos="1 2 3" euler="9 8 7"><freejoint/><geom size=".1" mass="1"/>
<site name="s" euler="10 20 30"/></body></worldbody>
<equality><joint joint1="b" joint2="a" polycoef=".1 .5 0 0 0"/></equality><sensor>
<framequat objtype="site" objname="s"/><framequat objtype="site" objname="s" reftype="site" refname="x"/>
<jointpos joint="b"/><jointvel joint="b"/>
<framelinvel objtype="site" objname="s" reftype="site" refname="x"/></sensor></mujoco>"""


def test_sensors_of_a_coupled_robot_equal_those_of_mujoco():
    model, mech = mujoco.MjModel.from_xml_string(COUPLED), ts.load(COUPLED)
    assert mech.num_dependent == 1
    data, to_mujoco = mujoco.MjData(model), ts.conventions("mujoco", mech)
    q, qd = mech.random_state(generator=torch.Generator().manual_seed(0))
    data.qpos[:], data.qvel[:] = to_mujoco.q_to(q), to_mujoco.qd_to(q, qd)
    mujoco.mj_forward(model, data)
    found = torch.cat(tuple(ts.sensors(mech, ts.State(q, qd)).values()))
    torch.testing.assert_close(found, torch.tensor(data.sensordata))


def test_sensors_of_any_robot_are_read_by_name():
    dog = ts.load(ts.robots.quadruped, floating_base=True)
    q, qd = dog.random_state(4)
    joint = dog.joint_names[-1]
    own = [
        ts.Sensor("rate", "gyro", "body", position=(0.1, 0.0, 0.0)),
        ts.Sensor("speed", "jointvel", joint),
    ]
    readings = ts.sensors(dog, ts.State(q, qd), sensors=own)
    torch.testing.assert_close(readings["rate"], qd[:, :3])
    torch.testing.assert_close(readings["speed"], qd[:, dog.dof_slice(joint)])


@pytest.mark.parametrize(
    ("sensor", "named"),
    [
        ("missing", "missing"),
        (ts.Sensor("x", "jointpos", "missing"), "missing"),
        (ts.Sensor("x", "gyro", "missing"), "missing"),
        (ts.Sensor("x", "actuatorfrc", "missing"), "missing"),
        (ts.Sensor("x", "subtreecom", "missing"), "missing"),
    ],
    ids=str,
)
def test_unknown_targets_are_refused_by_name(sensor, named):
    arm, q, qd = arm_states()
    with pytest.raises(ts.MechanismError, match=named):
        ts.sensors(arm, ts.State(q, qd), sensors=[sensor])


def test_unknown_kinds_are_refused_by_name():
    with pytest.raises(ts.MechanismError, match="sonar"):
        ts.Sensor("x", "sonar", None)


def test_every_kind_has_one_place_and_is_read_once():
    read = [name for kind in KINDS for name in kind.names]
    assert sorted(read) == sorted(TARGETS)
