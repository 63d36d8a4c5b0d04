from functools import cache

import pytest
import torch
from torch.utils import _pytree as pytree

import torchsko as ts
from torchsko.envs.environment import select
from torchsko.fused.functions import lazy_kernel


@cache
def pendulums(num_envs=6, **options):
    """Pendulums whose episodes are short and whose start is wide."""
    options = {"episode_length": 7, "reset_noise_scale": 0.1, **options}
    return ts.envs.make("InvertedPendulum-v5", num_envs=num_envs, **options)


def actions(env, steps, n=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    return 3 * torch.rand(steps, n, env.action_size, generator=g, dtype=torch.float64) - 1.5


def run(env, state, controls):
    transitions = []
    for action in controls:
        state, transition = env.step(state, action)
        transitions.append(transition)
    return state, transitions


def assert_equal(x, y):
    for a, b in zip(pytree.tree_leaves(x), pytree.tree_leaves(y), strict=True):
        assert torch.equal(a, b)


def rows(tree, index):
    return pytree.tree_map(lambda x: x[index], tree)


@pytest.mark.parametrize("autoreset", ["same-step", "next-step", "off"])
def test_environments_do_not_depend_on_their_batch(autoreset):
    env = pendulums(autoreset=autoreset)
    controls = actions(env, 20)
    whole, transitions = run(env, env.reset(), controls)
    part, of_part = run(env, env.reset(2, first=3), controls[:, 3:5])
    assert_equal(part, rows(whole, slice(3, 5)))
    assert_equal(of_part, [rows(x, slice(3, 5)) for x in transitions])


def test_a_seed_determines_all_episodes_and_another_one_gives_others():
    env = pendulums()
    controls = actions(env, 20)
    first, second = (run(env, env.reset(), controls)[0] for _ in range(2))
    assert_equal(first, second)
    assert (first.episode > 1).all()
    other = env.reset(seed=1)
    assert (other.physics.q != env.reset().physics.q).all()
    assert_equal(other, pendulums(seed=1).reset())
    generator = torch.Generator().manual_seed(5)
    assert not torch.equal(env.reset(generator=generator).key, env.reset(generator=generator).key)


def test_same_step_resets_give_the_first_observation_of_the_next_episode():
    env = pendulums()
    state, transitions = run(env, env.reset(), actions(env, 7))
    last = transitions[-1]
    assert last.truncated.any() and not last.truncated.all()  # some fell before
    assert (state.age[last.done] == 0).all() and (state.age[~last.done] > 0).all()
    assert_equal(last.observation, torch.cat([state.physics.q, state.physics.qd], -1))
    fresh = env.restart(state, torch.ones(6, dtype=torch.bool))
    assert (fresh.observation != state.observation).any(-1).all()
    changed = (last.observation != last.final_observation).any(-1)
    assert torch.equal(changed, last.done)


def test_next_step_resets_ignore_the_action_and_have_no_reward():
    env = pendulums(autoreset="next-step")
    controls = actions(env, 8)
    state, transitions = run(env, env.reset(), controls)
    ended = transitions[-2].done
    assert ended.any() and not ended.all()
    last = transitions[-1]
    assert (last.reward[ended] == 0).all() and not last.done[ended].any()
    assert (state.age[ended] == 0).all()
    # It is the episode that a reset in the same step begins.
    other = pendulums()
    same, _ = run(other, other.reset(), controls[:7])
    keep = ended & (same.episode == state.episode)
    assert keep.any() and torch.equal(state.observation[keep], same.observation[keep])


def test_without_resets_a_mask_restarts_environments():
    env = pendulums(autoreset="off")
    state, transitions = run(env, env.reset(), actions(env, 9))
    assert transitions[-1].truncated.all() and (state.episode == 0).all()
    mask = torch.tensor([True, False] * 3)
    after = env.restart(state, mask)
    assert_equal(rows(after, ~mask), rows(state, ~mask))
    assert (after.age[mask] == 0).all() and (after.episode[mask] == 1).all()


@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
def test_resets_do_not_depend_on_whether_the_ends_of_episodes_can_be_read(autoreset):
    env = pendulums(autoreset=autoreset)
    start, _ = run(env, env.reset(), actions(env, 5))
    controls = actions(env, 3)
    state, transitions = run(env, start, controls)
    assert (state.episode > start.episode).any()
    hidden = torch.func.vmap(lambda x: run(env, start, x))(controls[None])
    assert_equal(rows(hidden, 0), (state, transitions))


def test_float32_has_the_same_random_numbers_and_nearly_the_same_steps():
    single, double = pendulums(dtype=torch.float32), pendulums()
    controls = actions(double, 5)
    found, few = run(single, single.reset(), controls.float())
    expected, many = run(double, double.reset(), controls)
    assert torch.equal(found.key, expected.key) and found.observation.dtype == torch.float32
    assert torch.allclose(found.observation.double(), expected.observation, atol=1e-4)
    assert torch.equal(few[-1].done, many[-1].done)


def test_random_ages_spread_over_the_episode():
    env = pendulums(episode_length=50)
    age = env.reset(2000, random_ages=True).age
    assert int(age.min()) == 0 and int(age.max()) == 49
    assert abs(float(age.double().mean()) - 24.5) < 1.5


def test_a_diverged_environment_is_reset_counted_and_left_out_of_gradients():
    env = pendulums(episode_length=100)
    state = env.reset()
    qd = state.physics.qd.clone()
    qd[2] = torch.inf
    state = state._replace(physics=state.physics._replace(qd=qd))
    gain = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    after, transition = env.step(state, gain.expand(6, 1))
    assert transition.diverged.tolist() == [k == 2 for k in range(6)]
    assert transition.terminated[2] and transition.reward[2] == 0 and not transition.truncated[2]
    assert torch.equal(transition.final_observation[2], state.observation[2])
    assert after.num_diverged.tolist() == [0, 0, 1, 0, 0, 0] and after.age[2] == 0
    assert all(x.isfinite().all() for x in pytree.tree_leaves(after) if x.is_floating_point())
    (gradient,) = torch.autograd.grad(after.physics.qd.sum(), gain)
    others = state._replace(physics=rows(state.physics, torch.arange(6) != 2))
    others = pytree.tree_map(lambda x: x[torch.arange(6) != 2] if len(x) == 6 else x, others)
    (expected,) = torch.autograd.grad(env.step(others, gain.expand(5, 1))[0].physics.qd.sum(), gain)
    assert torch.allclose(gradient, expected) and gradient != 0


@pytest.mark.parametrize(
    "name", ["InvertedPendulum-v5", pytest.param("Hopper-v5", marks=pytest.mark.nightly)]
)
def test_the_gradient_through_an_episode_is_that_of_differences(name):
    env = ts.envs.make(name, num_envs=2)
    start = env.reset()
    shape = 10, 2, env.action_size
    base = 0.3 * torch.sin(torch.arange(shape[0] * shape[1] * shape[2], dtype=torch.float64))
    base = base.reshape(shape)

    def score(controls):
        _, transitions = run(env, start, controls)
        return sum(x.reward.sum() + x.observation.sin().sum() for x in transitions)

    controls = base.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(score(controls), controls)
    step = 1e-6 * base.cos()
    difference = (score(base + step) - score(base - step)) / 2
    assert torch.allclose((gradient * step).sum(), difference, rtol=1e-6, atol=0)


def test_the_gradient_is_cut_at_a_reset():
    env = pendulums(num_envs=2, episode_length=1)
    action = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    _, transition = env.step(env.reset(), action)
    assert (torch.autograd.grad(transition.final_observation.sum(), action)[0] != 0).all()
    _, transition = env.step(env.reset(), action)
    assert not torch.autograd.grad(transition.observation.sum(), action)[0].any()


def test_a_new_process_does_not_trace_the_steps_of_a_task_again(monkeypatch):
    def stepped(env):
        action = torch.full((6, 1), 0.3, dtype=torch.float64, requires_grad=True)
        _, transition = env.step(env.reset(), action)
        (gradient,) = torch.autograd.grad(transition.observation.sum(), action)
        return transition.observation, gradient

    first = stepped(pendulums())
    monkeypatch.setattr(lazy_kernel, "trace", None)
    pendulums.cache_clear()
    assert_equal(stepped(pendulums()), first)
    with pytest.raises(TypeError, match="NoneType"):
        stepped(pendulums(reset_noise_scale=0.2))


def test_actions_are_checked():
    env = pendulums()
    state = env.reset()
    with pytest.raises(ts.ShapeError, match=r"action .* \[6, 2\].*"):
        env.step(state, torch.zeros(6, 2, dtype=torch.float64))
    with pytest.raises(ts.ShapeError, match="float32"):
        env.step(state, torch.zeros(6, 1))
    action = torch.zeros(6, 1, dtype=torch.float64)
    action[[1, 4]] = torch.nan
    with pytest.raises(ts.NonFiniteError, match="2 environments is not finite: 1, 4"):
        env.step(state, action)
    action[[1, 4]] = 4.0
    state, transition = env.step(state, action)
    assert transition.clipped.nonzero()[:, 0].tolist() == [1, 4]
    assert state.num_clipped.tolist() == [0, 1, 0, 0, 1, 0]
    with pytest.raises(ts.ShapeError, match="mask"):
        env.restart(state, torch.zeros(5, dtype=torch.bool))


def test_make_names_what_is_wrong():
    with pytest.raises(ts.TorchskoError, match="Hopper-v5"):
        ts.envs.make("hopper")
    with pytest.raises(ts.TorchskoError, match="reset_noise_scale"):
        ts.envs.make("Hopper-v5", reset_noise=0.1)
    with pytest.raises(ts.TorchskoError, match="same-step"):
        ts.envs.make("Hopper-v5", autoreset="next_step")
    with pytest.raises(ts.ShapeError, match="num_envs"):
        ts.envs.make("Hopper-v5", num_envs=0)


def test_make_refuses_a_robot_with_elements_that_are_not_modeled(tmp_path):
    text = """<mujoco><compiler autolimits="true"/><worldbody>
      <geom name="pillar" type="cylinder" size=".1 .1"/>
      <body pos="0 0 1"><joint name="x" type="slide" range="0 1"/>
        <geom name="can" type="cylinder" size=".1 .1" mass="1"/></body></worldbody>
      <actuator><muscle name="biceps" joint="x" lengthrange="0 1"/></actuator></mujoco>"""
    (tmp_path / "robot.xml").write_text(text)
    with pytest.warns(ts.RobotFileWarning), pytest.raises(ts.MechanismError) as error:
        ts.envs.make("InvertedPendulum-v5", model=str(tmp_path / "robot.xml"))
    assert "biceps" in str(error.value) and "can" in str(error.value)


def test_states_are_trees_of_tensors_that_files_keep(tmp_path):
    env = pendulums()
    state, _ = run(env, env.reset(), actions(env, 3))
    torch.save(state, tmp_path / "state.pt")
    assert_equal(torch.load(tmp_path / "state.pt", weights_only=True), state)
    mixed = select(torch.tensor([True] * 3 + [False] * 3), env.reset(), state)
    assert_equal(rows(mixed, slice(0, 3)), rows(env.reset(), slice(0, 3)))
