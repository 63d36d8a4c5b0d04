"""Linear equalities of joints, and of tendons of joints, in a compiled MuJoCo model, as exact couplings.

With lengths l of tendons, or coordinates of joints, that are l_0 in ``qpos0``, such an equality says

.. math::
    l_1 - l_{1,0} = a_0 + a_1 (l_2 - l_{2,0}).

Reference: MuJoCo documentation, "XML reference" (equality/joint, equality/tendon).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torchsko.io.mujoco.mujoco_flags import switched_off
from torchsko.io.mujoco.mujoco_names import all_joint_names
from torchsko.io.mujoco.mujoco_numbers import HINGE, SLIDE
from torchsko.mechanism.description import CouplingDescription, UnsupportedElement

CONNECT, WELD, JOINT, TENDON = 0, 1, 2, 3
"""MuJoCo's types of equalities (mjtEq)."""

WRAP_JOINT = 1
"""MuJoCo's type of a part of a tendon that is a joint (mjtWrap)."""

ROUNDING = 1e-12
"""Relative size of the coefficients that are left of an equation that others say already."""


def couplings_of(
    model: Any, alone: Collection[str]
) -> tuple[tuple[CouplingDescription, ...], list[UnsupportedElement]]:
    """Linear equalities, exactly; what else is equated, reported.

    Args:
        model: ``mujoco.MjModel``.
        alone: names of joints that are not stacked with others.
    """
    names = all_joint_names(model)
    found: dict[str, CouplingDescription] = {}
    broken = []
    for e in range(model.neq):
        what, sums = f"equality {model.eq(e).name or e!r}", _sides(model, e)
        why = _unfit(model, e, sums, {j for j, name in enumerate(names) if name in alone})
        coupling = None if why else _solved(*_equation(model, e, sums, names), found)
        if coupling is None:
            broken.append(
                UnsupportedElement(what, why or "says what others say already, or contradicts them")
            )
        else:
            found[coupling.joint] = coupling
    return tuple(found.values()), broken


def tendon_joints(model: Any, t: int) -> dict[int, float] | None:
    """Coefficients of a fixed tendon by the numbers of its joints; None where its length is no such sum."""
    first, found = int(model.tendon_adr[t]), {}
    for w in range(first, first + int(model.tendon_num[t])):
        j = int(model.wrap_objid[w])
        if int(model.wrap_type[w]) != WRAP_JOINT or int(model.jnt_type[j]) not in (SLIDE, HINGE):
            return None
        found[j] = found.get(j, 0.0) + float(model.wrap_prm[w])
    return found


def _sides(model: Any, e: int) -> list[dict[int, float] | None]:
    """The lengths that an equality is of, as sums over joints; None for what is no such sum."""
    kind, ends = int(model.eq_type[e]), (int(model.eq_obj1id[e]), int(model.eq_obj2id[e]))
    if kind == JOINT:
        moved = [int(model.jnt_type[i]) in (SLIDE, HINGE) for i in ends if i >= 0]
        return [{i: 1.0} if ok else None for i, ok in zip(ends, moved, strict=False)]
    return [tendon_joints(model, i) for i in ends if i >= 0] if kind == TENDON else []


def _unfit(model: Any, e: int, sums: list[dict[int, float] | None], alone: Collection[int]) -> str:
    """Why an equality is no coupling; empty where it is one."""
    if not model.eq_active0[e] or "equality" in switched_off(model):
        return "switched off in the file"
    if int(model.eq_type[e]) in (CONNECT, WELD):
        return "closes a chain; kept in mech.file_metadata.closures, and not enforced yet"
    if not sums or None in sums:
        return "holds no joints, nor tendons of joints; it is not honoured"
    if len(sums) == 2 and any(map(float, model.eq_data[e][2:5])):
        return "no linear coupling of joints; it is not honoured"
    if not all(set(s) <= set(alone) for s in sums if s):
        return "couples one of several joints of a body; not honoured"
    return ""


def _equation(
    model: Any, e: int, sums: list[dict[int, float] | None], names: Sequence[str]
) -> tuple[dict[str, float], float]:
    """Coefficients of joints, those of the first length first, and what the sum with them is."""
    a0, a1 = map(float, model.eq_data[e][:2])
    terms: dict[str, float] = {}
    offset = a0
    for side, factor in zip(sums, (1.0, -a1), strict=False):
        for j, c in (side or {}).items():
            terms[names[j]] = terms.get(names[j], 0.0) + factor * c
            offset += factor * c * float(model.qpos0[model.jnt_qposadr[j]])
    return terms, offset


def _solved(
    terms: dict[str, float], offset: float, found: Mapping[str, CouplingDescription]
) -> CouplingDescription | None:
    """An equation, solved for the first of its joints that none before it was; None where none is left."""
    smallest = ROUNDING * max(map(abs, terms.values()), default=0.0)
    while known := [j for j in terms if j in found]:
        c, row = terms.pop(known[0]), found[known[0]]
        offset -= c * row.offset
        for j, x in row.coefficients.items():
            terms[j] = terms.get(j, 0.0) + c * x
    left = {j: c for j, c in terms.items() if abs(c) > smallest}
    if not left:
        return None
    first = next(iter(left))
    c = left.pop(first)
    return CouplingDescription(first, {j: -x / c for j, x in left.items()}, offset / c)
