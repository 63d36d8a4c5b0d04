"""Distances of held frames from their placements at the start of phases, and the warning about them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from torchsko.bridge.kinematics import Kinematics
from torchsko.constraints.still import Still
from torchsko.control.ilqr.problem import OptimalControl
from torchsko.control.ilqr.segments import Segment
from torchsko.errors import caller_stack_level
from torchsko.utils.concrete_values import concrete_values

MAX_START_ERROR = 1e-3
"""Distance [m] or angle [rad] at which a held frame counts as not reached."""


def warn_unreached(problem: OptimalControl, q: Tensor) -> None:
    """Warn of phases that start away from where their constraints hold, where values can be read for free.

    Args:
        problem: the problem.
        q: configurations, `[*batch, steps + 1, num_q]`.
    """
    for phase, segment in _starts(problem):
        for name, unit, error in _errors(segment, q[..., segment.start, :]):
            values = concrete_values(error)
            wrong = None if values is None else np.argwhere(values > MAX_START_ERROR)
            if values is None or wrong is None or not len(wrong):
                continue
            sample = wrong[0].tolist()
            where = f" in sample {sample} ({len(wrong)} such in the batch)" if sample else ""
            warnings.warn(
                f"phase {phase} holds {name!r}, which is {values[*sample]:.2g} {unit} away when the phase "
                f"starts{where}.\n"
                "The phase keeps this distance, or reduces it at the rate stabilize= of ts.constrain.\n"
                + (
                    f"Give phase {phase - 1} more steps, or a final cost that brings the frame there."
                    if phase
                    else "Start from held.project(q), or correct the placement."
                ),
                RuntimeWarning,
                stacklevel=caller_stack_level(),
            )


def _starts(problem: OptimalControl) -> Iterator[tuple[int, Segment]]:
    """The number and the first segment of each phase with constraints that have a placement."""
    for phase, (first, *_) in groupby(problem.segments, lambda s: s.phase):
        held = first.functions.dynamics.constraints
        if held is not None and not all(
            isinstance(link.kind, Still) for link in held.rows.structure.links
        ):
            yield phase, first


def _errors(segment: Segment, q: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    """Names of the constraints, units, and the norms of their linear and angular errors `[*batch]`."""
    held = segment.functions.dynamics.constraints
    assert held is not None
    with torch.no_grad():
        numbers = held.rows.numbers(segment.mech)
        residual = held.rows.at(Kinematics.of(segment.mech, q), numbers, at_rest=True).residual
    start = 0
    for name, link in zip(held.rows.names, held.rows.structure.links, strict=True):
        angular = set(link.kind.angular_rows)
        for unit, rows in (
            ("m", set(range(link.kind.num_rows)) - angular),
            ("rad", angular),
        ):
            if rows:
                chosen = residual[..., [start + k for k in sorted(rows)]]
                yield name, unit, chosen.norm(dim=-1)
        start += link.kind.num_rows
