"""Rollout kernels with controls agree with eager rollouts, with gradients of the control."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.errors import FusedError
from torchsko.integrators.controls import Controller
from torchsko.integrators.limit_springs import LimitSprings
from torchsko.integrators.motor import PID, Motor, MotorControl

STEPS, DT = 12, 1e-3


@pytest.fixture
def start(arm):
    q, qd = arm.random_state(3, generator=torch.Generator().manual_seed(2))
    return q, qd / 10


def both(arm, fast, start, control, **options):
    return [
        ts.rollout(fast, ts.State(*start), control, steps=STEPS, dt=DT, fused=True, **options)[:2],
        ts.rollout(arm, ts.State(*start), control, steps=STEPS, dt=DT, **options)[:2],
    ]


def assert_same(mine, theirs, tolerance=1e-10):
    for x, y in zip(mine, theirs, strict=True):
        assert (x - y).abs().max() <= tolerance * (1 + y.abs().max())


@pytest.mark.nightly
def test_feedback_with_gains_that_learn(arm, fast, start):
    kp = torch.full((7,), 30.0, dtype=torch.float64, requires_grad=True)
    target = arm.middle().requires_grad_()

    def law(t, q, qd):
        return kp * (target - q) - 4 * qd + torch.sin(torch.as_tensor(9.0 * t, dtype=q.dtype))

    found = both(arm, fast, start, law)
    assert_same(*found)
    pulled = [torch.autograd.grad((qs**2).sum() + qds.sum(), [kp, target]) for qs, qds in found]
    assert_same(*pulled, 1e-9)
    with torch.no_grad():
        kp.mul_(2)
    assert_same(*both(arm, fast, start, law))


@pytest.mark.nightly
def test_a_policy_is_trained_through_the_kernel(arm, fast, start):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(14, 16), nn.Tanh(), nn.Linear(16, 7)).double()

    def policy(t, q, qd):
        return 5 * net(torch.cat([q, qd], -1))

    pulled = []
    for qs, qds in both(arm, fast, start, policy):
        loss = qs[:, -1].square().sum() + 0.1 * qds[:, -1].square().sum()
        pulled.append(torch.autograd.grad(loss, list(net.parameters())))
    assert_same(*pulled)


@pytest.mark.some(1)
@pytest.mark.parametrize("method", ["rk4", "implicit"])
def test_methods_with_several_stages_or_solvers_have_kernels(arm, fast, start, method):
    def law(t, q, qd):
        return -3.0 * qd + torch.as_tensor(t * 10, dtype=q.dtype)

    assert_same(*both(arm, fast, start, law, method=method))


def test_a_controller_has_a_memory(arm, fast, start):
    goal = arm.middle()

    def target(t):
        return goal, torch.zeros_like(goal), torch.zeros_like(goal)

    pid = PID(kp=20.0, ki=50.0, kd=2.0)
    control = MotorControl(arm, target, Motor(0.0, 0.0, 0.0), pid)
    assert_same(*both(arm, fast, start, control))


@dataclass
class Integral(Controller):
    """A controller as a mutable dataclass, which is not hashable."""

    gain: float
    goal: torch.Tensor

    def initial_memory(self, q, qd):
        return torch.zeros_like(qd)

    def act(self, t, dt, q, qd, memory):
        return self.gain * memory - qd, memory + dt * (self.goal - q)


def test_captured_values_of_a_control_are_followed(arm, fast, start):
    first, other = Integral(50.0, arm.middle()), Integral(50.0, arm.middle())
    assert_same(*both(arm, fast, start, first))
    other.goal = other.goal + 1.0
    assert_same(*both(arm, fast, start, other))
    first.goal = first.goal - 1.0  # read again by the existing kernel
    assert_same(*both(arm, fast, start, first))


@pytest.mark.parametrize("first", ["a series", "held"])
def test_forces_of_each_step_and_forces_held_have_kernels_of_their_own(arm, fast, first):
    """Regression with as many samples as steps: a shared kernel mixed up constant forces and series."""
    g = torch.Generator().manual_seed(3)
    start = tuple(x / 3 for x in arm.random_state(STEPS, generator=g))
    series = torch.randn(STEPS, STEPS, arm.num_bodies, 6, generator=g, dtype=torch.float64)

    def law(t, q, qd):
        return -2.0 * qd

    both_kinds = [series, series[:, :1].clone()]
    for f_ext in both_kinds if first == "a series" else reversed(both_kinds):
        assert_same(*both(arm, fast, start, law, f_ext=f_ext))


def test_windows_of_a_law_end_with_one_step_under_forces_that_are_held(arm, fast, start):
    def law(t, q, qd):
        return -2.0 * qd

    f_ext = torch.randn(3, 1, arm.num_bodies, 6, dtype=torch.float64)
    assert_same(*both(arm, fast, start, law, f_ext=f_ext, truncate=STEPS - 1))


def test_forces_saturate_and_limits_hold(arm, fast):
    q, qd = (arm.upper - 1e-3)[None], torch.ones(1, 7, dtype=torch.float64)

    def law(t, q, qd):
        return 500 * torch.ones_like(qd)

    mine, theirs = both(
        arm, fast, (q, qd), law, effort="clamp", limits=LimitSprings(stiffness=1e5, damping=1e3)
    )
    assert_same(mine, theirs, 1e-8)
    assert (mine[0][:, -1] <= arm.upper + 5e-3).all()


def test_what_sees_a_batch_is_refused(arm, fast, start):
    gains = torch.ones(3, 7, dtype=torch.float64)
    with pytest.raises(FusedError, match="one sample"):
        ts.rollout(
            fast, ts.State(*start), lambda t, q, qd: -gains * qd, steps=STEPS, dt=DT, fused=True
        )
    with pytest.raises(FusedError, match="random"):
        ts.rollout(
            fast,
            ts.State(*start),
            lambda t, q, qd: torch.randn(7).double(),
            steps=STEPS,
            dt=DT,
            fused=True,
        )
    with pytest.raises(IndexError) as caught:  # torch's message, which gives no reason
        ts.rollout(
            fast,
            ts.State(*start),
            lambda t, q, qd: torch.cat([q, qd], 1),
            steps=STEPS,
            dt=DT,
            fused=True,
        )
    assert "with one sample, without batch dimensions: q [7], qd [7]" in caught.value.__notes__[0]


def test_a_mechanism_without_kernels_is_refused_with_advice(arm, start):
    with pytest.raises(FusedError, match=r"Pass ts\.fuse\(mech\)"):
        ts.rollout(arm, ts.State(*start), None, steps=STEPS, dt=DT, fused=True)


@pytest.mark.filterwarnings("ignore:no C.. compiler")
def test_without_a_compiler_a_law_that_remembers_nothing_runs_by_steps(arm, start, monkeypatch):
    """Regression: an empty memory with a batch raised "cannot reshape tensor of 0 elements"."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    gain = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    found = both(arm, ts.fuse(arm), start, lambda t, q, qd: -gain * qd)
    assert_same(*found)
    assert_same(*(torch.autograd.grad(qs.square().sum(), [gain]) for qs, _ in found), 1e-9)


def test_declined_kernels_run_eagerly(arm, fast, start):
    mine = ts.rollout(fast, ts.State(*start), None, steps=STEPS, dt=DT, fused=False)[:2]
    theirs = ts.rollout(arm, ts.State(*start), None, steps=STEPS, dt=DT)[:2]
    assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


@pytest.mark.nightly
def test_kernels_of_the_last_eight_controls_are_kept():
    inertia = (0.1 * torch.eye(3)).tolist()
    builder = ts.MechanismBuilder().link("rod", mass=1.0, com=(0, 0, -1), inertia=inertia)
    rod = builder.joint("hinge", "revolute", child="rod", axis=(1, 0, 0)).build()
    fast = ts.fuse(rod)
    laws = [lambda t, q, qd, k=k: -k * qd for k in range(9)]
    for law in laws:
        ts.rollout(fast, ts.State(rod.neutral(), rod.neutral()), law, steps=2, dt=DT, fused=True)
    first, last = weakref.ref(laws[0]), weakref.ref(laws[-1])
    del laws, law
    gc.collect()
    assert first() is None and last() is not None


@pytest.mark.parametrize("inputs", [(), ("damping",)])
def test_a_law_moves_a_fleet_of_no_robots(inputs):
    mech = random_mechanism(["revolute", "revolute"], [-1, 0], seed=1)
    none = mech.replace(mass=mech.mass.expand(0, 2))
    mass = none.mass.clone().requires_grad_()
    q, qd = mech.random_state()
    fast = ts.fuse(none, inputs=inputs).replace(mass=mass)
    qs = ts.rollout(fast, ts.State(q, qd), lambda t, q, qd: -qd, steps=2, fused=True).q
    assert qs.shape == (0, 3, 2)
    assert torch.autograd.grad(qs.sum(), mass)[0].shape == (0, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["module", "function"])
def test_a_compiled_caller_leaves_its_graph_for_a_kernel_of_all_steps(kind):
    """Regression: Dynamo traced the kernel compiler and failed."""
    mech = random_mechanism(["revolute", "revolute"], [-1, 0])
    fast, (q, qd) = ts.fuse(mech), mech.random_state(3, generator=torch.Generator().manual_seed(0))
    net = nn.Linear(2, 2, dtype=torch.float64)
    gain = net.weight

    class Law(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, t, q, qd):
            return -self.net(qd)

    law = Law() if kind == "module" else lambda t, q, qd: -qd @ gain.mT

    def end(mech, fused):
        return ts.rollout(mech, ts.State(q, qd), law, steps=STEPS, dt=DT, fused=fused).qd.sin()

    mine = torch.compile(lambda: end(fast, True), backend="eager")()
    theirs = end(mech, None)
    assert_same([mine], [theirs])
    assert_same(*([torch.autograd.grad(x.sum(), gain)[0]] for x in (mine, theirs)))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Leave out fused"):
        torch.compile(lambda: end(fast, True), backend="eager", fullgraph=True)()


@pytest.mark.parametrize(("width", "is_outside"), [(16, False), (128, True)])
def test_wide_networks_run_outside_of_the_kernel(caplog, arm, fast, start, width, is_outside):
    net = nn.Sequential(
        nn.Linear(14, width), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, 7)
    )
    net = net.double()
    batches = []

    def policy(t, q, qd):
        batches.append(q.shape[:-1])
        return net(torch.cat([q, qd], -1))

    found = [
        ts.rollout(fast, ts.State(*start), policy, steps=3, dt=DT, fused=True)[:2] for _ in range(2)
    ][1]
    assert (batches[-1] == (3,)) is is_outside
    assert sum("outside of the kernel" in x.message for x in caplog.records) == is_outside
    assert_same(found, ts.rollout(arm, ts.State(*start), policy, steps=3, dt=DT)[:2])
