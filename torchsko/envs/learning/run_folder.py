"""The folder of a run: settings, checkpoint, learning curve and policy, each written at once."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchsko.envs.learning.policy import Policy
from torchsko.errors import RobotFileError
from torchsko.utils.atomic_write import temporary_path

SETTINGS, CHECKPOINT, CURVE, POLICY = "settings.json", "checkpoint.pt", "curve.csv", "policy.pt"


def write(path: Path, writer: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, then rename it: readers see the whole file or the one before."""
    new = temporary_path(path)
    writer(new)
    os.replace(new, path)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file."""
    write(path, lambda new: new.write_text(json.dumps(content, indent=2) + "\n"))


def write_curve(path: Path, rows: Sequence[dict[str, float]]) -> None:
    """Write the learning curve as CSV."""

    def table(new: Path) -> None:
        with new.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    write(path, table)


def read_settings(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Settings of the run in a folder.

    Raises:
        RobotFileError: when the folder has no run.
    """
    path = Path(folder) / SETTINGS
    if not path.exists():
        raise RobotFileError(
            f"{folder} has no {SETTINGS}.",
            "It is not the output folder of a training run.",
            "Pass the folder of --out of python -m torchsko train.",
        )
    return json.loads(path.read_text())


def save_policy(path: Path, policy: Policy) -> None:
    """Write a policy, which `load_policy` reads."""
    units = [x.out_features for x in policy.mu if isinstance(x, torch.nn.Linear)][:-1]
    content = {"hidden": units, "weights": policy.state_dict()}
    write(path, lambda new: torch.save(content, new))


def load_policy(folder: str | os.PathLike[str]) -> Policy:
    """The policy of a training run, on the CPU.

    Args:
        folder: of ``--out``, also while the run goes on.

    Returns:
        A module from observations `[*batch, num_observations]` to actions `[*batch, num_actions]`.

    Raises:
        RobotFileError: when the folder has no policy.

    Example:
        >>> import tempfile, torch, torchsko as ts
        >>> folder = tempfile.mkdtemp()
        >>> options = {"updates": 1, "num_envs": 4, "evaluate": False, "report": None}
        >>> trained = ts.envs.train("InvertedPendulum-v5", out=folder, **options)
        >>> policy = ts.envs.load_policy(folder)
        >>> observation = torch.zeros(2, 4, dtype=torch.float64)
        >>> torch.equal(policy(observation), trained(observation))
        True
    """
    path = Path(folder) / POLICY
    if not path.exists():
        raise RobotFileError(
            f"{folder} has no {POLICY}.",
            "A run writes it with its first checkpoint.",
            "Pass the folder of --out of python -m torchsko train.",
        )
    content = torch.load(path, weights_only=True, map_location="cpu")
    weights = content["weights"]
    size = len(weights["normalizer.mean"])
    policy = Policy(weights["low"], weights["high"], size, content["hidden"])
    policy.load_state_dict(weights)
    return policy
