"""docs/claims.md: what it quotes stands in the README, and what it names exists and is collected."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = re.findall(
    r"^\| (.+) \| (`.+`) \|$", (ROOT / "docs" / "claims.md").read_text(), re.MULTILINE
)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("claim", "held"), ROWS, ids=lambda text: text[:40])
def test_what_is_quoted_is_said_and_what_holds_it_is_there(claim, held):
    assert claim in words((ROOT / "README.md").read_text())
    for name in re.findall(r"`(.+?)`", held):
        path, _, test = name.partition("::")
        assert (ROOT / path).is_file(), path
        if test:
            tree = ast.parse((ROOT / path).read_text())
            assert test in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, name


def test_every_sentence_on_conventions_has_a_row():
    """At least one claim is quoted from every item of the list of conventions."""
    items = re.search(
        r"## Conventions\n\n(.*?)\n\n## ", (ROOT / "README.md").read_text(), re.DOTALL
    )
    claims = [claim for claim, _ in ROWS]
    for item in re.split(r"^- ", items[1], flags=re.MULTILINE)[1:]:
        assert any(claim in words(item) for claim in claims), words(item)[:80]
