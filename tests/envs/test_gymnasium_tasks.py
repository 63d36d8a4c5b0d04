"""Tasks of Gymnasium beside Gymnasium itself: 200 random steps of four environments from its states."""

import numpy as np
import pytest
import torch

import torchsko as ts

gymnasium = pytest.importorskip("gymnasium")

TASKS = ["InvertedPendulum-v5", "Hopper-v5"]
OPTIONS = {
    "Hopper-v5": {
        "exclude_current_positions_from_observation": False,
        "terminate_when_unhealthy": False,
        "healthy_z_range": (0.8, 1.3),
        "ctrl_cost_weight": 0.1,
    }
}


def started(name, options):
    """Four environments of Gymnasium, and the same states of torchsko."""
    peers = [gymnasium.make(name, **options).unwrapped for _ in range(4)]
    for seed, peer in enumerate(peers):
        peer.reset(seed=seed)
    env = ts.envs.make(name, num_envs=4, autoreset="off", **options)
    state = env.reset()
    qpos, qvel = (
        torch.tensor(np.array([getattr(peer.data, x) for peer in peers])) for x in ("qpos", "qvel")
    )
    at = torch.func.vmap(lambda q, v: tuple(env.world.state_at(q, v)))(qpos, qvel)
    return peers, env, state._replace(physics=ts.State(*at))


def compare(name, steps, options):
    peers, env, state = started(name, options)
    rng = np.random.default_rng(0)
    errors, flags = [], []
    for _ in range(steps):
        action = rng.uniform(-1.2, 1.2, (4, env.action_size)) * env.action_high.numpy()
        state, transition = env.step(state, torch.tensor(action))
        found = [peer.step(x) for peer, x in zip(peers, action, strict=True)]
        observation, reward, terminated = (np.array(x) for x in list(zip(*found, strict=True))[:3])
        errors.append(np.abs(transition.observation.numpy() - observation).max())
        errors.append(np.abs(transition.reward.numpy() - reward).max())
        flags.append((transition.terminated.numpy() == terminated).all())
    assert env.observation_size == peers[0].observation_space.shape[0]
    assert np.array_equal(env.action_low.float(), peers[0].action_space.low)
    assert np.array_equal(env.action_high.float(), peers[0].action_space.high)
    assert abs(env.dt - peers[0].dt) < 1e-15
    assert env.episode_length == gymnasium.spec(name).max_episode_steps
    return max(errors), all(flags)


@pytest.mark.parametrize("name", TASKS)
def test_observations_rewards_and_flags_are_those_of_gymnasium(name):
    error, flags = compare(name, 200, {})
    assert error < 1e-6 and flags


@pytest.mark.parametrize("name", OPTIONS)
def test_options_mean_the_same_as_in_gymnasium(name):
    error, flags = compare(name, 30, OPTIONS[name])
    assert error < 1e-8 and flags


@pytest.mark.parametrize("name", TASKS)
def test_starts_have_the_distribution_of_gymnasium(name):
    env, peer = ts.envs.make(name), gymnasium.make(name).unwrapped
    ours = env.reset(2000).physics
    qpos, qvel = env.world.qpos(ours), env.world.qvel(ours)
    theirs = []
    for seed in range(300):
        peer.reset(seed=seed)
        theirs.append(np.concatenate([peer.data.qpos, peer.data.qvel]))
    ours, theirs = torch.cat([qpos, qvel], -1), torch.tensor(np.array(theirs))
    spread = theirs.std(0)
    assert ((ours.mean(0) - theirs.mean(0)).abs() <= 0.3 * spread + 1e-12).all()
    assert ((ours.std(0) - spread).abs() <= 0.15 * spread + 1e-12).all()
