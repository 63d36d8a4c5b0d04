"""Whole-body control as kernels: build, scratch memory and time of a call, beside the figures asked for.

    python benchmarks/control.py [talos] [quadruped]

TALOS stands on two soles, the quadruped on four feet, both at random velocities. The law has an objective of
the center of mass and one of the posture, and at most 15 iterations. Processor time of one thread: the least
of several runs, since other processes disturb them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from builds import print_build
from cases import floating_humanoid
from quadratic import ON_FEET, law, robot, soles, standing_humanoid, states
from report import origin
from torch import Tensor

import torchsko as ts
from torchsko.control import Contact

BATCHES = (1, 256)
RUNS, CALLS = 9, 40


class Case(NamedTuple):
    """A robot on contacts, and the figures asked for."""

    mech: Callable[[], ts.Mechanism]
    states: Callable[[int], tuple[Tensor, Tensor]]
    contacts: Callable[[], Sequence[Contact]]
    build: float  # seconds
    scratch: float  # kB a sample
    call: float  # ms at batch 1


CASES = {
    "talos": Case(
        lambda: floating_humanoid().mech, standing_humanoid, soles, build=15, scratch=40, call=1.5
    ),
    "quadruped": Case(robot, states, lambda: ON_FEET, build=8, scratch=40, call=0.15),
}


def call_time(call: Callable[[], object], count: int) -> float:
    """Processor seconds of one call."""
    call()
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        for _ in range(count):
            call()
        times.append((time.process_time() - start) / count)
    return min(times)


def main() -> None:
    """Print the lines of the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*CASES, []])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ts.RobotFileWarning)
    print(origin(1))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHSKO_CACHE"] = folder
        for name in options.names or CASES:
            case, mech = CASES[name], CASES[name].mech()
            contacts = case.contacts()
            fast = ts.fuse(lambda mech, q, qd, contacts=contacts: law(mech, q, qd, contacts), mech)
            print_build(name, partial(fast, *case.states(1)))
            print(f"{name}: asked {case.build} s, {case.scratch} kB")
            for batch in BATCHES:
                at = case.states(batch)
                seconds = call_time(partial(fast, *at), max(1, CALLS // batch))
                found, expected = fast(*at), law(mech, *at, contacts)
                error = float((found[0] - expected[0]).abs().max())
                asked = f" (asked {1e3 * case.call:.0f})" if batch == 1 else ""
                print(
                    f"{name}, batch {batch}: {1e6 * seconds / batch:.0f} us a sample{asked}, "
                    f"torques {error:.0e} from eager mode, residual {float(found[1].max()):.0e}"
                )


if __name__ == "__main__":
    main()
