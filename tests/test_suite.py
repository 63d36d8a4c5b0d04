"""The test suite itself: how it may be called, and what it leaves out unless asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def collected(*arguments: str) -> str:
    """What is collected by `pytest` (-P: the folder it is called from is not on Python's path)."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    command = [sys.executable, "-P", "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.some(1)
@pytest.mark.parametrize("path", ["tests/fused/test_schedule.py", "tests/algebra/test_model.py"])
def test_bare_pytest_finds_the_helpers_that_tests_import(path):
    assert f"{path}::" in collected(path)


def cases(path: str, *arguments: str) -> set[str]:
    return {line for line in collected(path, *arguments).splitlines() if "::" in line}


def test_nightly_tests_run_on_request_only():
    path = "tests/fused/test_manifold.py"
    day, night = cases(path), cases(path, "-m", "nightly")
    assert night and not day & night
    # Here nothing runs by night alone: each test has a case by day.
    assert {x.split("[")[0] for x in night} <= {x.split("[")[0] for x in day}


def test_no_two_test_files_outside_of_packages_have_one_name():
    """pytest imports both under that name, and stops before the first test."""
    files = [p for p in ROOT.glob("tests/**/test_*.py") if not (p.parent / "__init__.py").exists()]
    names = [p.name for p in files]
    assert sorted(names) == sorted(set(names))
