"""Warning about parts of robots that `Mechanism.append` and `Mechanism.lock` cannot keep."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torchsko.errors import MechanismError, RobotFileWarning, caller_stack_level
from torchsko.mechanism.description import UnsupportedElement


def note_losses_of_edit(
    edit: str, notes: Sequence[UnsupportedElement], strict: bool = False
) -> None:
    """Warn of the elements that an edit does not keep; they are in ``unused`` as well.

    Args:
        edit: the edit, for the message.
        notes: the elements, with reasons.
        strict: refuse the edit instead.

    Raises:
        MechanismError: names the elements, if strict.
    """
    if notes:
        listed = "\n  ".join(map(str, notes))
        text = f"{edit} does not keep {len(notes)} part{'s' * (len(notes) > 1)}:\n  {listed}"
        if strict:
            raise MechanismError(
                text, "strict=True refuses to leave parts out.", "Leave strict out, or remove them."
            )
        warnings.warn(text, RobotFileWarning, stacklevel=caller_stack_level())
