"""Kernels take over by themselves where they pay; results and gradients stay, and it can be declined."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.fused import automatic as auto
from torchsko.fused.fused_mechanism import FusedMechanism
from torchsko.learn import dynamics_module as module


@pytest.fixture
def told(caplog, monkeypatch, tmp_path):
    """Lines of the logger, beside a cache of kernels that is empty: of those found there none is said."""
    monkeypatch.setenv("TORCHSKO_CACHE", str(tmp_path))
    with caplog.at_level(logging.WARNING, "torchsko"):
        yield caplog


def layer_of(arm, **kwargs):
    learn = {"link5": ts.learn.InertiaLogCholesky(), "joint4.damping": ts.learn.Positive()}
    return ts.Dynamics(arm, learn=learn, **kwargs)


def gradients(layer, verb, *args):
    layer.zero_grad()
    result = verb(*args)
    result.square().sum().backward()
    return result.detach(), [p.grad.clone() for p in layer.parameters()]


@pytest.mark.nightly
def test_a_fused_layer_learns(arm):
    """Values are read at each call, gradients reach the parameters; copies go their own ways."""
    layer = layer_of(arm)
    fast = ts.fuse(layer)
    assert isinstance(fast, FusedMechanism)
    q, qd = arm.random_state(5)
    for change in (0.0, 0.3):
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(change)
        for name in ("forward_dynamics", "inverse_dynamics"):
            mine, expected = (gradients(layer, getattr(x, name), q, qd, qd) for x in (fast, layer))
            torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-11)
    twins = copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))
    with torch.no_grad():
        before = layer.mass_matrix(q)
        for p in layer.parameters():
            p.add_(0.2)
    for twin in twins:
        torch.testing.assert_close(twin.mass_matrix(q), before, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(fast.mass_matrix(q), layer.mass_matrix(q), rtol=1e-12, atol=1e-12)
    heavier = fast.replace(mass=2 * arm.mass)
    assert not torch.equal(heavier.mass_matrix(q), fast.mass_matrix(q))


@pytest.mark.nightly
def test_rollouts_of_a_fused_layer_have_its_gradients(arm):
    layer = layer_of(arm, fused=False)
    q, qd = arm.random_state(3)
    found = []
    for given in (ts.fuse(layer), layer):
        layer.zero_grad()
        ts.rollout(given, ts.State(q, qd), None, steps=15).q.square().sum().backward()
        found.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.nightly
def test_a_layer_takes_kernels_once_they_pay(arm, told):
    layer, slow = layer_of(arm), layer_of(arm, fused=False)
    q, qd = arm.random_state(30_000)
    calls = 0
    with torch.no_grad():
        while not told.records:
            qdd = ts.forward_dynamics(layer, q, qd, qd)
            calls += 1
    assert auto.cost(calls - 1, len(q)) < auto.PAYS <= auto.cost(calls, len(q))
    assert "fused=False" in told.text
    torch.testing.assert_close(qdd, slow(q, qd, qd).detach(), rtol=1e-10, atol=1e-8)
    few = q[:4], qd[:4], qd[:4]
    for name in ("forward_dynamics", "inverse_dynamics"):
        mine, expected = (gradients(x, getattr(x, name), *few) for x in (layer, slow))
        torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-11)
    assert len(told.records) == 1
    # What has no kernel runs on.
    assert layer.assemble(*few[:2]).num_dof == arm.num_dof
    turn, shift = torch.eye(3, dtype=q.dtype), q.new_tensor([0.0, 0.0, 0.1])
    frame = ts.Frame("link7", turn, shift)
    poses = [x.frame_pose(few[0], frame).position for x in (layer, slow)]
    torch.testing.assert_close(*poses, rtol=0, atol=1e-12)
    # A layer of another type makes others, and a copy keeps none.
    single = layer.to(torch.float32)
    assert single(*(x.float() for x in few)).dtype == torch.float32
    assert copy.deepcopy(layer)._fast is None


def test_a_layer_asked_for_kernels_has_them_at_once(arm, caplog):
    q, qd = arm.random_state(2)
    with caplog.at_level(logging.WARNING, "torchsko"):
        layer = layer_of(arm, fused=True)
        layer(q, qd, qd)
    assert isinstance(layer._fast, FusedMechanism)
    assert not caplog.records  # nothing was weighed


def test_the_use_of_kernels_is_logged_once_for_all_copies(arm, told, monkeypatch):
    monkeypatch.setattr(module, "PAYS", 1)
    q, qd = arm.random_state(2)
    layer = layer_of(arm)
    layer(q, qd, qd)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.double()):
        twin(q, qd, qd)
        assert isinstance(twin._fast, FusedMechanism)
    assert len(told.records) == 1


def test_a_long_rollout_is_one_kernel(arm, told):
    q, qd = arm.random_state(2)
    steps = auto.PAYS // (auto.FIXED + 2)
    declined = ts.rollout(arm, ts.State(q, qd), None, steps=20, fused=False)[:2]
    short = ts.rollout(arm, ts.State(q, qd), None, steps=20)[:2]
    assert not told.records and torch.equal(short[0], declined[0])
    qs, qds, *_ = ts.rollout(arm, ts.State(q, qd), None, steps=steps + 1)
    assert len(told.records) == 1
    torch.testing.assert_close(qs[:, :21], declined[0], rtol=1e-10, atol=1e-10)
    expected = ts.rollout(ts.fuse(arm), ts.State(q, qd), None, steps=steps + 1)[:2]
    torch.testing.assert_close((qs, qds), expected, rtol=0, atol=0)


def test_robots_that_a_loop_locks_share_one_build_where_values_have_a_batch_dimension(
    told, monkeypatch
):
    """So says `Mechanism.lock`: each number has a build of its own."""
    monkeypatch.setattr(auto, "PAYS", 1)
    builder = ts.MechanismBuilder("arm")
    for name, parent in (("upper", None), ("lower", "upper")):
        builder.link(name, mass=1.0, com=(0.0, 0.0, -0.5))
        builder.joint(f"{name}_hinge", "revolute", child=name, parent=parent, axis=(0, 1, 0),
                      position=(0.0, 0.0, -1.0))  # fmt: skip
    arm, start = builder.build(), torch.ones(3, 1, dtype=torch.float64)
    for x in (0.2, 0.4, 0.6):
        one = arm.lock({"lower_hinge": torch.tensor([[x]], dtype=torch.float64)})
        found = ts.rollout(one, ts.State(start, 0 * start), None, steps=5).q
        whole = arm.lock({"lower_hinge": x})
        expected = ts.rollout(whole, ts.State(start, 0 * start), None, steps=5, fused=False).q
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert len(told.records) == 1


def test_robots_that_a_loop_makes_share_one_build_and_one_line(told, monkeypatch):
    """Each built kernels of its own, and each call said so."""
    monkeypatch.setattr(auto, "PAYS", 1)
    builder = ts.MechanismBuilder("pendulum")
    builder.link("bob", mass=1.0, com=(0.0, 0.0, -0.5))
    builder.joint("hinge", "revolute", child="bob", axis=(0, 1, 0), damping=0.1)
    robot, start = builder.build(), torch.ones(3, 1, dtype=torch.float64)

    def end(robot, **options):
        return ts.rollout(robot, ts.State(start, 0 * start), None, steps=5, **options).q[:, -1]

    for _ in range(2):
        end(robot)
    assert len(told.records) == 1
    found = []
    for damping in (0.3, 0.6, 0.9):
        other = robot.replace(damping=torch.full_like(robot.damping, damping))
        found.append(end(other))
        torch.testing.assert_close(found[-1], end(other, fused=False), rtol=1e-12, atol=1e-12)
    assert len(told.records) == 2
    assert not torch.equal(found[0], found[1])
    layer = ts.Dynamics(robot, learn={"hinge.damping": ts.learn.Positive(init=0.3)})
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(end(layer.mechanism()), found.pop(0), rtol=1e-9, atol=0)
            layer.learned["hinge/damping"].assign(torch.full_like(robot.damping, 0.6))
    assert len(told.records) == 3


@pytest.mark.nightly
def test_a_policys_rollout_has_kernels_for_its_steps(arm, told, monkeypatch):
    """The policy is called as ever, once a step; gradients, of truncated windows too, are the eager ones."""
    monkeypatch.setattr(auto, "PAYS", 1)
    policy = torch.nn.Linear(14, 7, dtype=torch.float64)
    times = []

    def control(t, q, qd):
        times.append(t)
        return policy(torch.cat([q, qd], -1))

    q, qd = arm.random_state(3)
    found = []
    for more in ({}, {"truncate": 3}):
        for fused in (None, False):
            times.clear()
            qs = ts.rollout(arm, ts.State(q, qd), control, steps=8, fused=fused, **more).q
            assert len(told.records) == 1
            assert len(times) == 8
            found.append((qs.detach(), *torch.autograd.grad(qs.sum(), policy.parameters())))
    for mine, expected in (found[:2], found[2:]):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(found[0][1], found[2][1])


@pytest.mark.nightly
def test_parameters_that_learn_stay_in_the_graph(arm):
    mass = arm.mass.clone().requires_grad_()
    q, qd = arm.random_state(400)
    steps = auto.PAYS // (auto.FIXED + 400) + 1
    qs = ts.rollout(arm.replace(mass=mass), ts.State(q, qd), None, steps=steps, dt=1e-4).q
    (mine,) = torch.autograd.grad(qs[:3, 40].sum(), mass)
    few = ts.rollout(
        arm.replace(mass=mass), ts.State(q[:3], qd[:3]), None, steps=40, dt=1e-4, fused=False
    )[:2]
    (expected,) = torch.autograd.grad(few[0][:, 40].sum(), mass)
    torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)


def test_short_rollouts_of_a_layer_are_counted_and_logged_once(arm, told, monkeypatch):
    monkeypatch.setattr(module, "PAYS", 3 * auto.cost(4, 2))
    layer, slow = layer_of(arm), layer_of(arm, fused=False)
    q, qd = arm.random_state(2)
    expected = ts.rollout(slow, ts.State(q, qd), None, steps=4)[:2]
    for call in range(1, 6):
        found = ts.rollout(layer, ts.State(q, qd), None, steps=4)[:2]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        assert isinstance(layer._fast, FusedMechanism) == (call >= 3)
    assert len(told.records) == 1


def test_rollouts_of_a_layer_asked_for_kernels_have_them_at_once(arm):
    layer = layer_of(arm, fused=True)
    q, qd = arm.random_state(2)
    ts.rollout(layer, ts.State(q, qd), None, steps=4)
    assert isinstance(layer._fast, FusedMechanism)


@pytest.mark.some(1)
@pytest.mark.parametrize("fused", [True, None])
def test_a_layers_rollout_asked_to_be_one_kernel_is(arm, fused):
    """It was refused as one of a mechanism without kernels, also of a layer that was asked for them."""
    layer, (q, qd) = layer_of(arm, fused=fused), arm.random_state(2)
    gain = torch.tensor(2.0, dtype=q.dtype, requires_grad=True)
    found, calls = [], []

    def law(t, q, qd):
        calls.append(1)
        return -gain * qd

    for whole in (True, False):
        qs = ts.rollout(layer, ts.State(q, qd), law, steps=4, fused=whole).q
        found.append(torch.autograd.grad(qs.square().sum(), [gain, *layer.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)
    counts = []
    for _ in range(5):  # a kernel is compared with the law at some calls, as its time allows
        before = len(calls)
        layer.rollout(ts.State(q, qd), law, steps=4, fused=True)
        counts.append(len(calls) - before)
    assert 0 in counts  # the kernel is there
    with pytest.raises(ts.FusedError, match="has no kernels"):
        ts.rollout(layer_of(arm, fused=False), ts.State(q, qd), law, steps=4, fused=True)


@pytest.mark.parametrize("before", ["asked for", "forward pass", "made again", "between"])
def test_a_layer_within_a_checkpoint_saves_what_it_saves_again(arm, monkeypatch, before):
    """Kernels that come in the midst of it save something else: torch refused the backward pass."""
    q, qd = arm.random_state(2)
    calls = {"asked for": 0, "forward pass": 1, "made again": 2, "between": 3}[before]
    monkeypatch.setattr(module, "PAYS", calls * auto.cost(1, 2))
    layer, slow = layer_of(arm, fused=True if before == "asked for" else None), layer_of(arm)
    monkeypatch.setattr(slow, "fused", False)
    found = []
    for dynamics, run in ((layer, checkpoint), (slow, lambda f, *x, use_reentrant: f(*x))):
        v = qd
        for _ in range(2):
            v = run(lambda v, f=dynamics: v + 1e-3 * f(q, v, qd), v, use_reentrant=False)
        dynamics(q, qd, qd)  # makes no kernels between a pass and its repetition either
        found.append(torch.autograd.grad(v.square().sum(), dynamics.parameters()))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_a_captured_law_is_traced_within_a_checkpoint(arm):
    fast, (q, qd) = ts.fuse(arm), arm.random_state(2)
    gain = torch.tensor(2.0, dtype=q.dtype, requires_grad=True)

    def end(fused):
        law = lambda t, q, qd: -gain * qd  # noqa: E731
        return ts.rollout(fast, ts.State(q, qd), law, steps=4, fused=fused).q[..., -1, :]

    found = [checkpoint(end, True, use_reentrant=False), end(False)]
    mine, expected = (torch.autograd.grad(x.square().sum(), gain) for x in found)
    torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_transforms_and_compilers_are_left_alone(arm, caplog, monkeypatch):
    monkeypatch.setattr(auto, "PAYS", 1)
    q, qd = arm.random_state(3)
    with caplog.at_level(logging.WARNING, "torchsko"):
        mapped = torch.func.vmap(lambda q, qd: ts.rollout(arm, ts.State(q, qd), None, steps=3).q)(
            q, qd
        )
        pushed = torch.func.jvp(
            lambda q: ts.rollout(arm, ts.State(q, qd), None, steps=3).q, (q,), (qd,)
        )[0]
    assert not caplog.records
    torch.testing.assert_close(
        mapped, ts.rollout(arm, ts.State(q, qd), None, steps=3, fused=False).q
    )
    torch.testing.assert_close(pushed, mapped)


def test_without_a_compiler_all_is_eager(arm, caplog, monkeypatch):
    monkeypatch.setattr(auto, "PAYS", 1)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    q, qd = arm.random_state(3)
    with caplog.at_level(logging.WARNING, "torchsko"):
        layer = layer_of(arm)
        qdd = layer(q, qd, qd)
        assert torch.equal(qdd, layer_of(arm, fused=False)(q, qd, qd))
        ts.rollout(arm, ts.State(q, qd), None, steps=3)
        with pytest.raises(ts.FusedError, match="CXX"):
            layer_of(arm, fused=True)(q, qd, qd)
    assert not caplog.records


@pytest.mark.parametrize("robot", ["a mechanism", "a layer"])
def test_a_control_that_is_one_number_is_refused_by_name(arm, robot):
    q, qd = arm.random_state(2)
    mech = layer_of(arm) if robot == "a layer" else arm
    with pytest.raises(ts.ShapeError, match=r"control has shape \[\]"):
        ts.rollout(mech, ts.State(q, qd), torch.tensor(1.0, dtype=q.dtype), steps=5)


def test_a_layer_without_numbers_says_that_it_has_none(arm):
    q, qd = (x.to("meta") for x in arm.random_state(2))
    with pytest.raises(ts.errors.FusedError, match="on 'meta', and have no numbers"):
        layer_of(arm, fused=True).to("meta")(q, qd, qd)
    assert layer_of(arm, fused=False).to("meta")(q, qd, qd).shape == qd.shape


@pytest.mark.nightly
def test_a_compiled_layer_asked_for_kernels_runs_them_as_operators():
    """It was traced eagerly: thousands of operations for a few steps."""
    limb = random_mechanism(["revolute", "prismatic"], [-1, 0], seed=1)
    layer = ts.Dynamics(limb, {"joint1.damping": ts.learn.Positive()}, fused=True)
    (q, qd), sizes = limb.random_state(2), []

    def backend(graph, inputs):
        names = [str(x.target) for x in graph.graph.nodes if x.op == "call_function"]
        sizes.append((sum("torchsko" in name for name in names), len(names)))
        return graph.forward

    def simulate(q, qd):
        return ts.rollout(layer, ts.State(q, qd), None, steps=2, dt=1e-2).q

    compiled = torch.compile(simulate, fullgraph=True, backend=backend)
    # Dynamo of PyTorch 2.11 gives the class of the error without its text.
    with pytest.raises(Exception, match=r"not built yet|FusedError\(\(\)\)"):
        compiled(q, qd)
    layer.forward_dynamics(q, qd, qd)
    torch.compiler.reset()
    sizes.clear()
    torch.testing.assert_close(compiled(q, qd), simulate(q, qd), rtol=1e-10, atol=1e-12)
    ((kernels, operations),) = sizes
    assert kernels == 2 and operations < 350


def test_rollouts_of_one_mechanism_share_kernels_that_end_with_it(arm, monkeypatch):
    """Regression: each call made all kernels anew."""
    monkeypatch.setattr(auto, "PAYS", 1)
    robot = arm.replace(damping=arm.damping + 0.1)
    q, qd = robot.random_state(2)
    made = auto.kernels_for(robot)
    assert auto.kernels_for(robot) is made and auto.kernels_for(arm) is not made
    before = ts.rollout(robot, ts.State(q, qd), None, steps=3)[:2]
    robot.mass.mul_(2.0)
    after, expected = (
        ts.rollout(robot, ts.State(q, qd), None, steps=3, fused=f)[:2] for f in (None, False)
    )
    robot.mass.mul_(0.5)
    torch.testing.assert_close(after, expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(before[1], after[1])
    gone = weakref.ref(made)
    del robot, made
    gc.collect()
    assert gone() is None
