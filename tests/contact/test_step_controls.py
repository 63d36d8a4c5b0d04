"""A control has the meaning that the robot file gives it, in steps and in rollouts with contact."""

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from torchsko.actuators.controller import Controller

mujoco = pytest.importorskip("mujoco")

TEXT = """<mujoco><compiler angle="radian"/><option timestep=".004" integrator="{}" cone="elliptic"/>
<worldbody>
<geom type="plane" size="9 9 1"/>
<body pos="0 0 .42"><joint name="z" type="slide" axis="0 0 1" damping=".3"/><geom size=".05" mass=".5"/>
<body><joint name="h" axis="0 1 0" range="-2 2" armature=".01" damping=".1" frictionloss=".05"/>
<geom type="capsule" fromto="0 0 0 .05 0 -.4" size=".03" mass=".3"/></body></body></worldbody>
<tendon><fixed name="belt" stiffness="20" damping="2" springlength=".1"><joint joint="z" coef=".5"/>
<joint joint="h" coef="-1"/></fixed></tendon>
<actuator><position name="servo" joint="h" kp="30" kv="2" forcerange="-9 9"/>
<general name="lift" joint="z" dyntype="filter" dynprm=".05" gainprm="8" ctrllimited="true" ctrlrange="-1 1"/>
<motor name="push" joint="z" gear="3"/></actuator></mujoco>"""
"""A leg on the ground with a servo, a filter and a motor on two joints, and an elastic tendon."""

STEPS, CTRL = 25, (0.4, 2.0, -0.3)
INTEGRATORS = {"Euler": 0, "RK4": 1, "implicitfast": 3, "discrete": 4}


def leg(integrator):
    """The robot of a file with an integrator, its states after some of MuJoCo's steps, and its start."""
    model = mujoco.MjModel.from_xml_string(TEXT.format("Euler"))
    model.opt.integrator = INTEGRATORS[integrator]
    model.opt.tolerance, model.opt.iterations = 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 100
    data = mujoco.MjData(model)
    data.qvel[:] = 0.1, -0.2
    data.ctrl[:] = CTRL
    for _ in range(STEPS):
        mujoco.mj_step(model, data)
    mech = ts.from_mujoco(model)
    start = ts.initial_state(mech)._replace(qd=torch.tensor([0.1, -0.2], dtype=torch.float64))
    return mech, start, torch.tensor(data.qpos), torch.tensor(data.qvel), torch.tensor(data.act)


def ctrl_of(*batch):
    return torch.tensor(CTRL, dtype=torch.float64).expand(*batch, 3).clone()


@pytest.mark.some(3)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_steps_and_rollouts_with_the_controls_of_a_file_equal_those_of_mujoco(integrator):
    mech, start, q, qd, act = leg(integrator)
    state = start
    for _ in range(STEPS):
        state = ts.step(mech, state, ctrl_of())
    assert_close((state.q, state.qd, state.act), (q, qd, act), rtol=1e-11, atol=1e-11)
    drive = ts.actuators.ActuatedControl(ts.actuators.actuators_of(mech), ctrl_of(STEPS))
    series = ctrl_of(STEPS)
    for control in (ctrl_of(), series, lambda t, q, qd: ctrl_of(), drive):
        found = ts.rollout(mech, start, control, steps=STEPS, method=ts.ContactStep())
        after = found.last_state
        assert_close((after.q, after.qd, after.act), (q, qd, act), rtol=1e-11, atol=1e-11)
        assert_close(after.t, state.t, rtol=1e-12, atol=0)
    assert found.constraint_forces.abs().max() > 1


@pytest.mark.nightly
def test_a_rollout_in_one_kernel_takes_the_steps_of_the_file():
    mech, start, q, qd, _ = leg("implicitfast")
    fast = ts.fuse(mech)
    q0, qd0 = start.q.repeat(2, 1), start.qd.repeat(2, 1)
    for control in (ctrl_of(), ctrl_of(2, STEPS), lambda t, q, qd: ctrl_of()):
        options = {"method": ts.ContactStep(), "fused": True}
        qs, qds, _, taus, *_ = ts.rollout(fast, ts.State(q0, qd0), control, steps=STEPS, **options)
        assert_close((qs[1, -1], qds[1, -1]), (q, qd), rtol=1e-9, atol=1e-9)
        eager = ts.rollout(
            mech, ts.State(q0, qd0), control, steps=STEPS, **options | {"fused": False}
        )
        assert_close(taus, eager.forces, rtol=1e-9, atol=1e-9)
    assert taus[0, 0, 1] == pytest.approx(30 * 0.4 - 2 * -0.2, abs=1e-9) or taus[0, 0, 1] == 9


def test_activations_of_a_rollout_start_where_a_controller_has_them():
    mech, start, *_ = leg("RK4")
    act = torch.tensor([0.7], dtype=torch.float64)
    drive = ts.actuators.ActuatedControl(ts.actuators.actuators_of(mech), ctrl_of(), activation=act)
    options = {"method": ts.ContactStep(), "memory": drive.initial_memory(*start[:2])}
    found = ts.rollout(mech, start, drive, steps=3, **options)
    state = start._replace(act=act)
    for _ in range(3):
        state = ts.step(mech, state, ctrl_of())
    assert_close(found.memory, state.act, rtol=1e-12, atol=1e-12)
    assert_close(found.act[-1], state.act, rtol=1e-12, atol=1e-12)
    assert_close(found.act[0], act)
    # Without a controller they are those of the state, also where a second rollout goes on.
    step = {"method": ts.ContactStep()}
    first = ts.rollout(mech, start._replace(act=act), ctrl_of(), steps=1, **step)
    assert_close(ts.rollout(mech, first.last_state, ctrl_of(), steps=2, **step).act, found.act[1:])


def test_actuators_of_the_user_replace_those_of_the_file():
    mech, start, *_ = leg("Euler")
    servo = ts.actuators.Actuators.of(
        mech, [ts.actuators.Actuator.position("own", "h", kp=5.0, kv=0.5)]
    )
    ctrl = torch.tensor([0.3], dtype=torch.float64)
    state = ts.step(mech, start, ctrl, actuators=servo)
    qs = ts.rollout(mech, start, ctrl, steps=1, method=ts.ContactStep(actuators=servo)).q
    assert_close(qs[-1], state.q, rtol=1e-12, atol=1e-12)
    with pytest.raises(ts.ShapeError, match=r"(?s)ctrl has shape \[3\].*actuators are own"):
        ts.step(mech, start, ctrl_of(), actuators=servo)


def test_joint_forces_of_a_controller_act_beside_the_tendons_of_the_file():
    class Push(Controller):
        def initial_memory(self, q, qd):
            return q[..., :1]

        def act(self, t, dt, q, qd, memory):
            return torch.stack([0 * t + 1.0 - memory[..., 0], q[..., 1]], -1), memory + dt

    mech, start, *_ = leg("Euler")
    free, state, memory = joint_forces_of(TEXT), start._replace(act=start.q[:0]), start.q[:1]
    for k in range(3):
        tau, memory = Push().act(0.004 * k, 0.004, state.q, state.qd, memory)
        state = ts.step(free, state, tau)
    found = ts.rollout(mech, start, Push(), steps=3, method=ts.ContactStep())[:2]
    assert_close(found[0][-1], state.q, rtol=1e-12, atol=1e-12)


def joint_forces_of(text):
    """The robot of a file without its actuators."""
    head, _, rest = text.format("Euler").partition("<actuator>")
    return ts.load(head + rest.partition("</actuator>")[2])


MUSCLE = """<mujoco><worldbody><body><joint name="a" axis="0 1 0"/><geom size=".1" pos=".3 0 0"/></body>
</worldbody>
<actuator><muscle name="biceps" joint="a" lengthrange="0 1"/>{}</actuator></mujoco>"""
"""One dof and an actuator that is not modeled: one control fits the number of joint forces."""


def test_controls_of_actuators_that_are_not_modeled_are_refused_by_name():
    mech = ts.load(MUSCLE.format(""))
    u, state = torch.ones(1).double(), ts.initial_state(mech)
    calls = {
        "step": lambda: ts.step(mech, state, u),
        "sensors": lambda: ts.sensors(mech, state, u),
        "rollout": lambda: ts.rollout(mech, state, u, steps=2, method=ts.ContactStep()),
        "law": lambda: ts.rollout(
            mech, state, lambda t, q, qd: u, steps=2, method=ts.ContactStep()
        ),
    }
    for call in calls.values():
        with pytest.raises(ts.MechanismError, match=r"(?s)actuator 'biceps'.*Pass actuators="):
            call()
    ts.step(mech, state)
    ts.rollout(mech, state, None, steps=2, method=ts.ContactStep())
    motor = ts.actuators.Actuators.of(mech, [ts.actuators.Actuator.motor("m", "a")])
    assert ts.step(mech, state, u, actuators=motor).qd > ts.step(mech, state).qd


def test_the_width_of_controls_is_that_of_the_modeled_actuators():
    mech = ts.load(MUSCLE.format('<motor name="m" joint="a"/>'))
    with pytest.raises(ts.ShapeError, match=r"(?s)actuators are m; not modeled: actuator 'biceps'"):
        ts.step(mech, ts.initial_state(mech), torch.ones(2).double())


def test_options_of_joint_forces_are_refused_with_controls_of_actuators():
    mech, start, *_ = leg("Euler")
    drive = ts.actuators.ActuatedControl(
        ts.actuators.actuators_of(mech), ctrl_of(), implicit="velocity"
    )
    with pytest.raises(ts.TorchskoError, match=r"(?s)effort='clamp'.*controls of the actuators"):
        ts.rollout(mech, start, ctrl_of(), steps=2, method=ts.ContactStep(), effort="clamp")
    with pytest.raises(ts.TorchskoError, match=r'(?s)acts implicitly.*integrator="implicitfast"'):
        ts.rollout(mech, start, drive, steps=2, method=ts.ContactStep())


def test_a_function_that_calls_a_contact_step_passes_joint_forces():
    text = TEXT.replace("<tendon>", "<!--").replace("</actuator>", "-->").format("Euler")
    mech = ts.load(text)
    start, contact = ts.initial_state(mech), ts.ContactStep()

    def rewarded(mech, accelerate, t, q, qd, dt):
        q, qd, *_ = contact(mech, accelerate, t, q, qd, dt)
        return q, qd, q.sum(-1)

    tau = torch.tensor([0.3, -0.2], dtype=torch.float64)
    found = ts.rollout(mech, start, tau, steps=4, method=rewarded)
    expected = ts.rollout(mech, start, tau, steps=4, method=contact)
    assert_close(found.q, expected.q, rtol=0, atol=1e-14)
    assert_close(found.results, (found.q[1:].sum(-1),))


@pytest.mark.parametrize(
    "options", [{"checkpoint": 2}, {"every": 3, "checkpoint": 3}, {"lengths": 6}]
)
def test_options_of_rollouts_keep_activations_and_gradients(options):
    mech, start, *_ = leg("implicitfast")
    q, qd = start.q.repeat(2, 1), start.qd.repeat(2, 1)
    ctrl = (ctrl_of(2, 6) * torch.linspace(0.5, 1, 6).double()[:, None]).requires_grad_()
    friction = ts.ContactModel.of(mech).friction.repeat(2, 1, 1).requires_grad_()
    if "lengths" in options:
        options = {"lengths": torch.full((2,), options["lengths"])}

    def gradients(**options):
        params = {"friction": friction}
        found = ts.rollout(
            mech, ts.State(q, qd), ctrl, steps=6, method=ts.ContactStep(), params=params, **options
        )[:2]
        return found[0][:, -1], *torch.autograd.grad(found[1][:, -1].sum(), (ctrl, friction))

    found, expected = gradients(**options), gradients()
    assert_close(found, expected, rtol=1e-12, atol=1e-13)
    assert all(x.abs().max() > 1e-4 for x in expected)


@pytest.mark.parametrize("control", ["controls", "law"])
def test_the_data_of_a_file_are_read_once_for_a_rollout_and_for_substeps(monkeypatch, control):
    """Contact model, actuators and tendons."""
    mech, start, *_ = leg("implicitfast")
    u, read = ctrl_of(), []
    for kind in (ts.ContactModel, ts.actuators.Actuators, ts.actuators.Tendons):
        build, name = kind.of, kind.__name__
        monkeypatch.setattr(
            kind,
            "of",
            lambda *x, build=build, name=name, **k: (read.append(name), build(*x, **k))[1],
        )
    once = ["Actuators", "ContactModel", "Tendons", "Tendons"]  # constraints and forces of tendons
    control = {"controls": u, "law": lambda t, q, qd: u}[control]
    ts.rollout(mech, start, control, steps=4, method=ts.ContactStep())
    assert sorted(read) == once
    read.clear()
    ts.step(mech, start, u, substeps=4)
    assert sorted(read) == once
