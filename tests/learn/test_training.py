"""Training recovers the parameters that generated the data, and refuses invalid data."""

import logging
import sys

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

import torchsko as ts
from tests.states import usual_state
from tests.strategies import mechanisms, random_mechanism
from torchsko.learn import InertiaLogCholesky, Positive
from torchsko.utils.optional_dependencies import require


@given(mechanisms(), mechanisms())
def test_divergence_is_zero_for_equals_and_positive_else(mech, other):
    itself = ts.learn.inertia_divergence(mech, mech)
    assert_close(itself, torch.zeros_like(itself), rtol=0, atol=1e-9)
    heavier = mech.replace(mass=1.1 * mech.mass)
    assert (ts.learn.inertia_divergence(heavier, mech) > 1e-4).all()


@given(mechanisms())
def test_divergence_does_not_depend_on_units_or_frames(mech):
    other = mech.replace(mass=1.3 * mech.mass, com=mech.com + 0.1, inertia=1.5 * mech.inertia)
    shift = torch.tensor([0.3, -0.2, 0.5], dtype=mech.dtype)

    def elsewhere(m):  # kilograms to grams, frame moved
        return m.replace(mass=1e3 * m.mass, inertia=1e3 * m.inertia, com=m.com + shift)

    assert_close(
        ts.learn.inertia_divergence(elsewhere(other), elsewhere(mech)),
        ts.learn.inertia_divergence(other, mech),
        rtol=1e-7,
        atol=1e-7,
    )


def test_exciting_trajectories_are_consistent_periodic_and_within_limits():
    arm = ts.load(ts.robots.panda)
    motion = ts.identification.exciting_trajectory(
        arm, limit_fraction=0.7, generator=torch.Generator().manual_seed(0)
    )
    t = torch.linspace(0, motion.period, 2001, dtype=arm.dtype)
    q, qd, qdd = motion(t)
    assert_close(q[0], q[-1])
    for f, rate in ((lambda t: motion(t)[0], qd), (lambda t: motion(t)[1], qdd)):
        assert_close(torch.func.jvp(f, (t,), (torch.ones_like(t),))[1], rate)
    center = (arm.lower + arm.upper) / 2
    part = torch.maximum(
        (q - center).abs().amax(0) / ((arm.upper - arm.lower) / 2),
        qd.abs().amax(0) / arm.velocity_limit,
    )
    # Each joint reaches one of its limits' share; between grid points it may pass it by a little.
    assert_close(part, torch.full_like(part, 0.7), rtol=0, atol=0.01)


def test_exciting_trajectories_refuse_joints_without_a_single_coordinate():
    mech = random_mechanism(["revolute", "spherical"], [-1, 0])
    with pytest.raises(ts.MechanismError, match="'joint1' is spherical"):
        ts.identification.exciting_trajectory(mech)


def test_the_fit_finds_the_torques_of_a_robot_it_has_not_seen():
    truth = random_mechanism(["revolute"] * 2, [-1, 0], seed=4)
    nominal = truth.replace(
        mass=1.3 * truth.mass,
        com=truth.com + 0.05,
        inertia=0.8 * truth.inertia,
        damping=0.5 * truth.damping,
        friction=2 * truth.friction,
    )
    learn = {body: InertiaLogCholesky() for body in nominal.body_names}
    learn |= {f"{j}.{f}": Positive() for j in nominal.joint_names for f in ("damping", "friction")}
    layer = ts.Dynamics(nominal, learn)
    q, qd, qdd = usual_state(truth, 500)
    tau = ts.inverse_dynamics(truth, q, qd, qdd)
    losses = ts.learn.train(
        layer, q, qd, qdd, tau, steps=300, batch=64, progress=False,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert losses.shape == (300,)
    q, qd, qdd = usual_state(truth, 500, seed=1)
    tau = ts.inverse_dynamics(truth, q, qd, qdd)
    before = (ts.inverse_dynamics(nominal, q, qd, qdd) - tau).square().mean()
    after = (layer.inverse_dynamics(q, qd, qdd) - tau).square().mean()
    assert after < 1e-3 * before


def test_samples_of_weight_zero_do_not_count():
    mech = random_mechanism(["revolute"] * 2, [-1, 0], seed=4)
    q, qd, qdd = usual_state(mech, 100)
    tau = torch.randn(100, 2, generator=torch.Generator().manual_seed(1), dtype=q.dtype)
    weight = torch.ones_like(tau).index_fill(0, torch.arange(50), 0.0)
    fits = []
    for torques in (tau, torch.where(weight == 0, tau + 100, tau)):
        layer = ts.Dynamics(mech, {"body1": InertiaLogCholesky()})
        g = torch.Generator().manual_seed(0)
        options = {"weight": weight, "steps": 3, "progress": False, "generator": g}
        fits.append((ts.learn.train(layer, q, qd, qdd, torques, **options), *layer.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*fits, strict=True))


def arm_and_data(*lead):
    """Two joints, a layer that learns one body and a joint's damping, and exact measurements."""
    mech = random_mechanism(["revolute", "prismatic"], [-1, 0], seed=4)
    learn = {"body1": InertiaLogCholesky(), "joint0.damping": Positive()}
    q, qd, qdd = usual_state(mech, *lead)
    tau = ts.inverse_dynamics(mech.replace(mass=1.2 * mech.mass), q, qd, qdd)
    return ts.Dynamics(mech, learn), (q, qd, qdd, tau)


def fit(layer, data, **options):
    options = {"steps": 3, "batch": 16, "progress": False, **options}
    return ts.learn.train(layer, *data, generator=torch.Generator().manual_seed(0), **options)


def test_trajectories_are_the_samples_that_they_hold():
    fits = []
    for flatten in (False, True):
        layer, data = arm_and_data(4, 25)
        weight = torch.rand(
            4, 25, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64
        )
        if flatten:
            data, weight = [x.flatten(0, 1) for x in data], weight.flatten(0, 1)
        fits.append((fit(layer, data, weight=weight), *layer.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*fits, strict=True))


def test_a_weight_of_each_dof_counts_for_all_samples():
    fits = []
    for expand in (False, True):
        layer, data = arm_and_data(20)
        weight = torch.tensor([0.5, 0.0], dtype=torch.float64)
        weight = weight.expand(20, 2) if expand else weight
        fits.append((fit(layer, data, weight=weight), *layer.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*fits, strict=True))


def test_the_default_error_of_one_sample_is_the_mean_square_of_its_relative_errors():
    layer, (q, qd, qdd, tau) = arm_and_data(1)
    relative = (layer.inverse_dynamics(q, qd, qdd) - tau) / tau
    assert_close(fit(layer, (q, qd, qdd, tau), steps=1)[0], relative.detach().square().mean())


def test_measurements_of_other_leading_dimensions_are_refused():
    layer, (q, qd, qdd, tau) = arm_and_data(4, 25)
    with pytest.raises(
        ts.ShapeError, match=r"qd has the leading dimensions \[25\], tau has \[4, 25\]"
    ):
        fit(layer, (q, qd[0], qdd, tau))


def refused(layer, data, match, **options):
    """Training raises an error and changes no parameter."""
    before = [p.detach().clone() for p in layer.parameters()]
    with pytest.raises(ts.FitError, match=match) as caught:
        fit(layer, data, **options)
    assert str(caught.value).count("\n") == 2
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["q", "qd", "qdd", "tau", "weight"])
def test_a_number_that_is_not_finite_is_named(name, bad):
    layer, data = arm_and_data(3, 10)
    given = dict(
        zip(("q", "qd", "qdd", "tau", "weight"), (*data, torch.ones_like(data[-1])), strict=True)
    )
    given[name][1, 7, 1] = given[name][2, 0, 0] = bad
    weight = given.pop("weight")
    refused(
        layer,
        given.values(),
        rf"{name} is {bad} at joint 'joint1', first in sample \(1, 7\); 2 of 30 samples",
        weight=weight,
    )


def test_a_joint_without_force_is_named_and_the_advice_works():
    layer, (q, qd, qdd, tau) = arm_and_data(3, 10)
    tau = tau * torch.tensor([1.0, 0.0], dtype=tau.dtype)
    refused(layer, (q, qd, qdd, tau), "the force of joint 'joint1' is zero")
    weight = (tau != 0).flatten(0, -2).any(0).to(tau)  # the advice of the message
    assert fit(layer, (q, qd, qdd, tau), weight=weight).isfinite().all()


def test_a_free_base_without_force_is_named_once():
    mech = random_mechanism(["free", "revolute"], [-1, 0], seed=4)
    q, qd, qdd = usual_state(mech, 10)
    tau = ts.inverse_dynamics(mech, q, qd, qdd)
    tau = tau * (torch.arange(7) == 6)
    layer = ts.Dynamics(mech, {"body1": InertiaLogCholesky()})
    refused(layer, (q, qd, qdd, tau), "the force of joint 'joint0' is zero")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"batch": 0}, "batch is 0"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"prior": -1.0}, "prior is -1.0"),
        ({"prior": float("inf")}, "prior is inf"),
        ({"weight": torch.zeros(2, dtype=torch.float64)}, "weight is zero everywhere"),
        ({"weight": torch.tensor([1.0, -1.0]).double()}, "weight is negative at joint 'joint1'"),
    ],
    ids=str,
)
def test_options_out_of_range_are_named(options, match):
    layer, data = arm_and_data(10)
    refused(layer, data, match, **options)


def test_no_samples_and_nothing_to_learn_are_named():
    layer, data = arm_and_data(0)
    refused(layer, data, r"there are no samples: tau has shape \[0, 2\]")
    mech, data = layer.mechanism(), arm_and_data(5)[1]
    refused(ts.Dynamics(mech), data, "no learnable parameters")
    layer.requires_grad_(False)
    refused(layer, data, "no learnable parameters")


def test_a_body_that_has_no_distance_to_others_is_named_and_the_advice_works():
    mech = random_mechanism(["revolute", "revolute"], [-1, 0], seed=4)
    heavy = torch.tensor([0.0, 1.0], dtype=torch.float64)
    mech = mech.replace(mass=heavy * mech.mass, inertia=heavy[:, None, None] * mech.inertia)
    q, qd, qdd = usual_state(mech, 10)
    tau = ts.inverse_dynamics(mech, q, qd, qdd)
    layer = ts.Dynamics(mech, {"joint0.damping": Positive()})
    refused(layer, (q, qd, qdd, tau), "initial inertia of body 'body0' is not positive")
    assert fit(layer, (q, qd, qdd, tau), prior=0).isfinite().all()


def test_a_step_too_far_is_named_and_the_parameters_stay_finite():
    layer, data = arm_and_data(10)
    with pytest.raises(ts.FitError, match=r"at step [12].*\n.*\nPass a smaller learning rate"):
        fit(layer, data, lr=1e4)
    assert layer.inverse_dynamics(*data[:3]).isfinite().all()


def test_a_fit_without_tqdm_shows_nothing_unless_asked_to(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    layer, data = arm_and_data(5)
    g = torch.Generator().manual_seed(0)
    assert len(ts.learn.train(layer, *data, steps=2, batch=4, generator=g)) == 2
    assert capsys.readouterr().err == ""
    with pytest.raises(ts.MissingExtraError, match="tqdm is not installed"):
        fit(layer, data, progress=True)


def test_a_fit_with_tqdm_shows_its_progress_unless_told_not_to(capsys):
    pytest.importorskip("tqdm")
    layer, data = arm_and_data(5)
    ts.learn.train(layer, *data, steps=2, batch=4)
    assert "2/2" in capsys.readouterr().err
    fit(layer, data)
    assert capsys.readouterr().err == ""


def test_a_missing_extra_names_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(
        ts.MissingExtraError, match=r'pip install tqdm(.|\n)*"\.\[identify\]"'
    ) as caught:
        require("tqdm", "identify")
    assert isinstance(caught.value, ImportError)


def test_kernels_give_the_fit_of_the_eager_functions():
    found = []
    for fused in (True, False):
        layer, data = arm_and_data(40)
        losses = fit(layer, data, fused=fused, steps=20)
        found.append((losses, *(p.detach() for p in layer.parameters())))
    for mine, theirs in zip(*found, strict=True):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("declines", [True, False])
def test_a_layer_that_declines_kernels_is_fitted_without(declines, monkeypatch):
    """Kernels were built in spite of fused=False."""
    module = sys.modules[ts.learn.train.__module__]
    monkeypatch.setattr(module, "_MIN_KERNEL_EVALUATIONS", 1)
    layer, _ = arm_and_data(4)
    layer.fused = False if declines else None
    with torch.no_grad():
        reference = layer.mechanism()
    assert module._objective(layer, reference, None, 1).is_fused is not declines


@pytest.mark.some(1)
@pytest.mark.parametrize(("asked", "wants"), [(None, None), (True, None), (None, True)])
def test_kernels_that_nobody_asked_for_are_said_where_they_are_built(
    asked, wants, monkeypatch, caplog, tmp_path
):
    """Kernels loaded from the disk cache were reported as built."""
    by_themselves = asked is wants is None
    if by_themselves:
        monkeypatch.setenv("TORCHSKO_CACHE", str(tmp_path))
    monkeypatch.setattr(sys.modules[ts.learn.train.__module__], "_MIN_KERNEL_EVALUATIONS", 1)
    with caplog.at_level(logging.WARNING, "torchsko"):
        for _ in range(2):
            layer, data = arm_and_data(40)
            layer.fused = wants
            fit(layer, data, fused=asked)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * by_themselves
    assert ("fused=False" in caplog.text) is by_themselves


class Sorted(torch.nn.Module):
    """A parametrization that cannot be traced, since its order depends on values."""

    def forward(self, x):
        return x.abs().sort().values

    def right_inverse(self, x):
        return x


def test_what_cannot_be_traced_is_fitted_eagerly_and_said_when_kernels_are_asked_for(monkeypatch):
    mech = random_mechanism(["revolute", "prismatic"], [-1, 0], seed=4)
    _, data = arm_and_data(40)
    layer = ts.Dynamics(mech, {"joint0.damping": Sorted()})
    with pytest.raises(ts.FusedError, match="sort"):
        fit(layer, data, fused=True)
    monkeypatch.setattr(sys.modules[ts.learn.train.__module__], "_MIN_KERNEL_EVALUATIONS", 1)
    assert fit(layer, data).isfinite().all()
