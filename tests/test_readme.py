"""What the README shows runs, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_code_runs_as_printed() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_every_link_to_a_file_leads_to_one() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_extra_that_is_named_exists() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = set(extras["optional-dependencies"])
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", README, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows))) | set(re.findall(r"\.\[(\w+)\]", README))
    assert named and named <= known
