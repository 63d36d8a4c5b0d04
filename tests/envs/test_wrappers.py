"""Wrappers for Gymnasium, TorchRL and Stable-Baselines3, beside the steps of the environment itself."""

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.envs.registry import TASKS

SETTING = {"num_envs": 5, "episode_length": 6, "reset_noise_scale": 0.1}


def pendulums(**options):
    return ts.envs.make("InvertedPendulum-v5", **{**SETTING, **options})


def actions(steps=15):
    g = torch.Generator().manual_seed(1)
    return 3 * torch.rand(steps, 5, 1, generator=g, dtype=torch.float64) - 1.5


@pytest.mark.parametrize("autoreset", ["same-step", "next-step", "off"])
def test_gymnasium_gets_the_transitions_of_the_environment(autoreset):
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.vector import AutoresetMode

    assert ts.envs.GymnasiumVectorEnv
    made = gymnasium.make_vec(
        "torchsko/InvertedPendulum-v5", seed=3, autoreset=autoreset, **SETTING
    )
    mode = {"same-step": "SameStep", "next-step": "NextStep", "off": "Disabled"}[autoreset]
    assert made.metadata["autoreset_mode"] == AutoresetMode(mode)
    env = pendulums(autoreset=autoreset)
    state = env.reset(seed=3)
    observation, _ = made.reset(seed=3)
    assert observation in made.observation_space
    assert np.array_equal(observation, state.observation)
    for action in actions():
        single = action.float()
        state, expected = env.step(state, single.double())
        observation, reward, terminated, truncated, info = made.step(single.numpy())
        assert np.array_equal(observation, expected.observation)
        assert np.array_equal(reward, expected.reward)
        assert np.array_equal(terminated, expected.terminated)
        assert np.array_equal(truncated, expected.truncated)
        if autoreset == "same-step":
            assert np.array_equal(info["final_obs"], expected.final_observation)
            assert np.array_equal(info["_final_obs"], expected.done)
    mask = np.array([True, False, False, True, False])
    before = observation
    observation, _ = made.reset(options={"reset_mask": mask})
    assert np.array_equal((observation != before).any(-1), mask)
    with pytest.raises(ts.ShapeError, match="reset_mask"):
        made.reset(options={"reset_mask": mask[:3]})


def test_gymnasium_knows_all_tasks():
    gymnasium = pytest.importorskip("gymnasium")
    assert ts.envs.GymnasiumVectorEnv
    names = set(ts.envs.task_names()) - set(TASKS)  # without those that other tests registered
    assert len(names) > 10
    assert all(f"torchsko/{name}" in gymnasium.registry for name in names)


def test_a_torchrl_environment_keeps_gradients_and_passes_its_checks():
    pytest.importorskip("torchrl")
    from torchrl.envs import check_env_specs

    env = ts.envs.TorchRLEnv(pendulums())
    check_env_specs(env)
    gain = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    policy = lambda td: td.set("action", gain + 0 * td["observation"][:, :1])  # noqa: E731
    env.set_seed(2)
    found = env.rollout(12, policy, break_when_any_done=False)
    assert found["next", "truncated"].any() and found["next", "reward"].shape == (5, 12, 1)
    (gradient,) = torch.autograd.grad(found["next", "observation"].sum(), gain)
    state, total = env.env.restart(env.env.reset(seed=2), torch.ones(5, dtype=torch.bool)), 0.0
    for _ in range(12):
        state, transition = env.env.step(state, gain.expand(5, 1))
        total = total + transition.observation.sum()
        state = env.env.restart(state, transition.done)
    (expected,) = torch.autograd.grad(total, gain)
    assert torch.allclose(gradient, expected) and gradient != 0


def test_a_torchrl_collector_collects():
    pytest.importorskip("torchrl")
    from torchrl.collectors import Collector

    env = ts.envs.TorchRLEnv(pendulums())
    collector = Collector(env, frames_per_batch=40, total_frames=80)
    batches = [batch["next", "reward"].shape for batch in collector]
    assert batches == [(5, 8, 1)] * 2


def test_stable_baselines_gets_the_transitions_of_the_environment():
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO

    made, env = ts.envs.SB3VecEnv(pendulums()), pendulums()
    made.seed(3)
    observation, state = made.reset(), env.reset(seed=3)
    assert np.array_equal(observation, state.observation.float())
    for action in actions():
        state, expected = env.step(state, action)
        observation, reward, done, infos = made.step(action.numpy())
        assert np.array_equal(observation, expected.observation.float())
        assert np.array_equal(reward, expected.reward.float())
        assert np.array_equal(done, expected.done)
        for k, info in enumerate(infos):
            assert ("terminal_observation" in info) == done[k]
            cut = bool(expected.truncated[k] and not expected.terminated[k])
            assert info["TimeLimit.truncated"] == cut
    PPO("MlpPolicy", made, n_steps=8, batch_size=20, n_epochs=1).learn(80)


@pytest.mark.parametrize(
    ("name", "package"), [("TorchRLEnv", "torchrl"), ("SB3VecEnv", "stable_baselines3")]
)
def test_a_missing_package_is_named_with_its_extra(name, package, monkeypatch):
    import sys

    module = {"TorchRLEnv": "torchsko.envs.torchrl", "SB3VecEnv": "torchsko.envs.sb3"}[name]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delitem(vars(ts.envs), name, raising=False)
    with pytest.raises(ts.MissingExtraError, match=module.rpartition(".")[2]):
        getattr(ts.envs, name)
