"""Laws of rollouts agree in all modes with one rollout per robot, also in their gradients."""

from dataclasses import dataclass

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from torchsko.actuators.law import bind
from torchsko.errors import FusedError, ShapeError, TorchskoError
from torchsko.integrators.controls import Controller
from torchsko.integrators.limit_springs import LimitSprings

BATCH = STEPS = 4
DT = 0.02


def arm():
    inertia = ((0.02, 0, 0), (0, 0.03, 0), (0, 0, 0.04))
    builder = ts.MechanismBuilder("arm")
    builder.link("upper", mass=1.0, com=(0.1, 0, -0.3), inertia=inertia)
    builder.link("lower", mass=0.5, com=(0.1, 0, -0.2), inertia=inertia)
    options = {"axis": (0, 1, 0), "damping": 0.1, "lower": -0.3, "upper": 0.3, "effort": 6.0}
    builder.joint("shoulder", "revolute", child="upper", **options)
    builder.joint(
        "elbow", "revolute", child="lower", parent="upper", position=(0, 0, -0.5), **options
    )
    return builder.build()


ARM = arm()


def generator():
    return torch.Generator().manual_seed(0)


def fleet():
    """Robots with different lengths of the upper arm."""
    position = ARM.joint_position.expand(BATCH, -1, 3).clone()
    position[:, 1, 2] -= 0.1 * torch.arange(BATCH)
    return ARM.replace(joint_position=position)


MANY = fleet()


def states():
    g = generator()
    return [0.4 * torch.randn(BATCH, 2, generator=g, dtype=torch.float64) for _ in range(2)]


@pytest.fixture(scope="module")
def fast():
    return ts.fuse(ARM, inputs=("joint_position",))


MODES = {"eager": False, "steps": None, "kernel": True}


def hand_spring(mech, t, q, qd):
    """A spring at the hand, whose force depends on the length of the upper arm."""
    pose = ts.frame_pose(mech, q, "lower")
    force = -20.0 * pose.position
    body = (pose.rotation.mT @ force[..., None])[..., 0]
    return torch.stack([torch.zeros_like(body[..., :1]).expand(*q.shape[:-1], 6)] * 1 + [
        torch.cat([torch.zeros_like(body), body], -1)
    ], -2)  # fmt: skip


def tracking(mech, t, q, qd, *, gain, reference):
    return ts.gravity_force(mech, q) + gain[..., None] * (reference - q) - qd


def push(t, q, qd):
    return 3.0 - qd


@dataclass(frozen=True)
class Integral(Controller):
    """Integral feedback with a target of each sample."""

    def initial_memory(self, q, qd):
        return torch.zeros_like(qd)

    def act(self, mech, t, dt, q, qd, memory, *, target):
        error = target - q
        return 9.0 * error + 30.0 * memory + ts.bias_force(mech, q, qd), memory + dt * error


SERVOS = ts.actuators.Actuators.of(
    ARM, [ts.actuators.Actuator.position(n, n, kp=40.0, kv=4.0) for n in ARM.joint_names]
)


def random(*shape):
    return torch.randn(*shape, generator=generator(), dtype=torch.float64)


CASES = {
    "laws": lambda x: {
        "control": tracking,
        "f_ext": hand_spring,
        "params": {"gain": x[..., 0, 0].abs()},
        "series": {"reference": x},
        "effort": "clamp",
    },
    "forces and a law": lambda x: {"control": x[..., 0, :], "f_ext": hand_spring},
    "controller": lambda x: {"control": Integral(), "params": {"target": x[..., 1, :]}},
    "servos": lambda x: {"control": ts.actuators.ActuatedControl(SERVOS, x[..., 0, :])},
    "implicit servos and limits": lambda x: {
        "control": ts.actuators.ActuatedControl(SERVOS, x, implicit="position"),
        "limits": LimitSprings(1e3, 20.0),
    },
    "limits": lambda x: {"control": x, "limits": LimitSprings(1e3, 20.0)},
    "ends": lambda x: {"control": push, "lengths": torch.tensor([4, 0, 2, 3]), "every": 2},
}


def _states_and_forces(robot, q, qd, **options):
    found = ts.rollout(robot, ts.State(q, qd), **options)
    return found.q, found.qd, found.forces


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_fleet_moves_as_its_robots_alone(fast, case, mode):
    x = random(BATCH, STEPS, 2).requires_grad_()
    q, qd = (y.requires_grad_() for y in states())
    robot = MANY if mode == "eager" else fast.replace(joint_position=MANY.joint_position)
    options = {"steps": STEPS, "dt": DT}
    given = CASES[case](x)
    found = _states_and_forces(robot, q, qd, **given, **options, fused=MODES[mode])
    alone = []
    for k in range(BATCH):
        one = ARM.replace(joint_position=MANY.joint_position[k])
        own = CASES[case](x[k])
        if "lengths" in own:
            own["lengths"] = own["lengths"][k]
        alone.append(_states_and_forces(one, q[k], qd[k], **own, **options, fused=False))
    expected = [torch.stack(parts) for parts in zip(*alone, strict=True)]
    assert_close([*found], expected, rtol=1e-9, atol=1e-10)
    pulled = [
        torch.autograd.grad(sum(y.square().sum() for y in rows), (q, qd, x), allow_unused=True)
        for rows in (found, expected)
    ]
    assert_close(*pulled, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"truncate": 2}, {"every": 2}, {"checkpoint": 2}], ids=str)
def test_applied_forces_are_those_of_the_law_at_each_start(fast, mode, options):
    q, qd = states()
    robot = ARM if mode == "eager" else fast
    qs, qds, _, taus, *_ = ts.rollout(
        robot, ts.State(q, qd), push, steps=STEPS, dt=DT, fused=MODES[mode], **options
    )
    every = options.get("every", 1)
    whole = ts.rollout(ARM, ts.State(q, qd), push, steps=STEPS, dt=DT, fused=False)[:2]
    assert_close((qs, qds), tuple(x[:, ::every] for x in whole))
    assert_close(taus, push(0, *whole)[:, every - 1 : -1 : every])


def test_another_time_step_needs_no_new_kernel(fast):
    q, qd = states()
    made = []
    for dt in (1e-3, 2e-3, 4e-3):
        found = ts.rollout(fast, ts.State(q, qd), push, steps=STEPS, dt=dt, fused=True)[:2]
        assert_close(found, ts.rollout(ARM, ts.State(q, qd), push, steps=STEPS, dt=dt)[:2])
        made.append([*fast._workshop._recent.values()])
    assert made[0][-1] is made[1][-1] is made[2][-1]
    assert len(made[0]) == len(made[2])


@pytest.mark.parametrize("mode", MODES)
def test_a_captured_fleet_is_that_of_the_rollout_but_not_in_one_kernel(fast, mode):
    many = fast.replace(joint_position=MANY.joint_position)
    robot = MANY if mode == "eager" else many
    options = {"steps": STEPS, "dt": DT, "fused": MODES[mode]}
    own = lambda mech, t, q, qd: ts.gravity_force(mech, q)  # noqa: E731
    for captured in (MANY, many):

        def law(t, q, qd, mech=captured):
            return ts.gravity_force(mech, q)

        def law_in_closure(t, q, qd):
            return ts.gravity_force(captured, q)  # noqa: B023

        pairs = ((law, own), (law_in_closure, own))
        for fn, same in (
            *pairs,
            *((ts.actuators.ActuatedControl(SERVOS, x) for x in pair) for pair in pairs),
        ):
            if mode == "kernel":
                with pytest.raises(FusedError, match="Leave fused=True out, or write the control"):
                    ts.rollout(robot, ts.State(*states()), fn, **options)
                continue
            found = ts.rollout(robot, ts.State(*states()), fn, **options)
            assert_close(found[:2], ts.rollout(robot, ts.State(*states()), same, **options)[:2])


@pytest.mark.parametrize("mode", MODES)
def test_a_shared_robot_may_be_captured(fast, mode):
    robot = ARM if mode == "eager" else fast

    def law(t, q, qd):
        return ts.gravity_force(ARM, q)

    q, qd = states()
    found = ts.rollout(robot, ts.State(q, qd), law, steps=STEPS, dt=DT, fused=MODES[mode])[:2]
    theirs = ts.rollout(
        ARM,
        ts.State(q, qd),
        lambda mech, t, q, qd: ts.gravity_force(mech, q),
        steps=STEPS,
        dt=DT,
        fused=False,
    )[:2]
    assert_close(found, theirs)


def compile_whole(fn):
    return torch.compile(fn, fullgraph=True, backend="eager")


@pytest.mark.parametrize(
    "run",
    [lambda fn: fn, pytest.param(compile_whole, marks=pytest.mark.nightly)],
    ids=("eager", "compiled"),
)
def test_modules_and_compiled_callers_take_the_mechanism(run):
    class Policy(torch.nn.Module):
        def forward(self, mech, t, q, qd, *, target):
            return ts.gravity_force(mech, q) + target - q

    policy, (q, qd) = Policy(), states()

    def end(q, qd):
        params = {"target": qd}
        return ts.rollout(
            ARM, ts.State(q, qd), policy, steps=1, dt=DT, params=params, fused=False
        ).q

    exact = ts.rollout(
        ARM, ts.State(q, qd), lambda t, x, v: ts.gravity_force(ARM, x) + qd - x, steps=1, dt=DT
    ).q
    assert_close(run(end)(q, qd), exact)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"params": {"goal": torch.zeros(4, 2).double()}}, r"'goal'.*taken by no function"),
        ({"params": {"gain": torch.zeros(3).double()}}, r"'gain' in params has shape \[3\]"),
        ({"series": {"gain": torch.zeros(4, 3, 2).double()}}, r"'gain' in series.*\[4, 4, ...\]"),
        ({"params": {"gain": torch.zeros(4)}}, r"'gain' is torch.float32"),
        ({"params": [1.0]}, "params is a list"),
        ({}, r"cannot be called with t, q and qd"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(options, words):
    def law(t, q, qd, *, gain):
        return gain[..., None] * q

    if "goal" in options.get("params", ()):
        law = push
    with pytest.raises(TorchskoError, match=f"(?s){words}"):
        ts.rollout(ARM, ts.State(*states()), law, steps=STEPS, dt=DT, **options)


def test_controls_of_the_wrong_size_are_refused():
    control = ts.actuators.ActuatedControl(SERVOS, torch.zeros(3, 2).double())
    with pytest.raises(
        ShapeError, match=r"ctrl has shape \[3, 2\] for 4 steps and the batch \[4\]"
    ):
        ts.rollout(ARM, ts.State(*states()), control, steps=STEPS, dt=DT)


def test_compiled_functions_bind_the_laws_that_they_create():
    """Regression: Dynamo lacks an attribute of such closures, and whole rollouts failed to compile."""

    def bound(x):
        binding = bind(lambda t, q, qd, *, gain: gain * x, 3, ("gain",))
        return x if binding is not None and binding.names == ("gain",) else -x

    x = torch.ones(2)
    assert torch.equal(torch.compile(bound, fullgraph=True, backend="eager")(x), x)
