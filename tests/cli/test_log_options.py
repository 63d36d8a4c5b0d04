"""Options of the command line that correct a log."""

import argparse

import numpy as np
import pytest

import torchsko as ts
from tests.identification.test_mistaken import LOG, NAMES, NOMINAL
from torchsko.cli.log_options import (
    add_log_options,
    load_log,
    parse_number,
    parse_pairs,
    parse_units,
)
from torchsko.cli.main import main


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


def test_the_command_joins_files_of_single_quantities(tmp_path, capsys):
    """A pendulum whose positions and forces were logged apart."""
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
    for name, x in (("q", q), ("tau", tau)):
        np.savetxt(tmp_path / f"{name}.csv", np.column_stack([t, x]), delimiter=" ", fmt="%.17g")
    np.savetxt(tmp_path / "whole.csv", np.column_stack([t, q, tau]), delimiter=",")
    out = str(tmp_path / "out")
    words = ["identify", str(robot), "--out", out, "--method", "ols", "--gravity=0,0,-9.81"]
    assert main([*words, "--columns", "t,q,tau", str(tmp_path / "whole.csv")]) == 0
    whole = ts.identification.Fit.load(out)
    for name in ("q", "tau"):
        text = (tmp_path / f"{name}.csv").read_text()
        (tmp_path / f"{name}.csv").write_text(f"t {name}_hinge\n{text}")
    assert main([*words, str(tmp_path / "q.csv"), str(tmp_path / "tau.csv")]) == 0
    capsys.readouterr()
    np.testing.assert_allclose(ts.identification.Fit.load(out).value, whole.value, rtol=1e-6)
