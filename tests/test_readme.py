"""What the README and the guide show runs, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_the_code_runs_as_printed(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").glob("*.md")], ids=str)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_every_extra_that_is_named_exists() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = set(extras["optional-dependencies"])
    table = (ROOT / "docs" / "dependencies.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows))) | set(re.findall(r"\.\[(\w+)\]", README))
    assert named and named <= known
