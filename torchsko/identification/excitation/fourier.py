"""Trajectories that excite the dynamics of an arm: random Fourier series within its limits."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import FitError, MechanismError
from torchsko.identification.diagnostics.zero_limits import refuse_zero_limits
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.joints.kind import sampling_range
from torchsko.mechanism.mechanism import Mechanism

FINE = 40
"""Moments of a period of the fastest harmonic at which limits are looked at."""


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

        Raises:
            FitError: when names are not one for each dof, the rate gives no sample, or the folder is not
                there.
        """
        joints, dofs = tuple(joints), len(self.center)
        if len(joints) != dofs or len(set(joints)) != dofs:
            raise FitError(
                f"{len(set(joints))} names were given for the {dofs} dofs of a trajectory.",
                "Each column has a name of its own.",
                "Pass mech.joint_names.",
            )
        if not (isinstance(rate, Real) and 1 <= self.period * rate < math.inf):
            raise FitError(
                f"rate is {rate!r}, the period {self.period} s.",
                "A file holds the samples of one period, one at least.",
                "Pass rate=1000.0, say, in Hz.",
            )
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise FitError(
                f"{os.fspath(path)}: its folder is not there.",
                "A file is written into a folder that there is.",
                "Make the folder, or pass another path.",
            )
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
    """A random Fourier series that stays within limits of position and velocity, between samples too.

    Args:
        mech: a mechanism without joints whose coordinates are no vector (spherical, free).
        period: [s].
        harmonics: number of terms; the highest frequency is harmonics / period.
        reach: largest part of the limits that is used, in (0, 1]; pi rad or 1 m (per second) stands
            for a limit that is not there; of positions with a limit on one side, twice that from there on.
        generator: source of randomness, on the mechanism's device.

    Returns:
        The trajectory.

    Raises:
        MechanismError: when the coordinates of a joint are no vector; names it.
        FitError: on an option out of range, or a limit that is 0; names it.

    Reference: J. Swevers, C. Ganseman, D. Tukel, J. De Schutter, H. Van Brussel, *Optimal robot
    excitation and identification*, IEEE Trans. Robotics and Automation 13(5), 1997 (the form of the
    series; `torchsko.identification.optimal_trajectory` optimises it); H. Ehlich, K. Zeller, *Schwankung von
    Polynomen zwischen Gitterpunkten*, Math. Zeitschrift 86, 1964 (what lies between samples).
    """
    refuse_options(period, harmonics, reach)
    kinds = [mech.joints.kinds[k] for k in mech.independent_joints]
    for name, kind in zip(mech.joint_names, kinds, strict=True):
        if not kind.vector:
            raise MechanismError(
                f"joint {name!r} is {kind.name}.",
                "A Fourier series moves joints whose coordinates are a vector.",
                "Move it by a rollout, or replace it; where it is the root joint, load with "
                "floating_base=False.",
            )
    refuse_zero_limits(mech, "velocity_limit", "upper")
    like = {"dtype": mech.dtype, "device": mech.device}
    usual = usual_of(mech)
    lower, upper = sampling_range(mech.lower, mech.upper, usual)
    speed = torch.where(mech.velocity_limit.isfinite(), mech.velocity_limit, usual)
    cosine, sine = torch.randn(2, harmonics, mech.num_dof, generator=generator, **like)
    grid = torch.linspace(0, period, 1 + FINE * harmonics, **like)
    q, qd, _ = Trajectory(torch.zeros_like(lower), cosine, sine, period)(grid)
    # A series of n harmonics is between m even moments at most 1 / cos(pi n / m) times as large.
    reach = reach * math.cos(math.pi / FINE)
    scale = reach * torch.minimum((upper - lower) / 2 / q.abs().amax(0), speed / qd.abs().amax(0))
    return Trajectory((lower + upper) / 2, scale * cosine, scale * sine, period)


def usual_of(mech: Mechanism) -> Tensor:
    """Half of the range, and speed, of dofs without limits, `[num_dof]` [rad or m, per second]."""
    kinds = [mech.joints.kinds[k] for k in mech.independent_joints]
    usual = [x for kind in kinds for x in kind.usual_speed]
    return torch.tensor(usual, dtype=mech.dtype, device=mech.device)


def refuse_options(period: float, harmonics: int, reach: float) -> None:
    """Refuse what is no period, no number of harmonics, or no part of limits."""

    def positive(x: Any, most: float) -> bool:
        return isinstance(x, Real) and 0 < float(x) <= most and math.isfinite(x)

    whole = isinstance(harmonics, Integral) and harmonics > 0
    wrong = {
        "period": (period, positive(period, math.inf), "positive, in s", "10.0"),
        "harmonics": (harmonics, whole, "a whole number from 1 on", "5"),
        "reach": (reach, positive(reach, 1.0), "a part of the limits, in (0, 1]", "0.8"),
    }
    for name, (value, fits, what, usual) in wrong.items():
        if not fits:
            raise FitError(
                f"{name} is {value!r}.",
                f"It is {what}.",
                f"Pass {name}={usual}, the default, say.",
            )
