"""Warning about parts of robots that `Mechanism.append` and `Mechanism.lock` cannot keep."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torchsko.errors import RobotFileWarning, caller_stack_level
from torchsko.mechanism.description import UnsupportedElement


def warn_of_edit(edit: str, notes: Sequence[UnsupportedElement]) -> None:
    """Warn of the elements that an edit does not keep; they are in ``unused`` as well.

    Args:
        edit: the edit, for the message.
        notes: the elements, with reasons.
    """
    if notes:
        listed = "\n  ".join(map(str, notes))
        text = f"{edit} does not keep {len(notes)} part{'s' * (len(notes) > 1)}:\n  {listed}"
        warnings.warn(text, RobotFileWarning, stacklevel=caller_stack_level())
