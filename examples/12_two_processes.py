"""Identify a tool by rollouts in two processes with torch.distributed.

    torchrun --nproc-per-node 2 --max-restarts 1 examples/12_two_processes.py --out DIR [--kill-at 5]

Each process simulates its share of the motions, and gradients are summed. A single process without torchrun
finds the same result to rounding. A run continues from its last file: --kill-at ends the last process once,
to show it.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import distributed as dist

import torchsko as ts

MOTIONS, STEPS, DT = 8, 8, 0.02
RANK, WORLD = (int(os.environ.get(name, k)) for k, name in enumerate(("RANK", "WORLD_SIZE")))
LEARNED = {"link5": ts.learn.InertiaLogCholesky, "joint4.damping": ts.learn.Positive}


def measured(arm):
    """Motions of a robot with a tool that the nominal robot lacks: initial states, torques, states."""
    g = torch.Generator().manual_seed(0)
    more = 0.5 * (torch.arange(arm.num_bodies) == arm.body_index("link5"))
    real = arm.replace(mass=arm.mass + more)
    q, _ = arm.random_state(MOTIONS, generator=g)
    tau = torch.randn(MOTIONS, STEPS, arm.num_dof, generator=g, dtype=q.dtype)
    tau = tau + ts.gravity_force(arm, q)[:, None]
    qs, qds, *_ = ts.rollout(
        real, ts.State(q, torch.zeros(arm.num_dof).double()), tau, steps=STEPS, dt=DT
    )
    return q, tau, qs, qds


def share(layer, data):
    """Share of this process in the mean squared error of the simulated motions."""
    q, tau, qs, qds = (x[RANK::WORLD] for x in data)
    mine = ts.rollout(
        layer, ts.State(q, torch.zeros(q.shape[-1]).double()), tau, steps=STEPS, dt=DT
    )[:2]
    return ((mine[0] - qs).square().sum() + 0.01 * (mine[1] - qds).square().sum()) / MOTIONS


def save_whole(file, content):
    torch.save(content, new := file.with_suffix(".new"))
    new.replace(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--kill-at", type=int, default=-1)
    args, first = parser.parse_args(), 0
    args.out.mkdir(parents=True, exist_ok=True)
    arm = ts.load(ts.robots.panda)
    if WORLD > 1:
        # Each attempt has its own rendezvous file; that of a killed attempt is stale.
        attempt = (os.environ[f"TORCHELASTIC_{x}"] for x in ("RUN_ID", "RESTART_COUNT"))
        place = (args.out / "-".join(("meet", *attempt))).resolve()
        dist.init_process_group("gloo", f"file://{place}", rank=RANK, world_size=WORLD)
    data, layer = measured(arm), ts.Dynamics(arm, {name: make() for name, make in LEARNED.items()})
    optimizer, file = torch.optim.Adam(layer.parameters(), lr=1e-2), args.out / "run.pt"
    if file.exists():
        kept = torch.load(file, weights_only=True)
        layer.load_state_dict(kept["layer"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["iteration"]
    for iteration in range(first, args.iterations):
        optimizer.zero_grad()
        loss = share(layer, data)
        loss.backward()
        parts = [loss.detach(), *(p.grad for p in layer.parameters())]
        for part in parts if WORLD > 1 else ():
            dist.all_reduce(part)
        optimizer.step()
        if iteration == args.kill_at and RANK == WORLD - 1 and first == 0:
            os._exit(1)
        if RANK == 0:
            done = {"layer": layer.state_dict(), "optimizer": optimizer.state_dict()}
            save_whole(file, done | {"iteration": iteration + 1, "gradients": parts[1:]})
            print(f"iteration {iteration}: squared error {parts[0].item():.16g}", flush=True)


if __name__ == "__main__":
    main()
