"""Files of logs from other programs: read correctly, or refused with the line, column and type."""

import decimal
import tracemalloc
from typing import Any

import numpy as np
import pytest

import torchsko as ts
from torchsko.cli.log_options import parse_columns, parse_units
from torchsko.cli.main import main
from torchsko.identification.logs import csv_file
from torchsko.view.playback import read_log

JOINTS = ("turn", "slide")
NAMES = ["t", *(f"{x}_{j}" for x in ("q", "qd", "tau") for j in JOINTS)]


def rows(n=40):
    """Samples that are exact to nine digits, in the order of `NAMES`."""
    t = 0.01 * np.arange(n)
    return np.round(np.stack([t, *(np.sin((k + 1) * t + k) for k in range(6))], 1), 6)


def csv_text(names=NAMES, sep=",", x=None):
    lines = [sep.join(f"{v:.14g}" for v in row) for row in (rows() if x is None else x)]
    return "\n".join([sep.join(names), *lines]) + "\n"


def load_csv(tmp_path, content, encoding="utf-8", **options):
    (tmp_path / "a.csv").write_bytes(content.encode(encoding))
    return ts.identification.Log.load(tmp_path / "a.csv", JOINTS, **options)


def assert_complete(log, x=None):
    x = rows() if x is None else x
    found = np.column_stack([log.t, log.q, log.qd, log.tau])
    np.testing.assert_allclose(found, x, rtol=1e-9, atol=1e-12)


DEG = 180 / np.pi * np.array([0.0, 1, 0, 1, 0, 0, 0]) + np.array([1.0, 0, 1, 0, 1, 1, 1])
IN_DEGREES = [
    "t [s]",
    "q_turn [deg]",
    "q_slide [m]",
    "qd_turn (deg/s)",
    "qd_slide (m/s)",
    "tau_turn [N m]",
]
IN_DEGREES += ["tau_slide [N]"]
PATHS = [f"/joint_states/{j}/{x}" for x in ("position", "velocity", "effort") for j in JOINTS]

AFTER = [f"{x}/{j}" for x in ("position", "velocity", "effort") for j in JOINTS]

STAMPED = np.insert(rows(), 1, 1.7e9 + rows()[:, 0], 1)


def numbered(pattern):
    return [pattern.format(x, k) for x in ("position", "velocity", "effort") for k in range(2)]


STILL = np.vstack([np.round(rows()[:1]), rows()[1:]])


DEGREE, DOT = "\N{DEGREE SIGN}", "\N{MIDDLE DOT}"


def above(*lines, content=None):
    """The CSV text below other lines."""
    return "\n".join([*lines, csv_text() if content is None else content])


def with_lines(at, *more, sep=","):
    """The CSV text with lines inserted before line `at`, counted from 0."""
    lines = csv_text(sep=sep).splitlines()
    return "\n".join([*lines[:at], *more, *lines[at:]]) + "\n"


def below_names(line, x=None):
    return csv_text(x=x).replace("\n", f"\n{line}\n", 1)


def quoted(content):
    return "\n".join(",".join(f'"{x}"' for x in line.split(",")) for line in content.split())


READ = {
    "semicolons": csv_text(sep=";"),
    "tabs": csv_text(sep="\t"),
    "white space": csv_text(sep=" "),
    "numbers in quotes": quoted(csv_text()),
    "comments": "# rig 7\n# 2026-01-02\n" + csv_text(),
    "a header that is a comment": "# rig 7\n# " + csv_text(),
    "units in names": csv_text(IN_DEGREES, x=rows() * DEG),
    "units below names": csv_text(x=rows() * DEG).replace("\n", "\ns,deg,m,deg/s,m/s,Nm,N\n", 1),
    "paths": csv_text(["__time", *PATHS]),
    "rostopic echo -p": csv_text(["%time", *numbered("field.{}{}")]),
    "indices of a path": csv_text(["__time", *numbered("/joint_states/{}[{}]")]),
    "stamps of a path": csv_text(["/joint_states/header/stamp", *PATHS]),
    "two stamps": csv_text(["__time", "field.header.stamp", *PATHS], x=STAMPED),
    "names of rosbag_pandas": csv_text(["Time", *numbered("joint_states__{}_{}")]),
    "units below names in brackets": below_names(
        "[s],[deg],[m],[deg/s],[m/s],[N m],[N]", rows() * DEG
    ),
    "units below names by their signs": below_names(
        f"s,{DEGREE},m,{DEGREE}/s,m/s,N{DOT}m,N", rows() * DEG
    ),
    "units below names in words": below_names("sec,degrees,m,deg/sec,m/s,N*m,N", rows() * DEG),
    "rows of commas": with_lines(20, ",,,,,,", ",,,", "\t", ' "",""'),
    "rows of commas at the ends": with_lines(1, *[",,,,,,"] * 3) + ",,,,,,\n,\n\t\n",
    "rows of tabs": with_lines(20, "\t", "\t" * 6, sep="\t") + "\t",
    "rows of semicolons": with_lines(20, ";;;;;;", sep=";") + ";;;;;;\n",
    "empty lines above": above("", "\t", "  "),
    "a comment that is the names, above an empty line": "# " + csv_text().replace("\n", "\n\n", 1),
    "the quantity before the joint": csv_text(["time", *(f"/joint_states/{x}" for x in AFTER)]),
}


@pytest.mark.parametrize("style", READ)
def test_csv_files_of_other_programs_are_read(tmp_path, style):
    assert_complete(load_csv(tmp_path, READ[style]))


@pytest.mark.parametrize("sec, nano", [("sec", "nanosec"), ("secs", "nsecs"), ("s", "ns")])
@pytest.mark.parametrize("stem", ["", "header.stamp.", "/joint_states/header/stamp/", "stamp_"])
def test_seconds_and_nanoseconds_in_two_columns_are_one_time(tmp_path, stem, sec, nano):
    """Time stamps of ROS 2, across a full second."""
    x, names = rows(), [stem + sec, stem + nano, *NAMES[1:]]
    nanoseconds = 1_700_000_000_800_000_000 + np.round(1e9 * x[:, 0]).astype(int)
    halves = np.divmod(nanoseconds, 10**9)
    lines = [
        f"{s},{n}," + ",".join(map(str, row))
        for s, n, row in zip(*halves, x[:, 1:].tolist(), strict=True)
    ]
    content = "\n".join([",".join(names), *lines])
    for columns in (None, {"t": names[:2]}):
        log = load_csv(tmp_path, content, columns=columns)
        np.testing.assert_allclose(log.t - log.t[0], x[:, 0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(log.tau, x[:, 5:])
    for columns in ({"t": [names[0], names[2]]}, {"t": names[:3]}):
        with pytest.raises(ts.FitError, match=r"\d columns are selected for the time"):
            load_csv(tmp_path, content, columns=columns)
    with pytest.raises(ts.FitError, match="do not declare a unit of t"):
        load_csv(tmp_path, content, columns={"t": names[:2]}, units={"t": "ns"})


@pytest.mark.parametrize("sep", [";", "\t"])
@pytest.mark.parametrize("x", [rows(), STILL], ids=["first sample", "later sample"])
def test_decimal_commas_are_refused_with_the_way_to_convert_them(tmp_path, sep, x):
    with pytest.raises(ts.FitError, match=r'(?s)a decimal comma.*read_csv\("a.csv".*decimal=","'):
        load_csv(tmp_path, csv_text(sep=sep, x=x).replace(".", ","))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_other_encodings_are_refused_with_the_way_to_convert_them(tmp_path, encoding):
    names = [f"q_turn [{DEGREE}]", *NAMES]
    with pytest.raises(ts.FitError, match=r"(?s)not UTF-8.*pandas.read_csv\(.*encoding="):
        load_csv(tmp_path, csv_text(names), encoding)


def test_messages_list_the_first_columns_and_count_the_others(tmp_path):
    names = [*(f"x{k}" for k in range(20)), "t"]
    with pytest.raises(ts.FitError, match="'x11', and 9 more") as error:
        load_csv(tmp_path, csv_text(names, x=np.zeros((40, 21))))
    assert str(error.value).count("\n") == 2, str(error.value)


def test_an_empty_archive_is_refused_by_name(tmp_path):
    (tmp_path / "a.npz").touch()
    with pytest.raises(ts.FitError, match=r"a\.npz: cannot be read"):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert_complete(load_csv(tmp_path, csv_text(), "utf-8-sig"))


def shorten_line(line, columns):
    lines = csv_text().splitlines(keepends=True)
    lines[line - 1] = ",".join(lines[line - 1].split(",")[:columns]) + "\n"
    return "".join(lines)


REFUSED = {
    "a column twice": (csv_text([*NAMES[:-1], "tau_turn"]), {}, "2 columns are named 'tau_turn'"),
    "a short row": (shorten_line(23, 5), {}, "line 23 has 5 columns, the header has 7"),
    "a short row below comments": (
        "# a\n\n# b\n"[:4] + shorten_line(23, 5),
        {},
        "line 24 has 5 columns",
    ),
    "a last row cut off": (shorten_line(41, 2), {}, "line 41 has 2 columns"),
    "words below names": (
        csv_text().replace("\n", "\nfirst,a,b,c,d,e,f\n", 1),
        {},
        "line 2 has no number, but 'first'",
    ),
    "a unit below names that is not known": (
        below_names("s,mrad,m,rad/s,m/s,Nm,N"),
        {},
        r"(?s)no number, but 'mrad'.*Known units are s, ms",
    ),
    "a unit in brackets that is not known": (
        csv_text(["t", "q_turn [mrad]", *NAMES[2:]]),
        {},
        r"(?s)no column is q of joint 'turn'.*The unit of 'q_turn \[mrad\]' is unknown.*deg",
    ),
    "a unit of another quantity": (
        below_names("s,deg/s,m,rad/s,m/s,Nm,N"),
        {},
        "name of 'q_turn' stands for q, but its unit is deg/s",
    ),
    "units one column off": (
        below_names("rad,m,rad/s,m/s,Nm,N,"),
        {},
        "name of 't' stands for t, but its unit is rad",
    ),
    "a line of units that the names contradict": (
        below_names("s,rad,m,rad/s,m/s,Nm,N").replace("q_turn", "q_turn [deg]", 1),
        {},
        r"line 2 gives the unit rad for 'q_turn \[deg\]', whose name gives deg",
    ),
    "a time with two units": (
        below_names("s,rad,m,rad/s,m/s,Nm,N").replace("t,", "t_ms,", 1),
        {},
        "line 2 gives the unit s for 't_ms', whose name gives ms",
    ),
    "currents below names": (
        below_names("s,rad,m,rad/s,m/s,A,A"),
        {},
        "'tau_turn' is a current, and no unit is declared",
    ),
    "a title of several cells": (
        above("Rig 7,left"),
        {},
        "(?s)line 2 has no number.*Delete the other line: sed -i 1d a.csv",
    ),
    "names twice": (
        above(",".join(NAMES)),
        {},
        "(?s)line 2 has no number.*sed -i 2d a.csv",
    ),
    "rows that end in a separator": (
        csv_text().replace("\n", ",\n").replace("tau_slide,", "tau_slide", 1),
        {},
        "(?s)line 2 has 8 columns, the header has 7.*end in a separator",
    ),
    "two times called like halves": (
        csv_text(["t_s", "t_ns", *NAMES[1:]], x=np.insert(rows(), 1, 1e9 * rows()[:, 0], 1)),
        {},
        "'t_s' and 't_ns' are not seconds and nanoseconds of one time",
    ),
    "a time with an unknown meaning": (
        csv_text(["elapsed_ms", *NAMES[1:]]),
        {},
        "(?s)no column is the time.*--column t=elapsed_ms",
    ),
    "columns of a unit that is not known": (
        csv_text(["t", "a [mrad]", "b [cm]", *NAMES[3:]]),
        {"columns": {"q": ["a [mrad]", "b [cm]"]}},
        r"(?s)'a \[mrad\]' for q may be in mrad.*--unit q=rad: one of rad, deg, m, mm",
    ),
    "columns whose names say degrees": (
        csv_text(["t", "a_deg", "b_mm", *NAMES[3:]]),
        {"columns": {"q": ["a_deg", "b_mm"]}},
        "(?s)'a_deg' for q may be in deg.*--unit q=deg",
    ),
    "velocities in degrees, by their names": (
        csv_text([*NAMES[:3], "a_deg_s", "b_m_s", *NAMES[5:]]),
        {"columns": {"qd": ["a_deg_s", "b_m_s"]}},
        "(?s)'a_deg_s' for qd may be in deg/s.*--unit qd=deg/s",
    ),
    "units twice": (
        csv_text(IN_DEGREES),
        {"units": {"q": "rad"}},
        r"'q_turn \[deg\]' is in deg, and q was",
    ),
    "two topics": (
        csv_text(["t", *PATHS[:2], *(f"/wanted/{j}/position" for j in JOINTS), *PATHS[4:]]),
        {},
        "two columns are q of 'turn'",
    ),
    "currents in brackets": (
        csv_text([*NAMES[:5], "tau_turn [A]", "tau_slide [A]"]),
        {},
        "is a current",
    ),
    "what to type of measured and commanded": (
        csv_text(["t", *(f"{x}_{k}" for x in ("target_q", "state_q", "tau") for k in range(2))]),
        {},
        r"(?s)no column is a position.*--column q=state_q_0,state_q_1",
    ),
    "what to type of joints by other names": (
        csv_text(["t", *(f"{x}_A{k}" for x in ("pos", "vel", "torque") for k in (1, 2))]),
        {},
        r"(?s)no column is a position.*--column q=pos_A1,pos_A2",
    ),
    "no encoding": ("\0" + csv_text(), {}, "it is not UTF-8 text"),
    "a unit of no joint": (
        csv_text(),
        {"units": {"q": {"slid": "mm"}}},
        "no joint is named 'slid'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_ambiguous_files_are_refused_by_line_or_column(tmp_path, what):
    content, options, match = REFUSED[what]
    with pytest.raises(ts.FitError, match=match) as error:
        load_csv(tmp_path, content, **options)
    assert str(error.value).count("\n") == 2, str(error.value)


def test_missing_numbers_comments_and_short_lines_are_found_in_any_block(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_file, "BLOCK_LINES", 7)
    lines = csv_text().splitlines(keepends=True)
    lines[20] = lines[20].replace(lines[20].split(",")[5], "none")
    lines[12:12] = ["\n", "# paused\n", *(["\n"] * 9)]
    x = rows()
    x[19, 5] = np.nan
    assert_complete(load_csv(tmp_path, "".join(lines)), x)
    with pytest.raises(ts.FitError, match="line 37 has 4 columns, the header has 7"):
        load_csv(tmp_path, shorten_line(37, 4))  # the first of a block


def test_reading_a_csv_file_needs_little_more_memory_than_its_numbers(tmp_path):
    """A log of 15 minutes at 1 kHz has 150 MB of numbers; reading it used to need 3 GB."""
    x = np.random.default_rng(0).normal(size=(30_000, 7))
    np.savetxt(tmp_path / "a.csv", x, "%.6f", ",", header=",".join(NAMES), comments="")
    tracemalloc.start()
    columns = csv_file.read_csv(tmp_path / "a.csv").columns
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(columns["tau_slide"], np.round(x[:, 6], 6))
    assert most < 4 * x.nbytes


def write_parquet(tmp_path, columns):
    pyarrow = pytest.importorskip("pyarrow", reason="comes with the extra parquet")
    file = pytest.importorskip("pyarrow.parquet")
    file.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    return lambda **options: ts.identification.Log.load(tmp_path / "a.parquet", JOINTS, **options)


def test_parquet_lists_durations_and_decimals_are_numbers(tmp_path):
    x = rows()
    seconds = (1e6 * x[:, 0]).round().astype("m8[us]")
    parts = {"position": x[:, 1:3], "velocity": x[:, 3:5], "effort": x[:, 5:]}
    lists = {name: list(part) for name, part in parts.items()}
    assert_complete(write_parquet(tmp_path, {"t": seconds, **lists})())
    turned = {name: list(part[:, ::-1]) for name, part in parts.items()}
    names = [list(JOINTS[::-1])] * len(x)
    assert_complete(write_parquet(tmp_path, {"t": x[:, 0], "name": names, **turned})())
    columns = dict(zip(NAMES, x.T, strict=True))
    columns["tau_turn"] = [decimal.Decimal(f"{v:.6f}") for v in x[:, 5]]
    assert_complete(write_parquet(tmp_path, columns)())


@pytest.mark.parametrize("words", ["string", "large_string", "dictionary"])
def test_parquet_lists_follow_the_joint_names_of_their_samples(tmp_path, words):
    """Polars writes large strings, which used to be ignored."""
    pyarrow = pytest.importorskip("pyarrow", reason="comes with the extra parquet")
    kinds = {
        "string": pyarrow.string(),
        "large_string": pyarrow.large_string(),
        "dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    }
    x = rows()
    parts = {"position": x[:, 1:3], "velocity": x[:, 3:5], "effort": x[:, 5:]}
    turned = {name: list(part[:, ::-1]) for name, part in parts.items()}
    names = [list(JOINTS[::-1])] * len(x)
    kind = pyarrow.list_(kinds[words])
    assert_complete(
        write_parquet(tmp_path, {"t": x[:, 0], "name": pyarrow.array(names, kind), **turned})()
    )
    mixed = pyarrow.array([list(JOINTS), *names[1:]], kind)
    with pytest.raises(ts.FitError, match="has the joints turn, slide, another slide, turn"):
        write_parquet(tmp_path, {"t": x[:, 0], "name": mixed, **turned})()


def test_parquet_dates_count_from_the_first_valid_one(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="comes with the extra parquet")
    x = rows()
    moments = (1e9 * x[:, 0]).round().astype("M8[ns]")
    time = pyarrow.array(moments, mask=np.arange(len(x)) < 2)
    log = write_parquet(tmp_path, dict(zip(NAMES, [time, *x.T[1:]], strict=True)))()
    np.testing.assert_allclose(log.t[2:], x[2:, 0] - x[2, 0], atol=1e-9)


def test_parquet_columns_without_numbers_are_listed_with_their_type(tmp_path):
    x = rows()
    columns = dict(zip(NAMES, x.T, strict=True))
    words = {"tau_turn": x[:, 5].astype(str), "tau_slide": x[:, 6].astype(str)}
    with pytest.raises(ts.FitError, match=r"(?s)'tau'.*'tau_turn' \(string, not numbers\)"):
        write_parquet(tmp_path, columns | words)()
    moments = np.datetime64("2026-01-02", "ms") + (1e3 * x[:, 0]).round().astype("m8[ms]")
    with pytest.raises(ts.FitError, match=r"(?s)'t' is in s, and t was declared in ms.*Leave"):
        write_parquet(tmp_path, columns | {"t": moments})(units={"t": "ms"})
    uneven = [list(row[: 1 + k % 2]) for k, row in enumerate(x[:, 1:3])]
    with pytest.raises(ts.FitError, match="lists of column 'q' have 1, 2 numbers"):
        write_parquet(tmp_path, columns | {"q": uneven})()


def robot():
    """An arm with a revolute and a prismatic joint."""
    builder = ts.MechanismBuilder("two")
    for name in ("a", "b"):
        inertia = np.diag([0.02, 0.03, 0.03]).tolist()
        builder.link(name, mass=1.0, com=(0.3, 0, 0), inertia=inertia)
    builder.joint("turn", "revolute", child="a", axis=(0, 1, 0))
    builder.joint("slide", "prismatic", parent="a", child="b", axis=(1, 0, 0))
    return builder.build()


def test_revolute_and_prismatic_joints_have_different_units(tmp_path):
    x = rows() * np.array([1, 180 / np.pi, 1e3, 1, 1, 1, 1])
    for units, wrong in (({"q": "deg"}, "slide"), ({"q": "mm"}, "turn"), ({"qd": "rpm"}, "slide")):
        log = load_csv(tmp_path, csv_text(x=x), units=units)
        with pytest.raises(ts.FitError, match=f"joint '{wrong}' is") as error:
            ts.identification.identify(robot(), log)
        (name, unit), right = *units.items(), "turn" if wrong == "slide" else "slide"
        assert f"--unit {name}.{right}={unit}" in str(error.value)
    each = parse_units(["q.turn=deg", "q.slide=mm"])
    assert each == {"q": {"turn": "deg", "slide": "mm"}}
    assert_complete(load_csv(tmp_path, csv_text(x=x), units=each))
    log = load_csv(tmp_path, csv_text(x=x), units={"q": {"slide": "deg"}})
    with pytest.raises(ts.FitError, match="joint 'slide' is prismatic"):
        ts.identification.identify(robot(), log)


def test_columns_are_selected_on_the_command_line(tmp_path, capsys):
    names = ["t", "a", "b", "c", "d", "e", "f"]
    columns = parse_columns(["q=a,b", "qd=c,d", "tau=e,f"])
    assert_complete(load_csv(tmp_path, csv_text(names), columns=columns))
    ts.save(robot(), tmp_path / "robot.urdf")
    command = [
        "identify",
        str(tmp_path / "robot.urdf"),
        str(tmp_path / "a.csv"),
        "--out",
        str(tmp_path),
    ]
    for more, match in (
        ([], "--column q="),
        (["--column", "q"], "has no column names"),
        (["--column", "q=a,z"], "there is no column 'z'"),
        (["--unit", "q=deg", "--unit", "q=rad"], "repeats the unit"),
    ):
        assert main([*command, *more]) == 2
        assert match in capsys.readouterr().err


def test_the_viewer_applies_units_in_names(tmp_path):
    (tmp_path / "a.csv").write_text(READ["units in names"])
    motion = read_log(robot(), tmp_path / "a.csv")
    np.testing.assert_allclose(motion.q.numpy(), rows()[:, 1:3], rtol=1e-8, atol=1e-12)


TURNED = [0, 2, 1, 4, 3, 6, 5]
"""Columns of `rows` for joints in alphabetical order, as in ROS."""


@pytest.mark.parametrize(
    "style", ["{}_{}", "field.{}{}", "/joint_states/{}[{}]", "joint_{}_{}", "joint_{}[{}]"]
)
def test_numbered_columns_belong_to_the_joints_that_name_columns_contain(tmp_path, style):
    """The format of `rostopic echo -p`."""
    names = [style.format(x, k) for x in ("name", "position", "velocity", "effort") for k in (0, 1)]
    lines = [
        ",".join(["slide", "turn", *(f"{v:.14g}" for v in row[TURNED][1:]), f"{row[0]:.14g}"])
        for row in rows()
    ]
    content = [",".join([*names, "time"]), *lines]
    assert_complete(load_csv(tmp_path, "\n".join(content)))
    # Names that are not joints of the robot are ignored, and the numbers count.
    others = "\n".join(content).replace("slide,turn", "A1,A2")
    assert_complete(load_csv(tmp_path, others), rows()[:, TURNED])
    content[20] = content[20].replace("slide,turn", "turn,slide")
    with pytest.raises(ts.FitError, match="line 21 names the joint 'turn', line 2 names 'sl"):
        load_csv(tmp_path, "\n".join(content))
    with pytest.raises(ts.FitError, match="names the joint 'turn' twice"):
        load_csv(tmp_path, "\n".join([content[0], *lines]).replace("slide,turn", "turn,turn"))


def test_comments_and_blank_lines_are_ignored_but_counted_in_line_numbers(tmp_path):
    """Also in files with joint names, whose cells are parsed one by one."""
    names = [f"{x}_{k}" for x in ("name", "position", "velocity", "effort") for k in (0, 1)]
    lines = [
        ",".join(["slide", "turn", *(f"{v:.14g}" for v in row[TURNED][1:])]) + f",{row[0]:.14g}"
        for row in rows()
    ]
    lines[3] += " # slower, from here on"
    lines[5:5] = ["", "  # a pause, of a day", "# and another", "   "]
    content = [",".join([*names, "time"]), *lines]
    assert_complete(load_csv(tmp_path, "\n".join(content)))
    wrong = [*content[:20], content[20].replace("slide,turn", "turn,slide"), *content[21:]]
    with pytest.raises(ts.FitError, match="line 21 names the joint 'turn', line 2 names 'sl"):
        load_csv(tmp_path, "\n".join(wrong))
    with pytest.raises(ts.FitError, match="line 21 has 4 columns"):
        load_csv(tmp_path, "\n".join([*content[:20], "slide,turn,0,1", *content[21:]]))


def test_joint_names_may_have_a_namespace_and_other_names_may_repeat(tmp_path):
    names = [f"{x}_{k}" for x in ("name", "position", "velocity", "effort") for k in range(4)]
    lines = []
    for t, *x in rows()[:, TURNED]:
        each = [x[0], x[1], 7, 7, x[2], x[3], 7, 7, x[4], x[5], 7, 7]
        words = ["left/slide", "left/turn", "left/finger", "left/finger"]
        lines.append(",".join([*words, *(f"{v:.14g}" for v in each), f"{t:.14g}"]))
    assert_complete(load_csv(tmp_path, "\n".join([",".join([*names, "time"]), *lines])))


def test_an_index_of_dates_without_a_name_is_the_time(tmp_path):
    """The format of pandas."""
    lines = [
        ",".join([f"2026-01-02 12:00:{t:09.6f}", *(f'"{v:.14g}"' for v in row)])
        for t, *row in rows()
    ]
    assert_complete(load_csv(tmp_path, "\n".join([",".join(["", *NAMES[1:]]), *lines])))
    hours = "\n".join([",".join(["time", *NAMES[1:]]), *lines]).replace("2026-01-02 ", "")
    with pytest.raises(ts.FitError, match=r"(?s)no column is the time.*Write 'time' in seconds"):
        load_csv(tmp_path, hours)


def save_npz(tmp_path, arrays: dict[str, Any]):
    np.savez(tmp_path / "a.npz", **arrays)


def test_arrays_are_reordered_by_the_joint_names_of_their_file(tmp_path):
    x = rows()
    turned = {name: x[:, [k + 1, k]] for name, k in (("q", 1), ("qd", 3), ("tau", 5))}
    for word in ("name", "joint_names"):
        save_npz(tmp_path, {"t": x[:, 0], **turned, word: np.array(JOINTS[::-1])})
        assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS))
    save_npz(tmp_path, {"t": x[:, 0], **turned, "names": np.array(JOINTS[::-1]).astype(bytes)})
    assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS))
    # Without names of the robot's joints, the order of the file is kept.
    np.testing.assert_array_equal(ts.identification.Log.load(tmp_path / "a.npz").q, turned["q"])


def test_arrays_of_objects_are_ignored_unless_they_are_needed(tmp_path):
    """An unused array of objects is no error."""
    x, notes = rows(), np.array([{"rig": 7}], dtype=object)
    parts = {"t": x[:, 0], "q": x[:, 1:3], "qd": x[:, 3:5]}
    save_npz(tmp_path, parts | {"tau": x[:, 5:], "notes": notes})
    assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS))
    save_npz(tmp_path, parts | {"tau": x[:, 5:].astype(object)})
    with pytest.raises(
        ts.FitError, match=r"(?s)'tau' \(objects, not numbers\).*\[samples, joints\]"
    ):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
    names = np.array(JOINTS[::-1], dtype=object)  # as a data frame's columns are
    save_npz(tmp_path, parts | {"tau": x[:, 5:], "joint_names": names})
    with pytest.raises(ts.FitError, match=r"(?s)'joint_names' contains Python objects.*dtype=str"):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
    (tmp_path / "a.npz").write_text(csv_text())
    with pytest.raises(ts.FitError, match=r"it is not an archive of numpy\.savez") as error:
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
    assert "pickle" not in str(error.value)


@pytest.mark.parametrize("sep, zone", [(",", ""), (";", "+02:00"), (",", "Z")])
def test_dates_in_csv_files_count_from_the_first(tmp_path, sep, zone):
    """With and without time zones, across midnight."""
    t, names = rows()[:, 0], ["rig", *NAMES]
    lines = [
        sep.join(["left", f"2026-01-02T23:59:{59.9 + s:09.6f}{zone}", *(f"{v:.14g}" for v in row)])
        if s < 0.095
        else sep.join(
            ["left", f"2026-01-03 00:00:{s - 0.1:09.6f}{zone}", *(f"{v:.14g}" for v in row)]
        )
        for s, row in zip(t, rows()[:, 1:], strict=True)
    ]
    content = "\n".join([sep.join(names), *lines])
    assert_complete(load_csv(tmp_path, content))
    with pytest.raises(ts.FitError, match="column 't' is in s, and t was declared in ns"):
        load_csv(tmp_path, content, units={"t": "ns"})


@pytest.mark.parametrize("fault", ["#N/A", "#DIV/0!", "#NV", '"#N/A"'])
def test_error_values_of_spreadsheets_are_missing_numbers(tmp_path, fault):
    """A # within a line is a comment only after a number."""
    x = rows()
    x[[3, 20, -1], [2, 6, 1]] = np.nan
    assert_complete(load_csv(tmp_path, csv_text(x=x).replace("nan", fault) + "# the end\n"), x)


def test_columns_of_text_and_lists_are_listed_with_their_type(tmp_path):
    """The message explains why 'position' is not used."""
    lines = [f'{r[0]},base,"[{r[1]}, {r[2]}]","[{r[5]}, {r[6]}]"' for r in rows()]
    content = "\n".join(["t,frame_id,position,effort", *lines])
    with pytest.raises(ts.FitError) as error:
        load_csv(tmp_path, content)
    _, there, advice = str(error.value).splitlines()
    assert "'frame_id' (text, not numbers), 'position' (lists, not numbers)" in there
    assert "position_0, position_1" in advice
