"""Model predictive path integral control against NumPy, against closed forms, and on tasks."""

import math

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.control.normal_numbers import MODULI, MULTIPLIERS, normal_numbers, start_states
from torchsko.errors import NonFiniteError, ShapeError, TorchskoError

STEPS, DT, MASS = 6, 0.1, 2.0


@pytest.fixture(scope="module")
def slide():
    """A mass that moves along x without gravity."""
    builder = ts.MechanismBuilder("slide").link("mass", mass=MASS)
    return builder.joint("x", "prismatic", child="mass", axis=(1, 0, 0)).build(gravity=(0, 0, 0))


def running(mech, q, qd, u, aim):
    return torch.cat([q - aim, 0.1 * qd, 0.2 * u], -1)


def final(mech, q, qd, aim):
    return 3 * (q - aim).square().sum(-1)


@pytest.fixture(scope="module", params=[None, ts.fuse], ids=["eager", "kernel"])
def problem(slide, request):
    phase = ts.control.Phase(slide, STEPS, DT, running, final)
    limit = torch.tensor([4.0], dtype=torch.float64)
    return ts.control.optimal_control(
        [phase], goals={"aim": (1,)}, bounds=(-limit, limit), fuse=request.param
    )


def update(problem, q, qd, u, aim, **options):
    given = [torch.tensor(x, dtype=torch.float64) for x in (q, qd, u, aim)]
    deviation = torch.tensor([options.pop("deviation", 1.5)], dtype=torch.float64)
    defaults = {"temperature": 0.7, "samples": 64, "seed": 3}
    return ts.control.mppi(problem, *given, deviation=deviation, **defaults | options)


def cost_in_numpy(q, qd, v, aim):
    """Cost of inputs v `[samples, steps, 1]` from one state."""
    x, rate, cost = np.full(len(v), q), np.full(len(v), qd), np.zeros(len(v))
    for t in range(v.shape[1]):
        cost += ((x - aim) ** 2 + (0.1 * rate) ** 2 + (0.2 * v[:, t, 0]) ** 2) / 2
        rate = rate + DT * v[:, t, 0] / MASS
        x = x + DT * rate
    return cost + 3 * (x - aim) ** 2


def test_plan_is_the_weighted_mean_of_the_inputs_in_numpy(problem):
    q, aim = np.array([[0.2], [-0.4], [1.0]]), np.array([1.0])
    u = np.random.default_rng(0).normal(size=(3, STEPS, 1))
    found = update(problem, q, [0.5], u, aim)
    assert found.inputs.shape == (3, 64, STEPS, 1) and found.u.shape == (3, STEPS, 1)
    assert (
        0.01 < (found.inputs.abs() == 4).double().mean() < 0.5
    )  # some are at the bounds, none beyond
    assert (found.inputs.abs() <= 4).all()
    for k in range(3):
        v = found.inputs[k].numpy()
        cost = cost_in_numpy(q[k, 0], 0.5, v, 1.0)
        weights = np.exp(-(cost - cost.min()) / 0.7)
        weights /= weights.sum()
        assert np.allclose(found.cost[k], cost, rtol=1e-12)
        assert np.allclose(found.weights[k], weights, rtol=1e-10)
        assert np.allclose(found.u[k], np.einsum("k,ktj->tj", weights, v), rtol=1e-10)
    assert torch.allclose(found.weights.sum(-1), torch.ones(3).double(), rtol=1e-12)


def test_mean_of_many_samples_is_that_of_the_gaussian_posterior(slide):
    """For quadratic S: exp(-S / lambda) N(u, sigma^2) is a Gaussian with a mean in closed form."""
    phase = ts.control.Phase(slide, STEPS, DT, running, final)
    problem = ts.control.optimal_control([phase], goals={"aim": (1,)})
    u, temperature, sigma = np.linspace(-1, 1, STEPS), 2.0, 1.5
    basis = np.concatenate([np.zeros((1, STEPS)), np.eye(STEPS)])[..., None]
    at = lambda v: cost_in_numpy(0.0, 0.0, v, 1.0)  # noqa: E731
    zero = at(basis[:1])[0]
    pairs = at((basis[1:, None] + basis[None, 1:]).reshape(-1, STEPS, 1)).reshape(STEPS, STEPS)
    single = at(basis[1:])
    hessian = pairs - single[:, None] - single[None] + zero
    gradient = single - zero - hessian.diagonal() / 2
    precision = np.eye(STEPS) / sigma**2 + hessian / temperature
    expected = np.linalg.solve(precision, u / sigma**2 - gradient / temperature)
    options = {"temperature": temperature, "deviation": sigma, "samples": 200_000}
    found = update(problem, [0.0], [0.0], u[:, None], [1.0], **options)
    effective = 1 / float(found.weights.square().sum())
    error = np.abs(found.u[:, 0].numpy() - expected).max()
    assert error < 5 * sigma / math.sqrt(effective) < 0.1 * np.abs(u - expected).max()


def test_samples_depend_on_seed_problem_and_sample_alone(problem):
    u, aim = np.zeros((STEPS, 1)), [1.0]
    batch = update(problem, [[0.2], [0.7]], [0.0], u, aim)
    assert torch.equal(batch.inputs[0], update(problem, [0.2], [0.0], u, aim).inputs)
    fewer = update(problem, [[0.2], [0.7]], [0.0], u, aim, samples=5)
    assert torch.equal(fewer.inputs, batch.inputs[:, :5])
    other = update(problem, [[0.2], [0.7]], [0.0], u, aim, seed=4)
    pairs = [(batch.inputs, other.inputs), (batch.inputs[0], batch.inputs[1])]
    for x, y in pairs:
        assert (x == y).double().mean() < 0.2  # those at the bounds


def test_predictive_control_reaches_the_aim(problem, slide):
    q, qd, u, aim = (torch.zeros(n).double() for n in (1, 1, 1, 1))
    u, aim = u.expand(STEPS, 1), aim + 0.5
    deviation = torch.tensor([1.5], dtype=torch.float64)
    for k in range(40):
        options = {"deviation": deviation, "temperature": 0.02, "samples": 128, "seed": k}
        u = ts.control.mppi(problem, q, qd, u, aim, **options).u
        qd = qd + DT * u[0] / MASS
        q, u = q + DT * qd, torch.cat([u[1:], u[-1:]])
    assert abs(q - aim) < 0.03 and abs(qd) < 0.15


def test_phases_and_series_are_those_of_the_problem(slide):
    def wave(mech, q, qd, u, point):
        return torch.cat([q - point, 0.1 * u], -1)

    def after(mech, q, qd, point):
        return 2 * (q - point)

    phases = [ts.control.Phase(slide, n, dt, wave, after) for n, dt in ((3, 0.1), (4, 0.05))]
    problem = ts.control.optimal_control(phases, series={"point": (1,)})
    points = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    zero, u = torch.zeros(1).double(), torch.zeros(7, 1).double()
    options = {"deviation": torch.ones(1).double(), "temperature": 1.0, "samples": 9, "seed": 0}
    found = ts.control.mppi(problem, zero, zero, u, points, **options)
    for v, cost in zip(found.inputs, found.cost, strict=True):
        same = ts.control.ilqr(problem, zero, zero, v, points, max_iterations=0)
        assert torch.allclose(same.cost, cost, rtol=1e-12)


def test_states_of_the_generator_are_exact_in_float32():
    for m, a in zip(MODULI, MULTIPLIERS, strict=True):
        x = torch.arange(1, m)
        product = (a * x).float()
        assert torch.equal((product - m * (product / m).floor()).long(), a * x % m)
        assert torch.equal(
            (product - m * (product * (1 / torch.tensor(float(m)))).floor()).long(), a * x % m
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_normal_and_independent(dtype):
    state, rows = start_states(7, (2,), 20_000, torch.zeros(1, dtype=dtype)), []
    for _ in range(3):
        x, state = normal_numbers(state, 3)
        rows.append(x)
    x = torch.cat(rows, -1).double().flatten(0, 1)
    sorted_x = x.flatten().sort()[0]
    cdf = (1 + torch.erf(sorted_x / math.sqrt(2))) / 2
    distance = (cdf - torch.arange(len(cdf)) / len(cdf)).abs().max()
    assert distance < 1.63 / math.sqrt(len(cdf))  # 1 % of Kolmogorov's test
    bound = 4.5 / math.sqrt(len(x))
    for y in (x, x.square() - 1):
        correlation = torch.corrcoef(y.T) - torch.eye(9).double()
        assert correlation.abs().max() < bound
        neighbours = (y[1:] * y[:-1]).mean(0) / y.var(0)
        assert neighbours.abs().max() < bound


def test_bad_arguments_are_refused_by_name(problem, slide):
    u = np.zeros((STEPS, 1))
    for options in ({"temperature": 0.0}, {"samples": 0}, {"samples": 2.5}, {"seed": 1.5}):
        with pytest.raises(TorchskoError, match=next(iter(options))):
            update(problem, [0.0], [0.0], u, [1.0], **options)
    with pytest.raises(ShapeError, match="deviation has shape"):
        wrong = {"deviation": torch.ones(2).double(), "temperature": 1.0, "samples": 2, "seed": 0}
        zero = torch.zeros(1).double()
        ts.control.mppi(problem, zero, zero, torch.zeros(STEPS, 1).double(), zero, **wrong)
    with pytest.raises(NonFiniteError, match=r"no sample has a finite cost in problem \[1\]"):
        update(problem, [0.0], [0.0], u, [[1.0], [math.nan]])
    with pytest.raises(TorchskoError, match="mppi was given a dict"):
        ts.control.mppi({}, None, None, None, deviation=None, temperature=1.0, samples=1, seed=0)
    phase = ts.control.Phase(
        slide, 3, DT, lambda mech, q, qd, u: u, inequalities=lambda mech, q, qd, u: 1 - q
    )
    limited = ts.control.optimal_control([phase])
    with pytest.raises(TorchskoError, match="inequalities or cones"):
        zero = torch.zeros(1).double()
        options = {"deviation": zero + 1, "temperature": 1.0, "samples": 2, "seed": 0}
        ts.control.mppi(limited, zero, zero, torch.zeros(3, 1).double(), **options)


def test_samples_that_leave_the_finite_numbers_have_no_weight(slide):
    def barrier(mech, q, qd, u):
        return -(2 - u).log().sum(-1)

    problem = ts.control.optimal_control([ts.control.Phase(slide, 3, DT, barrier)])
    zero = torch.zeros(1).double()
    options = {"deviation": zero + 1.5, "temperature": 1.0, "samples": 50, "seed": 0}
    found = ts.control.mppi(problem, zero, zero, torch.zeros(3, 1).double(), **options)
    lost = ~found.cost.isfinite()
    assert 0 < lost.sum() < 25 and (found.weights[lost] == 0).all() and found.u.isfinite().all()


@pytest.mark.nightly  # builds a kernel of contact
def test_steps_with_contact_are_sampled_as_kernels():
    """A ball on a plane is pushed and rolls; kernels and eager functions agree."""
    ball = ts.load(
        """<mujoco><option timestep="0.005"/><worldbody><geom type="plane" size="1 1 1"/>
        <body pos="0 0 .1"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide"/>
        <joint name="roll" axis="0 1 0"/><geom size=".1" mass="1"/></body></worldbody></mujoco>"""
    )

    def cost(mech, q, qd, u, forces, aim):
        return torch.cat([q[..., :1] - aim, 0.1 * qd, 0.01 * u], -1)

    phase = ts.control.Phase(ball, 10, 0.005, cost, method=ts.ContactStep())
    zero = torch.zeros(3).double()
    options = {"deviation": torch.tensor([30.0, 0.0, 0.0]).double(), "temperature": 0.1}
    found = [
        ts.control.mppi(
            ts.control.optimal_control([phase], goals={"aim": (1,)}, fuse=fuse),
            *(zero, zero, torch.zeros(10, 3).double(), zero[:1] + 0.3),
            **options,
            samples=20,
            seed=0,
        )
        for fuse in (None, ts.fuse)
    ]
    for x, y in zip(*found, strict=True):
        assert torch.allclose(x, y, rtol=1e-6, atol=1e-9)
    assert found[0].cost.std() > 0
