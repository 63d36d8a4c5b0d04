"""A layer uses its current values after loading, in-place changes and torch.func."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap
from torch.testing import assert_close

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.fused import automatic as auto
from torchsko.learn import Bounded, InertiaLogCholesky, Positive
from torchsko.learn import dynamics_module as module

EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(scope="module")
def arm():
    return random_mechanism(["revolute", "revolute"], [-1, 0], seed=1)


def args_of(arm, *batch):
    q, qd = arm.random_state(*batch, generator=torch.Generator().manual_seed(0))
    return q, qd, 0.5 * qd


@pytest.mark.parametrize("learn", [{}, {"body1": InertiaLogCholesky()}])
@pytest.mark.parametrize("fuse", [False, True])
def test_what_is_loaded_reaches_kernels_that_were_made_before(arm, learn, fuse):
    layer = ts.Dynamics(arm, learn, fused=not fuse)
    fast, args = ts.fuse(layer) if fuse else layer, args_of(arm, 3)
    before = fast.forward_dynamics(*args)
    heavier = ts.Dynamics(arm.replace(mass=2 * arm.mass, gravity=0.5 * arm.gravity), learn)
    layer.load_state_dict(heavier.state_dict())
    assert_close(fast.forward_dynamics(*args), heavier(*args), **EXACT)
    assert not torch.allclose(before, heavier(*args))


def test_what_is_changed_in_place_or_put_anew_reaches_kernels(arm):
    layer, args = ts.Dynamics(arm, fused=True), args_of(arm, 3)
    layer(*args)
    kernels = layer._fast
    for gravity in (torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])):
        layer.start.gravity.copy_(gravity)
        expected = ts.forward_dynamics(arm.replace(gravity=gravity.to(arm.dtype)), *args)
        assert_close(layer(*args), expected, **EXACT)
    workshop = kernels._workshop
    layer.start.gravity = arm.gravity.clone()
    assert_close(layer(*args), ts.forward_dynamics(arm, *args), **EXACT)
    # A value that has changed is an input from then on, and needs no further kernels.
    layer.load_state_dict(layer.state_dict())
    layer(*args)
    assert kernels._workshop is workshop and workshop.parameters == ("gravity",)


def test_what_changes_while_no_kernel_of_a_verb_is_made_is_not_mixed(arm):
    layer, args = ts.Dynamics(arm, fused=True), args_of(arm, 2)
    layer(*args)
    layer.start.mass.mul_(2.0)
    twice = arm.replace(mass=2 * arm.mass)
    assert_close(layer.mass_matrix(args[0]), ts.mass_matrix(twice, args[0]), **EXACT)
    assert_close(layer(*args), ts.forward_dynamics(twice, *args), **EXACT)


def bare():
    """A robot without armature, losses and gravity compensation."""
    builder = ts.MechanismBuilder("plain").link("rod", mass=1.0, com=[0.1, 0, 0.5])
    return builder.joint("hinge", "revolute", child="rod", axis=[0, 1, 0]).build()


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        *((name, False) for name in "armature damping friction higher_damping gravcomp".split()),
        ("armature", True),
    ],
)
def test_loaded_losses_take_effect_if_the_robot_had_none(name, fused):
    plain = bare()
    good = plain.replace(**{name: getattr(plain, name) + 0.5})
    args = args_of(plain, 2)
    for change in ("load", "in place"):
        layer = ts.Dynamics(plain, fused=fused)
        before = layer(*args)
        if change == "load":
            layer.load_state_dict(ts.Dynamics(good).state_dict())
        else:
            getattr(layer.start, name).copy_(getattr(good, name))
        assert_close(layer(*args), ts.forward_dynamics(good, *args), **EXACT)
        assert not torch.allclose(before, layer(*args))


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("armature", False),
        ("higher_damping", True),
        ("gravcomp", False),
        pytest.param("armature", True, marks=pytest.mark.nightly),
        pytest.param("higher_damping", False, marks=pytest.mark.nightly),
        pytest.param("gravcomp", True, marks=pytest.mark.nightly),
    ],
)
def test_losses_take_effect_in_a_compiled_layer_that_had_none(name, called):
    """A compiled program cannot read values, so a tensor that is zero at compilation may be nonzero later."""
    plain = bare()
    layer, args = ts.Dynamics(plain, fused=False), args_of(plain, 2)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    if called:
        layer(*args), compiled(*args)
    getattr(layer.start, name).fill_(0.5)
    good = plain.replace(**{name: torch.full_like(getattr(plain, name), 0.5)})
    assert_close(compiled(*args), ts.forward_dynamics(good, *args), **EXACT)


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)]
)
def test_a_compiled_program_of_kernels_refuses_values_that_are_not_theirs(backend):
    plain = bare()
    layer, args = ts.Dynamics(plain), args_of(plain, 2)
    fast = ts.fuse(layer)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *args: fast.forward_dynamics(*args), backend=backend, fullgraph=True
    )
    assert_close(compiled(*args), ts.forward_dynamics(plain, *args), **EXACT)
    layer.start.armature.fill_(0.5)
    with pytest.raises(RuntimeError, match="buffers of the layer have changed"):
        compiled(*args)
    good = plain.replace(armature=torch.full_like(plain.armature, 0.5))
    for verb in fast.forward_dynamics, compiled:  # new kernels need a new program
        assert_close(verb(*args), ts.forward_dynamics(good, *args), **EXACT)


def put(x, value):
    x.data = value.clone()


WRITES = {
    "data": lambda x, value: x.data.copy_(value),
    "numpy": lambda x, value: x.numpy().__setitem__(..., value.numpy()),
    "put": put,
    "memory shared": lambda x, value: x.share_memory_().data.copy_(value),
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_writes_that_version_counters_miss_take_effect(write, fused):
    plain = bare()
    layer, args = ts.Dynamics(plain, fused=fused), args_of(plain, 2)
    layer(*args)
    for value in (0.5, 0.7):
        x = torch.full_like(plain.armature, value)
        WRITES[write](layer.start.armature, x)
        expected = ts.forward_dynamics(plain.replace(armature=x), *args)
        assert_close(layer(*args), expected, **EXACT)


class Shifted(torch.nn.Module):
    """A parametrization of a buffer."""

    def __init__(self):
        super().__init__()
        self.by = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, x):
        return x + self.by


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("name", ["mass", "armature", "friction"])
def test_what_the_layer_holds_may_be_parametrized(arm, name, called, fused):
    layer, args = ts.Dynamics(arm, fused=fused), args_of(arm, 2)
    if called:
        layer(*args)
    shift = Shifted()
    torch.nn.utils.parametrize.register_parametrization(layer.start, name, shift)
    value = (getattr(arm, name) + 0.3).requires_grad_()
    expected = ts.forward_dynamics(arm.replace(**{name: value}), *args)
    assert_close(layer(*args), expected, **EXACT)
    layer(*args).sum().backward()
    (gradient,) = torch.autograd.grad(expected.sum(), value)
    assert_close(shift.by.grad, gradient.sum(), rtol=1e-9, atol=1e-9)


def test_a_loaded_mass_makes_a_massless_hinge_movable():
    def whip(mass):
        builder = ts.MechanismBuilder("whip").link("handle", mass=1.0, com=(0.0, 0.0, -0.2))
        builder.joint("wrist", "revolute", child="handle", axis=(1.0, 0.0, 0.0))
        builder.link("thread", mass=mass, com=(0.0, 0.0, -0.3))
        return builder.joint(
            "tip", "revolute", child="thread", parent="handle", axis=(1, 0, 0)
        ).build()

    light, heavy = ts.Dynamics(whip(0.0)), ts.Dynamics(whip(0.1))
    args = args_of(whip(0.1), 2)
    states = light.state_dict(), {k: v.clone() for k, v in heavy.state_dict().items()}
    heavy.load_state_dict(states[0])
    with pytest.raises(ts.MechanismError, match="'tip'"):
        heavy(*args)
    light.load_state_dict(states[1])
    assert_close(light(*args), ts.forward_dynamics(whip(0.1), *args), **EXACT)


def test_kernels_are_made_within_a_training_loop_of_torch_func(arm, monkeypatch):
    args = args_of(arm, 4)
    layer = ts.Dynamics(arm, layer_learn())
    slow = ts.Dynamics(arm, layer_learn(), fused=False)
    params = {k: 1.1 * v.detach() for k, v in layer.named_parameters()}

    def loss(of):
        return lambda p: functional_call(of, p, args).square().mean()

    expected = torch.func.grad(loss(slow))(params)
    monkeypatch.setattr(module, "PAYS", auto.cost(2, 4))
    for _ in range(3):
        assert_close(torch.func.grad(loss(layer))(params), expected, rtol=1e-9, atol=1e-9)
    assert layer._fast is not None and not isinstance(layer._fast, ts.TorchskoError)


def layer_learn():
    return {"body1": InertiaLogCholesky(), "joint0.damping": Positive(init=0.1)}


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd])
def test_kernels_asked_for_are_made_within_a_jacobian(arm, transform):
    args = args_of(arm)
    found = []
    for fused in (True, False):
        layer = ts.Dynamics(arm, layer_learn(), fused=fused)
        params = {k: v.detach() for k, v in layer.named_parameters()}
        found.append(transform(lambda p, of=layer: functional_call(of, p, args))(params))
    assert_close(*found, rtol=1e-9, atol=1e-9)


def test_an_ensemble_has_kernels_in_which_its_members_differ(arm):
    layers = []
    for scale in (1.0, 2.0):
        robot = arm.replace(gravity=scale * arm.gravity, mass=scale * arm.mass)
        layers.append(ts.Dynamics(robot, layer_learn(), fused=True))
    args = args_of(arm, 3)
    params, buffers = stack_module_state(layers)
    expected = torch.stack([ts.Dynamics(x.mechanism(), fused=False)(*args) for x in layers])
    fresh = ts.Dynamics(arm, layer_learn(), fused=True)
    for base in (fresh, layers[0]):
        for _ in range(2):
            found = vmap(lambda p, b, of=base: functional_call(of, (p, b), args))(params, buffers)
            assert_close(found, expected, **EXACT)
    assert "gravity" in fresh._fast._workshop.parameters
    assert "com" not in ts.fuse(ts.Dynamics(arm))._workshop.parameters
    assert "joint_position" not in fresh._fast._workshop.parameters


def test_a_derivative_by_a_constant_of_kernels_is_not_lost(arm):
    layer, args = ts.Dynamics(arm, fused=True), args_of(arm, 2)
    layer(*args)

    def total(gravity):
        return functional_call(layer, {"start.gravity": gravity}, args).sum()

    def eager(gravity):
        return ts.forward_dynamics(arm.replace(gravity=gravity), *args).sum()

    for transform in (torch.func.grad, torch.func.jacfwd):
        assert_close(transform(total)(arm.gravity), transform(eager)(arm.gravity), **EXACT)


def test_a_layer_made_in_inference_mode_trains_outside_of_it(arm):
    args = args_of(arm, 2)
    with torch.inference_mode():
        layer = ts.Dynamics(arm, fused=True)
        layer(*args)
    tau = args[2].clone().requires_grad_()
    layer(*args[:2], tau).sum().backward()
    layer.start.gravity = 2 * arm.gravity
    expected = ts.forward_dynamics(arm.replace(gravity=2 * arm.gravity), *args)
    assert_close(layer(*args), expected, **EXACT)


@pytest.mark.parametrize("wrong", ["half", "bfloat16"])
def test_a_type_that_is_refused_leaves_the_layer_as_it_was(arm, wrong):
    layer, args = ts.Dynamics(arm, layer_learn()), args_of(arm, 2)
    before = layer(*args)
    with pytest.raises(ts.MechanismError, match="float16"):
        getattr(layer, wrong)()
    assert torch.equal(layer(*args), before)


def learned_at_once(layer, queue):
    queue.put(layer.learned["body1/inertial"]().detach().numpy().tolist())


@pytest.mark.nightly
def test_a_layer_that_learns_goes_to_a_spawned_process(arm):
    layer = ts.Dynamics(arm, layer_learn())
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=learned_at_once, args=(layer, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == layer.learned["body1/inertial"]().detach().numpy().tolist()


def test_pickles_of_a_trained_layer_hold_parameters_only(arm):
    layer = ts.Dynamics(arm, layer_learn())
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.1)
    twin = pickle.loads(pickle.dumps(layer))
    assert_close(twin.mechanism().inertia, layer.mechanism().inertia, rtol=0, atol=0)


@pytest.mark.parametrize("far", [50.0, -900.0])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_made_of_values_that_rounding_has_put_on_the_edge_of_their_domain(
    arm, far, copied
):
    learn = {"joint0.damping": Bounded(0.0, 2.0, 1.0), "joint1.damping": Positive(1.0)}
    layer = ts.Dynamics(arm, learn)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(far)
    assert layer.mechanism().damping[0] == (2.0 if far > 0 else 0.0)
    twin = copied(layer)
    assert torch.equal(twin.mechanism().damping, layer.mechanism().damping)
    assert {n: p.item() for n, p in twin.named_parameters()} == dict.fromkeys(
        dict(layer.named_parameters()), far
    )
    assert repr(twin) == repr(layer)


def test_assigned_values_of_another_type_make_a_layer_of_that_type(arm):
    layer, args = ts.Dynamics(arm, layer_learn()), [x.float() for x in args_of(arm, 2)]
    single = ts.Dynamics(arm.to(torch.float32), layer_learn())
    layer.load_state_dict(single.state_dict(), assign=True)
    assert torch.equal(layer(*args), single(*args))
