"""Periodic trajectories as Fourier series, and random ones within the limits of a robot."""

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
from torchsko.identification.diagnostics.robot_checks import check_limits_nonzero
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.joints.kind import sampling_range
from torchsko.mechanism.mechanism import Mechanism

SAMPLES_PER_PERIOD = 40
"""Samples per period of the fastest harmonic at which limits are checked."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Periodic motion, a Fourier series for each joint.

    Attributes:
        center: constant term, `[num_dof]` [rad or m].
        cosine: coefficients of the cosines, `[harmonics, num_dof]` [rad or m].
        sine: coefficients of the sines, `[harmonics, num_dof]` [rad or m].
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
        """Write one period as a CSV file for a controller: t, and q, qd, qdd of each joint.

        Args:
            path: of the file; an existing file is replaced.
            joints: names of the columns, one for each dof: ``mech.joint_names``.
            rate: sampling rate [Hz].

        Raises:
            FitError: if there is not one name for each dof, the rate is too low, or there is no such folder.
        """
        joints, dofs = tuple(joints), len(self.center)
        if len(joints) != dofs or len(set(joints)) != dofs:
            raise FitError(
                f"{len(set(joints))} names were given for the {dofs} dofs of a trajectory.",
                "Each column needs a unique name.",
                "Pass mech.joint_names.",
            )
        if not (isinstance(rate, Real) and 1 <= self.period * rate < math.inf):
            raise FitError(
                f"rate is {rate!r}, the period {self.period} s.",
                "A period must have at least one sample.",
                "Pass rate=1000.0, in Hz, for example.",
            )
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise FitError(
                f"{os.fspath(path)}: its folder does not exist.",
                "A file is written into an existing folder.",
                "Create the folder, or pass another path.",
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
    limit_fraction: float = 0.8,
    generator: torch.Generator | None = None,
) -> Trajectory:
    """Random Fourier series within the limits of position and velocity, also between samples.

    Args:
        mech: mechanism without spherical and free joints, whose coordinates are not a vector.
        period: [s].
        harmonics: number of harmonics; the highest frequency is harmonics / period.
        limit_fraction: largest fraction of the limits that is used, in (0, 1]. Missing limits are replaced
            by pi rad or 1 m (per second). Positions with a limit on one side use twice that from there on.
        generator: random number generator on the mechanism's device.

    Raises:
        MechanismError: if the coordinates of a joint are not a vector; names it.
        FitError: if an option is out of range, or a limit is 0; names it.

    Reference: J. Swevers, C. Ganseman, D. Tukel, J. De Schutter, H. Van Brussel, *Optimal robot
    excitation and identification*, IEEE Trans. Robotics and Automation 13(5), 1997 (the form of the
    series; `torchsko.identification.optimal_trajectory` optimizes it); H. Ehlich, K. Zeller, *Schwankung von
    Polynomen zwischen Gitterpunkten*, Math. Zeitschrift 86, 1964 (the bound between samples).
    """
    check_options(period, harmonics, limit_fraction)
    kinds = [mech.joints.kinds[k] for k in mech.independent_joints]
    for name, kind in zip(mech.joint_names, kinds, strict=True):
        if not kind.vector:
            raise MechanismError(
                f"joint {name!r} is {kind.name}.",
                "Fourier series are defined for joints whose coordinates are a vector.",
                "Replace or lock the joint; for the root joint, load with floating_base=False.",
            )
    check_limits_nonzero(mech, "velocity_limit", "upper")
    like = {"dtype": mech.dtype, "device": mech.device}
    default = default_limits(mech)
    lower, upper = sampling_range(mech.lower, mech.upper, default)
    speed = torch.where(mech.velocity_limit.isfinite(), mech.velocity_limit, default)
    cosine, sine = torch.randn(2, harmonics, mech.num_dof, generator=generator, **like)
    grid = torch.linspace(0, period, 1 + SAMPLES_PER_PERIOD * harmonics, **like)
    q, qd, _ = Trajectory(torch.zeros_like(lower), cosine, sine, period)(grid)
    # Between m even samples a series of n harmonics is at most 1 / cos(pi n / m) times as large.
    fraction = limit_fraction * math.cos(math.pi / SAMPLES_PER_PERIOD)
    scale = fraction * torch.minimum(
        (upper - lower) / 2 / q.abs().amax(0), speed / qd.abs().amax(0)
    )
    return Trajectory((lower + upper) / 2, scale * cosine, scale * sine, period)


def default_limits(mech: Mechanism) -> Tensor:
    """Half of the range, and speed, of dofs without limits, `[num_dof]` [rad or m, per second]."""
    kinds = [mech.joints.kinds[k] for k in mech.independent_joints]
    limits = [x for kind in kinds for x in kind.usual_speed]
    return torch.tensor(limits, dtype=mech.dtype, device=mech.device)


def check_options(period: float, harmonics: int, limit_fraction: float) -> None:
    """Check the period, the number of harmonics, and the fraction of the limits."""

    def is_positive(x: Any, maximum: float) -> bool:
        return isinstance(x, Real) and 0 < float(x) <= maximum and math.isfinite(x)

    whole = isinstance(harmonics, Integral) and harmonics > 0
    checks = {
        "period": (period, is_positive(period, math.inf), "positive, in s", "10.0"),
        "harmonics": (harmonics, whole, "a positive integer", "5"),
        "limit_fraction": (limit_fraction, is_positive(limit_fraction, 1.0), "in (0, 1]", "0.8"),
    }
    for name, (value, valid, requirement, default) in checks.items():
        if not valid:
            raise FitError(
                f"{name} is {value!r}.",
                f"It must be {requirement}.",
                f"Pass {name}={default}, the default, for example.",
            )
