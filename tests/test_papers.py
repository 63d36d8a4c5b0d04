"""Docstrings, markers on tests and docs/papers.md say the same; the markers are held to what tests run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchsko as ts
from tests.papers import PAPERS, ROOT, Row, citations, cited, executed, name_of, results

WANTED = {
    "Jain 2011, Part II": {
        "Lemma": range(1, 13),
        "Algorithm": ("3.1", "4.1", "4.2", "4.3", "6.1"),
        "Corollary": ("3.1", "6.1"),
    },
    "Jain 2011, Transformations Part I": {
        "Lemma": range(1, 10),
        "Corollary": ("3.1", "4.1", "6.1"),
        "Assumption": (1,),
    },
    "Isobe and Yagi (undated), General-purpose expression": {"Eq.": range(2, 9)},
}


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    command += ["-c", str(ROOT / "pyproject.toml"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> str:
    """The table as the markers make it now."""
    file = tmp_path_factory.mktemp("papers") / "papers.md"
    marked = [str(p) for p in (ROOT / "tests").rglob("test_*.py") if "mark.shows(" in p.read_text()]
    done = run_pytest("--collect-only", "-q", "-m", "", "--papers", str(file), *marked)
    assert done.returncode == 0, done.stdout + done.stderr
    return file.read_text()


def shown(table: str) -> set[Row]:
    """The rows of a table, tests left out."""
    found = set()
    for section in table.split("\n## ")[1:]:
        paper = section.partition("\n")[0]
        found |= {Row(paper, *row) for row in re.findall(r"^\| (.+?) \| `(.+?)` \|", section, re.M)}
    return found


def test_docs_papers_md_is_what_the_markers_make(written):
    """When it is not, the head of docs/papers.md says what to type."""
    assert (ROOT / "docs" / "papers.md").read_text() == written


def test_every_result_that_a_docstring_cites_is_shown_by_a_test_and_no_other(written):
    rows, cited_rows = shown(written), set(citations())
    assert len(rows) > 100
    assert cited_rows - rows == set(), "cited by a docstring, and no test has the marker"
    assert rows - cited_rows == set(), "shown by a test, and no docstring cites it"


@pytest.mark.parametrize("paper", WANTED)
def test_every_numbered_result_of_the_papers_has_a_row(written, paper):
    there = {row.result for row in shown(written) if row.paper == paper}
    assert {f"{kind} {n}" for kind, numbers in WANTED[paper].items() for n in numbers} <= there


@pytest.mark.nightly
def test_a_marked_test_that_does_not_call_its_functions_fails(tmp_path):
    (tmp_path / "test_lie.py").write_text(
        "import pytest\n"
        "import torchsko as ts\n"
        "shows = pytest.mark.shows('Jain 2011, Part II', 'section 8.2', ts.algebra.Tree.from_edges)\n"
        "@shows\n"
        "def test_true():\n"
        "    ts.algebra.Tree.from_edges([('a', 'b')])\n"
        "@shows\n"
        "def test_lie():\n"
        "    ts.algebra.Tree.from_parents([-1])\n"
    )
    done = run_pytest("-p", "tests.papers", str(tmp_path))
    assert done.returncode == 1
    assert "shows algebra.topology.tree.Tree.from_edges, and does not call it" in done.stdout
    assert "1 failed, 1 passed" in run_pytest("-p", "tests.papers", "-v", str(tmp_path)).stdout


def test_calls_are_seen_of_functions_methods_properties_and_classes():
    tree = ts.algebra.Tree.from_parents([-1, 0])
    wanted = (
        ts.algebra.Tree.from_parents,
        ts.algebra.Tree.path,
        type(tree).nilpotency,
        ts.algebra.Tree.from_edges,
    )
    before = sys.getprofile()
    with executed(wanted) as unseen:
        assert unseen == {name_of(f) for f in wanted}
        ts.algebra.Tree.from_parents([-1])
        tree.path(0, 1)
        assert tree.nilpotency == 2
    assert unseen == {"algebra.topology.tree.Tree.from_edges"} and sys.getprofile() is before
    with executed((ts.algebra.Tree,)) as unseen:
        tree.index("0")
    assert not unseen and sys.getprofile() is before


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Lemmas 7-9, Corollary 6.1", ["Lemma 7", "Lemma 8", "Lemma 9", "Corollary 6.1"]),
        ("Fig. 3 and Eqs. 4-5", ["Fig. 3", "Eq. 4", "Eq. 5"]),
        ("Lemmas 5 and 6", ["Lemma 5", "Lemma 6"]),
        ("section II.B (passive joints)", ["section II.B"]),
        ("O(N) hybrid dynamics", ["O(N) hybrid dynamics"]),
        ("Procedure step 1", ["Procedure step 1"]),
    ],
)
def test_results_are_read_one_by_one(text, found):
    assert results(text) == found


def test_citations_of_one_docstring_are_separated():
    doc = "Sum.\n\nReference: Jain 2011, Part II, Lemma 3 and\nEq. 4; Jain 2024, SOA slides 9, trace.\n"
    assert list(cited(doc)) == [
        ("Jain 2011, Part II", "Lemma 3 and Eq. 4"),
        ("Jain 2024, SOA slides 9", "trace"),
    ]


def test_short_citations_name_papers_that_are_listed():
    """A comma left out would take a row from the table without a word."""
    for path in (ROOT / "torchsko").rglob("*.py"):
        text = re.sub(r"\s+", " ", Path(path).read_text())
        for part in re.findall(
            r"(?:Reference:|;) ((?:Jain|Isobe and|Sarkka and|Concurrent)[^*;]+)", text
        ):
            if re.match(r"[A-Z][\w \-]+? (\d{4}|\(undated\))", part):
                assert part.startswith(tuple(PAPERS)), f"{path.name}: {part[:80]}"
