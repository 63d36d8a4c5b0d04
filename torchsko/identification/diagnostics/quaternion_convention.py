"""Check of the convention of orientations: velocities match the derivative of the quaternions.

Programs differ in the order of quaternion elements, in the order of angular and linear velocity, and in the
axes in which velocities are expressed. A log in another convention can be fitted, but the result is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from torchsko.identification.diagnostics.context import RawLog
from torchsko.identification.diagnostics.findings import Finding, finding
from torchsko.mechanism.joints.kind import JointType

MAX_MISMATCH = 0.1
"""Share of the squared motion by which velocities may differ from the derivative of positions."""

NOISE_FACTOR = 4.0
"""Ratio of the mismatch to the share that noise can explain, above which it is no noise."""


def quaternion_convention(raw: RawLog) -> Iterator[Finding]:
    """Velocities of joints with quaternions match the derivative of their positions."""
    if raw.qd is None:
        return
    mech, fine = raw.mech, raw.without_gaps
    t, q, qd = raw.t[fine], raw.q[fine], raw.qd[fine]
    for name, k in zip(mech.joint_names, mech.independent_joints, strict=True):
        kind, at, dof = mech.joints.kinds[k], mech.q_slice(name), mech.dof_slice(name)
        if "qw" not in kind.coordinates:
            continue
        whole = np.isfinite(q[..., at]).all((1, 2)) & np.isfinite(qd[..., dof]).all((1, 2))
        if not whole.any():
            continue
        times, positions, rates = (
            torch.from_numpy(np.asarray(x[whole], np.float64))
            for x in (t, q[..., at], qd[..., dof])
        )
        mismatch = _mismatch(kind, times, positions, rates)
        if mismatch > max(MAX_MISMATCH, NOISE_FACTOR * _noise_share(kind, positions)):
            order = f"{', '.join(kind.coordinates)}; {', '.join(kind.rates)}"
            yield finding(
                "quaternion_convention",
                f"Velocities of joint {name!r} differ from the derivative of its positions by "
                f"{100 * mismatch:.0f} % of the squared motion.",
                "Reorder the columns or rotate the velocities. ts.conventions() converts the conventions of "
                "other libraries.",
                joints=[name],
                reason=f"The columns are {order}, with velocities in the axes of the body.",
            )


def _relative_difference(a: Tensor, b: Tensor) -> Tensor:
    """Squared difference over the larger square, of the angular or the linear part: the larger."""
    difference, first, second = (
        torch.stack([y.square().sum() for y in x.split(3, -1)]) for x in (a - b, a, b)
    )
    return (difference / first.maximum(second).clamp_min(1e-300)).max()


def _mismatch(kind: JointType, t: Tensor, q: Tensor, qd: Tensor) -> float:
    """Relative difference between the motion over blocks and the integral of the velocities."""
    integral = (t[:, -1:] - t[:, :1]) * qd.quantile(0.5, dim=1)  # robust to outliers
    return float(_relative_difference(kind.difference(q[:, 0], q[:, -1]), integral))


def _noise_share(kind: JointType, q: Tensor) -> float:
    """Share of the motion over blocks that differs between both halves, as noise does."""
    middle = q[:, q.shape[1] // 2]
    halves = kind.difference(q[:, 0], middle), kind.difference(middle, q[:, -1])
    return float(_relative_difference(*halves)) / 2
