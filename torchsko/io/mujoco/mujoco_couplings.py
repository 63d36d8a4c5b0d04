"""Exact couplings from linear equalities of joints or fixed tendons in a compiled MuJoCo model.

With coordinates of joints or lengths of tendons l, whose values in ``qpos0`` are l_0, the equality is

.. math::
    l_1 - l_{1,0} = a_0 + a_1 (l_2 - l_{2,0}).

Reference: MuJoCo documentation, "XML reference" (equality/joint, equality/tendon).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torchsko.io.mujoco.mujoco_fields import HINGE, SLIDE, all_joint_names, disabled_flags
from torchsko.mechanism.description import CouplingDescription, UnsupportedElement

CONNECT, WELD, JOINT, TENDON = 0, 1, 2, 3
"""MuJoCo's types of equalities (mjtEq)."""

WRAP_JOINT = 1
"""MuJoCo's type of a joint in a fixed tendon (mjtWrap)."""

REDUNDANT = "redundant, or in conflict with other equalities"
UNKNOWN = "not an equality of joints or fixed tendons: not enforced"
"""Reasons for which an equality is not used."""

MIN_COEFFICIENT = 1e-12
"""Relative size below which a coefficient of an eliminated equation is rounding."""


class Couplings(NamedTuple):
    """Equalities of a model.

    Attributes:
        found: couplings from linear equalities.
        coupled: indices of the equalities that are couplings.
        closures: indices of the equalities that are closures.
        unsupported: the other equalities.
    """

    found: tuple[CouplingDescription, ...]
    coupled: tuple[int, ...]
    closures: tuple[int, ...]
    unsupported: tuple[UnsupportedElement, ...]


def couplings_of(model: Any, alone: Collection[str], mimic: str) -> Couplings:
    """Couplings from linear equalities, and the other equalities.

    Args:
        model: ``mujoco.MjModel``.
        alone: names of joints that are the only joint of their body.
        mimic: "couple" or "independent", as in `torchsko.load`.
    """
    names = all_joint_names(model)
    found: dict[str, CouplingDescription] = {}
    unsupported, closures, coupled = [], [], []
    for e in range(model.neq):
        what, sums = f"equality {equality_name(model, e)!r}", equality_sides(model, e)
        if is_closure(model, e, alone, mimic):
            closures.append(e)
        elif not sums or None in sums:
            unsupported.append(UnsupportedElement(what, UNKNOWN, affects_forces=_is_on(model, e)))
        elif coupling := _solve(*_equation(model, e, sums, names), found):
            found[coupling.joint] = coupling
            coupled.append(e)
        else:
            unsupported.append(UnsupportedElement(what, REDUNDANT, absent=True))
    return Couplings(tuple(found.values()), tuple(coupled), tuple(closures), tuple(unsupported))


def equality_name(model: Any, e: int) -> str:
    """Name of an equality, generated if the file has none."""
    return model.eq(e).name or f"equality{e}"


def is_closure(model: Any, e: int, alone: Collection[str], mimic: str) -> bool:
    """True for an equality between frames, and for one of joints or tendons that is no exact coupling."""
    if int(model.eq_type[e]) in (CONNECT, WELD):
        return True
    sums, names = equality_sides(model, e), all_joint_names(model)
    if not sums or None in sums:
        return False
    return (
        mimic == "independent"
        or not _is_on(model, e)
        or (len(sums) == 2 and any(map(float, model.eq_data[e][2:5])))
        or any(names[j] not in alone for side in sums for j in side or ())
    )


def _is_on(model: Any, e: int) -> bool:
    return bool(model.eq_active0[e]) and "equality" not in disabled_flags(model)


def tendon_joints(model: Any, t: int) -> dict[int, float] | None:
    """Coefficients of a fixed tendon by joint index; None if its length is not a sum over joints."""
    first, found = int(model.tendon_adr[t]), {}
    for w in range(first, first + int(model.tendon_num[t])):
        j = int(model.wrap_objid[w])
        if int(model.wrap_type[w]) != WRAP_JOINT or int(model.jnt_type[j]) not in (SLIDE, HINGE):
            return None
        found[j] = found.get(j, 0.0) + float(model.wrap_prm[w])
    return found


def equality_sides(model: Any, e: int) -> list[dict[int, float] | None]:
    """The coupled quantities as sums over joints; None for a quantity that is not such a sum."""
    kind, objects = int(model.eq_type[e]), (int(model.eq_obj1id[e]), int(model.eq_obj2id[e]))
    if kind == JOINT:
        scalar = [int(model.jnt_type[i]) in (SLIDE, HINGE) for i in objects if i >= 0]
        return [{i: 1.0} if ok else None for i, ok in zip(objects, scalar, strict=False)]
    return [tendon_joints(model, i) for i in objects if i >= 0] if kind == TENDON else []


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
