"""Linear models of a mechanism at a state, in continuous and discrete time."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import jvp, vmap

import torchsko as ts
from tests.states import normal_state
from tests.strategies import agree, any_mechanisms, random_mechanism, seeds
from torchsko.integrators.adaptive_steps import dormand_prince
from torchsko.integrators.integrators import SEMI_IMPLICIT_EULER
from torchsko.integrators.midpoint import ImplicitMidpoint

any_mechanism = any_mechanisms(2, 3)
MIXED = random_mechanism(["free", "universal", "spherical"], [-1, 0, 1], seed=4, passive=False)


def direction(mech: ts.Mechanism, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed + 1)
    return torch.randn(3, mech.num_dof, generator=g, dtype=torch.float64).unbind()


@given(any_mechanism, seeds, st.sampled_from(["semi_implicit_euler", "rk4"]))
def test_the_model_in_discrete_time_is_the_derivative_of_a_step_of_a_rollout(mech, seed, method):
    q, qd, tau = normal_state(mech, seed=seed)
    step, push, force = direction(mech, seed)
    A, B = ts.linearize(mech, ts.State(q, qd), tau, dt=0.01, method=method)

    def end(t: Tensor) -> tuple[Tensor, Tensor]:
        start = ts.integrate(mech, q, t * step)
        qs, qds, *_ = ts.rollout(
            mech, ts.State(start, qd + t * push), tau + t * force, steps=1, dt=0.01, method=method
        )
        return qs[-1], qds[-1]

    t = torch.zeros((), dtype=q.dtype)
    nominal, _ = end(t)
    moved = lambda t: torch.cat([ts.difference(mech, nominal, end(t)[0]), end(t)[1]])  # noqa: E731
    expected = jvp(moved, (t,), (torch.ones_like(t),))[1]
    agree(A @ torch.cat([step, push]) + B @ force, expected, 1e-9)


@given(any_mechanism, seeds)
def test_in_continuous_time_the_velocity_changes_as_forward_dynamics_say(mech, seed):
    q, qd, tau = normal_state(mech, seed=seed)
    step, push, force = direction(mech, seed)
    A, B = ts.linearize(mech, ts.State(q, qd), tau)
    n, t = mech.num_dof, torch.zeros((), dtype=q.dtype)

    def qdd(t: Tensor) -> Tensor:
        there = ts.integrate(mech, q, t * step)
        return ts.forward_dynamics(mech, there, qd + t * push, tau + t * force)

    expected = jvp(qdd, (t,), (torch.ones_like(t),))[1]
    agree((A @ torch.cat([step, push]) + B @ force)[n:], expected, 1e-9)
    agree(ts.mass_matrix(mech, q) @ B[n:], torch.eye(n, dtype=q.dtype), 1e-9)
    assert not B[:n].any()


def test_short_steps_tend_to_the_model_in_continuous_time():
    """Also at joints with rotating axes."""
    q, qd, tau = normal_state(MIXED, seed=1)
    A, B = ts.linearize(MIXED, ts.State(q, qd), tau)
    h = 1e-3
    forward, backward = (
        ts.linearize(MIXED, ts.State(q, qd), tau, dt=x, method="rk4") for x in (h, -h)
    )
    for continuous, ahead, behind in zip((A, B), forward, backward, strict=True):
        agree((ahead - behind) / (2 * h), continuous, 1e-4)
    half = [ts.linearize(MIXED, ts.State(q, qd), tau, dt=x / 2, method="rk4")[0] for x in (h, -h)]
    coarse, fine = ((a - b) / d for a, b, d in ((forward[0], backward[0], 2 * h), (*half, h)))
    agree((4 * fine - coarse) / 3, A, 1e-8)


def test_at_rest_a_step_is_the_exponential_of_the_model():
    q, *_ = normal_state(MIXED.replace(gravity=0 * MIXED.gravity), seed=2)
    sprung = MIXED.replace(
        gravity=0 * MIXED.gravity,
        stiffness=torch.full_like(MIXED.stiffness, 2.0),
        spring_reference=q,
    )
    still = torch.zeros(MIXED.num_dof, dtype=q.dtype)
    A, _ = ts.linearize(sprung, ts.State(q, still), still)
    h = 0.004
    there, _ = ts.linearize(sprung, ts.State(q, still), still, dt=h, method="rk4")
    agree(there, torch.matrix_exp(h * A), 1e-8)


@pytest.mark.parametrize("method", ["semi_implicit_euler", "implicit"])
def test_at_rest_dry_friction_is_damping_for_what_is_slower_than_it_creeps(method):
    arm = ts.load(ts.robots.panda)
    q, still = arm.middle(), torch.zeros(arm.num_dof, dtype=arm.dtype)
    tau, push = ts.gravity_force(arm, q), torch.linspace(-1, 1, 7, dtype=arm.dtype)
    A, _ = ts.linearize(arm, ts.State(q, still), tau, dt=1e-3, method=method)

    def off(size: float) -> float:
        ends = [
            ts.rollout(arm, ts.State(q, x * size * push), tau, steps=1, dt=1e-3, method=method).qd[
                -1
            ]
            for x in (1.0, -1.0)
        ]
        found, told = (ends[0] - ends[1]) / (2 * size), A[7:, 7:] @ push
        return float((found - told).abs().max() / told.abs().max())

    assert off(1e-7) < 1e-4
    assert off(1e-3) > 0.1


def pushed(mech, accelerate, t, q, qd, dt):
    """A step that also returns a result."""
    q, qd = SEMI_IMPLICIT_EULER(mech, accelerate, t, q, 1.1 * qd, dt)
    return q, qd, qd.sum(-1)


def test_every_sample_is_linearized_on_its_own_with_a_step_of_its_own():
    q, qd, tau = normal_state(MIXED, 2, 3, seed=3)
    dt = torch.tensor([0.01, 0.02, 0.03]).double()
    mass = MIXED.mass * torch.tensor([[1.0], [2.0]]).double()[:, None]
    for step in (None, dt):
        A, B = ts.linearize(MIXED.replace(mass=mass), ts.State(q, qd), tau[0], dt=step)
        for i in range(2):
            for k in range(3):
                mech = MIXED.replace(mass=mass[i, 0])
                own = None if step is None else float(step[k])
                alone = ts.linearize(mech, ts.State(q[i, k], qd[i, k]), tau[0, k], dt=own)
                agree(A[i, k], alone[0], 1e-11)
                agree(B[i, k], alone[1], 1e-11)


def test_gradients_pass_through_the_model():
    """A linear model is a derivative already, so it is not part of the transform tests."""
    mech = random_mechanism(["spherical", "revolute"], [-1, 0], seed=6)
    tensors = (*normal_state(mech, seed=7), mech.mass, mech.damping)

    def model(q: Tensor, qd: Tensor, tau: Tensor, mass: Tensor, damping: Tensor):
        robot = mech.replace(mass=mass, damping=damping)
        return *ts.linearize(robot, ts.State(q, qd), tau), *ts.linearize(
            robot, ts.State(q, qd), tau, dt=0.02
        )

    leaves = tuple(x.detach().clone().requires_grad_() for x in tensors)
    assert gradcheck(model, leaves, fast_mode=True, check_undefined_grad=False)


def test_vmap_and_layers_give_the_same_model():
    q, qd, tau = normal_state(MIXED, 3, seed=8)
    expected = ts.linearize(MIXED, ts.State(q, qd), tau, dt=0.01)
    mapped = vmap(lambda q, qd, u: ts.linearize(MIXED, ts.State(q, qd), u, dt=0.01))(q, qd, tau)
    for other in (mapped, ts.linearize(ts.Dynamics(MIXED), ts.State(q, qd), tau, dt=0.01)):
        for actual, wanted in zip(other, expected, strict=True):
            agree(actual, wanted, 1e-12)


def test_an_unknown_method_is_refused():
    with pytest.raises(ts.TorchskoError, match="no method is named 'euler'"):
        ts.linearize(MIXED, ts.State(*normal_state(MIXED)[:2]), dt=0.01, method="euler")


@pytest.mark.some(1)
@pytest.mark.parametrize("options", [{}, {"dt": 0.01}, {"dt": 0.01, "method": "rk4"}], ids=str)
def test_one_kernel_gives_both_matrices_of_any_step(options):
    mech = random_mechanism(["spherical"], [-1], seed=3)
    given = normal_state(mech, 3, seed=1)
    for mine, eager in zip(
        ts.linearize(ts.fuse(mech), ts.State(*given[:2]), given[2], **options),
        ts.linearize(mech, ts.State(*given[:2]), given[2], **options),
        strict=True,
    ):
        agree(mine, eager, 1e-12)


def test_a_fused_mechanism_linearizes_steps_that_kernels_lack():
    """A time step that is a tensor, and a method that is an object."""
    mech = random_mechanism(["spherical", "revolute"], [-1, 0], seed=3)
    q, qd, tau = normal_state(mech, 2, seed=1)
    fast, state = ts.fuse(mech), ts.State(q, qd)
    expected = ts.linearize(mech, state, tau, dt=0.01)
    for options in (
        {"dt": torch.tensor(0.01, dtype=torch.float64)},
        {"dt": 0.01, "method": SEMI_IMPLICIT_EULER},
    ):
        for mine, wanted in zip(ts.linearize(fast, state, tau, **options), expected, strict=True):
            agree(mine, wanted, 1e-12)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "method", [ImplicitMidpoint(), dormand_prince(), pushed], ids=["midpoint", "adaptive", "pushed"]
)
def test_linear_models_of_steps_that_are_objects_equal_differences(method):
    mech = random_mechanism(["spherical", "revolute"], [-1, 0], seed=4)
    mech = mech.replace(friction=torch.zeros_like(mech.friction))
    q, qd, tau = normal_state(mech, seed=5)
    n, h, options = mech.num_dof, 1e-5, {"dt": 0.02, "method": method}
    found = torch.cat(ts.linearize(mech, ts.State(q, qd), tau, **options), -1)
    end = ts.rollout(mech, ts.State(q, qd), tau, steps=1, **options).last_state

    def after(change: Tensor) -> Tensor:
        d, rate, force = change.split(n)
        start = ts.State(ts.integrate(mech, q, d), qd + rate)
        there = ts.rollout(mech, start, tau + force, steps=1, **options).last_state
        return torch.cat([ts.difference(mech, end.q, there.q), there.qd])

    unit = h * torch.eye(3 * n, dtype=q.dtype)
    near = torch.stack([(after(x) - after(-x)) / (2 * h) for x in unit], -1)
    torch.testing.assert_close(found, near, rtol=1e-6, atol=1e-7)
