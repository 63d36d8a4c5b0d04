"""Loops in new URDF files, as <loop> of URDF+."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

import numpy as np

from torchsko.constraints.constraint_kinds import KINDS, SYNONYMS
from torchsko.io.common.loop_ends import WITH_AXIS
from torchsko.io.common.losses import Losses
from torchsko.io.common.numbers import as_matrix
from torchsko.io.urdf.edit_urdf import rpy_from_rotation
from torchsko.io.xml.edits import words
from torchsko.mechanism.description import IDENTITY
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.mechanism import Mechanism


def urdf_loops(mech: Mechanism, root: str) -> list[str]:
    """Loops as <loop> of URDF+; `root` is the link that coincides with the inertial frame."""
    lines = []
    for c in (c for c in mech.closures if _type(c) and c.active):
        lines.append(f'  <loop name={quoteattr(c.name)} type="{_type(c)}">')
        turned = as_matrix(np.array(c.rotation).T)
        for tag, frame, R, p in (
            ("predecessor", c.frame1, IDENTITY, c.position1),
            ("successor", c.frame2, turned, c.position2),
        ):
            link = quoteattr(root if frame is None else frame)
            rpy = words(rpy_from_rotation(R))
            place = f'<origin xyz="{words(p)}" rpy="{rpy}"/>'
            lines.append(f"    <{tag} link={link}>{place}</{tag}>")
        lines += ['    <axis xyz="0 0 1"/>'] if _type(c) in WITH_AXIS else []
        lines.append("  </loop>")
    return lines


def note_loops(mech: Mechanism, losses: Losses) -> None:
    """Note loops that URDF+ does not have, and parameters of their soft constraints."""
    lost = [c.name for c in mech.closures if not _type(c) or not c.active]
    losses.add_if(lost, "loops")
    soft = [c.name for c in mech.closures if c.name not in lost and (c.solref or c.solimp)]
    losses.add_if(soft, "solver parameters of loops")


def _type(closure: Closure) -> str:
    """Type of the loop in a file; empty if it has none."""
    kind = KINDS.get(SYNONYMS.get(closure.kind, closure.kind))
    return "" if kind is None else kind.urdf
