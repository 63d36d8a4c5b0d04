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


PATHS = ("tests/fused/test_schedule.py", "tests/algebra/test_model.py")
"""Tests that import helpers of packages and of folders."""

BOTH = "tests/fused/test_manifold.py"
"""Tests with cases by day and by night."""


def cases(*arguments: str) -> set[str]:
    return {line for line in collected(*arguments).splitlines() if "::" in line}


@pytest.fixture(scope="module")
def day() -> set[str]:
    """Cases that run without options."""
    return cases(*PATHS, BOTH)


@pytest.mark.parametrize("path", PATHS)
def test_bare_pytest_finds_the_helpers_that_tests_import(path, day):
    assert any(x.startswith(f"{path}::") for x in day)


def test_nightly_tests_run_on_request_only(day):
    night = cases(BOTH, "-m", "nightly")
    day = {x for x in day if x.startswith(BOTH)}
    assert night and not day & night
    # Here nothing runs by night alone: each test has a case by day.
    assert {x.split("[")[0] for x in night} <= {x.split("[")[0] for x in day}


def test_no_two_test_files_outside_of_packages_have_one_name():
    """pytest imports both under that name, and stops before the first test."""
    files = [p for p in ROOT.glob("tests/**/test_*.py") if not (p.parent / "__init__.py").exists()]
    names = [p.name for p in files]
    assert sorted(names) == sorted(set(names))
