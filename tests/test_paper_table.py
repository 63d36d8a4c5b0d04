"""The table of results in the README: every citation in a docstring is found, and has a test."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from paper_table import BEGIN, END, citations, results, table  # noqa: E402

FOUND = results(ROOT)
WANTED = {
    "Jain 2011, Part II": {
        "lemma": set(range(1, 13)),
        "algorithm": {3.1, 4.1, 4.2, 4.3, 6.1},
    },
    "Jain 2011, Transformations Part I": {"lemma": set(range(1, 10)), "corollary": {4.1, 6.1}},
}


def numbers(kind: str, text: str) -> set[str]:
    """What "Lemmas 7-9, Corollary 6.1" names: for kind "lemma" 7, 8 and 9."""
    found = set()
    for run in re.findall(rf"{kind}s? ([\d.\-]+(?: and [\d.]+)?)", text.lower()):
        for part in run.rstrip(".").split(" and "):
            low, _, high = part.partition("-")
            found |= {str(i) for i in range(int(low), int(high) + 1)} if high else {low}
    return found


@pytest.mark.parametrize("paper", WANTED)
def test_every_numbered_result_of_the_papers_is_cited_by_a_function(paper):
    cited = " ; ".join(r.result for r in FOUND if r.paper == paper)
    for kind, wanted in WANTED[paper].items():
        assert {str(n) for n in wanted} <= numbers(kind, cited)


@pytest.mark.parametrize("result", FOUND, ids=lambda r: f"{r.function}-{r.result}")
def test_cited_result_has_a_test(result):
    assert result.test is not None
    path, _, name = result.test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()


def test_the_readme_has_this_table():
    """When it has not: python benchmarks/paper_table.py --update README.md."""
    _, _, rest = (ROOT / "README.md").read_text().partition(BEGIN)
    assert rest.partition(END)[0].strip() == table(FOUND).strip()


def test_citations_of_one_docstring_are_told_apart():
    doc = "Sum.\n\nReference: Jain 2011, Part II, Lemma 3 and\nEq. 4; Jain 2024, SOA slides 9, trace.\n"
    assert list(citations(doc)) == [
        ("Jain 2011, Part II", "Lemma 3 and Eq. 4"),
        ("Jain 2024, SOA slides 9", "trace"),
    ]


def test_table_has_a_row_per_result():
    assert sum(line.startswith("| ") for line in table(FOUND).splitlines()) == len(FOUND) + len(
        {r.paper for r in FOUND}
    )
