"""Tasks of Gymnasium beside Gymnasium itself, from its states.

Rounding grows by a factor of about 1e3 in 25 steps of the cheetah. A state is therefore compared with that of
Gymnasium one step after they were equal, over 200 steps, and over 15 steps without a correction.
"""

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.envs.random_numbers import Draws

gymnasium = pytest.importorskip("gymnasium")
mujoco = pytest.importorskip("mujoco")

BY_DAY = ("Hopper-v5",)
BY_NIGHT = (
    *("InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5", "Swimmer-v5"),
    *("Walker2d-v5", "HalfCheetah-v5"),
    *("Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"),
)
NAMES = [*BY_DAY, *(pytest.param(x, marks=pytest.mark.nightly) for x in BY_NIGHT)]
OPTIONS = {
    "Hopper-v5": {
        "exclude_current_positions_from_observation": False,
        "terminate_when_unhealthy": False,
        "healthy_z_range": (0.8, 1.3),
        "ctrl_cost_weight": 0.1,
    },
    "Ant-v5": {
        "include_cfrc_ext_in_observation": False,
        "contact_force_range": (-0.5, 2.0),
        "contact_cost_weight": 0.1,
        "healthy_z_range": (0.4, 0.6),
    },
    "Humanoid-v5": {
        "include_cinert_in_observation": False,
        "include_cvel_in_observation": False,
        "contact_cost_weight": 1e-4,
        "contact_cost_range": (1.0, 5.0),
    },
}


def peers_of(name, **options):
    """Four environments of Gymnasium, whose solver iterates to rounding."""
    peers = [gymnasium.make(name, **options).unwrapped for _ in range(4)]
    for seed, peer in enumerate(peers):
        solver = peer.model.opt
        solver.solver = (
            mujoco.mjtSolver.mjSOL_NEWTON
        )  # the humanoid's file has one that converges slowly
        solver.tolerance, solver.iterations = 0.0, 100
        solver.ls_tolerance, solver.ls_iterations = 1e-12, 50
        peer.reset(seed=seed)
    return peers


def physics_of(env, peers):
    qpos, qvel = (
        torch.tensor(np.array([getattr(peer.data, x) for peer in peers])) for x in ("qpos", "qvel")
    )
    q = env.world.mujoco.q_from(qpos)
    return ts.State(q, env.world.mujoco.qd_from(q, qvel), q.new_zeros(4, 0))


def started(env, peers):
    """The state of environments in the states of Gymnasium after a reset."""
    state = env.reset()._replace(physics=physics_of(env, peers))
    rows = [ts.State(*(x[k] for x in state.physics)) for k in range(4)]
    memories = [env.task.memory(env.world, x, Draws(None, x.q)) for x in rows]
    memory = {x: torch.stack([memory[x] for memory in memories]) for x in memories[0]}
    return state._replace(memory=memory)


def differences(env, peers, steps, *, corrected):
    """Largest difference of observations and rewards in each step, and whether all flags are equal."""
    state, errors, flags = started(env, peers), [], True
    rng = np.random.default_rng(0)
    for _ in range(steps):
        action = rng.uniform(-1.2, 1.2, (4, env.action_size)) * env.action_high.numpy()
        state, transition = env.step(state, torch.tensor(action))
        found = [peer.step(x) for peer, x in zip(peers, action, strict=True)]
        observation, reward, terminated = (np.array(x) for x in list(zip(*found, strict=True))[:3])
        pairs = (transition.observation, observation), (transition.reward, reward)
        errors.append(max(np.abs(x.numpy() - y).max() for x, y in pairs))
        flags &= (transition.terminated.numpy() == terminated).all()
        if corrected:
            state = state._replace(physics=physics_of(env, peers))
    return errors, flags


@pytest.mark.parametrize("name", NAMES)
def test_observations_rewards_and_flags_are_those_of_gymnasium(name):
    env = ts.envs.make(name, 4, autoreset="off")
    for steps, corrected in ((200, True), (15, False)):
        errors, flags = differences(env, peers_of(name), steps, corrected=corrected)
        assert max(errors) < 1e-6 and flags


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPTIONS)
def test_options_mean_the_same_as_in_gymnasium(name):
    env = ts.envs.make(name, 4, autoreset="off", **OPTIONS[name])
    errors, flags = differences(env, peers_of(name, **OPTIONS[name]), 30, corrected=True)
    assert max(errors) < 1e-6 and flags


@pytest.mark.parametrize("name", NAMES)
def test_spaces_are_those_of_gymnasium(name):
    env, peer = ts.envs.make(name), gymnasium.make(name).unwrapped
    assert env.observation_size == peer.observation_space.shape[0]
    assert np.array_equal(env.action_low.float(), peer.action_space.low)
    assert np.array_equal(env.action_high.float(), peer.action_space.high)
    assert abs(env.dt - peer.dt) < 1e-15
    assert env.episode_length == gymnasium.spec(name).max_episode_steps


@pytest.mark.parametrize("name", NAMES)
def test_starts_have_the_distribution_of_gymnasium(name):
    env, peer = ts.envs.make(name), gymnasium.make(name).unwrapped
    ours, theirs = env.reset(1000).physics, []
    for seed in range(400):
        peer.reset(seed=seed)
        theirs.append(np.concatenate([peer.data.qpos, peer.data.qvel]))
    mujoco = env.world.mujoco
    ours = torch.cat([mujoco.q_to(ours.q), mujoco.qd_to(ours.q, ours.qd)], -1)
    theirs = torch.tensor(np.array(theirs))
    if mujoco.num_q > mujoco.num_dof:  # Gymnasium's quaternions have no unit norm
        theirs[:, 3:7] /= theirs[:, 3:7].norm(dim=-1, keepdim=True)
    spread = theirs.std(0)
    assert ((ours.mean(0) - theirs.mean(0)).abs() <= 0.25 * spread + 1e-12).all()
    assert ((ours.std(0) - spread).abs() <= 0.15 * spread + 1e-12).all()
