"""Cost of couplings: forward dynamics of robots with mimic joints and rotors, and of their trees without.

    python benchmarks/couplings.py [--passes 7]

Prints ratios of one interleaved run, eager and fused, and the operations of the traced programs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from energy import example
from timing import interleaved, ratio

import torchsko as ts
from torchsko.fused.program.program import Port
from torchsko.fused.tracing.tracer import trace
from torchsko.io.urdf.read_urdf import read_urdf
from torchsko.mechanism.description import CouplingDescription, RotorDescription


def talos() -> ts.Mechanism:
    """Four joints that follow others, and a rotor at each knee."""
    robot = read_urdf(example("talos_data/robots/talos_reduced.urdf"), mimic="independent")
    follows = [
        ("arm_left_6_joint", "arm_left_5_joint", 0.5),
        ("arm_right_6_joint", "arm_right_5_joint", 0.5),
        ("head_2_joint", "head_1_joint", -0.3),
        ("torso_2_joint", "torso_1_joint", 0.2),
    ]
    couplings = tuple(CouplingDescription(a, {b: c}) for a, b, c in follows)
    rotors = tuple(
        RotorDescription(f"leg_{side}_4_joint", 100.0, 2e-5) for side in ("left", "right")
    )
    robot = replace(robot, couplings=couplings, rotors=rotors)
    return ts.build_mechanism(robot, floating_base=True)


def operations(mech: ts.Mechanism) -> int:
    """Of forward dynamics, one sample."""
    ports = [Port("q", (mech.num_q,)), Port("qd", (mech.num_dof,)), Port("tau", (mech.num_dof,))]
    return trace(lambda *x: ts.forward_dynamics(mech, *x), ports).num_flops


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 256, 4096])
    passes = parser.parse_args().passes
    batches = parser.parse_args().batches
    robots = {
        "talos, 4 couplings, 2 rotors": talos(),
        "panda, hand": ts.load(example("panda_description/urdf/panda.urdf")),
    }
    for name, mech in robots.items():
        tree = mech.tree
        print(f"{name}: {mech}")
        with_them, without = operations(mech), operations(tree)
        print(f"  operations {with_them} / {without} = {with_them / without:.3f}")
        fast = {m: ts.fuse(m) for m in (mech, tree)}
        for batch in batches:
            calls = {}
            for m in (mech, tree):
                q, qd = m.random_state(batch)
                tau = torch.randn_like(qd)
                which = "coupled" if m is mech else "tree"
                calls[f"eager {which}"] = lambda m=m, x=(q, qd, tau): ts.forward_dynamics(m, *x)
                calls[f"fused {which}"] = lambda f=fast[m], x=(q, qd, tau): f.forward_dynamics(*x)
            with torch.no_grad():
                seconds = interleaved(calls, passes, 0.2)
            for kind in ("eager", "fused"):
                print(
                    f"  batch {batch}: {kind} {ratio(seconds[f'{kind} coupled'], seconds[f'{kind} tree'])}"
                )


if __name__ == "__main__":
    main()
