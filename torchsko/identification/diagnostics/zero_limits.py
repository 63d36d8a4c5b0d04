"""Limits of a robot that leave nothing: a file may say 0 where nobody knew."""

from __future__ import annotations

from torchsko.errors import FitError
from torchsko.mechanism.mechanism import Mechanism

FIELDS = {
    "velocity_limit": ("velocity limit", "It would stand still"),
    "effort_limit": ("effort limit", "Every force is at its limit, where it tells nothing"),
    "upper": ("range of positions", "It would stand still"),
}
"""What limits are called, and why 0 is none."""


def refuse_zero_limits(mech: Mechanism, *fields: str) -> None:
    """Refuse limits of a joint that are 0.

    Args:
        mech: the nominal robot.
        fields: of `FIELDS`; "upper" is the range from ``lower`` to ``upper``.

    Raises:
        FitError: names the limit and the joint.
    """
    for field in fields:
        size = mech.upper - mech.lower if field == "upper" else getattr(mech, field)
        slices = mech.q_slice if field == "upper" else mech.dof_slice
        for name in mech.joint_names:
            if bool((size[..., slices(name)] <= 0).any()):
                called, why = FIELDS[field]
                raise FitError(
                    f"the {called} of joint {name!r} is 0.",
                    f"{why}; files say 0 of limits that nobody knew.",
                    f"Pass the robot with true ones, mech.replace({field}=...), or hold the joint: "
                    f"mech.lock({{{name!r}: ...}}).",
                )
