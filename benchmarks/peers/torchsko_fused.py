"""torchsko's fused kernels, called as a user calls them: through PyTorch, the VJP by autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cases import Case, Entry, MissingPeerError
from torch import Tensor

import torchsko as ts
from peers.torchsko_eager import entries

NAME = "torchsko fused"


def enter(case: Case) -> list[Entry]:
    """All verbs with the robot's numbers as constants; forward dynamics with a robot per sample."""
    if not hasattr(ts, "fuse"):
        raise MissingPeerError("this torchsko has no fuse")
    mech = case.robot.mech.to(case.dtype)
    fast = ts.fuse(mech)
    verbs: dict[str, Callable[..., Tensor]] = {
        "inverse": fast.inverse_dynamics,
        "forward": fast.forward_dynamics,
        "mass_matrix": lambda q, qd, x: fast.mass_matrix(q),
    }
    found = entries(NAME, case, verbs)
    per_sample = mech.replace(
        **{name: _repeated(getattr(mech, name), case.batch) for name in ("mass", "com", "inertia")}
    )
    other = ts.fuse(per_sample)
    verbs = {"forward": other.forward_dynamics}
    return found + entries(f"{NAME}, inertial parameters per sample", case, verbs)


def _repeated(x: Tensor, batch: int) -> Tensor:
    """One copy for every sample, in memory of its own."""
    return torch.stack([x] * batch)
