r"""Equality constraints of a compiled MuJoCo model that are no exact couplings.

With coordinates of joints or lengths of tendons l, whose values in ``qpos0`` are l_0, an equality of two is

.. math::
    l_1 - l_{1,0} = \sum_k a_k (l_2 - l_{2,0})^k, \qquad k = 0 \ldots 4 .

Closures have the coefficients of the polynomial in l_2.

Reference: MuJoCo documentation, "XML reference" (equality).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torchsko.io.common.numbers import as_vector
from torchsko.io.mujoco.mujoco_couplings import CONNECT, JOINT, WELD, equality_name
from torchsko.io.mujoco.mujoco_fields import all_joint_names, body_name, disabled_flags
from torchsko.io.mujoco.mujoco_model import matrix_of
from torchsko.io.mujoco.mujoco_tendons import tendon_name
from torchsko.mechanism.description import IDENTITY, ZERO
from torchsko.mechanism.file_data.file_metadata import Closure, FrameName

SITE = 6
"""MuJoCo's type of a site (mjtObj)."""

DEGREE = 4
"""Degree of the polynomials of equalities."""


def read_equalities(
    model: Any, site_frames: Mapping[int, str], indices: Iterable[int]
) -> list[Closure]:
    """Equalities between frames, joints and fixed tendons.

    Args:
        model: ``mujoco.MjModel``.
        site_frames: name of the frame of each site, by its index.
        indices: those of the equalities that are closures.
    """
    found = []
    for e in indices:
        kind = int(model.eq_type[e])
        if kind in (CONNECT, WELD):
            specific = _between_frames(model, e, kind, site_frames)
        else:
            specific = _between_lengths(model, e, kind)
        found.append(
            Closure(
                name=equality_name(model, e),
                active=bool(model.eq_active0[e]) and "equality" not in disabled_flags(model),
                solref=tuple(map(float, model.eq_solref[e])),
                solimp=tuple(map(float, model.eq_solimp[e])),
                **specific,
            )
        )
    return found


def _between_frames(
    model: Any, e: int, kind: int, site_frames: Mapping[int, str]
) -> dict[str, Any]:
    """Fields of a connect or weld."""
    objects = [int(model.eq_obj1id[e]), int(model.eq_obj2id[e])]
    data, positions = np.array(model.eq_data[e], dtype=np.float64), (ZERO, ZERO)
    rotation = IDENTITY
    if int(model.eq_objtype[e]) == SITE:
        frame1, frame2 = (site_frames[i] for i in objects)
        objects = [int(model.site_bodyid[i]) for i in objects]
    else:
        frame1, frame2 = (_frame(model, b) for b in objects)
        positions = as_vector(data[:3]), as_vector(data[3:6])
        if kind == WELD:
            positions, rotation = positions[::-1], matrix_of(data[6:10])
    weights = np.array(model.body_invweight0, dtype=np.float64).reshape(-1, 2)[objects].sum(0)
    return {
        "kind": "weld" if kind == WELD else "connect",
        "frame1": frame1,
        "frame2": frame2,
        "position1": positions[0],
        "position2": positions[1],
        "rotation": rotation,
        "torque_scale": float(data[10]) if kind == WELD else 1.0,
        "invweight": tuple(weights.tolist()),
    }


def _between_lengths(model: Any, e: int, kind: int) -> dict[str, Any]:
    """Fields of an equality of joints or tendons; one of a single length has the length twice."""
    objects = [i for i in (int(model.eq_obj1id[e]), int(model.eq_obj2id[e])) if i >= 0]
    coefficients = [float(x) for x in model.eq_data[e][: DEGREE + 1]]
    if kind == JOINT:
        names = all_joint_names(model)
        joints = [names[j] for j in objects]
        start = [float(model.qpos0[model.jnt_qposadr[j]]) for j in objects]
    else:
        joints = [tendon_name(model, t) for t in objects]
        start = [float(model.tendon_length0[t]) for t in objects]
    if len(objects) == 1:
        joints, start, coefficients = joints * 2, start * 2, [coefficients[0], *[0.0] * DEGREE]
    shifted = _shifted(coefficients, start[1])
    return {
        "kind": "joint" if kind == JOINT else "tendon",
        "frame1": None,
        "frame2": None,
        "joints": tuple(joints),
        "parameters": (shifted[0] + start[0], *shifted[1:]),
    }


def _shifted(coefficients: Sequence[float], start: float) -> list[float]:
    """Coefficients in x of a polynomial in x - start."""
    return [
        sum(c * math.comb(n, k) * (-start) ** (n - k) for n, c in enumerate(coefficients) if n >= k)
        for k in range(len(coefficients))
    ]


def _frame(model: Any, b: int) -> FrameName:
    return body_name(model, b) if b else None
