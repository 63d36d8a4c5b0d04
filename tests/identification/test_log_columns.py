"""Columns and arrays of logs are assigned to the right quantity, joint and unit in each file format."""

import numpy as np
import pytest

import torchsko as ts
from tests.identification.test_log_files import (
    JOINTS,
    assert_complete,
    csv_text,
    load_csv,
    robot,
    rows,
    save_npz,
)
from torchsko.identification.logs import csv_file


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (1, -1)])
def test_times_of_arrays_may_have_two_dimensions(tmp_path, shape):
    """MATLAB saves times as a column."""
    x, parts = rows(), {"q": rows()[:, 1:3], "qd": rows()[:, 3:5], "tau": rows()[:, 5:]}
    save_npz(tmp_path, {"t": x[:, 0].reshape(shape), **parts})
    assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS))


ARRAYS = [
    ("joint_positions", "joint_velocities", "joint_torques"),
    ("joint_pos", "joint_vel", "joint_efforts"),
    ("jointPositions", "jointVelocities", "jointTorques"),
    ("/joint_states/position", "/joint_states/velocity", "/joint_states/effort"),
]


@pytest.mark.parametrize("names", [*ARRAYS, ("a", "b", "c")])
def test_arrays_are_found_by_common_names_or_selected(tmp_path, names):
    x = rows()
    columns: dict[str, list[str]] = {"q": ["a"], "qd": ["b"], "tau": ["c"]} if "a" in names else {}
    parts = {name: x[:, k : k + 2] for name, k in zip(names, (1, 3, 5), strict=True)}
    save_npz(tmp_path, {"t": x[:, 0], **parts})
    assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS, columns=columns))


def test_ambiguous_arrays_are_refused(tmp_path):
    x = rows()
    parts = {"t": x[:, 0], "q": x[:, 1:3], "qd": x[:, 3:5], "tau": x[:, 5:]}
    two = {f"/{x}/position": rows()[:, 1:3] for x in ("wanted", "found")}
    save_npz(tmp_path, {"t": x[:, 0], **two, "tau": x[:, 5:]})
    with pytest.raises(ts.FitError, match="two columns are q of all joints: '/found/position' and"):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
    save_npz(tmp_path, {**parts, "a": x[:-1, 1], "b": x[:, 2]})
    with pytest.raises(
        ts.FitError, match=r"the columns of q have different shapes: 'a' \[39\], 'b'"
    ):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS, columns={"q": ["a", "b"]})
    with pytest.raises(ts.FitError, match=r"there is no column 'c'"):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS, columns={"q": ["c"]})


def test_several_arrays_are_concatenated_to_one_quantity(tmp_path):
    x = rows()
    parts = {"t": x[:, 0], "a": x[:, 1:2], "b": x[:, 2], "qd": x[:, 3:5], "tau": x[:, 5:]}
    save_npz(tmp_path, parts)
    assert_complete(
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS, columns={"q": ["a", "b"]})
    )


def test_columns_of_a_single_joint_need_no_joint_name(tmp_path):
    x = rows()
    content = csv_text(["t", "q", "qd", "tau"], x=x[:, [0, 1, 3, 5]])
    (tmp_path / "a.csv").write_text(content)
    save_npz(tmp_path, {"t": x[:, 0], "q": x[:, 1], "qd": x[:, 3], "tau": x[:, 5]})
    for path in (tmp_path / "a.csv", tmp_path / "a.npz"):
        log = ts.identification.Log.load(path, ("turn",))
        assert_complete(log, x[:, [0, 1, 3, 5]])
        with pytest.raises(ts.FitError, match="no column is a position"):
            ts.identification.Log.load(path, JOINTS)


def csv_without(columns, word=""):
    lines = [line.split(",") for line in csv_text().splitlines()]
    for line in lines[1:]:
        line[columns] = [word] * len(line[columns])
    return "\n".join(map(",".join, lines))


def test_empty_velocities_count_as_not_measured(tmp_path):
    """Velocities of one joint only, and velocities that are text, are errors."""
    x = rows()
    parts = {"t": x[:, 0], "q": x[:, 1:3], "tau": x[:, 5:]}
    for word in ("", "nan"):
        log = load_csv(tmp_path, csv_without(slice(3, 5), word))
        assert log.qd is None
        np.testing.assert_array_equal(log.tau, x[:, 5:])
    save_npz(tmp_path, {**parts, "qd": np.full((40, 2), np.nan)})
    assert ts.identification.Log.load(tmp_path / "a.npz", JOINTS).qd is None
    log = load_csv(tmp_path, csv_without(slice(3, 4)))
    with pytest.raises(
        ts.FitError, match=r"(?s)qd of joint 'turn' has no finite number.*velocities of all"
    ):
        ts.identification.identify(robot(), log)
    with pytest.raises(ts.FitError, match="'qd_turn' is a velocity and holds 'fast'"):
        load_csv(tmp_path, csv_without(slice(3, 5), "fast"))


def test_lines_without_numbers_slow_down_only_their_block(tmp_path, monkeypatch):
    blocks = []
    parse = csv_file._parse_cells
    monkeypatch.setattr(csv_file, "_parse_cells", lambda *x: blocks.append(x) or parse(*x))
    monkeypatch.setattr(csv_file, "BLOCK_LINES", 100)
    content = csv_text(x=np.repeat(rows(), 50, 0))
    load_csv(tmp_path, content)
    assert not blocks
    lines = content.splitlines()
    load_csv(tmp_path, "\n".join([*lines[:1000], "0,,1,1,1,1,1", *lines[1000:]]))
    assert len(blocks) == 1


def test_declared_units_may_have_other_spellings(tmp_path):
    x = rows() * np.array([1e6, 180 / np.pi, 180 / np.pi, 1, 1, 1, 1])
    units = {"t": "\N{MICRO SIGN}s", "q": "\N{DEGREE SIGN}", "tau": "N\N{MIDDLE DOT}m"}
    log = load_csv(tmp_path, csv_text(x=x), units=units)
    assert_complete(log)
    assert log.units == {"t": "us", "q": "deg", "tau": "Nm"}


def columns_file(path, names, columns):
    np.savetxt(path, np.column_stack(columns), delimiter=",", header=",".join(names), comments="")
    return path


ARM = tuple(f"panda_joint{k}" for k in range(1, 4))


@pytest.mark.parametrize("robot", [ARM, tuple(x.removeprefix("panda_") for x in ARM)])
@pytest.mark.parametrize("prefix", ["fer_", "left/fer_", "FR3-", ""])
def test_a_common_prefix_of_all_joints_does_not_matter(robot, prefix, tmp_path):
    t, rng = np.arange(20) / 10, np.random.default_rng(0)
    q, tau = rng.normal(size=(2, 20, 3))
    order = [2, 0, 1]
    names = [f"{x}_{prefix}joint{k + 1}" for x in ("q", "tau") for k in order]
    more = [f"q_{prefix}finger_joint1", f"tau_{prefix}finger_joint1"]
    path = columns_file(
        tmp_path / "log.csv", ["t", *names, *more], [t, q[:, order], tau[:, order], q[:, :2]]
    )
    log = ts.identification.Log.load(path, robot)
    np.testing.assert_allclose(log.q, q)
    np.testing.assert_allclose(log.tau, tau)
    joint_names = np.array([f"{prefix}joint{k + 1}" for k in order])
    np.savez(tmp_path / "log.npz", t=t, q=q[:, order], tau=tau[:, order], joint_names=joint_names)
    with pytest.raises(ts.FitError, match=f"has the joint '{prefix}joint3' as a value"):
        ts.identification.Log.load(tmp_path / "log.npz", robot)


def test_two_prefixes_or_a_missing_joint_are_not_guessed(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3))
    for names in (["a_joint1", "b_joint2", "a_joint3"], ["a_joint1", "a_joint2", "a_wheel"]):
        columns = ["t", *(f"{k}_{j}" for k in ("q", "tau") for j in names)]
        path = columns_file(tmp_path / "log.csv", columns, [np.arange(20), x, x])
        with pytest.raises(ts.FitError, match="no column is a position"):
            ts.identification.Log.load(path, ARM)


def test_the_rate_gives_the_times_of_a_file_without_times(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3))
    names = [f"{k}_{j}" for k in ("q", "tau") for j in ARM]
    path = columns_file(tmp_path / "log.csv", names, [x, x])
    log = ts.identification.Log.load(path, ARM, rate=50.0)
    np.testing.assert_allclose(log.t, np.arange(20) / 50)
    np.savetxt(tmp_path / "bare.csv", np.column_stack([x, x]), delimiter=",")
    bare = ts.identification.Log.load(tmp_path / "bare.csv", ARM, columns="q*3,tau*3", rate=50.0)
    np.testing.assert_allclose(bare.tau, x)
    with pytest.raises(ts.FitError, match=r"(?s)no column is the time.*--rate 100"):
        ts.identification.Log.load(path, ARM)
    timed = columns_file(tmp_path / "timed.csv", ["t", *names], [np.arange(20), x, x])
    with pytest.raises(ts.FitError, match="the rate 50 Hz is given, and 't' is the time"):
        ts.identification.Log.load(timed, ARM, rate=50.0)
    for wrong in ({"rate": -1.0}, {"rate": 50.0, "units": {"t": "ms"}}):
        with pytest.raises(ts.FitError, match="the sampling rate is"):
            ts.identification.Log.load(path, ARM, **wrong)
