"""Coupled drives, as of a wrist with two motors: friction acts on the drives, gravity on the joints."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.test_currents import LIFT
from tests.identification.test_fit import arm, log_of
from torchsko.identification import Fit, Log, identify
from torchsko.identification.friction import Offset, SmoothCoulomb, Viscous
from torchsko.identification.regression.drives import Drives

TERMS = [Viscous(), SmoothCoulomb(0.05), Offset()]
FRICTION = torch.tensor([[0.4, 0.5, 0.1], [0.6, 1.0, 0.2], [0.3, 0.7, -0.1]]).double()
"""Coefficients of the terms of each drive."""

COUPLINGS = {
    "a motor that moves two joints": ({2: {2: 1.0, 1: -1.0}}, [[1, 0, 0], [0, 1, 0], [0, -1, 1]]),
    "a differential gear": (
        {1: {1: 0.5, 2: 0.5}, 2: {1: 0.5, 2: -0.5}},
        [[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, -0.5]],
    ),
}
"""Couplings by index of the joint, and matrices from velocities of drives to those of joints."""


def drive_friction(matrix, q, qd):
    """Friction of drives, as forces of joints."""
    speed = qd @ torch.linalg.inv(matrix).mT
    basis = torch.stack([speed, (speed / 0.05).tanh(), torch.ones_like(speed)], -1)
    return (basis * FRICTION).sum(-1) @ torch.linalg.inv(matrix)


def drive_log(mech, matrix, seed=0):
    """Positions, velocities and forces of the drives, and the motion of the joints with its forces."""
    log, motion = log_of(
        mech,
        lambda q, qd: drive_friction(matrix, q, qd),
        seconds=10.0,
        rate=200.0,
        noise=0.02,
        seed=seed,
    )
    inverse, force = torch.linalg.inv(matrix).mT.numpy(), matrix.numpy()
    return Log(log.t, log.q @ inverse, log.tau @ force, log.qd @ inverse), motion


def named(mech, couple):
    names = mech.joint_names
    return {names[j]: {names[k]: x for k, x in row.items()} for j, row in couple.items()}


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_friction_of_coupled_drives_is_found_and_predicted(coupling, tmp_path):
    """Friction of joints predicted the wrist of a real robot with errors of 0.5, the drives' with 0.06."""
    truth, nominal = arm()
    couple, rows = COUPLINGS[coupling]
    matrix = torch.tensor(rows).double()
    logged, _ = drive_log(truth, matrix)
    log = logged.calibrate(nominal, couple=named(nominal, couple))
    assert_close(torch.from_numpy(log.drives), matrix)
    fit = identify(nominal, log, joint_terms=TERMS, cutoff=8.0, method="wls")
    found = [
        x[[some.index(t) for t in TERMS]] for some, x in zip(fit.terms, fit.numbers, strict=True)
    ]
    assert_close(torch.stack(found), FRICTION, rtol=0.05, atol=0.03)
    other, (q, qd, qdd, tau) = drive_log(truth, matrix, seed=1)
    error = (fit.inverse_dynamics(q, qd, qdd) - tau).square().mean(0).sqrt()
    assert (error < 0.05).all()
    scores = fit.test(other.calibrate(nominal, couple=named(nominal, couple)))
    assert (scores.nrmse["wls"] < 0.05).all()
    plain = identify(nominal, ts.identification.Log(log.t, log.q, log.tau, log.qd), joint_terms=TERMS,
                     cutoff=8.0, method="wls")  # fmt: skip
    joints = (plain.inverse_dynamics(q, qd, qdd) - tau).square().mean(0).sqrt()
    assert (joints[1:] > 5 * error[1:]).any()
    assert fit.row_names[0] == nominal.joint_names[0]
    assert fit.row_names[2] == f"drive of {nominal.joint_names[2]}" and fit.row_names[2] in str(fit)
    with pytest.warns(ts.RobotFileWarning, match=f"friction of {fit.row_names[1]}"):
        fit.save(tmp_path)
    again = Fit.load(tmp_path)
    assert torch.equal(again.inverse_dynamics(q, qd, qdd), fit.inverse_dynamics(q, qd, qdd))


def test_the_default_finds_friction_of_coupled_drives():
    truth, nominal = arm()
    couple, rows = COUPLINGS["a motor that moves two joints"]
    logged, _ = drive_log(truth, torch.tensor(rows).double())
    log = logged.calibrate(nominal, couple=named(nominal, couple))
    fit = identify(nominal, log, cutoff=8.0)
    assert (fit.residuals.relative(fit.errors["physical"]) < 0.05).all()
    assert not bool(fit.mechanism.friction[1:].any()) and bool(fit.mechanism.friction[0] > 0)


def test_currents_of_coupled_drives_have_the_constants_of_the_drives():
    mech = ts.load(LIFT)
    couple, rows = COUPLINGS["a differential gear"]
    logged, _ = drive_log(mech, torch.tensor(rows).double())
    constants = np.array([100.0, 10.0, 4.0])
    currents = Log(logged.t, logged.q, logged.tau / constants, logged.qd, current=True)
    log = currents.calibrate(mech, couple=named(mech, couple))
    fit = identify(mech, log, select=False)
    np.testing.assert_allclose(fit.info.constants.numpy(), constants, rtol=0.05)
    assert (fit.residuals.relative(fit.errors["physical"]) < 0.1).all()


def test_the_matrix_of_drives_follows_signs_and_later_couplings():
    mech, _ = arm()
    a, b, c = mech.joint_names
    t = np.arange(100) / 100
    x = np.sin(np.outer(t, [1.0, 2.0, 3.0]))
    log = Log(t, x, x, x)
    once = log.calibrate(
        mech, couple={c: {c: 1.0, b: -1.0}}, sign={c: -1.0}, ratio={a: 50.0, b: 2.0}
    )
    np.testing.assert_allclose(once.drives, [[1, 0, 0], [0, 1, 0], [0, 1, -1]])
    twice = once.calibrate(mech, sign={b: -1.0}, order={"q": (b, a, c), "tau": (b, a, c)})
    assert twice.drives.shape == (3, 3)
    back = once.calibrate(mech, couple={c: {c: -1.0, b: 1.0}})
    assert back.drives is None
    assert log.calibrate(mech, couple={f"q.{c}": {c: 1.0, b: 1.0}}).drives is None
    assert log.calibrate(mech, sign={c: -1.0}, ratio={b: 3.0}).drives is None
    with pytest.raises(ts.FitError, match="differ in drives"):
        Log.concatenate([log, once])


def test_power_and_missing_forces_are_those_of_the_drives():
    drives = Drives.of(torch.tensor(COUPLINGS["a differential gear"][1]).double())
    g = torch.Generator().manual_seed(0)
    qd, tau = torch.randn(2, 5, 3, generator=g).double()
    assert_close((drives.states(qd) * drives.forces(tau)).sum(-1), (qd * tau).sum(-1))
    assert_close(drives.joint_forces(drives.forces(tau)), tau)
    good = torch.tensor([[True, True, False], [False, True, True]])
    assert drives.valid(good).tolist() == [[True, False, False], [False, True, True]]
    missing = torch.tensor([[float("nan"), 1.0, 2.0]]).double()
    assert drives.forces(missing)[:, 1:].isfinite().all()


def test_shooting_refuses_coupled_drives():
    truth, nominal = arm()
    couple, rows = COUPLINGS["a motor that moves two joints"]
    log = drive_log(truth, torch.tensor(rows).double())[0].calibrate(
        nominal, couple=named(nominal, couple)
    )
    with pytest.raises(
        ts.FitError, match=r"method='shooting' was given for a log of coupled drives"
    ):
        identify(nominal, log, method="shooting", joint_terms=[Viscous()])
