"""Consistency checks of a joint type, made when it is registered.

The joint map and its rate are derivatives of the pose. If they disagree, accelerations are wrong
although inverse and forward dynamics agree with each other, so `register_joint` compares them, by automatic
differentiation, at random configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import jvp  # torch.func imports for seconds at its first dual level

from torchsko.errors import MechanismError
from torchsko.mechanism.joints.kind import Constants, JointType, Sampler
from torchsko.spatial.rigid_transform import force_matrix
from torchsko.utils.shapes import matvec

NUM_JOINTS, NUM_SAMPLES = 3, 4
"""Random joints of the type, and random configurations of each."""

TOLERANCE = 1e-8
"""Largest difference accepted, relative to one plus the largest entry; rounding gives about 1e-15."""

STEP = 0.3
"""Size of the tangent steps [rad or m] for the check of `integrate` and `difference`: below half a turn."""


def check_joint_type(kind: JointType, example: Mapping[str, Any]) -> None:
    """Compare the methods and flags of a joint type with the pose that it defines.

    Args:
        kind: the joint type.
        example: data of one joint, as `MechanismBuilder.joint` takes them; missing parameters are random.

    Raises:
        MechanismError: names the method or flag that disagrees with the pose, and by how much.
    """
    g = torch.Generator().manual_seed(0)
    kind, constants = _random_joints(kind, example, g)
    q = _random_coordinates(kind, g)
    qd = torch.randn(NUM_SAMPLES, NUM_JOINTS, kind.num_dof, generator=g, dtype=q.dtype)
    _check_manifold(kind, q, STEP * qd.tanh())
    _check_neutral(kind, constants)
    _check_rates(kind, constants, q, qd)
    _check_flags(kind, constants, q)


def _random_joints(
    kind: JointType, example: Mapping[str, Any], g: torch.Generator
) -> tuple[JointType, Constants]:
    """The type specialize to the data of one joint, and constants of some joints."""

    def random(shape: tuple[int, ...], unit: bool) -> np.ndarray:
        x = torch.randn(shape, generator=g, dtype=torch.float64)
        x = x / x.norm(dim=-1, keepdim=True) if unit else 0.5 + 0.5 * x.sigmoid()
        return x.numpy()

    kind = kind.specialize(kind.name, example)
    axes, rows = [], []
    for _ in range(NUM_JOINTS):
        data = {p.name: random(p.shape, p.unit) for p in kind.parameters} | dict(example)
        axis = np.array(data.pop("axis", random((3,), True)), dtype=np.float64)
        axes.append(axis / np.linalg.norm(axis))
        try:
            rows.append(kind.parameter_values(kind.name, tuple(axes[-1].tolist()), data))
        except MechanismError as error:
            raise MechanismError(
                f"joint type {kind.name!r} refuses random parameters: {error.what}",
                "Its methods are compared at random joints unless register_joint gets an example.",
                "Pass the data of a valid joint: register_joint(kind, example={'axis': ..., ...}).",
            ) from error
    constants: dict[str, Tensor] = {"axis": torch.tensor(np.array(axes))}
    entries = torch.tensor(rows, dtype=torch.float64).reshape(NUM_JOINTS, kind.num_parameters)
    parts = entries.split([p.size for p in kind.parameters], -1) if kind.parameters else ()
    for parameter, part in zip(kind.parameters, parts, strict=True):
        constants[parameter.name] = part.reshape(NUM_JOINTS, *parameter.shape)
    return kind, constants


def _random_coordinates(kind: JointType, g: torch.Generator) -> Tensor:
    free = torch.full((NUM_JOINTS, kind.num_q), math.inf, dtype=torch.float64)
    q = kind.random(-free, free, Sampler((NUM_SAMPLES, NUM_JOINTS), free, g))
    _require_shape(kind, "random", q, (NUM_SAMPLES, NUM_JOINTS, kind.num_q))
    return q


def _check_manifold(kind: JointType, q: Tensor, step: Tensor) -> None:
    """`integrate` and `difference` are inverse to each other; a vector moves by addition."""
    end = kind.integrate(q, step)
    _require_shape(kind, "integrate", end, tuple(q.shape))
    if kind.vector:
        _require_equal(kind, "integrate", end, q + step, "q + step, as vector=True promises")
    found = kind.difference(q, end)
    _require_equal(kind, "difference", found, step, "the step that integrate was given")


def _check_neutral(kind: JointType, constants: Constants) -> None:
    """In the neutral configuration the frames coincide, and H is that of `joint_map`."""
    neutral = torch.tensor(kind.neutral(), dtype=torch.float64)
    _require_shape(kind, "neutral", neutral, (kind.num_q,))
    neutral = neutral.expand(NUM_JOINTS, -1)
    R, p = _full_pose(kind, constants, neutral)
    _require_equal(kind, "pose at neutral()", R, torch.eye(3).to(R), "the identity")
    _require_equal(kind, "pose at neutral()", p, torch.zeros_like(p), "zero")
    H = kind.joint_map(constants).expand(NUM_JOINTS, -1, -1)
    _require_shape(kind, "joint_map", H, (NUM_JOINTS, kind.num_dof, 6))
    at = kind.joint_map_at(constants, neutral)
    _require_equal(kind, "joint_map", H, at, "joint_map_at in the neutral configuration")


def _check_rates(kind: JointType, constants: Constants, q: Tensor, qd: Tensor) -> None:
    """H* qd is the velocity of the pose, and `bias_accel` the rate of H* qd."""
    t = q.new_zeros(())

    def velocity(t: Tensor) -> Tensor:
        H = kind.joint_map_at(constants, kind.integrate(q, t * qd))
        return matvec(H.mT, qd) + 0 * t

    def pose(t: Tensor) -> tuple[Tensor, Tensor]:
        return _full_pose(kind, constants, kind.integrate(q, t * qd))

    (R, _), (R_rate, p_rate) = cast(Any, jvp(pose, t, t + 1))
    _require_equal(kind, "rotation in pose", R @ R.mT, torch.eye(3).to(R), "orthogonal")
    spin = R.mT @ R_rate
    angular = torch.stack([spin[..., 2, 1], spin[..., 0, 2], spin[..., 1, 0]], -1)
    expected = torch.cat([angular, matvec(R.mT, p_rate)], -1)
    found, found_rate = cast(Any, jvp(velocity, t, t + 1))
    _require_equal(
        kind,
        "joint_map" if kind.constant_map else "joint_map_at",
        found,
        expected,
        "the derivative of pose along qd",
        "H depends on the configuration: override joint_map_at." if kind.constant_map else "",
    )
    if kind.constant_map:
        return
    _require_equal(
        kind,
        "bias_accel",
        kind.bias_accel(constants, q, qd),
        found_rate,
        "the rate of H* qd at constant qd",
        "Override it." if type(kind).bias_accel is JointType.bias_accel else "",
    )


def _check_flags(kind: JointType, constants: Constants, q: Tensor) -> None:
    """The flags describe the pose and H, and `weight_terms` the pose."""
    H, (R, p) = kind.joint_map_at(constants, q), _full_pose(kind, constants, q)
    if kind.orthonormal:
        identity = torch.eye(kind.num_dof).to(H)
        _require_equal(
            kind, "H H*", H @ H.mT, identity, "the identity, as orthonormal=True promises"
        )
    if kind.one_axis:
        axis = constants["axis"].expand(p.shape)
        promise, advice = "the axis, as one_axis=True promises", "Set one_axis=False."
        _require_equal(kind, "R axis", matvec(R, axis), axis, promise, advice)
    if not kind.has_axis:
        turned = {**constants, "axis": constants["axis"].roll(1, -1)}
        other = _full_pose(kind, turned, q)
        promise, advice = "independent of the axis: has_axis is False", "Set has_axis=True."
        _require_equal(kind, "rotation in pose", other[0], R, promise, advice)
        _require_equal(kind, "position in pose", other[1], p, promise, advice)
    if kind.unit_rows:
        axes = {**constants, "axis": torch.eye(3).to(H)}
        rows = kind.joint_map_at(axes, q).abs()
        ones = torch.ones_like(rows[..., 0])
        promise = "one, as unit_rows=True promises for coordinate axes"
        advice = "Set unit_rows=False."
        _require_equal(kind, "largest entry of a row of H", rows.amax(-1), ones, promise, advice)
        _require_equal(kind, "sum of a row of H", rows.sum(-1), ones, promise, advice)
    placement = force_matrix(torch.eye(3).to(R).expand(NUM_JOINTS, 3, 3), p[0])
    (weights,) = kind.weight_terms(constants, q, placement).split([NUM_JOINTS])
    _require_equal(
        kind, "weight_terms", weights, placement @ force_matrix(R, p), "placement times the pose"
    )


def _full_pose(kind: JointType, constants: Constants, q: Tensor) -> tuple[Tensor, Tensor]:
    R, p = kind.pose(constants, q)
    shape = (*q.shape[:-1], 3)
    R = torch.eye(3, dtype=q.dtype) if R is None else R
    return R.expand(*shape, 3), (q.new_zeros(3) if p is None else p).expand(shape)


def _require_shape(kind: JointType, method: str, x: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(x.shape) != shape:
        raise MechanismError(
            f"{method} of joint type {kind.name!r} has the shape {list(x.shape)}, not {list(shape)}.",
            f"The type has {kind.num_q} coordinates and {kind.num_dof} rates.",
            f"Correct {method}, or the attributes coordinates and rates.",
        )


def _require_equal(
    kind: JointType, name: str, found: Tensor, expected: Tensor, what: str, advice: str = ""
) -> None:
    """Refuse a type if a result differs from its expected value, or is not finite."""
    gap = (found - expected).abs() / (1 + expected.abs().max())
    if not bool(gap.max() <= TOLERANCE):  # also refuses nan
        raise MechanismError(
            f"{name} of joint type {kind.name!r} is not {what}: it differs by {float(gap.max()):.3g}.",
            "Dynamics would be wrong without any further error.",
            advice or f"Correct {name}; torchsko/mechanism/joints/kind.py defines it.",
        )
