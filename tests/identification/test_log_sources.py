"""Logs from headerless files, several files, ROS 2 bags, LeRobot datasets and columns of other names."""

import json
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
    with pytest.raises(ts.FitError, match="has 8 columns, 7 are listed"):
        Log.load(path, JOINTS, columns="t,q*2,qd*2,tau*2")
    with pytest.raises(ts.FitError, match=r"--columns t,q\*6"):
        Log.load(path, JOINTS)


def test_files_of_single_quantities_are_joined_at_the_times_of_the_positions(tmp_path):
    t, q, qd, tau = arrays()
    position = write_csv(tmp_path / "pos.csv", ["t", *(f"q_{j}" for j in JOINTS)], [t, q])
    velocity = write_csv(tmp_path / "vel.csv", ["t", *(f"qd_{j}" for j in JOINTS)], [t, qd])
    fine = np.arange(-0.1, 2.2, 0.001)
    waves = (
        np.stack([np.sin(fine), np.cos(2 * fine)], -1),
        np.stack([np.cos(fine), -2 * np.sin(2 * fine)], -1),
    )
    hole = (fine < 0.395) | (fine > 0.505)
    names = ["t", *(f"tau_{j}" for j in JOINTS)]
    effort = write_csv(tmp_path / "eff.csv", names, [fine[hole], (3 * waves[0] + waves[1])[hole]])
    log = Log.load([position, velocity, effort], JOINTS)
    lost = (t > 0.395) & (t < 0.505)
    np.testing.assert_array_equal(np.isnan(log.tau).any(1), lost)
    np.testing.assert_allclose(log.tau[~lost], tau[~lost], atol=1e-5)
    np.testing.assert_array_equal(log.qd, qd)
    with pytest.raises(ts.FitError, match="no file has tau"):
        Log.load([position, velocity], JOINTS)
    with pytest.raises(ts.FitError, match="both have q"):
        Log.load([position, position, effort], JOINTS)
    late = write_csv(tmp_path / "late.csv", names, [t + 1e6, tau])
    with pytest.raises(ts.FitError, match="no time in common"):
        Log.load([position, late], JOINTS)


def test_several_complete_files_are_logs_of_one_fit(tmp_path):
    t, q, qd, tau = arrays()
    names = ["t", *(f"{x}_{j}" for x in ("q", "qd", "tau") for j in JOINTS)]
    paths = [write_csv(tmp_path / f"{k}.csv", names, [t, q, qd, tau]) for k in range(2)]
    log = Log.load(paths, JOINTS)
    assert len(log) == 2 * len(t)
    assert np.diff(log.t)[len(t) - 1] >= 1.0
    np.testing.assert_array_equal(log.q, np.concatenate([q, q]))


def test_episodes_of_a_lerobot_dataset_are_logs_of_one_fit(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    t, q, qd, tau = arrays()
    table = {
        "observation.state": np.concatenate([q, q]).tolist(),
        "observation.velocity": np.concatenate([qd, qd]).tolist(),
        "observation.effort": np.concatenate([tau, tau]).tolist(),
        "action": np.concatenate([q, q]).tolist(),
        "timestamp": np.concatenate([t, t]),
        "episode_index": np.repeat([0, 1], len(t)),
    }
    folder = tmp_path / "data" / "chunk-000"
    folder.mkdir(parents=True)
    parquet.write_table(pyarrow.table(table), folder / "file-000.parquet")
    names = {"names": {"motors": ["arm_1_joint.pos", "SHOULDER.pos"]}}
    features = {f"observation.{x}": names for x in ("state", "velocity", "effort")}
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text(json.dumps({"features": features}))
    for path in (tmp_path, folder / "file-000.parquet"):
        log = Log.load(path, JOINTS)
        assert len(log) == 2 * len(t)
        np.testing.assert_array_equal(log.q[: len(t)], q[:, ::-1])
        np.testing.assert_array_equal(log.tau[len(t) :], tau[:, ::-1])


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
