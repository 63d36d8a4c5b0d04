"""Logs that contradict the nominal robot give a warning that names the likely error."""

import re

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.identification.finding_codes import codes, texts
from torchsko.identification.friction import Balancer, Coulomb, Offset, Viscous

TERMS = [Viscous(), Coulomb(), Offset()]


def panda(seed=0):
    """The nominal robot, another that is logged, and its log: times, positions, forces."""
    nominal = ts.load(ts.robots.panda)
    g = torch.Generator().manual_seed(seed)

    def near(x):
        return x * (0.7 + 0.6 * torch.rand(x.shape, generator=g, dtype=x.dtype))

    truth = nominal.replace(mass=near(nominal.mass), com=near(nominal.com))
    t = torch.arange(4000, dtype=truth.dtype) / 400
    q, qd, qdd = ts.identification.exciting_trajectory(truth, period=10.0, generator=g)(t)
    tau = ts.inverse_dynamics(truth, q, qd, qdd) + 0.5 * qd + 0.3 * qd.sign() + 0.2
    tau = tau + 0.1 * torch.randn(tau.shape, generator=g, dtype=tau.dtype)
    return nominal, truth, t.numpy(), q.numpy(), tau.numpy()


def fitted(mech, t, q, tau, joint_terms=TERMS):
    return ts.identification.identify(
        mech, ts.identification.Log(t, q, tau), joint_terms=joint_terms, method="wls"
    )


def turned(x, j):
    return np.where(np.arange(7) == j, -x, x)


def swapped(x, i, j):
    order = np.arange(7)
    order[[i, j]] = order[[j, i]]
    return x[:, order]


def weight(mech, q):
    return ts.gravity_force(mech, torch.from_numpy(q)).numpy()


def hung(truth, q):
    side = truth.replace(gravity=torch.tensor([9.81, 0, 0]).to(truth.gravity))
    return weight(side, q) - weight(truth, q)


MISTAKEN = {
    "torque of one joint": (
        lambda truth, q, tau: (q, turned(tau, 0)),
        r"sign of tau of joint 'joint1' is reversed.*tau\[:, 0\] \*= -1",
    ),
    "position of one joint": (
        lambda truth, q, tau: (turned(q, 3), tau),
        r"sign of q of joint 'joint4'.*q\[:, 3\] \*= -1, qd\[:, 3\] \*= -1",
    ),
    "a joint's axis": (
        lambda truth, q, tau: (turned(q, 2), turned(tau, 2)),
        "sign of q and tau of joint 'joint3'",
    ),
    "two joints": (
        lambda truth, q, tau: (swapped(q, 1, 3), swapped(tau, 1, 3)),
        "q and tau of joints 'joint2' and 'joint4' are exchanged",
    ),
    "two torques": (
        lambda truth, q, tau: (q, swapped(tau, 4, 5)),
        "tau of joints 'joint5' and 'joint6' .*--column tau=",
    ),
    "radians for degrees": (
        lambda truth, q, tau: (q * np.pi / 180, tau),
        "converted from degrees.*Remove the units of q",
    ),
    "weights that the drives hold": (
        lambda truth, q, tau: (q, tau - weight(truth, q)),
        "do not include the robot's weight.*gravity_force",
    ),
    "a wall": (
        lambda truth, q, tau: (q, tau + hung(truth, q)),
        r"gravity acts in another direction.*gravity=\[9.81, 0.0, 0.0\]",
    ),
}


@pytest.mark.parametrize("what", MISTAKEN)
def test_what_would_have_to_be_otherwise_is_named(what):
    change, match = MISTAKEN[what]
    nominal, truth, t, q, tau = panda()
    (note,) = texts(fitted(nominal, t, *change(truth, q, tau)), "inconsistent_log")
    assert re.search(match, note), note


def test_what_is_found_may_stop_the_fit_or_be_ignored():
    nominal, _, t, q, tau = panda()
    log = ts.identification.Log(t, q, turned(tau, 0))

    def fitted(action):
        return ts.identification.identify(
            nominal, log, method="ols", on_findings={"inconsistent_log": action}
        )

    with pytest.raises(ts.FitError, match="sign of tau of joint 'joint1'") as error:
        fitted("raise")
    assert getattr(error.value, "code", "") == "inconsistent_log"
    assert str(error.value).count("\n") == 2
    assert "inconsistent_log" not in codes(fitted("ignore"))
    with pytest.raises(ts.FitError, match="no finding is named 'inconsistent'"):
        ts.identification.identify(nominal, log, on_findings={"inconsistent": "ignore"})


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(4))
def test_a_nominal_robot_that_is_wrong_in_all_its_masses_is_no_mistake(seed):
    nominal, _, t, q, tau = panda(seed)
    g = torch.Generator().manual_seed(100 + seed)
    part = 0.4 + 1.2 * torch.rand(nominal.mass.shape, generator=g, dtype=nominal.dtype)
    fit = fitted(nominal.replace(mass=part * nominal.mass), t, q, tau)
    assert not codes(fit) & {"inconsistent_log", "negative_friction"}


def test_a_tool_that_the_nominal_robot_has_not_is_no_mistake():
    nominal, truth, t, q, tau = panda()
    mass, com = truth.mass.clone(), truth.com.clone()
    mass[-1] += 2.0
    com[-1] = -com[-1] + torch.tensor([0.0, 0.0, 0.2]).to(com)
    heavy = truth.replace(mass=mass, com=com)
    carried = tau + weight(heavy, q) - weight(truth, q)
    assert not texts(fitted(nominal, t, q, carried), "inconsistent_log")


def test_weight_that_springs_bear_is_no_mistake():
    nominal, truth, t, q, tau = panda()
    log = t, q, tau - weight(truth, q)
    found = fitted(nominal, *log, joint_terms=[*TERMS, Balancer(near=0.1, far=0.6)])
    assert not texts(found, "inconsistent_log")
    (note,) = texts(fitted(nominal, *log), "inconsistent_log")
    assert "Balancer" in note


def test_velocities_of_another_joint_or_of_none_are_refused_by_name():
    nominal, _, t, q, tau = panda()
    qd = np.gradient(q, t, axis=0)
    other = ts.identification.Log(t, q, tau, swapped(qd, 4, 6))
    with pytest.raises(
        ts.FitError, match=r"'joint5' do not match .* in the column of joint 'joint7'"
    ):
        ts.identification.identify(nominal, other, joint_terms=TERMS, method="wls")
    dead = np.where(np.arange(7) == 2, 0.01, qd)
    with pytest.raises(ts.FitError, match=r"'joint3' do not match its positions\.\n"):
        ts.identification.identify(
            nominal, ts.identification.Log(t, q, tau, dead), joint_terms=TERMS, method="wls"
        )


def test_velocities_of_a_joint_that_stands_in_the_noise_of_its_encoder_are_none_of_another():
    nominal, truth, t, q, _ = panda()
    rng = np.random.default_rng(0)
    q[:, 3] = -1.5
    qd = np.gradient(q, t, axis=0)
    qdd = np.gradient(qd, t, axis=0)
    tau = ts.inverse_dynamics(truth, *map(torch.from_numpy, (q, qd, qdd))).numpy() + 0.2
    noisy = q + 1e-4 * rng.normal(size=q.shape)
    log = ts.identification.Log(t, noisy, tau, qd + 1e-3 * rng.normal(size=qd.shape))
    ts.identification.identify(nominal, log, joint_terms=TERMS, method="wls")


def test_a_last_joint_whose_friction_would_drive_it_counts_the_other_way():
    """Its rigid force is so small that only friction has a sign."""
    nominal, _, t, q, tau = panda()
    for other in ((q, turned(tau, 6)), (turned(q, 6), tau)):
        (note,) = texts(fitted(nominal, t, *other), "negative_friction")
        assert "joint7" in note


@pytest.mark.some(1)
@pytest.mark.parametrize("first", [0, 800, 1600])
def test_a_short_log_in_which_joints_hardly_turn_round_is_no_mistake(first):
    nominal, _, t, q, tau = panda()
    some = slice(first, first + 1000)
    fit = fitted(nominal, t[some], q[some], tau[some])
    assert not codes(fit) & {"inconsistent_log", "negative_friction"}
