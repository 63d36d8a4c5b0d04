"""External forces, lengths per sample, events, truncated gradients and binomial checkpoints of rollouts."""

from math import comb
from unittest.mock import patch

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchsko as ts
from tests.integrators.test_integrators import robot
from tests.states import normal_state
from torchsko.integrators.binomial import Binomial, next_checkpoint, repetitions
from torchsko.integrators.controls import Controller
from torchsko.integrators.event_location import stop_at


@pytest.fixture
def mech():
    return robot(("revolute", "spherical"))


def starts(mech, *batch):
    g = torch.Generator().manual_seed(1)
    q, _ = mech.random_state(*batch, generator=g)
    return q, torch.randn(*batch, mech.num_dof, generator=g, dtype=q.dtype), g


@pytest.mark.parametrize("method", ["semi_implicit_euler", "rk4"])
def test_external_forces_act_as_the_joint_forces_that_balance_them(mech, method):
    """By virtual work, f_ext equals the joint forces J* f_ext at every stage."""
    q, qd, g = starts(mech, 2)
    f = torch.randn(2, 3, mech.num_bodies, 6, generator=g, dtype=q.dtype)

    def balanced(t, q, qd):
        return -ts.inverse_dynamics(mech, q, qd, 0 * qd, f[:, round(t / 0.01 - 0.3)]) + (
            ts.inverse_dynamics(mech, q, qd, 0 * qd)
        )

    series = ts.rollout(
        mech, ts.State(q, qd), steps=3, dt=0.01, f_ext=f, method="semi_implicit_euler"
    )[:2]
    as_joints = ts.rollout(
        mech, ts.State(q, qd), balanced, steps=3, dt=0.01, method="semi_implicit_euler"
    )[:2]
    assert_close(series, as_joints)
    constant = ts.rollout(mech, ts.State(q, qd), steps=2, f_ext=f[:, :1], method=method)[:2]
    function = ts.rollout(
        mech, ts.State(q, qd), steps=2, f_ext=lambda t, q, qd: f[:, 0], method=method
    )[:2]
    assert_close(constant, function)
    plain = ts.rollout(mech, ts.State(q, qd), steps=2, method=method)[:2]
    assert (constant[1] - plain[1]).abs().max() > 1e-4


def test_external_forces_that_do_not_fit_are_named(mech):
    q, qd, _ = starts(mech)
    with pytest.raises(ts.ShapeError, match="f_ext has shape"):
        ts.rollout(
            mech, ts.State(q, qd), steps=3, f_ext=torch.zeros(2, mech.num_bodies, 6).double()
        )


def test_samples_stop_after_their_own_number_of_steps(mech):
    q, qd, _ = starts(mech, 3)
    lengths = torch.tensor([0, 2, 4])
    qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=4, lengths=lengths)
    for k, n in enumerate(lengths.tolist()):
        alone = ts.rollout(mech, ts.State(q[k], qd[k]), steps=n)[:2]
        assert_close((qs[k, : n + 1], qds[k, : n + 1]), alone)
        assert (qs[k, n:] == qs[k, n]).all() and (qds[k, n:] == qds[k, n]).all()
    with pytest.raises(ts.ShapeError, match="lengths"):
        ts.rollout(mech, ts.State(q, qd), steps=4, lengths=lengths.double())


def thrown():
    builder = ts.MechanismBuilder("ball")
    builder.link("ball", mass=1.0, inertia=torch.eye(3).tolist())
    builder.joint("fall", "prismatic", child="ball", axis=(0, 0, 1))
    return builder.build(gravity=(0, 0, -10))


def test_a_ball_lands_at_the_time_and_speed_of_free_fall():
    """The derivative of the time with respect to the height is 1 / speed."""
    ball = thrown()
    height = torch.tensor([[1.0], [2.0], [50.0]]).double().requires_grad_()
    still, dt = torch.zeros(3, 1).double(), 0.02
    qs, qds, *_ = ts.rollout(ball, ts.State(height, still), steps=40, dt=dt, method="rk4")
    found = stop_at(ball, qs, qds, lambda q, qd: q[..., 0])
    assert found.happened.tolist() == [True, True, False]
    seconds, speed = (2 * height / 10).sqrt()[:2, 0], (20 * height).sqrt()[:2, 0]
    # The error of a chord of the parabola is at most g dt^2 / 8.
    off = 10 * dt**2 / 8 / speed.min().item()
    assert_close(dt * found.time[:2], seconds, rtol=0, atol=off)
    assert_close(-found.qd[:2, -1, 0], speed, rtol=0, atol=10 * off)
    assert_close(found.q[:2, -1, 0], torch.zeros(2).double(), rtol=0, atol=1e-12)
    assert_close(found.q[2], qs[2])
    (slope,) = torch.autograd.grad(dt * found.time[:2].sum(), height)
    assert_close(slope[:2, 0], 1 / speed.detach(), rtol=10 * dt / 4, atol=0)


def test_what_follows_an_event_spoils_no_gradient_of_a_rollout_that_ends_there():
    """A force that overflows below the ground, and an event that is nan there."""
    ball, still, dt = thrown(), torch.zeros(2, 1).double(), 0.02
    slopes = []
    for k in (1e5, 0.0):
        height = torch.tensor([[1.0], [9.0]]).double().requires_grad_()
        law = lambda t, q, qd, k=k: 1 - (-k * (q + 0.1).clamp(max=0)).exp()  # noqa: E731
        event = lambda q, qd: torch.where(q < -0.2, torch.nan, q)[..., 0]  # noqa: E731
        first = ts.rollout(
            ball, ts.State(height, still), law, steps=40, dt=dt, method="rk4", nonfinite="ignore"
        )[:2]
        assert first[0].isfinite().all() == (k == 0)
        found = stop_at(ball, *first, event)
        again = ts.rollout(
            ball, ts.State(height, still), law, steps=40, dt=dt, method="rk4", lengths=found.lengths
        )[:2]
        found = stop_at(ball, *again, event)
        assert found.happened.tolist() == [True, False]
        states = found.q.sum() + found.qd.sum() + found.time.sum()
        slopes.append(torch.autograd.grad(states, height)[0])
    assert slopes[0].isfinite().all()
    assert_close(*slopes)


def test_an_event_is_looked_for_without_its_gradient():
    """The derivative of sqrt is nan at non-finite states and infinite at 0, where it must not enter."""
    ball = thrown()
    q = torch.tensor([[2.0], [1.0], [-1.0], [torch.nan]]).double().requires_grad_()
    found = stop_at(ball, q, torch.zeros(4, 1).double(), lambda q, qd: q[..., 0] * q[..., 0].abs())
    (slope,) = torch.autograd.grad(found.time, q)
    assert found.time == 1.5 and slope.isfinite().all() and (slope[1:3] != 0).all()


@pytest.mark.parametrize(
    "value",
    [lambda q, qd: q, lambda q, qd: None, lambda q, qd: q.sum(), lambda q, qd: q[..., 0] > 0],
)
def test_an_event_that_gives_no_number_for_each_state_is_named(mech, value):
    qs, qds, *_ = ts.rollout(mech, ts.State(*mech.random_state()), steps=2)
    with pytest.raises(ts.ShapeError, match=r"(?s)the event returned.*Return q\[\.\.\., 0\]"):
        stop_at(mech, qs, qds, value)
    with pytest.raises(ts.ShapeError, match=r"(?s)1 states.*steps=100"):
        stop_at(mech, qs[:1], qds[:1], lambda q, qd: q[..., 0])
    with pytest.raises(ts.ShapeError, match=r"(?s)1 states.*steps=100"):
        stop_at(mech, qs[0], qds[0], lambda q, qd: q[..., 0])


@pytest.mark.parametrize(
    "event", [lambda q: q[..., 0], lambda t, q, qd: q[..., 0], torch.nn.Linear, 0.5]
)
def test_an_event_of_other_arguments_than_a_state_is_named(mech, event):
    qs, qds, *_ = ts.rollout(mech, ts.State(*mech.random_state()), steps=2)
    with pytest.raises(
        ts.TorchskoError, match=r"event is .*, which cannot be called with q and qd"
    ):
        stop_at(mech, qs, qds, event)


def test_states_of_an_event_that_do_not_fit_are_named(mech):
    qs, qds, *_ = ts.rollout(mech, ts.State(*mech.random_state(3)), steps=4)
    event = lambda q, qd: q[..., 0]  # noqa: E731
    for states, words in [
        ((qs[..., 1:], qds), "qs has shape"),
        ((qs, qds.float()), "qds is torch.float32"),
        ((qs, qds[:, 1:]), r"qs has the batch dimensions \[3, 5\], qds has \[3, 4\]"),
        ((qs.numpy(), qds), "qs was given as ndarray"),
    ]:
        with pytest.raises(ts.ShapeError, match=words):
            stop_at(mech, *states, event)
    one = stop_at(mech, qs[:1].expand(3, -1, -1), qds, event)
    assert_close(stop_at(mech, qs[:1], qds, event), one)


def test_truncated_gradients_are_those_of_the_last_windows(mech):
    q, qd, g = starts(mech)
    tau = torch.randn(6, mech.num_dof, generator=g, dtype=q.dtype, requires_grad=True)
    whole = ts.rollout(mech, ts.State(q, qd), tau, steps=6)[:2]
    parts = ts.rollout(mech, ts.State(q, qd), tau, steps=6, truncate=4, checkpoint=3)[:2]
    assert_close(parts, whole)
    (g_parts,) = torch.autograd.grad(parts[1][-1].sum(), tau)
    tail = ts.rollout(mech, ts.State(whole[0][4].detach(), whole[1][4].detach()), tau[4:], steps=2)[
        :2
    ]
    (g_tail,) = torch.autograd.grad(tail[1][-1].sum(), tau)
    assert_close(g_parts, g_tail)
    assert (g_parts[:4] == 0).all() and (g_parts[4:] != 0).any()


def evaluations(steps, states):
    """Total number of computed steps of the schedule."""
    if steps == 1:
        return 1
    m = next_checkpoint(steps, states)
    return m + evaluations(m, states) + evaluations(steps - m, max(states - 1, 0))


@pytest.mark.parametrize("states", [1, 2, 3, 5])
def test_the_schedule_is_that_of_griewank_and_walther(states):
    """The optimal number of steps is r n - beta(s + 1, r - 1) + n, with s states including the start."""
    for steps in range(2, 60):
        r, s = repetitions(steps, states), states + 1
        least = r * steps - comb(s + r, s + 1)
        assert evaluations(steps, states) == steps + least


@pytest.mark.parametrize("states", [0, 1, 2])
def test_binomial_checkpoints_give_the_same_gradients_in_as_many_steps_as_planned(mech, states):
    q, qd, g = starts(mech, 2)
    tau = torch.randn(mech.num_dof, generator=g, dtype=q.dtype, requires_grad=True)
    count = [0]

    def control(t, q, qd):
        count[0] += 1
        return tau - 0.1 * qd

    found = []
    for checkpoint in (None, Binomial(states)):
        count[0] = 0
        qs, qds, *_ = ts.rollout(
            mech, ts.State(q, qd), control, steps=6, every=3, checkpoint=checkpoint
        )
        found.append((qs, qds, torch.autograd.grad(qds.sum() + qs.sum(), tau)[0]))
    assert_close(found[0], found[1], rtol=0, atol=0)
    assert count[0] == evaluations(6, states)


def test_forward_sensitivities_are_the_reverse_ones(mech):
    """One tangent through the rollout by forward mode."""
    q, qd, g = starts(mech)
    tau, step = torch.randn(2, 5, mech.num_dof, generator=g, dtype=q.dtype)
    run = lambda tau: ts.rollout(mech, ts.State(q, qd), tau, steps=5).qd[-1]  # noqa: E731
    _, tangent = torch.func.jvp(run, (tau,), (step,))
    leaf = tau.clone().requires_grad_()
    for k in range(2):
        (row,) = torch.autograd.grad(run(leaf)[k], leaf)
        assert_close((row * step).sum(), tangent[k])


def test_external_forces_are_in_the_one_kernel_of_all_steps():
    """Regression: each step was a kernel, and fused=True was refused."""
    mech = robot(("revolute",))
    q, qd = normal_state(mech, vectors=1)
    f = torch.ones(1, mech.num_bodies, 6, dtype=q.dtype)
    fast = ts.fuse(mech)
    with patch.object(type(fast), "advance", side_effect=AssertionError):
        found = ts.rollout(fast, ts.State(q, qd), steps=3, f_ext=f)[:2]
    assert_close(found, ts.rollout(mech, ts.State(q, qd), steps=3, f_ext=f)[:2])
    found = ts.rollout(fast, ts.State(q, qd), steps=3, f_ext=lambda t, q, qd: f[0], fused=True)[:2]
    assert_close(found, ts.rollout(mech, ts.State(q, qd), steps=3, f_ext=f)[:2])


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("control", "rows"),
    [
        pytest.param("series", 4, id="series-series"),
        pytest.param("law", 1, id="law-constant"),
        pytest.param("series", 1, id="series-constant", marks=pytest.mark.nightly),
        pytest.param("law", 4, id="law-series", marks=pytest.mark.nightly),
    ],
)
def test_the_one_kernel_has_the_gradient_of_external_forces(control, rows):
    mech = robot(("revolute", "spherical"))
    q, qd, g = starts(mech, 3)
    f = torch.randn(3, rows, mech.num_bodies, 6, generator=g, dtype=q.dtype, requires_grad=True)
    tau = {"series": torch.ones(1, 4, mech.num_dof).double(), "law": lambda t, q, qd: -0.3 * qd}
    fast, leaves, found = ts.fuse(mech), [x.requires_grad_() for x in (q, qd)], []
    for given, fused in ((fast, True), (mech, False)):
        lengths = torch.tensor([4, 0, 3])
        both = ts.rollout(
            given,
            ts.State(*leaves),
            tau[control],
            steps=4,
            dt=0.01,
            f_ext=f,
            lengths=lengths,
            every=2,
            fused=fused,
        )[:2]
        found.append(
            (*both, *torch.autograd.grad(both[0].square().sum() + both[1].sum(), [*leaves, f]))
        )
    assert_close(*found, rtol=1e-10, atol=1e-11)
    assert (found[0][-1][0] != 0).any() and (found[0][-1][1] == 0).all()


class Shapes(TorchDispatchMode):
    """Records the shapes of all tensors made inside the context."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.found |= {tuple(x.shape) for x in tree_leaves(made) if isinstance(x, torch.Tensor)}
        return made


@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 9])])
@pytest.mark.parametrize("control", ["series", "law"])
def test_constant_external_forces_have_no_gradient_of_a_series(control, lengths):
    """Regression: the gradient had the size of a series before it was summed."""
    mech = robot(("revolute",))
    q, qd, g = starts(mech, 2)
    f = torch.randn(2, 1, mech.num_bodies, 6, generator=g, dtype=q.dtype, requires_grad=True)
    tau = {"series": torch.ones(1, 9, mech.num_dof).double(), "law": lambda t, q, qd: -0.3 * qd}
    row = (2, 9, mech.num_bodies, 6)
    for f_ext, made in ((f, False), (f.expand(row), True)):
        qs = ts.rollout(
            ts.fuse(mech),
            ts.State(q, qd),
            tau[control],
            steps=9,
            dt=0.01,
            f_ext=f_ext,
            lengths=lengths,
            fused=True,
        ).q
        with Shapes() as shapes:
            torch.autograd.grad(qs.square().sum(), f)
        assert (row in shapes.found) == made


@pytest.mark.parametrize("control", ["series", "law"])
@pytest.mark.parametrize(
    "options", [{"truncate": 3}, {"truncate": 4, "every": 2}, {"truncate": 2, "checkpoint": 3}]
)
def test_windows_of_truncated_gradients_are_kernels(options, control):
    """No single step is called; time and memory continue across windows, and lengths are respected."""
    mech = robot(("revolute",))
    fast, lengths = ts.fuse(mech), torch.tensor([7, 5])
    q, qd = (x.expand(2, -1) for x in normal_state(mech, vectors=1))
    gain, found = torch.linspace(0.5, 2, 7, dtype=q.dtype)[:, None].requires_grad_(), []
    given = gain.expand(2, 7, mech.num_dof) if control == "series" else Winding(gain)
    fast.step = fast.forward_dynamics = None
    for robots in (fast, mech):
        fused = None if control == "series" else robots is fast
        states = ts.rollout(
            robots, ts.State(q, qd), given, steps=7, dt=0.1, lengths=lengths, fused=fused, **options
        )[:2]
        total = sum((x.cumsum(-2) * x).sum() for x in states)
        found.append((*states, *torch.autograd.grad(total, gain)))
    assert_close(*found)


class Winding(Controller):
    """A controller with memory that depends on the time."""

    def __init__(self, gain):
        self.gain = gain

    def initial_memory(self, q, qd):
        return torch.zeros_like(qd)

    def act(self, t, dt, q, qd, memory):
        push = self.gain.sum() * torch.cos(torch.as_tensor(3.0 * t, dtype=q.dtype))
        return push - memory, memory + dt * (qd + self.gain[0])


@pytest.mark.parametrize("lengths", [[0, -1, 2], [0, 5, 2]])
def test_lengths_that_no_rollout_has_are_refused(mech, lengths):
    q, qd = mech.random_state(3)
    with pytest.raises(ts.ShapeError, match="the rollout has 4 steps"):
        ts.rollout(mech, ts.State(q, qd), steps=4, lengths=torch.tensor(lengths))


def test_steps_are_a_whole_number(mech):
    with pytest.raises(ts.TorchskoError, match=r"steps is 10\.0"):
        ts.rollout(mech, ts.State(*mech.random_state()), steps=10.0)
