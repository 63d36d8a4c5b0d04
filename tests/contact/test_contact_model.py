"""Contact parameters follow the joints of a mechanism."""

from dataclasses import replace

import pytest
import torch

import torchsko as ts
from tests.contact.models import MODELS, quadruped
from torchsko.contact.softness import Timing, softness

mujoco = pytest.importorskip("mujoco")


def test_locked_joints_leave_the_parameters_of_the_others():
    text = quadruped().replace('name="knee1"', 'name="knee1" solreflimit="0.05 1"')
    mech = ts.load(text)
    locked = mech.lock({"hip0+thigh0": [0.0, 0.0], "knee2": 0.0})
    contact, remaining = ts.ContactModel.of(mech), ts.ContactModel.of(locked)
    assert len(remaining.limit_q) == len(contact.limit_q) - 3
    (row,) = (remaining.limit_solref[:, 0] == 0.05).nonzero()[:, 0].tolist()
    at = locked.q_slice("knee1").start
    assert remaining.limit_q[row] == at


@pytest.mark.parametrize("name", ["quadruped", "tendons"])
def test_computed_inverse_weights_are_those_of_mujoco(name):
    mech = ts.from_mujoco(mujoco.MjModel.from_xml_string(MODELS[name]()), mimic="independent")
    contact = ts.ContactModel.of(mech)
    shapes = [
        replace(shape, surface=replace(shape.surface, invweight=()))
        for shape in mech.geometry.shapes
    ]
    solver = replace(mech.file_metadata.solver, dof_invweight=())
    tendons = tuple(replace(tendon, invweight=None) for tendon in mech.file_metadata.tendons)
    bare = mech.replace(
        geometry=replace(mech.geometry, shapes=tuple(shapes)),
        file_metadata=replace(mech.file_metadata, solver=solver, tendons=tendons),
    )
    computed = ts.ContactModel.of(bare)
    for name in ("shape_invweight", "limit_invweight", "loss_invweight"):
        torch.testing.assert_close(
            getattr(computed, name), getattr(contact, name), rtol=1e-12, atol=1e-12
        )


STACK = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/>
  <body name="low" pos="0 0 .099"><freejoint/><geom name="low" type="box" size=".1 .1 .1"/></body>
  <body pos="0 0 .297"><freejoint/><geom name="high" type="box" size=".1 .1 .1"/></body>
  </worldbody></mujoco>"""


def test_points_beyond_the_largest_number_of_contacts_are_counted():
    mech = ts.load(STACK)
    q = mech.file_metadata.initial
    every = ts.contacts(mech, q)
    assert int(every.active.sum()) == 8 and not every.dropped.any()
    contact = ts.ContactModel.of(mech, max_contacts={("low", "high"): 3, ("floor", "low"): 1})
    few = ts.contacts(mech, q, contact=contact)
    names = [contact.pair_names[k] for k in few.pair]
    assert names.count(("low", "high")) == 3 and names.count(("floor", "low")) == 1
    dropped = dict(zip(contact.pair_names, few.dropped.tolist(), strict=True))
    assert dropped == {("floor", "low"): 3, ("floor", "high"): 0, ("low", "high"): 1}
    tilted = torch.cat([q[:3], torch.tensor([1, 0.01, 0, 0], dtype=q.dtype), q[7:]])
    least = ts.contacts(mech, tilted).distance[:4].min()
    assert (
        ts.contacts(mech, tilted, contact=contact).distance[names.index(("floor", "low"))] == least
    )


def test_contacts_of_a_body_and_its_parent_follow_the_flag():
    text = """<mujoco><option><flag filterparent="{}"/></option><worldbody><body><freejoint/>
      <geom name="a" size=".1"/><body><joint/><geom name="b" size=".1"/></body></body></worldbody></mujoco>"""
    for flag, pairs in (("enable", ()), ("disable", (("a", "b"),))):
        mech = ts.load(text.format(flag))
        assert ts.ContactModel.of(mech).pair_names == pairs
        assert any("'a'" in str(x) or "a, b" in str(x) for x in mech.unused) == bool(pairs)


BALL = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/><body><freejoint/>
  <geom name="ball" size=".1" {}/></body></worldbody></mujoco>"""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda c, mech: c.replace(shape_size=-c.shape_size), "sphere 'ball' are [-0.1] m"),
        (lambda c, mech: c.replace(shape_size=0 * c.shape_size), "sphere 'ball' are [0.0] m"),
        (lambda c, mech: c.replace(margin=c.margin - 0.01), "margin of the pair ('floor', 'ball')"),
        (lambda c, mech: ts.ContactModel.of(ts.load(BALL.format('margin="-1"'))), "margin of the pair"),
        (lambda c, mech: c.of(mech, max_contacts={("floor", "bal"): 1}), "bal and floor"),
        (lambda c, mech: c.of(mech, max_contacts=0), "max_contacts of the pair ('floor', 'ball') is 0"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_the_names_of_shapes(fault, message):
    mech = ts.load(BALL.format(""))
    with pytest.raises(ts.MechanismError) as error:
        fault(ts.ContactModel.of(mech), mech)
    assert message.lower() in str(error.value).lower()


def test_joints_without_inertia_are_refused_by_name():
    text = """<robot name="crate"><link name="base"/><link name="box"><inertial><mass value="1"/>
      <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
      <joint name="drop" type="floating"><parent link="base"/><child link="box"/></joint></robot>"""
    mech = ts.load(text, floating_base=True)
    with pytest.raises(ts.MechanismError, match="no inertia resists joint 'root_joint'"):
        ts.ContactModel.of(mech)


def test_height_fields_of_different_grids_are_refused():
    field = '<hfield name="{0}" nrow="{0}" ncol="3" size="1 1 1 1"/>'
    geom = '<geom type="hfield" hfield="{}"/>'
    text = f"""<mujoco><asset>{field.format(3)}{field.format(4)}</asset><worldbody>{geom.format(3)}
      {geom.format(4)}<body><freejoint/><geom size=".1"/></body></worldbody></mujoco>"""
    with pytest.raises(ts.MechanismError, match=r"\[\(3, 3\), \(4, 3\)\] rows"):
        ts.ContactModel.of(ts.load(text))


def test_time_constants_below_two_time_steps_are_named_with_the_value_in_use():
    text = BALL.format('solref=".001 1"')
    with pytest.warns(ts.RobotFileWarning, match=r"\('floor', 'ball'\).*0.0105 s.*0.04 s is used"):
        mech = ts.load(text)
        state = ts.State(mech.file_metadata.initial, torch.zeros(6, dtype=torch.float64))
        ts.step(mech, state, dt=0.02)


@pytest.mark.parametrize(("time", "ratio"), [(0.02, 1.0), (0.05, 0.4)])
def test_a_time_constant_and_a_damping_ratio_are_those_of_an_oscillator(time, ratio):
    """MuJoCo's documentation, Solver parameters: frequency 1 / (time ratio), scaled by dmax."""
    solimp = torch.tensor([0.9, 0.95, 0.001, 0.5, 2.0], dtype=torch.float64)
    solref = torch.tensor([time, ratio], dtype=torch.float64)
    soft = softness(solref, solimp, torch.zeros((), dtype=torch.float64), Timing(0.0, True, False))
    frequency = 1 / (time * ratio)
    assert 0.95**2 * float(soft.stiffness) == pytest.approx(frequency**2)
    assert 0.95 * float(soft.damping) == pytest.approx(2 * ratio * frequency)
