"""The code blocks of README and documentation run, and the names they mention exist."""

from __future__ import annotations

import importlib
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchsko as ts

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


PAGES_WITH_CODE = [
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "```python\n" in path.read_text()
]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_the_code_runs_as_printed(page: str) -> None:
    if "coming" in page:
        pytest.importorskip("pinocchio")
    names: dict[str, object] = {}  # blocks of a page are read in order
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)


def test_pages_with_code_are_found() -> None:
    assert len(PAGES_WITH_CODE) >= 8


def test_the_quickstart_prints_what_its_comments_show(capsys) -> None:
    (block,) = (text for text in blocks("README.md") if "ts.fuse" in text)
    expected = re.findall(r"^print\(.*\)  # (.+)$", block, re.MULTILINE)
    exec(compile(block, "README.md", "exec"), {})
    assert expected and capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").glob("*.md")], ids=str)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_names_in_the_page_about_other_libraries_exist() -> None:
    """Those of Drake were read in its stubs (pydrake 1.51): it is not installed with the tests."""
    pin, mujoco = pytest.importorskip("pinocchio"), pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint/><geom size='1'/></body></worldbody></mujoco>"
    )
    mech, data, theirs = ts.load(ts.robots.panda), mujoco.MjData(model), pin.Model()
    page = (ROOT / "docs" / "coming_from.md").read_text().partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in row] for row in rows[2:]]
    assert len(table) > 25
    owners = {"ts": ts, "mech": mech, "pin": pin, "mujoco": mujoco}
    for what, ours, of_pin, of_mujoco, _ in table:
        assert "`" in ours, what
        for column, text in enumerate((ours, of_pin, of_mujoco)):
            for name in re.findall(r"`(.+?)`", text):
                for owner, attribute in re.findall(r"\b(ts|mech|pin|mujoco|model)\.(\w+)", name):
                    held = owners.get(owner) or (None, theirs, model)[column]
                    assert hasattr(held, attribute), name
                for field in re.findall(r"^-?(q\w+|x\w+|site_\w+|subtree_\w+|ctrl)$", name):
                    assert hasattr(data, field), name


def test_functions_that_are_named_for_users_of_pinocchio_exist() -> None:
    """Names of Pinocchio and of torchsko on the page exist."""
    pin = pytest.importorskip("pinocchio")
    page = (ROOT / "docs" / "coming_from.md").read_text()
    named = set(re.findall(r"\bpin\.(\w+)", page))
    assert not [name for name in named if not hasattr(pin, name)]
    for path in set(re.findall(r"`(ts\.[\w.]+)", page)):
        *packages, name = path.split(".")[1:]
        owner = getattr(ts, packages[0]) if packages else ts
        assert name in dir(owner) or hasattr(owner, name), path


def test_every_extra_that_is_named_exists() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = set(extras["optional-dependencies"])
    table = (ROOT / "docs" / "dependencies.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows))) | set(re.findall(r"\.\[(\w+)\]", README))
    assert named and named <= known


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("torchsko/**/*.py")]
PAGES += [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("examples/*.py")]


def named(text: str) -> set[str]:
    """Dotted names of the library, without those of its files."""
    found = re.findall(r"(?<![\w./])(?:ts|torchsko)((?:\.[A-Za-z_]\w*)+)", text)
    return {name for name in found if not name.endswith(".py")}


def leads(name: str) -> bool:
    """Whether a name is one of the package, or of the module that the first of its parts are."""
    parts = name.strip(".").split(".")
    for count in range(len(parts) + 1):
        try:
            module = importlib.import_module(".".join(["torchsko", *parts[:count]]))
            operator.attrgetter(".".join(parts[count:]) or "__name__")(module)
            return True
        except ts.MissingExtraError:  # of a wrapper whose library is not installed
            return True
        except (ImportError, AttributeError):
            continue
    return False


def test_every_library_name_in_pages_and_docstrings_exists() -> None:
    wrong = {
        (page.name, name) for page in PAGES for name in named(page.read_text()) if not leads(name)
    }
    assert not wrong


def test_the_worked_examples_for_contributors_run() -> None:
    """They run in a new process, since they register a joint type and a term."""
    program = ""
    headings = re.findall(r"^## (Add .+)$", CONTRIBUTING, re.MULTILINE)
    for heading in headings:
        section = CONTRIBUTING.split(f"## {heading}\n")[1].split("\n## ")[0]
        (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        program += f"exec(compile({block!r}, {heading!r}, 'exec'), {{'__name__': '__main__'}})\n"
    assert len(headings) >= 5
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
