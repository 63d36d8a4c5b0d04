"""Columns and arrays of logs are assigned to the right quantity, joint and unit in each file format."""

import numpy as np
import pytest

import torchsko as ts
from tests.identification.test_log_files import (
    DEGREE,
    DOT,
    JOINTS,
    NAMES,
    assert_complete,
    csv_text,
    load_csv,
    robot,
    rows,
    save_npz,
    write_parquet,
)
from torchsko.identification.logs import csv_file


@pytest.mark.parametrize(
    "name, unit",
    [("t_ms", 1e-3), ("time_s", 1), ("timestamp_ns", 1e-9), ("Time us", 1e-6), ("stamp_sec", 1)],
)
def test_units_at_the_end_of_the_name_of_a_time_are_applied(tmp_path, name, unit):
    """In all formats, and for times that the user selects."""
    x = rows() / np.array([unit, 1, 1, 1, 1, 1, 1])
    content = csv_text([name, *NAMES[1:]], x=x)
    for columns in (None, {"t": [name]}):
        assert_complete(load_csv(tmp_path, content, columns=columns))
        wrong = "ns" if unit == 1 else "s"
        with pytest.raises(ts.FitError, match=f"and t was declared in {wrong}"):
            load_csv(tmp_path, content, columns=columns, units={"t": wrong})
    save_npz(tmp_path, {name: x[:, 0], "q": x[:, 1:3], "qd": x[:, 3:5], "tau": x[:, 5:]})
    assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS))
    assert_complete(write_parquet(tmp_path, dict(zip([name, *NAMES[1:]], x.T, strict=True)))())
    # A time without a unit in its name has priority, with the declared unit.
    both = csv_text([name, "t", *NAMES[1:]], x=np.insert(x, 1, 1e3 * rows()[:, 0], 1))
    assert_complete(load_csv(tmp_path, both, units={"t": "ms"}))


def test_a_selected_time_has_the_unit_in_its_name(tmp_path):
    x = rows() * np.array([1e3, 1, 1, 1, 1, 1, 1])
    assert_complete(
        load_csv(tmp_path, csv_text(["elapsed_ms", *NAMES[1:]], x=x), columns={"t": ["elapsed_ms"]})
    )


def test_durations_in_words_are_refused_with_the_way_to_convert_them(tmp_path):
    lines = [f"0 days 00:00:{t:012.9f}," + ",".join(map(str, row)) for t, *row in rows().tolist()]
    with pytest.raises(ts.FitError, match=r"(?s)no column is the time.*dt\.total_seconds"):
        load_csv(tmp_path, "\n".join([",".join(NAMES), *lines]))


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[us]", "U"])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (1, -1)])
def test_times_of_arrays_may_be_dates_and_may_have_two_dimensions(tmp_path, kind, shape):
    """MATLAB saves times as a column."""
    x, parts = rows(), {"q": rows()[:, 1:3], "qd": rows()[:, 3:5], "tau": rows()[:, 5:]}
    whole = (1e6 * x[:, 0]).round().astype("m8[us]")
    moments = np.datetime64("2026-01-02T23:59:59.8", "ns") + whole
    t = whole if kind == "m8[us]" else moments if kind == "M8[ns]" else moments.astype(str)
    save_npz(tmp_path, {"t": t if kind == "U" else t.reshape(shape), **parts})
    assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS))
    save_npz(tmp_path, {"t": x[:, 0].reshape(shape), **parts})
    assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS))


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[us]"])
def test_a_parquet_index_of_dates_without_a_name_is_the_time(tmp_path, kind):
    x = rows()
    index = (1e6 * x[:, 0]).round().astype("m8[us]")
    index = np.datetime64("2026-01-02", "ns") + index if kind == "M8[ns]" else index
    columns = dict(zip(NAMES[1:], x[:, 1:].T, strict=True))
    assert_complete(write_parquet(tmp_path, {**columns, "__index_level_0__": index})())
    assert_complete(
        write_parquet(tmp_path, {**columns, "t": x[:, 0], "__index_level_0__": index[::-1]})()
    )
    # Numbers may be seconds or sample numbers.
    with pytest.raises(ts.FitError, match=r"(?s)no column is the time.*t=__index_level_0__"):
        write_parquet(tmp_path, {**columns, "__index_level_0__": x[:, 0]})()


def test_nanoseconds_since_1970_are_read_from_parquet(tmp_path):
    """They have more digits than a double, and are rounded."""
    x = rows()
    t = 1_700_000_000_000_000_000 + (1e9 * x[:, 0]).round().astype(np.int64)
    log = write_parquet(
        tmp_path, {"timestamp_ns": t, **dict(zip(NAMES[1:], x[:, 1:].T, strict=True))}
    )()
    np.testing.assert_allclose(log.t - log.t[0], x[:, 0], atol=1e-6)


ARRAYS = [
    ("joint_positions", "joint_velocities", "joint_torques"),
    ("joint_pos", "joint_vel", "joint_efforts"),
    ("jointPositions", "jointVelocities", "jointTorques"),
    ("/joint_states/position", "/joint_states/velocity", "/joint_states/effort"),
]


@pytest.mark.parametrize("names", [*ARRAYS, ("a", "b", "c")])
@pytest.mark.parametrize("order", ["robot", "turned"])
def test_arrays_are_found_by_common_names_or_selected(tmp_path, names, order):
    """In NPZ and Parquet files, with and without joint names."""
    x, stem = rows(), "/joint_states/" if names[0].startswith("/") else ""
    columns: dict[str, list[str]] = {"q": ["a"], "qd": ["b"], "tau": ["c"]} if "a" in names else {}
    at = {name: [k, k + 1] for name, k in zip(names, (1, 3, 5), strict=True)}
    words = ("name", "joint_names", "names") if order == "turned" else ("",)
    for word in words:
        turn = -1 if word else 1
        parts = {name: x[:, k[::turn]] for name, k in at.items()}
        theirs = {stem + word: np.array(JOINTS[::-1])} if word else {}
        each = {name: np.array([row] * len(x)) for name, row in theirs.items()}
        for named in (theirs, each):
            save_npz(tmp_path, {"t": x[:, 0], **parts, **named})
            assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS, columns=columns))
        lists = {name: list(part) for name, part in (parts | each).items()}
        assert_complete(write_parquet(tmp_path, {"t": x[:, 0], **lists})(columns=columns))


def test_arrays_with_ambiguous_joints_are_refused(tmp_path):
    x = rows()
    parts = {"t": x[:, 0], "q": x[:, 1:3], "qd": x[:, 3:5], "tau": x[:, 5:]}
    save_npz(tmp_path, {**parts, "joint_names": np.array(["finger", *JOINTS[::-1]])})
    with pytest.raises(
        ts.FitError, match="'q' has 2 columns, and the file names the joints finger"
    ):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
    each = np.array([JOINTS, *[JOINTS[::-1]] * 39])
    save_npz(tmp_path, {**parts, "name": each})
    with pytest.raises(ts.FitError, match="has the joints turn, slide, another slide, turn"):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
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


def test_numbered_parquet_columns_belong_to_the_joints_that_name_columns_contain(tmp_path):
    x = rows()
    words = ("position", "velocity", "effort")
    numbers = {f"{w}_{k}": x[:, 2 * i + 2 - k] for i, w in enumerate(words) for k in (0, 1)}
    names = {f"name_{k}": [JOINTS[1 - k]] * len(x) for k in (0, 1)}
    assert_complete(write_parquet(tmp_path, {"t": x[:, 0], **numbers, **names})())
    names["name_0"] = [JOINTS[0], *names["name_0"][1:]]
    with pytest.raises(ts.FitError, match="one sample has the joints turn, another slide"):
        write_parquet(tmp_path, {"t": x[:, 0], **numbers, **names})()


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
    for word in ("", "nan", "-"):
        log = load_csv(tmp_path, csv_without(slice(3, 5), word))
        assert log.qd is None
        np.testing.assert_array_equal(log.tau, x[:, 5:])
    save_npz(tmp_path, {**parts, "qd": np.full((40, 2), np.nan)})
    assert ts.identification.Log.load(tmp_path / "a.npz", JOINTS).qd is None
    lists = {name: list(part) for name, part in parts.items()}
    names = {"name": [list(JOINTS)] * 40}
    assert write_parquet(tmp_path, {**lists, **names, "qd": [[]] * 40})().qd is None
    log = load_csv(tmp_path, csv_without(slice(3, 4)))
    with pytest.raises(
        ts.FitError, match=r"(?s)qd of joint 'turn' has no finite number.*velocities of all"
    ):
        ts.identification.identify(robot(), log)
    with pytest.raises(
        ts.FitError, match=r"the velocity 'qd_turn' does not contain numbers \(text\)"
    ):
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
    load_csv(tmp_path, "\n".join([*lines[:1000], ",,,,,,", *lines[1000:]]))
    assert len(blocks) == 1


def test_declared_units_may_have_other_spellings(tmp_path):
    x = rows() * np.array([1e6, 180 / np.pi, 180 / np.pi, 1, 1, 1, 1])
    units = {"t": "\N{MICRO SIGN}s", "q": DEGREE, "tau": f"N{DOT}m"}
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
    np.testing.assert_allclose(ts.identification.Log.load(tmp_path / "log.npz", robot).q, q)


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
