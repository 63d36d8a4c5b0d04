"""Exact couplings from linear equalities of joints or fixed tendons in a compiled MuJoCo model.

With coordinates of joints or lengths of tendons l, whose values in ``qpos0`` are l_0, the equality is

.. math::
    l_1 - l_{1,0} = a_0 + a_1 (l_2 - l_{2,0}).

Reference: MuJoCo documentation, "XML reference" (equality/joint, equality/tendon).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torchsko.io.mujoco.mujoco_fields import HINGE, SLIDE, all_joint_names, disabled_flags
from torchsko.mechanism.description import CouplingDescription, UnsupportedElement

CONNECT, WELD, JOINT, TENDON = 0, 1, 2, 3
"""MuJoCo's types of equalities (mjtEq)."""

WRAP_JOINT = 1
"""MuJoCo's type of a joint in a fixed tendon (mjtWrap)."""

DISABLED = "disabled in the file"
REDUNDANT = "redundant, or in conflict with other equalities"
"""Reasons for which an equality is not used and does not change the dynamics."""

MIN_COEFFICIENT = 1e-12
"""Relative size below which a coefficient of an eliminated equation is rounding."""


def couplings_of(
    model: Any, alone: Collection[str]
) -> tuple[tuple[CouplingDescription, ...], list[UnsupportedElement]]:
    """Couplings from linear equalities, and the other equalities as unsupported elements.

    Args:
        model: ``mujoco.MjModel``.
        alone: names of joints that are the only joint of their body.
    """
    names = all_joint_names(model)
    found: dict[str, CouplingDescription] = {}
    unsupported = []
    for e in range(model.neq):
        if is_loop(model, e, alone):
            continue
        what, sums = f"equality {model.eq(e).name or e!r}", _sides(model, e)
        reason = _unsupported(model, e, sums, {j for j, x in enumerate(names) if x in alone})
        coupling = None if reason else _solve(*_equation(model, e, sums, names), found)
        if coupling is None:
            reason = reason or REDUNDANT
            changes = reason not in (DISABLED, REDUNDANT)
            unsupported.append(UnsupportedElement(what, reason, affects_forces=changes))
        else:
            found[coupling.joint] = coupling
    return tuple(found.values()), unsupported


def is_loop(model: Any, e: int, alone: Collection[str]) -> bool:
    """True for an equality that is a closure: connect, weld, or a polynomial between two joints."""
    kind = int(model.eq_type[e])
    if kind != JOINT:
        return kind in (CONNECT, WELD)
    joints = [int(model.eq_obj1id[e]), int(model.eq_obj2id[e])]
    names = all_joint_names(model)
    return (
        min(joints) >= 0
        and any(map(float, model.eq_data[e][2:5]))
        and all(int(model.jnt_type[j]) in (SLIDE, HINGE) and names[j] in alone for j in joints)
    )


def tendon_joints(model: Any, t: int) -> dict[int, float] | None:
    """Coefficients of a fixed tendon by joint index; None if its length is not a sum over joints."""
    first, found = int(model.tendon_adr[t]), {}
    for w in range(first, first + int(model.tendon_num[t])):
        j = int(model.wrap_objid[w])
        if int(model.wrap_type[w]) != WRAP_JOINT or int(model.jnt_type[j]) not in (SLIDE, HINGE):
            return None
        found[j] = found.get(j, 0.0) + float(model.wrap_prm[w])
    return found


def _sides(model: Any, e: int) -> list[dict[int, float] | None]:
    """The coupled quantities as sums over joints; None for a quantity that is not such a sum."""
    kind, objects = int(model.eq_type[e]), (int(model.eq_obj1id[e]), int(model.eq_obj2id[e]))
    if kind == JOINT:
        scalar = [int(model.jnt_type[i]) in (SLIDE, HINGE) for i in objects if i >= 0]
        return [{i: 1.0} if ok else None for i, ok in zip(objects, scalar, strict=False)]
    return [tendon_joints(model, i) for i in objects if i >= 0] if kind == TENDON else []


def _unsupported(
    model: Any, e: int, sums: list[dict[int, float] | None], alone: Collection[int]
) -> str:
    """Reason why an equality is not a coupling; empty if it is one."""
    if not model.eq_active0[e] or "equality" in disabled_flags(model):
        return DISABLED
    if not sums or None in sums:
        return "not an equality of joints or fixed tendons: not enforced"
    if len(sums) == 2 and any(map(float, model.eq_data[e][2:5])):
        return "a nonlinear coupling: not enforced"
    if not all(set(s) <= set(alone) for s in sums if s):
        return "couples one of several joints of a body: not enforced"
    return ""


def _equation(
    model: Any, e: int, sums: list[dict[int, float] | None], names: Sequence[str]
) -> tuple[dict[str, float], float]:
    """Coefficients of joints, beginning with those of l_1, and the right-hand side of the equation."""
    a0, a1 = map(float, model.eq_data[e][:2])
    terms: dict[str, float] = {}
    offset = a0
    for side, factor in zip(sums, (1.0, -a1), strict=False):
        for j, c in (side or {}).items():
            terms[names[j]] = terms.get(names[j], 0.0) + factor * c
            offset += factor * c * float(model.qpos0[model.jnt_qposadr[j]])
    return terms, offset


def _solve(
    terms: dict[str, float], offset: float, found: Mapping[str, CouplingDescription]
) -> CouplingDescription | None:
    """Solve an equation for its first joint without a coupling; None if all joints are eliminated."""
    smallest = MIN_COEFFICIENT * max(map(abs, terms.values()), default=0.0)
    while known := [j for j in terms if j in found]:
        c, row = terms.pop(known[0]), found[known[0]]
        offset -= c * row.offset
        for j, x in row.coefficients.items():
            terms[j] = terms.get(j, 0.0) + c * x
    remaining = {j: c for j, c in terms.items() if abs(c) > smallest}
    if not remaining:
        return None
    first = next(iter(remaining))
    c = remaining.pop(first)
    return CouplingDescription(first, {j: -x / c for j, x in remaining.items()}, offset / c)
