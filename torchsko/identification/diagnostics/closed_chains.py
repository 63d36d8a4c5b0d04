"""Closed chains of a robot's file, whose forces no verb knows: no log of them is fitted."""

from __future__ import annotations

from torchsko.errors import FitError
from torchsko.mechanism.file_metadata import Closure
from torchsko.mechanism.mechanism import Mechanism


def refuse_loops(mech: Mechanism) -> None:
    """Refuse a robot whose joints move in a closed chain.

    A loop pushes its joints as drives do. Without its forces a fit takes them for inertia and friction, and
    finds bodies that weigh nothing, with small deviations.

    Args:
        mech: the nominal robot; loops that the file switches off, or whose joints are locked, do not count.

    Raises:
        FitError: names the loop and the joints that move in it.
    """
    for loop in mech.file_metadata.closures:
        joints = _moving(mech, loop) if loop.active else []
        if joints:
            held = ", ".join(f"{name!r}: ..." for name in joints if name in mech.joint_names)
            raise FitError(
                f"{loop.name!r} closes a chain of {mech.name!r}: joints {', '.join(map(repr, joints))}.",
                "What holds it together pushes these joints as drives do, and no log tells how hard.",
                f"Where they stood still, hold them: mech.lock({{{held}}}). Where you know these forces, add "
                'them to tau and take the loop out of the file (active="false" in MJCF).',
            )


def _moving(mech: Mechanism, loop: Closure) -> list[str]:
    """Joints that move one end of a loop against the other."""
    one, two = (_carriers(mech, frame) for frame in (loop.frame1, loop.frame2))
    return [mech.tree_joint_names[k] for k in sorted(one ^ two)]


def _carriers(mech: Mechanism, frame: str | None) -> set[int]:
    """Bodies that carry a frame: from its own to the root; none for the inertial frame."""
    k = -1 if frame is None else mech.frame_body[mech.frame_names.index(frame)]
    found = set()
    while k >= 0:
        found.add(k)
        k = mech.parents[k]
    return found
