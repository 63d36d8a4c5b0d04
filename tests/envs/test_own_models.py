"""Tasks whose robots are written for torchsko, and the building blocks that they use."""

import mujoco
import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from torchsko.envs import Draws, blocks
from torchsko.envs.tasks.commanded_walk import CommandedWalk

BY_DAY = ["CartpoleSwingup"]
BY_NIGHT = [
    "AcrobotSwingup",
    "HopperHop",
    "WalkerWalk",
    "CheetahRun",
    "QuadrupedFlat",
    "HumanoidWalk",
]
WALKERS = ["QuadrupedFlat", "QuadrupedRough", "Go2Flat", "AnymalFlat", "HumanoidWalk"]
NAMES = [*BY_DAY, *(pytest.param(x, marks=pytest.mark.nightly) for x in BY_NIGHT)]


@pytest.mark.parametrize("name", NAMES)
def test_states_are_those_of_mujoco_with_the_file_of_the_task(name):
    env = ts.envs.make(name, 2, autoreset="off")
    model = mujoco.MjModel.from_xml_string(env.task.model)
    model.opt.tolerance, model.opt.iterations, model.opt.ls_tolerance = 0.0, 100, 1e-12
    data, convert = mujoco.MjData(model), env.world.mujoco
    state = env.reset()
    data.qpos[:] = convert.q_to(state.physics.q)[1]
    data.qvel[:] = convert.qd_to(state.physics.q, state.physics.qd)[1]
    g = torch.Generator().manual_seed(0)
    for _ in range(25):
        action = 2 * torch.rand(2, env.action_size, generator=g, dtype=torch.float64) - 1
        data.ctrl[:] = action[1]
        if isinstance(env.task, CommandedWalk):
            center = env.task.reference(env.world, {k: x[1] for k, x in state.memory.items()})
            scale = center.new_tensor(env.task.action_scale).repeat(len(env.task.feet))
            data.ctrl[:] = center + scale * action[1]
        state, transition = env.step(state, action)
        mujoco.mj_step(model, data, nstep=env.task.frame_skip)
    assert not transition.diverged.any()
    assert_close(convert.q_to(state.physics.q)[1], torch.tensor(data.qpos), atol=1e-6, rtol=0)


@pytest.mark.nightly
def test_the_servos_of_an_arm_hold_their_targets_within_its_limits():
    env = ts.envs.make("PandaReach", 4, ranges={"joint_friction": (0.0, 0.0)})
    state = start = env.reset()
    g = torch.Generator().manual_seed(0)
    push = 2 * torch.rand(4, 7, generator=g, dtype=torch.float64) - 1
    for k in range(80):
        state, transition = env.step(state, push if k < 40 else 0 * push)
    q, target = state.physics.q, state.memory["target"]
    moved = start.physics.q + 40 * env.task.action_scale * push
    expected = torch.minimum(torch.maximum(moved, env.mech.lower), env.mech.upper)
    assert_close(target, expected)
    assert_close(q, target, atol=1e-3, rtol=0)  # 0.8 s after the last change, without dry friction
    flange = ts.frame_pose(env.mech, q, "flange").position
    distance = (state.memory["goal"] - flange).norm(dim=-1)
    assert_close(transition.reward, (-((distance / 0.02) ** 2)).exp() - distance, atol=1e-4, rtol=0)


@pytest.mark.nightly
@pytest.mark.parametrize("name", WALKERS)
def test_a_robot_stands_without_actions_and_falls_to_strong_pushes(name):
    for force, stands in ((0.0, True), (3000.0, False)):
        env = ts.envs.make(name, 8, push_force=force, push_time=0.2, autoreset="off")
        state, fallen = env.reset(), torch.zeros(8, dtype=torch.bool)
        for _ in range(100):
            state, transition = env.step(state, torch.zeros(8, 12, dtype=torch.float64))
            fallen = fallen | transition.terminated
        assert torch.equal(fallen, torch.full_like(fallen, not stands))


GROUND = """<mujoco><asset><hfield name="g" nrow="5" ncol="7" size="3 2 1 0.1"/></asset><worldbody>
  <geom name="g" type="hfield" hfield="g" pos="0.1 -0.2 0.3"/>
  <body name="ball" pos="0 0 1"><freejoint/><geom name="ball" size="0.1"/></body></worldbody></mujoco>"""


def world_of(mech):
    contact = ts.ContactModel.of(mech)
    return ts.envs.World(mech, contact, None, 1, None, {}, {})


@pytest.mark.filterwarnings("ignore::torchsko.errors.RobotFileWarning")
def test_heights_below_points_are_those_that_contact_has():
    mech = ts.load(GROUND)
    world = world_of(mech)
    heights = blocks.waves(world, Draws(torch.rand(18, dtype=torch.float64), mech.mass), 0.1, 2.0)
    assert heights.shape == (1, 5, 7) and 0.02 < float(heights.std()) < 0.3
    ground = world.contact.replace(heights=heights)
    world = ts.envs.World(mech, ground, None, 1, None, {}, {})
    points = torch.tensor([[0.3, 0.4], [-1.2, 0.9]], dtype=torch.float64)
    at = blocks.terrain_heights(world, points)
    for point, height in zip(points, at, strict=True):
        q = torch.cat([point, height[None], mech.initial()[3:]])
        distance = ts.contacts(mech, q, contact=ground).distance
        assert_close(distance, torch.full_like(distance, -0.1))
    turned = torch.tensor([0.5, 0.5, 2.0, 0.5**0.5, 0.0, 0.0, 0.5**0.5], dtype=torch.float64)
    state = ts.State(turned, torch.zeros(6, dtype=torch.float64))
    ahead = torch.tensor([[0.3, 0.0]], dtype=torch.float64)
    beside = blocks.terrain_heights(world, torch.tensor([[0.5, 0.8]], dtype=torch.float64))
    assert_close(blocks.height_scan(world, state, "ball", ahead), 2.0 - beside, atol=1e-9, rtol=0)


@pytest.mark.filterwarnings("ignore::torchsko.errors.RobotFileWarning")
def test_observations_of_a_base_are_in_its_axes():
    mech = ts.load(GROUND)
    world, (q, qd) = world_of(mech), mech.random_state()
    state = ts.State(q, qd)
    R = ts.frame_pose(mech, q, "ball").rotation
    down = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64)
    assert_close(blocks.projected_gravity(world, state, "ball"), R.mT @ down)
    omega, v = blocks.base_velocity(world, state, "ball")
    assert_close(torch.cat([omega, v]), qd)
    force = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    wrench = blocks.push(world, state, "ball", force)
    assert_close(R @ wrench[0, 3:], force)
    assert not wrench[0, :3].any() and wrench.shape == (1, 6)


def test_the_force_on_a_ball_at_rest_is_its_weight():
    text = GROUND.replace('hfield="g" pos="0.1 -0.2 0.3"', 'hfield="g"').replace(
        "0 0 1", "0 0 0.0999"
    )
    mech = ts.load(text)
    world, state = world_of(mech), ts.initial_state(mech)
    last = None
    for _ in range(100):
        state, last = world.step_with_evaluation(state, torch.zeros(6, dtype=torch.float64))
    weight = float(mech.mass.sum()) * 9.81
    force = blocks.link_forces(last, ["ball"])
    assert_close(force, force.new_tensor([[0.0, 0.0, weight]]), rtol=1e-4, atol=1e-4)


def test_a_pseudo_huber_norm_grows_like_a_square_and_then_like_the_norm():
    error = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    found = blocks.pseudo_huber(error, 1e-6)
    assert_close(found.item(), 5.0, atol=1e-5, rtol=0)
    assert_close(torch.autograd.grad(found, error)[0], error.detach() / 5)
    near = blocks.pseudo_huber(1e-4 * error.detach(), 1.0)
    assert_close(float(near), 0.5 * (5e-4) ** 2, rtol=1e-6, atol=0)
    assert blocks.pseudo_huber(0 * error, 0.1).item() == 0.0


def test_air_time_is_reported_at_touch_down():
    time, landed = torch.zeros(2), torch.zeros(2)
    found = []
    for touches in ([True, False], [False, False], [False, True], [True, True]):
        time, landed = blocks.air_time(time, torch.tensor(touches), 0.1)
        found.append(landed.tolist())
    assert_close(torch.tensor(found), torch.tensor([[0, 0], [0, 0], [0, 0.2], [0.2, 0.0]]))


def test_tolerance_is_one_within_bounds_and_given_at_the_margin():
    x = torch.tensor([1.0, 2.0, 3.0, 0.5, 4.0, 5.0], dtype=torch.float64)
    for kind, value in (("gaussian", 0.1), ("linear", 0.2), ("quadratic", 0.3)):
        found = blocks.tolerance(x, 1.0, 3.0, margin=1.0, at_margin=value, kind=kind)
        assert found[:3].tolist() == [1, 1, 1] and value < found[3] < 1
        assert_close(float(found[4]), value)
        assert found[5] < value
    assert np.allclose(blocks.tolerance(x, 2.0, np.inf, 1.0, 0, "linear"), [0, 1, 1, 0, 1, 1])
