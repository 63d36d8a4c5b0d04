"""Fused kernels of torchsko, called through PyTorch.

The VJP comes in two ways: `forward_dynamics_vjp`, forward and backward in one kernel, which stands for
the fused kernels in ratios; and autograd, a forward and a backward kernel with PyTorch's graph between.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from cases import Case, Entry, MissingPeerError, fuse
from torch import Tensor

from peers.torchsko_eager import entries, gradients

NAME = "torchsko fused"
AUTOGRAD = f"{NAME}, by autograd"
PER_SAMPLE = f"{NAME}, inertial parameters per sample"
PER_SAMPLE_AUTOGRAD = f"{PER_SAMPLE}, by autograd"
INERTIAL = ("mass", "com", "inertia")


def enter(case: Case) -> list[Entry]:
    """All verbs with the robot's numbers as constants; forward dynamics with a robot per sample."""
    if fuse is None:
        raise MissingPeerError("this torchsko has no fuse")
    mech = case.robot.mech.to(case.dtype)
    fast = fuse(mech)
    verbs: dict[str, Callable[..., Tensor]] = {
        "inverse": fast.inverse_dynamics,
        "forward": fast.forward_dynamics,
        "mass_matrix": lambda q, qd, x: fast.mass_matrix(q),
    }
    *plain, by_autograd = entries(NAME, case, verbs)
    inertial = {name: _repeated(getattr(mech, name), case.batch) for name in INERTIAL}
    other = fuse(mech.replace(**inertial))
    forward, vjp = entries(PER_SAMPLE, case, {"forward": other.forward_dynamics})
    return [
        *plain,
        _one_kernel(NAME, case, fast),
        Entry(AUTOGRAD, "forward_vjp", by_autograd.run, by_autograd.ours),
        forward,
        Entry(PER_SAMPLE_AUTOGRAD, "forward_vjp", vjp.run, vjp.ours),
    ]


def _one_kernel(name: str, case: Case, fast: object) -> Entry:
    def run() -> tuple[Tensor, ...]:
        qdd, (dq, dqd, dtau) = fast.forward_dynamics_vjp(  # type: ignore[attr-defined]
            case.q, case.qd, case.tau, case.cotangent
        )
        return qdd, dq, dqd, dtau

    return Entry(name, "forward_vjp", run, lambda y: gradients(case, y))


def _repeated(x: Tensor, batch: int) -> Tensor:
    """One copy for every sample, in memory of its own."""
    return torch.stack([x] * batch)
