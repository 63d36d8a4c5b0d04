"""Checks of the nominal robot: closed chains and zero limits."""

from __future__ import annotations

from torchsko.errors import FitError
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.mechanism import Mechanism

LIMITS = {
    "velocity_limit": ("velocity limit", "The joint could not move"),
    "effort_limit": ("effort limit", "Every force would count as saturated"),
    "upper": ("range of positions", "The joint could not move"),
}
"""Name of each limit, and the consequence of a zero."""


def check_no_closed_chain(mech: Mechanism) -> None:
    """Check that no joint of the robot moves in a closed chain.

    The constraint forces of a chain act on its joints as drives do, and a log does not contain them. A fit
    would attribute them to inertia and friction.

    Args:
        mech: the nominal robot. Chains that the file disables, or whose joints are locked, do not count.

    Raises:
        FitError: names the constraint and the joints of the chain.
    """
    for loop in mech.file_metadata.closures:
        joints = _joints_of_loop(mech, loop) if loop.active else []
        if joints:
            lock = ", ".join(f"{name!r}: ..." for name in joints if name in mech.joint_names)
            raise FitError(
                f"{loop.name!r} closes a chain of {mech.name!r}: joints {', '.join(map(repr, joints))}.",
                "The constraint force acts on these joints and is not in the log.",
                f"If the joints did not move, lock them: mech.lock({{{lock}}}). If the forces are known, add "
                'them to tau and disable the constraint in the file (active="false" in MJCF).',
            )


def _joints_of_loop(mech: Mechanism, loop: Closure) -> list[str]:
    """Joints that move one end of a chain relative to the other, or that an equality couples."""
    if loop.joints:
        tendons = {t.name: tuple(t.joints) for t in mech.file_metadata.tendons}
        names = [j for name in loop.joints for j in tendons.get(name, (name,))]
        return [name for name in mech.tree_joint_names if name in names]
    one, two = (_path_to_root(mech, frame) for frame in (loop.frame1, loop.frame2))
    return [mech.tree_joint_names[k] for k in sorted(one ^ two)]


def _path_to_root(mech: Mechanism, frame: str | None) -> set[int]:
    """Bodies between a frame and the root; empty for the inertial frame."""
    k = -1 if frame is None else mech.frame_body[mech.frame_names.index(frame)]
    path = set()
    while k >= 0:
        path.add(k)
        k = mech.parents[k]
    return path


def check_limits_nonzero(mech: Mechanism, *fields: str) -> None:
    """Check that limits of joints are not 0. Some files contain 0 for unknown limits.

    Args:
        mech: the nominal robot.
        fields: keys of `LIMITS`; "upper" is the range from ``lower`` to ``upper``.

    Raises:
        FitError: names the limit and the joint.
    """
    for field in fields:
        size = mech.upper - mech.lower if field == "upper" else getattr(mech, field)
        slices = mech.q_slice if field == "upper" else mech.dof_slice
        for name in mech.joint_names:
            if bool((size[..., slices(name)] <= 0).any()):
                limit, consequence = LIMITS[field]
                raise FitError(
                    f"the {limit} of joint {name!r} is 0.",
                    f"{consequence}.",
                    f"Set the true limit, mech.replace({field}=...), or lock the joint: "
                    f"mech.lock({{{name!r}: ...}}).",
                )
