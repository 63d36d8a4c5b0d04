"""Learning algorithms: their returns, gradients and random numbers, and the runs that `train` writes."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import torchsko as ts
from torchsko.envs import blocks
from torchsko.envs.learning.adam import Adam
from torchsko.envs.learning.evaluation import (
    HEIGHTS,
    Change,
    _by_mujoco,
    _models,
    evaluate,
    evaluate_in_mujoco,
)
from torchsko.envs.learning.export import save_onnx
from torchsko.envs.learning.learner import clip_adjoint
from torchsko.envs.learning.policy import Normalizer
from torchsko.envs.learning.processes import Processes
from torchsko.envs.learning.returns import td_lambda
from torchsko.envs.learning.training import Run

ROOT = Path(__file__).parent.parent.parent
TASK = "InvertedPendulum-v5"
SHORT = {"num_envs": 8, "report": None, "horizon": 4}


@pytest.fixture(scope="module")
def env():
    """Pendulums whose episodes are short and whose start is wide."""
    return ts.envs.make(TASK, num_envs=6, episode_length=7, reset_noise_scale=0.15)


def learner(env, algorithm=None, seed=3):
    return (algorithm or ts.envs.SHAC(horizon=6)).learner(env, seed, Processes())


def curve(folder):
    """The learning curve without its times."""
    rows = list(csv.DictReader((Path(folder) / "curve.csv").open()))
    return [{name: x for name, x in row.items() if name != "seconds"} for row in rows]


def test_returns_are_those_computed_by_hand():
    reward = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    following = torch.tensor([[10.0], [20.0], [30.0], [40.0]], dtype=torch.float64)
    never, gamma, lam = torch.zeros(4, 1, dtype=torch.bool), 0.9, 0.8
    g3 = 4 + 0.9 * 40
    g2 = 3 + 0.9 * (0.2 * 30 + 0.8 * g3)
    g1 = 2 + 0.9 * (0.2 * 20 + 0.8 * g2)
    g0 = 1 + 0.9 * (0.2 * 10 + 0.8 * g1)
    expected = torch.tensor([g0, g1, g2, g3], dtype=torch.float64)
    assert torch.allclose(td_lambda(reward, following, never, gamma, lam)[:, 0], expected)
    # The episode is truncated after the second step: the value of its last observation follows.
    done = torch.tensor([[False], [True], [False], [False]])
    g1 = 2 + 0.9 * 20
    expected[:2] = torch.tensor([1 + 0.9 * (0.2 * 10 + 0.8 * g1), g1])
    assert torch.allclose(td_lambda(reward, following, done, gamma, lam)[:, 0], expected)


def test_returns_less_values_are_generalized_advantage_estimates():
    g = torch.Generator().manual_seed(0)
    reward, values = torch.randn(5, 3, generator=g), torch.randn(6, 3, generator=g)
    never = torch.zeros(5, 3, dtype=torch.bool)
    delta = reward + 0.9 * values[1:] - values[:-1]
    advantage = [sum((0.9 * 0.7) ** (k - t) * delta[k] for k in range(t, 5)) for t in range(5)]
    found = td_lambda(reward, values[1:], never, 0.9, 0.7) - values[:-1]
    assert torch.allclose(found, torch.stack(advantage), atol=1e-6)


def test_targets_bootstrap_after_truncations_and_not_after_terminations(env):
    """With lambda 0 the target of a truncated step has the value of the observation before the reset."""
    shac = learner(env, ts.envs.SHAC(horizon=6, lam=0.0, critic_epochs=1, critic_minibatches=1))
    _, window, _ = shac.collect(shac.reset(), 0)
    transition = window.transition
    assert transition.truncated.any() and transition.terminated.any()
    end = ts.envs.SHAC().gamma * shac.target_critic(
        shac.policy.normalizer(transition.final_observation)
    )
    expected = transition.reward + torch.where(transition.terminated, 0.0, end)
    before = shac.critic(shac.policy.normalizer(window.observation))
    at_end = torch.where(transition.terminated, end / ts.envs.SHAC().gamma, 0.0)
    loss = (before - expected).square().mean() + at_end.square().mean()
    assert torch.allclose(shac.fit_critic(window, 0), loss)


def test_the_gradient_of_shac_is_that_of_differences(env):
    shac = learner(env, ts.envs.SHAC(horizon=6, clip=1e9))
    start = shac.reset()

    def loss():
        return shac.actor_loss(shac.collect(start, 0, 1e9).window)

    assert shac.collect(start, 0).window.transition.done.any()
    weights = list(shac.policy.parameters())
    gradients = torch.autograd.grad(loss(), weights)
    g = torch.Generator().manual_seed(0)
    steps = [1e-6 * torch.randn(x.shape, generator=g, dtype=x.dtype) for x in weights]
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            for x, step in zip(weights, steps, strict=True):
                x.add_(sign * step)
            values.append(loss())
            for x, step in zip(weights, steps, strict=True):
                x.sub_(sign * step)
    slope = sum((x * step).sum() for x, step in zip(gradients, steps, strict=True))
    assert torch.allclose(slope, (values[0] - values[1]) / 2, rtol=1e-6, atol=0)


def test_adjoints_of_environments_are_clipped_one_by_one(env):
    state = env.reset()
    leaf = torch.ones(6, 2, dtype=torch.float64, requires_grad=True)
    physics = state.physics._replace(q=leaf)
    weight = torch.tensor([0.1, 1.0, 10.0, torch.nan, torch.inf, 3.0]).double()
    clipped = clip_adjoint(state._replace(physics=physics), 2.0).physics.q
    (gradient,) = torch.autograd.grad((weight[:, None] * clipped).sum(), leaf)
    norms = torch.tensor([0.1 * 2**0.5, 2**0.5, 2.0, 0.0, 0.0, 2.0]).double()
    assert torch.allclose(gradient.norm(dim=1), norms)
    assert torch.equal(clipped, leaf)


def test_the_ratio_of_ppo_is_one_in_its_first_epoch(env):
    ppo = learner(env, ts.envs.PPO(horizon=6, epochs=1, minibatches=1, rate=0.0, final_rate=0.0))
    with torch.no_grad():
        _, window, _ = ppo.collect(ppo.reset(), 0)
    ratio = (ppo.policy.log_prob(window.observation, window.u) -
             ppo.policy.log_prob(window.observation, window.u).detach()).exp()  # fmt: skip
    advantage, _ = ppo.estimates(window)
    assert abs(advantage.mean()) < 1e-12 and abs(advantage.std(correction=0) - 1) < 1e-6
    # The surrogate is the mean advantage, zero, and its gradient is that of the policy gradient theorem.
    loss = ppo.actor_loss(ratio, advantage.detach()).mean()
    assert abs(loss.item()) < 1e-12
    score = (-advantage.detach() * ppo.policy.log_prob(window.observation, window.u)).mean()
    weight = ppo.policy.mu[0].weight
    found, expected = (torch.autograd.grad(x, weight)[0] for x in (loss, score))
    assert torch.allclose(found, expected)
    measures = ppo.update(ppo.reset(), 0, 0.0).measures
    assert measures["clipped_ratios"] == 0 and abs(measures["actor_loss"]) < 1e-12


def test_adam_is_that_of_pytorch():
    g = torch.Generator().manual_seed(0)
    mine = [torch.randn(n, 3, generator=g, dtype=torch.float64, requires_grad=True) for n in (2, 5)]
    theirs = [x.detach().clone().requires_grad_() for x in mine]
    found = Adam(mine, (0.7, 0.95), eps=1e-5)
    expected = torch.optim.Adam(theirs, betas=(0.7, 0.95), eps=1e-5)
    for k in range(10):
        found.rate = expected.param_groups[0]["lr"] = 0.1 / (k + 1)
        for x, y in zip(mine, theirs, strict=True):
            x.grad, y.grad = x.detach().sin(), y.detach().sin()
        found.step()
        expected.step()
        saved = found.state_dict()
        found = Adam(mine, (0.7, 0.95), eps=1e-5)
        found.load_state_dict(saved)
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-14, atol=0)


def test_running_statistics_are_those_of_all_observations():
    g = torch.Generator().manual_seed(0)
    parts = [5 + 3 * torch.randn(n, 7, 2, generator=g, dtype=torch.float64) for n in (4, 9, 1)]
    normalizer = Normalizer(2, torch.float64)
    for part in parts:
        normalizer.update(part, lambda x: x)
    whole = torch.cat(parts).flatten(0, 1)
    assert torch.allclose(normalizer.mean, whole.mean(0), rtol=1e-4)
    assert torch.allclose(normalizer.var, whole.var(0, correction=0), rtol=1e-4)


def test_noise_does_not_depend_on_the_number_of_processes(env):
    shares = [ts.envs.SHAC(horizon=6).learner(env, 3, Processes(rank, 2)) for rank in (0, 1)]
    whole = learner(env)
    assert torch.equal(torch.cat([x.noise(5) for x in shares], 1), whole.noise(5))
    assert (whole.noise(5) != whole.noise(6)).all()
    index = torch.arange(36).view(6, 6)
    for alone, *both in zip(*(x.minibatches(5, 0, 4) for x in (whole, *shares)), strict=True):
        found = [index[:, 3 * k : 3 * k + 3].flatten()[part] for k, part in enumerate(both)]
        assert torch.equal(torch.cat(found).sort()[0], alone.sort()[0])


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", ["shac", "ppo", "apg"])
def test_a_resumed_run_is_the_uninterrupted_one(algorithm, tmp_path):
    options = SHORT | {"seed": 5, "evaluate": False, "episode_length": 9}
    whole = ts.envs.train(TASK, algorithm, out=tmp_path / "a", updates=6, **options)
    env = ts.envs.make(TASK, 8, seed=5, episode_length=9)
    kind = {"shac": ts.envs.SHAC, "apg": ts.envs.APG, "ppo": ts.envs.PPO}[algorithm]
    run = Run.begin(kind(horizon=4).learner(env, 5, Processes()))
    for k in range(3):  # as if it ended after three of six updates
        run.advance(k / 6)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "settings.json").write_text((tmp_path / "a" / "settings.json").read_text())
    run.save(tmp_path / "b")
    part = ts.envs.train(TASK, algorithm, out=tmp_path / "b", updates=6, resume=True, **options)
    for x, y in zip(whole.state_dict().values(), part.state_dict().values(), strict=True):
        assert torch.equal(x, y)
    assert curve(tmp_path / "a") == curve(tmp_path / "b") and len(curve(tmp_path / "a")) == 6
    contents = [torch.load(tmp_path / x / "checkpoint.pt", weights_only=True) for x in "ab"]
    for x, y in zip(*(pytree.tree_leaves(x["state"]) for x in contents), strict=True):
        assert torch.equal(x, y)


def test_a_finished_run_has_its_files(tmp_path):
    for needed in ("mujoco", "gymnasium", "matplotlib", "viser"):
        pytest.importorskip(needed)
    lines = []
    options = SHORT | {"report": lines.append, "episode_length": 9}
    policy = ts.envs.train(TASK, out=tmp_path, updates=2, **options)
    for name in ("curve.csv", "curve.png", "rollout.gif", "rollout.html", "report.json"):
        assert (tmp_path / name).stat().st_size > 100
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["return"] == report["mujoco"]["nominal"] | report["return"]
    assert len(report["mujoco"]) == 6 and any("in MuJoCo" in line for line in lines)
    x = torch.randn(5, 4, dtype=torch.float64)
    assert torch.equal(ts.envs.load_policy(tmp_path)(x), policy(x))
    assert torch.allclose(torch.jit.load(str(tmp_path / "policy.ts"))(x), policy(x), atol=1e-14)
    with pytest.raises(ts.RobotFileError, match="resume"):
        ts.envs.train(TASK, out=tmp_path, updates=2, **options)
    with pytest.raises(ts.RobotFileError, match="another seed: 0"):
        ts.envs.train(TASK, out=tmp_path, updates=2, resume=True, seed=1, **options)
    sys.path.insert(0, str(tmp_path))
    try:
        import run_policy
    finally:
        sys.path.remove(str(tmp_path))
    assert np.allclose(run_policy.act(x.numpy()), policy(x).detach(), atol=1e-12)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "run_policy.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "position after 1000" in done.stdout


def test_a_policy_is_the_same_function_in_onnx(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    one = torch.ones(2, dtype=torch.float64)
    policy = ts.envs.Policy(-one, 2 * one, 5)
    observations = torch.randn(3, 4, 5, dtype=torch.float64)
    policy.normalizer.update(observations, lambda x: x)
    save_onnx(tmp_path / "policy.onnx", policy)
    model = ReferenceEvaluator(onnx.load(tmp_path / "policy.onnx"))
    found = model.run(None, {"observation": observations[0].numpy()})[0]
    assert np.allclose(found, policy(observations[0]).detach(), atol=1e-12)


def test_mujoco_gives_the_return_of_the_simulation():
    """Both evaluations in MuJoCo: by Gymnasium, and by steps of MuJoCo in place of ours."""
    pytest.importorskip("gymnasium")
    env = ts.envs.make(TASK, episode_length=40, reset_noise_scale=0.05)
    gains = torch.tensor([[1.0, 12.0, 1.5, 2.5]], dtype=torch.float64)

    def policy(x):
        return 0.3 * x @ gains.T

    here = evaluate(env, policy, 3)
    assert (here.length == 40).all()

    class Tilted(type(env.task)):
        """A reward that depends on the state."""

        name = ""

        def reward(self, world, step):
            return 1 - step.after.q.square().sum() - step.action.square().sum()

    other = ts.envs.make(Tilted(episode_length=40, reset_noise_scale=0.05))
    here = evaluate(other, policy, 3)
    there, heavy, late = _by_mujoco(
        other, policy, 3, 0, [Change(), Change(mass=1.5), Change(delay=2)]
    )
    assert torch.allclose(here.total, there.total, rtol=1e-9)
    assert (heavy.total != there.total).all() and (late.total != there.total).all()
    (found,) = evaluate_in_mujoco(env, policy, 2)
    assert found.total.tolist() == [40.0, 40.0]


@pytest.mark.nightly
def test_an_evaluation_in_mujoco_has_the_terrain_of_each_start():
    env = ts.envs.make("QuadrupedRough", 2)
    params = env.reset().params
    places = torch.tensor([[0.0, 0.0], [1.234, -2.468], [-4.5, 3.3]], dtype=torch.float64)
    for row, model in enumerate(_models(env, params, 2, [Change()])):
        world = env._kernels.world(env.mech, {HEIGHTS: params[HEIGHTS][row]})
        data = mujoco.MjData(model)
        data.qpos[0] = 5.5  # away from the rays
        mujoco.mj_forward(model, data)
        geom, down = np.zeros(1, dtype=np.int32), np.array([0.0, 0.0, -1.0])
        for (x, y), height in zip(
            places.tolist(), blocks.terrain_heights(world, places).tolist(), strict=True
        ):
            distance = mujoco.mj_ray(model, data, np.array([x, y, 5.0]), down, None, 1, -1, geom)
            assert abs(5.0 - distance - height) < 1e-3
    assert not torch.equal(*params[HEIGHTS])


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ts.TorchskoError, match="shac"):
        ts.envs.train(TASK, "sac", out=tmp_path)
    with pytest.raises(ts.TorchskoError, match="horizn"):
        ts.envs.train(TASK, out=tmp_path, horizn=4)
    with pytest.raises(ts.RobotFileError, match="policy"):
        ts.envs.load_policy(tmp_path)
    with pytest.raises(ts.ShapeError, match="3 processes"):
        Processes(0, 3).share(8)


def command(*words, processes=1):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *(torchrun if processes > 1 else ()), "-m", "torchsko", *words],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["shac", "ppo"])
def test_two_processes_give_the_curve_of_one(algorithm, tmp_path):
    words = ["train", TASK, "--algo", algorithm, "--seed", "7", "--updates", "4", "--num-envs", "8"]
    words += ["--set", "horizon=8", "--set", "episode_length=20"]
    for count, name in ((1, "one"), (2, "two")):
        done = command(*words, "--out", str(tmp_path / name), processes=count)
        assert done.returncode == 0, done.stderr
    one, two = (curve(tmp_path / name) for name in ("one", "two"))
    for x, y in zip(one, two, strict=True):
        for name in x:
            a, b = float(x[name]), float(y[name])
            assert a == pytest.approx(b, rel=1e-8, abs=1e-10, nan_ok=True), name
    done = command("play", str(tmp_path / "two"), "--gif", str(tmp_path / "a.gif"))
    assert done.returncode == 0, done.stderr
    assert "return" in done.stdout and (tmp_path / "a.gif").stat().st_size > 1000


@pytest.mark.nightly
def test_shac_learns_to_hop(tmp_path):
    options = {"seed": 1, "minutes": 1, "report": None}
    ts.envs.train("Hopper-v5", out=tmp_path, clock=time.process_time, **options)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["return"]["mean"] > 1000
    assert report["mujoco"]["nominal"]["mean"] > 0.9 * report["return"]["mean"]
