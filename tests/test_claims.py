"""docs/claims.md quotes the README or the guide. There and in docs/suites.md all names are of tests."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def rows(page: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| (.+) \| (`.+`) \|$", (ROOT / "docs" / page).read_text(), re.MULTILINE)


ROWS = rows("claims.md")


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("claim", "held"), ROWS, ids=lambda text: text[:40])
def test_what_is_quoted_is_said_and_what_holds_it_is_there(claim, held):
    said = [words((ROOT / page).read_text()) for page in ("README.md", "docs/guide.md")]
    assert any(claim in text for text in said)
    check_names(held)


@pytest.mark.parametrize(("claim", "held"), rows("suites.md"), ids=lambda text: text[:40])
def test_what_holds_a_property_of_other_suites_is_there(claim, held):
    check_names(held)


def check_names(held: str) -> None:
    for name in re.findall(r"`(.+?)`", held):
        path, _, test = name.partition("::")
        assert (ROOT / path).is_file(), path
        if test:
            tree = ast.parse((ROOT / path).read_text())
            assert test in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, name


@pytest.mark.parametrize("page", ["claims.md", "suites.md"])
def test_every_row_stands_in_a_table(page):
    """A page shows lines with bars as a table as long as nothing parts them from its head."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    for above, line in pairwise(lines):
        if line.startswith("|") and not above.startswith("|"):
            assert lines[lines.index(line) + 1].startswith("|---"), line


def test_every_sentence_on_conventions_has_a_row():
    """At least one claim is quoted from every item of the list of conventions."""
    items = re.search(
        r"## Conventions\n\n(.*?)\n\n## ", (ROOT / "README.md").read_text(), re.DOTALL
    )
    claims = [claim for claim, _ in ROWS]
    for item in re.split(r"^- ", items[1], flags=re.MULTILINE)[1:]:
        assert any(claim in words(item) for claim in claims), words(item)[:80]


def test_every_file_of_results_is_named_with_the_script_that_wrote_it():
    folder = ROOT / "benchmarks" / "results"
    table = re.findall(
        r"^\| \[(.+)\]\((.+)\) \| `(.+?)` \|", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert {path for _, path, _ in table} == {x.name for x in folder.iterdir()} - {"README.md"}
    for name, path, script in table:
        assert name == path and (ROOT / script).is_file(), path


def test_every_script_of_results_prints_its_call_and_machine():
    table = (ROOT / "benchmarks" / "results" / "README.md").read_text()
    for script in set(re.findall(r"`(benchmarks/\w+\.py)`", table)):
        said = (ROOT / script).read_text()
        assert "print(origin(" in said or "machine()" in said, script
