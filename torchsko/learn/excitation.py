"""Trajectories that excite the dynamics of an arm: random Fourier series within its limits."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import MechanismError
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.verb import verb


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A periodic motion, a Fourier series in every joint.

    Attributes:
        center: `[num_dof]` [rad or m].
        cosine: amplitudes of the harmonics, `[harmonics, num_dof]`.
        sine: likewise.
        period: [s].
    """

    center: Tensor
    cosine: Tensor
    sine: Tensor
    period: float

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Position, velocity and acceleration at times `[*]` [s], each `[*, num_dof]`."""
        harmonic = torch.arange(1, self.sine.shape[0] + 1, dtype=t.dtype, device=t.device)
        w = 2 * math.pi / self.period * harmonic
        c, s = (t[..., None] * w).cos(), (t[..., None] * w).sin()
        q = self.center + c @ self.cosine + s @ self.sine
        qd = (c * w) @ self.sine - (s * w) @ self.cosine
        return q, qd, -(c * w**2) @ self.cosine - (s * w**2) @ self.sine

    def write(
        self, path: str | os.PathLike[str], joints: Sequence[str], *, rate: float = 1000.0
    ) -> None:
        """One period as a CSV file, for the robot's controller: t, and q, qd, qdd of each joint.

        Args:
            path: of the file; replaced where there is one.
            joints: names of the columns: ``mech.joint_names``, each of one dof.
            rate: samples a second [Hz].
        """
        t = torch.arange(round(self.period * rate)).to(self.center) / rate
        names = ["t", *(f"{x}_{joint}" for x in ("q", "qd", "qdd") for joint in joints)]
        rows = torch.cat([t[:, None], *self(t)], 1).cpu().numpy()
        np.savetxt(path, rows, fmt="%.9g", delimiter=",", header=",".join(names), comments="")


@verb
def exciting_trajectory(
    mech: Mechanism,
    *,
    period: float = 10.0,
    harmonics: int = 5,
    reach: float = 0.8,
    generator: torch.Generator | None = None,
) -> Trajectory:
    """A random Fourier series that stays within limits of position and velocity.

    Args:
        mech: a mechanism without joints whose coordinates are no vector (spherical, free).
        period: [s].
        harmonics: number of terms; the highest frequency is harmonics / period.
        reach: largest part of the limits that is used, in (0, 1]; pi rad or 1 m (per second) stands
            for a limit that is not there.
        generator: source of randomness, on the mechanism's device.

    Returns:
        The trajectory.

    Raises:
        MechanismError: when the coordinates of a joint are no vector; names it.

    Reference: J. Swevers, C. Ganseman, D. Tukel, J. De Schutter, H. Van Brussel, *Optimal robot
    excitation and identification*, IEEE Trans. Robotics and Automation 13(5), 1997 (the form of the
    series; `torchsko.learn.optimal_trajectory` optimises it).
    """
    kinds = [mech.joints.kinds[k] for k in mech.independent_joints]
    for name, kind in zip(mech.joint_names, kinds, strict=True):
        if not kind.vector:
            raise MechanismError(
                f"joint {name!r} is {kind.name}.\n"
                "A Fourier series moves joints whose coordinates are a vector.\n"
                "Move it by a rollout, or replace it; where it is the root joint, load with "
                "floating_base=False."
            )
    like = {"dtype": mech.dtype, "device": mech.device}
    usual = torch.tensor([x for kind in kinds for x in kind.usual_speed], **like)
    lower = torch.where(mech.lower.isfinite(), mech.lower, -usual)
    upper = torch.where(mech.upper.isfinite(), mech.upper, usual)
    speed = torch.where(mech.velocity_limit.isfinite(), mech.velocity_limit, usual)
    cosine, sine = torch.randn(2, harmonics, mech.num_dof, generator=generator, **like)
    grid = torch.linspace(0, period, 1 + 40 * harmonics, **like)
    q, qd, _ = Trajectory(torch.zeros_like(lower), cosine, sine, period)(grid)
    # The largest scale that respects both limits everywhere on the grid.
    scale = reach * torch.minimum((upper - lower) / 2 / q.abs().amax(0), speed / qd.abs().amax(0))
    return Trajectory((lower + upper) / 2, scale * cosine, scale * sine, period)
