"""Checks of the values of contact models: sizes, margins and time constants."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchsko.errors import MechanismError, RobotFileWarning, caller_stack_level
from torchsko.utils.concrete_values import concrete_values

if TYPE_CHECKING:
    from torchsko.contact.contact_model import ContactModel

NUM_SIZES = {"sphere": 1, "capsule": 2, "cylinder": 2, "heightfield": 2, "ellipsoid": 3, "box": 3}
"""Number of half sizes of each kind of shape."""

SOLREFS = ("solref", "limit_solref", "loss_solref", "equality_solref")
"""Tensors of reference parameters."""

MAX_VALUES = 10_000
"""Largest number of values of a tensor that are read for a check."""


def check_values(contact: ContactModel, names: Iterable[str]) -> None:
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
            for k, kind in enumerate(contact.shape_kinds):
                size = values[..., k, : NUM_SIZES.get(kind, 0)].reshape(-1)
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
            constant, least = values[..., 0], 2 * contact.options.timestep
            short = (constant > 0) & (constant < least)
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
