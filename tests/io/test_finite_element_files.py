"""CalculiX files: the model that wrote them comes back, and malformed files are refused by line."""

import numpy as np
import pytest

import torchsko as ts
from tests.flexible.finite_elements import block
from tests.refusals import assert_refused

M, K, X = block((2, 1, 1))
ORDER = np.random.default_rng(0).permutation(36)
"""Row of the files for each degree of freedom of the model, which CalculiX renumbers."""


def triangle(A) -> str:
    A = A[np.ix_(ORDER, ORDER)]
    return "".join(f"{i + 1} {j + 1} {A[i, j]:20.13e}\n" for j in range(36) for i in range(j + 1))


DECK = (
    "*HEADING\nblock\n** solid elements\n*NODE, NSET=NALL\n"
    + "".join(f"{7 + i}, {x:.17g}, {y:.17g}, {z:.17g}\n" for i, (x, y, z) in enumerate(X.tolist()))
    + "*NSET, NSET=Root, GENERATE\n7, 10\n*NSET, NSET=end\n15, 16,\n17, 18\n"
    + "*NSET, NSET=both\nroot, END\n*STEP\n*FREQUENCY, SOLVER=MATRIXSTORAGE\n*END STEP\n"
)
FILES = {
    "job.inp": DECK,
    "job.dof": "".join(f"{7 + k // 3}.{k % 3 + 1}\n" for k in ORDER),
    "job.sti": triangle(K),
    "job.mas": triangle(M),
}


def written(folder, **changes):
    for name, text in (FILES | {f"job.{x}": y for x, y in changes.items()}).items():
        if text is not None:
            (folder / name).write_text(text)
    return folder / "job.inp"


def test_the_matrices_and_nodes_of_a_model_come_back(tmp_path):
    model = ts.load_finite_elements(written(tmp_path))
    assert model.nodes == tuple(range(7, 19)) and set(model.sets) == {"NALL", "ROOT", "END", "BOTH"}
    assert np.array_equal(model.positions, X)
    assert np.abs(model.mass - M).max() < 1e-13 * M.max()
    assert np.abs(model.stiffness - K).max() < 1e-12 * K.max()
    assert model.indices("root") == [0, 1, 2, 3] and model.indices([18, 7]) == [11, 0]
    assert model.indices("both") == [0, 1, 2, 3, 8, 9, 10, 11]
    body = ts.FlexibleBody.from_finite_elements(
        model.mass, model.stiffness, model.positions, root=model.indices("root"),
        markers={"end": model.indices("end")}, modes=4, second_order=None,
    )  # fmt: skip
    assert len(body.modes) == 10


def test_a_deck_may_include_files_of_its_folder_only(tmp_path):
    nodes, rest = DECK.split("*NSET, NSET=Root")
    (tmp_path / "nodes.msh").write_text(nodes)
    path = written(tmp_path, inp=f"*INCLUDE, INPUT=nodes.msh\n*NSET, NSET=Root{rest}")
    assert np.array_equal(ts.load_finite_elements(path).positions, X)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link.msh").symlink_to(tmp_path / "nodes.msh")
    for name in ("../nodes.msh", "/etc/passwd", "link.msh", ""):
        path = written(tmp_path / "inner", inp=f"*HEADING\n*INCLUDE, INPUT={name}\n")
        assert_refused(lambda path=path: ts.load_finite_elements(path), "line 2: .INCLUDE")


DOF, STI = FILES["job.dof"], FILES["job.sti"]
BAD = {
    "job.sti: .*cannot be read": {"sti": None},
    "job.dof: .*cannot be read": {"dof": None},
    "job.sti: line 3: row 37 and column 2": {"sti": STI.replace("2 2 ", "37 2 ", 1)},
    "job.sti: line 1: the value is 'nan'": {"sti": "1 1 nan\n"},
    "job.mas: line 1: '1 1' is no entry": {"mas": "1 1\n"},
    "job.mas: line 1: '-1' is not the number": {"mas": "-1 1 2.0\n"},
    "job.dof: line 1: '7.4' is not a displacement": {"dof": "7.4\n"},
    "job.dof: node 7 has no row of direction": {"dof": DOF.replace("7.2\n", "8.2\n", 1)},
    "job.dof: the file has 37 rows, of which 36": {"dof": DOF + DOF.splitlines()[0] + "\n"},
    "job.dof: the file has 0 rows": {"dof": ""},
    "job.dof: node 7 has no position in job.inp": {"inp": "*NODE\n8, 0, 0, 0\n"},
    "job.inp: line 2: 'seven' is not the number": {"inp": "*NODE\nseven, 0, 0, 0\n"},
    "job.inp: line 2: a coordinate is 'x'": {"inp": "*NODE\n7, 0, x, 0\n"},
    "job.inp: line 2: a set has more than": {"inp": "*NSET, NSET=A, GENERATE\n1, 99999999999\n"},
    r"job.inp: line 2: \[1, 5, 0\] is no range": {"inp": "*NSET, NSET=A, GENERATE\n1, 5, 0\n"},
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_malformed_file_is_refused_by_name_and_line(what, tmp_path):
    path = written(tmp_path, **BAD[what])
    assert_refused(lambda: ts.load_finite_elements(path), what)


def test_unknown_sets_and_held_nodes_are_refused(tmp_path):
    model = ts.load_finite_elements(written(tmp_path, inp=DECK + "*NSET, NSET=held\n99\n"))
    assert_refused(lambda: model.indices("ends"), "'ends'.*END")
    assert_refused(lambda: model.indices("held"), "node 99 has no rows")
