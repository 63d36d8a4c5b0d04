"""A task of a user with parameters, disturbances, memory, delays and pushes, beside steps by `ts.step`."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from torchsko.envs import Draws, Step, Task, World, blocks

LEG = """<mujoco><option timestep="0.004" integrator="implicitfast"/><worldbody>
  <geom name="floor" type="plane" size="5 5 1"/>
  <body name="base" pos="0 0 0.5"><joint name="x" type="slide" axis="1 0 0"/>
    <joint name="z" type="slide" axis="0 0 1"/><geom size="0.05" mass="1" contype="0" conaffinity="0"/>
    <body name="leg"><joint name="leg" type="slide" axis="0 0 -1" range="0 0.3"/>
      <geom name="foot" size="0.03" pos="0 0 -0.2" mass="0.2"/></body></body>
  </worldbody><actuator><position name="leg" joint="leg" kp="200" kv="5"/></actuator></mujoco>"""


@dataclass(frozen=True)
class Hop(Task):
    model: str = LEG
    frame_skip: int = 3
    episode_length: int = 9
    longest_delay: float = 0.024

    def action_bounds(self, world: World):
        return world.mech.mass.new_tensor([[-1.0, 1.0]])

    def parameters(self, world: World, draw: Draws):
        delay = {"delay": draw.uniform(0.0, self.longest_delay)}
        return {**Task.parameters(self, world, draw), **delay}

    def disturbances(self, draw: Draws):
        return {"push": draw.uniform(-20.0, 20.0), "noise": 0.01 * draw.normal(3)}

    def initial(self, world: World, draw: Draws):
        q = world.mech.initial() + torch.cat([draw.uniform(-1, 1), draw.uniform(-0.2, 0, 2)])
        return ts.State(q, 0 * q, q.new_zeros(0))

    def memory(self, world: World, state, draw: Draws):
        return {"queue": state.q.new_zeros(2, 1), "history": state.q[None].repeat(3, 1)}

    def advance(self, world: World, state, memory, action):
        ctrl = blocks.scaled(action, action.new_tensor([0.1]), 0.1)
        delay = world.params["delay"]
        ctrl, queue = blocks.delayed(ctrl, memory["queue"], delay, world.dt)
        push = world.disturbances["push"] * ctrl.new_tensor([1.0, 0.0, 0.0])
        state = world.step(state, ctrl, blocks.push(world, state, "base", push))
        return state, {"queue": queue, "history": blocks.appended(memory["history"], state.q)}

    def observe(self, world: World, state, memory):
        return torch.cat([memory["history"].flatten(), state.q + world.disturbances["noise"]])

    def reward(self, world: World, step: Step):
        return (step.after.q[0] - step.before.q[0]) / world.dt - step.action.square().sum()


RANGES = {"mass": (0.5, 2.0), "floor.contact_friction": (0.2, 1.0), "kp": (0.5, 1.5)}
N = 5


@pytest.fixture(scope="module")
def env():
    return ts.envs.make(Hop(ranges=RANGES), N)


def test_steps_are_those_of_the_robot_with_the_parameters_of_each_environment(env):
    state = env.reset()
    assert len(state.params["mass"].unique()) == 2 * N
    g = torch.Generator().manual_seed(0)
    mech = env.mech
    contact, drive = ts.ContactModel.of(mech), ts.actuators.actuators_of(mech)
    params = state.params
    mech = mech.replace(mass=params["mass"], inertia=params["inertia"])
    contact = contact.replace(friction=params["contact.friction"])
    drive = drive.replace(gain=params["actuators.gain"], bias=params["actuators.bias"])
    physics, sent = state.physics, [torch.zeros(N, 1).double()] * 2
    for _ in range(6):
        action = 2.4 * torch.rand(N, 1, generator=g, dtype=torch.float64) - 1.2
        state, transition = env.step(state, action)
        sent = [0.1 + 0.1 * action.clamp(-1, 1), *sent]
        steps = params["delay"] / env.dt
        whole = steps.floor()
        line = torch.stack(sent[:3], 1)
        rows = torch.arange(N)
        before, after = (line[rows, (whole[:, 0] + k).long().clamp(max=2)] for k in (0, 1))
        ctrl = before + (steps - whole) * (after - before)
        assert torch.equal(transition.clipped, (action.abs() > 1)[:, 0])
        # The push of the step is not known outside: the free motion of the whole robot along x shows it.
        options = {"contact": contact, "actuators": drive, "substeps": 3}
        found = ts.step(mech, physics, ctrl, **options)
        assert_close(state.physics.q[:, 1:], found.q[:, 1:])
        push = (state.physics.qd - found.qd)[:, 0] * params["mass"].sum(-1) / env.dt
        assert (push.abs() <= 20.0).all() and len(push.unique()) == N
        physics = state.physics


def test_parameters_are_drawn_at_each_reset_and_have_gradients(env):
    state = env.reset()
    fresh = env.restart(state, torch.arange(N) < 2)
    changed = (fresh.params["mass"] != state.params["mass"]).any(-1)
    assert torch.equal(changed, torch.arange(N) < 2)
    mass = state.params["mass"].clone().requires_grad_()
    start = state._replace(params={**state.params, "mass": mass})
    zero = torch.zeros(N, 1, dtype=torch.float64)

    def height(params):
        at = start._replace(params=params)
        for _ in range(3):
            at, _ = env.step(at, zero)
        return at.physics.q[:, 1].sum()

    (gradient,) = torch.autograd.grad(height(start.params), mass)
    change = 1e-6 * torch.ones_like(mass)
    up, down = (
        height({**state.params, "mass": state.params["mass"] + s * change}) for s in (1, -1)
    )
    assert_close((gradient * change).sum(), (up - down) / 2, rtol=1e-5, atol=0)


def test_disturbances_do_not_depend_on_the_batch_and_have_their_distributions(env):
    state = env.reset()
    action = torch.zeros(N, 1, dtype=torch.float64)
    _, whole = env.step(state, action)
    _, part = env.step(env.reset(2, first=2), action[:2])
    assert torch.equal(whole.observation[2:4], part.observation)
    many = env.reset(4000)
    noise = many.observation[:, -3:] - many.physics.q
    assert abs(float(noise.std()) - 0.01) < 2e-4 and abs(float(noise.mean())) < 3e-4
    assert abs(float(many.physics.q[:, 0].mean())) < 0.03
    assert abs(float(many.params["delay"].mean()) - 0.012) < 5e-4


def test_a_registered_task_is_made_by_its_name():
    @dataclass(frozen=True)
    class Short(Hop):
        name: ClassVar[str] = "ShortHop"
        episode_length: int = 3

    ts.envs.register("ShortHop", Short)
    assert ts.envs.make("ShortHop").episode_length == 3
    assert ts.envs.make("ShortHop", episode_length=5).episode_length == 5
    with pytest.raises(ts.TorchskoError, match="ShortHop"):
        ts.envs.make("ShortHopp")
    with pytest.raises(ts.TorchskoError, match="Hopper-v5"):
        ts.envs.register("Hopper-v5", Short)
