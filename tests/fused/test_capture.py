"""What a fused function reads from outside of its arguments is an input, or is refused: never stale."""

import copy
import functools
import random
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchsko as ts
from tests.fused.carts import driven
from torchsko.control import Task, impedance
from torchsko.errors import CompilerError, FusedError
from torchsko.fused import workshop
from torchsko.fused.calls import kernel

DEFAULT = torch.tensor(3.0)
DAMPED = ("damped", 0.1)
GLOBAL_GAIN = torch.tensor(1.5, dtype=torch.float64)


def mlp(seed=0, *activations):
    g = torch.Generator().manual_seed(seed)
    layers = []
    for activation in activations or (nn.Tanh(),):
        layers += [nn.Linear(4 if not layers else 3, 3), activation]
    net = nn.Sequential(*layers, nn.Linear(3, 2)).double()
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=g, dtype=p.dtype)
    return net


class Step(nn.Module):
    """A module that fuses a method of its own, which reads a policy that it owns."""

    def __init__(self, mech):
        super().__init__()
        self.policy = mlp()
        self.fast = ts.fuse(self.one, mech)

    def one(self, mech, q, qd):
        return driven(self.policy)(mech, q, qd)

    def forward(self, q, qd):
        return self.fast(q, qd)


def gradients(fn, states, policy):
    leaves = [x.detach().clone().requires_grad_() for x in states]
    y = fn(*leaves)
    return y, torch.autograd.grad(y.sin().sum(), [*leaves, *policy.parameters()])


def assert_same(fast, eager, states, policy):
    mine, theirs = gradients(fast, states, policy), gradients(eager, states, policy)
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-11)


def test_a_policys_weights_have_gradients_and_are_read_anew(slider, states):
    policy = mlp()
    step = driven(policy)
    fast, eager = ts.fuse(step, slider), functools.partial(step, slider)
    assert_same(fast, eager, states, policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    before = fast(*states)
    fast(*states).sum().backward()
    optimizer.step()
    assert (fast(*states) - before).abs().max() > 1e-4
    assert_same(fast, eager, states, policy)
    policy.load_state_dict(mlp(1).state_dict())
    assert_same(fast, eager, states, policy)
    policy.load_state_dict(mlp(2).state_dict(), assign=True)
    assert_same(fast, eager, states, policy)
    policy[0].weight = nn.Parameter(mlp(3)[0].weight.detach())
    assert_same(fast, eager, states, policy)
    policy[0].weight.data = mlp(4)[0].weight.data
    assert_same(fast, eager, states, policy)


def test_functional_calls_and_ensembles_reach_the_weights(slider, states):
    """A module is called with other weights, and with several at once."""

    step = Step(slider)
    several = [dict(mlp(seed).named_parameters(prefix="policy")) for seed in (5, 6)]
    stacked = {name: torch.stack([w[name] for w in several]).detach() for name in several[0]}

    def loss(weights):
        return torch.func.functional_call(step, weights, states).sin().sum()

    policy = mlp()

    def eager(weights):
        weights = {name.removeprefix("policy."): w for name, w in weights.items()}

        def call(x):
            return torch.func.functional_call(policy, weights, (x,))

        return driven(call)(slider, *states).sin().sum()

    mine = torch.func.vmap(torch.func.grad(loss))(stacked)
    theirs = [torch.func.grad(eager)({k: w[i] for k, w in stacked.items()}) for i in range(2)]
    for name, gradient in mine.items():
        expected = torch.stack([each[name] for each in theirs])
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-11)


def test_closures_globals_defaults_and_containers_are_read_anew(slider, states, monkeypatch):
    w = torch.tensor([1.0, 2.0], dtype=torch.float64)
    held = {"gains": [torch.tensor(0.5, dtype=torch.float64)]}

    def fn(mech, q, qd, *, by=DEFAULT):
        return w * q + GLOBAL_GAIN * qd + held["gains"][0] * by

    fast = ts.fuse(fn, slider)

    def check():
        torch.testing.assert_close(fast(*states), fn(slider, *states), rtol=1e-14, atol=1e-14)

    check()
    w = torch.tensor([-1.0, 4.0], dtype=torch.float64)
    check()
    w.mul_(2)
    held["gains"][0] = torch.tensor(7.0, dtype=torch.float64)
    monkeypatch.setitem(globals(), "GLOBAL_GAIN", torch.tensor(-2.5, dtype=torch.float64))
    check()


class Feedback:
    scale = torch.tensor(2.0, dtype=torch.float64)

    def __init__(self):
        self.gain = torch.tensor(3.0, dtype=torch.float64)

    @property
    def doubled(self):
        return 2 * self.gain

    def law(self, mech, q, qd):
        return -self.doubled * q - self.scale * qd


def test_bound_methods_and_their_classes_are_read_anew(slider, states, monkeypatch):
    feedback = Feedback()
    fast = ts.fuse(feedback.law, slider)
    torch.testing.assert_close(fast(*states), feedback.law(slider, *states))
    feedback.gain = torch.tensor(5.0, dtype=torch.float64)
    monkeypatch.setattr(Feedback, "scale", torch.tensor(0.1, dtype=torch.float64))
    torch.testing.assert_close(fast(*states), feedback.law(slider, *states))


def test_a_module_is_a_function_too(slider, states):
    class Law(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(2, dtype=torch.float64))

        def forward(self, mech, q, qd):
            return self.gain * q - qd

    law = Law()
    assert_same(ts.fuse(law, slider), lambda q, qd: law(slider, q, qd), states, law)


def test_derivatives_within_the_function_reach_captured_tensors(slider, states):
    policy = mlp()

    def slope(mech, q, qd):
        def value(q):
            return policy(torch.cat([q, qd], -1)).square().sum()

        return torch.func.grad(value)(q)

    eager = torch.func.vmap(functools.partial(slope, slider))
    assert_same(ts.fuse(slope, slider), eager, states, policy)


def test_second_derivatives_reach_captured_tensors(slider, states):
    policy = mlp()
    step = driven(policy)

    def curvature(fn):
        y = fn(*states)
        weights = list(policy.parameters())
        first = torch.autograd.grad(y.sin().sum(), weights, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), weights)

    mine, theirs = curvature(ts.fuse(step, slider)), curvature(functools.partial(step, slider))
    torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


def test_without_a_compiler_captured_tensors_are_read_anew_too(slider, states, monkeypatch):
    def none(*args):
        raise CompilerError("no C++ compiler")

    monkeypatch.setattr(kernel, "find_toolchain", none)
    policy = mlp()
    step = driven(policy)
    fast, eager = ts.fuse(step, slider), functools.partial(step, slider)
    with pytest.warns(UserWarning, match="eager"):
        assert_same(fast, eager, states, policy)
        policy[0].weight = nn.Parameter(mlp(3)[0].weight.detach())
        assert_same(fast, eager, states, policy)


def test_a_layer_that_the_function_closes_over_learns(slider, states):
    layer = ts.Dynamics(slider, learn={"cart.mass": ts.learn.Positive()})

    def fn(mech, q, qd):
        return layer.inverse_dynamics(q, qd, 0 * qd)

    fast = ts.fuse(fn, slider)
    assert_same(fast, functools.partial(fn, slider), states, layer)
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.3
    assert_same(fast, functools.partial(fn, slider), states, layer)


@pytest.mark.parametrize(
    "given", [lambda layer: layer, pytest.param(ts.fuse, marks=pytest.mark.nightly)]
)
def test_a_function_fused_for_a_layer_reads_it_at_each_call(slider, states, given):
    """What learns has gradients and moves on; what else the layer, or its kernels, hold may change, too."""
    layer = ts.Dynamics(slider, {"cart.mass": ts.learn.Positive()}, fused=False)

    def fn(mech, q, qd):
        return ts.bias_force(mech, q, qd) + ts.mass_matrix(mech, q)[..., 0]

    def eager(q, qd):
        return fn(layer.mechanism(), q, qd)

    fast = ts.fuse(fn, given(layer))
    assert_same(fast, eager, states, layer)
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.3
    assert_same(fast, eager, states, layer)
    apart, held = copy.deepcopy(fast), fast(*states)
    layer.start.gravity.mul_(0.5)
    assert_same(fast, eager, states, layer)
    start = ts.Dynamics(slider, {"cart.mass": ts.learn.Positive()}, fused=False)
    layer.load_state_dict(start.state_dict())
    for other in (fast, copy.copy(fast), ts.fuse(lambda mech, q, qd: fast(q, qd), slider)):
        torch.testing.assert_close(other(*states), eager(*states))
    torch.testing.assert_close(apart(*states), held)


def test_a_layers_parameter_that_is_named_as_an_input_is_read_at_each_call(slider, states):
    """It was read once: an optimizer's step did not reach the kernel."""
    layer = ts.Dynamics(slider, {"cart.mass": ts.learn.Positive()}, fused=False)
    fast = ts.fuse(lambda mech, q: ts.mass_matrix(mech, q), layer, inputs=("mass",))
    for _ in range(2):
        torch.testing.assert_close(fast(states[0]), ts.mass_matrix(layer.mechanism(), states[0]))
        with torch.no_grad():
            for p in layer.parameters():
                p += 0.3


def test_a_fused_function_of_a_policy_compiles_whole(slider, states):
    policy = mlp()
    fast = ts.fuse(driven(policy), slider)
    compiled = torch.compile(lambda q, qd: fast(q, qd), fullgraph=True, backend="aot_eager")
    assert_same(compiled, fast, states, policy)
    policy[0].weight = nn.Parameter(mlp(7)[0].weight.detach())
    assert_same(compiled, fast, states, policy)


# -- what must be refused ----------------------------------------------------------------------------


def dropout(mech, q, qd):
    return nn.functional.dropout(q, 0.5)


def bernoulli(mech, q, qd):
    return torch.bernoulli(torch.full_like(q, 0.5)) * qd


def normal(mech, q, qd):
    return q + torch.randn(2, dtype=q.dtype)


def inherited(mech, q, qd):
    return mech.random_state()[0]


@pytest.mark.parametrize(
    ("fn", "word"), [(dropout, "dropout"), (bernoulli, "bernoulli"), (normal, "randn"), (inherited, "rand")]
)  # fmt: skip
def test_random_draws_are_refused_by_name(slider, fn, word):
    with pytest.raises(FusedError, match=rf"{word}.*\n.*repeat the numbers"):
        ts.fuse(fn, slider)


GENERATOR = np.random.default_rng(0)
DRAW = np.random.default_rng(0).normal  # a function of Cython, whose class has no name of a module


class Noisy:
    def __init__(self):
        self.own = random.Random(0)

    def __call__(self, mech, q, qd):
        return q * self.own.random()


class Random:
    def __init__(self):
        self.random = np.random.default_rng(0)  # by the name of a module

    def __call__(self, mech, q, qd):
        return q * self.random.normal()


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda mech, q, qd: q * random.random(), "random"),
        (lambda mech, q, qd: q * float(np.random.rand()), r"numpy\.random"),
        (lambda mech, q, qd: q + torch.from_numpy(GENERATOR.normal(size=2)), "GENERATOR"),
        (Noisy(), "own"),
        (Random(), "random"),
        (lambda mech, q, qd: q * DRAW(), "DRAW"),
    ],
)
def test_draws_of_python_and_of_numpy_are_refused_by_the_generators_name(slider, fn, name):
    with pytest.raises(FusedError, match=rf"^{name} draws random numbers.*\n.*repeat the numbers"):
        ts.fuse(fn, slider)


def test_draws_of_another_thread_are_ignored(slider, states):
    done = threading.Event()

    def draws():
        while not done.is_set():
            random.random()
            np.random.rand()

    def doubled(mech, q, qd):
        time.sleep(0.02)  # the other thread's turn
        return 2 * q

    thread = threading.Thread(target=draws)
    thread.start()
    try:
        fast = ts.fuse(doubled, slider)
        with pytest.raises(FusedError, match="draws random numbers"):
            ts.fuse(lambda mech, q, qd: q * random.random(), slider)
    finally:
        done.set()
        thread.join()
    torch.testing.assert_close(fast(*states), 2 * states[0])


def test_a_function_may_draw_what_it_sets_up_once(slider, states):
    gains = []

    def sets_up(mech, q, qd):
        if not gains:
            gains.append(random.Random(3).random() + random.random())
        return gains[0] * q

    fast = ts.fuse(sets_up, slider)
    torch.testing.assert_close(fast(*states), gains[0] * states[0])


def test_dropout_draws_in_training_only(slider, states):
    policy = mlp(0, nn.Dropout(0.5))
    with pytest.raises(FusedError, match="dropout"):
        ts.fuse(driven(policy), slider)
    policy.eval()
    fast = ts.fuse(driven(policy), slider)
    torch.testing.assert_close(fast(*states), driven(policy)(slider, *states))
    policy.train()
    with pytest.raises(FusedError, match="dropout draws"):
        fast(*states)
    policy.eval()
    torch.testing.assert_close(fast(*states), driven(policy)(slider, *states))


def test_the_mode_of_layers_that_do_not_read_it_may_change(slider, states):
    policy = mlp()
    fast = ts.fuse(driven(policy), slider)
    policy.eval()
    torch.testing.assert_close(fast(*states), driven(policy)(slider, *states))


def test_an_activation_that_is_replaced_is_followed(slider, states, caplog):
    policy = mlp()
    fast = ts.fuse(driven(policy), slider)
    fast(*states)
    policy[1] = nn.ReLU()
    assert_same(fast, driven(policy).__get__(slider), states, policy)
    (message,) = caplog.messages
    assert "policy.1 has changed" in message


def twice(fn, x):
    return 2.0 * fn(x)


HOOKS = {
    "forward hook": lambda m: m.register_forward_hook(lambda m, args, y: 2.0 * y),
    "hook before": lambda m: m.register_forward_pre_hook(lambda m, args: (2.0 * args[0],)),
    "backward hook": lambda m: m.register_full_backward_hook(lambda m, gi, go: gi),
    "backward hook before": lambda m: m.register_full_backward_pre_hook(lambda m, go: go),
    "forward": lambda m: setattr(m, "forward", functools.partial(twice, m.forward)),
}


@pytest.mark.parametrize(
    ("where", "hook"),
    [
        # By day each in one place, in turn.
        pytest.param(where, hook, marks=[pytest.mark.nightly] if (k + j) % 2 else [])
        for j, where in enumerate(("all of it", "a part"))
        for k, hook in enumerate(HOOKS)
    ],
)
def test_a_hook_that_comes_or_goes_is_followed(slider, states, caplog, hook, where):
    policy = mlp()
    fast = ts.fuse(driven(policy), slider)
    before = fast(*states)
    module = policy if where == "all of it" else policy[1]
    handle = HOOKS[hook](module)
    torch.testing.assert_close(fast(*states), driven(policy)(slider, *states))
    assert "hooks" in caplog.text or hook == "forward" or "backward" in hook
    if "backward" in hook:  # it sees gradients alone
        with pytest.raises(FusedError, match="a backward hook of a module"):
            gradients(fast, states, policy)
    vars(module).pop("forward", None) if handle is None else handle.remove()
    assert torch.equal(fast(*states), before)


def test_a_policy_that_is_replaced_is_followed(slider, states):
    policy = mlp()

    def step(mech, q, qd):
        return policy(torch.cat([q, qd], -1))

    fast = ts.fuse(step, slider)
    fast(*states)
    policy = mlp(1)
    assert_same(fast, step.__get__(slider), states, policy)


def test_weights_of_another_shape_are_noticed(slider, states):
    gain = torch.ones(2, dtype=torch.float64)

    def fn(mech, q, qd):
        return gain * q

    fast = ts.fuse(fn, slider)
    gain = torch.ones(4, 2, dtype=torch.float64)
    with pytest.raises(FusedError, match="gain is now"):
        fast(*states)


def test_ties_that_are_cut_are_followed(slider, states):
    first = second = torch.ones(2, dtype=torch.float64)

    def fn(mech, q, qd):
        return first * q + second * qd

    fast = ts.fuse(fn, slider)
    fast(*states)
    second = 2 * first
    torch.testing.assert_close(fast(*states), fn(slider, *states))


def test_integers_are_constants_and_followed(slider, states):
    order = torch.tensor([1, 0])

    def fn(mech, q, qd):
        return q[..., order]

    fast = ts.fuse(fn, slider)
    assert torch.equal(fast(*states), states[0][..., [1, 0]])
    compiled = torch.compile(lambda q, qd: fast(q, qd), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*states), fast(*states))
    order.copy_(torch.tensor([0, 1]))
    with pytest.raises((FusedError, RuntimeError), match="order has changed"):
        compiled(*states)
    assert torch.equal(fast(*states), states[0])


def test_another_mechanisms_numbers_are_constants_unless_they_learn(slider, states):
    other = slider.replace(mass=2 * slider.mass)

    def fn(mech, q, qd):
        return ts.mass_matrix(other, q)

    fast = ts.fuse(fn, slider)
    torch.testing.assert_close(fast(*states), ts.mass_matrix(other, states[0]))
    other = slider
    torch.testing.assert_close(fast(*states), ts.mass_matrix(slider, states[0]))
    mass = slider.mass.clone()
    other = slider.replace(mass=mass)
    fast(*states)
    mass.requires_grad_()
    mine = torch.autograd.grad(fast(*states).sin().sum(), mass)
    theirs = torch.autograd.grad(fn(slider, *states).sin().sum(), mass)
    torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("read", ["the tensor", "a robot of it", "its neighbor in memory"])
def test_what_the_mechanism_is_given_may_be_read_besides(slider, states, read):
    """As an input of the kernels it is no constant of the function, nor is what lies beside it."""

    def gradient(call):
        x = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
        mass, gain = x[:2], x[2]
        own = slider.replace(mass=mass)

        def fn(mech, q, qd):
            of_robot = read == "a robot of it"
            by = ts.bias_force(own, q, qd) if of_robot else mass if "tensor" in read else gain
            return ts.forward_dynamics(mech, q, qd, -by * qd)

        return torch.autograd.grad(call(fn, own).sin().sum(), x)[0]

    mine = gradient(lambda fn, mech: ts.fuse(fn, mech, inputs=("mass",))(*states))
    theirs = gradient(lambda fn, mech: fn(mech, *states))
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_the_neighbor_of_a_constant_in_memory_is_read_anew(slider, states):
    x = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    mech, gain = slider.replace(mass=x[:2]), x[2]

    def fn(mech, q, qd):
        return ts.forward_dynamics(mech, q, qd, -gain * qd)

    fast = ts.fuse(fn, mech)
    for _ in range(2):
        torch.testing.assert_close(fast(*states), fn(mech, *states), rtol=1e-12, atol=1e-12)
        gain.mul_(3)


GIVEN = (
    "a robot",
    "a robot's law",
    "kernels",
    "a layer",
    "a layer's motion",
    "a layer's robot",
    "a function",
)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        # By day each in one type, in turn.
        pytest.param(x, dtype, marks=[pytest.mark.nightly] if (k + j) % 2 else [])
        for k, x in enumerate(GIVEN)
        for j, dtype in enumerate((torch.float64, torch.float32))
    ],
)
def test_what_has_kernels_may_be_called_within(slider, states, given, dtype):
    """Its source is part of the function's kernel; values are read anew, gradients reach its parameters.

    Expressions of a trace are float64, whatever its kernel computes in.
    """
    slider, (q, qd) = slider.to(dtype), [x.to(dtype) for x in states]
    mass = slider.mass.clone().requires_grad_()
    layer = ts.Dynamics(slider, {"cart": ts.learn.InertiaLogCholesky()}, fused=True)
    fused = ts.fuse(slider, inputs=("mass",)).replace(mass=mass)
    bias = ts.fuse(lambda mech, q, qd: mass * ts.bias_force(mech, q, qd), slider)
    heavier = slider.replace(mass=2 * slider.mass)
    task = [Task(slider.frame_names[-1], (None, torch.tensor([0.5, 0.1, 0.4], dtype=dtype)))]
    hold = {
        "a robot": lambda q, qd: mass * ts.bias_force(heavier, q, qd),
        "a robot's law": lambda q, qd: (
            1e-3 * mass * impedance(heavier, q, qd, task, singular=DAMPED)
        ),
        "kernels": lambda q, qd: ts.bias_force(fused, q, qd),
        "a layer": layer.bias_force,
        "a layer's motion": lambda q, qd: layer(q, qd, -q),
        "a layer's robot": lambda q, qd: ts.bias_force(layer.mechanism(), q, qd),
        "a function": bias,
    }[given]
    own = layer.parameters() if "a layer" in given else [mass]

    def fn(mech, q, qd):
        return ts.forward_dynamics(mech, q, qd, hold(q, qd) - qd)

    fast, leaves = ts.fuse(fn, slider), list(own)
    close = (
        {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    )
    for change in (0.0, 0.1):
        with torch.no_grad():
            for x in leaves:
                x.add_(change)
            layer.start.gravity.mul_(1 + change)
        found = [f(q, qd) for f in (fast, lambda q, qd: fn(slider, q, qd))]
        torch.testing.assert_close(*found, **close)
        grads = [torch.autograd.grad(y.sin().sum(), leaves) for y in found]
        torch.testing.assert_close(*grads, **close)


def test_inputs_of_a_robot_in_single_precision_reach_functions_and_laws(slider, states):
    slider, (q, qd) = slider.float(), [x.float() for x in states]
    mass = slider.mass.clone().requires_grad_()
    gain = torch.ones(2, requires_grad=True)
    law = lambda t, q, qd: -gain * qd  # noqa: E731
    step = ts.fuse(
        lambda mech, q, qd: ts.forward_dynamics(mech, q, qd, law(0, q, qd)),
        slider,
        inputs=("mass",),
    )
    fused, robot = ts.fuse(slider, inputs=("mass",)).replace(mass=mass), slider.replace(mass=mass)
    pairs = [
        (step.replace(mass=mass)(q, qd), ts.forward_dynamics(robot, q, qd, law(0, q, qd))),
        [
            ts.rollout(x, ts.State(q, qd), law, steps=4, dt=1e-2, fused=x is fused).qd
            for x in (fused, robot)
        ],
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        grads = [torch.autograd.grad(y.square().sum(), (mass, gain)) for y in (found, expected)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_kernels_within_laws_outlive_other_laws(slider, states, monkeypatch):
    """They keep kernels of a few laws, which come and go: no law is to depend on another's."""
    monkeypatch.setattr(workshop, "_RECENT", 2)
    fast, gain = ts.fuse(slider), torch.tensor(2.0, dtype=torch.float64)
    laws = [lambda t, q, qd, k=k: fast.gravity_force(q) - gain * qd - k for k in range(4)]
    expected = ts.rollout(slider, ts.State(*states), laws[1], steps=2)[:2]
    for k in (0, 1, 2, 1, 3, 1):
        found = ts.rollout(fast, ts.State(*states), laws[k], steps=2, fused=True)[:2]
        if k == 1:
            torch.testing.assert_close(found, expected)


def test_a_law_that_a_loop_makes_anew_is_told_once(slider, states, caplog):
    fast, gain = ts.fuse(slider), torch.tensor(2.0, dtype=torch.float64)

    def made(k):
        return lambda t, q, qd: -gain * qd - k

    law = made(0.0)
    for steps, dt in ((2, 1e-2), (3, 1e-2), (2, 1e-3)):
        ts.rollout(fast, ts.State(*states), law, steps=steps, dt=dt, fused=True)
    ts.rollout(fast, ts.State(*states), lambda t, q, qd: -gain * qd, steps=2, dt=1e-2, fused=True)
    assert not caplog.messages
    for k in (1.0, 2.0):
        found = ts.rollout(fast, ts.State(*states), made(k), steps=2, dt=1e-2, fused=True)[:2]
        torch.testing.assert_close(
            found, ts.rollout(slider, ts.State(*states), made(k), steps=2, dt=1e-2)[:2]
        )
    (said,) = caplog.messages
    assert "made.<locals>.<lambda> are traced again" in said and "before the loop" in said


def test_writes_into_tensors_from_outside_are_refused(slider):
    count = torch.zeros((), dtype=torch.float64)

    def fn(mech, q, qd):
        count.add_(1)
        return q * count

    with pytest.raises(FusedError, match="writes into"):
        ts.fuse(fn, slider)
    assert count == 0


def test_a_tensor_that_nothing_holds_is_refused(slider):
    def source():
        gain = torch.ones(2, dtype=torch.float64)
        while True:
            yield gain

    gains = source()
    next(gains)

    def fn(mech, q, qd):
        return q * next(gains)

    with pytest.raises(FusedError, match="no path was found"):
        ts.fuse(fn, slider)


def test_values_of_captured_tensors_are_not_read(slider, states):
    gain = torch.ones((), dtype=torch.float64)

    def branches(mech, q, qd):
        return q if gain > 0 else qd

    def lists(mech, q, qd):
        return q * torch.tensor([gain.tolist()], dtype=q.dtype)

    def numbers(mech, q, qd):
        return q * gain.item()

    for fn in (branches, lists, numbers):
        with pytest.raises(FusedError, match="value"):
            ts.fuse(fn, slider)(*states)


def test_wider_types_are_refused_and_narrower_ones_widened(slider, states):
    gain = torch.tensor(0.1)

    def fn(mech, q, qd):
        return q * gain

    torch.testing.assert_close(ts.fuse(fn, slider)(*states), fn(slider, *states), rtol=0, atol=0)
    gain = gain.double()
    with pytest.raises(FusedError, match=r"gain is torch\.float64"):
        ts.fuse(fn, slider.to(torch.float32))


def test_copies_of_a_module_read_their_own_weights(slider, states):
    step = Step(slider)
    twin = copy.deepcopy(step)
    torch.testing.assert_close(twin.fast(*states), step.fast(*states))
    twin.policy.load_state_dict(mlp(8).state_dict())
    assert_same(twin.fast, functools.partial(twin.one, slider), states, twin.policy)
    assert_same(step.fast, functools.partial(step.one, slider), states, step.policy)


@pytest.mark.nightly
def test_a_policy_trains_through_a_rollout_of_an_arm():
    arm = ts.load(ts.robots.panda)
    torch.manual_seed(0)
    policy = nn.Sequential(
        nn.Linear(14, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 7)
    ).double()

    def simulate(mech, q, qd):
        def control(t, q, qd):
            return policy(torch.cat([q, qd], -1))

        return ts.rollout(mech, ts.State(q, qd), control, steps=5, dt=0.002).qd[..., -1, :]

    states = arm.random_state(32, generator=torch.Generator().manual_seed(0))
    fast = ts.fuse(simulate, arm)
    assert_same(fast, functools.partial(simulate, arm), states, policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = fast(*states).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert_same(fast, functools.partial(simulate, arm), states, policy)


def test_a_derivative_of_autograd_within_is_refused_by_name_where_gradients_are_asked_for(slider):
    def slope(mech, q, qd):
        z = q.detach().requires_grad_()
        return torch.autograd.grad(z.sin().sum(), z, create_graph=True)[0] * qd

    q, qd = slider.random_state(3)
    fast = ts.fuse(slope, slider)
    torch.testing.assert_close(fast(q, qd), q.cos() * qd)
    with pytest.raises(FusedError, match=r"requires_grad_ was called(.|\n)*torch\.func\.grad"):
        fast(q, qd.requires_grad_()).sum().backward()


class Sign(torch.autograd.Function):
    """As it was written before torch.func."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, by):
        return by


def hooked():
    policy = mlp()
    policy[1].register_full_backward_hook(lambda m, gi, go: gi)
    return policy


class Integral:
    """A law that keeps to itself what it sums up, from a number or a tensor on."""

    def __init__(self, start):
        self.total = start

    def __call__(self, t, q, qd):
        self.total = self.total + 1e-2 * q
        return -qd - self.total


@pytest.mark.parametrize("start", [0.0, torch.zeros(2, dtype=torch.float64)])
def test_a_law_with_hidden_state_is_refused_with_the_form_of_a_memory(slider, states, start):
    with pytest.raises(FusedError, match="initial_memory and act"):
        ts.rollout(ts.fuse(slider), ts.State(*states), Integral(start), steps=3, fused=True)


WITHIN = {
    "a Function": (lambda x: Sign.apply(x), "setup_context"),
    "a backward hook": (hooked(), "setup_context"),
    "a checkpoint": (lambda x: checkpoint(torch.tanh, x, use_reentrant=False), "checkpoint"),
    "an old checkpoint": (lambda x: checkpoint(torch.tanh, x, use_reentrant=True), "checkpoint"),
}


@pytest.mark.parametrize("what", WITHIN)
def test_what_torch_func_does_not_take_is_refused_by_name_where_gradients_are_asked_for(
    slider, what
):
    act, words = WITHIN[what]

    def fn(mech, q, qd):
        return act(torch.cat([q, qd], -1))

    q, qd = slider.random_state(3)
    fast = ts.fuse(fn, slider)
    torch.testing.assert_close(fast(q, qd), fn(slider, q, qd))
    with pytest.raises(FusedError, match=rf"{words}.*(.|\n)*traced by torch\.func"):
        fast(q, qd.requires_grad_()).sum().backward()


@pytest.mark.parametrize(
    "widened",
    [
        lambda mech, q: (q.double() + 1e8 - 1e8).float(),
        lambda mech, q: (q.to(torch.float64) + 1e8 - 1e8).float(),
        lambda mech, q: q * torch.full((mech.num_q,), 1 / 3, dtype=torch.float64),
    ],
)
def test_what_a_function_computes_in_a_wider_type_is_refused(slider, widened):
    q, _ = slider.random_state(3)
    torch.testing.assert_close(ts.fuse(widened, slider)(q), widened(slider, q), check_dtype=False)
    with pytest.raises(
        FusedError, match=r"float64 of torch.float32 within(.|\n)*mech.to\(torch.float64"
    ):
        ts.fuse(widened, slider.float())(q.float())
