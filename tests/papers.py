"""Which test shows which result of a paper: the marker `shows`, its check, and docs/papers.md.

    @pytest.mark.shows("Jain 2011, Part II", "Lemma 1", gather)
    def test_gather_is_the_spo(): ...

says that the test states Lemma 1 and that `gather` is what it is true of; several functions and several
markers may stand on one test. While the test runs, the calls of Python functions are watched until each
of them has been seen; a test that ends without having called one of them fails.

The results that a function implements stand at the end of its docstring, several separated by semicolons:

    Reference: Jain 2011, Part II, Lemma 3 and Eq. 11; Jain 2024, SOA slides 9, O(N) hybrid dynamics.

tests/test_papers.py holds docstrings, markers and docs/papers.md to one another.

    python -m pytest tests --collect-only -q -m "" --papers docs/papers.md    # write the table
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAPERS = {
    "Jain 2011, Part II": "A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II: "
    "Analysis and Algorithms*, Multibody System Dynamics 26(3), 2011",
    "Jain 2011, Transformations Part I": "A. Jain, *Multibody graph transformations and analysis, "
    "Part I: Tree topology systems*, Nonlinear Dynamics, 2011",
    "Jain 2012, Transformations Part II": "A. Jain, *Multibody graph transformations and analysis, "
    "Part II: Closed-chain constraint embedding*, Nonlinear Dynamics 67(3), 2012",
    "Jain 2024, SOA slides 9": "A. Jain, *Spatial Operator Algebra 9: Multibody Graph "
    "Generalizations*, JPL DARTS Lab slides, 2024",
    "Concurrent Dynamics 2018, Generalized Mass Matrix": "Concurrent Dynamics International, "
    "*Generalized Mass Matrix of MBS*, 2018",
    "Isobe and Yagi (undated), General-purpose expression": "D. Isobe, A. Yagi, *General-Purpose "
    "Expression of Structural Connectivity in the Parallel Solution Scheme of Inverse Dynamics*",
    "Sarkka and Garcia-Fernandez 2021, Temporal parallelization": "S. Sarkka, A. Garcia-Fernandez, "
    "*Temporal parallelization of Bayesian smoothers*, IEEE Transactions on Automatic Control 66(1), "
    "2021",
}
HEAD = """# Where the papers are

Each row names a result of a paper, a function that implements it, and a test that shows it. The table is
made from markers on the tests, and while such a test runs it is watched: it fails unless the function of
its row is executed ([how](../tests/papers.py)). Written by

    python -m pytest tests --collect-only -q -m "" --papers docs/papers.md
"""
_KIND = r"(Lemma|Algorithm|Corollar|Eq|section|Assumption|Fig|Example)"
_NUMBER = r"(?:\d+(?:\.\d+)*|[IVX]+(?:\.[A-Z])?)"
_RUN = re.compile(
    rf"{_KIND}(?:s|y|ies|\.|s\.)? ({_NUMBER}(?:-{_NUMBER})?(?:(?:,| and) {_NUMBER}(?:-{_NUMBER})?)*)"
)


@dataclass(frozen=True, order=True)
class Row:
    """One row of the table: a result, a function below `torchsko`, and a test, "path::name"."""

    paper: str
    result: str
    function: str
    test: str = ""


# The marker and its check


@contextmanager
def executed(functions: tuple[Any, ...]) -> Iterator[set[str]]:
    """The names of those functions that have not been called yet; empty when all of them have."""
    waiting = {name_of(f): codes(f) for f in functions}
    names = {code: name for name, found in waiting.items() for code in found}
    unseen = set(waiting)
    before = sys.getprofile()

    def watch(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and (name := names.get(frame.f_code)):
            unseen.discard(name)
            if not unseen:  # from here on the test runs at full speed
                sys.setprofile(before)

    sys.setprofile(watch)
    try:
        yield unseen
    finally:
        sys.setprofile(before)


def codes(function: Any) -> list[CodeType]:
    """The code of a function or property, or of every method of a class."""
    if inspect.isclass(function):
        return [code for f in vars(function).values() if inspect.isfunction(f) for code in codes(f)]
    return [_plain(function).__code__]


def name_of(function: Any) -> str:
    """Its dotted name below `torchsko`."""
    plain = function if inspect.isclass(function) else _plain(function)
    return f"{plain.__module__}.{plain.__qualname__}".removeprefix("torchsko.")


def _plain(function: Any) -> Any:
    if isinstance(function, property):
        function = function.fget
    return inspect.unwrap(getattr(function, "__func__", function))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    functions = tuple(f for mark in item.iter_markers("shows") for f in mark.args[2:])
    if not functions:
        return (yield)
    with executed(functions) as unseen:
        done = yield
    if unseen:
        pytest.fail(f"says that it shows {', '.join(sorted(unseen))}, and does not call it", False)
    return done


# The table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--papers", type=Path, help="write the table of papers to this file")


def pytest_collection_finish(session: pytest.Session) -> None:
    if file := session.config.getoption("--papers"):
        file.write_text(table({row for item in session.items for row in rows(item)}))


def rows(item: pytest.Item) -> Iterator[Row]:
    """The rows that the markers of a test make."""
    # Of a test with many cases some run by day.
    hidden = item.get_closest_marker("nightly") and not item.get_closest_marker("some")
    for mark in item.iter_markers("shows"):
        paper, text, *functions = mark.args
        if paper not in PAPERS or not functions or hidden:
            raise pytest.UsageError(
                f"{item.nodeid}: {mark.args} names no paper of {[*PAPERS]} or no function, or the test "
                "is nightly, so that nobody would see it fail"
            )
        test = f"{item.path.relative_to(ROOT)}::{getattr(item, 'originalname', item.name)}"
        yield from (Row(paper, r, name_of(f), test) for r in results(text) for f in functions)


def results(text: str) -> list[str]:
    """ "Lemmas 7-9, Corollary 6.1" as "Lemma 7", "Lemma 8", "Lemma 9", "Corollary 6.1".

    What is named otherwise ("O(N) hybrid dynamics") is one result; remarks in brackets are dropped.
    """
    text = re.sub(r" \([^)]*\)$", "", text.strip())
    if re.sub(r"[, ]|and", "", _RUN.sub("", text)):
        return [text]
    found = []
    for kind, numbers in _RUN.findall(text):
        word = {"Corollar": "Corollary", "Eq": "Eq.", "Fig": "Fig."}.get(kind, kind)
        for run in re.findall(rf"{_NUMBER}(?:-{_NUMBER})?", numbers):
            low, _, high = run.partition("-")
            many = range(int(low), int(high) + 1) if high else [low]
            found += [f"{word} {n}" for n in many]
    return found


def table(found: set[Row]) -> str:
    """The rows as markdown, one table per paper, tests of the same result and function together."""
    tests: dict[Row, list[str]] = {}
    for row in found:
        tests.setdefault(Row(row.paper, row.result, row.function), []).append(row.test)
    lines = [HEAD]
    for paper, title in PAPERS.items():
        lines += [
            f"## {paper}",
            "",
            f"{title}.",
            "",
            "| result | function | test |",
            "|---|---|---|",
        ]
        for row in sorted((r for r in tests if r.paper == paper), key=_order):
            links = [f"[`{name}`](../{path})" for path, _, name in
                     (test.partition("::") for test in sorted(tests[row]))]  # fmt: skip
            lines.append(f"| {row.result} | `{row.function}` | {', '.join(links)} |")
        lines.append("")
    return "\n".join(lines)


def _order(row: Row) -> tuple:
    return row.result.rpartition(" ")[0], [int(n) for n in re.findall(r"\d+", row.result)], row


# What docstrings cite


def citations(package: Path = ROOT / "torchsko") -> Iterator[Row]:
    """Every result that the docstring of a public function, method or class cites in the short form."""
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        for name, node in _named(ast.parse(path.read_text())):
            for paper, text in cited(ast.get_docstring(node) or ""):
                yield from (Row(paper, r, f"{module}.{name}") for r in results(text))


def cited(doc: str) -> Iterator[tuple[str, str]]:
    """Paper and results of everything that a docstring cites in the short form."""
    for paragraph in re.findall(
        r"Reference: (.+?)(?=\n\s*\n|\nDEPARTS|\nExample:|\Z)", doc, re.DOTALL
    ):
        for part in " ".join(paragraph.split()).rstrip(".").split("; "):
            for paper in PAPERS:
                if part.startswith(f"{paper}, "):
                    yield paper, part.removeprefix(f"{paper}, ")


def _named(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from _named(child, f"{prefix}{child.name}.")
