"""Files of logs from other programs: read correctly, or refused with the line, column and type."""

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


def numbered(pattern):
    return [pattern.format(x, k) for x in ("position", "velocity", "effort") for k in range(2)]


def above(*lines, content=None):
    """The CSV text below other lines."""
    return "\n".join([*lines, csv_text() if content is None else content])


def with_lines(at, *more, sep=","):
    """The CSV text with lines inserted before line `at`, counted from 0."""
    lines = csv_text(sep=sep).splitlines()
    return "\n".join([*lines[:at], *more, *lines[at:]]) + "\n"


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
    "paths": csv_text(["__time", *PATHS]),
    "rostopic echo -p": csv_text(["%time", *numbered("field.{}{}")]),
    "indices of a path": csv_text(["__time", *numbered("/joint_states/{}[{}]")]),
    "stamps of a path": csv_text(["/joint_states/header/stamp", *PATHS]),
    "names of rosbag_pandas": csv_text(["Time", *numbered("joint_states__{}_{}")]),
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
    "a short row": (shorten_line(23, 5), {}, "line 23 has 5 columns, not 7"),
    "a short row below comments": ("# a\n" + shorten_line(23, 5), {}, "line 24 has 5 columns"),
    "a last row cut off": (shorten_line(41, 2), {}, "line 41 has 2 columns"),
    "words below names": (
        csv_text().replace("\n", "\nfirst,a,b,c,d,e,f\n", 1), {}, "'t' is the time and holds 'first'",
    ),
    "decimal commas": (csv_text(sep=";").replace(".", ","), {}, "(?s)is the time and holds '0,01'.*pandas"),
    "a unit in brackets that is not known": (
        csv_text(["t", "q_turn [mrad]", *NAMES[2:]]), {}, "no column is q of joint 'turn'",
    ),
    "a time with an unknown meaning": (
        csv_text(["elapsed_ms", *NAMES[1:]]), {}, "(?s)no column is the time.*'elapsed_ms'.*--column t=",
    ),
    "a unit of no column": (csv_text(NAMES[:3] + ["a", "b", *NAMES[5:]]), {"units": {"qd": "rpm"}}, "'qd'"),
    "units twice": (
        csv_text(IN_DEGREES), {"units": {"q": "rad"}}, r"'q_turn \[deg\]' is in deg, and q was",
    ),
    "two topics": (
        csv_text(["t", *PATHS[:2], *(f"/wanted/{j}/position" for j in JOINTS), *PATHS[4:]]), {},
        "two columns are q of 'turn'",
    ),
    "currents in brackets": (
        csv_text([*NAMES[:5], "tau_turn [A]", "tau_slide [A]"]), {}, "is a current",
    ),
    "joints by other names": (
        csv_text(["t", *(f"{x}_A{k}" for x in ("pos", "vel", "torque") for k in (1, 2))]), {},
        r"(?s)no column is a position.*'pos_A1'.*--column q=",
    ),
    "a unit of no joint": (csv_text(), {"units": {"q": {"slid": "mm"}}}, "no joint is named 'slid'"),
    "joints as values": (
        "\n".join(["t,name,q_0,q_1,tau_0,tau_1", *(f"{k},slide,1,2,3,4" for k in range(40))]), {},
        "'name' has the joint 'slide' as a value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_ambiguous_files_are_refused_by_line_or_column(tmp_path, what):
    content, options, match = REFUSED[what]
    with pytest.raises(ts.FitError, match=match) as error:
        load_csv(tmp_path, content, **options)
    assert str(error.value).count("\n") == 2, str(error.value)


def test_missing_numbers_comments_and_short_lines_are_found_in_any_block(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_file, "BLOCK_LINES", 7)
    lines = csv_text().splitlines(keepends=True)
    lines[20] = lines[20].replace(lines[20].split(",")[5], "")
    lines[12:12] = ["\n", "# paused\n", *(["\n"] * 9)]
    x = rows()
    x[19, 5] = np.nan
    assert_complete(load_csv(tmp_path, "".join(lines)), x)
    with pytest.raises(ts.FitError, match="line 37 has 4 columns, not 7"):
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


def save_npz(tmp_path, arrays: dict[str, Any]):
    np.savez(tmp_path / "a.npz", **arrays)


def test_arrays_of_other_types_are_ignored_unless_they_are_needed(tmp_path):
    x, notes = rows(), np.array([{"rig": 7}], dtype=object)
    parts = {"t": x[:, 0], "q": x[:, 1:3], "qd": x[:, 3:5]}
    save_npz(tmp_path, parts | {"tau": x[:, 5:], "notes": notes, "rig": np.array("seven")})
    assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS))
    save_npz(tmp_path, parts | {"tau": x[:, 5:], "joints": np.array(JOINTS)})
    assert_complete(ts.identification.Log.load(tmp_path / "a.npz", JOINTS))
    save_npz(tmp_path, parts | {"tau": x[:, 5:], "joints": np.array(JOINTS[::-1])})
    with pytest.raises(ts.FitError, match="'joints' has the joint 'slide' as a value"):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
    save_npz(tmp_path, parts | {"tau": x[:, 5:].astype(object)})
    with pytest.raises(ts.FitError, match=r"no column is a joint force"):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
    save_npz(tmp_path, parts | {"tau": x[:, 5:].astype(str)})
    with pytest.raises(ts.FitError, match=r"'tau' is a joint force and holds values of type <U"):
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
    (tmp_path / "a.npz").write_text(csv_text())
    with pytest.raises(ts.FitError, match=r"it is not an archive of numpy\.savez") as error:
        ts.identification.Log.load(tmp_path / "a.npz", JOINTS)
    assert "pickle" not in str(error.value)


def test_columns_of_text_are_ignored_unless_they_are_needed(tmp_path):
    lines = [",".join(["left", *(f"{v:.14g}" for v in row)]) for row in rows()]
    assert_complete(load_csv(tmp_path, "\n".join([",".join(["rig", *NAMES]), *lines])))
    with pytest.raises(ts.FitError, match="'q_turn' is a position and holds 'left'"):
        load_csv(tmp_path, "\n".join([",".join(["q_turn", "t", "a", *NAMES[2:]]), *lines]))
