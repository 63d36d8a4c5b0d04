"""Logs from headerless files, several files, ROS 2 bags and columns of other names."""

import re

import numpy as np
import pytest

import torchsko as ts
from torchsko.cli.main import main
from torchsko.identification import Log

JOINTS = ("SHOULDER", "arm_1_joint")


def arrays(n=200, rate=100.0):
    """Times, positions, velocities and forces of two joints."""
    t = np.arange(n) / rate
    q = np.stack([np.sin(t), np.cos(2 * t)], -1)
    qd = np.stack([np.cos(t), -2 * np.sin(2 * t)], -1)
    return t, q, qd, 3 * q + qd


def write_csv(path, names, columns):
    np.savetxt(path, np.column_stack(columns), delimiter=",", header=",".join(names), comments="")
    return path


def assert_measured(log, rtol=1e-12):
    t, q, qd, tau = arrays()
    for mine, x in ((log.t - log.t[0], t), (log.q, q), (log.qd, qd), (log.tau, tau)):
        np.testing.assert_allclose(mine, x, rtol=rtol, atol=1e-12)


def test_capitals_and_marks_of_lists_in_column_names_do_not_matter(tmp_path):
    t, q, qd, tau = arrays()
    names = ["Time", "Q_shoulder", "- arm_1_joint_position", "Shoulder_velocity", "ARM_1_JOINT.qd"]
    names += ["EFFORT_SHOULDER", "- arm_1_joint_effort"]
    path = write_csv(tmp_path / "a.csv", names, [t, q, qd, tau])
    assert_measured(Log.load(path, JOINTS))


def test_an_exact_name_has_priority_over_one_in_capitals(tmp_path):
    t, q, _, tau = arrays()
    names = ["t", "q_shoulder", "q_SHOULDER", "q_arm_1_joint", "tau_SHOULDER", "tau_arm_1_joint"]
    path = write_csv(tmp_path / "a.csv", names, [t, 0 * t, q, tau])
    np.testing.assert_array_equal(Log.load(path, JOINTS).q, q)


@pytest.mark.parametrize("delimiter", [",", " ", ";"])
def test_files_without_a_header_have_the_listed_columns(tmp_path, delimiter):
    t, q, qd, tau = arrays()
    path = tmp_path / "a.csv"
    np.savetxt(path, np.column_stack([t, q, t, qd, tau]), delimiter=delimiter, fmt="%.17g")
    assert_measured(Log.load(path, JOINTS, columns="t,q*2,-,qd*2,tau*2"))
    with pytest.raises(ts.FitError, match="line 1 has 8 columns, not 7"):
        Log.load(path, JOINTS, columns="t,q*2,qd*2,tau*2")
    with pytest.raises(ts.FitError, match=r"--columns t,q\*6"):
        Log.load(path, JOINTS)


def test_several_complete_files_are_logs_of_one_fit(tmp_path):
    t, q, qd, tau = arrays()
    names = ["t", *(f"{x}_{j}" for x in ("q", "qd", "tau") for j in JOINTS)]
    paths = [write_csv(tmp_path / f"{k}.csv", names, [t, q, qd, tau]) for k in range(2)]
    log = Log.load(paths, JOINTS)
    assert len(log) == 2 * len(t)
    assert np.diff(log.t)[len(t) - 1] >= 1.0
    np.testing.assert_array_equal(log.q, np.concatenate([q, q]))


@pytest.mark.parametrize("storage", ["SQLITE3", "MCAP"])
def test_joint_states_of_ros_2_bags_are_read(tmp_path, storage):
    rosbag2 = pytest.importorskip("rosbags.rosbag2")
    typesys = pytest.importorskip("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.LATEST)
    message = {
        x.rsplit("/", 1)[-1]: store.types[x]
        for x in (
            "sensor_msgs/msg/JointState",
            "std_msgs/msg/Header",
            "builtin_interfaces/msg/Time",
        )
    }
    kind, plugin = "sensor_msgs/msg/JointState", rosbag2.StoragePlugin[storage]
    t, *states = arrays()
    with rosbag2.Writer(tmp_path / "bag", version=9, storage_plugin=plugin) as writer:
        topics = [writer.add_connection(f"/{x}", kind, typestore=store) for x in ("hand", "arm")]
        for k, time in enumerate(t):
            stamp = message["Time"](sec=1_700_000_000 + int(time), nanosec=round(time % 1 * 1e9))
            for topic, joints, turn in ((topics[0], ["finger"], 1), (topics[1], JOINTS[::-1], 2)):
                values = [x[k][::-1][:turn].copy() for x in states]
                state = message["JointState"](
                    message["Header"](stamp=stamp, frame_id=""), list(joints), *values
                )
                writer.write(topic, int(time * 1e9), store.serialize_cdr(state, kind))
    (file,) = (tmp_path / "bag").glob("*.db3" if storage == "SQLITE3" else "*.mcap")
    for path in (tmp_path / "bag", file):
        assert_measured(Log.load(path, JOINTS), rtol=1e-8)


def test_bags_without_joint_states_or_reader_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a.mcap").write_bytes(b"nothing")
    pytest.importorskip("rosbags")
    with pytest.raises(ts.FitError, match="cannot be read"):
        Log.load(tmp_path / "a.mcap", JOINTS)
    monkeypatch.setitem(__import__("sys").modules, "rosbags.highlevel", None)
    with pytest.raises(ts.MissingExtraError, match=r"\[bags\]"):
        Log.load(tmp_path / "a.mcap", JOINTS)


def test_joints_that_were_not_logged_are_named_with_the_option_that_locks_them(tmp_path, capsys):
    mech = ts.load(ts.robots.panda)
    arm, t = mech.joint_names[2:], np.arange(400) / 100
    q = np.sin(t[:, None] * (1 + np.arange(len(arm))) / 3)
    names = ["t", *(f"{x}_{j}" for x in ("q", "tau") for j in arm)]
    path = write_csv(tmp_path / "arm.csv", names, [t, q, q])
    with pytest.raises(
        ts.FitError, match=f"joint '{mech.joint_names[0]}', '{mech.joint_names[1]}'"
    ) as e:
        Log.load(path, mech.joint_names)
    (option,) = re.findall(r"--lock \S+=0", str(e.value))
    log = Log.load(path, mech.lock(dict.fromkeys(mech.joint_names[:2], 0.0)).joint_names)
    np.testing.assert_array_equal(log.q, q)
    out = str(tmp_path / "out")
    words = [
        "identify",
        str(ts.robots.panda),
        str(path),
        *option.split(),
        "--out",
        out,
        "--method",
        "ols",
    ]
    assert main([*words, "--ignore", "force_scale"]) == 0, capsys.readouterr().err
    fit = ts.identification.Fit.load(out)
    assert fit.mechanism.joint_names == arm
