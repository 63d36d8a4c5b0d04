"""Options of the command line that correct a log."""

import argparse
from dataclasses import replace

import numpy as np
import pytest

import torchsko as ts
from tests.identification.test_mistaken import LOG, NAMES, NOMINAL
from torchsko.cli.log_options import (
    add_log_options,
    calibrations_of,
    load_log,
    parse_couplings,
    parse_number,
    parse_pairs,
    parse_units,
)
from torchsko.cli.main import main
from torchsko.identification.results.summary import report


def parsed(*words):
    """The options of a command."""
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    return parser.parse_args(words)


def write(path, q, tau, names=NAMES):
    columns = np.column_stack([LOG.t, q, tau])
    header = ",".join(["t", *(f"{x}_{j}" for x in ("q", "tau") for j in names)])
    np.savetxt(path, columns, delimiter=",", header=header, comments="", fmt="%.17g")
    return str(path)


def test_options_correct_a_log_of_drives_with_zeros_signs_and_gains(tmp_path):
    q, tau = LOG.q.copy(), LOG.tau.copy()
    # joint6 is driven from the base of joint5, and its drive is logged as motor_6.
    q[:, 5] += q[:, 4]
    tau[:, 4] -= tau[:, 5]
    q[:, 1], tau[:, 1] = 50 * q[:, 1], tau[:, 1] / 50
    q[:, 0] += np.pi / 2
    tau[:, 2] *= -1
    tau[:, 3] /= 0.12
    names = [*NAMES[:5], "motor_6", NAMES[6]]
    words = [
        *("--couple", f"{NAMES[5]}=motor_6-{NAMES[4]}", "--ratio", f"{NAMES[1]}=50"),
        *("--zero", f"{NAMES[0]}=90deg", "--sign", f"tau.{NAMES[2]}=-1"),
        *("--gain", f"{NAMES[3]}=0.12", "--unit", f"tau.{NAMES[3]}=A"),
    ]
    log = load_log(NOMINAL, [write(tmp_path / "a.csv", q, tau, names)], parsed(*words))
    np.testing.assert_allclose(log.q, LOG.q, atol=1e-12)
    np.testing.assert_allclose(log.tau, LOG.tau, atol=1e-9)
    assert log.current_joints(NAMES) == ()


@pytest.mark.parametrize(
    "words",
    [
        ("--sign", "joint1"),
        ("--zero", "joint1=east"),
        ("--gain", "joint1=1", "--gain", "joint1=2"),
        ("--couple", "joint1=2 joint2"),
    ],
)
def test_malformed_options_are_refused_by_name(tmp_path, words):
    path = write(tmp_path / "a.csv", LOG.q, LOG.tau)
    with pytest.raises(ts.FitError, match=words[0] if words[0] != "--couple" else "coupling"):
        load_log(NOMINAL, [path], parsed(*words))


def test_numbers_may_be_degrees():
    assert parse_number("90deg") == pytest.approx(np.pi / 2)
    assert parse_pairs("lock", ["a=1", "b=2"], float) == {"a": 1.0, "b": 2.0}


def test_the_unit_follows_the_last_equals_sign():
    assert parse_units(["q.a=b=deg", "tau=Nmm"]) == {"q": {"a=b": "deg"}, "tau": "Nmm"}


def test_the_unit_of_a_joint_replaces_that_of_all_joints():
    units = parse_units(["q.slide=mm", "q=deg"], ["elbow", "slide", "wrist"])
    assert units == {"q": {"elbow": "deg", "slide": "mm", "wrist": "deg"}}
    with pytest.raises(ts.FitError, match=r"repeats the unit of q\.slide"):
        parse_units(["q.slide=mm", "q.slide=m"])


def test_a_second_coupling_acts_on_the_first():
    texts = ["pitch=motor_1", "roll=2*motor_2", "pitch=0.5*pitch+0.5*roll", "roll=0.5*pitch-roll"]
    assert parse_couplings(texts, ["pitch", "roll"]) == {
        "pitch": {"motor_1": 0.5, "motor_2": 1.0},
        "roll": {"motor_1": 0.5, "motor_2": -2.0},
    }


ARM = NOMINAL.lock(dict.fromkeys(NAMES[2:], 0.0))


def drive_file(path, header):
    """Positions 1 and 2, velocities 3 and 4, and forces 5 and 6 of two drives."""
    rows = np.column_stack([np.arange(20) / 100, np.tile(np.arange(1.0, 7.0), (20, 1))])
    np.savetxt(path, rows, delimiter=",", header=header, comments="", fmt="%.17g")
    return str(path)


@pytest.mark.parametrize("drives", [("m1", "m2"), ("M_1", "m_2"), ("m1_pos", "m2_pos")])
def test_drives_are_named_by_their_columns(tmp_path, drives):
    path = drive_file(tmp_path / "a.csv", "t,m1_pos,m2_pos,m1_vel,m2_vel,m1_torque,m2_torque")
    first, second = drives
    pairs = dict(zip(ARM.joint_names, (f"{first}+{second}", second), strict=True))
    words = [x for joint, terms in pairs.items() for x in ("--couple", f"{joint}={terms}")]
    log = load_log(ARM, [path], parsed(*words))
    np.testing.assert_array_equal(log.q[0], [3, 2])
    np.testing.assert_array_equal(log.qd[0], [7, 4])
    np.testing.assert_array_equal(log.tau[0], [5, 1])


FIRST, SECOND = ARM.joint_names
COUPLED = ("--couple", f"{FIRST}=m1+m2", "--couple", f"{SECOND}=m2")


@pytest.mark.parametrize(
    ("words", "q", "tau"),
    [
        (("--sign", "m1=-1"), [1, 2], [-5, 11]),
        (("--sign", "tau.m1=-1"), [3, 2], [-5, 11]),
        (("--zero", "m1=1"), [2, 2], [5, 1]),
        (("--order", "q=m2,m1"), [3, 1], [5, 1]),
        (("--order", "tau=m2,m1", "--gain", "m1=2"), [3, 2], [12, -7]),
    ],
)
def test_corrections_of_drives_act_on_columns_before_their_couplings(tmp_path, words, q, tau):
    path = drive_file(tmp_path / "a.csv", "t,m1_pos,m2_pos,m1_vel,m2_vel,m1_torque,m2_torque")
    log = load_log(ARM, [path], parsed(*words, *COUPLED))
    np.testing.assert_array_equal(log.q[0], q)
    np.testing.assert_array_equal(log.tau[0], tau)


def test_corrections_of_joints_act_after_couplings_of_drives(tmp_path):
    """An option that a finding about the coupled log advises has its effect beside the couplings."""
    path = drive_file(tmp_path / "a.csv", "t,m1_pos,m2_pos,m1_vel,m2_vel,m1_torque,m2_torque")
    words = ["--couple", f"{SECOND}={SECOND}-0.5*{FIRST}", "--sign", f"{FIRST}=-1",
             "--zero", f"{SECOND}=0.5", "--order", f"q={SECOND},{FIRST}"]  # fmt: skip
    whole = load_log(ARM, [path], parsed(*words, *COUPLED))
    (change,) = calibrations_of(ARM, parsed(*words))
    expected = load_log(ARM, [path], parsed(*COUPLED)).calibrated(ARM, change)
    for name in ("q", "qd", "tau"):
        np.testing.assert_allclose(getattr(whole, name), getattr(expected, name), atol=1e-12)
    np.testing.assert_array_equal(whole.q[0], [-2, 1.5])
    with pytest.raises(ts.FitError, match=f"two values for the column of {FIRST}"):
        load_log(ARM, [path], parsed("--ratio", "m1=2", "--ratio", f"{FIRST}=2", *COUPLED))


def test_numbered_drives_are_found_by_their_numbers(tmp_path):
    path = drive_file(tmp_path / "a.csv", "t,q1,q2,qd1,qd2,tau1,tau2")
    first, second = ARM.joint_names
    log = load_log(ARM, [path], parsed("--couple", f"{first}=q2", "--couple", f"{second}=q1-q2"))
    np.testing.assert_array_equal(log.q[0], [2, -1])
    np.testing.assert_array_equal(log.tau[0], [11, 5])


def test_errors_about_columns_give_options_that_load_the_log(tmp_path):
    """Drives that are no joints, a missing number, and a current with its unit in brackets."""
    first, second = ARM.joint_names
    path = drive_file(tmp_path / "a.csv", f"t,{first}_pos,m2_pos,a,b,{first}_torque,m2_torque")
    with pytest.raises(ts.FitError, match=f"--couple {second}=DRIVE"):
        load_log(ARM, [path], parsed())
    np.testing.assert_array_equal(
        load_log(ARM, [path], parsed("--couple", f"{second}=m2")).q[0], [1, 2]
    )

    path = drive_file(tmp_path / "b.csv", "t,actual_q_1,actual_q_2,a,b,c,actual_torque_2")
    with pytest.raises(ts.FitError, match="1 columns are tau, the robot has 2"):
        load_log(ARM, [path], parsed())
    log = load_log(ARM, [path], parsed("--column", "tau=-,actual_torque_2"))
    np.testing.assert_array_equal(log.tau[0], [np.nan, 6])

    path = drive_file(tmp_path / "c.csv", "t,q1,q2,a,b,i1 [A],i2 [A]")
    words = ("--column", "tau=i1,i2", "--unit", "tau=A", "--gain", "tau=2")
    np.testing.assert_array_equal(load_log(ARM, [path], parsed(*words)).tau[0], [10, 12])


def test_the_command_fits_a_file_without_a_header(tmp_path):
    robot = tmp_path / "robot.urdf"
    robot.write_text(
        '<robot name="one"><link name="base"/><link name="rod"><inertial><origin xyz="0 0 -0.4"/>'
        '<mass value="2"/><inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.01"/></inertial>'
        '</link><joint name="hinge" type="continuous"><parent link="base"/><child link="rod"/>'
        '<axis xyz="1 0 0"/></joint></robot>'
    )
    t = np.arange(0, 10, 0.01)
    q, qdd = np.sin(3 * t) + 0.5 * np.cos(5 * t), -9 * np.sin(3 * t) - 12.5 * np.cos(5 * t)
    tau = (0.1 + 2 * 0.16) * qdd + 2 * 9.81 * 0.4 * np.sin(q) + 0.01 * np.cos(77 * t)
    np.savetxt(tmp_path / "whole.csv", np.column_stack([t, q, tau]), delimiter=",")
    out = str(tmp_path / "out")
    words = ["identify", str(robot), "--out", out, "--method", "ols", "--gravity=0,0,-9.81"]
    assert main([*words, "--columns", "t,q,tau", str(tmp_path / "whole.csv")]) == 0
    whole = ts.identification.Fit.load(out)
    # A list without entries has no title.
    text = report(replace(whole, deviation=0 * whole.deviation))
    assert "Poorly identified" not in text and "No force depends on: m of rod" in text
