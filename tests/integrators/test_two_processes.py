"""`torch.distributed`: two processes agree with one, and a killed process loses no kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "12_two_processes.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
]


def run(folder, *options, processes=1, restarts=0):
    folder.mkdir()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    torchrun = [] if processes == 1 else [*TORCHRUN, "--max-restarts", str(restarts)]
    command = [sys.executable, *torchrun, str(EXAMPLE), "--out", str(folder), "--iterations", "4"]
    done = subprocess.run(
        [*command, *options],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "run.pt", weights_only=True), done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("one") / "run")


def test_two_processes_give_the_gradients_of_one(alone, tmp_path):
    both, said = run(tmp_path / "run", processes=2)
    for mine, theirs in zip(both["gradients"], alone[0]["gradients"], strict=True):
        assert_close(mine, theirs, rtol=1e-12, atol=1e-12 * theirs.abs().max().item())
    for name, x in alone[0]["layer"].items():
        assert_close(both["layer"][name], x, rtol=1e-12, atol=1e-12)
    assert said.count("squared error") == 4


def test_a_process_that_is_killed_loses_nothing(alone, tmp_path):
    again, said = run(tmp_path / "run", "--kill-at", "1", processes=2, restarts=1)
    assert again["iteration"] == 4
    assert said.count("iteration 0") == 1  # earlier work is not repeated
    for name, x in alone[0]["layer"].items():
        assert_close(again["layer"][name], x, rtol=1e-12, atol=1e-12)
