"""Kernels compiled by Clang pass all kernel tests, also with vectors wider than those of the processor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fused import test_cpp
from torchsko.fused.build.toolchain import find_toolchain

TESTS = Path(__file__).parent


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_kernels_of_clang_pass_all_tests_of_kernels(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(TESTS), "-m", "not nightly"]
    command += ["-k", "not inductor"]  # which takes CXX for itself, and wants OpenMP's header
    env = os.environ | {"CXX": "clang++", "TORCHSKO_CACHE": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=TESTS.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
@pytest.mark.parametrize("dtype", test_cpp.DTYPES)
def test_vectors_of_64_bytes_are_right_on_processors_that_cut_them_in_two(dtype, monkeypatch):
    """Emulated wide vectors test rows, order and lanes, but not their instructions."""
    monkeypatch.setenv("CXX", "clang++")
    wide = replace(find_toolchain(), vector_bytes=64)
    monkeypatch.setattr(test_cpp, "toolchain_for", lambda target: wide)
    test_cpp.test_every_operation_agrees_with_torch_on_special_values_too(dtype, "native")
    test_cpp.test_results_larger_than_the_caches_are_those_of_any_batch("native", dtype)
    test_cpp.test_rows_of_every_length_are_read_and_written_whole_and_alone(
        "native", dtype, monkeypatch
    )
