"""Limit springs: joints stay within their limits, rest on them, and are released, at any step."""

from pathlib import Path

import pytest
import torch

import torchsko as ts
from torchsko.integrators.limit_springs import LimitSprings

SPRINGS = LimitSprings()


def pendulum(damping=0.0):
    """Two rods on a cart without limits; the mass of the lower rod is 1 g."""
    inertia, small = (
        ((0.02, 0, 0), (0, 0.03, 0), (0, 0, 0.04)),
        ((1e-6, 0, 0), (0, 1e-6, 0), (0, 0, 1e-6)),
    )
    builder = ts.MechanismBuilder("limited")
    builder.link("cart", mass=2.0, inertia=inertia)
    builder.link("upper", mass=1.0, com=(0.1, 0, -0.3), inertia=inertia)
    builder.link("lower", mass=1e-3, com=(0.0, 0, -0.02), inertia=small)
    builder.link("ball", mass=0.3, com=(0.0, 0, -0.05), inertia=small)
    builder.joint("rail", "prismatic", child="cart", axis=(1, 0, 0), damping=damping)
    builder.joint(
        "shoulder", "revolute", child="upper", parent="cart", axis=(0, 1, 0), lower=-0.3, upper=0.4
    )
    builder.joint(
        "elbow", "revolute", child="lower", parent="upper", axis=(0, 1, 0), position=(0, 0, -0.5),
        lower=-0.1, upper=0.2,
    )  # fmt: skip
    builder.joint("ball", "spherical", child="ball", parent="upper", position=(0, 0, -0.5))
    return builder.build()


def state(mech, *batch, speed=1.0):
    g = torch.Generator().manual_seed(0)
    q, qd = mech.random_state(*batch, generator=g)
    return q, speed * qd


def beyond(mech, qs):
    """The largest excess over a limit."""
    return torch.maximum(qs - mech.upper, mech.lower - qs).amax()


def rod():
    inertia = ((0.02, 0, 0), (0, 0.03, 0), (0, 0, 0.04))
    builder = ts.MechanismBuilder("rod").link("rod", mass=1.0, com=(0.4, 0, 0.0), inertia=inertia)
    return builder.joint(
        "pin", "revolute", child="rod", axis=(0, -1, 0), lower=-0.3, upper=0.4
    ).build()


METHODS = ("semi_implicit_euler", "implicit")


@pytest.mark.some(1)
@pytest.mark.parametrize("method", METHODS)
def test_joints_stay_within_their_limits(method):
    """A joint driven by the impact of another penetrates its limit by one step's motion at most."""
    mech = pendulum()
    q, qd = state(mech, 8, speed=2.0)
    with torch.no_grad():
        free = ts.rollout(mech, ts.State(q, qd), steps=120, method=method).q
        held, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=120, method=method, limits=SPRINGS)
    assert beyond(mech, free) > 0.3
    assert beyond(mech, held) < 2e-3 * qds.abs().amax() + 1e-4
    assert beyond(mech, held) < 0.1 * beyond(mech, free)


@pytest.mark.parametrize("method", METHODS)
def test_a_joint_rests_where_spring_and_load_balance(method):
    mech, springs = rod(), LimitSprings(1e4, 200.0)
    with torch.no_grad():
        qs, qds, *_ = ts.rollout(
            mech, ts.State(mech.neutral(), mech.neutral()), steps=300, method=method, limits=springs
        )
    load = ts.inverse_dynamics(mech, qs[-1], 0 * qds[-1], 0 * qds[-1])
    assert load > 1
    torch.testing.assert_close(qs[-1], -0.3 - load / 1e4, rtol=0, atol=1e-9)


def test_a_limit_spring_steps_by_the_backward_euler_method():
    mech, h, k, d = rod(), 0.01, 1e4, 50.0
    q, qd = (torch.tensor([x], dtype=torch.float64) for x in (0.45, -0.2))
    bias, inertia = ts.bias_force(mech, q, 0 * qd), ts.mass_matrix(mech, q)[0]
    limits = LimitSprings(k, d)
    qds = ts.rollout(mech, ts.State(q, qd), steps=1, dt=h, limits=limits).qd
    # The spring acts at the end of the step, beyond the limit of 0.4 rad.
    expected = (inertia * qd - h * (bias + k * 0.05)) / (inertia + h * d + h * h * k)
    torch.testing.assert_close(qds[1], expected, rtol=1e-9, atol=1e-9)


def test_limit_springs_do_not_pull():
    mech = pendulum()
    q = mech.neutral()
    q[mech.q_slice("shoulder")] = 0.4 + 1e-6
    qd = torch.zeros(6, dtype=q.dtype)
    qd[mech.dof_slice("shoulder")] = -2.0
    with torch.no_grad():
        free = ts.rollout(mech, ts.State(q, qd), steps=20)[:2]
        held = ts.rollout(mech, ts.State(q, qd), steps=20, limits=SPRINGS)[:2]
    torch.testing.assert_close(held, free, rtol=0, atol=0)


@pytest.mark.parametrize("dt", [1e-4, 2e-3, 2e-2])
def test_springs_only_take_energy_at_any_step(dt):
    """Without gravity, the speed of a rod that hits its limits only decreases."""
    mech = pendulum().replace(gravity=torch.zeros(3, dtype=torch.float64))
    mech = mech.replace(armature=torch.full((6,), 1.0, dtype=torch.float64))
    q, qd = state(mech, 8)
    with torch.no_grad():
        qs, qds, *_ = ts.rollout(mech, ts.State(q, 5 * qd), steps=100, dt=dt, limits=SPRINGS)
    energy = (qds * (ts.mass_matrix(mech, qs) @ qds[..., None])[..., 0]).sum(-1)
    assert (energy.amax(-1) < 1.05 * energy[:, 0]).all()


def test_batches_are_their_samples_and_vmap_agrees():
    mech = pendulum()
    q, qd = state(mech, 2, 3, speed=2.0)
    each = LimitSprings(torch.full((6,), 1e5, dtype=q.dtype), torch.full((6,), 1e3, dtype=q.dtype))
    qs = ts.rollout(mech, ts.State(q, qd), steps=40, limits=each).q
    alone = ts.rollout(mech, ts.State(q[1, 2], qd[1, 2]), steps=40, limits=each).q
    torch.testing.assert_close(qs[1, 2], alone)
    mapped = torch.vmap(lambda q, qd: ts.rollout(mech, ts.State(q, qd), steps=40, limits=each).q)(
        q[0], qd[0]
    )
    torch.testing.assert_close(mapped, qs[0])


def pressed(mech, batch=2):
    """At rest beyond the limits, and moving into one."""
    q = mech.neutral().expand(batch, -1).clone()
    q[:, 1] = torch.tensor([0.45, -0.2995])
    qd = torch.zeros(batch, 6, dtype=q.dtype)
    qd[:, 1] = torch.tensor([0.0, -1.0])
    return q, qd


def test_gradients_pass_gradcheck_in_both_modes():
    mech = rod()

    def end(q, qd, stiffness, damping, upper):
        springs = LimitSprings(stiffness, damping)
        return ts.rollout(mech.replace(upper=upper), ts.State(q, qd), steps=3, limits=springs)[:2]

    # At rest beyond the limit, moving into it, and free.
    q, qd = [[0.45], [0.399], [0.0]], [[0.0], [2.0], [2.0]]
    given = (q, qd, [1e4], [200.0], [0.4])
    leaves = [torch.tensor(x, dtype=mech.dtype, requires_grad=True) for x in given]
    assert torch.autograd.gradcheck(end, leaves, check_forward_ad=True)


def test_limits_are_traced_to_kernels():
    mech = pendulum()
    q, qd = pressed(mech, 2)

    def end(mech, q, qd):
        qs, qds, *_ = ts.rollout(mech, ts.State(q, qd), steps=2, limits=SPRINGS)
        return qs[..., -1, :], qds[..., -1, :]

    expected = end(mech, q, qd)
    torch.testing.assert_close(ts.fuse(end, mech)(q, qd), expected)
    torch.testing.assert_close(end(ts.fuse(mech, inputs=("damping",)), q, qd), expected)
    torch.testing.assert_close(end(ts.fuse(mech), q, qd), expected)


@pytest.mark.parametrize("method", ["rk4", "newmark"])
def test_methods_that_would_blow_up_are_refused(method):
    mech = pendulum()
    with pytest.raises(ts.TorchskoError, match="semi_implicit_euler"):
        ts.rollout(mech, ts.State(*state(mech)), steps=1, method=method, limits=SPRINGS)


def falls(mech, steps):
    """A passive fall from random configurations penetrates by 5 mrad at most, and by 1 mrad at its end."""
    q, _ = mech.random_state(4, generator=torch.Generator().manual_seed(0))
    start = torch.zeros(4, mech.num_dof, dtype=q.dtype)
    with torch.no_grad():
        qs = ts.rollout(mech, ts.State(q, start), steps=steps, limits=SPRINGS, nonfinite="raise").q
    assert beyond(mech, qs) < 5e-3
    assert beyond(mech, qs[:, -1]) < 1e-3


def test_a_falling_arm_stays_within_its_limits():
    falls(ts.load(ts.robots.panda), 250)


@pytest.mark.nightly
def test_an_arm_that_falls_for_five_seconds_stays_within_its_limits():
    falls(ts.load(ts.robots.panda), 2500)


@pytest.mark.nightly
def test_a_humanoid_that_falls_for_five_seconds_is_brought_back_within_its_limits():
    """Fingertips of about 1e-6 kg m^2 pass their limits in an impact within a step, and return."""
    pin = pytest.importorskip("pinocchio")  # example-robot-data installs beside it
    robots = Path(pin.__file__).parents[4] / "share" / "example-robot-data" / "robots"
    mech = ts.load(robots / "talos_data" / "robots" / "talos_full_v2.urdf", mimic="independent")
    q, _ = mech.random_state(4, generator=torch.Generator().manual_seed(0))
    start, fast = torch.zeros(4, mech.num_dof, dtype=q.dtype), ts.fuse(mech)
    qs = ts.rollout(
        fast,
        ts.State(q, start),
        lambda t, q, qd: 0 * qd,
        steps=2500,
        limits=SPRINGS,
        nonfinite="raise",
        fused=True,
    ).q
    outside = torch.maximum(qs - mech.upper, mech.lower - qs) > 5e-3
    assert outside.double().mean() < 1e-3
    assert not (outside[:, :-50] & outside[:, 50:]).any()  # a tenth of a second later
    assert beyond(mech, qs[:, -1]) < 1e-3


def test_what_a_refusal_of_limits_says_to_type_can_be_typed():
    mech = pendulum()
    with pytest.raises(ts.TorchskoError) as refused:
        ts.rollout(mech, ts.State(mech.neutral(), torch.zeros(mech.num_dof).double()), limits=1e6)
    line = str(refused.value).splitlines()[-1]
    value = line.removeprefix("Pass limits=").removesuffix(".")
    assert isinstance(eval(value, {"ts": ts}), LimitSprings)
