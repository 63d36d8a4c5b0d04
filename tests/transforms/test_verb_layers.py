"""Whatever takes a mechanism takes a layer and a fused one, and tells what only wraps them."""

import pytest
import torch

import torchsko as ts
from tests.states import usual_state
from tests.transforms.verbs import VERBS, inputs, mixed_tree
from torchsko.fused.functions.fused_function import FusedFunction
from torchsko.integrators.motor import Motor
from torchsko.mechanism.dispatch import as_mechanism


class Handle:
    """A user's object with nothing but a ``mechanism()`` method."""

    def __init__(self, mech):
        self._mech = mech

    def mechanism(self):
        return self._mech


def call(verb, mech, states):
    result = verb.call(mech, **states)
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_layers_and_objects_that_give_a_mechanism_are_as_good_as_one(verb):
    mech = mixed_tree()
    given = inputs(mech, verb, (2,))
    states = {name: given[name] for name in verb.states}
    expected = call(verb, mech, states)
    for other in (ts.Dynamics(mech), Handle(mech)):
        torch.testing.assert_close(call(verb, other, states), expected, rtol=0, atol=0)


def test_functions_without_a_state_and_rollouts_take_layers_too():
    mech = mixed_tree()
    q, qd = mech.random_state(2)
    for other in (ts.Dynamics(mech), Handle(mech)):
        assert ts.mark_singular_joints(other).joint_names == mech.joint_names
        assert torch.equal(ts.inertial_parameters(other), ts.inertial_parameters(mech))
        qs, qds, *_ = ts.rollout(other, ts.State(q, qd), steps=2)
        assert torch.equal(qs, ts.rollout(mech, ts.State(q, qd), steps=2).q)
        driven = Motor(0.1, 0.2, 0.3).on(other)
        assert torch.equal(driven.armature, torch.full((mech.num_dof,), 0.1, dtype=q.dtype))
        apart = ts.learn.inertia_divergence(other, Handle(mech))
        assert torch.allclose(apart, torch.zeros_like(apart), atol=1e-12)
        assert ts.integrators.first_nonfinite(other, qs, qds) is None
    arm = ts.load(ts.robots.panda)
    of_arm, of_layer = (
        ts.identification.exciting_trajectory(m, generator=torch.Generator().manual_seed(0))
        for m in (arm, ts.Dynamics(arm))
    )
    assert torch.equal(of_arm.sine, of_layer.sine)


def pendulum():
    builder = ts.MechanismBuilder("pendulum")
    inertia = ((0.02, 0, 0), (0, 0.03, 0), (0, 0, 0.04))
    builder.link("upper", mass=1.0, com=(0.1, 0, -0.3), inertia=inertia)
    builder.link("lower", mass=0.5, com=(0.1, 0, -0.2), inertia=inertia)
    builder.joint("shoulder", "revolute", child="upper", axis=(0, 1, 0))
    builder.joint("elbow", "revolute", child="lower", parent="upper", position=(0, 0, -0.5))
    return builder.build()


@pytest.fixture(scope="module")
def fast():
    return ts.fuse(pendulum())


@pytest.fixture
def runs(monkeypatch):
    """How often a kernel's function was called."""
    counted, call, at_once = [], FusedFunction.__call__, FusedFunction.call_native

    def counting(self, *tensors):
        counted.append(self)
        return call(self, *tensors)

    def counting_small(self, tensors, *numbers):
        found = at_once(self, tensors, *numbers)
        counted.extend([] if found is None else [self])
        return found

    monkeypatch.setattr(FusedFunction, "__call__", counting)
    monkeypatch.setattr(FusedFunction, "call_native", counting_small)
    return counted


FUSED = {
    "forward_dynamics": lambda m, q, qd, x: ts.forward_dynamics(m, q, qd, x),
    "inverse_dynamics": lambda m, q, qd, x: ts.inverse_dynamics(m, q, qd, x),
    "bias_force": lambda m, q, qd, x: ts.bias_force(m, q, qd),
    "mass_matrix": lambda m, q, qd, x: ts.mass_matrix(m, q),
    "torque_regressor": lambda m, q, qd, x: ts.torque_regressor(m, q, qd, x),
    "forward_kinematics": lambda m, q, qd, x: ts.forward_kinematics(m, q),
    "frame_pose": lambda m, q, qd, x: ts.frame_pose(m, q, ["lower"]),
    "frame_jacobian": lambda m, q, qd, x: ts.frame_jacobian(m, q, ["lower"]),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_mechanism_runs_its_kernel(name, fast, runs):
    mech, fn = pendulum(), FUSED[name]
    expected = fn(mech, *usual_state(mech, 3))
    assert not runs
    torch.testing.assert_close(tuple(fn(fast, *usual_state(mech, 3))), tuple(expected))
    assert len(runs) == 1


def test_a_function_asked_for_another_method_runs_eagerly(fast, runs):
    mech = pendulum()
    q, qd, tau = usual_state(mech, 3)
    there = ts.forward_dynamics(fast, q, qd, tau, method="composite")
    here = ts.forward_dynamics(mech, q, qd, tau, method="composite")
    torch.testing.assert_close(there, here, rtol=0, atol=0)
    assert not runs


@pytest.mark.parametrize("method", ["semi_implicit_euler", "implicit", "rk4", "newmark"])
@pytest.mark.parametrize("kind", ["none", "tensor", "policy"])
def test_a_rollout_of_a_fused_mechanism_runs_kernels(method, kind, fast, runs):
    mech = pendulum()
    q, qd, tau = usual_state(mech, 3)
    control = {"none": None, "tensor": tau, "policy": lambda t, q, qd: tau - t - 0.3 * qd}[kind]
    there = ts.rollout(fast, ts.State(q, qd), control, steps=4, method=method)[:2]
    torch.testing.assert_close(
        there, ts.rollout(mech, ts.State(q, qd), control, steps=4, method=method)[:2]
    )
    each_step = 1 if method in ("semi_implicit_euler", "implicit") else 4
    assert len(runs) == (4 * each_step if kind == "policy" else 1)


def test_gradients_pass_through_a_rollout_of_kernels(fast):
    mech, gradients = pendulum(), []
    for robot in (fast, mech):
        leaves = [x.requires_grad_() for x in usual_state(mech, 3)]
        qs, qds, *_ = ts.rollout(robot, ts.State(*leaves[:2]), leaves[2], steps=5)
        gradients.append(torch.autograd.grad(qs.square().sum() + qds.sum(), leaves))
    torch.testing.assert_close(*gradients)


def test_parameters_that_are_inputs_of_kernels_learn_through_verbs():
    mech = pendulum()
    mass = mech.mass.clone().requires_grad_()
    fast = ts.fuse(mech, inputs=("mass",)).replace(mass=mass)
    q, qd, tau = usual_state(mech, 3)
    torch.testing.assert_close(
        torch.autograd.grad(ts.forward_dynamics(fast, q, qd, tau).sum(), mass),
        torch.autograd.grad(ts.forward_dynamics(mech.replace(mass=mass), q, qd, tau).sum(), mass),
    )


def test_fuse_takes_a_layer_and_a_fused_mechanism(fast):
    mech = pendulum()
    q, qd, tau = usual_state(mech, 2)
    for given in (ts.Dynamics(mech), fast):
        again = ts.fuse(given)
        torch.testing.assert_close(
            again.forward_dynamics(q, qd, tau), ts.forward_dynamics(mech, q, qd, tau)
        )


@pytest.mark.parametrize(
    ("wrap", "advice"),
    [
        (lambda layer: torch.nn.DataParallel(layer), "wrapper.module"),
        (lambda layer: torch.nn.Sequential(torch.nn.Identity(), layer), "wrapper[1]"),
        (lambda layer: torch.nn.ModuleDict({"arm": layer}), "wrapper.arm"),
    ],
)
def test_wrappers_of_a_layer_are_distinguished(wrap, advice):
    layer = ts.Dynamics(pendulum())
    q, qd, tau = usual_state(pendulum())
    for call in (
        lambda m: ts.forward_dynamics(m, q, qd, tau),
        lambda m: ts.frame_jacobian(m, q, ["lower"]),
        lambda m: ts.rollout(m, ts.State(q, qd))[:2],
    ):
        with pytest.raises(ts.MechanismError, match="Pass the layer") as caught:
            call(wrap(layer))
        assert advice in str(caught.value)


@pytest.mark.parametrize("wrong", ["panda.urdf", None, torch.nn.Linear(2, 2)])
def test_what_gives_no_mechanism_is_refused(wrong):
    with pytest.raises(ts.MechanismError, match=f"got a {type(wrong).__name__}"):
        ts.mass_matrix(wrong, torch.zeros(2))


@pytest.mark.parametrize("name", ["random_state", "joint_names", "lower", "initial"])
def test_attributes_of_a_mechanism_are_named_by_the_error_of_a_layer(fast, name):
    for given in (fast, ts.Dynamics(mixed_tree())):
        with pytest.raises(AttributeError, match=rf"mechanism\(\)\.{name}"):
            getattr(given, name)
        assert hasattr(given.mechanism(), name) and not hasattr(given, name)
        with pytest.raises(AttributeError, match="has no attribute 'fly'"):
            _ = given.fly


def test_a_compiled_layer_passes():
    layer = ts.Dynamics(pendulum())
    assert as_mechanism(torch.compile(layer)).num_dof == 2


@pytest.mark.nightly
def test_verbs_of_a_layer_compile_as_one_graph():
    mech = pendulum()
    layer = ts.Dynamics(mech, {"upper": ts.learn.InertiaLogCholesky()})
    q, qd, tau = usual_state(mech, 3)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, qd, tau: ts.forward_dynamics(layer, q, qd, tau), fullgraph=True, backend="aot_eager"
    )  # fmt: skip
    torch.testing.assert_close(compiled(q, qd, tau), ts.forward_dynamics(layer, q, qd, tau))
    torch._dynamo.reset()
