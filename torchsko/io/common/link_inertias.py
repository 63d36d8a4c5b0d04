"""Inertial parameters of the links of a mechanism, whose fixed joints weld them to bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchsko.io.common.welded_inertia import INERTIAL, distribute_body
from torchsko.mechanism.description import LinkDescription
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.welded import Frame, compensated, lump

MAX_ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Relative difference of inertial parameters that is rounding, by dtype."""


def link_inertias(mech: Mechanism) -> dict[str, LinkDescription]:
    """The links of a mechanism, by name, such that all links of a body have the body's inertia.

    A change of a body since its file was loaded is distributed over its links; see
    `torchsko.io.common.welded_inertia`. Links fixed to the inertial frame are those of the file.
    """
    known = {link.name: link for link in mech.file_metadata.links}
    on_body: dict[int, list[int]] = {}
    for i, (name, k) in enumerate(zip(mech.frame_names, mech.frame_body, strict=True)):
        if name in known or (k >= 0 and name == mech.body_names[k]):
            on_body.setdefault(k, []).append(i)
    found = {mech.frame_names[i]: known[mech.frame_names[i]] for i in on_body.pop(-1, [])}
    for k, indices in on_body.items():
        frames = {mech.frame_names[i]: _frame(mech, i) for i in indices}
        missing = [name for name in frames if name not in known]
        members = {name: known.get(name, LinkDescription(name)) for name in frames}
        target = tuple(_array(getattr(mech, field)[k]) for field in INERTIAL)
        if changed := _changed(mech, lump(list(frames), frames, members), target):
            members |= distribute_body(members, frames, target, changed)
        if missing and len(frames) > 1:  # a massless body between joints, as the reader made
            members = {n: x for n, x in members.items() if n not in missing or _has_mass(x)}
        found |= _lifted(mech, k, frames, members)
    return found


def _has_mass(link: LinkDescription) -> bool:
    return bool(link.mass) or bool(np.any(link.inertia))


def _changed(mech: Mechanism, links: Sequence[Any], body: Sequence[np.ndarray]) -> list[str]:
    """Inertial parameters in which the links differ from the body."""
    tolerance = MAX_ROUNDING[mech.dtype]
    return [
        field
        for field, x, y in zip(INERTIAL, links, body, strict=True)
        if np.abs(x - y).max() > tolerance * max(float(np.abs(y).max()), 1e-3)
    ]


def _lifted(
    mech: Mechanism,
    k: int,
    frames: Mapping[str, Frame],
    members: dict[str, LinkDescription],
) -> dict[str, LinkDescription]:
    """The links with the body's gravity compensation; one share for all if it was changed."""
    names = [name for name in frames if name in members]
    share, *moment = _array(mech.gravcomp[k])
    if np.allclose(compensated(names, frames, members), [share, *moment], rtol=0, atol=1e-12):
        return members
    return {name: replace(link, gravcomp=float(share)) for name, link in members.items()}


def _frame(mech: Mechanism, i: int) -> Frame:
    return Frame(None, _array(mech.frame_rotation[i]), _array(mech.frame_position[i]))


def _array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()
