"""One joint in another unit than the others: the finding names it, and its option corrects the log."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchsko as ts
from tests.identification.finding_codes import code_of, texts
from tests.identification.log_corrections import as_log, corrected, findings_of
from tests.identification.test_mistaken import LOG, NAMES, NOMINAL
from torchsko.identification import Log, identify

LIMITED = ts.load(ts.robots.panda)
DEGREES = 180 / np.pi

FAULTS = {
    "kNm": ("joint_force_scale", {"tau": 1e-3}, "--unit tau.{}=kNm"),
    "a hundredth": ("joint_force_scale", {"tau": 1e-2}, "--gain {}=100"),
    "Ncm": ("joint_force_scale force_above_limit", {"tau": 1e2}, "--unit tau.{}=Ncm"),
    "degrees": ("position_range", {"q": DEGREES, "qd": DEGREES}, "--unit q.{0}=deg --unit qd.{0}=deg/s"),
    "degrees and rad/s": ("position_range", {"q": DEGREES}, "--unit q.{}=deg"),
    "rpm": ("velocity_scale", {"qd": 30 / np.pi}, "--unit qd.{}=rpm"),
    "deg/s": ("velocity_scale", {"qd": DEGREES}, "--unit qd.{}=deg/s"),
}  # fmt: skip
"""Codes, factors of the columns of one joint, and options that correct them."""


def scaled(joint, factors, log=LOG):
    """A log with columns of one joint times factors."""
    columns = {name: np.array(getattr(log, name)) for name in ("q", "tau", "qd")}
    for name, factor in factors.items():
        columns[name][:, joint] *= factor
    return Log(log.t, **columns)


@pytest.mark.parametrize("joint", [0, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_joint_in_another_unit_stops_the_fit_with_the_option_that_corrects_it(fault, joint):
    """Otherwise the fit of forces that are too small writes a robot almost without mass."""
    codes, factors, options = FAULTS[fault]
    log, options = scaled(joint, factors), options.format(NAMES[joint])
    with pytest.raises(ts.FitError) as raised:
        identify(LIMITED, log, method="ols")
    assert raised.value.code in codes.split()
    assert all(x in str(raised.value) for x in options.split(" --"))
    for mine, right in zip(as_log(corrected(NOMINAL, log, options)), as_log(LOG), strict=True):
        assert_close(mine, right)


@pytest.mark.parametrize("fault", ["degrees", "degrees and rad/s", "rpm", "deg/s"])
def test_one_joint_without_limits_in_another_unit_is_found_too(fault):
    _, factors, options = FAULTS[fault]
    with pytest.raises(ts.FitError) as raised:
        identify(NOMINAL, scaled(3, factors), method="ols")
    assert raised.value.code in ("velocity_scale", "wrong_unit")
    assert options.format(NAMES[3]) in str(raised.value)


def test_percent_of_the_effort_limit_and_currents_of_one_joint_are_warnings():
    limit = float(LIMITED.effort_limit[4])
    for factor, option in (
        (100 / limit, f"--gain {NAMES[4]}={limit / 100:.3g}"),
        (0.1, "tau.joint5=A"),
    ):
        found = findings_of(LIMITED, scaled(4, {"tau": factor}))
        (warning,) = [x for x in found if x.code == "joint_force_unit"]
        assert warning.severity == "warning" and warning.joints == (NAMES[4],)
        assert option in warning.advice


def test_forces_a_thousand_times_too_large_of_a_joint_without_effort_limit_are_a_warning():
    (note,) = texts(identify(NOMINAL, scaled(3, {"tau": 1e3}), method="ols"), "joint_force_unit")
    assert "--unit tau.joint4=mNm" in note


def test_forces_below_those_that_the_robot_needs_are_found_without_a_correlation():
    """Friction alone moves the last joint, so its force is not proportional to the nominal one."""
    log = scaled(6, {"tau": 1e-3})
    assert code_of(lambda: identify(LIMITED, log, method="ols")) == "joint_force_scale"


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_factors_that_masses_explain_are_no_finding(factor):
    found = findings_of(LIMITED, scaled(3, {"tau": factor}))
    assert not [x for x in found if x.code.startswith("joint_force")]


def test_of_two_joints_the_one_with_implausible_forces_is_named():
    both = LIMITED.lock(dict.fromkeys(NAMES[2:], 0.5))
    motion = ts.identification.exciting_trajectory(both, generator=torch.Generator().manual_seed(0))
    t = 0.01 * torch.arange(1000, dtype=torch.float64)
    q, qd, qdd = motion(t)
    tau = ts.inverse_dynamics(both, q, qd, qdd)
    log = Log(t.numpy(), q.numpy(), tau.numpy(), qd.numpy())
    for joint in range(2):
        with pytest.raises(ts.FitError, match=f"Forces of joint{joint + 1} are 0.01"):
            identify(both, scaled(joint, {"tau": 1e-2}, log), method="ols")


def test_velocities_that_are_declared_not_measured_are_left_out(tmp_path):
    """The advice for velocities of other joints: positions are differentiated in their place."""
    names = ["t", *(f"{x}_{j}" for x in ("q", "qd", "tau") for j in NAMES)]
    columns = np.column_stack([LOG.t, LOG.q, LOG.qd, LOG.tau])
    path = tmp_path / "log.csv"
    np.savetxt(path, columns, delimiter=",", header=",".join(names), comments="")
    assert Log.load(path, NAMES, columns={"qd": ["-"]}).qd is None
