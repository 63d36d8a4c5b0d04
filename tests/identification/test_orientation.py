"""Logs of floating robots, as other programs write them."""

import itertools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.finding_codes import check_raw, code_of, texts
from torchsko.identification.friction import Viscous
from torchsko.spatial.rotation import quaternion_to_matrix


def floating(noise=0.0):
    """20 s of a body that floats and turns: times, positions, velocities."""
    builder = ts.MechanismBuilder("floating")
    builder.link("body", mass=1.0, inertia=np.diag([0.02, 0.03, 0.03]).tolist())
    builder.joint("root", "free", child="body")
    mech = builder.build()
    t = torch.arange(1000, dtype=mech.dtype) / 50
    wave = torch.tensor([0.31, 0.42, 0.23, 0.37, 0.29, 0.51], dtype=t.dtype)
    qd = (
        torch.tensor([0.6, 0.5, 0.9, 0.3, 0.4, 0.2]).to(t)
        * (2 * torch.pi * wave * t[:, None]).sin()
    )
    q = [mech.neutral()]
    for a, b in pairwise(qd):
        q.append(ts.integrate(mech, q[-1], (a + b) / 2 / 50))
    g = torch.Generator().manual_seed(0)
    q = torch.stack(q) + noise * torch.randn(len(q), 7, generator=g, dtype=t.dtype)
    return mech, t.numpy(), q, qd + 10 * noise * torch.randn(qd.shape, generator=g, dtype=t.dtype)


def written(q, qd, *, last=False, exchanged=False, angular=False, linear=False):
    """States in the convention of another program: quaternion order, velocity order, world axes."""
    turn = quaternion_to_matrix(q[:, 3:])
    parts = [
        (turn @ x[..., None])[..., 0] if world else x
        for x, world in zip(qd.split(3, -1), (angular, linear), strict=True)
    ]
    q = torch.cat([q[:, :3], q[:, 4:], q[:, 3:4]], -1) if last else q
    return q.numpy(), torch.cat(parts[::-1] if exchanged else parts, -1).numpy()


def checked(mech, t, q, qd):
    check_raw(mech, ts.identification.Log(t, q, np.ones_like(qd), qd), 50.0)


def test_every_other_convention_is_found_and_outliers_are_none():
    mech, t, q, qd = floating(noise=1e-3)
    spiky = qd.numpy().copy()
    spiky[3::50] = 1e4
    checked(mech, t, q.numpy(), spiky)
    names = ("last", "exchanged", "angular", "linear")
    for choice in itertools.product((False, True), repeat=4):
        states = written(q, qd, **dict(zip(names, choice, strict=True)))
        expected = "quaternion_convention" if any(choice) else None
        assert code_of(lambda states=states: checked(mech, t, *states)) == expected, choice


def test_velocities_of_another_place_are_refused_and_noise_at_rest_is_not():
    mech, t, q, qd = floating()
    elsewhere = qd.clone()
    elsewhere[:, 3:] = elsewhere[:, 3:] + torch.linalg.cross(
        qd[:, :3], torch.tensor([0.9, -0.9, 0.5]).to(qd).expand(len(qd), 3), dim=-1
    )
    assert (
        code_of(lambda: checked(mech, t, q.numpy(), elsewhere.numpy())) == "quaternion_convention"
    )
    rng = np.random.default_rng(0)
    at_rest = np.tile(mech.neutral().numpy(), (len(t), 1))
    checked(
        mech,
        t,
        at_rest + 1e-3 * rng.standard_normal((len(t), 7)),
        1e-2 * rng.standard_normal((len(t), 6)),
    )


def test_columns_of_a_body_that_floats_are_named_and_loaded_by_their_names(tmp_path):
    """It was said to be one column, and then that as many columns as joints were too few."""
    mech, t, q, qd = floating()
    names = {
        "q": ["x", "y", "z", "qw", "qx", "qy", "qz"],
        "qd": ["wx", "wy", "wz", "vx", "vy", "vz"],
    }
    names["tau"] = [f"effort_{x}" for x in names["qd"]]
    table = np.column_stack([t, q, qd, np.ones_like(qd)])
    head = ",".join(["t", *names["q"], *names["qd"], *names["tau"]])
    np.savetxt(tmp_path / "log.csv", table, delimiter=",", header=head, comments="")
    log = ts.identification.Log.load(tmp_path / "log.csv", mech.joint_names, columns=names)
    np.testing.assert_allclose(log.q, q, atol=1e-12)
    few = ts.identification.Log(t, q.numpy()[:, :1], np.ones_like(qd), qd.numpy())
    with pytest.raises(ts.FitError, match=r"root \(x, y, z, qw, qx, qy, qz\), in this order"):
        ts.identification.identify(mech, few)


@pytest.fixture(scope="module")
def carried():
    """A robot of two links on a base that something moves, and a log of it with all of its forces."""
    builder, com = ts.MechanismBuilder("carried"), (0.02, 0, 0.01)
    builder.link("base", mass=3.0, com=com, inertia=np.diag([0.05, 0.06, 0.07]).tolist())
    builder.joint("root", "free", child="base")
    for name, parent, axis in (("upper", "base", (0, 1, 0)), ("lower", "upper", (1, 0, 0))):
        inertia = np.diag([0.02, 0.03, 0.025]).tolist()
        builder.link(name, mass=1.5, com=(0.2, 0.02, -0.1), inertia=inertia)
        joint = {"parent": parent, "child": name, "position": (0.1, 0.2, 0.3), "axis": axis}
        builder.joint(f"j_{name}", "revolute", **joint)
    mech, rate = builder.build(), 100
    t = torch.arange(15 * rate, dtype=mech.dtype) / rate
    slow = torch.tensor([1.1, 1.3, 1.7, 2.0, 2.3, 2.6, 2.9, 3.1]).to(t)
    w = torch.stack([slow, 3 + slow.flip(0)])
    turn = w * t[:, None, None] + torch.arange(16).reshape(2, 8).to(t)
    qd, qdd = turn.cos().sum(1), -(w * turn.sin()).sum(1)
    q = [mech.neutral()]
    for moved in (qd[1:] + qd[:-1]) / 2 / rate:
        q.append(ts.integrate(mech, q[-1], moved))
    q = torch.stack(q)
    rubs = torch.tensor([0.0] * 6 + [0.2] * 2).to(t) * qd
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=tuple(qd.shape)))
    tau = ts.inverse_dynamics(mech, q, qd, qdd) + rubs + 0.02 * noise
    return mech, ts.identification.Log(t.numpy(), q.numpy(), tau.numpy(), qd.numpy())


@pytest.mark.parametrize("method", ["wls", "iv", "physical"])
def test_unmeasured_forces_of_a_base_are_left_out(method, carried):
    """They were refused; what joints tell is found, and what only the base's forces tell is not known."""
    mech, log = carried
    nominal = mech.replace(mass=1.2 * mech.mass, com=mech.com + 0.02, inertia=1.1 * mech.inertia)
    truth = ts.base_parameters(mech).of(ts.inertial_parameters(mech).flatten())
    few = replace(log, tau=log.tau[:, 6:])
    options = {"joint_terms": [Viscous()], "method": method}
    options |= {"prior": 1e-4} if method == "physical" else {}
    fit = ts.identification.identify(nominal, few, **options)
    known = fit.deviation.isfinite()
    assert [bool(x) for x in known] == ["of base" not in name for name in fit.base.names]
    assert ((fit.value - truth) / fit.deviation)[known].square().mean().sqrt() < 1.5
    torch.testing.assert_close(
        torch.cat(fit.numbers), torch.full((2,), 0.2, dtype=mech.dtype), rtol=1e-2, atol=0
    )
    (note,) = texts(fit, "unmeasured_force")
    assert "root[0]" in note and not texts(fit, "outliers")
    assert "nan" not in str(fit) and "regressor: above 1e+07" in str(fit)
    tau = log.tau.copy()
    tau[:, :6] = np.nan
    torch.testing.assert_close(
        ts.identification.identify(nominal, replace(log, tau=tau), **options).value, fit.value
    )


def test_joints_are_checked_for_errors_without_forces_of_the_base(carried):
    mech, log = carried
    turned = replace(log, tau=log.tau[:, 6:] * [-1, 1])
    (note,) = texts(ts.identification.identify(mech, turned, method="ols"), "wrong_sign")
    assert "tau of joint 'j_upper'" in note
    half = ts.identification.identify(
        mech, replace(log, tau=log.tau[:, 6:] * [np.nan, 1]), method="ols"
    )
    (note,) = texts(half, "missing_force")
    assert "j_upper" in note
    alone, t, q, qd = floating()
    none = ts.identification.Log(t, q.numpy(), np.full((len(t), 6), np.nan), qd.numpy())
    with pytest.raises(ts.FitError, match="no force is a finite number"):
        ts.identification.identify(alone, none)
