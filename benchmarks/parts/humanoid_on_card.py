"""A step of a humanoid with contact in float32 on a GPU: build, error, times, with gradients last.

Usage: python benchmarks/parts/humanoid_on_card.py FILE.xml [--cpu]. The file is humanoid.xml of gymnasium, of
which the integrator becomes Euler. Prints each result when it is known, so that a time limit loses the rest.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[k]) for k in (1, 2)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import torchsko as ts  # noqa: E402
from parts.device import Device  # noqa: E402

BATCHES = (32768, 4096)
CHECKED = 64
Tensors = tuple[Tensor, ...]


def contact_step(mech: ts.Mechanism, q: Tensor, qd: Tensor, ctrl: Tensor) -> tuple[Tensor, ...]:
    """A step as a function of tensors."""
    after = ts.step(mech, ts.State(q, qd), ctrl)
    return after.q, after.qd, after.residual


def states(mech: ts.Mechanism, batch: int, num_controls: int) -> Tensors:
    """Standing and falling humanoids, most of them with contacts."""
    g = torch.Generator().manual_seed(0)
    moves = 0.1 * torch.randn(2, batch, mech.num_dof, generator=g, dtype=torch.float64)
    moves[0, :, 5] -= 0.15 * torch.rand(batch, generator=g, dtype=torch.float64)
    q = ts.integrate(mech, mech.file_metadata.initial.expand(batch, -1), moves[0])
    ctrl = 0.4 * torch.rand(batch, num_controls, generator=g, dtype=torch.float64) - 0.2
    return q, 10 * moves[1], ctrl


def main() -> None:
    warnings.simplefilter("ignore")
    device = Device("cpu" if "--cpu" in sys.argv else "cuda")
    text = Path(sys.argv[1]).read_text().replace('integrator="RK4"', 'integrator="Euler"')
    mech = ts.load(text)
    robot = mech.float().to(device.kind)
    num_controls = len(mech.file_metadata.actuators.names)
    fast = ts.fuse(contact_step, robot, shapes={"ctrl": (num_controls,)}, verify=False)
    print(f"{device.name}: humanoid, Euler, float32", flush=True)
    batches = BATCHES if device.is_gpu else (CHECKED,)
    for batch in batches:
        time_steps(device, mech, robot, fast, states(mech, batch, num_controls))
    for batch in batches:
        time_gradients(device, robot, fast, states(mech, batch, num_controls))


def time_steps(
    device: Device,
    mech: ts.Mechanism,
    robot: ts.Mechanism,
    fast: ts.fused.FusedCall,
    given: Tensors,
) -> None:
    """Print the first call, errors and times of steps."""
    inputs, batch = [x.to(robot.mass) for x in given], given[0].shape[0]
    start = time.perf_counter()
    found = [y.cpu() for y in fast(*inputs)]
    print(f"batch {batch}: first call {time.perf_counter() - start:.1f} s", flush=True)
    right = contact_step(mech, *(x[:CHECKED] for x in given))
    errors = [float((y[:CHECKED] - z).abs().max()) for y, z in zip(found, right, strict=True)]
    print(f"  errors of q and qd {errors[:2]}, largest residual {float(found[2].max()):.1g}")
    took = statistics.median(device.interleaved({"step": lambda: fast(*inputs)}, 7)["step"])
    print(f"  forward: {1e9 * took / batch:.4g} ns a step, {batch / took:.3g} steps/s", flush=True)


def time_gradients(
    device: Device, robot: ts.Mechanism, fast: ts.fused.FusedCall, given: Tensors
) -> None:
    """Print the first call and times of steps with gradients."""
    leaves, batch = [x.to(robot.mass).requires_grad_() for x in given], given[0].shape[0]

    def call() -> object:
        return torch.autograd.grad(fast(*leaves)[1].square().sum(), leaves)

    start = time.perf_counter()
    call()
    device.wait()
    print(f"batch {batch}: first gradient {time.perf_counter() - start:.1f} s", flush=True)
    took = statistics.median(device.interleaved({"gradient": call}, 7)["gradient"])
    print(f"  with backward: {1e9 * took / batch:.4g} ns a step", flush=True)


if __name__ == "__main__":
    main()
