"""Force and torque sensors measure equalities, loops and held frames, and the force of each can be read."""

import re

import numpy as np
import pytest
import torch

import torchsko as ts

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")

EQUALITIES = {
    "connect": '<connect name="e" body1="hand" body2="post" anchor=".1 .02 .03"/>',
    "connect, leaf first": '<connect name="e" body1="post" body2="hand" anchor=".1 .02 .03"/>',
    "connect to the world": '<connect name="e" body1="hand" anchor=".1 .02 .03"/>',
    "connect of sites": '<connect name="e" site1="tip" site2="peg"/>',
    "weld": '<weld name="e" body1="hand" body2="post" torquescale=".3" anchor=".05 .1 .02" '
    'relpose=".1 .2 .1 .9 .1 .2 .3"/>',
    "weld to the world": '<weld name="e" body1="world" body2="hand" torquescale="2"/>',
    "weld of sites": '<weld name="e" site1="tip" site2="peg"/>',
    "connect of one body": '<connect name="e" site1="tip" site2="base"/>',
    "inactive": '<weld name="e" site1="tip" site2="peg" active="false"/>',
    "joint": '<joint name="e" joint1="c" joint2="a" polycoef=".1 .5 .2 0 0"/>',
    "tendon": '<tendon name="e" tendon1="t" tendon2="s" polycoef=".05 .5 .2 0 0"/>',
    "several": '<weld name="e" site1="tip" site2="peg"/><joint name="g" joint1="c" joint2="a" '
    'polycoef=".1 .5 .2 0 0"/><connect name="f" body1="free" body2="hand" anchor="0 .1 0"/>',
}
OPTIONS = [f'integrator="{x}" cone="elliptic"' for x in ("RK4", "implicitfast", "discrete")]
SITES = ("root", "wrist", "tip", "finger", "peg", "ball")


def arms(equality, option=""):
    """Two arms and a ball on the floor, with dry friction, springs, tendons and actuators."""
    sensors = "".join(
        f'<{k} name="{k} {s}" site="{s}"/>' for s in SITES for k in ("force", "torque")
    )
    return f"""<mujoco><option timestep=".004" {option}/><worldbody><geom type="plane" size="2 2 1"/>
      <body name="left" pos="0 0 1"><joint name="a" axis="0 1 .2" damping=".1" range="-20 20"/>
        <geom type="capsule" fromto="0 0 0 .4 0 .1" size=".02" mass="1"/><site name="root"/>
        <body name="fore" pos=".4 0 .1"><joint name="b" axis=".3 1 0" stiffness="2" frictionloss=".3"/>
          <geom type="capsule" fromto="0 0 0 .3 .1 0" size=".02" mass=".5"/>
          <site name="wrist" euler="10 20 30" pos=".01 .02 .03"/>
          <body name="hand" pos=".3 .1 0"><joint type="ball" name="w" damping=".02"/>
            <geom type="box" size=".05 .03 .02" mass=".3"/><site name="tip" pos=".05 0 .01" euler="5 10 20"/>
            <site name="base" pos="-.05 0 .01"/>
            <body name="finger" pos="0 0 .05"><joint name="d" type="slide" axis="0 0 1" armature=".1"/>
              <geom size=".02" mass=".1"/><site name="finger"/></body></body></body></body>
      <body name="post" pos=".8 .1 .9"><joint name="c" axis="0 1 0" damping=".1"/>
        <geom type="capsule" fromto="0 0 0 0 0 .3" size=".02" mass=".7"/>
        <site name="peg" euler="3 4 50" pos="0 .01 .02"/></body>
      <body name="free" pos=".2 .5 .0995"><freejoint/><geom size=".1" mass=".4"/><site name="ball"/></body>
      </worldbody><tendon><fixed name="t" stiffness="3" damping=".1"><joint joint="a" coef="1"/>
      <joint joint="b" coef="-.5"/></fixed><fixed name="s"><joint joint="c" coef="1"/></fixed></tendon>
      <equality>{equality}</equality><actuator><position name="u" joint="b" kp="3"/>
      <motor name="v" tendon="t"/></actuator><sensor>{sensors}</sensor></mujoco>"""


def moved(text, num=2):
    """A mechanism, its contact model, moving states with controls and forces, and MuJoCo's data."""
    model = mujoco.MjModel.from_xml_string(text)
    model.opt.tolerance, model.opt.iterations = 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50
    rng, every = np.random.default_rng(0), []
    mech = ts.from_mujoco(model)
    to_mujoco, push = ts.conventions("mujoco", mech), torch.zeros(num, mech.num_bodies, 6).double()
    body = model.body("hand").id
    for i in range(num):
        data = mujoco.MjData(model)
        data.qvel[:], data.ctrl[:] = rng.normal(size=model.nv), rng.normal(size=model.nu)
        for _ in range(8 * (i + 1)):
            mujoco.mj_step(model, data)
        data.xfrc_applied[body] = rng.normal(size=6)
        mujoco.mj_forward(model, data)
        R, (force, moment) = data.xmat[body].reshape(3, 3), data.xfrc_applied[body].reshape(2, 3)
        moment = moment + np.cross(data.xipos[body] - data.xpos[body], force)
        wrench = np.concatenate([R.T @ moment, R.T @ force])
        push[i, mech.body_names.index("hand")] = torch.from_numpy(wrench)
        every.append(data)
    qpos, qvel, ctrl = (
        torch.tensor(np.array([getattr(x, name) for x in every]))
        for name in ("qpos", "qvel", "ctrl")
    )
    q = to_mujoco.q_from(qpos)
    return mech, ts.State(q, to_mujoco.qd_from(q, qvel)), ctrl, push, model, every


@pytest.mark.parametrize("name", EQUALITIES)
def test_sensors_feel_equalities_as_in_mujoco(name):
    mech, state, ctrl, push, model, every = moved(arms(EQUALITIES[name]))
    readings = ts.sensors(mech, state, ctrl, f_ext=push)
    expected = torch.tensor(np.array([data.sensordata for data in every]))
    scale = 1 + float(expected.abs().max())
    for k, reading in enumerate(readings.values()):
        at = model.sensor_adr[k]
        torch.testing.assert_close(
            reading / scale, expected[:, at : at + 3] / scale, rtol=0, atol=1e-11
        )


@pytest.mark.parametrize("option", OPTIONS)
def test_sensors_feel_equalities_with_every_option(option):
    mech, state, ctrl, push, _, every = moved(arms(EQUALITIES["several"], option))
    readings = torch.cat(tuple(ts.sensors(mech, state, ctrl, f_ext=push).values()), -1)
    expected = torch.tensor(np.array([data.sensordata for data in every]))
    scale = float(expected.abs().max())
    torch.testing.assert_close(readings / scale, expected / scale, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", EQUALITIES)
def test_forces_of_equalities_are_those_of_mujoco(name):
    mech, state, ctrl, push, model, every = moved(arms(EQUALITIES[name]))
    forces = ts.constraints.equality_forces(mech, state, ctrl, f_ext=push)
    assert set(forces) == {model.eq(e).name for e in range(model.neq)}
    for i, data in enumerate(every):
        for e in range(model.neq):
            found = forces[model.eq(e).name][i].numpy()
            rows = np.flatnonzero((data.efc_id == e) & (data.efc_type == 0))
            f, J = data.efc_force[rows], data.efc_J.reshape(-1, model.nv)[rows]
            if len(found) == 1:
                np.testing.assert_allclose(found, f, atol=1e-9)
            else:
                expected = -f[:3] if len(rows) else np.zeros(3)
                np.testing.assert_allclose(found[3:], expected, atol=1e-8, rtol=1e-9)
                work = J.T @ f - _generalized_force(model, data, e, found)
                np.testing.assert_allclose(work, 0, atol=1e-8)


def _generalized_force(model, data, e, wrench):
    """J* of a wrench on the second frame of an equality, and of its opposite on the first one."""
    total = np.zeros(model.nv)
    ends = (model.eq_obj1id[e], model.eq_obj2id[e])
    for sign, k in zip((-1, 1), ends, strict=True):
        if model.eq_objtype[e] == mujoco.mjtObj.mjOBJ_SITE:
            body, point = model.site_bodyid[k], data.site_xpos[k]
        else:
            is_weld = model.eq_type[e] == mujoco.mjtEq.mjEQ_WELD
            place = model.eq_data[e][slice(3, 6) if is_weld == (sign < 0) else slice(0, 3)]
            body, point = k, data.xpos[k] + data.xmat[k].reshape(3, 3) @ place
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, linear, angular, point, body)
        total += sign * (angular.T @ wrench[:3] + linear.T @ wrench[3:])
    return total


LINKS = """<mujoco><option timestep="1e-4"/><default><geom contype="0" conaffinity="0"/></default><worldbody>
  <body name="crank"><joint name="a" axis="0 1 0" damping=".1"/><site name="s0"/>
    <geom type="capsule" fromto="0 0 0 0 0 .2" size=".02" mass="1"/>
    <body name="rod" pos="0 0 .2"><joint name="b" axis="0 1 0" stiffness="1"/>
      <geom type="capsule" fromto="0 0 0 .5 0 .1" size=".02" mass=".5"/>
      <site name="s1" euler="10 20 30" pos=".01 .02 .03"/></body></body>
  <body name="rocker" pos=".5 0 0"><joint name="c" axis="0 1 0" damping=".1" frictionloss=".2"/>
    <geom type="capsule" fromto="0 0 0 0 0 .3" size=".02" mass=".7"/><site name="s2"/>
    <body name="leaf" pos="0 .1 .1"><joint name="d" axis="1 0 0"/><geom size=".03" pos="0 0 .1" mass=".2"/>
      <site name="s3"/></body>
    <body name="gear" pos="0 .1 .2"><joint name="h" axis="0 1 0"/><geom size=".03" pos=".1 0 0" mass=".2"/>
      <site name="s4"/></body></body></worldbody>
  <equality><connect name="pin" body1="rod" body2="rocker" anchor=".5 0 .1" solref="2e-4 1"
    solimp=".99999 .99999 .001 .5 2"/>{more}</equality>
  <tendon><fixed name="t" stiffness="3"><joint joint="b" coef="1"/><joint joint="c" coef="-.5"/></fixed>
  </tendon>  <actuator><motor name="u" joint="c"/><motor name="v" joint="b"/></actuator>
  <sensor>""" + "".join(
    f'<{x} name="{x} {k}" site="s{k}"/>' for k in range(5) for x in ("force", "torque")
)
LINKS += "</sensor></mujoco>"
GEAR = '<joint name="mesh" joint1="h" joint2="c" polycoef="0 2 0 0 0"/>'


def four_bar(more=""):
    """A four-bar with embedded loop, the one that is cut, a batch of states, controls and forces."""
    text = LINKS.replace("{more}", more)
    bar, cut = ts.load(text, closures="embed"), ts.load(text)
    generator = torch.Generator().manual_seed(1)
    q, qd = bar.random_state(3, generator=generator)
    ctrl, push = (
        torch.randn(3, *size, generator=generator, dtype=bar.dtype) for size in ((2,), (5, 6))
    )
    return bar, cut, ts.State(q, qd), ctrl, push


def test_sensors_feel_embedded_loops_as_the_limit_of_stiff_ones():
    bar, _, state, ctrl, _ = four_bar()
    model = mujoco.MjModel.from_xml_string(LINKS.replace("{more}", ""))
    model.opt.tolerance, model.opt.iterations, data = 0.0, 100, mujoco.MjData(model)
    readings = torch.cat(tuple(ts.sensors(bar, state, ctrl).values()), -1)
    for i in range(3):
        data.qpos[:] = ts.expand(bar, state.q)[i]
        data.qvel[:], data.ctrl[:] = ts.expand_velocity(bar, state.q, state.qd)[i], ctrl[i]
        mujoco.mj_forward(model, data)
        expected = torch.tensor(data.sensordata)
        torch.testing.assert_close(readings[i], expected, rtol=3e-4, atol=3e-4)


@pytest.mark.parametrize("more", ["", GEAR], ids=["loop", "loop and coupling"])
def test_embedded_and_held_loops_exert_one_force(more):
    bar, cut, state, ctrl, push = four_bar(more)
    # Dry friction is soft in ts.sensors of a mechanism, and smooth in held dynamics.
    bar, cut = (x.replace(friction=0 * x.friction) for x in (bar, cut))
    loops = [closure for closure in cut.closures if closure.name == "pin"]
    held, q = ts.constrain(cut, loops), ts.expand(bar, state.q)
    rates = ts.expand_velocity(bar, state.q, state.qd)
    places = [bar.tree_joint_names.index(name) for name in cut.joint_names]
    opened = ts.State(q[:, places], rates[:, places])
    found, expected = (
        ts.sensors(x, at, ctrl, f_ext=push) for x, at in ((bar, state), (held, opened))
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    forces, others = (
        ts.constraints.equality_forces(x, at, ctrl, f_ext=push)
        for x, at in ((bar, state), (held, opened))
    )
    assert list(forces) == list(others) and "pin" in forces
    torch.testing.assert_close(forces, others, rtol=1e-10, atol=1e-10)


def test_a_hinge_transmits_no_more_about_its_axis_than_its_own_force():
    bar, _, state, ctrl, push = four_bar(GEAR)
    bar = bar.replace(friction=0 * bar.friction)
    rates = ts.expand_velocity(bar, state.q, state.qd)
    q = ts.expand(bar, state.q)
    readings = ts.sensors(bar, state, ctrl, f_ext=push)
    forces = ts.constraints.equality_forces(bar, state, ctrl, f_ext=push)
    tension = 3 * (q[:, 1] - q[:, 2] / 2)
    own = {
        0: -0.1 * rates[:, 0],
        2: -0.1 * rates[:, 2] + ctrl[:, 0] + tension / 2 - 2 * forces["mesh"][:, 0],
        4: forces["mesh"][:, 0],
    }
    for k, expected in own.items():
        torch.testing.assert_close(readings[f"torque {k}"][:, 1], expected)
    torch.testing.assert_close(readings["torque 3"][:, 0], 0 * q[:, 0])


def test_the_force_of_a_coupling_is_the_limit_of_a_stiff_equality():
    """By the name of the equality, also on a robot that was appended."""
    stiff = GEAR.replace("/>", ' solref="2e-4 1" solimp=".99999 .99999 .001 .5 2"/>')
    text = re.sub("<connect.*?/>", "", LINKS, flags=re.DOTALL).replace("{more}", stiff)
    coupled, soft = ts.load(text), ts.load(text, mimic="independent")
    assert coupled.num_dependent == 1 and soft.num_dependent == 0
    q, qd = coupled.random_state(3, generator=torch.Generator().manual_seed(0))
    ctrl = torch.ones(3, 2).double()
    whole = ts.State(ts.expand(coupled, q), ts.expand_velocity(coupled, q, qd))
    found = ts.constraints.equality_forces(coupled, ts.State(q, qd), ctrl)
    expected = ts.constraints.equality_forces(soft, whole, ctrl)
    torch.testing.assert_close(found, expected, rtol=3e-4, atol=3e-4)
    coupled, soft = (x.replace(friction=0 * x.friction) for x in (coupled, soft))
    found = ts.constraints.equality_forces(coupled, ts.State(q, qd), ctrl)
    expected = ts.constraints.equality_forces(ts.constrain(soft, soft.closures), whole, ctrl)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    both = ts.load(ts.robots.panda).append(coupled, "flange", prefix="hand_")
    state = ts.State(both.initial(), torch.zeros(both.num_dof).double())
    assert "hand_mesh" in ts.constraints.equality_forces(
        both, state, actuators=ts.actuators.Actuators.of(both, [])
    )


def test_a_held_foot_carries_the_robot():
    dog = ts.load(ts.robots.quadruped, floating_base=True)
    feet = [name for name in dog.frame_names if name.endswith("foot")]
    held = ts.constrain(dog, [ts.HeldFrame(foot) for foot in feet])
    q, qd = dog.middle().expand(2, -1), torch.zeros(2, dog.num_dof).double()
    tau = torch.randn(qd.shape, generator=torch.Generator().manual_seed(0)).double()
    tau[:, :6] = 0
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1]]).double()
    qdd, forces = held.forward_dynamics(q, qd, tau, mask)
    shanks = [dog.body_names[dog.frame_body[dog.frame_index(foot)]] for foot in feet]
    own = [ts.Sensor(body, "force", body) for body in shanks] + [
        ts.Sensor("base", "force", dog.body_names[0])
    ]
    readings = ts.sensors(held, ts.State(q, qd), tau, sensors=own, active=mask)
    torch.testing.assert_close(readings["base"], torch.zeros(2, 3).double(), rtol=0, atol=1e-9)
    for k, body in enumerate(shanks):
        i = dog.body_names.index(body)
        R = ts.forward_kinematics(dog, q).rotation[:, i]
        com = ts.Frame(body, position=dog.com[i])
        accel = ts.frame_acceleration(dog, q, qd, qdd, com, reference="mixed", classical=True)[
            ..., 3:
        ]
        at_foot = forces[:, 3 * k : 3 * k + 3]
        expected = dog.mass[i] * (accel - dog.gravity) - at_foot
        torch.testing.assert_close((R @ readings[body][..., None])[..., 0], expected)


def test_a_hold_beside_an_embedded_loop_exerts_the_force_of_two_holds():
    bar, cut, _, ctrl, push = four_bar(GEAR)
    tip = ts.Frame("leaf", position=torch.tensor([0, 0, 0.1]).double())
    hold, pin = ts.HeldFrame(tip, "planar"), next(x for x in cut.closures if x.name == "pin")
    q = bar.initial().expand(3, -1)
    places = [bar.tree_joint_names.index(name) for name in cut.joint_names]
    robots = (
        (ts.constrain(bar, [hold]), ts.State(q, torch.zeros(3, 2).double())),
        (
            ts.constrain(cut, [hold, pin]),
            ts.State(ts.expand(bar, q)[:, places], torch.zeros(3, 4).double()),
        ),
    )
    found, expected = (ts.sensors(robot, at, ctrl, f_ext=push) for robot, at in robots)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_touch_sensor_of_a_held_mechanism_is_refused():
    ball = ts.load(
        '<mujoco><worldbody><body name="b"><freejoint/><geom size=".1"/><site name="s"/></body>'
        '</worldbody><sensor><touch name="skin" site="s"/></sensor></mujoco>'
    )
    held = ts.constrain(ball, [ts.HeldFrame("b")])
    with pytest.raises(ts.MechanismError, match="skin"):
        ts.sensors(held, ts.State(ball.initial(), torch.zeros(6).double()))


def test_a_force_within_a_body_is_refused():
    arm = ts.load(arms("")).lock({"b": 0.3})
    state = ts.State(arm.initial(), torch.zeros(arm.num_dof).double())
    with pytest.raises(ts.MechanismError, match="wrist"):
        ts.sensors(
            arm, state, sensors=["force wrist"], actuators=ts.actuators.Actuators.of(arm, [])
        )


def check_gradients(read, inputs):
    """Forward and reverse derivatives along a random direction of all inputs equal differences."""
    generator = torch.Generator().manual_seed(0)
    changes = [torch.rand(x.shape, generator=generator, dtype=x.dtype) for x in inputs]

    def shifted(s):
        return read(*(x + s * change for x, change in zip(inputs, changes, strict=True)))

    zero = torch.zeros((), dtype=inputs[0].dtype)
    _, slope = torch.func.jvp(shifted, (zero,), (torch.ones_like(zero),))
    numeric = (shifted(1e-6) - shifted(-1e-6)) / 2e-6
    scale = float(numeric.abs().max())
    torch.testing.assert_close(slope / scale, numeric / scale, rtol=0, atol=1e-7)
    weights = torch.rand(slope.shape, generator=generator, dtype=slope.dtype)
    leaf = zero.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((weights * shifted(leaf)).sum(), leaf)
    torch.testing.assert_close(gradient, (weights * slope).sum(), rtol=1e-9, atol=1e-9 * scale)


def test_forces_of_soft_equalities_have_exact_gradients():
    mech, state, ctrl, push, *_ = moved(arms(EQUALITIES["several"]), 1)
    contact = ts.ContactModel.of(mech)

    def read(step, qd, ctrl, push, mass, position):
        at = ts.State(ts.integrate(mech, state.q, step), qd)
        model = contact.replace(equality_position=position)
        of = mech.replace(mass=mass)
        readings = ts.sensors(of, at, ctrl, f_ext=push, contact=model)
        forces = ts.constraints.equality_forces(of, at, ctrl, f_ext=push, contact=model)
        return torch.cat((*readings.values(), *forces.values()), -1)

    zero = torch.zeros_like(state.qd)
    check_gradients(read, (zero, state.qd, ctrl, push, mech.mass, contact.equality_position))


def test_forces_of_embedded_loops_have_exact_gradients():
    bar, _, state, ctrl, push = four_bar(GEAR)
    state, ctrl, push = ts.State(state.q[:1], state.qd[:1]), ctrl[:1], push[:1]

    def read(step, qd, ctrl, push, mass, damping, place):
        of = bar.replace(mass=mass, damping=damping, frame_position=place * along)
        q = ts.integrate(of, state.q, step)
        readings = ts.sensors(of, ts.State(q, qd), ctrl, f_ext=push)
        forces = ts.constraints.equality_forces(of, ts.State(q, qd), ctrl, f_ext=push)
        return torch.cat((*readings.values(), *forces.values()), -1)

    along = bar.frame_position
    inputs = (0 * state.qd, state.qd, ctrl, push, bar.mass, bar.damping)
    check_gradients(read, (*inputs, torch.ones_like(along)))


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "embedded"])
def test_kernels_and_vmap_read_the_forces_of_loops(is_cut):
    bar, cut, state, *_ = four_bar()
    q, qd = state.q, state.qd
    if is_cut:
        bar, q, qd = cut, ts.expand(bar, q), ts.expand_velocity(bar, q, qd)
    contact = ts.ContactModel.of(bar)

    def read(mech, q, qd):
        force = ts.constraints.equality_forces(mech, ts.State(q, qd), contact=contact)["pin"]
        own = ["force 1", "torque 2"]
        return force, ts.sensors(mech, ts.State(q, qd), sensors=own, contact=contact)

    expected = read(bar, q, qd)
    torch.testing.assert_close(ts.fuse(read, bar)(q, qd), expected, rtol=1e-9, atol=1e-9)
    mapped = torch.func.vmap(lambda q, qd: read(bar, q, qd))(q, qd)
    torch.testing.assert_close(mapped, expected, rtol=1e-9, atol=1e-9)
