"""What a user meets first: the version, and what an import and a load cost."""

import subprocess
import sys
import tomllib
from pathlib import Path

import torchsko as ts

ROOT = Path(__file__).parents[1]


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert ts.__version__ == project["version"]


def test_no_text_advises_to_install_from_an_index_that_does_not_have_it():
    files = [ROOT / "README.md", *ROOT.glob("torchsko/**/*.py"), *ROOT.glob("examples/*.py")]
    for file in files:
        text = file.read_text("utf-8")
        assert "pip install torchsko" not in text and 'pip install "torchsko' not in text, file


def test_neither_import_nor_load_imports_what_torch_leaves_out():
    """sympy alone takes longer than a robot of 40 dofs."""
    program = (
        "import sys, torch\nbefore = set(sys.modules)\nimport torchsko as ts\n"
        "ts.load(ts.robots.panda)\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new & {'sympy', 'mpmath', 'scipy', 'matplotlib', 'mujoco', 'tqdm'}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []
