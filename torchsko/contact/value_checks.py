"""Checks of the values of contact models: sizes, margins and time constants."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from torchsko.contact.contact_fields import ContactFields
from torchsko.errors import MechanismError, RobotFileWarning, ShapeError, caller_stack_level
from torchsko.linalg.scalar_form import is_scalar_form
from torchsko.mechanism.file_data.solver_options import SOLREF
from torchsko.mechanism.mechanism import Mechanism
from torchsko.shapes.registry import SHAPES
from torchsko.utils.concrete_values import concrete_values

SOLREFS = ("solref", "limit_solref", "loss_solref", "equality_solref")
"""Tensors of reference parameters."""

SMALL_FRICTION = 1e-3
"""Coefficient of friction below which forces of a cone change by orders of magnitude within a step."""

NUM_COEFFICIENTS = {1: 0, 3: 2, 4: 3, 6: 5}
"""Coefficients of friction that a pair uses, by its number of dimensions."""

MAX_VALUES = 10_000
"""Largest number of values of a tensor that are read for a check."""


def check_values(contact: ContactFields, names: Iterable[str]) -> None:
    """Check tensors of a contact model whose values are available.

    Args:
        contact: the model.
        names: of the tensors.

    Raises:
        MechanismError: when a half size is not positive, or a margin is negative.

    Warns:
        RobotFileWarning: when a time constant is less than two time steps.
    """
    for name in names:
        values = concrete_values(getattr(contact, name), most=MAX_VALUES)
        if values is None:
            continue
        if name == "shape_size":
            counts = {shape.kind: shape.num_sizes for shape in SHAPES}
            for k, kind in enumerate(contact.shape_kinds):
                size = values[..., k, : counts[kind]].reshape(-1)
                if not (size > 0).all():
                    raise MechanismError(
                        f"the half sizes of the {kind} {contact.shape_names[k]!r} are {size.tolist()} m.",
                        "Sizes of shapes in contact are positive.",
                        "Pass positive numbers in shape_size, or correct the robot file.",
                    )
        elif name == "margin":
            for k, pair in enumerate(contact.pair_names):
                if not (values[..., k] >= 0).all():
                    raise MechanismError(
                        f"the margin of the pair {pair} is {values[..., k].min()} m.",
                        "Contacts exert force below the margin.",
                        "Pass a number that is not negative.",
                    )
        elif name in SOLREFS and values.size:
            mixed = (values[..., 0] > 0) != (values[..., 1] > 0)
            if mixed.any():
                warnings.warn(
                    f"{name} has {values[mixed][0].tolist()}, of which one number is positive. "
                    f"{SOLREF} is used instead. Pass two positive numbers, or none.",
                    RobotFileWarning,
                    stacklevel=caller_stack_level(),
                )
            constant, least = values[..., 0], 2 * contact.options.timestep
            short = (constant > 0) & (constant < least) & ~mixed
            if contact.options.refsafe and short.any():
                number = int(short.nonzero()[-1][0])
                place = (
                    f"pair {contact.pair_names[number]}" if name == "solref" else f"row {number}"
                )
                warnings.warn(
                    f"{name} of {place} has the time constant {constant[short].min():g} s, which is less "
                    f"than two time steps. {least:g} s is used instead. Set it to {least:g} s or more, or "
                    "shorten the time step.",
                    RobotFileWarning,
                    stacklevel=caller_stack_level(),
                )


def has_small_friction(contact: ContactFields) -> bool:
    """True if a coefficient that a pair uses is below `SMALL_FRICTION`, or if values cannot be read."""
    values = concrete_values(contact.friction)
    if values is None:
        return True
    used = (values[..., k, : NUM_COEFFICIENTS[dim]] for k, dim in enumerate(contact.condim))
    return any(bool((x < SMALL_FRICTION).any()) for x in used)


def check_mechanism(contact: ContactFields, mech: Mechanism) -> None:
    """Check that a contact model has the rows of a mechanism.

    Limits and dry friction of joints without rows are found where they were replaced, and have values.

    Raises:
        MechanismError: when the joints differ, or a limit or dry friction of a joint has no row.
    """
    if contact.joint_names != mech.tree_joint_names:
        raise MechanismError(
            f"the contact model has the joints {list(contact.joint_names)}, the mechanism "
            f"{list(mech.tree_joint_names)}.",
            "Its rows belong to the joints and bodies of one mechanism.",
            "Pass ContactModel.of(mech) of this mechanism.",
        )
    if not contact.tables.fits(mech):
        raise MechanismError(
            "the contact model was made of a mechanism with another tree, or with other couplings or loops.",
            "Its rows belong to the dofs of one mechanism.",
            "Pass ContactModel.of(mech) of this mechanism.",
        )
    unknown = {*contact.shape_names} - {
        shape.name or f"shape{k}" for k, shape in enumerate(mech.geometry.shapes)
    }
    if unknown:
        raise MechanismError(
            f"the contact model has the shape {min(unknown)!r}, the mechanism {mech.name!r} has not.",
            "A contact model belongs to the mechanism that it was made of.",
            "Pass contact=ts.ContactModel.of(mech).",
        )
    dtype = contact.tendon_transmission.dtype
    if dtype != mech.dtype and not is_scalar_form():
        raise MechanismError(
            f"the contact model is {dtype}, the mechanism {mech.dtype}.",
            "Dtypes are not converted implicitly.",
            f"Pass contact.to({mech.dtype}).",
        )
    disabled = contact.options.disabled
    if "friction" in mech.replaced and "frictionloss" not in disabled:
        _refuse_rowless(mech, "friction", np.not_equal, 0.0, contact.loss_dof)
    if contact.coupled_range.shape[-2] and {"lower", "upper"} & {*mech.replaced}:
        raise MechanismError(
            "limits were replaced, and the contact model has those of coupled joints of the file.",
            "Limits of a mechanism are combined with those of joints that follow others.",
            "Pass ContactModel.of of the mechanism with its new limits.",
        )
    for name in ("lower", "upper"):
        if name in mech.replaced and "limit" not in disabled:
            _refuse_rowless(mech, name, np.less, np.inf, contact.limit_q)


def _refuse_rowless(
    mech: Mechanism, field: str, compare: np.ufunc, bound: float, rows: Sequence[int]
) -> None:
    values = concrete_values(getattr(mech, field), most=MAX_VALUES)
    if values is None:
        return
    acts = compare(np.abs(values), bound).reshape(-1, values.shape[-1]).any(0)
    for k in set(acts.nonzero()[0].tolist()) - {*rows}:
        joint = next((name for name, at in _entries(mech, field) if at.start <= k < at.stop), None)
        if joint is not None:
            raise MechanismError(
                f"{field} of joint {joint!r} is {values.reshape(-1, values.shape[-1])[:, k].tolist()}, "
                "but the contact model has no row for it.",
                "Rows are those of the mechanism when the contact model was made.",
                "Pass ContactModel.of of the mechanism with this value.",
            )


def _entries(mech: Mechanism, field: str) -> list[tuple[str, slice]]:
    """Places of the entries of joints that can have rows."""
    if field == "friction":
        return [(name, mech.tree_dof_slice(name)) for name in mech.tree_joint_names]
    names = ((k, mech.tree_joint_names[k]) for k in mech.independent_joints)
    return [(name, mech.q_slice(name)) for k, name in names if mech.joints.kinds[k].vector]


def check_batch(contact: ContactFields, dims: Mapping[str, int], batch: Sequence[int]) -> None:
    """Check that the batch dimensions of a contact model broadcast with those of a state.

    Raises:
        ShapeError: names the tensor.
    """
    for name, num in dims.items():
        x = getattr(contact, name)
        lead = tuple(x.shape[: x.ndim - num])
        pairs = zip(reversed(lead), reversed(tuple(batch)), strict=False)
        if any(a != b and 1 not in (a, b) for a, b in pairs):
            raise ShapeError(
                f"{name} of the contact model has batch dimensions {list(lead)}, the state has "
                f"{list(batch)}.",
                "They are broadcast together.",
                f"Pass {name} with batch dimensions {list(batch)}, or without any.",
            )
