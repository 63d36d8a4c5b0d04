"""``python -m torchsko play DIR``: show a trained policy."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Any


def add_play(commands: Any) -> None:
    """Add the command to the parsers of ``python -m torchsko``."""
    parser = commands.add_parser("play", help="show a trained policy in the browser, or save a GIF")
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="folder of --out of train")
    add(
        "--env", help="FILE.py:NAME, for a task that the file registers (default: that of training)"
    )
    add("--seed", type=int, default=0, help="seed of the start (default: 0)")
    add("--gif", type=Path, help="save a .gif and open no page")
    add("--host", default="127.0.0.1", help="address to serve at; 0.0.0.0 admits other machines")
    add("--port", type=int, default=8080, help="first port to try; default: 8080")


def run_play(options: argparse.Namespace) -> None:
    """Simulate an episode, and show it until Ctrl-C, or save it.

    Raises:
        TorchskoError: if the folder has no policy, or an extra is not installed.
    """
    import torch

    from torchsko.cli.train import task_name
    from torchsko.envs.learning.evaluation import evaluate
    from torchsko.envs.learning.report import save_animation
    from torchsko.envs.learning.run_folder import load_policy, read_settings
    from torchsko.envs.registry import make
    from torchsko.view.playback import motion_of
    from torchsko.view.viser_page import Page

    settings, policy = read_settings(options.folder), load_policy(options.folder)
    name = task_name(options.env) if options.env else settings["task"]
    dtype = getattr(torch, settings["dtype"])
    env = make(name, dtype=dtype, **settings["task_options"])
    found = evaluate(env, policy, starts=1, seed=options.seed)
    print(f"return {found.total[0]:.1f} in {found.length[0]} steps")
    if options.gif:
        save_animation(options.gif, env, found.qs)
        print(f"Saved the motion to {options.gif}.")
        return
    motion = motion_of(env.mech, found.qs, env.dt)
    page = Page([env.mech], [motion], host=options.host, port=options.port)
    print(f"{page.address} shows {settings['task']}. Press Ctrl-C to stop.", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        page.close()
