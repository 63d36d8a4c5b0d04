"""Every test of kernels with the other compiler, in a process and a cache of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_kernels_of_clang_pass_all_tests_of_kernels(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(TESTS), "-m", "not nightly"]
    command += ["-k", "not inductor"]  # which takes CXX for itself, and wants OpenMP's header
    env = os.environ | {"CXX": "clang++", "TORCHSKO_CACHE": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=TESTS.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
