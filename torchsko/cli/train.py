"""``python -m torchsko train ENV --algo shac --out DIR``: train a policy."""

from __future__ import annotations

import argparse
import ast
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from torchsko.errors import TorchskoError


def add_train(commands: Any) -> None:
    """Add the command to the parsers of ``python -m torchsko``."""
    parser = commands.add_parser(
        "train",
        help="train a policy in simulation, and test it in MuJoCo",
        description="Train a policy by SHAC, APG or PPO. The output folder has the policy, its learning "
        "curve, pictures and its returns in MuJoCo. Under torchrun the processes share the environments.",
    )
    add = parser.add_argument
    add("env", metavar="ENV", help="name of a task, or FILE.py:NAME for a file that registers it")
    add("--algo", default="shac", choices=("shac", "apg", "ppo"), help="algorithm (default: shac)")
    add("--out", required=True, type=Path, help="output folder")
    add("--seed", type=int, default=0, help="seed of environments, weights and noise (default: 0)")
    add("--updates", type=int, help="number of updates; the result is reproducible")
    add("--minutes", type=float, help="time limit (default: 10, without --updates)")
    add("--num-envs", type=int, default=64, help="number of environments (default: 64)")
    add("--dtype", default="float64", choices=("float32", "float64"), help="default: float64")
    add("--device", default="cpu", help="such as cuda (default: cpu)")
    add("--resume", action="store_true", help="continue the run in the output folder")
    add(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="option of the algorithm or of the task, such as horizon=16; may be repeated",
    )


def run_train(options: argparse.Namespace) -> None:
    """Train a policy.

    Raises:
        TorchskoError: on an unknown task or option.
    """
    import torch

    from torchsko.envs.learning.training import train

    train(
        task_name(options.env),
        options.algo,
        out=options.out,
        updates=options.updates,
        minutes=options.minutes,
        seed=options.seed,
        num_envs=options.num_envs,
        dtype=getattr(torch, options.dtype),
        device=options.device,
        resume=options.resume,
        report=lambda line: print(line, flush=True),
        **dict(parse_option(word) for word in options.set),
    )
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    print(f"The results are in {options.out}.")


def task_name(word: str) -> str:
    """The name of a task; the file of FILE.py:NAME is imported first, and registers it.

    Raises:
        TorchskoError: when there is no such file.
    """
    file, separator, name = word.rpartition(":")
    if not separator:
        return word
    if not (file.endswith(".py") and Path(file).is_file()):
        raise TorchskoError(
            f"there is no Python file {file!r}.",
            "It registers the task.",
            "Pass FILE.py:NAME, or the name of a task of torchsko.",
        )
    path = Path(file).resolve()
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # as for python FILE.py
    spec.loader.exec_module(module)
    return name


def parse_option(word: str) -> tuple[str, Any]:
    """Name and value of OPTION=VALUE.

    Raises:
        TorchskoError: when it has another form.
    """
    name, separator, text = word.partition("=")
    if not separator or not name.isidentifier():
        raise TorchskoError(
            f"--set {word} is malformed.",
            "It changes an option of the algorithm or of the task.",
            "Type --set OPTION=VALUE, such as --set horizon=16.",
        )
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text
